//! The store of original texts: what the middleware sent of earlier turns, and the originals that `GET /v1/retrieve/{hash}` returns.

use std::fmt;
use std::time::Instant;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use thresher_core::domain::{Chunk, CompressRequest, Format, KeptSpan};
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::{Scope, query};
use crate::api::{OriginalAnswer, RelevantAnswer};
use crate::error::ApiError;
use crate::executor::run_blocking;
use crate::middleware::rewrite::{SentTurn, SentTurnStore};
use crate::originals::{OriginalError, TenantOriginals};

/// The store of sent turns, within the store of originals. Where a turn cannot be read or stored, the daemon goes on: the turn is then sent
/// as if it were new.
pub struct StoredTurns(pub TenantOriginals);

impl SentTurnStore for StoredTurns {
    fn get(&self, key: &[u8; 32]) -> Option<SentTurn> {
        let found = self.0.get(key).unwrap_or_else(|error| {
            tracing::debug!(%error, "a sent turn cannot be read from the store of originals");
            None
        });
        serde_json::from_slice(&found?).ok()
    }
}

impl StoredTurns {
    /// Stores what was sent of turns, by their keys.
    pub fn put(&self, turns: &[([u8; 32], SentTurn)]) {
        let entries: Vec<([u8; 32], Vec<u8>)> =
            turns.iter().map(|(key, sent)| (*key, serde_json::to_vec(sent).expect("it is JSON"))).collect();
        let entries: Vec<(&[u8], &[u8])> = entries.iter().map(|(key, sent)| (&key[..], &sent[..])).collect();
        if let Err(error) = self.0.put(&entries) {
            tracing::debug!(%error, "a sent turn cannot be stored in the store of originals");
        }
    }
}

/// The hash by which an original text is stored: the first 12 bytes of its BLAKE3 hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; 12]);

impl Hash {
    /// The hash of a text.
    pub fn of(text: &str) -> Self {
        let mut hash = [0; 12];
        hash.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..12]);
        Self(hash)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut hash = [0; 12];
        hex::decode_to_slice(text, &mut hash).ok()?;
        Some(Self(hash))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Stores texts under their hashes.
///
/// # Errors
/// `originals_failed`. Texts that are not stored must not be shortened.
pub fn store<'a>(
    originals: &TenantOriginals,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<Hash>, ApiError> {
    let texts: Vec<(Hash, &str)> = texts.map(|text| (Hash::of(text), text)).collect();
    let entries: Vec<(&[u8], &[u8])> =
        texts.iter().map(|(hash, text)| (&hash.0[..], text.as_bytes())).collect();
    if !entries.is_empty() {
        originals.put(&entries).map_err(|error| store_error(&error))?;
    }
    Ok(texts.into_iter().map(|(hash, _)| hash).collect())
}

/// The store itself logs when it fails and when it works again, so each request logs only at debug level.
fn store_error(error: &OriginalError) -> ApiError {
    tracing::debug!(%error, "a request failed at the store of originals");
    ApiError::originals_failed()
}

/// `GET /v1/retrieve/{hash}`: the original text, and with `?query=` the sentences of it that are about the question.
pub async fn retrieve(
    service: Scope,
    hash: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Json<OriginalAnswer>, ApiError> {
    let [query] = query::parameters(query.as_deref(), ["query"])?;
    let name = hash.map_or_else(|_| String::new(), |Path(name)| name);
    let hash = Hash::parse(&name).ok_or_else(ApiError::original_unknown)?;
    let originals = service.originals();
    let text = run_blocking(move || {
        let found = originals.get(&hash.0).map_err(|error| store_error(&error))?;
        String::from_utf8(found.ok_or_else(ApiError::original_unknown)?).map_err(|_| ApiError::internal())
    });
    let text = text.await?;
    let Some(query) = query.filter(|query| !query.trim().is_empty()) else {
        return Ok(Json(OriginalAnswer { hash: name, original_content: text, relevant: None }));
    };
    service.ready()?;
    let deadline = service.executor().deadline(Instant::now(), None)?;
    let scope = service.clone();
    let answer = service.executor().run(deadline, move |cancel| {
        let chunk = Chunk::new("original", text);
        let request = CompressRequest { format: Format::Plain, ..CompressRequest::new(query, vec![chunk]) };
        let compressed = scope.ready()?.compress(&request, cancel)?;
        let text = &request.chunks[0].text;
        let map = OffsetMap::new(text, OffsetUnit::Codepoint);
        let span = |span: &KeptSpan| {
            let range = map.from_bytes(span.source);
            RelevantAnswer::new((range.start, range.end), span.source.of(text).to_owned(), span.score)
        };
        let relevant = compressed.chunks.iter().flat_map(|chunk| &chunk.spans).map(span).collect();
        Ok(OriginalAnswer { hash: name, original_content: text.clone(), relevant: Some(relevant) })
    });
    answer.await.map(Json)
}
