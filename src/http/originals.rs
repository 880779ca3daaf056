//! The store of original texts: what the middleware sent of earlier turns, what sessions have returned, and the originals that
//! `/v1/retrieve` returns.

use std::time::Instant;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use thresher_core::domain::{Chunk, CompressRequest, Format, KeptSpan};
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::{Scope, query};
use crate::api::{self, OriginalAnswer, RelevantAnswer, RetrieveBody};
use crate::error::{ApiError, ErrorCode};
use crate::executor::run_blocking;
use crate::middleware::marks::Hash;
use crate::middleware::rewrite::SentTurn;
use crate::middleware::session::{Entry as ReturnedEntry, Key, SessionStore};
use crate::originals::{ENTRY_BYTES, OriginalError, TenantOriginals};

/// The store of sent turns, within the store of originals. Where a turn cannot be read or stored, the daemon goes on: the turn is then sent
/// as if it were new.
pub struct StoredTurns(pub TenantOriginals);

impl StoredTurns {
    /// Returns what was sent of the turn with this key, if the store has it.
    pub fn get(&self, key: &[u8; 32]) -> Option<SentTurn> {
        let found = self.0.get(key).unwrap_or_else(|error| {
            tracing::debug!(%error, "a sent turn cannot be read from the store of originals");
            None
        });
        serde_json::from_slice(&found?).ok()
    }

    pub fn put(&self, turns: &[([u8; 32], SentTurn)]) {
        let turns: Vec<([u8; 32], Vec<u8>)> =
            turns.iter().map(|(key, sent)| (*key, serde_json::to_vec(sent).expect("it is JSON"))).collect();
        let entries: Vec<(&[u8], &[u8])> = turns.iter().map(|(key, sent)| (&key[..], &sent[..])).collect();
        if let Err(error) = self.0.put(&entries) {
            tracing::debug!(%error, "a sent turn cannot be stored in the store of originals");
        }
    }

    /// Stores the originals of texts that are to be sent with a mark. Returns whether it has all of them; otherwise no mark may be sent.
    pub fn put_originals(&self, texts: &[String]) -> bool {
        let bytes = texts.iter().map(|text| text.len() + ENTRY_BYTES).sum::<usize>();
        if !self.0.has_room(bytes, 0) {
            return false;
        }
        let texts: Vec<StoredText> = texts.iter().map(|text| StoredText::new(text)).collect();
        let entries: Vec<(&[u8], &[u8])> =
            texts.iter().map(|StoredText { hash, text }| (hash.bytes(), text.as_bytes())).collect();
        let stored = self.0.put(&entries);
        if let Err(error) = &stored {
            tracing::debug!(%error, "an original cannot be stored in the store of originals");
        }
        stored.is_ok()
    }
}

pub struct StoredText<'a> {
    hash: Hash,
    text: &'a str,
}

impl<'a> StoredText<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { hash: Hash::compute(text), text }
    }
}

/// The store of original texts and of what sessions have returned, within the store of originals.
pub struct StoredSessions(pub TenantOriginals);

impl SessionStore for StoredSessions {
    fn get(&self, key: &Key) -> Option<Vec<u8>> {
        self.0.get(key).unwrap_or_else(|error| {
            tracing::debug!(%error, "what a session has returned cannot be read from the store of originals");
            None
        })
    }
}

impl StoredSessions {
    /// Stores texts, and what a session has returned as far as nothing was stored of the same message.
    ///
    /// # Errors
    /// `storage_failed`. Nothing is stored then, so no text may be shortened.
    pub fn store(&self, texts: &[StoredText], returned: &[ReturnedEntry]) -> Result<(), ApiError> {
        if texts.is_empty() && returned.is_empty() {
            return Ok(());
        }
        let texts: Vec<(&[u8], &[u8])> =
            texts.iter().map(|StoredText { hash, text }| (hash.bytes(), text.as_bytes())).collect();
        let returned: Vec<(&[u8], &[u8])> =
            returned.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        self.0.put_and_add(&texts, &returned).map_err(|error| store_error(&error))
    }
}

/// The store itself logs when it fails and when it works again, so each request logs only at debug level.
pub(super) fn store_error(error: &OriginalError) -> ApiError {
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
    original(service, name, query).await.map(Json)
}

/// The response to a body with a hash and perhaps a query: for the MCP tool.
pub async fn answer(service: Scope, body: Vec<u8>) -> Result<OriginalAnswer, ApiError> {
    let limits = service.limits();
    let request = run_blocking(move || api::parse::<RetrieveBody>(&body, &limits)).await?;
    // Models copy the hash as the mark has it.
    let hash =
        request.hash.rsplit("hash=").next().unwrap_or_default().trim_end_matches(']').trim().to_owned();
    original(service, hash, request.query).await.map_err(|error| match error.code {
        ErrorCode::IdUnknown => error.at("hash"),
        _ => error,
    })
}

/// The text that is stored under the hash with this name.
async fn original(service: Scope, name: String, query: Option<String>) -> Result<OriginalAnswer, ApiError> {
    if query.as_ref().is_some_and(|query| query.trim().is_empty()) {
        return Err(ApiError::retrieve_query_blank());
    }
    let hash = Hash::parse(&name).ok_or_else(ApiError::original_unknown)?;
    let originals = service.originals();
    let text = run_blocking(move || {
        let found = originals.get(hash.bytes()).map_err(|error| store_error(&error))?;
        String::from_utf8(found.ok_or_else(ApiError::original_unknown)?).map_err(|_| ApiError::internal())
    });
    let text = text.await?;
    let Some(query) = query else {
        return Ok(OriginalAnswer { hash: name, original_content: text, relevant: None });
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
            RelevantAnswer::new(range.start, range.end, span.source.slice(text).to_owned(), span.score)
        };
        let relevant = compressed.chunks.iter().flat_map(|chunk| &chunk.spans).map(span).collect();
        Ok(OriginalAnswer { hash: name, original_content: text.clone(), relevant: Some(relevant) })
    });
    answer.await
}
