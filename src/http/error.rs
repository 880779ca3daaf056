//! The one table from errors to statuses.

pub(super) mod shapes;

use std::any::Any;
use std::time::Duration;

use axum::Json;
use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use thresher_core::model::ModelError;
use thresher_core::pipeline::PipelineError;
use thresher_core::plain::{Quoted, Shortened};
use thresher_registry::RegistryError;

use crate::access::Denied;
use crate::admission::{Refusal, retry};
use crate::api::{ErrorAnswer, ErrorBody, RequestError};
use crate::middleware::dialect::Dialect;
use crate::middleware::find::TooMany;

/// Unknown ids that a message quotes.
const IDS_QUOTED_MAX: usize = 10;

/// An error as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpError {
    body: ErrorBody,
    /// Seconds after which asking again helps, where this is known better than by the code.
    retry_after_s: Option<u64>,
}

/// An answer's error code, for the log and the metrics: the only part of an error that may be recorded.
#[derive(Debug, Clone, Copy)]
pub struct ErrorCode(pub &'static str);

/// Code → status. A code that is not here is the caller's mistake in what it asked: 422.
fn status(code: &str) -> StatusCode {
    match code {
        "invalid_json"
        | "unknown_field"
        | "missing_field"
        | "duplicate_field"
        | "wrong_type"
        | "unknown_value"
        | "body_broken"
        | "filter_invalid"
        | "stream_empty"
        | "stream_event_invalid"
        | "query_string_invalid" => StatusCode::BAD_REQUEST,
        "key_missing" | "key_unknown" => StatusCode::UNAUTHORIZED,
        "key_revoked" | "host_not_allowed" | "origin_not_allowed" => StatusCode::FORBIDDEN,
        "not_found"
        | "chunk_not_found"
        | "compress_id_unknown"
        | "model_unknown"
        | "original_unknown"
        | "kv_unknown"
        | "middleware_off" => StatusCode::NOT_FOUND,
        "model_mismatch" => StatusCode::CONFLICT,
        "method_not_allowed" => StatusCode::METHOD_NOT_ALLOWED,
        "body_timeout" => StatusCode::REQUEST_TIMEOUT,
        "encoding_unsupported" | "content_type_unsupported" => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "body_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "overloaded" | "rate_limited" => StatusCode::TOO_MANY_REQUESTS,
        "internal"
        | "originals_failed"
        | "receipt_failed"
        | "model_failed"
        | "registry_read_failed"
        | "registry_stopped"
        | "registry_unusable" => StatusCode::INTERNAL_SERVER_ERROR,
        "registry_write_failed" => StatusCode::INSUFFICIENT_STORAGE,
        "not_ready" | "draining" | "change_log_unavailable" => StatusCode::SERVICE_UNAVAILABLE,
        "upstream_failed" => StatusCode::BAD_GATEWAY,
        "deadline_exceeded" | "upstream_silent" => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// Seconds after which a client may try again, for codes where trying again can help, where nothing better is known.
fn retry_after_s(code: &str) -> Option<u64> {
    match code {
        "overloaded" => Some(1),
        "not_ready" | "draining" | "change_log_unavailable" | "registry_write_failed" => Some(5),
        _ => None,
    }
}

/// Whether an error with this code is one of load, which passes.
fn code_of_load(code: &str) -> bool {
    matches!(code, "overloaded" | "deadline_exceeded")
}

/// How a client is told that it has to say who it is.
fn challenge(code: &str) -> Option<&'static str> {
    match code {
        "key_missing" => Some("Bearer"),
        "key_unknown" => Some("Bearer error=\"invalid_token\""),
        _ => None,
    }
}

impl HttpError {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        ErrorBody { code, message: message.into(), param: None }.into()
    }

    pub(super) fn at(mut self, param: &str) -> Self {
        self.body.param = Some(param.to_owned());
        self
    }

    pub(super) fn not_found() -> Self {
        let message = format!("no such path; served here are {}", super::paths().join(", "));
        Self::new("not_found", message)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new("method_not_allowed", "this path is served under another method; see the Allow header")
    }

    pub(super) fn not_ready() -> Self {
        Self::new(
            "not_ready",
            "the model is still loading; /readyz on the admin listener says when it is done",
        )
    }

    pub(super) fn body_too_large(bytes_max: usize, setting: &str) -> Self {
        Self::new("body_too_large", format!("the body is over the limit of {bytes_max} bytes ({setting})"))
    }

    pub(super) fn encoding_unsupported() -> Self {
        Self::new(
            "encoding_unsupported",
            "the body is compressed; send it as it is, without Content-Encoding",
        )
    }

    pub(super) fn content_type_unsupported() -> Self {
        Self::new(
            "content_type_unsupported",
            "the body has to be JSON: send it with the header Content-Type: application/json",
        )
    }

    /// `rule` says which hosts are accepted, and what the caller can do.
    pub(super) fn host_not_allowed(host: &str, rule: &str) -> Self {
        Self::new("host_not_allowed", format!("the request names the host {}, and {rule}", Quoted(host)))
    }

    /// For a request without exactly one `Host` header; `found` says what it has.
    pub(super) fn host_unclear(found: &str) -> Self {
        let message = format!("the request has {found}; send exactly one, with the daemon's host name");
        Self::new("host_not_allowed", message)
    }

    pub(super) fn origin_not_allowed(origin: &str) -> Self {
        let message = format!(
            "the request comes from a web page of {}, which may not ask this daemon; add its origin to http.origins_allowed",
            Quoted(origin)
        );
        Self::new("origin_not_allowed", message)
    }

    pub(super) fn no_room_for_body() -> Self {
        Self::new(
            "overloaded",
            "the bodies of other requests take all the memory that bodies may take (http.bodies_bytes_max)",
        )
    }

    pub(super) fn no_room_for_answer() -> Self {
        Self::new(
            "overloaded",
            "clients have not read other answers yet, which take all the memory that answers may take (http.answers_bytes_max)",
        )
    }

    pub(super) fn body_timeout() -> Self {
        Self::new(
            "body_timeout",
            "the body arrived too slowly: it had not begun, or went on at less than 256 KiB a second (http.read_ms_max)",
        )
    }

    pub(super) fn body_broken() -> Self {
        Self::new("body_broken", "the connection broke while the body was being read")
    }

    pub(super) fn deadline_out_of_range(max: Duration) -> Self {
        let message =
            format!("deadline_ms is over the limit of {} (admission.deadline_ms_max)", max.as_millis());
        Self::new("deadline_out_of_range", message).at("deadline_ms")
    }

    pub(super) fn registry_not_ready() -> Self {
        Self::new(
            "not_ready",
            "the registry is still being opened; /readyz on the admin listener says when all is ready",
        )
    }

    pub(super) fn registry_unusable() -> Self {
        Self::new(
            "registry_unusable",
            "this tenant's registry cannot be used; the daemon's log says why, and what to do",
        )
    }

    pub(super) fn chunk_not_found(id: &str) -> Self {
        Self::new("chunk_not_found", format!("no chunk {} is registered", Quoted(id)))
    }

    pub(super) fn path_is_no_text() -> Self {
        Self::new("chunk_id_invalid", "the id in the path is not UTF-8, percent-encoded")
    }

    pub(super) fn page_out_of_range(max: usize) -> Self {
        Self::new("count_out_of_range", format!("limit is not a number from 1 to {max}")).at("limit")
    }

    pub(super) fn ids_empty() -> Self {
        Self::new("chunks_empty", "chunk_ids is empty: name at least one").at("chunk_ids")
    }

    pub(super) fn ids_too_many(found: usize, max: usize) -> Self {
        let message = format!("{found} chunks, the limit is {max} (limits.registered_chunk_count_max)");
        Self::new("chunk_too_many", message).at("chunk_ids")
    }

    pub(super) fn named_too_long(max: usize) -> Self {
        let message = format!("the chunks have more than {max} bytes of text (limits.registered_bytes_max)");
        Self::new("input_too_long", message).at("chunk_ids")
    }

    pub(super) fn id_twice(id: &str, first: usize, second: usize) -> Self {
        let id = Quoted(id);
        let message = format!("chunk id {id} is named by chunk_ids[{first}] and chunk_ids[{second}]");
        Self::new("chunk_id_duplicate", message).at(&format!("chunk_ids[{second}]"))
    }

    /// `missing` are places in `ids`, at least one.
    pub(super) fn ids_unknown(ids: &[String], missing: &[usize]) -> Self {
        let first: Vec<String> =
            missing.iter().take(IDS_QUOTED_MAX).map(|&place| Quoted(&ids[place]).to_string()).collect();
        let more = missing.len().saturating_sub(IDS_QUOTED_MAX);
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!("chunk_ids names chunks that are not registered: {}{and}", first.join(", "));
        Self::new("chunk_unknown", message).at(&format!("chunk_ids[{}]", missing[0]))
    }

    pub(super) fn kv_unknown() -> Self {
        let message = "no keys and values are held under this handle: they have expired (kv_export.expire_s), others took their room \
                       (kv_export.bytes_max), or they are another tenant's; compress again";
        Self::new("kv_unknown", message).at("handle")
    }

    pub(super) fn kv_off() -> Self {
        let message = "no keys and values are held here: kv_export.bytes_max or kv_export.expire_s is 0";
        Self::new("kv_unavailable", message).at("include")
    }

    pub(super) fn kv_too_large(bytes: usize) -> Self {
        let message = format!(
            "the blocks of the kept chunks take {bytes} bytes, more than all that is held (kv_export.bytes_max): name a smaller budget, or hold \
             more"
        );
        Self::new("kv_too_large", message).at("include")
    }

    pub(super) fn model_mismatch(ours: &str, theirs: &str) -> Self {
        let message = format!(
            "these keys and values are of the model with fingerprint {ours}, and are asked for by one with {theirs}: only the same \
             weights can take them over",
            theirs = Shortened(theirs),
        );
        Self::new("model_mismatch", message).at("fingerprint")
    }

    pub(super) fn receipt_failed() -> Self {
        Self::new(
            "receipt_failed",
            "the receipt cannot be signed (receipts.key_file); the daemon's log says why",
        )
    }

    pub(super) fn stream_empty() -> Self {
        Self::new(
            "stream_empty",
            "the body holds no event: each is a line that begins with \"data:\" and a blank one; the first is the request, without its answer",
        )
    }

    pub(super) fn answer_failed() -> Self {
        Self::new(
            "answer_failed",
            "an event says that the answer's author failed; sentences that were sure by then have been told",
        )
    }

    pub(super) fn stream_too_slow(max: Duration) -> Self {
        let message =
            format!("the answer had not arrived after {} s (admission.stream_ms_max)", max.as_secs());
        Self::new("deadline_exceeded", message)
    }

    pub(super) fn stream_silent(max: Duration) -> Self {
        let message =
            format!("nothing of the answer came for {} s (admission.deadline_ms_max)", max.as_secs());
        Self::new("body_timeout", message)
    }

    pub(super) fn stream_invalid(cause: &str) -> Self {
        Self::new("stream_event_invalid", format!("the body is no stream of events: {cause}"))
    }

    pub(super) fn compress_id_unknown(expire_s: u64) -> Self {
        let message = format!(
            "no request with this id is remembered: it was never answered here, or more than {expire_s} s ago \
             (handles.expire_s), or others took its room (handles.bytes_max); send its chunks instead"
        );
        Self::new("compress_id_unknown", message).at("compress_id")
    }

    /// The pipeline calls chunks by their place in `chunks`; this request has them elsewhere.
    pub(super) fn of_chunks_in(mut self, field: &str) -> Self {
        if let Some(rest) = self.body.param.as_deref().and_then(|param| param.strip_prefix("chunks")) {
            let place = rest.split('.').next().unwrap_or_default();
            self.body.param = Some(format!("{field}{place}"));
        }
        self
    }

    pub(super) fn middleware_off() -> Self {
        Self::new("middleware_off", "no server to ask is named (middleware.upstreams)")
    }

    pub(super) fn model_unknown(model: &str) -> Self {
        let model = Quoted(model);
        let message = format!("no upstream has the model {model} (middleware.upstreams)");
        Self::new("model_unknown", message).at("model")
    }

    pub(super) fn too_many_on_their_way(retry_after_s: u64) -> Self {
        let message = "too many requests are on their way to upstream servers; a tenant may have its share of \
                       middleware.request_count_max";
        Self { retry_after_s: Some(retry_after_s), ..Self::new("overloaded", message) }
    }

    /// Asks the client to wait at least so long before it tries again, within the bounds of all such estimates.
    pub(super) fn retry_not_before(mut self, wait: Duration) -> Self {
        let least = retry::whole(wait);
        if self.retry_after_s.is_some() || code_of_load(self.body.code) {
            self.retry_after_s = self.retry_after_s.max(Some(least));
        }
        self
    }

    pub(super) fn upstream_failed(connecting: bool) -> Self {
        let message = match connecting {
            true => "the server that has this model cannot be reached",
            false => "the server that has this model broke the connection before it answered",
        };
        Self::new("upstream_failed", message)
    }

    pub(super) fn upstream_silent(max: Duration) -> Self {
        let message = format!(
            "the server that has this model had not begun to answer after {} s (middleware.silence_ms_max)",
            max.as_secs()
        );
        Self::new("upstream_silent", message)
    }

    /// A conversation that is not looked into. The caller says where it stands.
    pub(super) fn too_many(too_many: TooMany) -> Self {
        Self::new(too_many.code(), too_many.to_string())
    }

    pub(super) fn brought_too_many(max: usize) -> Self {
        let message = format!("thresher.chunks has more than {max} chunks (middleware.piece_count_max)");
        Self::new("chunk_too_many", message).at("thresher.chunks")
    }

    pub(super) fn header_is_no_choice(name: &'static str) -> Self {
        Self::new("header_invalid", format!("the header {name} is neither true nor false")).at(name)
    }

    pub(super) fn invalid_json(cause: &serde_json::Error) -> Self {
        Self::new("invalid_json", cause.to_string())
    }

    pub(super) fn body_is_no_text() -> Self {
        Self::new("invalid_json", "the body is not UTF-8")
    }

    pub(super) fn model_missing() -> Self {
        Self::new("missing_field", "missing field `model`: it says which server is asked").at("model")
    }

    pub(super) fn question_missing() -> Self {
        let message = "chunks are put in front of what the user says, and the user says nothing";
        Self::new("query_empty", message).at("thresher.chunks")
    }

    pub(super) fn messages_invalid() -> Self {
        Self::new("wrong_type", "invalid type: messages is a list").at("messages")
    }

    pub(super) fn messages_ambiguous() -> Self {
        let message = "send a question with chunks, or a conversation in `messages`, not both";
        Self::new("chunks_ambiguous", message).at("messages")
    }

    pub(super) fn messages_empty() -> Self {
        Self::new("messages_empty", "messages is empty: send at least one").at("messages")
    }

    pub(super) fn message_invalid(at: usize) -> Self {
        Self::new("wrong_type", "invalid type: a message is an object").at(&format!("messages[{at}]"))
    }

    pub(super) fn original_unknown() -> Self {
        let message = "no text with this hash is kept: it was never shortened here, or others took its room (originals.bytes_max)";
        Self::new("original_unknown", message)
    }

    pub(super) fn originals_failed() -> Self {
        Self::new(
            "originals_failed",
            "the store of originals failed (originals.dir); the daemon's log says why",
        )
    }

    /// What is wrong with a field, in the words of the field that holds it.
    pub(super) fn inside(mut self, field: &str) -> Self {
        let param = self.body.param.take();
        self.body.param = Some(param.map_or_else(|| field.to_owned(), |param| format!("{field}.{param}")));
        self
    }

    pub(super) fn internal() -> Self {
        Self::new("internal", "an internal error; the daemon's log says where")
    }

    /// As it is sent where a status is no longer possible.
    pub(super) fn into_body(self) -> ErrorAnswer {
        ErrorAnswer { error: self.body }
    }

    pub(super) fn code(&self) -> &'static str {
        self.body.code
    }

    pub(super) fn message(&self) -> &str {
        &self.body.message
    }

    /// Whether the daemon and not the caller is at fault.
    pub(super) fn is_ours(&self) -> bool {
        let status = status(self.body.code);
        status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
    }
}

impl HttpError {
    /// The answer that says it in a body of any shape.
    pub(super) fn respond(&self, body: impl Serialize) -> Response {
        let code = self.body.code;
        let mut response = (status(code), Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s.or_else(|| retry_after_s(code)) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = challenge(code) {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response.extensions_mut().insert(ErrorCode(code));
        response
    }

    /// In the words of Text Embeddings Inference.
    pub(super) fn in_words_of_tei(&self) -> Response {
        let kind = match status(self.body.code) {
            StatusCode::TOO_MANY_REQUESTS => "Overloaded",
            StatusCode::SERVICE_UNAVAILABLE => "Unhealthy",
            StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => {
                "Validation"
            }
            _ => "Backend",
        };
        self.respond(shapes::Tei { error: self.body.message.clone(), error_type: kind })
    }

    /// In the words of the API that was asked.
    pub(super) fn in_words_of(&self, dialect: Dialect) -> Response {
        let status = status(self.body.code);
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
        let ErrorBody { code, message, param } = self.body.clone();
        match dialect {
            Dialect::Messages => self.respond(shapes::Anthropic {
                kind: "error",
                error: shapes::AnthropicError { kind, message, code, param },
            }),
            Dialect::Chat | Dialect::Responses => {
                self.respond(shapes::OpenAi { error: shapes::OpenAiError { message, kind, param, code } })
            }
        }
    }

    /// In our words, and the message where the clients of Cohere, vLLM (`message`) and Jina (`detail`) look for it.
    pub(super) fn with_message(&self) -> Response {
        let message = self.body.message.clone();
        self.respond(shapes::WithMessage { detail: message.clone(), message, error: self.body.clone() })
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        self.respond(ErrorAnswer { error: self.body.clone() })
    }
}

impl From<ErrorBody> for HttpError {
    fn from(body: ErrorBody) -> Self {
        Self { body, retry_after_s: None }
    }
}

impl From<Denied> for HttpError {
    fn from(denied: Denied) -> Self {
        let retry_after_s = denied.retry_after_s();
        Self { retry_after_s, ..Self::new(denied.code(), denied.to_string()) }
    }
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> Self {
        ErrorBody { code: error.code, message: error.message, param: error.param }.into()
    }
}

impl From<PipelineError> for HttpError {
    fn from(error: PipelineError) -> Self {
        let param = match &error {
            PipelineError::Invalid(invalid) => Some(invalid.param()),
            _ => None,
        };
        match &error {
            // What a tokenizer says of a text may quote it.
            PipelineError::Model(ModelError::Tokenize(_)) => tracing::error!("the tokenizer refused a text"),
            PipelineError::Model(model) => tracing::error!(error = %model, "the model failed"),
            _ => {}
        }
        let retry_after_s = match &error {
            PipelineError::Overloaded(overload) => Some(retry::whole(overload.retry_after)),
            _ => None,
        };
        let body = ErrorBody { code: error.code(), message: error.to_string(), param };
        Self { body, retry_after_s }
    }
}

impl From<RegistryError> for HttpError {
    fn from(error: RegistryError) -> Self {
        let param = match &error {
            RegistryError::Filter(filter) => Some(filter.param.clone()),
            RegistryError::FoundTooLong { .. } => Some("candidates".to_owned()),
            RegistryError::Read(cause) => {
                tracing::error!(%cause, "the registry could not be read");
                None
            }
            _ => None,
        };
        ErrorBody { code: error.code(), message: error.to_string(), param }.into()
    }
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> Self {
        let overloaded = |message: &str, retry_after_s| Self {
            retry_after_s: Some(retry_after_s),
            ..Self::new("overloaded", message)
        };
        match refusal {
            Refusal::Overloaded { retry_after_s } => overloaded(
                "too many requests are waiting; a tenant may have its share of admission.queue_max",
                retry_after_s,
            ),
            Refusal::StreamsTooMany { retry_after_s } => overloaded(
                "too many answers are arriving; a tenant may have its share of admission.stream_count_max",
                retry_after_s,
            ),
            Refusal::Late { retry_after_s } => {
                Self { retry_after_s: Some(retry_after_s), ..PipelineError::DeadlineExceeded.into() }
            }
            Refusal::Draining => Self::new("draining", "the daemon is shutting down"),
        }
    }
}

/// A panic is logged by the hook, without the request; the client learns that it was our fault.
pub(super) fn from_panic(_panic: Box<dyn Any + Send>) -> Response {
    HttpError::internal().into_response()
}
