//! Keys and values of kept chunks: kept for who asked for them, and `GET /v1/kv/{handle}`, which gives them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use thresher_core::domain::Chunk;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Compressed, Pipeline, PipelineError, kv_export};

use super::{Scope, query};
use crate::api::{KvAnswer, KvWanted};
use crate::error::ApiError;
use crate::executor::run_blocking;
use crate::kv_export::KvExportFile;

/// Makes what the request wants of the chunks that were kept, in the order of the context.
///
/// # Errors
/// A model that has nothing to hand over, chunks that its context does not hold, a budget that holds nothing.
pub fn export(
    pipeline: &Pipeline,
    (query, chunks): (&str, &[Arc<Chunk>]),
    compressed: &Compressed,
    wanted: &KvWanted,
    cancel: &Cancel,
) -> Result<KvExportFile, PipelineError> {
    let kept: Vec<Arc<Chunk>> = compressed
        .chunks
        .iter()
        .filter(|chunk| chunk.kept)
        .map(|chunk| Arc::clone(&chunks[chunk.index]))
        .collect();
    let question = pipeline.tokens_of(query)?;
    let kv_export = pipeline.kv_export(&kept, question.len(), cancel)?;
    let heads = match wanted {
        KvWanted::Chunks => None,
        KvWanted::Heads(eviction) => Some(pipeline.evict(&kv_export, &question, eviction, cancel)?),
    };
    Ok(KvExportFile::new(kv_export, heads, &kept, pipeline))
}

/// Whether there is something to hand over, and room for it: said before anything is read.
///
/// # Errors
/// As [`kv_export::check_model`] and [`Eviction::check`](thresher_core::pipeline::evict::Eviction::check); where nothing is held.
pub fn check(service: &Scope, pipeline: &Pipeline, wanted: &KvWanted) -> Result<(), ApiError> {
    kv_export::check_model(pipeline.model()).map_err(PipelineError::from)?;
    if let KvWanted::Heads(eviction) = wanted {
        eviction.check().map_err(PipelineError::from)?;
    }
    if service.kv_handles().is_disabled() {
        return Err(ApiError::kv_off());
    }
    Ok(())
}

/// Keeps it for its tenant; what the answer says of it.
///
/// # Errors
/// When it is larger than all room for such.
pub fn keep(service: &Scope, kv_export: KvExportFile, wanted: &KvWanted) -> Result<KvAnswer, ApiError> {
    let decoder = service.ready()?.model().decoder.as_ref();
    let fingerprint = decoder.and_then(|decoder| decoder.weights.clone()).unwrap_or_default();
    let room_tokens =
        decoder.map_or(0, |decoder| decoder.context_tokens_max.saturating_sub(kv_export.tokens()));
    let (tokens, share, bytes, held) =
        (kv_export.tokens(), kv_export.share(), kv_export.file_bytes(), kv_export.bytes());
    let handles = service.kv_handles();
    let handle = handles.insert(kv_export).ok_or_else(|| ApiError::kv_too_large(held))?;
    let expires_s = handles.expire_s();
    Ok(KvAnswer {
        handle,
        expires_s,
        policy: wanted.policy(),
        tokens,
        room_tokens,
        share,
        bytes,
        fingerprint,
    })
}

/// `GET /v1/kv/{handle}`
pub async fn fetch(
    service: Scope,
    handle: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let [fingerprint] = query::parameters(query.as_deref(), ["fingerprint"])?;
    let handle = handle.map_err(|_| ApiError::kv_unknown())?.0;
    service.ready()?;
    let kv_export = service.kv_handles().get(&handle).ok_or_else(ApiError::kv_unknown)?;
    let ours = service.ready()?.model().decoder.as_ref().and_then(|decoder| decoder.weights.as_deref());
    if let Some(theirs) = fingerprint.as_deref().filter(|theirs| Some(*theirs) != ours) {
        return Err(ApiError::model_mismatch(ours.unwrap_or_default(), theirs));
    }
    let length = HeaderValue::from(kv_export.file_bytes());
    // Each piece is made when the one before has been taken: a slow reader holds one, and no thread.
    let pieces = stream::iter(kv_export.parts()).then(move |piece| {
        let (service, kv_export) = (service.clone(), Arc::clone(&kv_export));
        run_blocking(move || Ok(kv_export.read_part(piece, service.ready()?)))
    });
    let kind = HeaderValue::from_static("application/octet-stream");
    let body = Body::from_stream(pieces.map(|piece| piece.map_err(|error| error.message)));
    Ok(([(CONTENT_TYPE, kind), (CONTENT_LENGTH, length)], body).into_response())
}
