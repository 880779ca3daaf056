//! Relative Contextualization (RC): a statistic that says how far a segment's attention logits stand above a
//! reference, per question token. Consists of pure functions on arrays; knows nothing of models, text,
//! storage or HTTP.
//!
//! RC of a logit x against the reference Y_j of question token j is E over y in Y_j of max(x − y, 0), the
//! mean excess over the reference (RCStat, arXiv 2506.19549). Logits are raw: before the softmax.
//!
//! ```text
//! cross       [h, q, n] ──peaks──▶ Peaks [h, q, s] ──ranked_rivals──▶ [h, q, s] ─heads─▶ [q, s] ─queries─▶ [s]
//! self_logits [h, q, m] ──mean_rc, mean_rc_bound, peaks_against_self──────▲
//! ```
//!
//! Here h counts heads, q question tokens ("queries"), n keys, s segments and m the question's own keys.
//!
//! Invariants:
//! - No finite input gives NaN or an infinity: sums are taken in f64, and a result beyond f32 saturates at
//!   `f32::MAX`. The model runtime refuses non-finite logits; here they cannot cause a panic, but their
//!   result is meaningless.
//! - Each (head, query) row is computed by one thread, and rows are reduced in a fixed order, so the number
//!   of threads does not change a bit of the result.
//! - An empty segment scores 0 and is not a rival of other segments. A query with an empty reference scores 0
//!   for all segments.

mod bound;
mod coverage;
mod evict;
mod exact;
mod mass;
mod peaks;
mod pooling;
mod ranked;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use ndarray::{ArrayView1, ArrayView3};
use rayon::prelude::*;

pub use bound::mean_rc_bound;
pub use coverage::{COVERAGE, PICKS, with_coverage};
pub use evict::{Keep, OverQuestion, Reference, average_over_neighbours, divided_by_mean, keep, key_rc};
pub use exact::{mean_rc, peaks_against_self};
pub use mass::attention_mass;
pub use peaks::{EMPTY, KEY_NONE, Peaks, peaks};
pub use pooling::{HeadMean, mean_over_heads, mean_over_queries};
pub use ranked::{RANK_POWER, ranked_rivals};

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
