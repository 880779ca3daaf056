//! What a request to somebody else's API says to us: its field `thresher`.

use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use thresher_core::domain::{Budget, Chunk, Granularity};
use thresher_core::pipeline::validate;
use thresher_core::plain::Quoted;

use super::limits::{Body, BodyLimits, ListLimit};
use super::request::{BudgetBody, ChunkBody, Object, choice, chunks_of, or_default};
use crate::error::{ApiError, ErrorCode};

/// The field `thresher`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MiddlewareBody {
    /// Whether to compress; without it as it is set.
    #[serde(default)]
    compress: Option<bool>,
    /// Whether to cite; without it as it is set.
    #[serde(default)]
    cite: Option<bool>,
    /// The question; without it the last thing that the user has said.
    #[serde(default)]
    query: Option<String>,
    /// Chunks to answer from.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<Vec<ChunkBody>>")]
    chunks: Vec<ChunkBody>,
    /// How much may be kept; without it as it is set.
    #[serde(default)]
    budget: Option<Object<BudgetBody>>,
    /// What is kept or dropped as a whole.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Granularity>")]
    granularity: Granularity,
}

/// What it asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct MiddlewareOptions {
    /// Whether to compress; none: as it is set.
    pub compress: Option<bool>,
    /// Whether to cite; none: as it is set.
    pub cite: Option<bool>,
    /// The question, where it is not the last thing that the user has said.
    pub query: Option<String>,
    /// Chunks to answer from.
    pub chunks: Vec<Arc<Chunk>>,
    /// How much may be kept; none: as it is set.
    pub budget: Option<Budget>,
    /// What is kept or dropped as a whole.
    pub granularity: Granularity,
}

impl Body for MiddlewareBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("chunks")]
    }
}

impl MiddlewareBody {
    /// What it asks for.
    ///
    /// # Errors
    /// When the budget names none or several of its forms, or holds nothing: further on it would only be a reason not to compress.
    pub fn into_domain(self) -> Result<MiddlewareOptions, ApiError> {
        let budget = self.budget.map(|Object(budget)| budget.into_domain()).transpose()?;
        if let Some(budget) = budget {
            validate::check_budget(budget)?;
        }
        let chunks = chunks_of(Some(self.chunks), false, None)?;
        let mut first_at = HashMap::new();
        for (at, chunk) in chunks.iter().enumerate() {
            if let Some(first) = first_at.insert(&chunk.id, at) {
                let message = format!("chunk id {} is used by chunks[{first}] already", Quoted(&chunk.id));
                return Err(ApiError::with_param(
                    ErrorCode::ChunkIdDuplicate,
                    message,
                    format!("chunks[{at}].id"),
                ));
            }
        }
        Ok(MiddlewareOptions {
            compress: self.compress,
            cite: self.cite,
            query: self.query,
            chunks,
            budget,
            granularity: self.granularity,
        })
    }
}
