//! The statistic itself: its exact value, in which a logit is compared with the reference of its own query.
//! Knows nothing of segments' peaks or of how a reference is chosen.

use ndarray::{Array3, ArrayView1, ArrayView3};

use super::{EMPTY, contiguous, for_each_row, heads_and_queries, saturated};
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
    values: Vec<f32>,
    /// `prefix[r]` is the sum of the `r` smallest values.
    prefix: Vec<f64>,
}

impl SortedReference {
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

/// Returns the mean RC of every segment's keys per head and query against the question's own keys, `[head, query, segment]`: the
/// estimator of the RCStat paper (arXiv 2506.19549). An empty segment gets 0.
///
/// `cross` is `[head, query, key]`; `self_logits` is `[head, query, own key]`, [`EMPTY`] where a query does not see the key.
///
/// # Panics
/// When heads or queries differ between the arguments, or a segment ends beyond the key axis.
pub fn mean_rc(
    cross: ArrayView3<'_, f32>,
    self_logits: ArrayView3<'_, f32>,
    segments: &[TokenSpan],
) -> Array3<f32> {
    let (heads, queries) = heads_and_queries(cross, self_logits);
    let mut out = Array3::zeros((heads, queries, segments.len()));
    let rows = cross.rows().into_iter().zip(self_logits.rows()).zip(out.rows_mut()).collect();
    for_each_row(cross.len(), rows, |y: &mut SortedReference, ((cross, own), mut out)| {
        y.refill(|buffer| buffer.extend(seen(own)));
        let cross = contiguous(cross);
        for (out, segment) in out.iter_mut().zip(segments) {
            *out = saturated(y.rc_mean(&cross[segment.range()]));
        }
    });
    out
}

/// Returns the RC of every segment's peak against the question's own keys, `[head, query, segment]`.
///
/// `peaks` is `[head, query, segment]`, [`EMPTY`] for a segment without keys. `self_logits` is
/// `[head, query, own key]`, [`EMPTY`] for a key that the query does not see.
///
/// # Panics
/// When `peaks` and `self_logits` differ in heads or queries.
pub fn peaks_against_self(peaks: ArrayView3<'_, f32>, self_logits: ArrayView3<'_, f32>) -> Array3<f32> {
    heads_and_queries(peaks, self_logits);
    let mut out = Array3::zeros(peaks.dim());
    // Sorting takes about log m comparisons per element, so fewer elements are worth a thread.
    let elements = 8 * (out.len() + self_logits.len());
    let rows = self_logits.rows().into_iter().zip(peaks.rows()).zip(out.rows_mut()).collect();
    for_each_row(elements, rows, |y: &mut SortedReference, ((own, peaks), mut out)| {
        y.refill(|buffer| buffer.extend(seen(own)));
        for (out, &peak) in out.iter_mut().zip(peaks) {
            *out = if peak == EMPTY { 0.0 } else { saturated(y.rc(peak)) };
        }
    });
    out
}

/// Returns the logits over the own keys that a query sees.
pub(super) fn seen(own: ArrayView1<'_, f32>) -> impl Iterator<Item = &f32> {
    own.into_iter().filter(|&&logit| logit != EMPTY)
}

#[cfg(test)]
mod tests {
    use super::super::peaks;
    use super::*;

    fn check(name: &str, x: f32, y: &[f32], expect: f64) {
        let mut reference = SortedReference::default();
        reference.refill(|values| values.extend_from_slice(y));
        assert_eq!(reference.rc(x), expect, "{name}");
    }

    #[test]
    fn rc_of_small_cases() {
        check("no reference", 3.0, &[], 0.0);
        check("one below", 3.0, &[1.0], 2.0);
        check("one above", 1.0, &[3.0], 0.0);
        check("tie", 2.0, &[2.0, 2.0], 0.0);
        check("tie among others", 2.0, &[2.0, 0.0, 5.0, 1.0], 0.75);
        check("negative", -1.0, &[-3.0, -1.0], 1.0);
        check("signed zeros tie", 0.0, &[-0.0, 0.0], 0.0);
        check("common offset of 2^23", 8_388_609.0, &[8_388_608.0, 8_388_610.0], 0.5);
        check("twice the largest", f32::MAX, &[f32::MIN], 2.0 * f64::from(f32::MAX));
    }

    fn rows(rows: &[&[f32]]) -> Array3<f32> {
        let width = rows.first().map_or(0, |row| row.len());
        Array3::from_shape_vec((1, rows.len(), width), rows.concat()).expect("rows of one length")
    }

    #[test]
    fn means_and_peaks_against_the_own_keys() {
        let check = |name: &str,
                     cross: &[&[f32]],
                     own: &[&[f32]],
                     segments: &[(usize, usize)],
                     mean: &[f32],
                     peak: &[f32]| {
            let segments: Vec<_> = segments.iter().map(|&(a, b)| TokenSpan::new(a, b)).collect();
            let (cross, own) = (rows(cross), rows(own));
            let found = mean_rc(cross.view(), own.view(), &segments);
            assert_eq!(found.into_raw_vec_and_offset().0, mean, "{name}: mean");
            let found = peaks_against_self(peaks(cross.view(), &segments).value.view(), own.view());
            assert_eq!(found.into_raw_vec_and_offset().0, peak, "{name}: peak");
        };
        let two: &[(usize, usize)] = &[(0, 2), (2, 3)];
        check(
            "1, 5 and 2 against 0 and 4",
            &[&[1.0, 5.0, 2.0]],
            &[&[0.0, 4.0]],
            two,
            &[1.75, 1.0],
            &[3.0, 1.0],
        );
        check(
            "a key that the query does not see",
            &[&[1.0, 5.0]],
            &[&[EMPTY, 0.0]],
            &[(0, 2)],
            &[3.0],
            &[5.0],
        );
        check("no own keys", &[&[1.0, 5.0, 2.0]], &[&[]], two, &[0.0, 0.0], &[0.0, 0.0]);
        check("an empty segment", &[&[1.0, 5.0]], &[&[0.0]], &[(1, 1)], &[0.0], &[0.0]);
        check("no segment", &[&[1.0]], &[&[0.0]], &[], &[], &[]);
        check("no query", &[], &[], &[(0, 0)], &[], &[]);
        check("two queries", &[&[1.0], &[3.0]], &[&[0.0], &[0.0]], &[(0, 1)], &[1.0, 3.0], &[1.0, 3.0]);
        check("beyond f32", &[&[f32::MAX]], &[&[-1e38]], &[(0, 1)], &[f32::MAX], &[f32::MAX]);
    }
}
