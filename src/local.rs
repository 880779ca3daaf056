//! Answers requests of the HTTP API in this process, without a daemon: for the command line, and for MCP over standard input and output. It
//! takes the same bodies and gives the same answers, except for registered chunks and recent compressions, which only a daemon has.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thresher_core::pipeline::{self, Pipeline};

use crate::access::Caller;
use crate::admission::Admission;
use crate::api::{
    self, AttributeAnswer, AttributeBody, BodyLimits, ChunkNumbers, CompressAnswer, CompressBody,
};
use crate::error::{ApiError, ErrorCode};
use crate::executor::{self, Executor, PipelineSlot, TimeLimits};
use crate::receipt::{Receipt, SigningKey};

/// Answers requests of this process's only user. Clones share the permits and the model.
#[derive(Clone)]
pub struct Local {
    executor: Executor,
    limits: BodyLimits,
    receipt_key_file: PathBuf,
}

pub struct LocalParts {
    pub admission: Admission,
    pub time_limits: TimeLimits,
    pub limits: BodyLimits,
    /// The private key that receipts are signed with (`receipts.key_file`).
    pub receipt_key_file: PathBuf,
}

impl Local {
    /// Requests wait until the model has been loaded: see [`Self::with_model`].
    pub fn new(parts: LocalParts) -> Self {
        let LocalParts { admission, time_limits, limits, receipt_key_file } = parts;
        let (caller, pipeline) = (Caller::default(), PipelineSlot::default());
        let executor = Executor { caller, has_rivals: false, admission, time_limits, pipeline };
        Self { executor, limits, receipt_key_file }
    }

    /// Runs `work`, and loads the model at the same time. `work` is started first: if it ends without waiting, no model is loaded.
    ///
    /// # Errors
    /// Fails if `load` fails.
    pub async fn with_model<T, E: Send + 'static>(
        &self,
        load: impl FnOnce() -> Result<Arc<Pipeline>, E> + Send + 'static,
        work: impl Future<Output = T>,
    ) -> Result<T, E> {
        let loading = async {
            match tokio::task::spawn_blocking(load).await {
                Ok(loaded) => drop(self.executor.pipeline.set(loaded?)),
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            done = work => Ok(done),
            failed = loading => failed,
        }
    }

    /// The answer to a body of `POST /v1/compress`.
    ///
    /// # Errors
    /// As the daemon; `unavailable`, if the body names what only a daemon has.
    pub async fn compress(&self, body: &[u8]) -> Result<CompressAnswer, ApiError> {
        let (request, options) = api::parse::<CompressBody>(body, &self.limits)?.into_domain_alone()?;
        let (pipeline, started, deadline) = self.start(options.deadline_ms).await?;
        let request = Arc::new(request);
        let answer = self.executor.run(deadline, {
            let (request, pipeline) = (Arc::clone(&request), Arc::clone(&pipeline));
            move |cancel| {
                let compressed = pipeline.compress(&request, cancel)?;
                Ok(CompressAnswer::new(&request, compressed, options.offsets, Some(&pipeline)))
            }
        });
        match answer.await {
            Err(error) if executor::passes_through(&error, options.on_error, false) => {
                let whole = pipeline::passthrough(&request, started.elapsed());
                let answer = CompressAnswer::new(&request, whole, options.offsets, Some(&pipeline));
                Ok(answer.degraded(error))
            }
            outcome => outcome,
        }
    }

    /// The answer to a body of `POST /v1/attribute`.
    ///
    /// # Errors
    /// As the daemon; `unavailable`, if the body names what only a daemon has.
    pub async fn attribute(&self, body: &[u8]) -> Result<AttributeAnswer, ApiError> {
        let body = api::parse::<AttributeBody>(body, &self.limits)?;
        let deadline_ms = body.deadline_ms();
        let (request, options) = body.into_domain(None, &self.limits)?;
        let (pipeline, _, deadline) = self.start(deadline_ms).await?;
        let key_file = self.receipt_key_file.clone();
        let answer = self.executor.run(deadline, move |cancel| {
            let attributed = pipeline.attribute(&request, cancel)?;
            let answer =
                AttributeAnswer::new(&request, &attributed, &options, &pipeline, ChunkNumbers::default());
            let receipt = options.receipt.then(|| {
                let key = SigningKey::at(&key_file).map_err(|cause| {
                    let message = format!("the receipt cannot be signed (receipts.key_file): {cause}");
                    ApiError::new(ErrorCode::Internal, message)
                })?;
                Ok::<_, ApiError>(Receipt::issue(&request, &attributed, &pipeline, &key))
            });
            Ok(answer.with_receipt(receipt.transpose()?))
        });
        answer.await
    }

    /// Waits for the model; then the pipeline, the time, and the deadline of a request that names `deadline_ms`. Waiting for the model does
    /// not count towards the deadline.
    async fn start(&self, deadline_ms: Option<u64>) -> Result<(Arc<Pipeline>, Instant, Instant), ApiError> {
        let time: Duration = self.executor.time(deadline_ms)?;
        let pipeline = Arc::clone(self.executor.pipeline.wait().await);
        let started = Instant::now();
        Ok((pipeline, started, started + time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Bounds;

    #[tokio::test]
    async fn an_invalid_request_is_refused_before_the_model_is_loaded() {
        let local = Local::new(LocalParts {
            admission: Admission::new(Bounds { concurrency_max: 1, queue_max: 0 }),
            time_limits: TimeLimits { default: Duration::from_secs(1), max: Duration::from_secs(2) },
            limits: BodyLimits::default(),
            receipt_key_file: PathBuf::new(),
        });
        let check = async |body: &str, expect: ErrorCode| {
            let load = || -> Result<Arc<Pipeline>, ()> { panic!("the model is not needed") };
            let compressed = local.with_model(load, local.compress(body.as_bytes())).await;
            assert_eq!(compressed.expect("it is not loaded").expect_err(body).code, expect, "{body}");
        };
        check("{", ErrorCode::InvalidJson).await;
        check(r#"{"query": "q"}"#, ErrorCode::MissingField).await;
        check(r#"{"query": "q", "chunk_ids": ["a"]}"#, ErrorCode::Unavailable).await;
        let late = r#"{"query": "q", "chunks": ["a"], "deadline_ms": 2001, "on_error": "passthrough"}"#;
        check(late, ErrorCode::OutOfRange).await;
    }
}
