//! An error in the words of others.

use schemars::JsonSchema;
use serde::Serialize;

use crate::api::ErrorBody;

/// In our words, and the message where the clients of Cohere, vLLM (`message`) and Jina (`detail`) look for it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RerankError")]
pub struct WithMessage {
    pub message: String,
    pub detail: String,
    pub error: ErrorBody,
}

/// In the words of Text Embeddings Inference.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TeiError")]
pub struct Tei {
    pub error: String,
    pub error_type: &'static str,
}

/// In OpenAI's words.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OpenaiError")]
pub struct OpenAi {
    pub error: OpenAiError,
}

/// What OpenAI's clients read.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OpenaiErrorBody")]
pub struct OpenAiError {
    pub message: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub param: Option<String>,
    pub code: &'static str,
}

/// In Anthropic's words.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicError")]
pub struct Anthropic {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub error: AnthropicError,
}

/// What Anthropic's clients read.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorBody")]
pub struct AnthropicError {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub message: String,
    pub code: &'static str,
    pub param: Option<String>,
}
