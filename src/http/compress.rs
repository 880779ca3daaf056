//! `POST /v1/compress`: compresses chunks for a question, or the texts of a conversation.

pub(super) mod conversation;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use thresher_core::domain::{Chunk, CompressRequest};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{self, Compressed};

use super::registry::{ChunkLookup, check_ids};
use super::traces::Retrieval;
use super::{Scope, body, kv, observe};
use crate::api::{self, CompressAnswer, CompressBody, Prefiltered, ServeOptions};
use crate::error::ApiError;
use crate::executor::{self, run_blocking};
use crate::tenants::ttl_store::RecentRequest;

struct ChunksRequest {
    /// The request to the pipeline. It has no chunks yet if the body names registered ones.
    request: CompressRequest,
    options: ServeOptions,
    /// The ids of registered chunks, if the body names some.
    chunk_ids: Option<Vec<String>>,
}

/// A request together with its chunks. Later changes of the registry do not affect it.
struct LoadedRequest<'a> {
    request: Cow<'a, CompressRequest>,
    prefiltered: Option<Prefiltered>,
}

/// Handles `POST /v1/compress`.
pub async fn handle(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CompressAnswer>, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let parse = move |body: &[u8]| ChunksRequest::new(api::parse(body, &limits)?);
    let request = body::parsed(&service, &headers, body, parse).await?;
    compress_chunks(service, request, arrived).await.map(Json)
}

/// The response to a body that has chunks: for the MCP tool.
pub async fn answer(service: Scope, body: Vec<u8>) -> Result<CompressAnswer, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let request = run_blocking(move || ChunksRequest::new(api::parse(&body, &limits)?)).await?;
    compress_chunks(service, request, arrived).await
}

/// Compresses chunks; if that fails and the request asks for it, returns them unchanged.
async fn compress_chunks(
    service: Scope,
    request: ChunksRequest,
    arrived: Instant,
) -> Result<CompressAnswer, ApiError> {
    let deadline = service.executor().deadline(arrived, request.options.deadline_ms)?;
    let request = Arc::new(request);
    let are_registered = request.chunk_ids.is_some();
    let retrieval = Retrieval { is_from_registry: are_registered, ..Retrieval::new("compress") };
    match retrieval.run(service.model_name(), run(&service, &request, deadline)).await {
        Err(error) if executor::passes_through(&error, request.options.on_error, are_registered) => {
            pass_through(&service, request, error, arrived).await
        }
        Err(error) if are_registered => Err(error.of_chunks_in("chunk_ids")),
        outcome => outcome,
    }
}

async fn run(
    service: &Scope,
    request: &Arc<ChunksRequest>,
    deadline: Instant,
) -> Result<CompressAnswer, ApiError> {
    let pipeline = service.ready()?;
    if let Some(wanted) = &request.options.kv {
        kv::check(pipeline.exporting(), wanted)?;
    }
    let (scope, request) = (service.clone(), Arc::clone(request));
    let answer = service.executor().run(deadline, move |cancel| {
        let pipeline = scope.ready()?;
        let exporting = pipeline.exporting();
        // A question that is too long is refused before anything is read.
        let exported = request.options.kv.as_ref().map(|wanted| {
            kv::around(exporting, &request.request.query, wanted).map(|around| (wanted, around))
        });
        let exported = exported.transpose()?;
        let loaded = request.load(&scope, scope.settings.limits.requests.registered_bytes_max, cancel)?;
        let mut compressed = pipeline.compress(&loaded.request, cancel)?;
        let exported = exported.map(|(wanted, around)| {
            let started = Instant::now();
            let chunks = &loaded.request.chunks[..];
            let exported = kv::export(
                exporting,
                &around,
                chunks,
                &compressed,
                wanted,
                scope.kv_handles().bytes_max(),
                cancel,
            )?;
            let answer = kv::store(&scope, exported, wanted);
            compressed.timings.push("kv", started.elapsed());
            answer
        });
        observe::compressed(&compressed);
        let exported = exported.transpose()?;
        Ok(request.answer(&loaded, compressed, &scope).with_kv(exported))
    });
    answer.await
}

/// Returns the chunks unchanged, with the error. Fails with the error if registered chunks cannot be loaded, or are longer together than a
/// body may be.
async fn pass_through(
    service: &Scope,
    request: Arc<ChunksRequest>,
    error: ApiError,
    arrived: Instant,
) -> Result<CompressAnswer, ApiError> {
    let scope = service.clone();
    run_blocking(move || {
        let Ok(loaded) = request.load(&scope, scope.settings.body_bytes_max, &Cancel::default()) else {
            return Err(error);
        };
        let compressed = pipeline::passthrough(&loaded.request, arrived.elapsed());
        Ok(request.answer(&loaded, compressed, &scope).degraded(error))
    })
    .await
}

impl ChunksRequest {
    fn new(body: CompressBody) -> Result<Self, ApiError> {
        let chunk_ids = body.chunk_ids().map(<[_]>::to_vec);
        let (request, options) = body.into_domain(chunk_ids.is_some().then(Vec::new))?;
        Ok(Self { request, options, chunk_ids })
    }

    /// The request with its chunks. Registered chunks are looked up, and may have at most `bytes_max` bytes of text.
    fn load(
        &self,
        service: &Scope,
        bytes_max: usize,
        cancel: &Cancel,
    ) -> Result<LoadedRequest<'_>, ApiError> {
        let Some(ids) = &self.chunk_ids else {
            return Ok(LoadedRequest { request: Cow::Borrowed(&self.request), prefiltered: None });
        };
        let CompressRequest { query, keep, .. } = &self.request;
        let (chunks, prefiltered) = named_chunks(service, ids, bytes_max, query, keep, cancel)?;
        let request = Cow::Owned(CompressRequest { chunks, ..self.request.clone() });
        Ok(LoadedRequest { request, prefiltered })
    }

    fn answer(&self, loaded: &LoadedRequest, compressed: Compressed, service: &Scope) -> CompressAnswer {
        let recent = recent_request(loaded, &compressed);
        let pipeline = service.pipeline();
        let answer = CompressAnswer::new(&loaded.request, compressed, self.options.offsets, pipeline);
        let answer = match &loaded.prefiltered {
            None => answer,
            Some(prefiltered) => answer.prefiltered(prefiltered),
        };
        answer.with_id(service.handles().insert(recent))
    }
}

/// What is stored of a compression, for attributions that name it.
fn recent_request(loaded: &LoadedRequest, compressed: &Compressed) -> RecentRequest {
    let chunks = &loaded.request.chunks;
    let (mut kept, mut markers) = (vec![Vec::new(); chunks.len()], vec![None; chunks.len()]);
    for (before, outcome) in compressed.chunks.iter().filter(|outcome| outcome.kept).enumerate() {
        kept[outcome.index] = outcome.spans.iter().map(|span| span.source).collect();
        markers[outcome.index] = Some(before + 1);
    }
    let caller_indices = loaded.prefiltered.as_ref().map(|prefiltered| prefiltered.indexes.clone());
    RecentRequest { chunks: chunks.clone(), caller_indices, kept, markers }
}

/// The registered chunks with these ids, which may have at most `bytes_max` bytes of text. If there are more than the prefilter lets pass, only
/// the best ones for `query`, and those with an id of `keep`.
///
/// # Errors
/// `field_empty`, `too_many`, `duplicate`, `chunk_unknown`, `too_long`, about `chunk_ids`; `not_ready`,
/// `storage_failed`, `deadline_exceeded`.
pub fn named_chunks(
    service: &Scope,
    ids: &[String],
    bytes_max: usize,
    query: &str,
    keep: &[String],
    cancel: &Cancel,
) -> Result<(Vec<Arc<Chunk>>, Option<Prefiltered>), ApiError> {
    let (registry, prefilter) = (service.registry()?, service.settings.prefilter);
    check_ids(ids, service.settings.limits.requests.registered_chunk_count_max)?;
    let lookup = ChunkLookup { registry, ids, bytes_max, cancel };
    if ids.len() <= prefilter.above {
        return Ok((lookup.chunks((0..ids.len()).collect())?, None));
    }
    // Unknown ids are an error even if the prefilter would not keep them.
    let missing = registry.missing(ids);
    if !missing.is_empty() {
        return Err(ApiError::ids_unknown(ids, &missing));
    }
    let indexes = with_kept(registry.prefilter(query, ids, prefilter.to)?, ids, keep);
    Ok((lookup.chunks(indexes.clone())?, Some(Prefiltered { from: ids.len(), indexes })))
}

/// The indexes that the prefilter left, with those of the chunks that the request wants to keep whole.
fn with_kept(mut indexes: Vec<usize>, ids: &[String], keep: &[String]) -> Vec<usize> {
    let keep: HashSet<&String> = keep.iter().collect();
    if !keep.is_empty() {
        indexes.extend((0..ids.len()).filter(|&index| keep.contains(&ids[index])));
        indexes.sort_unstable();
        indexes.dedup();
    }
    indexes
}
