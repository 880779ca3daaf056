//! Ranked rivals: RC against the peaks of all other segments, in which the strongest rivals have the largest
//! weights. Knows nothing of where peaks come from.

use ndarray::{Array3, ArrayView3, Axis};

use super::peaks::EMPTY;
use super::{for_each_row, saturated};

/// The exponent of the weights: the rival at rank r, counted from 1, has a weight proportional to r^−1.25.
///
/// With equal weights, a segment would be compared mostly with clearly irrelevant segments. With the best
/// rival alone, a single accidental peak would decide. Measured on six data sets, mean R@gold is flat between
/// exponents of 1 and 1.5 (`docs/evaluation.md`).
pub const RANK_POWER: f64 = 1.25;

/// Returns the RC of every segment's peak p against the peaks y of the *other* segments, weighted by their
/// rank, `[head, query, segment]`: Z = Σ_r w_r · max(p − y_(r), 0) with y_(1) ≥ y_(2) ≥ …, per head and
/// query. `peaks` is `[head, query, segment]`, [`EMPTY`] for an empty segment.
///
/// The result is exact and takes O(s log s) per query. The rivals with smaller peaks are those that sort
/// behind the segment, and their ranks among its rivals equal their positions in the whole order. A suffix
/// sum of weights and a suffix sum of weighted peaks therefore give the value of every segment. An empty
/// segment scores 0 and is not a rival of others; a segment without rivals scores 0.
///
/// # Panics
/// When there are more segments than a `u32` can count.
pub fn ranked_rivals(peaks: ArrayView3<'_, f32>) -> Array3<f32> {
    let mut out = Array3::zeros(peaks.dim());
    assert!(u32::try_from(peaks.len_of(Axis(2))).is_ok(), "segments do not fit 32 bits");
    let weights = weights(peaks.len_of(Axis(2)));
    let elements = 8 * out.len();
    let rows = peaks.rows().into_iter().zip(out.rows_mut()).collect();
    for_each_row(elements, rows, |order: &mut Vec<u64>, (value, mut out)| {
        order.clear();
        let present = value.iter().enumerate().filter(|(_, peak)| **peak != EMPTY);
        order.extend(present.map(|(segment, &peak)| packed(peak, segment)));
        order.sort_unstable();
        let rivals = order.len().saturating_sub(1);
        let total: f64 = weights[..rivals].iter().sum();
        // Σ w and Σ w·y over the rivals that sort behind the current segment.
        let (mut weight, mut weighted) = (0.0, 0.0);
        for position in (0..rivals).rev() {
            let w = weights[position] / total;
            weight += w;
            weighted += w * f64::from(value[segment(order[position + 1])]);
            let segment = segment(order[position]);
            let excess = f64::from(value[segment]) * weight - weighted;
            out[segment] = saturated(excess.max(0.0));
        }
    });
    out
}

/// Packs a peak and its segment into one number, so that sorting needs no lookups. Larger peaks sort first;
/// equal peaks sort in the order of their segments.
fn packed(peak: f32, segment: usize) -> u64 {
    let bits = peak.to_bits();
    // The bits of negative floats sort in reverse. Inverting the bits of the positive ones gives the order of
    // `total_cmp`, largest first.
    let descending = if bits >> 31 == 0 { !bits & 0x7fff_ffff } else { bits };
    u64::from(descending) << 32 | segment as u64
}

/// Returns the segment of a number from [`packed`].
fn segment(packed: u64) -> usize {
    (packed & u64::from(u32::MAX)) as usize
}

/// Returns the weights of all possible rivals: element r is (r + 1)^−[`RANK_POWER`], not normalised.
fn weights(segments: usize) -> Vec<f64> {
    (1..segments).map(|rank| (rank as f64).powf(-RANK_POWER)).collect()
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;
    use crate::domain::TokenSpan;
    use crate::rc::peaks;

    /// Scores segments of one key each, with one head and one query.
    fn check(name: &str, peaks_of: &[f32], expect: &[f64]) {
        let cross = Array3::from_shape_vec((1, 1, peaks_of.len()), peaks_of.to_vec()).expect("one row");
        let segments: Vec<_> = (0..peaks_of.len()).map(|i| TokenSpan::new(i, i + 1)).collect();
        let found = ranked_rivals(peaks(cross.view(), &segments).value.view());
        for (found, expect) in found.iter().zip(expect) {
            assert!((f64::from(*found) - expect).abs() < 1e-6, "{name}: {found} for {expect}");
        }
    }

    #[test]
    fn small_cases() {
        let (first, second) = (1.0, 2f64.powf(-RANK_POWER));
        let (w1, w2) = (first / (first + second), second / (first + second));
        check("two: the better one scores its lead", &[1.0, 4.0], &[0.0, 3.0]);
        check(
            "three: the best beats two rivals, the second beats one",
            &[1.0, 4.0, 2.0],
            &[0.0, 2.0 * w1 + 3.0 * w2, w2],
        );
        check("equal peaks beat only smaller ones", &[2.0, 2.0, 1.0], &[w2, w2, 0.0]);
        check("a single segment", &[5.0], &[0.0]);
        check("no segment", &[], &[]);
    }

    #[test]
    fn an_empty_segment_is_no_rival() {
        let segments = [(0, 1), (1, 1), (1, 2)].map(|(a, b)| TokenSpan::new(a, b));
        let found = ranked_rivals(peaks(array![[[1.0, 4.0]]].view(), &segments).value.view());
        assert_eq!(found, array![[[0.0, 0.0, 3.0]]]);
    }

    #[test]
    fn packed_numbers_sort_as_the_peaks_do() {
        let peaks = [f32::MAX, 2.5, 1e-40, 0.0, -0.0, -1e-40, -1.0, f32::MIN];
        let mut sorted: Vec<u64> = (0..peaks.len()).rev().map(|i| packed(peaks[i], i)).collect();
        sorted.sort_unstable();
        assert_eq!(sorted.into_iter().map(segment).collect::<Vec<_>>(), (0..peaks.len()).collect::<Vec<_>>());
        assert!(packed(1.0, 3) < packed(1.0, 4));
    }

    proptest::proptest! {
        #[test]
        fn equals_the_definition(row in proptest::collection::vec(-4.0f32..4.0, 0..30)) {
            let cross = Array3::from_shape_vec((1, 1, row.len()), row.clone()).expect("one row");
            let segments: Vec<_> = (0..row.len()).map(|i| TokenSpan::new(i, i + 1)).collect();
            let found = ranked_rivals(peaks(cross.view(), &segments).value.view());
            for (i, &p) in row.iter().enumerate() {
                let mut rivals: Vec<f32> = row.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, y)| *y).collect();
                rivals.sort_by(|a, b| b.total_cmp(a));
                let weights: Vec<f64> = (1..=rivals.len()).map(|r| (r as f64).powf(-RANK_POWER)).collect();
                let sum = |(w, y): (&f64, &f32)| w * f64::from((p - y).max(0.0));
                let excess: f64 = weights.iter().zip(&rivals).map(sum).sum();
                let expect = if rivals.is_empty() { 0.0 } else { excess / weights.iter().sum::<f64>() };
                proptest::prop_assert!((f64::from(found[[0, 0, i]]) - expect).abs() < 1e-5);
            }
        }
    }
}
