//! Reranking for the clients of Cohere, Jina and Text Embeddings Inference. These clients name no deadline:
//! their requests get the longest one, and stop when the client closes the connection.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{AppendHeaders, IntoResponse, Response};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::{Pipeline, PipelineError, Ranked};

use super::traces::{self, Retrieval};
use super::{Scope, body, observe};
use crate::api::{self, BodyLimits, RerankBody, RerankRequest, TeiRerankBody};
use crate::error::ApiError;
use crate::tenants::ttl_store;

/// `POST /v1/rerank`: the format of Cohere's v1 and Jina.
pub async fn v1(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankBody::into_v1, ApiError::rerank_response).await
}

/// `POST /v2/rerank`: the format of Cohere's v2.
pub async fn v2(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankBody::into_v2, ApiError::rerank_response).await
}

/// `POST /rerank`: the format of Text Embeddings Inference.
pub async fn tei(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, TeiRerankBody::into_domain, ApiError::tei_response).await
}

async fn rerank<T: api::Body + Send + 'static>(
    service: &Scope,
    headers: &HeaderMap,
    body: Body,
    into_request: fn(T, &BodyLimits) -> Result<RerankRequest, ApiError>,
    error_response: fn(ApiError) -> Response,
) -> Response {
    let deadline = Instant::now() + service.settings.time_limits.max;
    let limits = service.limits();
    let parse = move |body: &[u8]| into_request(api::parse::<T>(body, &limits)?, &limits);
    let request = match body::parsed(service, headers, body, parse).await {
        Ok(request) => request,
        Err(error) => return error_response(error),
    };
    let (field, top_k) = (request.dialect.field(), request.top_n);
    let request = Arc::new(request);
    let ranked_request = Arc::clone(&request);
    let rank = move |pipeline: &Pipeline, cancel: &Cancel| {
        let RerankRequest { query, chunks, .. } = &*ranked_request;
        pipeline.rank(query, chunks, ranked_request.granularity(), cancel)
    };
    let answer = move |ranked: &Ranked, model: &str| {
        let related = ranked.relevance.map(|relevance| super::boolean_value(relevance.related));
        let answerable = ranked.answerable.map(super::answerable_value);
        let unmeasured = ranked.chunk_relevances.is_none().then(|| HeaderValue::from_static("unmeasured"));
        let headers =
            [(super::RELATED, related), (super::ANSWERABLE, answerable), (super::RELEVANCE, unmeasured)];
        (request.answer(ranked, ttl_store::new_id("rerank"), model), headers)
    };
    let retrieval = Retrieval { top_k, ..Retrieval::new("rerank") };
    let answer = retrieval.run(service.model_name(), ranked(service, deadline, rank, answer));
    match answer.await {
        Ok((answer, headers)) => {
            let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
            (AppendHeaders(headers), Json(answer)).into_response()
        }
        Err(error) => error_response(error.of_chunks_in(field)),
    }
}

/// Runs `rank`; `answer` makes the answer, from the outcome and the model's name.
async fn ranked<T: Send + 'static>(
    service: &Scope,
    deadline: Instant,
    rank: impl FnOnce(&Pipeline, &Cancel) -> Result<Ranked, PipelineError> + Send + 'static,
    answer: impl FnOnce(&Ranked, &str) -> T + Send + 'static,
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
            traces::chunks(ranked.chunks.len(), None);
            Ok(answer(&ranked, &pipeline.model().name))
        })
        .await
}
