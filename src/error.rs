//! Errors as clients see them: a stable code for programs, a message for people, and the path of the mistake in the request. HTTP, MCP and the
//! command line share them. This module converts the errors of the libraries, of `access` and of `admission`; it knows no transport but HTTP's statuses.

mod code;

use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;
use thresher_core::model::ModelError;
use thresher_core::pipeline::PipelineError;
use thresher_core::pipeline::validate::InvalidRequest;
use thresher_core::text::offsets::OffsetError;
use thresher_registry::RegistryError;

pub use self::code::ErrorCode;
use crate::access::Denied;
use crate::admission::{Refusal, retry};

/// An error: a code for programs, a message for people, and the path of the mistake.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, JsonSchema)]
#[schemars(rename = "ErrorBody")]
#[error("{message}")]
pub struct ApiError {
    /// The stable code, for programs.
    pub code: ErrorCode,
    /// The message, for people.
    pub message: String,
    /// The path of the mistake in the request, such as `chunks[3].text`; null if the error is not about one value.
    pub param: Option<String>,
    /// Seconds after which repeating the request is expected to help, if more is known than [`ErrorCode::retry_after_s`].
    #[serde(skip)]
    pub retry_after_s: Option<u64>,
}

/// `{"error": {...}}`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorAnswer {
    /// The error.
    pub error: ApiError,
}

impl ApiError {
    /// An error about the request as a whole.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), param: None, retry_after_s: None }
    }

    /// An error about the value at `param`, a path into the request.
    pub fn with_param(code: ErrorCode, message: impl Into<String>, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(code, message) }
    }

    /// A failure of the daemon that has been logged, of which the client need not know more.
    pub fn internal() -> Self {
        Self::new(ErrorCode::Internal, "an internal error; the log says where")
    }

    /// The deadline passed, and repeating the request is expected to help after `retry_after_s` seconds.
    pub fn deadline_exceeded(retry_after_s: u64) -> Self {
        let message = format!(
            "the deadline passed before the answer was ready. Repeat the request in {retry_after_s} s, with a longer deadline_ms where a \
             chunk or an answer is long: chunks that have been read are cached"
        );
        Self { retry_after_s: Some(retry_after_s), ..Self::new(ErrorCode::DeadlineExceeded, message) }
    }

    /// The same error, about the value at `param`.
    pub fn at(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// The same error for a request that has its chunks in `field` (the pipeline names them `chunks`).
    pub fn of_chunks_in(mut self, field: &str) -> Self {
        if let Some(rest) = self.param.as_deref().and_then(|param| param.strip_prefix("chunks")) {
            let index = rest.split('.').next().unwrap_or_default();
            self.param = Some(format!("{field}{index}"));
        }
        self
    }

    /// The same error, about a value inside `field`.
    pub fn inside(mut self, field: &str) -> Self {
        self.param = Some(match self.param {
            Some(param) => format!("{field}.{param}"),
            None => field.to_owned(),
        });
        self
    }
}

impl From<&InvalidRequest> for ErrorCode {
    fn from(invalid: &InvalidRequest) -> Self {
        match invalid {
            InvalidRequest::QueryEmpty
            | InvalidRequest::QueryUnreadable
            | InvalidRequest::KvTextEmpty { .. }
            | InvalidRequest::ChunksEmpty
            | InvalidRequest::AnswerEmpty
            | InvalidRequest::SpansEmpty
            | InvalidRequest::SpanEmpty { .. } => Self::FieldEmpty,
            InvalidRequest::QueryTooLong { .. }
            | InvalidRequest::QueryBeyondModel { .. }
            | InvalidRequest::KvTextTooLong { .. }
            | InvalidRequest::InputTooLong { .. }
            | InvalidRequest::BlocksTooLarge { .. }
            | InvalidRequest::ChunkTooLong { .. }
            | InvalidRequest::ChunkTokensTooMany { .. }
            | InvalidRequest::AnswerTooLong { .. }
            | InvalidRequest::SentenceBeyondModel { .. }
            | InvalidRequest::KvTooLong { .. } => Self::TooLong,
            InvalidRequest::ChunkTooMany { .. }
            | InvalidRequest::LogitTooMany { .. }
            | InvalidRequest::AnswerLogitTooMany { .. }
            | InvalidRequest::GroupsTooMany { .. }
            | InvalidRequest::SourceTooMany { .. }
            | InvalidRequest::KeepTooMany { .. }
            | InvalidRequest::SpanTooMany { .. }
            | InvalidRequest::ValueTooMany { .. } => Self::TooMany,
            InvalidRequest::ChunkIdDuplicate { .. } => Self::Duplicate,
            InvalidRequest::KeepUnknown { .. } => Self::ChunkUnknown,
            InvalidRequest::SourcesOutOfRange { .. }
            | InvalidRequest::SpansOverlap { .. }
            | InvalidRequest::BudgetZero
            | InvalidRequest::RatioOutOfRange { .. }
            | InvalidRequest::CoverageOutOfRange { .. }
            | InvalidRequest::MissedOutOfRange { .. }
            | InvalidRequest::KvShareOutOfRange { .. }
            | InvalidRequest::KvRecomputeOutOfRange { .. } => Self::OutOfRange,
            InvalidRequest::BudgetImpossible { .. } | InvalidRequest::KvBudgetTooSmall { .. } => {
                Self::BudgetImpossible
            }
            InvalidRequest::KvOfEncoder { .. }
            | InvalidRequest::KvLayersMissing { .. }
            | InvalidRequest::KvWeightsUnknown { .. }
            | InvalidRequest::KvPositionsLearned { .. }
            | InvalidRequest::CoverageTooHigh { .. }
            | InvalidRequest::CoverageUncalibrated
            | InvalidRequest::CoverageOfSentences => Self::Unavailable,
        }
    }
}

impl From<&ModelError> for ErrorCode {
    fn from(error: &ModelError) -> Self {
        match error {
            ModelError::Runtime { .. }
            | ModelError::Contract(_)
            | ModelError::Tokenizer { .. }
            | ModelError::Device { .. }
            | ModelError::WrongFamily { .. }
            | ModelError::Cancelled
            | ModelError::NoQueryGraph { .. }
            | ModelError::NoKvExport { .. }
            | ModelError::NoForward { .. }
            | ModelError::NoScores { .. }
            | ModelError::Tokenize(_)
            | ModelError::NoProbe { .. }
            | ModelError::Graph { .. } => Self::ModelFailed,
        }
    }
}

impl From<&PipelineError> for ErrorCode {
    fn from(error: &PipelineError) -> Self {
        match error {
            PipelineError::Invalid(invalid) => invalid.into(),
            PipelineError::DeadlineExceeded => Self::DeadlineExceeded,
            PipelineError::Overloaded(_) | PipelineError::MemoryTaken => Self::Overloaded,
            PipelineError::Cancelled => Self::Cancelled,
            PipelineError::Model(model) => model.into(),
        }
    }
}

impl From<&RegistryError> for ErrorCode {
    fn from(error: &RegistryError) -> Self {
        match error {
            RegistryError::InUse { .. }
            | RegistryError::NotWritable { .. }
            | RegistryError::Damaged { .. }
            | RegistryError::OtherVersion { .. }
            | RegistryError::Read(_)
            | RegistryError::Stopped => Self::StorageFailed,
            RegistryError::Write(_) => Self::StorageFull,
            RegistryError::Overloaded => Self::Overloaded,
            RegistryError::Log(_) => Self::ChangeLogUnavailable,
            RegistryError::FoundTooLong { .. } => Self::TooLong,
        }
    }
}

impl From<&OffsetError> for ErrorCode {
    fn from(_: &OffsetError) -> Self {
        Self::OutOfRange
    }
}

impl From<&Denied> for ErrorCode {
    fn from(denied: &Denied) -> Self {
        match denied {
            Denied::Missing => Self::KeyMissing,
            Denied::Unknown => Self::KeyUnknown,
            Denied::Revoked { .. } => Self::KeyRevoked,
            Denied::RateLimited { .. } => Self::RateLimited,
        }
    }
}

impl From<&Refusal> for ErrorCode {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Overloaded { .. } => Self::Overloaded,
            Refusal::Late { .. } => Self::DeadlineExceeded,
            Refusal::Draining => Self::Draining,
        }
    }
}

impl From<InvalidRequest> for ApiError {
    fn from(invalid: InvalidRequest) -> Self {
        Self::with_param((&invalid).into(), invalid.to_string(), invalid.param())
    }
}

impl From<PipelineError> for ApiError {
    /// Also logs failures that the operator has to know.
    fn from(error: PipelineError) -> Self {
        match &error {
            // The message of a tokenizer may quote the text.
            PipelineError::Model(ModelError::Tokenize(_)) => tracing::error!("the tokenizer refused a text"),
            PipelineError::Model(model) => tracing::error!(error = %model, "the model failed"),
            _ => {}
        }
        let found = Self::new((&error).into(), error.to_string());
        match error {
            PipelineError::Invalid(invalid) => found.at(invalid.param()),
            PipelineError::Overloaded(overload) => {
                Self { retry_after_s: Some(retry::whole(overload.retry_after)), ..found }
            }
            PipelineError::DeadlineExceeded
            | PipelineError::MemoryTaken
            | PipelineError::Cancelled
            | PipelineError::Model(_) => found,
        }
    }
}

impl From<RegistryError> for ApiError {
    /// Also logs failures that the operator has to know.
    fn from(error: RegistryError) -> Self {
        if let RegistryError::Read(cause) = &error {
            tracing::error!(%cause, "the registry could not be read");
        }
        let found = Self::new((&error).into(), error.to_string());
        match error {
            RegistryError::FoundTooLong { .. } => found.at("candidates"),
            RegistryError::InUse { .. }
            | RegistryError::NotWritable { .. }
            | RegistryError::Damaged { .. }
            | RegistryError::OtherVersion { .. }
            | RegistryError::Write(_)
            | RegistryError::Read(_)
            | RegistryError::Overloaded
            | RegistryError::Log(_)
            | RegistryError::Stopped => found,
        }
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        Self { retry_after_s: denied.retry_after_s(), ..Self::new((&denied).into(), denied.to_string()) }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (message, retry_after_s) = match refusal {
            Refusal::Overloaded { retry_after_s } => (
                "too many requests are waiting; each tenant may have a part of the queue; repeat the request later".to_owned(),
                Some(retry_after_s),
            ),
            Refusal::Late { retry_after_s } => return Self::deadline_exceeded(retry_after_s),
            Refusal::Draining => ("the daemon is shutting down".to_owned(), None),
        };
        Self { retry_after_s, ..Self::new((&refusal).into(), message) }
    }
}
