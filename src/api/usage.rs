//! Requests and answers of `/headroom/v1/usage`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::limits::{Body, BodyLimits, ListLimit};
use crate::error::{ApiError, ErrorCode};

/// The fields of a provider's usage in which caches are read, in the formats of Anthropic and OpenAI.
const CACHE_READ: &[&str] = &[
    "cache_read_input_tokens",
    "prompt_tokens_details.cached_tokens",
    "input_tokens_details.cached_tokens",
    "cached_tokens",
];

/// Answer of `GET /headroom/v1/usage`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
pub struct UsageAnswer {
    /// What was compressed for the tenant since the daemon started, or since it last dropped the tenant's state.
    #[serde(flatten)]
    pub tokens: TokensAnswer,
    /// What providers said, as far as `POST /headroom/v1/usage` reported it.
    pub provider: ProviderUsage,
    /// The session that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionUsageAnswer>,
}

/// What was compressed in a session.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "SessionUsage")]
pub struct SessionUsageAnswer {
    /// The id of the session.
    pub id: String,
    /// How many messages its last answer had.
    pub message_count: usize,
    /// What was compressed since the session began.
    #[serde(flatten)]
    pub tokens: TokensAnswer,
    /// What providers said, as far as `POST /headroom/v1/usage` reported it.
    pub provider: ProviderUsage,
}

/// Tokens (`o200k_base`) of conversations.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "ConversationTokens")]
pub struct TokensAnswer {
    /// Requests with a conversation.
    pub requests: u64,
    /// Tokens of their texts before compression.
    pub tokens_before: u64,
    /// The same, after.
    pub tokens_after: u64,
    /// `tokens_before` less `tokens_after`.
    pub tokens_saved: u64,
}

/// Tokens that providers counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProviderUsage {
    /// Tokens of prompts, cached or not.
    pub input_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Tokens of prompts that were read from a cache.
    pub cache_read_input_tokens: u64,
    /// Tokens of prompts that were written into a cache.
    pub cache_creation_input_tokens: u64,
}

/// Body of `POST /headroom/v1/usage`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageBody {
    /// The session of the request that the provider answered.
    session_id: String,
    /// The provider's usage: the field `usage` of an answer of OpenAI or Anthropic, or an object that has such a field.
    usage: Map<String, Value>,
}

/// Answer of `POST /headroom/v1/usage`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct UsageTaken {
    /// The session.
    pub session_id: String,
    /// How many messages of its last answer will come back unchanged.
    pub frozen_message_count: usize,
    /// Whether the usage was added.
    pub applied: bool,
}

impl Body for UsageBody {
    fn lists(_: &BodyLimits) -> Vec<ListLimit> {
        Vec::new()
    }
}

impl UsageBody {
    /// Returns the session and the provider's counts.
    ///
    /// # Errors
    /// `out_of_range`, if a count is not a whole number of at least 0; `field_empty`, if there is no count.
    pub fn into_domain(self) -> Result<(String, ProviderUsage), ApiError> {
        let (usage, path) = match self.usage.get("usage") {
            Some(Value::Object(inner)) => (inner, "usage.usage"),
            _ => (&self.usage, "usage"),
        };
        let count = |names: &[&str]| -> Result<Option<u64>, ApiError> {
            names.iter().find_map(|name| count_of(usage, name, path).transpose()).transpose()
        };
        let input = count(&["prompt_tokens", "input_tokens"])?;
        let output = count(&["output_tokens", "completion_tokens"])?;
        let (read, written) = (count(CACHE_READ)?, count(&["cache_creation_input_tokens"])?);
        if [input, output, read, written].iter().all(Option::is_none) {
            let message = format!("{path} has no count of tokens, such as input_tokens or prompt_tokens");
            return Err(ApiError::with_param(ErrorCode::FieldEmpty, message, path));
        }
        let (read, written) = (read.unwrap_or(0), written.unwrap_or(0));
        // Anthropic counts cached tokens apart, OpenAI among the others. Gateways write both fields into usage in OpenAI's format.
        let has = |name: &str| usage.get(name).is_some_and(|count| !count.is_null());
        let is_apart =
            !has("prompt_tokens") && (has("cache_read_input_tokens") || has("cache_creation_input_tokens"));
        let cached = if is_apart { read.saturating_add(written) } else { 0 };
        let counts = ProviderUsage {
            input_tokens: input.unwrap_or(0).saturating_add(cached),
            output_tokens: output.unwrap_or(0),
            cache_read_input_tokens: read,
            cache_creation_input_tokens: written,
        };
        Ok((self.session_id, counts))
    }
}

/// The count at `name`, a path of one or two fields; `None` if it is missing or null.
fn count_of(usage: &Map<String, Value>, name: &str, path: &str) -> Result<Option<u64>, ApiError> {
    let value = match name.split_once('.') {
        Some((outer, inner)) => usage.get(outer).and_then(|outer| outer.get(inner)),
        None => usage.get(name),
    };
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    value.as_u64().map(Some).ok_or_else(|| {
        let message = format!("{path}.{name} is not a whole number of at least 0");
        ApiError::with_param(ErrorCode::OutOfRange, message, format!("{path}.{name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_in_the_formats_of_providers() {
        let read = |usage: &str| {
            let body: UsageBody =
                serde_json::from_str(&format!(r#"{{"session_id": "s", "usage": {usage}}}"#)).expect("a body");
            let read = body.into_domain().map_err(|error| error.param.expect("a place"));
            read.map(|(_, counts)| {
                let ProviderUsage { input_tokens, output_tokens, .. } = counts;
                [
                    input_tokens,
                    output_tokens,
                    counts.cache_read_input_tokens,
                    counts.cache_creation_input_tokens,
                ]
            })
        };
        let check = |usage: &str, expect: [u64; 4]| assert_eq!(read(usage), Ok(expect), "{usage}");
        let anthropic = r#"{"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}"#;
        check(anthropic, [125, 7, 100, 20]);
        let chat = r#"{"prompt_tokens": 120, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 100}}"#;
        check(chat, [120, 7, 100, 0]);
        let responses =
            r#"{"input_tokens": 120, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 100}}"#;
        check(responses, [120, 7, 100, 0]);
        check(&format!(r#"{{"id": "answer", "usage": {chat}}}"#), [120, 7, 100, 0]);
        // LiteLLM adds Anthropic's counts to those in OpenAI's format.
        let litellm = r#"{"prompt_tokens": 125, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 100},
            "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}"#;
        check(litellm, [125, 7, 100, 20]);
        check(
            r#"{"input_tokens": 5, "prompt_tokens": null, "cache_read_input_tokens": 100}"#,
            [105, 0, 100, 0],
        );
        check(r#"{"cached_tokens": 0, "prompt_tokens": null}"#, [0, 0, 0, 0]);
        let fails = |usage: &str, param: &str| assert_eq!(read(usage), Err(param.to_owned()), "{usage}");
        fails("{}", "usage");
        fails(r#"{"usage": {}}"#, "usage.usage");
        fails(r#"{"input_tokens": -1}"#, "usage.input_tokens");
        fails(r#"{"input_tokens": true}"#, "usage.input_tokens");
        fails(
            r#"{"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1.5}}"#,
            "usage.prompt_tokens_details.cached_tokens",
        );
    }
}
