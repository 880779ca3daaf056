//! Answers without a daemon: by a pipeline of this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thresher_core::domain::{OnError, Tenant};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{self, Pipeline, PipelineError};
use tokio::sync::watch;

use super::Answers;
use crate::admission::{Admission, Claim};
use crate::api::{self, AttributeAnswer, AttributeBody, BodyLimits, CompressAnswer, CompressBody, Names};
use crate::error::{ApiError, ErrorCode};
use crate::receipt::{Receipt, SigningKey};

/// A pipeline, or none as long as its model is being loaded.
pub type Loading = watch::Receiver<Option<Arc<Pipeline>>>;

/// Signs receipts, or says in a word why it cannot.
type Sign = Arc<dyn Fn() -> Result<SigningKey, ApiError> + Send + Sync>;

/// Answers calls in this process.
#[derive(Clone)]
pub struct Local {
    loading: Loading,
    admission: Admission,
    deadline_default: Duration,
    limits: BodyLimits,
    sign: Sign,
}

/// Stops work that nobody waits for.
struct Gone(Cancel);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Local {
    /// By a pipeline that may still be loading, for as many calls at once as `admission` lets in.
    pub fn new(
        loading: Loading,
        admission: Admission,
        (deadline_default, limits): (Duration, BodyLimits),
        sign: impl Fn() -> Result<SigningKey, ApiError> + Send + Sync + 'static,
    ) -> Self {
        Self { loading, admission, deadline_default, limits, sign: Arc::new(sign) }
    }

    /// Works when its turn comes, on a thread of its own. Waiting for the model counts as nobody's time.
    async fn work<T: Send + 'static>(
        &self,
        deadline_ms: Option<u64>,
        work: impl FnOnce(&Pipeline, &Cancel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let mut loading = self.loading.clone();
        let loaded = loading.wait_for(Option::is_some).await.map(|loaded| loaded.clone());
        let pipeline = loaded
            .ok()
            .flatten()
            .ok_or_else(|| ApiError::new(ErrorCode::NotReady, "the model could not be loaded"))?;
        let wait = deadline_ms.map_or(self.deadline_default, Duration::from_millis);
        let deadline = Instant::now() + wait;
        // Whoever talks to this process over its standard input is its only user.
        let claim = Claim { tenant: &Tenant::default(), has_rivals: false };
        let permit = self.admission.enter(claim, deadline).await?;
        let cancel = Cancel::at(Some(deadline));
        let _gone = Gone(cancel.clone());
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&pipeline, &cancel)
        });
        match tokio::time::timeout_at(deadline.into(), working).await {
            Ok(outcome) => outcome.unwrap_or_else(|_panicked| {
                Err(ApiError::new(ErrorCode::Internal, "an internal error; the log says where"))
            }),
            Err(_elapsed) => Err(PipelineError::DeadlineExceeded.into()),
        }
    }
}

impl Answers for Local {
    const REMEMBERS: bool = false;

    async fn compress(&self, body: Vec<u8>) -> Result<CompressAnswer, ApiError> {
        let started = Instant::now();
        let parsed =
            api::parse::<CompressBody>(&body, &self.limits).and_then(CompressBody::into_domain_alone);
        let (request, options) = parsed?;
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let answer = self.work(options.deadline_ms, move |pipeline, cancel| {
            let compressed = pipeline.compress(&asked, cancel)?;
            Ok(CompressAnswer::new(&asked, compressed, options.offsets, Some(pipeline)))
        });
        match answer.await {
            Err(error) if options.on_error == OnError::Passthrough && !error.code.is_callers_fault() => {
                let passed = pipeline::passthrough(&request, started.elapsed());
                let pipeline = self.loading.borrow();
                Ok(CompressAnswer::new(&request, passed, options.offsets, pipeline.as_deref())
                    .degraded(error))
            }
            outcome => outcome,
        }
    }

    async fn attribute(&self, body: Vec<u8>) -> Result<AttributeAnswer, ApiError> {
        let parsed = api::parse::<AttributeBody>(&body, &self.limits)
            .and_then(|body| Ok((body.deadline_ms(), body.into_domain(None, &self.limits)?)));
        let (deadline_ms, (request, options)) = parsed?;
        let sign = Arc::clone(&self.sign);
        self.work(deadline_ms, move |pipeline, cancel| {
            let attributed = pipeline.attribute(&request, cancel)?;
            let answer = AttributeAnswer::new(&request, &attributed, &options, pipeline, Names::default());
            let receipt = options
                .receipt
                .then(|| Ok::<_, ApiError>(Receipt::of(&request, &attributed, pipeline, &sign()?)));
            Ok(answer.with_receipt(receipt.transpose()?))
        })
        .await
    }
}
