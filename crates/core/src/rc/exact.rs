//! The exact statistic, coupled on the query: E over y in Y_j of max(x − y, 0), in O((n + m) log m) per query.
//! Knows nothing of segments' peaks or of how a reference is chosen.

use ndarray::{Array2, ArrayView2, Axis};

use super::rows::{contiguous, for_each_row};
use super::saturated;
use crate::domain::TokenSpan;

/// The reference of one query, sorted, with prefix sums: answers E max(x − y, 0) in O(log m).
///
/// Sums are f64. With f32 values that costs nothing in accuracy: where x − y nearly cancels, all summands share their
/// exponent and the 29 spare bits hold their sum exactly; where they do not, x − y is as large as its operands.
/// 2 · `f32::MAX` is far from f64's end. Equal references in any order give the same bits.
#[derive(Debug, Clone, Default)]
pub struct SortedReference {
    /// Ascending.
    values: Vec<f32>,
    /// `prefix[r]` is the sum of the `r` smallest values.
    prefix: Vec<f64>,
}

impl SortedReference {
    /// Sorts `values`.
    pub fn new(values: &[f32]) -> Self {
        let mut reference = Self::default();
        reference.refill(|buffer| buffer.extend_from_slice(values));
        reference
    }

    /// Takes new values from `fill`, which gets an empty buffer; memory is reused.
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

    /// RC of one logit: E over the reference of max(x − y, 0); 0 when the reference is empty.
    pub fn rc(&self, x: f32) -> f64 {
        self.excess(x) / self.count()
    }

    /// The mean RC of several logits; 0 when there are none.
    pub fn rc_mean(&self, xs: &[f32]) -> f64 {
        let excess: f64 = xs.iter().map(|&x| self.excess(x)).sum();
        excess / self.count() / xs.len().max(1) as f64
    }

    /// Σ over the reference of max(x − y, 0).
    fn excess(&self, x: f32) -> f64 {
        let below = self.values.partition_point(|&y| y < x);
        (f64::from(x) * below as f64 - self.prefix[below]).max(0.0)
    }

    fn count(&self) -> f64 {
        self.values.len().max(1) as f64
    }
}

/// RC per (query, key): x `[query, key]`, one reference per query (of any length) → `[query, key]`.
///
/// # Panics
/// When there is not one reference per query.
pub fn coupled(x: ArrayView2<'_, f32>, y: &[&[f32]]) -> Array2<f32> {
    per_query(x, y, x.ncols(), |reference, row, out| {
        for (out, &x) in out.iter_mut().zip(row) {
            *out = saturated(reference.rc(x));
        }
    })
}

/// The mean of [`coupled`] over each segment's keys, `[query, segment]`, without the `[query, key]` array between.
/// A key is evaluated once per segment that holds it; an empty segment gets 0.
///
/// # Panics
/// When there is not one reference per query, or a segment ends beyond the key axis.
pub fn coupled_means(x: ArrayView2<'_, f32>, y: &[&[f32]], segments: &[TokenSpan]) -> Array2<f32> {
    per_query(x, y, segments.len(), |reference, row, out| {
        for (out, segment) in out.iter_mut().zip(segments) {
            *out = saturated(reference.rc_mean(&row[segment.range()]));
        }
    })
}

/// Sorts each query's reference and lets `each` write that query's row, `width` wide.
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
    fn small_cases() {
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
    fn beyond_f32_saturates() {
        let x = ndarray::array![[f32::MAX]];
        assert_eq!(coupled(x.view(), &[&[f32::MIN]])[[0, 0]], f32::MAX);
    }
}
