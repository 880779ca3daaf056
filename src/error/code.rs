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
    /// The connection ended, or the framing of the body was invalid, before the whole body had arrived.
    BodyBroken = "body_broken",
    /// The body did not arrive in time.
    BodyTimeout = "body_timeout",
    /// The body has more bytes than its limit.
    BodyTooLarge = "body_too_large",
    /// No context fits the budget, or no share of keys and values.
    BudgetImpossible = "budget_impossible",
    /// The caller stopped waiting.
    Cancelled = "cancelled",
    /// The log of registered chunks that daemons share cannot be reached.
    ChangeLogUnavailable = "change_log_unavailable",
    /// The body names a chunk that is not registered, or an id that no chunk has.
    ChunkUnknown = "chunk_unknown",
    /// The body is compressed, or its media type is not one that the path takes.
    ContentTypeUnsupported = "content_type_unsupported",
    /// The deadline passed before the response was ready.
    DeadlineExceeded = "deadline_exceeded",
    /// The daemon is shutting down.
    Draining = "draining",
    /// A name that must be unique occurs twice.
    Duplicate = "duplicate",
    /// An object has the same field twice.
    DuplicateField = "duplicate_field",
    /// A text or list that must have something is empty.
    FieldEmpty = "field_empty",
    /// Fields exclude each other, or their lists have different lengths.
    FieldsConflict = "fields_conflict",
    /// Nothing is stored under the id in the request: it was never given out, or it has expired.
    IdUnknown = "id_unknown",
    /// The daemon failed.
    Internal = "internal",
    /// The body is not JSON.
    InvalidJson = "invalid_json",
    /// A value cannot be used: an id, a header, or metadata.
    InvalidValue = "invalid_value",
    /// The request has no key.
    KeyMissing = "key_missing",
    /// The request's key has been revoked.
    KeyRevoked = "key_revoked",
    /// The request's key is not in the file of keys.
    KeyUnknown = "key_unknown",
    /// The path is served under another method.
    MethodNotAllowed = "method_not_allowed",
    /// A required field is missing.
    MissingField = "missing_field",
    /// The model failed.
    ModelFailed = "model_failed",
    /// The keys and values are of a model with other weights.
    ModelMismatch = "model_mismatch",
    /// No upstream has the model.
    ModelUnknown = "model_unknown",
    /// There is no such path, or what it needs is switched off.
    NotFound = "not_found",
    /// The model, or the registry, is still being loaded.
    NotReady = "not_ready",
    /// The host that the request names, or the web page that it comes from, is not allowed.
    OriginNotAllowed = "origin_not_allowed",
    /// A number is outside its range, or a span lies outside its text, overlaps another one or begins inside a character.
    OutOfRange = "out_of_range",
    /// Too many requests wait, or too much memory is in use.
    Overloaded = "overloaded",
    /// The key has used up one of its rates.
    RateLimited = "rate_limited",
    /// The registry has no room for another chunk.
    RegistryFull = "registry_full",
    /// The registry or the store of original texts failed.
    StorageFailed = "storage_failed",
    /// The registry cannot be written, usually because the disk is full.
    StorageFull = "storage_full",
    /// A text, or several together, are longer than a limit, or nested too deeply.
    TooLong = "too_long",
    /// A list has more entries than its limit, or the request needs more work than a limit.
    TooMany = "too_many",
    /// This daemon, or this model, does not offer what the request asks for.
    Unavailable = "unavailable",
    /// An object has a field that is not known.
    UnknownField = "unknown_field",
    /// A field has a value that is not one of those allowed.
    UnknownValue = "unknown_value",
    /// The upstream cannot be reached, or broke the connection before it responded.
    UpstreamFailed = "upstream_failed",
    /// The request came back to the daemon that passed it on.
    UpstreamLoop = "upstream_loop",
    /// The upstream did not begin to respond in time.
    UpstreamSilent = "upstream_silent",
    /// A field, or a parameter of the URL, has a value of another type than it takes.
    WrongType = "wrong_type",
}

struct Row {
    status: StatusCode,
    retry_after_s: Option<u64>,
    is_callers_fault: bool,
}

impl Row {
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
    /// The HTTP status of a response with this code.
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
            | Self::InvalidJson
            | Self::MissingField
            | Self::UnknownField
            | Self::UnknownValue
            | Self::WrongType => Row::caller(StatusCode::BAD_REQUEST),
            Self::KeyMissing | Self::KeyUnknown => Row::caller(StatusCode::UNAUTHORIZED),
            Self::KeyRevoked | Self::OriginNotAllowed => Row::caller(StatusCode::FORBIDDEN),
            Self::IdUnknown | Self::ModelUnknown | Self::NotFound => Row::caller(StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => Row::caller(StatusCode::METHOD_NOT_ALLOWED),
            Self::BodyTimeout => Row::caller(StatusCode::REQUEST_TIMEOUT),
            Self::ModelMismatch => Row::caller(StatusCode::CONFLICT),
            Self::BodyTooLarge => Row::caller(StatusCode::PAYLOAD_TOO_LARGE),
            Self::ContentTypeUnsupported => Row::caller(StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::BudgetImpossible
            | Self::Cancelled
            | Self::ChunkUnknown
            | Self::Duplicate
            | Self::FieldEmpty
            | Self::FieldsConflict
            | Self::InvalidValue
            | Self::OutOfRange
            | Self::RegistryFull
            | Self::TooLong
            | Self::TooMany
            | Self::Unavailable => Row::caller(StatusCode::UNPROCESSABLE_ENTITY),
            Self::Overloaded => Row::daemon(StatusCode::TOO_MANY_REQUESTS).retry_after_s(1),
            Self::RateLimited => Row::daemon(StatusCode::TOO_MANY_REQUESTS),
            Self::Internal | Self::ModelFailed | Self::StorageFailed => {
                Row::daemon(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Self::UpstreamFailed => Row::daemon(StatusCode::BAD_GATEWAY),
            Self::ChangeLogUnavailable | Self::Draining | Self::NotReady => {
                Row::daemon(StatusCode::SERVICE_UNAVAILABLE).retry_after_s(5)
            }
            Self::DeadlineExceeded | Self::UpstreamSilent => Row::daemon(StatusCode::GATEWAY_TIMEOUT),
            Self::UpstreamLoop => Row::daemon(StatusCode::LOOP_DETECTED),
            Self::StorageFull => Row::daemon(StatusCode::INSUFFICIENT_STORAGE).retry_after_s(5),
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

    /// Clients rely on these statuses. Every code that is not listed has status 422.
    #[test]
    fn statuses_do_not_change() {
        let others: &[(u16, &[&str])] = &[
            (
                400,
                &[
                    "body_broken",
                    "duplicate_field",
                    "invalid_json",
                    "missing_field",
                    "unknown_field",
                    "unknown_value",
                    "wrong_type",
                ],
            ),
            (401, &["key_missing", "key_unknown"]),
            (403, &["key_revoked", "origin_not_allowed"]),
            (404, &["id_unknown", "model_unknown", "not_found"]),
            (405, &["method_not_allowed"]),
            (408, &["body_timeout"]),
            (409, &["model_mismatch"]),
            (413, &["body_too_large"]),
            (415, &["content_type_unsupported"]),
            (429, &["overloaded", "rate_limited"]),
            (500, &["internal", "model_failed", "storage_failed"]),
            (502, &["upstream_failed"]),
            (503, &["change_log_unavailable", "draining", "not_ready"]),
            (504, &["deadline_exceeded", "upstream_silent"]),
            (507, &["storage_full"]),
            (508, &["upstream_loop"]),
        ];
        for code in ErrorCode::ALL {
            let listed = others.iter().find(|(_, codes)| codes.contains(&code.as_str()));
            assert_eq!(code.status().as_u16(), listed.map_or(422, |(status, _)| *status), "{code}");
        }
    }
}
