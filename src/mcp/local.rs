//! Answers without a daemon: by a pipeline of this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thresher_core::domain::{OnError, Tenant};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{self, Pipeline, PipelineError};
use tokio::sync::watch;

use super::Answers;
use crate::admission::{Admission, Claim, Refusal};
use crate::api::{
    self, AttributeAnswer, AttributeBody, BodyLimits, CompressAnswer, CompressBody, ErrorBody, Names,
    RequestError,
};
use crate::receipt::{Receipt, SigningKey};

/// A pipeline, or none as long as its model is being loaded.
pub type Loading = watch::Receiver<Option<Arc<Pipeline>>>;

/// Signs receipts, or says in a word why it cannot.
type Sign = Arc<dyn Fn() -> Result<SigningKey, ErrorBody> + Send + Sync>;

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
        sign: impl Fn() -> Result<SigningKey, ErrorBody> + Send + Sync + 'static,
    ) -> Self {
        Self { loading, admission, deadline_default, limits, sign: Arc::new(sign) }
    }

    /// Works when its turn comes, on a thread of its own. Waiting for the model counts as nobody's time.
    async fn work<T: Send + 'static>(
        &self,
        deadline_ms: Option<u64>,
        work: impl FnOnce(&Pipeline, &Cancel) -> Result<T, ErrorBody> + Send + 'static,
    ) -> Result<T, ErrorBody> {
        let mut loading = self.loading.clone();
        let loaded = loading.wait_for(Option::is_some).await.map(|loaded| loaded.clone());
        let pipeline =
            loaded.ok().flatten().ok_or_else(|| error("not_ready", "the model could not be loaded"))?;
        let wait = deadline_ms.map_or(self.deadline_default, Duration::from_millis);
        let deadline = Instant::now() + wait;
        // Whoever talks to this process over its standard input is its only user.
        let claim = Claim { tenant: &Tenant::default(), has_rivals: false };
        let permit = self.admission.enter(claim, deadline).await.map_err(refused)?;
        let cancel = Cancel::at(Some(deadline));
        let _gone = Gone(cancel.clone());
        let working = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&pipeline, &cancel)
        });
        match tokio::time::timeout_at(deadline.into(), working).await {
            Ok(outcome) => outcome
                .unwrap_or_else(|_panicked| Err(error("internal", "an internal error; the log says where"))),
            Err(_elapsed) => Err(failed(&PipelineError::DeadlineExceeded)),
        }
    }
}

impl Answers for Local {
    const REMEMBERS: bool = false;

    async fn compress(&self, body: Vec<u8>) -> Result<CompressAnswer, ErrorBody> {
        let started = Instant::now();
        let parsed =
            api::parse::<CompressBody>(&body, &self.limits).and_then(CompressBody::into_domain_alone);
        let (request, options) = parsed.map_err(refuse)?;
        let request = Arc::new(request);
        let asked = Arc::clone(&request);
        let answer = self.work(options.deadline_ms, move |pipeline, cancel| {
            let compressed = pipeline.compress(&asked, cancel).map_err(|error| failed(&error))?;
            Ok(CompressAnswer::new(&asked, compressed, options.offsets, Some(pipeline)))
        });
        match answer.await {
            Err(error) if options.on_error == OnError::Passthrough && is_ours(error.code) => {
                let passed = pipeline::passthrough(&request, error.code, error.message, started.elapsed());
                Ok(CompressAnswer::new(&request, passed, options.offsets, self.loading.borrow().as_deref()))
            }
            outcome => outcome,
        }
    }

    async fn attribute(&self, body: Vec<u8>) -> Result<AttributeAnswer, ErrorBody> {
        let parsed = api::parse::<AttributeBody>(&body, &self.limits)
            .and_then(|body| Ok((body.deadline_ms(), body.into_domain(None, &self.limits)?)));
        let (deadline_ms, (request, options)) = parsed.map_err(refuse)?;
        let sign = Arc::clone(&self.sign);
        self.work(deadline_ms, move |pipeline, cancel| {
            let attributed = pipeline.attribute(&request, cancel).map_err(|error| failed(&error))?;
            let answer = AttributeAnswer::new(&request, &attributed, &options, pipeline, Names::default());
            let receipt = options
                .receipt
                .then(|| Ok::<_, ErrorBody>(Receipt::of(&request, &attributed, pipeline, &sign()?)));
            Ok(answer.with_receipt(receipt.transpose()?))
        })
        .await
    }
}

/// Whether the caller could have done nothing about it.
fn is_ours(code: &str) -> bool {
    matches!(code, "not_ready" | "overloaded" | "deadline_exceeded" | "internal" | "model_failed")
}

fn error(code: &'static str, message: &str) -> ErrorBody {
    ErrorBody { code, message: message.to_owned(), param: None }
}

fn refuse(error: RequestError) -> ErrorBody {
    ErrorBody { code: error.code, message: error.message, param: error.param }
}

fn refused(refusal: Refusal) -> ErrorBody {
    match refusal {
        Refusal::Late { .. } => failed(&PipelineError::DeadlineExceeded),
        Refusal::Overloaded { .. } | Refusal::StreamsTooMany { .. } => {
            error("overloaded", "too many calls are waiting (admission.queue_max)")
        }
        Refusal::Draining => error("draining", "the server is ending"),
    }
}

fn failed(error: &PipelineError) -> ErrorBody {
    let param = match error {
        PipelineError::Invalid(invalid) => Some(invalid.param()),
        _ => None,
    };
    ErrorBody { code: error.code(), message: error.to_string(), param }
}
