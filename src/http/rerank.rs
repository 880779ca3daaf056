//! `POST /v1/rerank`, `/v2/rerank`, `/rerank`, `/v1/score`, `/score`: what the clients of other rerankers call.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use thresher_core::domain::Granularity;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::{Pipeline, PipelineError, Ranked};

use super::{Scope, body, observe};
use crate::api::{self, RerankBody, RerankDialect, ScoreAnswer, ScoreBody, Scored};
use crate::error::ApiError;
use crate::tenants::ttl_store;

/// Cohere's first, Jina's and vLLM's; with `texts` that of Text Embeddings Inference.
pub async fn v1(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankDialect::V1).await
}

/// Cohere's second.
pub async fn v2(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankDialect::V2).await
}

/// These clients name no deadline, but hang up: they have as long as a request may have.
async fn rerank(service: &Scope, headers: &HeaderMap, body: Body, asked: RerankDialect) -> Response {
    let deadline = Instant::now() + service.limits.deadline_max;
    let limits = service.limits.bodies;
    let parse = move |body: &[u8]| Ok(api::parse::<RerankBody>(body, &limits)?.into_domain(asked, &limits)?);
    let request = match body::parsed(service, headers, body, parse).await {
        Ok(request) => request,
        Err(error) => return error.rerank_response(),
    };
    let dialect = request.dialect;
    let request = Arc::new(request);
    let asked = Arc::clone(&request);
    let rank = move |pipeline: &Pipeline, cancel: &Cancel| {
        Ok(vec![pipeline.rank(&asked.query, &asked.chunks, asked.granularity(), cancel)?])
    };
    let answer =
        move |ranked: &[Ranked], model: &str| request.answer(&ranked[0], ttl_store::new_id("rerank"), model);
    let answer = ranked(service, deadline, rank, answer);
    match (answer.await, dialect) {
        (Ok(answer), _) => Json(answer).into_response(),
        (Err(error), RerankDialect::Tei) => error.of_chunks_in("texts").tei_response(),
        (Err(error), _) => error.of_chunks_in("documents").rerank_response(),
    }
}

/// Ranks what was asked, when its turn comes; `answer` puts it into words, with the model's name.
async fn ranked<T: Send + 'static>(
    service: &Scope,
    deadline: Instant,
    rank: impl FnOnce(&Pipeline, &Cancel) -> Result<Vec<Ranked>, PipelineError> + Send + 'static,
    answer: impl FnOnce(&[Ranked], &str) -> T + Send + 'static,
) -> Result<T, ApiError> {
    service.ready()?;
    let working = service.clone();
    service
        .executor()
        .run(deadline, move |cancel| {
            let pipeline = working.ready()?;
            let mut clock = Clock::start();
            let ranked = clock.stage("rank", || rank(pipeline, cancel))?;
            observe::stages(&clock.finish());
            Ok(answer(&ranked, &pipeline.model().name))
        })
        .await
}

/// vLLM's.
pub async fn score(service: Scope, headers: HeaderMap, body: Body) -> Response {
    let deadline = Instant::now() + service.limits.deadline_max;
    let limits = service.limits.bodies;
    let parse = move |body: &[u8]| Ok(api::parse::<ScoreBody>(body, &limits)?.into_domain()?);
    let answer = async {
        let asked = body::parsed(&service, &headers, body, parse).await?;
        let rank = move |pipeline: &Pipeline, cancel: &Cancel| {
            let of = |(query, chunks): &Scored| pipeline.rank(query, chunks, Granularity::Chunk, cancel);
            asked.iter().map(of).collect()
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let answer = move |ranked: &[Ranked], model: &str| {
            ScoreAnswer::new(ranked, ttl_store::new_id("score"), model, created)
        };
        ranked(&service, deadline, rank, answer).await
    };
    match answer.await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => error.of_chunks_in("text_2").rerank_response(),
    }
}
