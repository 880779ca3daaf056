//! Limits of request bodies that are checked while a body is parsed, before the values that exceed them are built.

use super::history::MESSAGE_COUNT_MAX;
use crate::error::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::shape::{self, ShapeError, ShapeLimits};
use thresher_registry::RegistrySettings;

/// The most entries of `include`, which may repeat its few words.
const INCLUDE_COUNT_MAX: usize = 16;

pub(super) const RANK_FIELD_COUNT_MAX: usize = 64;

/// The most objects and lists inside each other, in a body that is parsed into a tree.
const TREE_DEPTH_MAX: usize = 100;

/// The limits of request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    /// The limits of what is compressed or attributed.
    pub(super) requests: RequestLimits,
    /// The most chunks that one request registers or deletes.
    batch_count_max: usize,
    /// The most bytes of a registered chunk's metadata as JSON.
    pub(super) metadata_bytes_max: usize,
    /// The most candidates of a search, and the most results.
    pub(super) candidate_count_max: usize,
}

/// A type of request body.
pub trait Body: DeserializeOwned {
    /// The fields of the body that are bounded lists, with their limits.
    fn lists(limits: &BodyLimits) -> Vec<ListLimit>;
}

/// The limit of the length of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListLimit {
    /// The field of the body that holds the list.
    pub(super) field: &'static str,
    pub(super) max: usize,
    code: ErrorCode,
    /// The setting of the limit; empty if it is fixed.
    setting: &'static str,
}

impl ListLimit {
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
    /// The limits that the settings name.
    pub fn new(requests: &RequestLimits, registry: &RegistrySettings) -> Self {
        Self {
            requests: *requests,
            batch_count_max: registry.batch_count_max,
            metadata_bytes_max: registry.metadata_bytes_max,
            candidate_count_max: registry.candidate_count_max,
        }
    }

    /// The limit of a list of chunks that a request sends.
    pub(super) fn chunks(&self, field: &'static str) -> ListLimit {
        let (code, setting) = (ErrorCode::TooMany, "limits.chunk_count_max");
        ListLimit { field, max: self.requests.chunk_count_max, code, setting }
    }

    /// The limit of `chunk_ids`, the registered chunks that a request names.
    pub(super) fn chunk_ids(&self) -> ListLimit {
        let (code, setting) = (ErrorCode::TooMany, "");
        ListLimit { field: "chunk_ids", max: self.requests.registered_chunk_count_max, code, setting }
    }

    /// The limit of `keep`, ids of chunks that are sent or registered.
    pub(super) fn keep(&self) -> ListLimit {
        let code = ErrorCode::TooMany;
        if self.requests.chunk_count_max > self.requests.registered_chunk_count_max {
            let setting = "limits.chunk_count_max";
            ListLimit { field: "keep", max: self.requests.chunk_count_max, code, setting }
        } else {
            let setting = "";
            ListLimit { field: "keep", max: self.requests.registered_chunk_count_max, code, setting }
        }
    }

    pub(super) fn include(&self) -> ListLimit {
        ListLimit { field: "include", max: INCLUDE_COUNT_MAX, code: ErrorCode::TooMany, setting: "" }
    }

    pub(super) fn messages(&self) -> ListLimit {
        let code = ErrorCode::TooMany;
        ListLimit { field: "messages", max: MESSAGE_COUNT_MAX, code, setting: "" }
    }

    pub(super) fn spans(&self) -> ListLimit {
        let (code, setting) = (ErrorCode::TooMany, "");
        ListLimit { field: "spans", max: self.requests.span_count_max, code, setting }
    }

    /// The limit of a list of chunks to register or delete.
    pub(super) fn batch(&self, field: &'static str) -> ListLimit {
        let (code, setting) = (ErrorCode::TooMany, "");
        ListLimit { field, max: self.batch_count_max, code, setting }
    }

    pub(super) fn rank_fields(&self) -> ListLimit {
        ListLimit { field: "rank_fields", max: RANK_FIELD_COUNT_MAX, code: ErrorCode::TooMany, setting: "" }
    }

    /// Checks JSON that will be parsed into a tree of values, where each value takes many times its bytes. `param` names the part of the
    /// request that `json` is. Text that is not JSON is accepted, since its parser will refuse it.
    ///
    /// # Errors
    /// `too_many`, `too_long`.
    pub fn check_tree(&self, json: &[u8], param: Option<&str>) -> Result<(), ApiError> {
        let max = self.requests.json_value_count_max;
        let limits = ShapeLimits { value_count_max: max, depth_max: TREE_DEPTH_MAX };
        let name = param.unwrap_or("the body");
        let (code, message) = match shape::check(json, limits) {
            Ok(()) | Err(ShapeError::Json(_)) => return Ok(()),
            Err(ShapeError::TooMany) => {
                (ErrorCode::TooMany, format!("{name} has too many JSON values; the limit is {max}"))
            }
            Err(ShapeError::TooDeep) => (
                ErrorCode::TooLong,
                format!("{name} nests objects and lists more than {TREE_DEPTH_MAX} deep"),
            ),
        };
        Err(ApiError { param: param.map(str::to_owned), ..ApiError::new(code, message) })
    }
}
