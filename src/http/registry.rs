//! Registered chunks: `/v1/chunks`, `/v1/registry` and `/v1/search`, and the lookup of chunks that other requests name by their ids.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Path, RawQuery};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use thresher_core::domain::{Chunk, Granularity};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_registry::{Change, Outcome, Registry};

use super::traces::{self, Retrieval};
use super::{Scope, body, deletion, observe, query};
use crate::api::{
    self, ChangesAnswer, DeleteBody, PageAnswer, ProgressAnswer, Rank, RegisterBody, RegisteredAnswer,
    SearchAnswer, SearchBody, SearchRequest,
};
use crate::error::ApiError;
use crate::executor::run_blocking;

/// The path that deletes several chunks.
pub const DELETE: &str = "/v1/chunks/delete";

/// The default and the largest number of chunks on a page.
pub(super) const PAGE_COUNT_DEFAULT: usize = 100;
pub(super) const PAGE_COUNT_MAX: usize = 1_000;

/// Bytes of text per token, about.
const BYTES_PER_TOKEN: usize = 4;

/// The id of a chunk at the end of a path, percent-decoded.
pub struct ChunkId(String);

impl<S: Send + Sync> FromRequestParts<S> for ChunkId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        // Under another method, the path that deletes several chunks is the path of the chunk with the id `delete`.
        if parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str() == DELETE) {
            return Ok(Self("delete".to_owned()));
        }
        let Path(id) = Path::from_request_parts(parts, state).await.map_err(|_| ApiError::path_not_utf8())?;
        Ok(Self(id))
    }
}

/// `POST /v1/chunks`: registers the valid chunks of a batch, and answers with the errors about the others.
pub async fn register(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ChangesAnswer>, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let batch = body::parsed(&service, &headers, body, move |body| {
        api::parse::<RegisterBody>(body, &limits)?.into_batch(&limits)
    })
    .await?;
    let deadline = service.executor().deadline(arrived, batch.deadline_ms)?;
    let wait = batch.wait;
    let (ids, changes): (Vec<String>, Vec<Change>) =
        batch.chunks().map(|chunk| (chunk.id.clone(), Change::Put(Arc::clone(chunk)))).unzip();
    let text_bytes = |chunk: &Arc<Chunk>| chunk.text.len() + chunk.title.as_ref().map_or(0, String::len);
    let bytes: Vec<usize> = batch.chunks().map(text_bytes).collect();
    let outcomes = write(&service, changes, deadline).await?;
    charge_reading(&service, &bytes, &outcomes);
    // The request is not needed any more, and reading its chunks may take long.
    let answer = batch.answer(&outcomes, service.settings.registered_chunk_count_max);
    service.body_memory().release();
    let registry = service.registry()?;
    let progress = if wait { registry.settled(&ids, deadline).await } else { registry.progress_of(&ids) };
    Ok(Json(answer.with_progress(progress)))
}

/// `POST /v1/chunks/delete`: deletes several chunks. An id that is not registered is not an error.
pub async fn delete_batch(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ChangesAnswer>, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let parse = move |body: &[u8]| api::parse::<DeleteBody>(body, &limits)?.into_ids();
    let ids = body::parsed(&service, &headers, body, parse).await?;
    let deadline = service.executor().deadline(arrived, None)?;
    let outcomes = delete(&service, &ids, deadline).await?;
    Ok(Json(ChangesAnswer::deleted(ids, &outcomes)))
}

/// Deletes chunks, and what was derived from them.
async fn delete(service: &Scope, ids: &[String], deadline: Instant) -> Result<Vec<Outcome>, ApiError> {
    let (scope, named) = (service.clone(), ids.to_vec());
    let found = run_blocking(move || Ok(scope.registry()?.get(&named)?)).await?;
    let outcomes = write(service, ids.iter().cloned().map(Change::Delete).collect(), deadline).await?;
    let deleted: Vec<Arc<Chunk>> = found.into_iter().flatten().collect();
    let scope = service.clone();
    run_blocking(move || {
        deletion::forget(&scope, &deleted);
        Ok(())
    })
    .await?;
    Ok(outcomes)
}

/// `DELETE /v1/chunks/{id}`.
pub async fn delete_one(service: Scope, ChunkId(id): ChunkId) -> Result<Json<ChangesAnswer>, ApiError> {
    let deadline = service.executor().deadline(Instant::now(), None)?;
    let outcomes = delete(&service, std::slice::from_ref(&id), deadline).await?;
    match outcomes[..] {
        [Outcome::Unknown] => Err(ApiError::chunk_not_found(&id)),
        _ => Ok(Json(ChangesAnswer::deleted(vec![id], &outcomes))),
    }
}

/// `GET /v1/chunks/{id}`.
pub async fn get_one(service: Scope, ChunkId(id): ChunkId) -> Result<Json<RegisteredAnswer>, ApiError> {
    let found = run_blocking(move || match service.registry()?.get(&[&id])?.remove(0) {
        Some(chunk) => Ok(chunk),
        None => Err(ApiError::chunk_not_found(&id)),
    });
    Ok(Json((&*found.await?).into()))
}

/// `GET /v1/chunks`: a page of the chunks in the order of their ids. A page ends with the chunk that makes it as long as a body may be.
pub async fn list(service: Scope, RawQuery(query): RawQuery) -> Result<Json<PageAnswer>, ApiError> {
    let [limit, after] = query::parameters(query.as_deref(), ["limit", "after"])?;
    let limit = match limit.as_deref().map(|limit| (limit, limit.parse())) {
        None => PAGE_COUNT_DEFAULT,
        Some((_, Ok(limit @ 1..=PAGE_COUNT_MAX))) => limit,
        Some((limit, _)) => return Err(ApiError::page_out_of_range(limit, PAGE_COUNT_MAX)),
    };
    let bytes_max = service.settings.body_bytes_max;
    let deadline = service.executor().deadline(Instant::now(), None)?;
    let scope = service.clone();
    let page = service.executor().run(deadline, move |cancel| {
        cancel.check()?;
        Ok(scope.registry()?.list(after.as_deref(), limit, bytes_max)?)
    });
    let page = page.await?;
    Ok(Json(PageAnswer::new(&page.chunks, page.next)))
}

/// `GET /v1/registry`: how many of the registered chunks the model has read.
pub async fn progress(service: Scope) -> Result<Json<ProgressAnswer>, ApiError> {
    Ok(Json(service.registry()?.progress().into()))
}

/// Charges the caller for the reading of new chunks, by their bytes. Their tokens are known only when they have been read, and then no
/// longer who registered them.
fn charge_reading(service: &Scope, bytes: &[usize], outcomes: &[Outcome]) {
    let changed = bytes.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_change());
    let bytes: usize = changed.map(|(bytes, _)| bytes).sum();
    service.caller().charge(bytes.div_ceil(BYTES_PER_TOKEN), Instant::now());
}

/// Changes what is registered. After `deadline_exceeded` the change may have been made; making it again is harmless.
async fn write(service: &Scope, changes: Vec<Change>, deadline: Instant) -> Result<Vec<Outcome>, ApiError> {
    let writing = async { Ok::<_, ApiError>(service.registry()?.write(changes).await?) };
    service.executor().write(deadline, writing).await
}

/// `POST /v1/search`: finds candidates by BM25 and by their vectors, and ranks them by RC.
pub async fn search(service: Scope, headers: HeaderMap, body: Body) -> Result<Json<SearchAnswer>, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let request = body::parsed(&service, &headers, body, move |body| {
        api::parse::<SearchBody>(body, &limits)?.into_domain(&limits)
    })
    .await?;
    found(service, request, arrived).await.map(Json)
}

/// The most tokens of the texts that the MCP tool returns.
const EXCERPT_TOKENS_MAX: usize = 1_000;

/// The response to a body of `POST /v1/search`, with excerpts in place of long texts: for the MCP tool.
pub async fn answer(service: Scope, body: Vec<u8>) -> Result<SearchAnswer, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let parse = move || api::parse::<SearchBody>(&body, &limits)?.into_domain(&limits);
    let request = run_blocking(parse).await?;
    let (query, deadline) =
        (request.query.clone(), service.executor().deadline(arrived, request.deadline_ms)?);
    let mut answer = found(service.clone(), request, arrived).await?;
    let scope = service.clone();
    let excerpts = service.executor().run(deadline, move |cancel| {
        answer.keep_excerpts(&query, EXCERPT_TOKENS_MAX, scope.ready()?, cancel)?;
        Ok(answer)
    });
    excerpts.await
}

async fn found(service: Scope, request: SearchRequest, arrived: Instant) -> Result<SearchAnswer, ApiError> {
    let deadline = service.executor().deadline(arrived, request.deadline_ms)?;
    service.registry()?;
    if request.rank == Rank::Rc {
        service.ready()?;
    }
    let (scope, is_ranked) = (service.clone(), request.rank == Rank::Rc);
    let bytes_max = service.settings.limits.requests.registered_bytes_max;
    let retrieval = Retrieval { operation: "search", is_from_registry: true, top_k: Some(request.limit) };
    let work = service.executor().run(deadline, move |cancel| {
        cancel.check()?;
        let registry = scope.registry()?;
        let mut clock = Clock::start();
        let pipeline = match request.rank {
            Rank::Rc if registry.has_vectors() => Some(scope.ready()?),
            Rank::Rc | Rank::Bm25 => None,
        };
        let vector = clock.stage("question", || {
            pipeline.map_or(Ok(Vec::new()), |pipeline| pipeline.mean_vector_of(&request.query))
        })?;
        let (query, count) = (&request.query, request.candidates);
        let hits = clock.stage("search", || match &*vector {
            [] => registry.search(query, count, bytes_max),
            vector => registry.search_by_meaning(query, vector, count, bytes_max),
        })?;
        let ranked = match request.rank {
            Rank::Rc if !hits.is_empty() => {
                let chunks: Vec<_> = hits.iter().map(|hit| Arc::clone(&hit.chunk)).collect();
                let pipeline = scope.ready()?;
                let ranked = clock
                    .stage("rank", || pipeline.rank(&request.query, &chunks, Granularity::Chunk, cancel));
                Some(ranked.map_err(|error| ApiError::from(error).of_chunks_in("candidates"))?)
            }
            _ => None,
        };
        let timings = clock.finish();
        observe::stages(&timings);
        traces::chunks(hits.len(), Some(hits.len().min(request.limit)));
        Ok(SearchAnswer::new(&request, hits, ranked, (&timings).into()))
    });
    retrieval.run(service.model_name().filter(|_| is_ranked), work).await
}

/// The number of chunks that are looked up at once.
const LOOKUP_COUNT: usize = 1_000;

/// Checks the ids of registered chunks: at least one, at most `count_max`, each once.
///
/// # Errors
/// `field_empty`, `too_many`, `duplicate`.
pub fn check_ids(ids: &[String], count_max: usize) -> Result<(), ApiError> {
    if ids.is_empty() {
        return Err(ApiError::ids_empty());
    }
    if ids.len() > count_max {
        return Err(ApiError::ids_too_many(ids.len(), count_max));
    }
    let mut first_at = HashMap::with_capacity(ids.len());
    for (second, id) in ids.iter().enumerate() {
        if let Some(first) = first_at.insert(id, second) {
            return Err(ApiError::id_duplicate(id, first, second));
        }
    }
    Ok(())
}

pub struct ChunkLookup<'a> {
    pub registry: &'a Registry,
    pub ids: &'a [String],
    /// The most bytes of text of the chunks that are found.
    pub bytes_max: usize,
    pub cancel: &'a Cancel,
}

impl ChunkLookup<'_> {
    /// The chunks with the ids at `indexes`.
    ///
    /// # Errors
    /// `chunk_unknown`, `too_long`, `deadline_exceeded`.
    pub fn chunks(&self, indexes: Vec<usize>) -> Result<Vec<Arc<Chunk>>, ApiError> {
        let (mut chunks, mut missing, mut bytes) = (Vec::with_capacity(indexes.len()), Vec::new(), 0);
        for indexes in indexes.chunks(LOOKUP_COUNT) {
            self.cancel.check()?;
            let names: Vec<&str> = indexes.iter().map(|&index| &*self.ids[index]).collect();
            for (chunk, &index) in self.registry.get(&names)?.into_iter().zip(indexes) {
                match chunk {
                    None => missing.push(index),
                    Some(chunk) => {
                        bytes += chunk.text.len();
                        chunks.push(chunk);
                    }
                }
            }
            if bytes > self.bytes_max {
                return Err(ApiError::ids_too_long(self.bytes_max));
            }
        }
        if missing.is_empty() { Ok(chunks) } else { Err(ApiError::ids_unknown(self.ids, &missing)) }
    }
}
