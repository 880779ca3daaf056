//! Relative Contextualization, the statistic: how far a segment's logits stand above a reference, per query token.
//! Pure functions on arrays; knows nothing of models, text, storage or HTTP.
//!
//! ```text
//! cross [h, q, n] ──peaks──▶ Peaks [h, q, s] ─┐
//! own   [h, q, m] ───────────reference───────▶ coupled ─▶ [h, q, s] ─heads─▶ [q, s] ─queries─▶ [s]
//! ```
//!
//! h heads, q query tokens, n keys, s segments, m the question's own keys. [`score`] runs the whole line; each arrow is
//! a function of its own ([`peaks`], [`coupled_segments`], [`mean_over_heads`], [`mean_over_queries`]), so that another estimator can be put together from the same parts.
//!
//! What always holds:
//! - No finite input gives NaN or an infinity: sums are taken in f64, and a result beyond f32 saturates at `f32::MAX`.
//!   Non-finite logits are the model runtime's to refuse; here they cannot panic, but they mean nothing.
//! - Each (head, query) row is computed by one thread and rows are reduced in a fixed order: the number of threads
//!   does not change a bit of the result.
//! - An empty segment scores 0 and is no rival; a query whose reference is empty scores 0 everywhere. Nothing compared
//!   is nothing found. (So a single segment scores 0 against `rivals`: it has only itself to beat.)

mod bounds;
mod coverage;
mod evict;
mod exact;
mod peaks;
mod pooling;
mod ranked;
mod reference;
mod rows;
#[cfg(test)]
mod tests;

use ndarray::{Array2, ArrayView3};

pub use bounds::{Bounds, Weighted, bounds, bounds_of_marginals};
pub use coverage::{COVERAGE, PICKS, with_coverage};
pub use evict::{Keep, expected_over_self, keep, peak_over_queries};
pub use exact::{SortedReference, coupled, coupled_means};
pub use peaks::{EMPTY, KEY_NONE, Peaks, peaks};
pub use pooling::{
    Estimator, HeadMean, Pooling, UnknownEstimator, coupled_segments, mean_over_heads, mean_over_queries,
    peaks_against_own,
};
pub use ranked::{RANK_POWER, ranked_rivals};
pub use reference::{Reference, UnknownReference};

use crate::domain::TokenSpan;

/// What [`score`] says of a request's segments, in the order in which they were given.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// `[segment]`: RC, the mean over heads and queries; at least 0.
    pub scores: Vec<f32>,
    /// `[query, segment]`: RC, the mean over heads: what each query token adds.
    pub per_query: Array2<f32>,
    /// `[head, query, segment]`: the best keys, where citations are anchored.
    pub peaks: Peaks,
}

/// Scores contiguous segments of the key axis; they may be empty, overlap or nest.
///
/// `cross` is `[head, query, key]`, `own` is `[head, query, own key]`: the question's logits against itself, [`EMPTY`] where a query
/// does not see the key. It may hold no keys where the estimator's reference does not use them.
///
/// # Panics
/// When `cross` and `own` differ in heads or queries, or a segment ends beyond the key axis: the caller built both.
pub fn score(
    cross: ArrayView3<'_, f32>,
    own: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
    estimator: Estimator,
) -> Scored {
    let peaks = peaks(cross, segments);
    let rc = coupled_segments(cross, own, segments, &peaks, estimator);
    let per_query = mean_over_heads(rc);
    let scores = mean_over_queries(per_query.view());
    Scored { scores, per_query, peaks }
}

/// The mean of the peaks over heads and queries, `[segment]`: MaxSim, the baseline that RC is measured against.
/// An empty segment gets `f32::MIN`: it ranks below all others.
pub fn raw_maxsim(peaks: &Peaks) -> Vec<f32> {
    mean_over_queries(mean_over_heads(peaks.value.clone()).view())
}

/// An f64 as the nearest f32, at most `f32::MAX` in magnitude.
fn saturated(value: f64) -> f32 {
    value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}
