//! Limits of request bodies that are checked while a body is parsed, before the values that exceed them are built.

use crate::error::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::shape::{self, ShapeError, ShapeLimits};

/// The most entries of `include`, which may repeat its few words.
const INCLUDE_COUNT_MAX: usize = 16;

const MESSAGE_COUNT_MAX: usize = 1000;

pub(super) const RANK_FIELD_COUNT_MAX: usize = 64;

/// The most objects and lists inside each other, in a body that is parsed into a tree.
const TREE_DEPTH_MAX: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    /// The limits of what is compressed or attributed.
    pub requests: RequestLimits,
    /// The most chunks that one request registers or deletes.
    pub batch_count_max: usize,
    /// The most bytes of a registered chunk's metadata as JSON.
    pub metadata_bytes_max: usize,
    /// The most candidates of a search, and the most results.
    pub candidate_count_max: usize,
}

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
}

impl ListLimit {
    pub(super) fn error(&self) -> ApiError {
        let Self { field, max } = self;
        let message = format!("{field} has too many entries; the limit is {max}");
        ApiError::with_param(ErrorCode::TooMany, message, *field)
    }
}

impl Default for BodyLimits {
    /// A request of 10,000 chunks takes seconds to register; metadata is for a title and a few fields; and nobody reads more than 1,000 results.
    fn default() -> Self {
        Self {
            requests: RequestLimits::default(),
            batch_count_max: 10_000,
            metadata_bytes_max: 16_384,
            candidate_count_max: 1_000,
        }
    }
}

impl BodyLimits {
    /// The limit of a list of chunks that a request sends.
    pub(super) fn chunks(&self, field: &'static str) -> ListLimit {
        ListLimit { field, max: self.requests.chunk_count_max }
    }

    /// The limit of `chunk_ids`, the registered chunks that a request names.
    pub(super) fn chunk_ids(&self) -> ListLimit {
        ListLimit { field: "chunk_ids", max: self.requests.registered_chunk_count_max }
    }

    /// The limit of `keep`, ids of chunks that are sent or registered.
    pub(super) fn keep(&self) -> ListLimit {
        let max = self.requests.chunk_count_max.max(self.requests.registered_chunk_count_max);
        ListLimit { field: "keep", max }
    }

    pub(super) fn include(&self) -> ListLimit {
        ListLimit { field: "include", max: INCLUDE_COUNT_MAX }
    }

    pub(super) fn messages(&self) -> ListLimit {
        ListLimit { field: "messages", max: MESSAGE_COUNT_MAX }
    }

    pub(super) fn spans(&self) -> ListLimit {
        ListLimit { field: "spans", max: self.requests.span_count_max }
    }

    /// The limit of a list of chunks to register or delete.
    pub(super) fn batch(&self, field: &'static str) -> ListLimit {
        ListLimit { field, max: self.batch_count_max }
    }

    pub(super) fn rank_fields(&self) -> ListLimit {
        ListLimit { field: "rank_fields", max: RANK_FIELD_COUNT_MAX }
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
