//! Relative Contextualization (RC): a statistic that says how far a segment's attention logits stand above a
//! reference, per question token. Consists of pure functions on arrays; knows nothing of models, text,
//! storage or HTTP.
//!
//! RC of a logit x against the reference Y_j of question token j is E over y in Y_j of max(x − y, 0), the
//! mean excess over the reference (RCStat, arXiv 2506.19549). Logits are raw: before the softmax.
//!
//! ```text
//! cross       [h, q, n] ──peaks──▶ Peaks [h, q, s] ─┐
//! self_logits [h, q, m] ────────reference──────────▶ coupled ─▶ [h, q, s] ─heads─▶ [q, s] ─queries─▶ [s]
//! ```
//!
//! Here h counts heads, q question tokens ("queries"), n keys, s segments and m the question's own keys.
//! [`score`] computes the whole line; each arrow is a function of its own ([`peaks()`], [`coupled_segments`],
//! [`mean_over_heads`], [`mean_over_queries`]), so that other estimators can be built from the same
//! functions.
//!
//! Invariants:
//! - No finite input gives NaN or an infinity: sums are taken in f64, and a result beyond f32 saturates at
//!   `f32::MAX`. The model runtime refuses non-finite logits; here they cannot cause a panic, but their
//!   result is meaningless.
//! - Each (head, query) row is computed by one thread, and rows are reduced in a fixed order, so the number
//!   of threads does not change a bit of the result.
//! - An empty segment scores 0 and is not a rival of other segments. A query with an empty reference scores 0
//!   for all segments. A single segment therefore scores 0 against `rivals`, because its own peak is the
//!   whole reference.

mod bound;
mod coverage;
mod evict;
mod exact;
mod mass;
mod peaks;
mod pooling;
mod ranked;
mod reference;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use ndarray::{Array2, ArrayView1, ArrayView3};
use rayon::prelude::*;

pub use bound::PooledReference;
pub use coverage::{COVERAGE, PICKS, with_coverage};
pub use evict::{Keep, OverQuestion, average_over_neighbours, divided_by_mean, keep, key_rc};
pub use exact::{SortedReference, coupled, coupled_means};
pub use mass::attention_mass;
pub use peaks::{EMPTY, KEY_NONE, Peaks, peaks};
pub use pooling::{
    Estimator, HeadMean, Pooling, UnknownEstimator, coupled_segments, mean_over_heads, mean_over_queries,
    peaks_against_self,
};
pub use ranked::{RANK_POWER, ranked_rivals};
pub use reference::{Reference, UnknownReference};

use crate::domain::TokenSpan;

/// The result of [`score`]: the scores of all segments, in the order in which the caller gave them.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// `[segment]`: the mean RC over heads and queries, in units of a logit; at least 0.
    pub scores: Vec<f32>,
    /// `[query, segment]`: the mean RC over heads, which is what each question token contributes to the
    /// score.
    pub per_query: Array2<f32>,
    /// `[head, query, segment]`: the largest logit of each segment and its key. Citations are anchored at
    /// these keys.
    pub peaks: Peaks,
}

/// Scores contiguous segments of the key axis. Segments may be empty, overlap or nest.
///
/// `cross` is `[head, query, key]`: the logits of the question over the keys of the chunks. `self_logits` is
/// `[head, query, own key]`: the logits of the question over its own keys, [`EMPTY`] where a query does not
/// see the key. It may have no keys if the estimator's reference does not use them.
///
/// # Panics
/// When `cross` and `self_logits` differ in heads or queries, or a segment ends beyond the key axis. The
/// caller has built both arrays, so such a mismatch is a bug.
pub fn score(
    cross: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
    estimator: Estimator,
) -> Scored {
    let peaks = peaks(cross, segments);
    let rc = coupled_segments(cross, self_logits, segments, &peaks, estimator);
    let per_query = mean_over_heads(rc);
    let scores = mean_over_queries(per_query.view());
    Scored { scores, per_query, peaks }
}

/// Returns MaxSim, `[segment]`: the mean of the peaks over heads and queries, the baseline that RC is
/// compared with. An empty segment gets `f32::MIN`, so that it ranks below all others.
pub fn raw_maxsim(peaks: &Peaks) -> Vec<f32> {
    mean_over_queries(mean_over_heads(peaks.value.clone()).view())
}

/// Returns the nearest f32, at most `f32::MAX` in magnitude.
fn saturated(value: f64) -> f32 {
    value.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

/// The least number of elements for which the rows are spread over threads. One thread finds the peaks of
/// this many logits in about 10 µs (measured), below which starting other threads is assumed not to pay.
const ELEMENTS_PARALLEL_MIN: usize = 1 << 16;

/// Runs `each` once per row, on this thread or on all threads. `elements` is the size of the whole work. The
/// scratch value is reused from row to row, so `each` must not read what an earlier row left in it; otherwise
/// the result would depend on the number of threads.
fn for_each_row<S: Default, R: Send>(elements: usize, rows: Vec<R>, each: impl Fn(&mut S, R) + Sync + Send) {
    if elements < ELEMENTS_PARALLEL_MIN {
        let mut scratch = S::default();
        rows.into_iter().for_each(|row| each(&mut scratch, row));
    } else {
        rows.into_par_iter().for_each_init(S::default, each);
    }
}

/// Returns the number of heads and of queries, which `logits` and `self_logits` share.
///
/// # Panics
/// When they differ. The caller has built both arrays, so that is a bug.
fn heads_and_queries(logits: ArrayView3<'_, f32>, self_logits: ArrayView3<'_, f32>) -> (usize, usize) {
    let (heads, queries, _) = logits.dim();
    let (self_heads, self_queries, _) = self_logits.dim();
    assert_eq!((heads, queries), (self_heads, self_queries), "heads and queries of the self logits");
    (heads, queries)
}

/// Returns the row as a slice. It is copied only if its elements are not adjacent in memory.
fn contiguous<'a>(row: ArrayView1<'a, f32>) -> Cow<'a, [f32]> {
    match row.to_slice() {
        Some(slice) => Cow::Borrowed(slice),
        None => Cow::Owned(row.to_vec()),
    }
}
