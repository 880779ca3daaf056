//! Compresses conversations in the format of Headroom, which gateways speak (LiteLLM, Portkey, Kong). The answer has the same messages, with
//! shorter tool results. In a session, messages that were returned before come back as they were, byte for byte.

pub mod config;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::value::RawValue;
use thresher_core::domain::{Granularity, TokenizerName};
use thresher_core::pipeline::cancel::Cancel;

use self::config::Config;
use crate::api::{BodyLimits, MessagesAnswer, SessionAnswer};
use crate::error::{ApiError, ErrorCode};
use crate::http::middleware::report::REASON;
use crate::http::originals::{StoredSessions, StoredText};
use crate::http::traces::{self, Retrieval};
use crate::http::{Scope, body, observe};
use crate::middleware::dialect::{Conversation, Dialect};
use crate::middleware::find;
use crate::middleware::json::Located;
use crate::middleware::marks::{Hash, mark};
use crate::middleware::rewrite::{
    self, CompressOptions, Compressor, Extent, ReadTurns, Rewritten, Unshortened,
};
use crate::middleware::session::{Session, SessionKeys};
use crate::originals::{ENTRY_BYTES, TenantOriginals};

struct ConversationRequest {
    body: String,
    config: Config,
}

struct Compressed {
    answer: MessagesAnswer,
    /// Why nothing was shortened, for the header `x-thresher-reason`.
    reason: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
struct Tokens {
    before: usize,
    after: usize,
}

impl ConversationRequest {
    fn parse(body: &[u8], limits: &BodyLimits) -> Result<Self, ApiError> {
        let body = std::str::from_utf8(body).map_err(|_| ApiError::body_not_utf8())?;
        let located = Located::parse(body).map_err(|error| ApiError::invalid_json(&error))?;
        let messages = located.get("messages").ok_or_else(ApiError::messages_missing)?;
        // Other clients' fields do not matter here, but nothing that was sent to be kept is dropped.
        for field in ["chunks", "chunk_ids", "query"] {
            if located.get(field).is_some_and(|value| value.json() != "null") {
                return Err(ApiError::no_field_of_conversations(field));
            }
        }
        limits.check_tree(messages.json().as_bytes(), Some("messages"))?;
        let messages = messages
            .is_list()
            .then(|| messages.items())
            .ok_or_else(|| ApiError::messages_not_list(messages.json()))?;
        if messages.clone().next().is_none() {
            return Err(ApiError::messages_empty());
        }
        if let Some(index) = messages.clone().position(|message| !message.json().starts_with('{')) {
            return Err(ApiError::message_not_object(index));
        }
        let config = Config::read(located, messages.count())?;
        Ok(Self { body: body.to_owned(), config })
    }

    fn compress(&self, service: &Scope, cancel: &Cancel) -> Result<Compressed, ApiError> {
        let pipeline = service.ready()?;
        let middleware = &service.middleware;
        let body = Located::parse(&self.body).map_err(|_| ApiError::internal())?;
        let conversation = Dialect::Chat.conversation(body);
        // All tools, and those that the settings name even if results of theirs would stay whole.
        let mut policy = middleware.policy(false);
        policy.tools.push("*".to_owned());
        let options = CompressOptions {
            mode: middleware.settings.mode,
            budget: self.config.budget.unwrap_or_else(|| middleware.settings.budget()),
            granularity: Granularity::default(),
            prompt_tokens_min: 0,
            result_tokens_min: middleware.limits.result_tokens_min,
            query: None,
            // Marks are appended here, where the caller asks for them.
            related_only: false,
            marks: false,
            // The caller does not send its conversation on: what later steps copy is not seen.
            off: Arc::default(),
        };
        let found = find::turns(&conversation, &policy, service.text_kinds());
        if let Some(too_many) = found.too_many {
            return Err(ApiError::too_many(too_many).at("messages"));
        }
        let mut turns = found.turns;
        let originals = service.originals();
        let mut session = self.session(&conversation, &originals);
        let returned_count = session.as_ref().map_or(0, |session| session.returned_count);
        let replayed = session.as_mut().map(|session| std::mem::take(&mut session.replayed));
        let has_returned = |index| session.as_ref().is_some_and(|session| session.has_returned(index));
        self.config.choose(&conversation, has_returned, &mut turns);
        let by = Compressor {
            options: &options,
            tokens_max: None,
            other_text_bytes: find::other_text_bytes(&conversation, &turns),
            skips_late: false,
            pipeline,
        };
        let conversation_in_turns = rewrite::Conversation {
            dialect: Dialect::Chat,
            body,
            turns: &turns,
            added: &[],
            is_cited: false,
        };
        let plans = rewrite::plan(&turns, Extent::AllTurns, "", &|_| None, cancel)?;
        let mut rewritten =
            rewrite::rewrite(conversation_in_turns, &plans, Some(by), &mut ReadTurns::new(false), cancel)?;
        if self.config.names_hashes {
            name_hashes(&mut rewritten, &originals);
        }
        let new_count = rewritten.shortened.len();
        let protected_from = self.config.protected_from(conversation.messages.len());
        let returned =
            session.map(|session| session.entries(&conversation, &rewritten.shortened, protected_from));
        rewritten.shortened.extend(replayed.unwrap_or_default());
        let count = |text: &str| {
            cancel.check()?;
            Ok(pipeline.count(text, TokenizerName::O200kBase)?)
        };
        let mut tokens = self.tokens(&conversation, &rewritten, count)?;
        let new_texts = rewritten.shortened[..new_count].iter();
        let new_texts: Vec<StoredText> = new_texts.map(|string| StoredText::new(&string.original)).collect();
        let is_stored = StoredSessions(originals).store(&new_texts, &returned.unwrap_or_default()).is_ok();
        // A text is only shortened if its original can be returned. A full disk does not stop the agent.
        if !is_stored {
            rewritten.shortened.drain(..new_count);
            tokens = self.tokens(&conversation, &rewritten, count)?;
        }
        let hashes: Vec<String> =
            rewritten.shortened.iter().map(|string| Hash::compute(&string.original).to_string()).collect();
        traces::tokens(tokens.before, tokens.after);
        observe::middleware(
            if hashes.is_empty() { "uncompressed" } else { "compressed" },
            Some((tokens.before, tokens.after)),
        );
        let text = rewritten.edits().apply(&self.body);
        let messages = Located::parse(&text).ok().and_then(|body| body.get("messages"));
        let messages: Option<Box<RawValue>> = messages.and_then(Located::read);
        let answer = MessagesAnswer {
            messages: messages.ok_or_else(ApiError::internal)?,
            tokens_before: tokens.before,
            tokens_after: tokens.after,
            tokens_saved: tokens.before - tokens.after.min(tokens.before),
            compression_ratio: match tokens.before {
                0 => 1.0,
                before => tokens.after as f64 / before as f64,
            },
            transforms_applied: if hashes.is_empty() { vec![] } else { vec!["relative_contextualization"] },
            ccr_hashes: hashes,
            session: self.config.session_id.clone().map(|id| SessionAnswer {
                id,
                frozen_message_count: returned_count.max(self.config.frozen_message_count),
                cached_prefix_replayed: returned_count > 0,
            }),
        };
        let unshortened = rewritten.unshortened.filter(|_| new_count == 0).map(Unshortened::reason);
        let reason = if is_stored { unshortened } else { Some(ErrorCode::StorageFailed.as_str()) };
        Ok(Compressed { answer, reason })
    }

    fn session(&self, conversation: &Conversation, originals: &TenantOriginals) -> Option<Session> {
        let keys = SessionKeys::derive(self.config.session_id.as_deref()?);
        let store = StoredSessions(originals.clone());
        Some(Session::resume(keys, conversation, &store))
    }

    /// The tokens of all texts of the conversation, before and after.
    fn tokens(
        &self,
        conversation: &Conversation,
        rewritten: &Rewritten,
        count: impl Fn(&str) -> Result<usize, ApiError>,
    ) -> Result<Tokens, ApiError> {
        let shortened: HashMap<usize, &str> =
            rewritten.shortened.iter().map(|string| (string.at.start, &*string.text)).collect();
        let mut tokens = Tokens { before: 0, after: 0 };
        for part in conversation.messages.iter().flat_map(|message| &message.parts) {
            let before = count(&part.text)?;
            tokens.before += before;
            tokens.after += shortened.get(&part.at.range().start).map_or(Ok(before), |text| count(text))?;
        }
        Ok(tokens)
    }
}

/// Appends to each shortened text the hash under which its original will be stored. A text is shortened only if the store has room for its
/// original.
fn name_hashes(rewritten: &mut Rewritten, originals: &TenantOriginals) {
    let mut kept = 0;
    rewritten.shortened.retain_mut(|string| {
        // An encoded text has all of its original.
        if !string.is_json && !string.left_out.is_empty() {
            string.text.push_str(&mark(&string.original, &string.left_out));
        }
        let is_kept = originals.has_room(kept, string.original.len());
        kept += if is_kept { string.original.len() + ENTRY_BYTES } else { 0 };
        is_kept && string.text.len() < string.original.len()
    });
}

/// `POST /headroom/v1/compress`.
pub async fn handle(service: Scope, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let limits = service.limits();
    let parse = move |body: &[u8]| ConversationRequest::parse(body, &limits);
    let request = body::parsed(&service, &headers, body, parse).await?;
    let deadline = service.executor().deadline(arrived, None)?;
    service.ready()?;
    let scope = service.clone();
    let work = service.executor().run(deadline, move |cancel| request.compress(&scope, cancel));
    let Compressed { answer, reason } = Retrieval::new("compress").run(service.model_name(), work).await?;
    let mut response = Json(answer).into_response();
    if let Some(reason) = reason {
        response.headers_mut().insert(REASON, HeaderValue::from_static(reason));
    }
    Ok(response)
}
