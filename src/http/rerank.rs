//! `POST /v1/rerank`, `/v2/rerank`, `/rerank`, `/v1/score`, `/score`: what the clients of other rerankers call.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::error::HttpError;
use super::{Service, body, observe, work};
use crate::api::{self, RerankBody, RerankDialect, RerankRequest, ScoreBody, ScoreRequest};
use crate::domain::{Chunk, Granularity};
use crate::handles;
use crate::pipeline::clock::Clock;
use crate::pipeline::{Pipeline, Ranked};

/// Cohere's first, Jina's and vLLM's; with `texts` that of Text Embeddings Inference.
pub async fn v1(State(service): State<Service>, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankDialect::V1).await
}

/// Cohere's second.
pub async fn v2(State(service): State<Service>, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankDialect::V2).await
}

/// These clients name no deadline, but hang up: they have as long as a request may have.
async fn rerank(service: &Service, headers: &HeaderMap, body: Body, asked: RerankDialect) -> Response {
    let deadline = Instant::now() + service.limits.deadline_max;
    let parse = move |body: &[u8]| Ok(api::parse::<RerankBody>(body)?.into_domain(asked)?);
    let request = match body::parsed(service, headers, body, parse).await {
        Ok(request) => request,
        Err(error) => return error.with_message(),
    };
    let dialect = request.dialect;
    let answer = ranked(service, deadline, request);
    match (answer.await, dialect) {
        (Ok(answer), _) => Json(answer).into_response(),
        (Err(error), RerankDialect::Tei) => error.of_chunks_in("texts").in_words_of_tei(),
        (Err(error), _) => error.of_chunks_in("documents").with_message(),
    }
}

async fn ranked(service: &Service, deadline: Instant, request: RerankRequest) -> Result<Value, HttpError> {
    service.ready()?;
    let working = service.clone();
    work::admitted(service, deadline, move |cancel| {
        let pipeline = working.ready()?;
        let mut clock = Clock::start();
        let rank = || pipeline.rank(&request.query, &request.chunks, request.granularity(), cancel);
        let ranked = clock.stage("rank", rank)?;
        observe::stages(&clock.finish());
        Ok(request.answer(&ranked, &handles::new_id("rerank"), &pipeline.model().name))
    })
    .await
}

/// vLLM's.
pub async fn score(State(service): State<Service>, headers: HeaderMap, body: Body) -> Response {
    let deadline = Instant::now() + service.limits.deadline_max;
    let parse = |body: &[u8]| Ok(api::parse::<ScoreBody>(body)?.into_domain()?);
    let answer = async {
        let request = body::parsed(&service, &headers, body, parse).await?;
        scored(&service, deadline, request).await
    };
    match answer.await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => error.of_chunks_in("text_2").with_message(),
    }
}

async fn scored(service: &Service, deadline: Instant, request: ScoreRequest) -> Result<Value, HttpError> {
    service.ready()?;
    let working = service.clone();
    work::admitted(service, deadline, move |cancel| {
        let pipeline: &Pipeline = working.ready()?;
        let mut clock = Clock::start();
        let rank =
            |query: &str, chunks: &[Arc<Chunk>]| pipeline.rank(query, chunks, Granularity::Chunk, cancel);
        let ranked: Vec<Ranked> = clock.stage("rank", || match &request {
            ScoreRequest::Of(query, chunks) => Ok(vec![rank(query, chunks)?]),
            ScoreRequest::Pairs(pairs) => pairs.iter().map(|(query, chunks)| rank(query, chunks)).collect(),
        })?;
        observe::stages(&clock.finish());
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(api::score_answer(&ranked, &handles::new_id("score"), &pipeline.model().name, created))
    })
    .await
}
