//! Requests and answers about conversations with language models: those of LiteLLM's compression guardrail, and the field `thresher` of
//! requests that pass through the middleware.

use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thresher_core::domain::{Budget, Chunk, Granularity};
use thresher_core::pipeline::validate;
use thresher_core::plain::Quoted;
use thresher_core::text::offsets::OffsetUnit;

use super::budget::BudgetBody;
use super::limits::{Body, BodyLimits, ListLimit};
use super::request::{ChunkBody, chunks_of};
use super::response::Range;
use super::wire::{Object, TextOrInteger, choice, ids, or_default};
use crate::error::{ApiError, ErrorCode};

/// The schema of a conversation for `POST /v1/compress`. The body itself is not parsed into this type: its texts are replaced where they
/// stand, and other fields are ignored.
#[derive(JsonSchema)]
#[schemars(rename = "MessagesBody")]
#[allow(dead_code, reason = "only its schema is used")]
pub struct MessagesBody {
    /// Messages of OpenAI's Chat Completions.
    #[schemars(length(min = 1))]
    messages: Vec<Map<String, Value>>,
    /// Options.
    #[schemars(default)]
    config: Option<ConversationConfig>,
}

/// The schema of the options of a conversation. Other options of Headroom are ignored.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct ConversationConfig {
    /// With `ccr`, or without `config`, shortened texts name the hash under which the original is stored.
    #[schemars(default)]
    mode: Option<String>,
    /// The session of the conversation: messages that it returned before come back as they were, byte for byte.
    #[schemars(default, length(min = 1, max = 256))]
    session_id: Option<String>,
    /// How many messages at the beginning come back as they were sent; in a session, as they were returned.
    #[schemars(default)]
    frozen_message_count: Option<usize>,
    /// How many messages at the end come back as they were sent.
    #[schemars(default)]
    protect_recent: Option<usize>,
    /// Whether contexts in messages of the user may be shortened. Default: true.
    #[schemars(default)]
    compress_user_messages: Option<bool>,
    /// Whether contexts in messages of the system may be shortened. Default: true.
    #[schemars(default)]
    compress_system_messages: Option<bool>,
    /// The share of tokens to keep, greater than 0 and at most 1.
    #[schemars(default)]
    target_ratio: Option<f64>,
}

/// Answer of `POST /v1/compress` to a conversation.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Messages")]
pub struct MessagesAnswer {
    /// The messages, as many as were sent.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub messages: Box<RawValue>,
    /// Tokens (`o200k_base`) of the texts that can be compressed, before.
    pub tokens_before: usize,
    /// The same, after.
    pub tokens_after: usize,
    /// `tokens_before` less `tokens_after`.
    pub tokens_saved: usize,
    /// `tokens_after` divided by `tokens_before`; 1 if there are no such texts.
    pub compression_ratio: f64,
    /// The names of the methods that were used.
    pub transforms_applied: Vec<&'static str>,
    /// The hashes under which the original texts are stored.
    pub ccr_hashes: Vec<String>,
    /// The session that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionAnswer>,
}

/// What a session did for a conversation.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Session")]
pub struct SessionAnswer {
    /// The id of the session.
    pub id: String,
    /// How many messages came back as they were returned before, or as they were sent because the request froze them.
    pub frozen_message_count: usize,
    /// Whether the session returned messages of this conversation before.
    pub cached_prefix_replayed: bool,
}

/// What the tool `retrieve` of the Model Context Protocol is called with.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrieveBody {
    /// The hash of the text.
    pub hash: String,
    /// A question, to which the answer names the relevant sentences of the text; not blank.
    #[serde(default)]
    pub query: Option<String>,
}

impl Body for RetrieveBody {
    fn lists(_: &BodyLimits) -> Vec<ListLimit> {
        Vec::new()
    }
}

/// Answer of `GET /v1/retrieve/{hash}`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Original")]
pub struct OriginalAnswer {
    /// The hash of the text.
    pub hash: String,
    /// The original text.
    pub original_content: String,
    /// The sentences of the text that are about `query`, if the request has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relevant: Option<Vec<RelevantAnswer>>,
}

/// A sentence of an original text. Offsets are code points.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "RelevantSentence")]
pub struct RelevantAnswer {
    #[serde(flatten)]
    pub(super) range: Range,
    text: String,
    score: Option<f32>,
}

impl RelevantAnswer {
    /// The sentence from `start` to `end`.
    pub fn new(start: usize, end: usize, text: String, score: Option<f32>) -> Self {
        Self { range: Range { start, end }, text, score }
    }
}

impl OriginalAnswer {
    /// The answer as text for a model: the original, byte for byte, or the sentences of it that are about the question.
    pub fn to_plain_text(&self) -> String {
        match &self.relevant {
            None => self.original_content.clone(),
            Some(relevant) => relevant.iter().map(|sentence| &*sentence.text).collect::<Vec<_>>().join("\n"),
        }
    }
}

/// The field `thresher` of a request that passes through the middleware.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MiddlewareBody {
    /// Whether to compress; default: as the settings say.
    #[serde(default)]
    compress: Option<bool>,
    /// Whether to add citations; default: as the settings say.
    #[serde(default)]
    cite: Option<bool>,
    /// Whether to add the verdicts on its sentences to an answer that is not streamed, in the field `thresher`; default: false.
    #[serde(default)]
    verdicts: Option<bool>,
    /// Whether to send the request whole and only compute what would have been kept; default: as the settings say.
    #[serde(default)]
    shadow: Option<bool>,
    /// The question; default: the user's last message.
    #[serde(default)]
    query: Option<String>,
    /// Chunks to put before the user's message; at least one.
    #[serde(default)]
    #[schemars(length(min = 1))]
    chunks: Option<Vec<ChunkBody>>,
    /// Instead of `chunks`: the ids of registered chunks, each once; at least one.
    #[serde(default, deserialize_with = "ids")]
    #[schemars(with = "Option<Vec<TextOrInteger>>", length(min = 1))]
    chunk_ids: Option<Vec<String>>,
    /// How much may be kept; default: as the settings say.
    #[serde(default)]
    budget: Option<Object<BudgetBody>>,
    /// The unit that is kept or dropped as a whole.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Granularity>")]
    granularity: Granularity,
    /// Whether chunks that are not related to the question are left out. Default: false, which sends them unchanged.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    related_only: bool,
}

/// What the field `thresher` asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MiddlewareOptions {
    /// Whether to compress; none: as the settings say.
    pub compress: Option<bool>,
    /// Whether to add citations; none: as the settings say.
    pub cite: Option<bool>,
    pub verdicts: bool,
    /// Whether to send the request whole and only compute what would have been kept; none: as the settings say.
    pub shadow: Option<bool>,
    /// The question; none: the user's last message.
    pub query: Option<String>,
    /// Chunks to put before the user's message.
    pub chunks: Vec<Arc<Chunk>>,
    /// The ids of registered chunks to put there.
    pub chunk_ids: Option<Vec<String>>,
    /// How much may be kept; none: as the settings say.
    pub budget: Option<Budget>,
    pub granularity: Granularity,
    /// Whether chunks that are not related to the question are left out.
    pub related_only: bool,
}

impl Body for MiddlewareBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("chunks"), limits.chunk_ids()]
    }
}

impl MiddlewareOptions {
    /// Returns whether the options ask for compression, unless they say otherwise in `compress`.
    pub fn asks(&self) -> bool {
        !self.chunks.is_empty() || self.chunk_ids.is_some() || self.budget.is_some() || self.query.is_some()
    }
}

impl MiddlewareBody {
    /// Checks the options. A wrong budget is refused here: in the pipeline it would only be a reason not to compress.
    ///
    /// # Errors
    /// Fails if the budget has none or several of its forms, or is zero, if the query is blank, if the chunks are named in two ways, and if two
    /// chunks have the same id.
    pub fn into_domain(self) -> Result<MiddlewareOptions, ApiError> {
        let budget = self.budget.map(|Object(budget)| budget.into_domain()).transpose()?;
        if let Some(budget) = budget {
            validate::check_budget(budget, self.granularity)?;
        }
        if self.chunks.as_ref().is_some_and(Vec::is_empty) {
            let message = "chunks is empty: send at least one, or leave it out";
            return Err(ApiError::with_param(ErrorCode::FieldEmpty, message, "chunks"));
        }
        if self.query.as_ref().is_some_and(|query| query.trim().is_empty()) {
            let message = "query is blank; leave it out to ask the last question of the user";
            return Err(ApiError::with_param(ErrorCode::FieldEmpty, message, "query"));
        }
        if self.chunks.is_some() && self.chunk_ids.is_some() {
            let message = "send `chunks` or name registered ones in `chunk_ids`, not both";
            return Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "chunk_ids"));
        }
        let chunks = chunks_of(Some(self.chunks.unwrap_or_default()), false, None, OffsetUnit::default())?;
        let mut first_at = HashMap::new();
        for (at, chunk) in chunks.iter().enumerate() {
            if let Some(first) = first_at.insert(&chunk.id, at) {
                let message = format!("chunk id {} is used by chunks[{first}] already", Quoted(&chunk.id));
                return Err(ApiError::with_param(ErrorCode::Duplicate, message, format!("chunks[{at}].id")));
            }
        }
        Ok(MiddlewareOptions {
            compress: self.compress,
            cite: self.cite,
            verdicts: self.verdicts.unwrap_or(false),
            shadow: self.shadow,
            query: self.query,
            chunks,
            chunk_ids: self.chunk_ids,
            budget,
            granularity: self.granularity,
            related_only: self.related_only,
        })
    }
}
