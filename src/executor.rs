//! Runs the work of callers: with a permit, on a thread that may block, until a deadline, and only while the caller waits. HTTP, MCP, the
//! command line and the middleware all use it, so that the same rules hold for them. It knows no transport.

mod worker_slots;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thresher_core::domain::{OnError, Tenant};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};
use tokio::sync::SetOnce;

pub use self::worker_slots::WorkerSlots;
use crate::access::Caller;
use crate::admission::{Admission, Permit, Refusal, Sharer, retry};
use crate::error::{ApiError, ErrorCode};

/// The pipeline of a model; empty until the model has been loaded.
pub type PipelineSlot = Arc<SetOnce<Arc<Pipeline>>>;

#[derive(Debug, Clone, Copy)]
pub struct TimeLimits {
    /// For a request that names no deadline.
    pub default: Duration,
    /// The longest that a request may name.
    pub max: Duration,
}

/// Runs the work of one caller. Clones share the permits and the pipeline.
#[derive(Clone)]
pub struct Executor {
    /// The caller, to whose key the work is charged.
    pub caller: Caller,
    /// Whether other tenants may want the same permits.
    pub has_rivals: bool,
    pub admission: Admission,
    pub time_limits: TimeLimits,
    /// The model, as the caller's tenant sees it.
    pub pipeline: PipelineSlot,
}

impl Executor {
    /// The pipeline.
    ///
    /// # Errors
    /// `not_ready` while the model is being loaded.
    pub fn ready(&self) -> Result<&Pipeline, ApiError> {
        self.pipeline().ok_or_else(ApiError::model_not_ready)
    }

    /// The pipeline; none while the model is being loaded.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.pipeline.get().map(|pipeline| &**pipeline)
    }

    /// The tenant whose data the work reads and writes.
    pub fn tenant(&self) -> &Tenant {
        self.caller.tenant()
    }

    /// The tenant as one of those that share slots and memory.
    pub fn sharer(&self) -> Sharer<'_> {
        Sharer { tenant: self.tenant(), has_rivals: self.has_rivals }
    }

    /// How long a request may take that names `deadline_ms`, or none.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn time(&self, deadline_ms: Option<u64>) -> Result<Duration, ApiError> {
        let TimeLimits { default, max } = self.time_limits;
        match deadline_ms.map(Duration::from_millis) {
            None => Ok(default),
            Some(time) if time <= max => Ok(time),
            Some(time) => {
                let message =
                    format!("deadline_ms is {}; the limit is {}", time.as_millis(), max.as_millis());
                Err(ApiError::with_param(ErrorCode::OutOfRange, message, "deadline_ms"))
            }
        }
    }

    /// When a request that arrived at `arrived` and names `deadline_ms`, or none, is late.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn deadline(&self, arrived: Instant, deadline_ms: Option<u64>) -> Result<Instant, ApiError> {
        Ok(arrived + self.time(deadline_ms)?)
    }

    /// Waits for a permit, then runs `work` until `deadline`. The work is told to stop when the deadline passes or the returned future is
    /// dropped. It keeps its permit until it has ended, and what it spent is then charged to the caller's key, however it ended.
    ///
    /// # Errors
    /// `overloaded`, `deadline_exceeded` or `draining`, with the time after which repeating the request is expected to help; what `work`
    /// fails with; `internal` when it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&Cancel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.permit(deadline).await?;
        let cancel = Cancel::at(Some(deadline));
        let charge = ChargeOnDrop { cancel: cancel.clone(), caller: self.caller.clone() };
        let (span, traced) = (tracing::Span::current(), opentelemetry::Context::current());
        let running = run_cancellable(cancel, (permit, charge), move |cancel| {
            let (_span, _traced) = (span.entered(), traced.attach());
            work(cancel)
        });
        let outcome = match tokio::time::timeout_at(deadline.into(), running).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(PipelineError::DeadlineExceeded.into()),
        };
        match outcome {
            // The blocks of chunks that were read are cached: the next attempt goes on from there, best when others have been served.
            Err(error) if error.code == ErrorCode::DeadlineExceeded => {
                let wait_s = self.admission.retry_after_s(self.tenant());
                Err(ApiError::deadline_exceeded(wait_s.max(self.reading_left_s())))
            }
            Err(error) => Err(self.held_back(error).await),
            answer => answer,
        }
    }

    /// Waits for `writing`, which needs no permit, until `deadline`. A caller that is told of a deadline does not know whether the change
    /// was made.
    ///
    /// # Errors
    /// What `writing` fails with; `draining`; `deadline_exceeded`.
    pub async fn write<T, E: Into<ApiError>>(
        &self,
        deadline: Instant,
        writing: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ApiError> {
        if self.admission.is_draining() {
            return Err(Refusal::Draining.into());
        }
        match tokio::time::timeout_at(deadline.into(), writing).await {
            Ok(outcome) => outcome.map_err(Into::into),
            Err(_elapsed) => Err(PipelineError::DeadlineExceeded.into()),
        }
    }

    async fn permit(&self, deadline: Instant) -> Result<Permit, ApiError> {
        let refusal = match self.admission.enter(self.sharer(), deadline).await {
            Ok(permit) => return Ok(permit),
            Err(refusal) => refusal,
        };
        let least = |retry_after_s: u64| retry_after_s.max(self.reading_left_s());
        let error = match refusal {
            Refusal::Late { retry_after_s } => ApiError::deadline_exceeded(least(retry_after_s)),
            refusal => {
                let error = ApiError::from(refusal);
                ApiError { retry_after_s: error.retry_after_s.map(least), ..error }
            }
        };
        Err(self.held_back(error).await)
    }

    /// Seconds that the model will take for what it reads for this tenant now, within the bounds of all estimates for `Retry-After`.
    fn reading_left_s(&self) -> u64 {
        retry::whole(self.pipeline().map(Pipeline::reading_left).unwrap_or_default())
    }

    /// Returns the error, after a pause if the tenant repeats refused requests many times a second: each of them costs processor time that
    /// other tenants need.
    async fn held_back(&self, error: ApiError) -> ApiError {
        if error.code == ErrorCode::Overloaded {
            let delay = self.admission.refusal_delay(self.sharer());
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
        }
        error
    }
}

/// Whether a compression that failed with `error` is answered with the caller's own chunks, unchanged: if the request asks for that and the
/// caller is not at fault. Registered chunks are not looked up while the daemon is overloaded, since looking them up is work.
pub fn passes_through(error: &ApiError, on_error: OnError, are_registered: bool) -> bool {
    let must_not_work = are_registered && error.code == ErrorCode::Overloaded;
    on_error == OnError::Passthrough && !error.code.is_callers_fault() && !must_not_work
}

/// Runs short work on a thread that may block.
///
/// # Errors
/// What `work` fails with; `internal` when it panics.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // The panic hook has logged where.
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_panicked| Err(ApiError::internal()))
}

/// Runs work that is told to stop when the returned future is dropped. `held` is dropped when the work has ended, which may be later.
async fn run_cancellable<T: Send + 'static>(
    cancel: Cancel,
    held: impl Send + 'static,
    work: impl FnOnce(&Cancel) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let _cancel_on_drop = CancelOnDrop(cancel.clone());
    run_blocking(move || {
        let _held = held;
        work(&cancel)
    })
    .await
}

struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Charges a caller for its work when dropped, which is also after a panic.
struct ChargeOnDrop {
    cancel: Cancel,
    caller: Caller,
}

impl Drop for ChargeOnDrop {
    fn drop(&mut self) {
        self.caller.charge(self.cancel.spent(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Bounds;

    fn executor(concurrency_max: usize, queue_max: usize) -> Executor {
        let (default, max) = (Duration::from_secs(60), Duration::from_secs(600));
        Executor {
            caller: Caller::default(),
            has_rivals: false,
            admission: Admission::new(Bounds { concurrency_max, queue_max }),
            time_limits: TimeLimits { default, max },
            pipeline: PipelineSlot::default(),
        }
    }

    #[test]
    fn a_deadline_is_the_default_or_named_within_the_limit() {
        let executor = executor(1, 1);
        let check = |deadline_ms: Option<u64>, expect: Result<u64, ErrorCode>| {
            let found = executor.time(deadline_ms).map(|time| time.as_secs()).map_err(|error| error.code);
            assert_eq!(found, expect, "{deadline_ms:?}");
        };
        check(None, Ok(60));
        check(Some(0), Ok(0));
        check(Some(600_000), Ok(600));
        check(Some(600_001), Err(ErrorCode::OutOfRange));
        check(Some(u64::MAX), Err(ErrorCode::OutOfRange));
    }

    #[test]
    fn chunks_pass_through_when_asked_for_and_the_caller_is_not_at_fault() {
        for &code in ErrorCode::ALL {
            let error = ApiError::new(code, "");
            assert!(!passes_through(&error, OnError::Fail, false), "{code}");
            assert_eq!(
                passes_through(&error, OnError::Passthrough, false),
                !code.is_callers_fault(),
                "{code}"
            );
            let looked_up = !code.is_callers_fault() && code != ErrorCode::Overloaded;
            assert_eq!(passes_through(&error, OnError::Passthrough, true), looked_up, "{code}");
        }
    }

    #[tokio::test]
    async fn work_returns_its_outcome_or_misses_its_deadline_or_panics() {
        let executor = executor(1, 0);
        let soon = || Instant::now() + Duration::from_secs(60);
        assert_eq!(executor.run(soon(), |_| Ok(7)).await, Ok(7));
        let panicked = executor.run(soon(), |_| -> Result<(), ApiError> { panic!("a bug") }).await;
        assert_eq!(panicked.expect_err("a panic").code, ErrorCode::Internal);
        let late = executor.run(Instant::now(), |cancel| Ok(cancel.check()?)).await;
        let late = late.expect_err("the deadline has passed");
        assert_eq!((late.code, late.retry_after_s), (ErrorCode::DeadlineExceeded, Some(1)));
    }

    #[tokio::test]
    async fn a_refusal_has_the_code_of_its_reason() {
        let executor = executor(1, 0);
        assert_eq!(executor.ready().err().map(|error| error.code), Some(ErrorCode::NotReady));
        let deadline = Instant::now() + Duration::from_secs(60);
        let _permit = executor.permit(deadline).await.expect("the first");
        let refused = executor.run(deadline, |_| Ok(())).await.expect_err("there is one permit");
        assert_eq!(refused.code, ErrorCode::Overloaded);
        executor.admission.drain();
        let drained = executor.write(deadline, async { Ok::<_, ApiError>(()) }).await;
        assert_eq!(drained.expect_err("nothing new").code, ErrorCode::Draining);
    }
}
