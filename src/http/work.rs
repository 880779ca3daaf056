//! Runs what takes time off the threads that carry connections: with a permit, until a deadline, while somebody waits.

use std::time::{Duration, Instant};

use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::PipelineError;
use thresher_core::pipeline::cancel::Cancel;

use super::{Scope, Service};
use crate::access::Caller;
use crate::admission::{Permit, Refusal, Stream};
use crate::error::{ApiError, ErrorCode};

/// When a request that arrived at `arrived` is late.
///
/// # Errors
/// When it names a deadline over the limit.
pub fn deadline(arrived: Instant, asked_ms: Option<u64>, service: &Service) -> Result<Instant, ApiError> {
    match asked_ms.map(Duration::from_millis) {
        None => Ok(arrived + service.limits.deadline_default),
        Some(asked) if asked <= service.limits.deadline_max => Ok(arrived + asked),
        Some(_) => Err(ApiError::deadline_out_of_range(service.limits.deadline_max)),
    }
}

/// Does something short on another thread.
///
/// # Errors
/// What it says; an internal error when it panics.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // The panic's hook has said where; the caller may have asked for its chunks back.
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_panicked| Err(ApiError::internal()))
}

/// Waits for a permit, then works until `deadline`; stops at its next step when the client goes away.
///
/// # Errors
/// What the work says; a refusal; a deadline.
pub async fn admitted<T: Send + 'static>(
    service: &Scope,
    deadline: Instant,
    work: impl FnOnce(&Cancel) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = enter(service, deadline).await?;
    permitted(service, (permit, deadline), work).await
}

/// Waits for a permit until `deadline`.
///
/// # Errors
/// Why there is none, and when to ask again.
pub async fn enter(service: &Scope, deadline: Instant) -> Result<Permit, ApiError> {
    let entered = service.admission.enter(service.claim(), deadline).await;
    refused(service, entered).await
}

/// The same for a sentence of a stream that was admitted.
///
/// # Errors
/// As [`enter`].
pub async fn enter_stream(service: &Scope, stream: &Stream, deadline: Instant) -> Result<Permit, ApiError> {
    refused(service, stream.enter(deadline).await).await
}

/// Opens a stream of an answer.
///
/// # Errors
/// As [`enter`].
pub async fn open_stream(service: &Scope) -> Result<Stream, ApiError> {
    refused(service, service.admission.stream(service.claim())).await
}

async fn refused<T>(service: &Scope, outcome: Result<T, Refusal>) -> Result<T, ApiError> {
    match outcome {
        Ok(admitted) => Ok(admitted),
        Err(refusal) => {
            let error = ApiError::from(refusal).retry_not_before(reading_left(service));
            held_back(service, error).await
        }
    }
}

/// How long the model will take for what it reads for this tenant now.
fn reading_left(service: &Scope) -> Duration {
    service.pipeline().map(Pipeline::reading_left).unwrap_or_default()
}

/// Sends a tenant's refusals with a pause between them when it repeats refused requests many times a second: each of them has been
/// read and parsed, on processors that other tenants use.
async fn held_back<T>(service: &Scope, error: ApiError) -> Result<T, ApiError> {
    if error.code == ErrorCode::Overloaded {
        let delay = service.admission.refusal_delay(service.claim());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
    Err(error)
}

/// The same for one who has a permit. What was done is charged to its key when it ends, however it ends.
///
/// # Errors
/// What the work says; a deadline.
pub async fn permitted<T: Send + 'static>(
    service: &Scope,
    (permit, deadline): (Permit, Instant),
    work: impl FnOnce(&Cancel) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let cancel = Cancel::at(Some(deadline));
    // Dropped with this future when the client goes away: the work then stops at its next step.
    let _gone = GoneGuard(cancel.clone());
    let (span, caller) = (tracing::Span::current(), service.caller().clone());
    let work = run_blocking(move || {
        let _span = span.entered();
        let _charged = Charged { cancel: cancel.clone(), caller };
        // Held until the work has really ended, not only until nobody waits for it.
        let _permit = permit;
        work(&cancel)
    });
    let outcome = match tokio::time::timeout_at(deadline.into(), work).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(PipelineError::DeadlineExceeded.into()),
    };
    match outcome {
        // Chunks that were read are kept: the next try goes on from there, best when others have been served.
        Err(error) if error.code == ErrorCode::DeadlineExceeded => {
            let wait = service.admission.retry_after_s(service.tenant());
            let wait = Duration::from_secs(wait).max(reading_left(service));
            Err(error.retry_not_before(wait))
        }
        Err(error) => held_back(service, error).await,
        answer => answer,
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
