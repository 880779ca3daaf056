//! The biases that MPNet's attention logits have by the distance of query and key. Does not know about graphs.

/// The number of buckets of each direction: half of all buckets.
pub(super) const BUCKETS: usize = 16;

/// Distances below this have a bucket each. Larger ones share buckets, whose widths grow with the distance.
const EXACT: usize = 8;

/// All distances from this on share the last bucket.
const DISTANCE_MAX: f32 = 128.0;

/// Returns the biases `[2 tokens_max - 1, heads]`: row `i` has those of the keys that are `i - (tokens_max - 1)`
/// positions after the query. `by_bucket` is `[2 BUCKETS, heads]`.
pub(super) fn biases_by_distance(by_bucket: &[f32], heads: usize, tokens_max: usize) -> Vec<f32> {
    let rows = (0..2 * tokens_max - 1).map(|row| bucket(row as i64 - (tokens_max as i64 - 1)));
    rows.flat_map(|bucket| by_bucket[bucket * heads..][..heads].iter().copied()).collect()
}

/// The bucket of a key that is `distance` positions after the query.
fn bucket(distance: i64) -> usize {
    let (first, distance) = (if distance > 0 { BUCKETS } else { 0 }, distance.unsigned_abs() as usize);
    if distance < EXACT {
        return first + distance;
    }
    // In single precision, as the model was trained: the bucket of a power of two depends on the rounding.
    let octaves = (distance as f32 / EXACT as f32).ln() / (DISTANCE_MAX / EXACT as f32).ln();
    let shared = EXACT + (octaves * (BUCKETS - EXACT) as f32) as usize;
    first + shared.min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_have_the_buckets_of_transformers() {
        // The first distance of each bucket of a direction from 8 on, as
        // `MPNetEncoder.relative_position_bucket` has them.
        let first = [8, 12, 16, 23, 32, 46, 64, 91];
        for distance in 0..600 {
            let expect = match distance {
                0..8 => distance as usize,
                _ => 7 + first.iter().filter(|first| **first <= distance).count(),
            };
            assert_eq!(bucket(-distance), expect, "{distance} before the query");
            let after = if distance == 0 { 0 } else { BUCKETS + expect };
            assert_eq!(bucket(distance), after, "{distance} after the query");
        }
    }

    #[test]
    fn rows_are_ordered_by_distance() {
        let by_bucket: Vec<f32> = (0..2 * BUCKETS).map(|bucket| bucket as f32).collect();
        assert_eq!(biases_by_distance(&by_bucket, 1, 3), [2.0, 1.0, 0.0, 17.0, 18.0]);
    }
}
