//! `POST /v1/rerank`, `/v2/rerank`, `/rerank`, `/v1/score` and `/score`, for the clients of other rerankers. These clients name no deadline:
//! their requests get the longest one (`admission.deadline_ms_max`), and stop when the client closes the connection.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{AppendHeaders, IntoResponse, Response};
use thresher_core::domain::Granularity;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::{Pipeline, PipelineError, Ranked};

use super::traces::{self, Retrieval};
use super::{Scope, body, observe};
use crate::api::{self, RerankBody, RerankDialect, ScoreAnswer, ScoreBody, Scored};
use crate::error::ApiError;
use crate::tenants::ttl_store;

/// The path that vLLM and Text Embeddings Inference share.
pub const SHARED_PATH: &str = "/rerank";

/// `POST /v1/rerank`: the format of Cohere's v1, Jina and vLLM; with `top_k` or `truncation` that of Voyage.
pub async fn v1(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankDialect::V1, ApiError::rerank_response).await
}

/// `POST /rerank`: as [`v1`]. Errors have a type, for the clients of Text Embeddings Inference.
pub async fn shared(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankDialect::V1, ApiError::shared_rerank_response).await
}

/// `POST /v2/rerank`: Cohere's v2 format.
pub async fn v2(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankDialect::V2, ApiError::rerank_response).await
}

/// Answers in the format of the path; to a body with `texts`, in the format of Text Embeddings Inference.
async fn rerank(
    service: &Scope,
    headers: &HeaderMap,
    body: Body,
    path_dialect: RerankDialect,
    error_response: fn(ApiError) -> Response,
) -> Response {
    let deadline = Instant::now() + service.limits.deadline_max;
    let limits = service.limits.bodies;
    let parse = move |body: &[u8]| {
        let parsed = api::parse::<RerankBody>(body, &limits);
        let parsed = parsed.and_then(|parsed| parsed.into_domain(path_dialect, &limits));
        Ok(parsed.map_err(|error| (error, api::sends_texts(body))))
    };
    let request = match body::parsed(service, headers, body, parse).await {
        Ok(Ok(request)) => request,
        Ok(Err((error, true))) => return error.tei_response(),
        Ok(Err((error, false))) | Err(error) => return error_response(error),
    };
    let (dialect, top_k) = (request.dialect, request.result_count_max());
    let request = Arc::new(request);
    let ranked_request = Arc::clone(&request);
    let rank = move |pipeline: &Pipeline, cancel: &Cancel| {
        Ok(vec![pipeline.rank(
            &ranked_request.query,
            &ranked_request.chunks,
            ranked_request.granularity(),
            cancel,
        )?])
    };
    let answer = move |ranked: &[Ranked], model: &str| {
        let related = ranked[0].relevance.map(|relevance| super::boolean_value(relevance.related));
        let answerable = ranked[0].answerable.map(super::answerable_value);
        let headers = [(super::RELATED, related), (super::ANSWERABLE, answerable)];
        (request.answer(&ranked[0], ttl_store::new_id("rerank"), model), headers)
    };
    let retrieval = Retrieval { top_k, ..Retrieval::of("rerank") };
    let answer = retrieval.run(service.model_name(), ranked(service, deadline, rank, answer));
    match (answer.await, dialect) {
        (Ok((answer, headers)), _) => {
            let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
            (AppendHeaders(headers), Json(answer)).into_response()
        }
        (Err(error), RerankDialect::Tei) => error.of_chunks_in("texts").tei_response(),
        (Err(error), _) => error_response(error.of_chunks_in("documents")),
    }
}

/// Runs `rank`; `answer` makes the answer, from the outcome and the model's name.
async fn ranked<T: Send + 'static>(
    service: &Scope,
    deadline: Instant,
    rank: impl FnOnce(&Pipeline, &Cancel) -> Result<Vec<Ranked>, PipelineError> + Send + 'static,
    answer: impl FnOnce(&[Ranked], &str) -> T + Send + 'static,
) -> Result<T, ApiError> {
    service.ready()?;
    let scope = service.clone();
    service
        .executor()
        .run(deadline, move |cancel| {
            let pipeline = scope.ready()?;
            let mut clock = Clock::start();
            let ranked = clock.stage("rank", || rank(pipeline, cancel))?;
            observe::stages(&clock.finish());
            let count = ranked.iter().map(|ranked| ranked.chunks.len()).sum();
            traces::chunks(count, None);
            Ok(answer(&ranked, &pipeline.model().name))
        })
        .await
}

/// `POST /v1/score` and `/score`: vLLM's format.
pub async fn score(service: Scope, headers: HeaderMap, body: Body) -> Response {
    let deadline = Instant::now() + service.limits.deadline_max;
    let limits = service.limits.bodies;
    let parse = move |body: &[u8]| api::parse::<ScoreBody>(body, &limits)?.into_domain();
    let answer = async {
        let pairs = body::parsed(&service, &headers, body, parse).await?;
        let rank = move |pipeline: &Pipeline, cancel: &Cancel| {
            let rank = |(query, chunks): &Scored| pipeline.rank(query, chunks, Granularity::Chunk, cancel);
            pairs.iter().map(rank).collect()
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let answer = move |ranked: &[Ranked], model: &str| {
            ScoreAnswer::new(ranked, ttl_store::new_id("score"), model, created)
        };
        let work = ranked(&service, deadline, rank, answer);
        Retrieval::of("score").run(service.model_name(), work).await
    };
    match answer.await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => error.of_chunks_in("text_2").rerank_response(),
    }
}
