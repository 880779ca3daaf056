//! Conversations that are compressed, and texts of them as they were: bodies and answers of LiteLLM's compression guardrail.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::response::Range;

/// A conversation for `POST /v1/compress`: its fields are found where they stand, others are let pass. It says what that looks like.
#[derive(JsonSchema)]
#[schemars(rename = "MessagesBody")]
#[allow(dead_code, reason = "says what it looks like")]
pub struct MessagesBody {
    /// Messages as OpenAI's Chat Completions have them.
    #[schemars(length(min = 1))]
    messages: Vec<Map<String, Value>>,
    /// `{"mode": ...}`: other than `ccr`, texts that are shorter do not say under which hash the whole is kept.
    #[schemars(default)]
    config: Value,
}

/// Answer to a conversation.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Messages")]
pub struct MessagesAnswer {
    /// As many as were sent.
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub messages: Box<RawValue>,
    /// Tokens (`o200k_base`) of what can be compressed, as it came.
    pub tokens_before: usize,
    /// As it is now.
    pub tokens_after: usize,
    /// The difference.
    pub tokens_saved: usize,
    /// The second to the first; 1 where there is nothing.
    pub compression_ratio: f64,
    /// What was done, in words.
    pub transforms_applied: Vec<&'static str>,
    /// Under which hashes the whole texts are kept.
    pub ccr_hashes: Vec<String>,
}

/// Answer of `GET /v1/retrieve/{hash}`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Original")]
pub struct OriginalAnswer {
    /// The text's name.
    pub hash: String,
    /// The text as it was.
    pub original_content: String,
    /// Its sentences that are about the question, where one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relevant: Option<Vec<RelevantAnswer>>,
}

/// A sentence of a text, in code points.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "RelevantSentence")]
pub struct RelevantAnswer {
    #[serde(flatten)]
    pub(super) range: Range,
    text: String,
    score: Option<f32>,
}

impl RelevantAnswer {
    /// What stands from `start` to `end`.
    pub fn new((start, end): (usize, usize), text: String, score: Option<f32>) -> Self {
        Self { range: Range { start, end }, text, score }
    }
}
