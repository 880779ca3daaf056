//! `POST /v1/highlight`: the sentences of documents that answer a question, for search engines. OpenSearch names no deadline: its requests get
//! the longest one, and stop when the client closes the connection.

use std::slice;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use thresher_core::domain::Granularity;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;

use super::traces::{self, Retrieval};
use super::{Scope, body, observe};
use crate::api::{self, HighlightAnswer, HighlightBody, HighlightRequest};
use crate::error::ApiError;

/// `POST /v1/highlight`.
pub async fn handle(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<HighlightAnswer>, ApiError> {
    let deadline = Instant::now() + service.settings.time_limits.max;
    let limits = service.limits();
    let parse = move |body: &[u8]| api::parse::<HighlightBody>(body, &limits)?.into_domain();
    let request = body::parsed(&service, &headers, body, parse).await?;
    service.ready()?;
    let scope = service.clone();
    let answer = service.executor().run(deadline, move |cancel| {
        let mut clock = Clock::start();
        let answer = clock.stage("highlight", || highlight(scope.ready()?, &request, cancel))?;
        observe::stages(&clock.finish());
        traces::chunks(request.documents.len(), None);
        Ok(Json(answer))
    });
    Retrieval::new("highlight").run(service.model_name(), answer).await
}

fn highlight(
    pipeline: &Pipeline,
    request: &HighlightRequest,
    cancel: &Cancel,
) -> Result<HighlightAnswer, ApiError> {
    let mut all_ranked = Vec::with_capacity(request.documents.len());
    for (index, document) in request.documents.iter().enumerate() {
        let chunks = slice::from_ref(&document.chunk);
        let ranked = pipeline.rank(&document.question, chunks, Granularity::Sentence, cancel);
        all_ranked.push(ranked.map_err(|error| request.error_at(index, error.into()))?);
    }
    Ok(request.answer(&all_ranked))
}
