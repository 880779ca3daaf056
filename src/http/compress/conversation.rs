//! Compresses conversations in the format of LiteLLM's compression guardrail. The answer has the same messages, with shorter tool results.

use std::collections::HashMap;
use std::time::Instant;

use axum::Json;
use serde_json::value::RawValue;
use thresher_core::domain::{Granularity, TokenizerName};
use thresher_core::pipeline::cancel::Cancel;

use crate::api::{BodyLimits, MessagesAnswer};

use crate::error::ApiError;
use crate::http::originals::{Hash, store};
use crate::http::{Scope, observe};
use crate::middleware::dialect::Dialect;
use crate::middleware::find::{self, Policy};
use crate::middleware::json::Located;
use crate::middleware::rewrite::{self, CompressOptions, Compressor};
use crate::originals::ENTRY_BYTES;

/// A body with messages.
pub struct ConversationRequest {
    body: String,
    /// Whether shortened texts name the hash under which the original is stored.
    names_hashes: bool,
}

impl ConversationRequest {
    /// Checks the body; none if it has no messages.
    pub fn parse(body: &[u8], limits: &BodyLimits) -> Result<Option<Self>, ApiError> {
        let Ok(body) = std::str::from_utf8(body) else { return Ok(None) };
        let Ok(located) = Located::parse(body) else { return Ok(None) };
        let Some(messages) = located.get("messages") else { return Ok(None) };
        // Beside chunks, `messages` is the conversation before the question.
        if ["chunks", "chunk_ids"].iter().any(|field| located.get(field).is_some()) {
            return Ok(None);
        }
        limits.check_tree(messages.json().as_bytes(), Some("messages"))?;
        let mut messages =
            messages.is_list().then(|| messages.items()).ok_or_else(ApiError::messages_not_list)?;
        if messages.clone().next().is_none() {
            return Err(ApiError::messages_empty());
        }
        if located.get("query").is_some() {
            return Err(ApiError::messages_ambiguous());
        }
        if let Some(index) = messages.position(|message| !message.json().starts_with('{')) {
            return Err(ApiError::message_not_object(index));
        }
        let mode = located.get("config").and_then(|config| config.text_of("mode"));
        // Older guardrails retrieve originals, and send no mode.
        Ok(Some(Self { body: body.to_owned(), names_hashes: mode.is_none_or(|mode| mode == "ccr") }))
    }

    fn compress(&self, service: &Scope, cancel: &Cancel) -> Result<MessagesAnswer, ApiError> {
        let pipeline = service.ready()?;
        let settings = &service.middleware.settings;
        let body = Located::parse(&self.body).map_err(|_| ApiError::internal())?;
        let conversation = Dialect::Chat.conversation(body);
        let policy = Policy { tools: vec!["*".to_owned()], ..settings.policy(false) };
        let options = CompressOptions {
            budget: settings.budget(),
            granularity: Granularity::default(),
            prompt_tokens_min: 0,
            query: None,
        };
        let found = find::turns(&conversation, &policy);
        if let Some(too_many) = found.too_many {
            return Err(ApiError::too_many(too_many).at("messages"));
        }
        let turns = found.turns;
        let by = Compressor {
            options: &options,
            other_text_bytes: find::other_text_bytes(&conversation, &turns),
            pipeline,
        };
        let mut rewritten = rewrite::all_turns(body, &turns, by, cancel)?;
        let originals = service.originals();
        if self.names_hashes {
            let mut kept = 0;
            rewritten.shortened.retain_mut(|string| {
                if !string.is_json {
                    string.text.push_str(&mark(&Hash::of(&string.original)));
                }
                // A text is shortened only if its original is stored.
                let is_kept = originals.has_room(kept, string.original.len());
                kept += if is_kept { string.original.len() + ENTRY_BYTES } else { 0 };
                is_kept && string.text.len() < string.original.len()
            });
        }
        let hashes = store(&originals, rewritten.shortened.iter().map(|string| &*string.original))?;
        let shortened: HashMap<usize, &str> =
            rewritten.shortened.iter().map(|string| (string.at.start, &*string.text)).collect();
        let count = |text: &str| {
            cancel.check()?;
            pipeline.count(text, TokenizerName::O200kBase)
        };
        let (mut before, mut after) = (0, 0);
        for part in conversation.messages.iter().flat_map(|message| &message.parts) {
            let tokens = count(&part.text)?;
            before += tokens;
            after += shortened.get(&part.at.range().start).map_or(Ok(tokens), |text| count(text))?;
        }
        observe::middleware(if hashes.is_empty() { "whole" } else { "compressed" }, Some((before, after)));
        let text = rewritten.edits().apply(&self.body);
        let messages = Located::parse(&text).ok().and_then(|body| body.get("messages"));
        let messages: Option<Box<RawValue>> = messages.and_then(Located::read);
        Ok(MessagesAnswer {
            messages: messages.ok_or_else(ApiError::internal)?,
            tokens_before: before,
            tokens_after: after,
            tokens_saved: before - after.min(before),
            compression_ratio: if before == 0 { 1.0 } else { after as f64 / before as f64 },
            transforms_applied: if hashes.is_empty() { vec![] } else { vec!["relative_contextualization"] },
            ccr_hashes: hashes.iter().map(Hash::to_string).collect(),
        })
    }
}

/// Compresses a conversation.
pub async fn compress(
    service: Scope,
    request: ConversationRequest,
    arrived: Instant,
) -> Result<Json<MessagesAnswer>, ApiError> {
    let deadline = service.executor().deadline(arrived, None)?;
    service.ready()?;
    let scope = service.clone();
    service.executor().run(deadline, move |cancel| Ok(Json(request.compress(&scope, cancel)?))).await
}

/// What is appended to a shortened text, by which a client retrieves the original.
fn mark(hash: &Hash) -> String {
    format!("\n[shortened: hash={hash}]")
}
