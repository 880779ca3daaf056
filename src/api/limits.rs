//! Limits of request bodies that hold while a body is parsed, before the values that exceed them are built.

use crate::error::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::shape::{self, ShapeError, ShapeLimits};

/// Entries of `include`. It may repeat a word, and there are few words.
const INCLUDE_COUNT_MAX: usize = 16;

/// Names in `rank_fields`.
pub(super) const RANK_FIELD_COUNT_MAX: usize = 64;

/// Objects and lists inside each other, in a body that is read as a tree.
const TREE_DEPTH_MAX: usize = 100;

/// Bounds of request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    chunk_count_max: usize,
    registered_chunk_count_max: usize,
    span_count_max: usize,
    batch_count_max: usize,
    json_value_count_max: usize,
    /// Bytes of one chunk's text.
    pub(super) chunk_bytes_max: usize,
    /// Bytes of an answer that is attributed.
    pub(super) answer_bytes_max: usize,
}

/// A request body, and which of its fields are bounded lists.
pub trait Body: DeserializeOwned {
    /// The lists of the body, with the limits of their lengths.
    fn lists(limits: &BodyLimits) -> Vec<ListLimit>;
}

/// The limit of a list's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimit {
    /// The field of the body that holds the list.
    pub(super) field: &'static str,
    /// The most elements that it may have.
    pub(super) max: usize,
    /// Code of the error about a longer one.
    code: ErrorCode,
    /// The setting of the limit; empty where it is fixed.
    setting: &'static str,
}

impl ListLimit {
    /// The error about a list that is longer.
    pub(super) fn error(&self) -> ApiError {
        let Self { field, max, code, setting } = self;
        let setting = if setting.is_empty() { String::new() } else { format!(" ({setting})") };
        ApiError::with_param(
            *code,
            format!("{field} has too many entries; the limit is {max}{setting}"),
            *field,
        )
    }
}

impl BodyLimits {
    /// Those of the settings; `batch_count_max` is that of the registry.
    pub fn new(requests: &RequestLimits, batch_count_max: usize) -> Self {
        Self {
            chunk_count_max: requests.chunk_count_max,
            registered_chunk_count_max: requests.registered_chunk_count_max,
            span_count_max: requests.span_count_max,
            json_value_count_max: requests.json_value_count_max,
            chunk_bytes_max: requests.chunk_bytes_max,
            answer_bytes_max: requests.answer_bytes_max,
            batch_count_max,
        }
    }

    /// Values of an answer that is JSON, and parts of an answer that a request names by their place.
    pub(super) fn span_count_max(&self) -> usize {
        self.span_count_max
    }

    /// A list of chunks that a request sends.
    pub(super) fn chunks(&self, field: &'static str) -> ListLimit {
        let (code, setting) = (ErrorCode::ChunkTooMany, "limits.chunk_count_max");
        ListLimit { field, max: self.chunk_count_max, code, setting }
    }

    /// `chunk_ids`: registered chunks that a request names.
    pub(super) fn chunk_ids(&self) -> ListLimit {
        let (code, setting) = (ErrorCode::ChunkTooMany, "limits.registered_chunk_count_max");
        ListLimit { field: "chunk_ids", max: self.registered_chunk_count_max, code, setting }
    }

    /// `keep`: ids of chunks of the request, sent or registered.
    pub(super) fn keep(&self) -> ListLimit {
        let code = ErrorCode::KeepTooMany;
        match self.chunk_count_max > self.registered_chunk_count_max {
            true => {
                let setting = "limits.chunk_count_max";
                ListLimit { field: "keep", max: self.chunk_count_max, code, setting }
            }
            false => {
                let setting = "limits.registered_chunk_count_max";
                ListLimit { field: "keep", max: self.registered_chunk_count_max, code, setting }
            }
        }
    }

    /// `include`: what an answer is to have beside the context.
    pub(super) fn include(&self) -> ListLimit {
        ListLimit { field: "include", max: INCLUDE_COUNT_MAX, code: ErrorCode::IncludeTooMany, setting: "" }
    }

    /// `spans`: parts of an answer.
    pub(super) fn spans(&self) -> ListLimit {
        let (code, setting) = (ErrorCode::SpanTooMany, "limits.span_count_max");
        ListLimit { field: "spans", max: self.span_count_max, code, setting }
    }

    /// Chunks in one call to register or delete.
    pub(super) fn batch(&self, field: &'static str) -> ListLimit {
        let (code, setting) = (ErrorCode::ChunkTooMany, "registry.batch_count_max");
        ListLimit { field, max: self.batch_count_max, code, setting }
    }

    /// `rank_fields`: fields of documents that are read.
    pub(super) fn rank_fields(&self) -> ListLimit {
        ListLimit {
            field: "rank_fields",
            max: RANK_FIELD_COUNT_MAX,
            code: ErrorCode::RankFieldTooMany,
            setting: "",
        }
    }

    /// Whether a body that is not read by [`parse`](super::parse) may be read as a tree of values, each of which takes many times its
    /// bytes. `param` names the part of the request that `json` is. Whether it is JSON at all is left to its reader.
    ///
    /// # Errors
    /// When it has too many values, or is nested too deeply.
    pub fn check_tree(&self, json: &[u8], param: Option<&str>) -> Result<(), ApiError> {
        let max = self.json_value_count_max;
        let limits = ShapeLimits { value_count_max: max, depth_max: TREE_DEPTH_MAX, duplicate_keys: true };
        let place = param.unwrap_or("the body");
        let (code, message) = match shape::check(json, limits) {
            Ok(()) | Err(ShapeError::Json(_) | ShapeError::DuplicateKey) => return Ok(()),
            Err(ShapeError::TooMany) => (
                ErrorCode::JsonValueTooMany,
                format!("{place} has too many JSON values; the limit is {max} (limits.json_value_count_max)"),
            ),
            Err(ShapeError::TooDeep) => (
                ErrorCode::JsonTooDeep,
                format!("{place} nests objects and lists more than {TREE_DEPTH_MAX} deep"),
            ),
        };
        Err(ApiError { param: param.map(str::to_owned), ..ApiError::new(code, message) })
    }
}
