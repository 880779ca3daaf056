//! Runs what takes time off the threads that carry connections: with a permit, until a deadline, while somebody waits.

use std::time::{Duration, Instant};

use super::{HttpError, Scope, Service};
use crate::access::Caller;
use crate::admission::Permit;
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;

/// When a request that arrived at `arrived` is late.
///
/// # Errors
/// When it names a deadline over the limit.
pub fn deadline(arrived: Instant, asked_ms: Option<u64>, service: &Service) -> Result<Instant, HttpError> {
    match asked_ms.map(Duration::from_millis) {
        None => Ok(arrived + service.limits.deadline_default),
        Some(asked) if asked <= service.limits.deadline_max => Ok(arrived + asked),
        Some(_) => Err(HttpError::deadline_out_of_range(service.limits.deadline_max)),
    }
}

/// Does something short on another thread.
///
/// # Errors
/// What it says; an internal error when it panics.
pub async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    // The panic's hook has said where; the caller may have asked for its chunks back.
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_panicked| Err(HttpError::internal()))
}

/// Waits for a permit, then works until `deadline`; stops at its next step when the client goes away.
///
/// # Errors
/// What the work says; a refusal; a deadline.
pub async fn admitted<T: Send + 'static>(
    service: &Scope,
    deadline: Instant,
    work: impl FnOnce(&Cancel) -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let permit = service.admission.enter(deadline).await?;
    permitted(service.caller().clone(), (permit, deadline), work).await
}

/// The same for one who has a permit. What was done is charged to its key when it ends, however it ends.
///
/// # Errors
/// What the work says; a deadline.
pub async fn permitted<T: Send + 'static>(
    caller: Caller,
    (permit, deadline): (Permit, Instant),
    work: impl FnOnce(&Cancel) -> Result<T, HttpError> + Send + 'static,
) -> Result<T, HttpError> {
    let cancel = Cancel::at(Some(deadline));
    // Dropped with this future when the client goes away: the work then stops at its next step.
    let _gone = GoneGuard(cancel.clone());
    let span = tracing::Span::current();
    let work = aside(move || {
        let _span = span.entered();
        let _charged = Charged { cancel: cancel.clone(), caller };
        // Held until the work has really ended, not only until nobody waits for it.
        let _permit = permit;
        work(&cancel)
    });
    match tokio::time::timeout_at(deadline.into(), work).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(PipelineError::DeadlineExceeded.into()),
    }
}

/// Charges a caller for its work when dropped: after a panic, too.
struct Charged {
    cancel: Cancel,
    caller: Caller,
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.caller.charge(self.cancel.spent(), Instant::now());
    }
}

struct GoneGuard(Cancel);

impl Drop for GoneGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
