//! The peak pass: finds each segment's largest logit and its key for each (head, query), reading the logits
//! from memory once. Knows nothing of references or RC.

use ndarray::{Array3, ArrayView3};

use super::{contiguous, for_each_row};
use crate::domain::TokenSpan;

/// Marks a logit that does not exist: the peak of an empty segment, or a key that a query does not see. No
/// logit of a model is smaller, and one that is equal counts as missing.
pub const EMPTY: f32 = f32::MIN;

/// Marks that a peak has no key, because its segment is empty.
pub const KEY_NONE: u32 = u32::MAX;

/// The largest logit of every segment and its key, per head and query.
#[derive(Debug, Clone, PartialEq)]
pub struct Peaks {
    /// `[head, query, segment]`: the largest logit; [`EMPTY`] for an empty segment.
    pub value: Array3<f32>,
    /// `[head, query, segment]`: the index on the key axis of the first key with that logit; [`KEY_NONE`] for
    /// an empty segment.
    pub key: Array3<u32>,
}

/// Returns the peaks of `segments` in the logits `cross` `[head, query, key]`.
///
/// # Panics
/// When a segment ends beyond the key axis, or the axis has more keys than a `u32` can count.
pub fn peaks(cross: ArrayView3<'_, f32>, segments: &[TokenSpan]) -> Peaks {
    let (heads, queries, keys) = cross.dim();
    assert!(u32::try_from(keys).is_ok_and(|n| n < KEY_NONE), "{keys} keys do not fit 32 bits");
    let mut value = Array3::zeros((heads, queries, segments.len()));
    let mut key = Array3::zeros(value.dim());
    let rows = cross.rows().into_iter().zip(value.rows_mut()).zip(key.rows_mut()).collect();
    for_each_row(cross.len(), rows, |(): &mut (), ((row, mut value), mut key)| {
        let row = contiguous(row);
        for ((value, key), segment) in value.iter_mut().zip(key.iter_mut()).zip(segments) {
            (*value, *key) = peak(&row, *segment);
        }
    });
    Peaks { value, key }
}

/// Returns the largest logit of a row within `segment`, and its key.
fn peak(row: &[f32], segment: TokenSpan) -> (f32, u32) {
    let logits = &row[segment.range()];
    // The first pass finds the maximum, the second pass its key. The second finds the segment in the
    // first-level cache, so memory is read once.
    let at = match logits.len() {
        0 => return (EMPTY, KEY_NONE),
        1..4 => first_equal::<1>(logits, max::<1>(logits)),
        4..16 => first_equal::<4>(logits, max::<4>(logits)),
        _ => first_equal::<16>(logits, max::<16>(logits)),
    };
    (logits[at], (segment.start + at) as u32)
}

/// Returns the largest of at least `LANES` logits. Each lane keeps a maximum of its own, so that the compiler
/// can use vectors. The last `LANES` logits cover the rest that fills no whole block; that they overlap the
/// last block does not change a maximum.
fn max<const LANES: usize>(logits: &[f32]) -> f32 {
    let mut lanes = *logits.last_chunk::<LANES>().expect("the caller has LANES logits");
    for block in logits.as_chunks::<LANES>().0 {
        for (lane, &logit) in lanes.iter_mut().zip(block) {
            *lane = larger(logit, *lane);
        }
    }
    max_lane(&lanes)
}

// If this function is inlined, its last step makes the compiler split the loops of its caller into vectors of
// two.
#[inline(never)]
fn max_lane<const LANES: usize>(lanes: &[f32; LANES]) -> f32 {
    let mut quarter = [f32::NEG_INFINITY; 4];
    for four in lanes.chunks(4) {
        for (lane, &value) in quarter.iter_mut().zip(four) {
            *lane = larger(value, *lane);
        }
    }
    larger(larger(quarter[0], quarter[1]), larger(quarter[2], quarter[3]))
}

/// Replaces `f32::max`, whose rule for NaN takes three instructions; this comparison compiles to a single
/// instruction.
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns the index of the first of at least `LANES` logits that equals `target`, or 0 if none does, which
/// happens only with NaN.
fn first_equal<const LANES: usize>(logits: &[f32], target: f32) -> usize {
    let (blocks, _) = logits.as_chunks::<LANES>();
    let contains = |block: &[f32; LANES]| block.iter().fold(false, |any, &logit| any | (logit == target));
    let start = blocks.iter().position(contains).map_or(logits.len() - LANES, |block| LANES * block);
    let block = logits[start..].first_chunk().expect("LANES logits from here on");
    lane_equal::<LANES>(block, target).map_or(0, |lane| start + lane)
}

/// Returns the first lane that equals `target`. It uses no branches, because a processor cannot predict which
/// lane holds the peak.
fn lane_equal<const LANES: usize>(block: &[f32; LANES], target: f32) -> Option<usize> {
    let mask = block.iter().rev().fold(0_u32, |mask, &logit| (mask << 1) | u32::from(logit == target));
    (mask != 0).then(|| mask.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;

    use super::*;

    fn check(name: &str, row: &[f32], span: (usize, usize), expect: (f32, u32)) {
        let cross = Array3::from_shape_vec((1, 1, row.len()), row.to_vec()).expect("one row");
        let found = peaks(cross.view(), &[TokenSpan::new(span.0, span.1)]);
        assert_eq!((found.value[[0, 0, 0]], found.key[[0, 0, 0]]), expect, "{name}");
    }

    #[test]
    fn small_cases() {
        check("no keys at all", &[], (0, 0), (f32::MIN, KEY_NONE));
        check("empty segment", &[1.0, 2.0], (1, 1), (f32::MIN, KEY_NONE));
        check("single key", &[1.0, 2.0, 3.0], (1, 2), (2.0, 1));
        check("the key is counted from the start of the axis", &[9.0, 1.0, 5.0], (1, 3), (5.0, 2));
        check("the first of equal logits", &[0.0, 7.0, 7.0, 7.0], (0, 4), (7.0, 1));
        check("all negative", &[-3.0, -2.0, -4.0], (0, 3), (-2.0, 1));
        check("the smallest of all floats", &[f32::MIN, f32::MIN], (0, 2), (f32::MIN, 0));
        check("zeros of either sign are equal", &[-0.0, 0.0], (0, 2), (0.0, 0));
    }

    #[test]
    fn the_peak_is_found_at_every_position() {
        for len in 1..50 {
            for at in 0..len {
                let mut row = vec![-1.0; len];
                row[at..].fill(0.5);
                check(&format!("{at} of {len}"), &row, (0, len), (0.5, at as u32));
            }
        }
    }

    #[test]
    fn nested_segments_and_strided_rows() {
        let cross = Array3::from_shape_fn((2, 3, 50), |(h, q, n)| ((7 * h + 5 * q + 3 * n) % 50) as f32);
        let segments = [(0, 50), (10, 20), (15, 40), (3, 3)].map(|(a, b)| TokenSpan::new(a, b));
        let mut strided = Array3::zeros((50, 3, 2));
        strided.assign(&cross.view().reversed_axes());
        assert_eq!(peaks(strided.view().reversed_axes(), &segments), peaks(cross.view(), &segments));
    }

    #[test]
    fn nan_does_not_panic() {
        let cross = Array3::from_elem((1, 1, 40), f32::NAN);
        assert_eq!(peaks(cross.view(), &[TokenSpan::new(2, 40)]).key[[0, 0, 0]], 2);
    }
}
