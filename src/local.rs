//! Answers the requests of the HTTP API in this process, without a daemon: for the command line and for MCP over standard input and
//! output. It takes the same bodies and gives the same answers, but for what only a daemon can remember.

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

/// What a [`Local`] is made of.
pub struct LocalParts {
    /// The permits.
    pub admission: Admission,
    /// How long requests may take.
    pub time_limits: TimeLimits,
    /// Bounds of request bodies.
    pub limits: BodyLimits,
    /// The private key that receipts are signed with (`receipts.key_file`).
    pub receipt_key_file: PathBuf,
}

impl Local {
    /// Answers nothing until a model has been loaded: see [`Self::with_model`].
    pub fn new(parts: LocalParts) -> Self {
        let LocalParts { admission, time_limits, limits, receipt_key_file } = parts;
        let (caller, pipeline) = (Caller::default(), PipelineSlot::default());
        let executor = Executor { caller, has_rivals: false, admission, time_limits, pipeline };
        Self { executor, limits, receipt_key_file }
    }

    /// Waits for `work`, and loads the model beside it. `work` runs first: where it does not need the model, none is loaded.
    ///
    /// # Errors
    /// What `load` fails with.
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
    /// As the daemon, and where the body names what only a daemon has.
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
    /// As the daemon, and where the body names what only a daemon has.
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
                    ApiError::new(ErrorCode::ReceiptFailed, message)
                })?;
                Ok::<_, ApiError>(Receipt::of(&request, &attributed, &pipeline, &key))
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
