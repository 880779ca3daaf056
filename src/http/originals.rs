//! Texts that were shortened, as they were: what of a turn was sent, and what `GET /v1/retrieve/{hash}` gives back.

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

/// What was sent, in the store of originals. Who cannot remember goes on: a turn is then sent as one that is new.
pub struct Remembering(pub TenantOriginals);

impl SentTurnStore for Remembering {
    fn get(&self, key: &[u8; 32]) -> Option<SentTurn> {
        let found = self.0.get(key).unwrap_or_else(|error| {
            tracing::debug!(%error, "what was sent of a turn cannot be read");
            None
        });
        serde_json::from_slice(&found?).ok()
    }
}

impl Remembering {
    /// From now on this is what was sent.
    pub fn put(&self, news: &[([u8; 32], SentTurn)]) {
        let entries: Vec<([u8; 32], Vec<u8>)> =
            news.iter().map(|(key, sent)| (*key, serde_json::to_vec(sent).expect("it is JSON"))).collect();
        let entries: Vec<(&[u8], &[u8])> = entries.iter().map(|(key, sent)| (&key[..], &sent[..])).collect();
        if let Err(error) = self.0.put(&entries) {
            tracing::debug!(%error, "what was sent of a turn cannot be kept");
        }
    }
}

/// The name of a text: the first 12 bytes of its BLAKE3 hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; 12]);

impl Hash {
    /// Of a text.
    pub fn of(text: &str) -> Self {
        let mut hash = [0; 12];
        hash.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..12]);
        Self(hash)
    }

    fn read(hex: &str) -> Option<Self> {
        let mut hash = [0; 12];
        if hex.len() != 24 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(hash))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Keeps texts under their hashes.
///
/// # Errors
/// When they cannot be kept: then they are not to be shortened.
pub fn keep<'a>(
    originals: &TenantOriginals,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Vec<Hash>, ApiError> {
    let texts: Vec<(Hash, &str)> = texts.map(|text| (Hash::of(text), text)).collect();
    let entries: Vec<(&[u8], &[u8])> =
        texts.iter().map(|(hash, text)| (&hash.0[..], text.as_bytes())).collect();
    if !entries.is_empty() {
        originals.put(&entries).map_err(|error| failed(&error))?;
    }
    Ok(texts.into_iter().map(|(hash, _)| hash).collect())
}

/// The store itself logs when it begins to fail and when it works again: not every request has to.
fn failed(error: &OriginalError) -> ApiError {
    tracing::debug!(%error, "a request needs the store of originals");
    ApiError::originals_failed()
}

/// `GET /v1/retrieve/{hash}`: the text as it was; with a question, also which of its sentences are about that.
pub async fn retrieve(
    service: Scope,
    hash: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Json<OriginalAnswer>, ApiError> {
    let [query] = query::parameters(query.as_deref(), ["query"])?;
    let name = hash.map_or_else(|_| String::new(), |Path(name)| name);
    let hash = Hash::read(&name).ok_or_else(ApiError::original_unknown)?;
    let originals = service.originals();
    let text = run_blocking(move || {
        let found = originals.get(&hash.0).map_err(|error| failed(&error))?;
        String::from_utf8(found.ok_or_else(ApiError::original_unknown)?).map_err(|_| ApiError::internal())
    });
    let text = text.await?;
    let Some(query) = query.filter(|query| !query.trim().is_empty()) else {
        return Ok(Json(OriginalAnswer { hash: name, original_content: text, relevant: None }));
    };
    service.ready()?;
    let deadline = service.executor().deadline(Instant::now(), None)?;
    let working = service.clone();
    let answer = service.executor().run(deadline, move |cancel| {
        let chunk = Chunk { id: "original".to_owned(), title: None, text, metadata: None };
        let request = CompressRequest { format: Format::Plain, ..CompressRequest::new(query, vec![chunk]) };
        let compressed = working.ready()?.compress(&request, cancel)?;
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
