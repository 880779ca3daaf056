//! `POST /v1/compress`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;

use super::error::HttpError;
use super::{Service, body, observe};
use crate::api::{self, CompressAnswer, CompressBody, ServeOptions};
use crate::domain::{CompressRequest, OnError};
use crate::pipeline::cancel::Cancel;
use crate::pipeline::{self, Pipeline};

/// Parses, waits for its turn, compresses; what the caller asked to survive, it gets back whole.
pub async fn handle(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CompressAnswer>, HttpError> {
    let arrived = Instant::now();
    body::is_plain(&headers)?;
    let body = body::read(body, service.limits.body_bytes_max, service.limits.read_max).await?;
    // A large body takes long to parse; the threads that carry connections are not for that.
    let parsed = tokio::task::spawn_blocking(move || api::parse::<CompressBody>(&body)?.into_domain());
    let (request, options) = parsed.await.map_err(|_panicked| HttpError::internal())??;
    let deadline = arrived + deadline(options, &service)?;
    let request = Arc::new(request);
    match compress(&service, &request, options, deadline).await {
        Err(error) if options.on_error == OnError::Passthrough && error.is_ours() => {
            let compressed = pipeline::passthrough(&request, error.code(), error.message().to_owned());
            let model = service.pipeline.get().map(Pipeline::model);
            Ok(Json(CompressAnswer::new(&request, compressed, options.offsets, model)))
        }
        outcome => outcome.map(Json),
    }
}

fn deadline(options: ServeOptions, service: &Service) -> Result<Duration, HttpError> {
    match options.deadline_ms.map(Duration::from_millis) {
        None => Ok(service.limits.deadline_default),
        Some(asked) if asked <= service.limits.deadline_max => Ok(asked),
        Some(_) => Err(HttpError::deadline_out_of_range(service.limits.deadline_max)),
    }
}

async fn compress(
    service: &Service,
    request: &Arc<CompressRequest>,
    options: ServeOptions,
    deadline: Instant,
) -> Result<CompressAnswer, HttpError> {
    service.ready()?;
    let permit = service.admission.enter(deadline).await?;
    let cancel = Cancel::at(Some(deadline));
    // Dropped with this future when the client goes away: the work then stops at its next step.
    let _gone = GoneGuard(cancel.clone());
    let work = tokio::task::spawn_blocking({
        let (service, request, span) = (service.clone(), Arc::clone(request), tracing::Span::current());
        move || {
            let _span = span.entered();
            // Held until the work has really ended, not only until nobody waits for it.
            let _permit = permit;
            let pipeline = service.ready()?;
            let compressed = pipeline.compress(&request, &cancel)?;
            observe::compressed(&compressed);
            Ok(CompressAnswer::new(&request, compressed, options.offsets, Some(pipeline.model())))
        }
    });
    match tokio::time::timeout_at(deadline.into(), work).await {
        Ok(Ok(outcome)) => outcome,
        // The panic's hook has said where; the caller may have asked for its chunks back.
        Ok(Err(_panicked)) => Err(HttpError::internal()),
        Err(_elapsed) => Err(pipeline::PipelineError::DeadlineExceeded.into()),
    }
}

struct GoneGuard(Cancel);

impl Drop for GoneGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
