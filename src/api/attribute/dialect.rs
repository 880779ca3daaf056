//! In whose words an attribution is repeated.

use schemars::JsonSchema;
use serde::Deserialize;

/// The shapes that answers with citations have elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AttributeFormat")]
pub enum Dialect {
    /// In ours alone.
    #[default]
    Native,
    /// Anthropic's text blocks, citing documents by characters.
    AnthropicDocument,
    /// Anthropic's text blocks, citing search results by blocks.
    AnthropicSearchResult,
    /// An output item of OpenAI's Responses, with flat annotations.
    OpenaiResponses,
    /// A message of OpenAI's Chat Completions, with nested annotations.
    OpenaiChat,
    /// The text with `[1]` behind each part.
    Markers,
    /// An answer that is JSON: from the place of each value to its citations.
    Json,
}
