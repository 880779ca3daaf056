//! Cancellation: says when the work for a request should stop, because its deadline has passed or its caller
//! no longer waits. Also counts the tokens that the request has used so far, because every stage passes here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::PipelineError;
use crate::kv::single_flight::CallerWaits;
use crate::model::ModelError;

/// Tells the stages of the pipeline when to stop. The stages check it between pieces of work. Clones share
/// one state: cancelling one cancels all, and all count into the same sum of tokens.
///
/// ```
/// use thresher_core::pipeline::cancel::Cancel;
///
/// let cancel = Cancel::default(); // No deadline.
/// let in_another_thread = cancel.clone();
/// assert!(in_another_thread.go_on());
/// cancel.cancel();
/// assert!(!in_another_thread.go_on());
/// ```
#[derive(Clone, Default)]
pub struct Cancel {
    deadline: Option<Instant>,
    cancelled: Arc<AtomicBool>,
    caller_waits: Option<CallerWaits>,
    tokens_spent: Arc<AtomicUsize>,
    /// How many [`Holding`]s there are.
    held: Arc<AtomicUsize>,
}

/// Says, until it is dropped, that a request holds memory for blocks.
#[derive(Debug, Default)]
pub struct Holding(Option<Arc<AtomicUsize>>);

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(held) = &self.0 {
            held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Cancel {
    /// Returns a `Cancel` that stops work at `deadline`, or never by itself if there is none.
    pub fn at(deadline: Option<Instant>) -> Self {
        Self { deadline, ..Self::default() }
    }

    /// Returns a clone that also stops work once `wanted` returns false.
    pub fn while_wanted(&self, wanted: CallerWaits) -> Self {
        Self { caller_waits: Some(wanted), ..self.clone() }
    }

    /// Returns a clone that also stops work at `until`, if that is earlier.
    pub fn until(&self, until: Instant) -> Self {
        Self { deadline: Some(self.deadline.map_or(until, |at| at.min(until))), ..self.clone() }
    }

    /// Returns the deadline; `None` if there is none.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Stops the work of all clones, because the caller no longer waits for the result.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns the error of a request whose model failed with `error`. A model that was told to stop fails with the error of
    /// [`Self::check`].
    ///
    /// # Panics
    /// Panics if the model stopped although the caller still waits.
    pub fn or(&self, error: ModelError) -> PipelineError {
        match error {
            ModelError::Cancelled => {
                self.check().expect_err("the model stops only if the caller no longer waits")
            }
            error => error.into(),
        }
    }

    /// Adds `tokens` to the tokens that the request has used. They are tokens of the model, in chunks
    /// (whether read or found in the cache), in a question or in an answer.
    pub fn spend(&self, tokens: usize) {
        self.tokens_spent.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Returns how many of the model's tokens all clones together have used.
    pub fn spent(&self) -> usize {
        self.tokens_spent.load(Ordering::Relaxed)
    }

    /// Records that the request holds memory for blocks, until the result is dropped.
    pub fn hold_memory(&self) -> Holding {
        self.held.fetch_add(1, Ordering::Relaxed);
        Holding(Some(Arc::clone(&self.held)))
    }

    /// Returns whether the request holds memory for blocks.
    pub fn holds_memory(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Returns the time until the deadline, which is zero once it has passed, or `None` without a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Returns whether work should go on: nobody cancelled it, its deadline has not passed, and its caller
    /// still waits.
    pub fn go_on(&self) -> bool {
        !self.cancelled.load(Ordering::Relaxed)
            && self.deadline.is_none_or(|at| Instant::now() < at)
            && self.caller_waits.as_ref().is_none_or(|waits| waits())
    }

    /// Checks whether work should go on.
    ///
    /// # Errors
    /// Returns [`PipelineError::Cancelled`] if [`Self::cancel`] was called; otherwise
    /// [`PipelineError::DeadlineExceeded`] if the deadline has passed, and [`PipelineError::Cancelled`] if
    /// the caller no longer waits.
    pub fn check(&self) -> Result<(), PipelineError> {
        let is_past_deadline = || self.deadline.is_some_and(|at| Instant::now() >= at);
        if self.go_on() {
            Ok(())
        } else if !self.cancelled.load(Ordering::Relaxed) && is_past_deadline() {
            Err(PipelineError::DeadlineExceeded)
        } else {
            Err(PipelineError::Cancelled)
        }
    }
}
