//! The table of error codes: each code's name, its HTTP status, when to try again, and whose fault it is.

use std::fmt;

use hyper::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;

/// Declares [`ErrorCode`] from one list of variants and the names that they have on the wire.
macro_rules! error_codes {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// What went wrong, for programs. Codes are stable: a code is never renamed, and never moves to another status.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
        pub enum ErrorCode {
            $($(#[$doc])+ #[serde(rename = $name)] $variant,)+
        }

        impl ErrorCode {
            /// Every code, in the order of the declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name on the wire, in snake case.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

error_codes! {
    /// The answer to attribute is empty.
    AnswerEmpty = "answer_empty",
    /// An event of the answer's stream says that its author failed.
    AnswerFailed = "answer_failed",
    /// The answer to attribute is longer than its limit, or a sentence of it is longer than the model's context.
    AnswerTooLong = "answer_too_long",
    /// The connection ended, or the framing of the body was invalid, before the whole body had arrived.
    BodyBroken = "body_broken",
    /// The body did not arrive in time.
    BodyTimeout = "body_timeout",
    /// The body has more bytes than its limit.
    BodyTooLarge = "body_too_large",
    /// `budget` has none or several of its forms.
    BudgetAmbiguous = "budget_ambiguous",
    /// No context fits the budget.
    BudgetImpossible = "budget_impossible",
    /// The budget is zero tokens.
    BudgetZero = "budget_zero",
    /// The caller stopped waiting.
    Cancelled = "cancelled",
    /// The log of registered chunks that daemons share does not answer.
    ChangeLogUnavailable = "change_log_unavailable",
    /// Two chunks have the same id.
    ChunkIdDuplicate = "chunk_id_duplicate",
    /// A chunk's id cannot be used.
    ChunkIdInvalid = "chunk_id_invalid",
    /// No chunk with the id in the path is registered.
    ChunkNotFound = "chunk_not_found",
    /// A chunk is longer than its limit.
    ChunkTooLong = "chunk_too_long",
    /// There are more chunks than the limit.
    ChunkTooMany = "chunk_too_many",
    /// The body names a chunk that is not registered.
    ChunkUnknown = "chunk_unknown",
    /// The request names its chunks in two ways.
    ChunksAmbiguous = "chunks_ambiguous",
    /// There are no chunks.
    ChunksEmpty = "chunks_empty",
    /// No recent compression has the id in `compress_id`.
    CompressIdUnknown = "compress_id_unknown",
    /// The body's media type is not one that the path takes.
    ContentTypeUnsupported = "content_type_unsupported",
    /// A number is outside its range.
    CountOutOfRange = "count_out_of_range",
    /// No calibration has a limit for the coverage that the budget promises.
    CoverageUnavailable = "coverage_unavailable",
    /// The deadline passed before the answer was ready.
    DeadlineExceeded = "deadline_exceeded",
    /// The deadline in the request is over the limit.
    DeadlineOutOfRange = "deadline_out_of_range",
    /// The request has both `documents` and `texts`.
    DocumentsAmbiguous = "documents_ambiguous",
    /// The daemon is shutting down.
    Draining = "draining",
    /// An object has the same field twice.
    DuplicateField = "duplicate_field",
    /// The body is compressed.
    EncodingUnsupported = "encoding_unsupported",
    /// The filter names a metadata field that no registered chunk has.
    FilterFieldUnknown = "filter_field_unknown",
    /// The filter is not one.
    FilterInvalid = "filter_invalid",
    /// The request needs recent compressions, and only a daemon has them.
    HandlesAbsent = "handles_absent",
    /// A header has a value that it cannot have.
    HeaderInvalid = "header_invalid",
    /// The host that the request names is not allowed.
    HostNotAllowed = "host_not_allowed",
    /// `include` has more entries than the limit.
    IncludeTooMany = "include_too_many",
    /// The texts are longer together than a limit.
    InputTooLong = "input_too_long",
    /// The daemon failed.
    Internal = "internal",
    /// The body is not JSON.
    InvalidJson = "invalid_json",
    /// The JSON is nested more deeply than the limit.
    JsonTooDeep = "json_too_deep",
    /// The JSON has more values than the limit.
    JsonValueTooMany = "json_value_too_many",
    /// `keep` has more entries than the limit, or than there are chunks.
    KeepTooMany = "keep_too_many",
    /// `keep` names an id that no chunk has.
    KeepUnknown = "keep_unknown",
    /// The request has no key.
    KeyMissing = "key_missing",
    /// The request's key has been revoked.
    KeyRevoked = "key_revoked",
    /// The request's key is not in the file of keys.
    KeyUnknown = "key_unknown",
    /// `kv` has options that exclude each other.
    KvAmbiguous = "kv_ambiguous",
    /// The share of keys to keep is less than what every head keeps.
    KvBudgetTooSmall = "kv_budget_too_small",
    /// The keys and values are larger than all memory for them.
    KvTooLarge = "kv_too_large",
    /// The kept chunks are longer than the model's context.
    KvTooLong = "kv_too_long",
    /// The model has no keys and values to export, or exporting is switched off.
    KvUnavailable = "kv_unavailable",
    /// No keys and values are stored under the handle in the path.
    KvUnknown = "kv_unknown",
    /// Two lists have different lengths.
    LengthMismatch = "length_mismatch",
    /// The request needs more attention logits than the limit.
    LogitTooMany = "logit_too_many",
    /// `messages` is empty.
    MessagesEmpty = "messages_empty",
    /// The metadata is not an object.
    MetadataNotObject = "metadata_not_object",
    /// The metadata is nested more deeply than the limit.
    MetadataTooDeep = "metadata_too_deep",
    /// The metadata has more bytes than the limit.
    MetadataTooLong = "metadata_too_long",
    /// The metadata cannot be searched.
    MetadataUnreadable = "metadata_unreadable",
    /// The path is served under another method.
    MethodNotAllowed = "method_not_allowed",
    /// The middleware has no upstream.
    MiddlewareOff = "middleware_off",
    /// A required field is missing.
    MissingField = "missing_field",
    /// The model failed.
    ModelFailed = "model_failed",
    /// The keys and values are of a model with other weights.
    ModelMismatch = "model_mismatch",
    /// No upstream has the model.
    ModelUnknown = "model_unknown",
    /// Names in the conversation are longer together than the limit.
    NameTooLong = "name_too_long",
    /// There is no such path.
    NotFound = "not_found",
    /// The model, or the registry, is still being loaded.
    NotReady = "not_ready",
    /// The store has no original text with the hash in the path.
    OriginalUnknown = "original_unknown",
    /// The store of original texts failed.
    OriginalsFailed = "originals_failed",
    /// The request comes from a web page of an origin that is not allowed.
    OriginNotAllowed = "origin_not_allowed",
    /// Too many requests wait, or too much memory is in use.
    Overloaded = "overloaded",
    /// The conversation has more messages, texts and tool calls than the limit.
    PartTooMany = "part_too_many",
    /// The conversation has more texts that can be compressed than the limit.
    PieceTooMany = "piece_too_many",
    /// The query is empty, or has no token that the model reads.
    QueryEmpty = "query_empty",
    /// The query string of the URL is not valid.
    QueryStringInvalid = "query_string_invalid",
    /// The query is longer than its limit, or than the model's context.
    QueryTooLong = "query_too_long",
    /// `rank_fields` names a field twice.
    RankFieldDuplicate = "rank_field_duplicate",
    /// `rank_fields` has more entries than the limit.
    RankFieldTooMany = "rank_field_too_many",
    /// `rank_fields` names no field.
    RankFieldsEmpty = "rank_fields_empty",
    /// The key has used up one of its rates.
    RateLimited = "rate_limited",
    /// A share is not greater than 0 and at most 1.
    RatioOutOfRange = "ratio_out_of_range",
    /// The receipt cannot be signed.
    ReceiptFailed = "receipt_failed",
    /// The request names registered chunks, and only a daemon has them.
    RegistryAbsent = "registry_absent",
    /// The registry has no room for another chunk.
    RegistryFull = "registry_full",
    /// The registry cannot be read.
    RegistryReadFailed = "registry_read_failed",
    /// The registry's writer has stopped.
    RegistryStopped = "registry_stopped",
    /// The tenant's registry cannot be used.
    RegistryUnusable = "registry_unusable",
    /// The registry cannot be written.
    RegistryWriteFailed = "registry_write_failed",
    /// The id of a session is empty or too long.
    SessionIdInvalid = "session_id_invalid",
    /// There is no session with this id, or it has expired.
    SessionUnknown = "session_unknown",
    /// The parts of the answer times `sources_max` are more than the limit.
    SourceTooMany = "source_too_many",
    /// A span, or the list of spans, is empty.
    SpanEmpty = "span_empty",
    /// A span begins or ends inside a character.
    SpanInsideCharacter = "span_inside_character",
    /// A span lies outside the answer.
    SpanOutOfRange = "span_out_of_range",
    /// A span ends before it begins.
    SpanReversed = "span_reversed",
    /// There are more spans, or values of a JSON answer, than the limit.
    SpanTooMany = "span_too_many",
    /// Spans overlap or do not ascend.
    SpansOverlap = "spans_overlap",
    /// The request has spans together with an option that excludes them.
    SpansUnexpected = "spans_unexpected",
    /// The body of a stream has no event.
    StreamEmpty = "stream_empty",
    /// An event of the body's stream cannot be read.
    StreamEventInvalid = "stream_event_invalid",
    /// The request has an option that a stream cannot have.
    StreamOptionInvalid = "stream_option_invalid",
    /// The text of a chunk is empty.
    TextEmpty = "text_empty",
    /// The conversation has more turns than the limit.
    TurnTooMany = "turn_too_many",
    /// An object has a field that is not known.
    UnknownField = "unknown_field",
    /// A field has a value that is not one of those allowed.
    UnknownValue = "unknown_value",
    /// The upstream cannot be reached, or broke the connection before it answered.
    UpstreamFailed = "upstream_failed",
    /// The request came back to the daemon that passed it on.
    UpstreamLoop = "upstream_loop",
    /// The upstream did not begin to answer in time.
    UpstreamSilent = "upstream_silent",
    /// The usage of a provider has no count of tokens.
    UsageEmpty = "usage_empty",
    /// A field has a value of another type than it takes.
    WrongType = "wrong_type",
}

/// The properties of a code.
struct Row {
    status: StatusCode,
    retry_after_s: Option<u64>,
    is_callers_fault: bool,
}

impl Row {
    /// The caller is at fault.
    const fn caller(status: StatusCode) -> Self {
        Self { status, retry_after_s: None, is_callers_fault: true }
    }

    /// The daemon, its upstream or its load is at fault.
    const fn daemon(status: StatusCode) -> Self {
        Self { status, retry_after_s: None, is_callers_fault: false }
    }

    const fn retry_after_s(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }
}

impl ErrorCode {
    /// The HTTP status of an answer with this code.
    pub const fn status(self) -> StatusCode {
        self.row().status
    }

    /// Seconds after which repeating the request is expected to help, if the error itself knows no better; none if repeating alone does not
    /// help.
    pub const fn retry_after_s(self) -> Option<u64> {
        self.row().retry_after_s
    }

    /// Whether the request has to change before it can succeed.
    pub const fn is_callers_fault(self) -> bool {
        self.row().is_callers_fault
    }

    const fn row(self) -> Row {
        match self {
            Self::BodyBroken
            | Self::DuplicateField
            | Self::FilterInvalid
            | Self::InvalidJson
            | Self::MissingField
            | Self::QueryStringInvalid
            | Self::StreamEmpty
            | Self::StreamEventInvalid
            | Self::UnknownField
            | Self::UnknownValue
            | Self::WrongType => Row::caller(StatusCode::BAD_REQUEST),
            Self::KeyMissing | Self::KeyUnknown => Row::caller(StatusCode::UNAUTHORIZED),
            Self::HostNotAllowed | Self::KeyRevoked | Self::OriginNotAllowed => {
                Row::caller(StatusCode::FORBIDDEN)
            }
            Self::ChunkNotFound
            | Self::CompressIdUnknown
            | Self::KvUnknown
            | Self::MiddlewareOff
            | Self::ModelUnknown
            | Self::NotFound
            | Self::OriginalUnknown
            | Self::SessionUnknown => Row::caller(StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => Row::caller(StatusCode::METHOD_NOT_ALLOWED),
            Self::BodyTimeout => Row::caller(StatusCode::REQUEST_TIMEOUT),
            Self::ModelMismatch => Row::caller(StatusCode::CONFLICT),
            Self::BodyTooLarge => Row::caller(StatusCode::PAYLOAD_TOO_LARGE),
            Self::ContentTypeUnsupported | Self::EncodingUnsupported => {
                Row::caller(StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            Self::AnswerEmpty
            | Self::AnswerFailed
            | Self::AnswerTooLong
            | Self::BudgetAmbiguous
            | Self::BudgetImpossible
            | Self::BudgetZero
            | Self::Cancelled
            | Self::ChunkIdDuplicate
            | Self::ChunkIdInvalid
            | Self::ChunkTooLong
            | Self::ChunkTooMany
            | Self::ChunkUnknown
            | Self::ChunksAmbiguous
            | Self::ChunksEmpty
            | Self::CountOutOfRange
            | Self::CoverageUnavailable
            | Self::DeadlineOutOfRange
            | Self::DocumentsAmbiguous
            | Self::FilterFieldUnknown
            | Self::HandlesAbsent
            | Self::HeaderInvalid
            | Self::IncludeTooMany
            | Self::InputTooLong
            | Self::JsonTooDeep
            | Self::JsonValueTooMany
            | Self::KeepTooMany
            | Self::KeepUnknown
            | Self::KvAmbiguous
            | Self::KvBudgetTooSmall
            | Self::KvTooLarge
            | Self::KvTooLong
            | Self::KvUnavailable
            | Self::LengthMismatch
            | Self::LogitTooMany
            | Self::MessagesEmpty
            | Self::MetadataNotObject
            | Self::MetadataTooDeep
            | Self::MetadataTooLong
            | Self::MetadataUnreadable
            | Self::NameTooLong
            | Self::PartTooMany
            | Self::PieceTooMany
            | Self::QueryEmpty
            | Self::QueryTooLong
            | Self::RankFieldDuplicate
            | Self::RankFieldTooMany
            | Self::RankFieldsEmpty
            | Self::RatioOutOfRange
            | Self::RegistryAbsent
            | Self::RegistryFull
            | Self::SessionIdInvalid
            | Self::SourceTooMany
            | Self::SpanEmpty
            | Self::SpanInsideCharacter
            | Self::SpanOutOfRange
            | Self::SpanReversed
            | Self::SpanTooMany
            | Self::SpansOverlap
            | Self::SpansUnexpected
            | Self::StreamOptionInvalid
            | Self::TextEmpty
            | Self::TurnTooMany
            | Self::UsageEmpty => Row::caller(StatusCode::UNPROCESSABLE_ENTITY),
            Self::Overloaded => Row::daemon(StatusCode::TOO_MANY_REQUESTS).retry_after_s(1),
            Self::RateLimited => Row::daemon(StatusCode::TOO_MANY_REQUESTS),
            Self::Internal
            | Self::ModelFailed
            | Self::OriginalsFailed
            | Self::ReceiptFailed
            | Self::RegistryReadFailed
            | Self::RegistryStopped
            | Self::RegistryUnusable => Row::daemon(StatusCode::INTERNAL_SERVER_ERROR),
            Self::UpstreamFailed => Row::daemon(StatusCode::BAD_GATEWAY),
            Self::ChangeLogUnavailable | Self::Draining | Self::NotReady => {
                Row::daemon(StatusCode::SERVICE_UNAVAILABLE).retry_after_s(5)
            }
            Self::DeadlineExceeded | Self::UpstreamSilent => Row::daemon(StatusCode::GATEWAY_TIMEOUT),
            Self::UpstreamLoop => Row::daemon(StatusCode::LOOP_DETECTED),
            Self::RegistryWriteFailed => Row::daemon(StatusCode::INSUFFICIENT_STORAGE).retry_after_s(5),
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_serialized_as_it_is_named() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).expect("a code is JSON"), code.as_str());
        }
    }

    #[test]
    fn status_fault_and_retry_agree() {
        for code in ErrorCode::ALL {
            let status = code.status();
            let is_load = status == StatusCode::TOO_MANY_REQUESTS;
            assert_eq!(code.is_callers_fault(), status.is_client_error() && !is_load, "{code} {status}");
            assert!(code.retry_after_s().is_none() || !code.is_callers_fault(), "{code}");
        }
    }

    /// Clients rely on these statuses. Every code that is not listed is answered 422.
    #[test]
    fn statuses_do_not_change() {
        let others: &[(u16, &[&str])] = &[
            (
                400,
                &[
                    "body_broken",
                    "duplicate_field",
                    "filter_invalid",
                    "invalid_json",
                    "missing_field",
                    "query_string_invalid",
                    "stream_empty",
                    "stream_event_invalid",
                    "unknown_field",
                    "unknown_value",
                    "wrong_type",
                ],
            ),
            (401, &["key_missing", "key_unknown"]),
            (403, &["host_not_allowed", "key_revoked", "origin_not_allowed"]),
            (
                404,
                &[
                    "chunk_not_found",
                    "compress_id_unknown",
                    "kv_unknown",
                    "middleware_off",
                    "model_unknown",
                    "not_found",
                    "original_unknown",
                    "session_unknown",
                ],
            ),
            (405, &["method_not_allowed"]),
            (408, &["body_timeout"]),
            (409, &["model_mismatch"]),
            (413, &["body_too_large"]),
            (415, &["content_type_unsupported", "encoding_unsupported"]),
            (429, &["overloaded", "rate_limited"]),
            (
                500,
                &[
                    "internal",
                    "model_failed",
                    "originals_failed",
                    "receipt_failed",
                    "registry_read_failed",
                    "registry_stopped",
                    "registry_unusable",
                ],
            ),
            (502, &["upstream_failed"]),
            (503, &["change_log_unavailable", "draining", "not_ready"]),
            (504, &["deadline_exceeded", "upstream_silent"]),
            (507, &["registry_write_failed"]),
            (508, &["upstream_loop"]),
        ];
        for code in ErrorCode::ALL {
            let listed = others.iter().find(|(_, codes)| codes.contains(&code.as_str()));
            assert_eq!(code.status().as_u16(), listed.map_or(422, |(status, _)| *status), "{code}");
        }
    }
}
