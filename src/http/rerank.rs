//! Reranking for the clients of Cohere, Jina, Text Embeddings Inference, Voyage and vLLM. These clients name no deadline:
//! their requests get the longest one (`admission.deadline_ms_max`), and stop when the client closes the connection.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{AppendHeaders, IntoResponse, Response};
use thresher_core::domain::Granularity;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::{Pipeline, PipelineError, Ranked};

use super::traces::{self, Retrieval};
use super::{Scope, body, observe};
use crate::api::{
    self, BodyLimits, RerankBody, RerankRequest, ScoreAnswer, ScoreBody, Scored, TeiRerankBody,
    VoyageRerankBody,
};
use crate::error::ApiError;
use crate::tenants::ttl_store;

/// `POST /v1/rerank`: the format of Cohere's v1 and Jina; vLLM's under its prefix.
pub async fn v1(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankBody::into_v1, ApiError::rerank_response).await
}

/// `POST /v2/rerank`: the format of Cohere's v2.
pub async fn v2(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, RerankBody::into_v2, ApiError::rerank_response).await
}

/// `POST /voyage/v1/rerank`: Voyage's format.
pub async fn voyage(service: Scope, headers: HeaderMap, body: Body) -> Response {
    rerank(&service, &headers, body, VoyageRerankBody::into_domain, ApiError::rerank_response).await
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
    let deadline = Instant::now() + service.settings.admission.deadline_max();
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
        let unmeasured = ranked[0].chunk_relevances.is_none().then(|| HeaderValue::from_static("unmeasured"));
        let headers =
            [(super::RELATED, related), (super::ANSWERABLE, answerable), (super::RELEVANCE, unmeasured)];
        (request.answer(&ranked[0], ttl_store::new_id("rerank"), model), headers)
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

/// `POST /vllm/score`: vLLM's format.
pub async fn score(service: Scope, headers: HeaderMap, body: Body) -> Response {
    let deadline = Instant::now() + service.settings.admission.deadline_max();
    let limits = service.limits();
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
        Retrieval::new("score").run(service.model_name(), work).await
    };
    match answer.await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => error.of_chunks_in("text_2").rerank_response(),
    }
}
