//! The statistic itself: its exact value, in which a logit is compared with the reference of its own query.
//! Knows nothing of segments' peaks or of how a reference is chosen.

use ndarray::{Array2, ArrayView2, Axis};

use super::{contiguous, for_each_row, saturated};
use crate::domain::TokenSpan;

/// The reference of one query, sorted and with prefix sums, which gives E max(x − y, 0) in O(log m) for a
/// reference of m values.
///
/// Sums are f64, which loses no accuracy for f32 values. Where x − y nearly cancels, all summands have the
/// same exponent, and the 29 spare bits of an f64 hold their sum exactly. Where they do not cancel, x − y is
/// as large as its operands. 2 · `f32::MAX` is far below the largest f64. The same values in any order give
/// the same bits.
#[derive(Debug, Clone, Default)]
pub struct SortedReference {
    /// In ascending order.
    values: Vec<f32>,
    /// `prefix[r]` is the sum of the `r` smallest values.
    prefix: Vec<f64>,
}

impl SortedReference {
    /// Returns the reference with these values, in any order.
    pub fn new(values: &[f32]) -> Self {
        let mut reference = Self::default();
        reference.refill(|buffer| buffer.extend_from_slice(values));
        reference
    }

    /// Replaces the values. `fill` writes the new values into an empty buffer, whose memory is reused.
    pub fn refill(&mut self, fill: impl FnOnce(&mut Vec<f32>)) {
        self.values.clear();
        fill(&mut self.values);
        self.values.sort_unstable_by(f32::total_cmp);
        self.prefix.clear();
        self.prefix.push(0.0);
        let mut sum = 0.0;
        self.prefix.extend(self.values.iter().map(|&y| {
            sum += f64::from(y);
            sum
        }));
    }

    /// Returns the RC of one logit, the mean over the reference of max(x − y, 0). It is 0 for an empty
    /// reference.
    pub fn rc(&self, x: f32) -> f64 {
        self.excess(x) / self.count()
    }

    /// Returns the mean RC of several logits. It is 0 for no logits or an empty reference.
    pub fn rc_mean(&self, xs: &[f32]) -> f64 {
        let excess: f64 = xs.iter().map(|&x| self.excess(x)).sum();
        excess / self.count() / xs.len().max(1) as f64
    }

    /// Returns the sum over the reference of max(x − y, 0).
    fn excess(&self, x: f32) -> f64 {
        let below = self.values.partition_point(|&y| y < x);
        (f64::from(x) * below as f64 - self.prefix[below]).max(0.0)
    }

    /// Returns the number of values, at least 1, as a divisor.
    fn count(&self) -> f64 {
        self.values.len().max(1) as f64
    }
}

/// Returns the RC of each key for each query, `[query, key]`: E over y in Y_j of max(x − y, 0). `x` is
/// `[query, key]`; `y` has the reference Y_j of each query, of any length. Costs O((n + m) log m) per query,
/// for n keys and m reference values.
///
/// # Panics
/// When `y` does not have one reference per query.
pub fn coupled(x: ArrayView2<'_, f32>, y: &[&[f32]]) -> Array2<f32> {
    per_query(x, y, x.ncols(), |reference, row, out| {
        for (out, &x) in out.iter_mut().zip(row) {
            *out = saturated(reference.rc(x));
        }
    })
}

/// Returns the mean of [`coupled`] over the keys of each segment, `[query, segment]`, without allocating the
/// `[query, key]` array. A key is evaluated once per segment that contains it. An empty segment gets 0.
///
/// # Panics
/// When `y` does not have one reference per query, or a segment ends beyond the key axis.
pub fn coupled_means(x: ArrayView2<'_, f32>, y: &[&[f32]], segments: &[TokenSpan]) -> Array2<f32> {
    per_query(x, y, segments.len(), |reference, row, out| {
        for (out, segment) in out.iter_mut().zip(segments) {
            *out = saturated(reference.rc_mean(&row[segment.range()]));
        }
    })
}

/// Returns `[query, width]`. Sorts the reference of each query and calls `each` to write the query's row.
fn per_query(
    x: ArrayView2<'_, f32>,
    y: &[&[f32]],
    width: usize,
    each: impl Fn(&SortedReference, &[f32], &mut [f32]) + Sync + Send,
) -> Array2<f32> {
    assert_eq!(x.nrows(), y.len(), "one reference per query");
    let mut out = Array2::zeros((x.nrows(), width));
    let rows = x.outer_iter().zip(y).zip(out.axis_iter_mut(Axis(0))).collect();
    for_each_row(x.len(), rows, |reference: &mut SortedReference, ((x, y), out)| {
        reference.refill(|buffer| buffer.extend_from_slice(y));
        let out = out.into_slice().expect("rows of a new array are contiguous");
        each(reference, &contiguous(x), out);
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, (x, y): (f32, &[f32]), expect: f64) {
        assert_eq!(SortedReference::new(y).rc(x), expect, "{name}");
    }

    #[test]
    fn rc_of_small_cases() {
        check("no reference", (3.0, &[]), 0.0);
        check("one below", (3.0, &[1.0]), 2.0);
        check("one above", (1.0, &[3.0]), 0.0);
        check("tie", (2.0, &[2.0, 2.0]), 0.0);
        check("tie among others", (2.0, &[2.0, 0.0, 5.0, 1.0]), 0.75);
        check("negative", (-1.0, &[-3.0, -1.0]), 1.0);
        check("signed zeros tie", (0.0, &[-0.0, 0.0]), 0.0);
        check("common offset of 2^23", (8_388_609.0, &[8_388_608.0, 8_388_610.0]), 0.5);
        check("twice the largest", (f32::MAX, &[f32::MIN]), 2.0 * f64::from(f32::MAX));
    }

    #[test]
    fn ragged_references() {
        let x = ndarray::array![[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]];
        let rc = coupled(x.view(), &[&[0.0], &[], &[3.0, 0.0]]);
        assert_eq!(rc, ndarray::array![[1.0, 4.0], [0.0, 0.0], [0.5, 2.5]]);
    }

    #[test]
    fn means_of_segments() {
        let x = ndarray::array![[1.0, 4.0, 7.0]];
        let segments = [(0, 2), (1, 1), (0, 3), (2, 3)].map(|(a, b)| TokenSpan::new(a, b));
        let means = coupled_means(x.view(), &[&[3.0]], &segments);
        assert_eq!(means, ndarray::array![[0.5, 0.0, 5.0 / 3.0, 4.0]]);
    }

    #[test]
    fn results_beyond_f32_saturate() {
        let x = ndarray::array![[f32::MAX]];
        assert_eq!(coupled(x.view(), &[&[f32::MIN]])[[0, 0]], f32::MAX);
    }
}
