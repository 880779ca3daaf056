//! The field `budget` of requests: how much is enough, and how much is too much.

use schemars::JsonSchema;
use serde::Deserialize;
use thresher_core::domain::{AtMost, Budget};

use crate::error::{ApiError, ErrorCode};

/// How much of the chunks the context holds: enough for a `coverage`, and at most so many `tokens` or a `ratio` of them. Without a `coverage`,
/// the context is filled up to the limit; without a limit, the default coverage is enough.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Budget")]
pub(super) struct BudgetBody {
    /// At most this many tokens of context.
    #[schemars(range(min = 1))]
    tokens: Option<usize>,
    /// At most this share of the tokens of the input.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
    ratio: Option<f64>,
    /// Enough to hold the needed evidence with at least this probability.
    #[schemars(range(min = 0.5, max = 0.99))]
    coverage: Option<f64>,
}

impl BudgetBody {
    /// Returns the budget.
    ///
    /// # Errors
    /// `fields_conflict` if there are two limits.
    pub(super) fn into_domain(self) -> Result<Budget, ApiError> {
        let at_most = match (self.tokens, self.ratio) {
            (Some(_), Some(_)) => {
                let message = "budget takes \"tokens\": N or \"ratio\": R as its upper limit, not both; either may stand beside \"coverage\": P";
                return Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "budget"));
            }
            (tokens, ratio) => tokens.map(AtMost::Tokens).or(ratio.map(AtMost::Ratio)),
        };
        Ok(Budget { at_most, coverage: self.coverage, at_least: 0 })
    }
}
