//! `/v1/chunks` and `/v1/registry`: registered chunks, and how far reading them ahead has come.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, MatchedPath, Path, RawQuery};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use thresher_core::domain::Chunk;
use thresher_registry::filter::Filter;
use thresher_registry::{Change, Outcome};

use super::{Scope, body, query};
use crate::api::{
    self, ChangesAnswer, DeleteBody, PageAnswer, ProgressAnswer, RegisterBody, RegisteredAnswer,
};
use crate::error::ApiError;
use crate::executor::run_blocking;

/// Where several chunks are deleted.
pub const DELETE: &str = "/v1/chunks/delete";

/// Chunks on a page.
pub(super) const PAGE_COUNT_DEFAULT: usize = 100;
pub(super) const PAGE_COUNT_MAX: usize = 1_000;

/// Of text that is registered, about.
const BYTES_PER_TOKEN: usize = 4;

/// The id at the end of a path, percent-decoded.
pub struct ChunkId(String);

impl<S: Send + Sync> FromRequestParts<S> for ChunkId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        // The path of deletions in a batch has no parameter: as the path of a chunk, it names one.
        if parts.extensions.get::<MatchedPath>().is_some_and(|path| path.as_str() == DELETE) {
            return Ok(Self("delete".to_owned()));
        }
        let Path(id) = Path::from_request_parts(parts, state).await.map_err(|_| ApiError::path_not_utf8())?;
        Ok(Self(id))
    }
}

/// `POST /v1/chunks`: registers what is right in a batch, and says what is wrong with the rest.
pub async fn register(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ChangesAnswer>, ApiError> {
    let arrived = Instant::now();
    let (limits, bodies) = (service.limits.registry, service.limits.bodies);
    let batch = body::parsed(&service, &headers, body, move |body| {
        Ok(api::parse::<RegisterBody>(body, &bodies)?.into_batch(&limits.register)?)
    })
    .await?;
    let deadline = service.executor().deadline(arrived, batch.deadline_ms)?;
    let wait = batch.wait;
    let (ids, changes): (Vec<String>, Vec<Change>) =
        batch.chunks().map(|chunk| (chunk.id.clone(), Change::Put(Arc::clone(chunk)))).unzip();
    let read = |chunk: &Arc<Chunk>| chunk.text.len() + chunk.title.as_ref().map_or(0, String::len);
    let bytes: Vec<usize> = batch.chunks().map(read).collect();
    let outcomes = write(&service, changes, deadline).await?;
    charge_ahead(&service, &bytes, &outcomes);
    // Nothing of the request is needed while its chunks are read, which may take long.
    let answer = batch.answer(&outcomes, limits.chunk_count_max);
    service.body_memory().release();
    let registry = service.registry()?;
    let warming = if wait { registry.settled(&ids, deadline).await } else { registry.progress_of(&ids) };
    Ok(Json(answer.warmed(warming)))
}

/// `POST /v1/chunks/delete`: takes several away; those that are not there are said, and no error.
pub async fn delete_batch(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ChangesAnswer>, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits.bodies;
    let parse = move |body: &[u8]| Ok(api::parse::<DeleteBody>(body, &limits)?.into_ids()?);
    let ids = body::parsed(&service, &headers, body, parse).await?;
    let deadline = service.executor().deadline(arrived, None)?;
    let outcomes = write(&service, ids.iter().cloned().map(Change::Delete).collect(), deadline).await?;
    Ok(Json(ChangesAnswer::deleted(ids, &outcomes)))
}

/// `DELETE /v1/chunks/{id}`.
pub async fn delete_one(service: Scope, ChunkId(id): ChunkId) -> Result<Json<ChangesAnswer>, ApiError> {
    let deadline = service.executor().deadline(Instant::now(), None)?;
    let outcomes = write(&service, vec![Change::Delete(id.clone())], deadline).await?;
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

/// `GET /v1/chunks`: a page of them in the order of their ids. A page ends with the chunk that makes it as long as a body may be
/// (`http.body_bytes_max`).
pub async fn list(service: Scope, RawQuery(query): RawQuery) -> Result<Json<PageAnswer>, ApiError> {
    let [limit, after, filter] = query::parameters(query.as_deref(), ["limit", "after", "filter"])?;
    let limit = match limit.as_deref().map(|limit| (limit, limit.parse())) {
        None => PAGE_COUNT_DEFAULT,
        Some((_, Ok(limit @ 1..=PAGE_COUNT_MAX))) => limit,
        Some((limit, _)) => return Err(ApiError::page_out_of_range(limit, PAGE_COUNT_MAX)),
    };
    let bytes_max = service.limits.body_bytes_max;
    let deadline = service.executor().deadline(Instant::now(), None)?;
    let working = service.clone();
    let page = service.executor().run(deadline, move |cancel| {
        cancel.check()?;
        let filter = match &filter {
            None => None,
            Some(json) => Some(Filter::from_json(json, "filter")?),
        };
        Ok(working.registry()?.list(after.as_deref(), limit, bytes_max, filter.as_ref())?)
    });
    let page = page.await?;
    Ok(Json(PageAnswer::new(&page.chunks, page.next)))
}

/// `GET /v1/registry`: how far reading ahead has come.
pub async fn progress(service: Scope) -> Result<Json<ProgressAnswer>, ApiError> {
    Ok(Json(service.registry()?.progress().into()))
}

/// What is read ahead is charged when it is registered, by its bytes: how many tokens it has is known when it has been read, by
/// then for nobody in particular.
fn charge_ahead(service: &Scope, bytes: &[usize], outcomes: &[Outcome]) {
    let changed = bytes.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_change());
    let bytes: usize = changed.map(|(bytes, _)| bytes).sum();
    service.caller().charge(bytes.div_ceil(BYTES_PER_TOKEN), Instant::now());
}

/// Changes what is registered. A caller that is told of a deadline does not know whether the change was made; making it
/// again is harmless.
async fn write(service: &Scope, changes: Vec<Change>, deadline: Instant) -> Result<Vec<Outcome>, ApiError> {
    let writing = async { Ok::<_, ApiError>(service.registry()?.write(changes).await?) };
    service.executor().write(deadline, writing).await
}
