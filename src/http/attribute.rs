//! `POST /v1/attribute`: ties the parts of an answer to the chunks that they came from.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::HeaderMap;
use thresher_core::domain::{AttributeRequest, Chunk};
use thresher_core::pipeline::cancel::Cancel;

use super::registry::{ChunkLookup, check_ids};
use super::traces::Retrieval;
use super::{Scope, body, observe};
use crate::api::{
    self, AttributeAnswer, AttributeBody, AttributeOptions, BodyLimits, ChunkNumbers, ChunkReference,
};
use crate::error::ApiError;
use crate::executor::run_blocking;
use crate::receipt::Receipt;
use crate::tenants::ttl_store::RecentRequest;

/// Handles `POST /v1/attribute`.
pub async fn handle(
    service: Scope,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<AttributeAnswer>, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let parse = move |body: &[u8]| ParsedRequest::parse(body, &limits);
    let request = body::parsed(&service, &headers, body, parse).await?;
    attribute(service, request, arrived).await.map(Json)
}

/// The answer to a body: for the MCP tool.
pub async fn answer(service: Scope, body: Vec<u8>) -> Result<AttributeAnswer, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let request = run_blocking(move || ParsedRequest::parse(&body, &limits)).await?;
    attribute(service, request, arrived).await
}

async fn attribute(
    service: Scope,
    request: ParsedRequest,
    arrived: Instant,
) -> Result<AttributeAnswer, ApiError> {
    let deadline = service.executor().deadline(arrived, request.body.deadline_ms())?;
    service.ready()?;
    let is_from_registry = matches!(request.chunk_reference, Some(ChunkReference::Registered(_)));
    let retrieval = Retrieval { is_from_registry, ..Retrieval::new("attribute") };
    let scope = service.clone();
    let answer = async move {
        let answer = request.run(&service, deadline, |service, loaded, cancel| {
            let LoadedRequest { request, options, chunks } = loaded;
            let pipeline = service.ready()?;
            let attributed = pipeline.attribute(&request, cancel)?;
            observe::stages(&attributed.timings);
            let numbers = chunks.as_ref().map(ReferencedChunks::numbers).unwrap_or_default();
            let answer = AttributeAnswer::new(&request, &attributed, &options, pipeline, numbers);
            let receipt = options.receipt.then(|| {
                let key = service.signing_key()?;
                Ok::<_, ApiError>(Receipt::issue(&request, &attributed, pipeline, key))
            });
            Ok(answer.with_receipt(receipt.transpose()?))
        });
        answer.await
    };
    retrieval.run(scope.model_name(), answer).await
}

/// A parsed body, and the chunks that it names instead of sending them.
struct ParsedRequest {
    body: AttributeBody,
    chunk_reference: Option<ChunkReference>,
}

struct LoadedRequest {
    request: AttributeRequest,
    options: AttributeOptions,
    chunks: Option<ReferencedChunks>,
}

impl ParsedRequest {
    fn parse(json: &[u8], limits: &BodyLimits) -> Result<Self, ApiError> {
        let body: AttributeBody = api::parse(json, limits)?;
        let chunk_reference = body.chunk_reference()?;
        Ok(Self { body, chunk_reference })
    }

    /// Looks up the chunks and runs `work` on the request, until a deadline.
    async fn run<T: Send + 'static>(
        self,
        service: &Scope,
        deadline: Instant,
        work: impl FnOnce(&Scope, LoadedRequest, &Cancel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Self { body, chunk_reference } = self;
        let by_ids = matches!(chunk_reference, Some(ChunkReference::Registered(_)));
        let scope = service.clone();
        let answer = service.executor().run(deadline, move |cancel| {
            let chunks = chunk_reference
                .map(|reference| ReferencedChunks::find(&scope, &reference, cancel))
                .transpose()?;
            let (mut request, options) =
                body.into_domain(chunks.as_ref().map(ReferencedChunks::chunks), &scope.limits())?;
            let recent = chunks.as_ref().and_then(ReferencedChunks::recent_request);
            request.seen = recent.map(|recent| recent.kept.clone());
            request.markers = recent.map(|recent| recent.markers.clone());
            work(&scope, LoadedRequest { request, options, chunks }, cancel)
        });
        answer.await.map_err(|error| if by_ids { error.of_chunks_in("chunk_ids") } else { error })
    }
}

enum ReferencedChunks {
    Registered(Vec<Arc<Chunk>>),
    RecentRequest(Arc<RecentRequest>),
}

impl ReferencedChunks {
    fn find(service: &Scope, reference: &ChunkReference, cancel: &Cancel) -> Result<Self, ApiError> {
        match reference {
            ChunkReference::Registered(ids) => {
                let limits = &service.settings.limits.requests;
                check_ids(ids, limits.registered_chunk_count_max)?;
                let (registry, bytes_max) = (service.registry()?, limits.registered_bytes_max);
                let lookup = ChunkLookup { registry, ids, bytes_max, cancel };
                Ok(Self::Registered(lookup.chunks((0..ids.len()).collect())?))
            }
            ChunkReference::Compressed(id) => {
                let found = service.handles().get(id);
                let unknown = || ApiError::compress_id_unknown(service.handles().expire_s());
                Ok(Self::RecentRequest(found.ok_or_else(unknown)?))
            }
        }
    }

    fn chunks(&self) -> Vec<Arc<Chunk>> {
        match self {
            Self::Registered(chunks) => chunks.clone(),
            Self::RecentRequest(recent) => recent.chunks.clone(),
        }
    }

    fn numbers(&self) -> ChunkNumbers<'_> {
        match self.recent_request() {
            None => ChunkNumbers::default(),
            Some(recent) => {
                ChunkNumbers { indexes: recent.caller_indices.as_deref(), markers: Some(&recent.markers) }
            }
        }
    }

    fn recent_request(&self) -> Option<&RecentRequest> {
        match self {
            Self::Registered(_) => None,
            Self::RecentRequest(recent) => Some(recent),
        }
    }
}
