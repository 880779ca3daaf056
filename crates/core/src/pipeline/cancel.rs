//! When to stop: the request's deadline, or a caller that has gone. And what was done until then, in tokens: every piece of work
//! comes by here, so none is forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::PipelineError;
use crate::kv::single_flight::CallerWaits;

/// Asked between pieces of work; clones share one fate.
#[derive(Clone, Default)]
pub struct Cancel {
    deadline: Option<Instant>,
    gone: Arc<AtomicBool>,
    wanted: Option<CallerWaits>,
    tokens: Arc<AtomicUsize>,
}

impl Cancel {
    /// Stops at `deadline`, if there is one.
    pub fn at(deadline: Option<Instant>) -> Self {
        Self { deadline, ..Self::default() }
    }

    /// The same, which also stops when `wanted` says so.
    pub fn while_wanted(&self, wanted: CallerWaits) -> Self {
        Self { wanted: Some(wanted), ..self.clone() }
    }

    /// The caller no longer waits.
    pub fn cancel(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// So many of the model's tokens were looked at, in chunks, a question or an answer.
    pub fn spend(&self, tokens: usize) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// All that were, by all clones.
    pub fn spent(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }

    /// How long anybody still waits; none: as long as it takes.
    pub fn patience(&self) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether work should go on.
    pub fn go_on(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
            && self.deadline.is_none_or(|at| Instant::now() < at)
            && self.wanted.as_ref().is_none_or(|wanted| wanted())
    }

    /// # Errors
    /// [`PipelineError::Cancelled`] or [`PipelineError::DeadlineExceeded`] once work should stop.
    pub fn check(&self) -> Result<(), PipelineError> {
        let late = || self.deadline.is_some_and(|at| Instant::now() >= at);
        match self.go_on() {
            true => Ok(()),
            false if !self.gone.load(Ordering::Relaxed) && late() => Err(PipelineError::DeadlineExceeded),
            false => Err(PipelineError::Cancelled),
        }
    }
}
