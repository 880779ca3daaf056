//! Answers to errors: the status, the headers and a body in the shape that the client of each API reads.

mod messages;

use std::any::Any;

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{ApiError, ErrorAnswer, ErrorCode};
use crate::middleware::dialect::Dialect;

/// What logs and metrics record of a response that is not a success: the code of its error, or a word for one that is not the daemon's.
/// It is an extension of the response, and the only part of an error that may be recorded.
#[derive(Debug, Clone, Copy)]
pub struct ResponseCode(pub &'static str);

/// The error shape of `rerank` and `score`: Thresher's own, with the message also where the clients of Cohere, vLLM (`message`) and Jina
/// (`detail`) look for it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RerankError")]
pub struct RerankError {
    message: String,
    detail: String,
    error: ApiError,
}

/// The error shape of Text Embeddings Inference.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TeiError")]
pub struct TeiError {
    error: String,
    error_type: &'static str,
    code: ErrorCode,
    param: Option<String>,
}

/// The error shape of OpenAI's APIs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OpenaiError")]
pub struct OpenAiError {
    error: OpenAiErrorBody,
}

/// The fields of an error that OpenAI's clients read.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OpenaiErrorBody")]
struct OpenAiErrorBody {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: ErrorCode,
}

/// The error shape of Anthropic's API.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicError")]
pub struct AnthropicError {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicErrorBody,
}

/// The fields of an error that Anthropic's clients read.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorBody")]
struct AnthropicErrorBody {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
    code: ErrorCode,
    param: Option<String>,
}

/// The value of `WWW-Authenticate`, which tells a client that it has to send a key (RFC 6750).
fn challenge(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::KeyMissing => Some("Bearer"),
        ErrorCode::KeyUnknown => Some("Bearer error=\"invalid_token\""),
        _ => None,
    }
}

impl ApiError {
    /// The response with this error's status and headers, and a body of any shape.
    fn respond(&self, body: impl Serialize) -> Response {
        let mut response = (self.code.status(), Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s.or_else(|| self.code.retry_after_s()) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = challenge(self.code) {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response.extensions_mut().insert(ResponseCode(self.code.as_str()));
        response
    }

    /// The kind of this error, as Text Embeddings Inference calls it.
    fn tei_type(&self) -> &'static str {
        match self.code.status() {
            StatusCode::TOO_MANY_REQUESTS => "Overloaded",
            StatusCode::SERVICE_UNAVAILABLE => "Unhealthy",
            status if status.is_client_error() => "Validation",
            _ => "Backend",
        }
    }

    /// The response as Text Embeddings Inference writes it.
    pub(super) fn tei_response(self) -> Response {
        let Self { code, message, param, .. } = self.clone();
        self.respond(TeiError { error: message, error_type: self.tei_type(), code, param })
    }

    /// The response as `rerank` and `score` write it.
    pub(super) fn rerank_response(self) -> Response {
        let (message, detail) = (self.message.clone(), self.message.clone());
        self.respond(RerankError { message, detail, error: self.clone() })
    }

    pub(super) fn dialect_response(self, dialect: Dialect) -> Response {
        let status = self.code.status();
        let kind = match (dialect, status) {
            (Dialect::Messages, StatusCode::NOT_FOUND) => "not_found_error",
            (Dialect::Messages, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
            (Dialect::Messages, StatusCode::SERVICE_UNAVAILABLE) => "overloaded_error",
            (Dialect::Messages, _) if status.is_server_error() => "api_error",
            (_, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
            (_, StatusCode::UNAUTHORIZED) => "authentication_error",
            (_, StatusCode::FORBIDDEN) => "permission_error",
            _ if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let Self { code, message, param, .. } = self.clone();
        match dialect {
            Dialect::Messages => {
                let error = AnthropicErrorBody { kind, message, code, param };
                self.respond(AnthropicError { kind: "error", error })
            }
            Dialect::Chat | Dialect::Responses => {
                self.respond(OpenAiError { error: OpenAiErrorBody { message, kind, param, code } })
            }
        }
    }
}

/// As [`from_panic`], in the format of Text Embeddings Inference.
pub(super) fn from_tei_panic(_panic: Box<dyn Any + Send>) -> Response {
    ApiError::internal().tei_response()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond(ErrorAnswer { error: self.clone() })
    }
}

/// The response to a request whose handler panicked. The panic hook logs where, without the request; the client learns that the daemon is
/// at fault.
pub(super) fn from_panic(_panic: Box<dyn Any + Send>) -> Response {
    ApiError::internal().into_response()
}
