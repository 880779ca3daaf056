//! When to stop: the request's deadline, or a caller that has gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::PipelineError;

/// Asked between pieces of work; clones share one fate.
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    deadline: Option<Instant>,
    gone: Arc<AtomicBool>,
}

impl Cancel {
    /// Stops at `deadline`, if there is one.
    pub fn at(deadline: Option<Instant>) -> Self {
        Self { deadline, gone: Arc::default() }
    }

    /// The caller no longer waits.
    pub fn cancel(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// How long anybody still waits; none: as long as it takes.
    pub fn patience(&self) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether work should go on.
    pub fn go_on(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && self.deadline.is_none_or(|at| Instant::now() < at)
    }

    /// # Errors
    /// [`PipelineError::Cancelled`] or [`PipelineError::DeadlineExceeded`] once work should stop.
    pub fn check(&self) -> Result<(), PipelineError> {
        match self.go_on() {
            true => Ok(()),
            false if self.gone.load(Ordering::Relaxed) => Err(PipelineError::Cancelled),
            false => Err(PipelineError::DeadlineExceeded),
        }
    }
}
