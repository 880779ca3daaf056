//! Exports of keys and values: how a compression makes one, and `GET /v1/kv/{handle}`, which sends its file. `crate::kv_export` writes the
//! file.

use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use thresher_core::domain::Chunk;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Compressed, Pipeline, PipelineError, kv_export, recompute};

use super::{Scope, observe, query};
use crate::api::{KvAnswer, KvWanted};
use crate::error::{ApiError, ErrorCode};
use crate::executor::run_blocking;
use crate::kv_export::KvExportFile;

/// How many parts of a file are in memory while it is sent.
const PARTS_AT_ONCE: usize = 2;

/// Checks that keys and values can be exported with the model of `pipeline`, before anything is read.
pub fn check(pipeline: &Pipeline, wanted: &KvWanted) -> Result<(), ApiError> {
    kv_export::check_model(pipeline.model()).map_err(PipelineError::from)?;
    if let Some(eviction) = &wanted.eviction {
        eviction.check().map_err(PipelineError::from)?;
    }
    recompute::check_share(wanted.recompute).map_err(PipelineError::from)?;
    Ok(())
}

/// The tokens that the model reads around the exported chunks.
pub struct TokensAround {
    before: Vec<u32>,
    after: Vec<u32>,
}

/// Returns the tokens around the chunks: those of `before`, and those of the prompt or of the query. Another model's tokenizer may find
/// many more tokens in a query than the one that scores.
pub fn around(pipeline: &Pipeline, query: &str, wanted: &KvWanted) -> Result<TokensAround, PipelineError> {
    let limits = &pipeline.settings().limits;
    let of_text = |field: &'static str, text: &str| {
        let tokens = pipeline.tokens_of_prompt(text)?;
        limits.check_text_of_export(field, tokens.len())?;
        Ok::<_, PipelineError>(tokens)
    };
    let before = wanted.before.as_deref().map_or(Ok(Vec::new()), |before| of_text("before", before))?;
    if let Some(prompt) = &wanted.prompt {
        return Ok(TokensAround { before, after: of_text("prompt", prompt)? });
    }
    let after = pipeline.tokens_of(query)?;
    // The model reads the question only for its RC.
    if wanted.eviction.is_some() || wanted.recompute > 0.0 {
        limits.check_query(after.len())?;
    }
    Ok(TokensAround { before, after })
}

/// An export that nobody can fetch yet.
pub struct Exported {
    file: KvExportFile,
    /// The text of the chunks, if a prompt with it has the tokens of the export.
    text: Option<String>,
}

/// Exports the keys and values of the kept chunks with the model of `pipeline`, in the order of the context. Fails before the model encodes
/// the question if the export would have more than `bytes_max` bytes.
pub fn export(
    pipeline: &Pipeline,
    around: &TokensAround,
    chunks: &[Arc<Chunk>],
    compressed: &Compressed,
    wanted: &KvWanted,
    bytes_max: usize,
    cancel: &Cancel,
) -> Result<Exported, ApiError> {
    let kept = compressed.chunks.iter().filter(|chunk| chunk.kept);
    let kept: Vec<Arc<Chunk>> = kept.map(|chunk| Arc::clone(&chunks[chunk.index])).collect();
    let mut kv_export = pipeline.kv_export(&around.before, &kept, around.after.len(), cancel)?;
    // An impossible budget is refused before the model encodes the question.
    let budget = wanted.eviction.map_or(Ok(()), |eviction| eviction.check_budget(&kv_export));
    budget.map_err(PipelineError::from)?;
    // So is an export that cannot be kept.
    let bytes = pipeline.bytes_recomputed(&kv_export, wanted.recompute);
    if bytes > bytes_max {
        return Err(ApiError::kv_too_large(bytes, bytes_max));
    }
    let recomputes = wanted.recompute > 0.0 && !kv_export.is_exact();
    let mut heads = None;
    if recomputes || wanted.eviction.is_some() {
        let scores = pipeline.rc_of_export(&kv_export, &around.after, cancel)?;
        pipeline.recompute(&mut kv_export, &scores, wanted.recompute, cancel)?;
        let evict = |eviction| pipeline.evict(&scores, &eviction).map_err(PipelineError::from);
        heads = wanted.eviction.map(evict).transpose()?;
    }
    let text = pipeline.text_of_export(wanted.before.as_deref().unwrap_or_default(), &kept, &kv_export)?;
    Ok(Exported { file: KvExportFile::new(kv_export, heads, wanted.dtype, &kept, pipeline), text })
}

/// Keeps the file of an export until it expires, and returns its handle and what is in it.
pub fn store(service: &Scope, exported: Exported, wanted: &KvWanted) -> Result<KvAnswer, ApiError> {
    let Exported { file, text } = exported;
    let pipeline = service.ready()?.exporting();
    let decoder = pipeline.model().decoder.as_ref();
    let fingerprint = decoder.and_then(|decoder| decoder.weights.clone()).unwrap_or_default();
    let room_tokens = decoder.map_or(0, |decoder| decoder.context_tokens_max.saturating_sub(file.tokens()));
    let handles = service.kv_handles();
    let memory_bytes = file.bytes();
    let answer = KvAnswer {
        handle: String::new(),
        expires_s: handles.expire_s(),
        policy: wanted.policy(),
        tokens: file.tokens(),
        room_tokens,
        share: file.share(),
        recomputed: file.recomputed(),
        exact: file.is_exact(),
        dtype: file.dtype(),
        token_ids: file.token_ids(pipeline),
        text,
        bytes: file.file_bytes(),
        fingerprint,
    };
    let handle =
        handles.insert(file).ok_or_else(|| ApiError::kv_too_large(memory_bytes, handles.bytes_max()))?;
    let answer = KvAnswer { handle, ..answer };
    observe::kv_export(&answer);
    Ok(answer)
}

/// `GET /v1/kv/{handle}`: the file of an export, or the bytes of it that `Range` names. `?fingerprint=` names the model that will use it;
/// another model's is refused.
pub async fn fetch(
    service: Scope,
    method: Method,
    headers: HeaderMap,
    handle: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let [fingerprint] = query::parameters(query.as_deref(), ["fingerprint"])?;
    let handle = handle.map_err(|_| ApiError::kv_unknown())?.0;
    service.ready()?;
    let file = service.kv_handles().get(&handle).ok_or_else(ApiError::kv_unknown)?;
    let decoder = service.ready()?.exporting().model().decoder.as_ref();
    let ours = decoder.and_then(|decoder| decoder.weights.as_deref());
    if let Some(theirs) = fingerprint.as_deref().filter(|theirs| Some(*theirs) != ours) {
        return Err(ApiError::model_mismatch(ours.unwrap_or_default(), theirs));
    }
    let size = file.file_bytes();
    // Only GET has ranges (RFC 9110, section 14.2).
    // `If-Range` names a version by a validator, which files have not, so its range does not apply.
    let has_ranges = method == Method::GET && !headers.contains_key(IF_RANGE);
    let range = headers.get(RANGE).filter(|_| has_ranges).and_then(|range| range.to_str().ok());
    let Ok(range) = range.map_or(Ok(None), |range| byte_range(range, size)) else {
        let message = format!("the file has {size} bytes, and not those that the header Range names");
        let error = ApiError::with_param(ErrorCode::OutOfRange, message, "Range");
        let of = HeaderValue::try_from(format!("bytes */{size}")).expect("digits are a header value");
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, [(CONTENT_RANGE, of)], error).into_response());
    };
    let whole = 0..size;
    let wanted = range.clone().unwrap_or(whole);
    let length = HeaderValue::from(wanted.len());
    let parts = file.parts(&wanted);
    // A part is read while the one before is sent: a slow reader holds two parts, and no thread.
    let parts = stream::iter(parts).map(move |(part, within)| {
        let (service, file) = (service.clone(), Arc::clone(&file));
        run_blocking(move || {
            let part = file.read_part(part, service.ready()?.exporting()).slice(within);
            observe::kv_export_part(part.len());
            Ok(part)
        })
    });
    let parts = parts.buffered(PARTS_AT_ONCE);
    let kind = HeaderValue::from_static("application/octet-stream");
    let body = Body::from_stream(parts.map(|part| part.map_err(|error| error.message)));
    let accepts = HeaderValue::from_static("bytes");
    let mut response =
        ([(CONTENT_TYPE, kind), (CONTENT_LENGTH, length), (ACCEPT_RANGES, accepts)], body).into_response();
    if let Some(range) = range {
        let of = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        let of = HeaderValue::try_from(of).expect("digits are a header value");
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        response.headers_mut().insert(CONTENT_RANGE, of);
    }
    Ok(response)
}

/// The bytes of a file of `size` bytes that a `Range` header names; `None` stands for all of them, also where it names several ranges,
/// another unit or nothing that can be understood, as RFC 9110 (section 14.2) allows. Fails if the file has none of them.
fn byte_range(header: &str, size: usize) -> Result<Option<Range<usize>>, ()> {
    let range = header.split_once('=').filter(|(unit, _)| unit.eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = range.and_then(|(_, range)| range.split_once('-')) else { return Ok(None) };
    // A number beyond the largest one is beyond the end, too.
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = |text: &str| is_number(text).then(|| text.parse().unwrap_or(usize::MAX));
    let range = match (number(first), number(last)) {
        (Some(start), None) if last.is_empty() => start..size,
        (Some(start), Some(end)) if start <= end => start..size.min(end.saturating_add(1)),
        (None, Some(count)) if first.is_empty() => size.saturating_sub(count)..size,
        _ => return Ok(None),
    };
    if range.start < range.end { Ok(Some(range)) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_rfc_9110() {
        let check = |header: &str, expect: Result<Option<Range<usize>>, ()>| {
            assert_eq!(byte_range(header, 100), expect, "{header}");
        };
        check("bytes=0-0", Ok(Some(0..1)));
        check("Bytes=5-", Ok(Some(5..100)));
        check("bytes=5-99999999999999999999999", Ok(Some(5..100)));
        check("bytes=-9", Ok(Some(91..100)));
        check("bytes=-1000", Ok(Some(0..100)));
        for beyond in ["bytes=100-", "bytes=100-200", "bytes=99999999999999999999999-", "bytes=-0"] {
            check(beyond, Err(()));
        }
        for other in
            ["bytes=0-1,4-5", "bytes=9-5", "bytes=-", "bytes=a-b", "bytes=+1-2", "items=0-5", "", "0-5"]
        {
            check(other, Ok(None));
        }
    }
}
