//! Moves keys with rotary position encoding: computes from a key at one position the key at another position.
//! Knows nothing of where keys come from.

use super::contract::Rotary;

/// A rotation of a sequence of tokens: for each token and each pair of components, the cosine and the sine of
/// the angle.
#[derive(Debug, Clone)]
pub struct Rotation {
    pairs: usize,
    /// `[token][pair]`: (cosine, sine).
    angles: Vec<(f32, f32)>,
}

impl Rotary {
    /// Returns the rotation that moves `tokens` tokens from positions `from`, `from + 1`, ... to positions
    /// `to`, `to + 1`, ...
    ///
    /// A model's graph rounds position times frequency to single precision before it takes cosine and sine.
    /// This function does the same, so that a moved key equals the key that the graph computes at the new
    /// position, whatever the distance.
    pub fn rotation(&self, tokens: usize, from: i64, to: i64) -> Rotation {
        let angle = |position: i64, frequency: f32| f64::from(position as f32 * frequency);
        let of_token = |token: i64| {
            self.frequencies.iter().map(move |&frequency| {
                let (sin, cos) = (angle(to + token, frequency) - angle(from + token, frequency)).sin_cos();
                (cos as f32, sin as f32)
            })
        };
        Rotation { pairs: self.frequencies.len(), angles: (0..tokens as i64).flat_map(of_token).collect() }
    }

    /// Rotates all vectors `[.., head_dim]` by the same number of positions. The dot product of a query that
    /// is rotated by `-n` with a key equals the dot product of the query with the key moved by `n`.
    pub fn rotate_all(&self, vectors: &mut [f32], head_dim: usize, positions: i64) {
        let rotation = self.rotation(1, 0, positions);
        vectors.chunks_exact_mut(head_dim).for_each(|vector| rotation.apply_to_token(0, vector));
    }
}

impl Rotation {
    /// Rotates the vectors of the tokens, `[token, head_dim]`.
    pub fn apply(&self, vectors: &mut [f32], head_dim: usize) {
        let vectors = vectors.chunks_exact_mut(head_dim).enumerate();
        vectors.for_each(|(token, vector)| self.apply_to_token(token, vector));
    }

    fn apply_to_token(&self, token: usize, vector: &mut [f32]) {
        let (first, rest) = vector.split_at_mut(self.pairs);
        let angles = &self.angles[token * self.pairs..][..self.pairs];
        for ((a, b), &(cos, sin)) in first.iter_mut().zip(rest).zip(angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotary() -> Rotary {
        let frequencies = (0..4).map(|pair| 10_000_f64.powf(f64::from(pair) / -4.0) as f32).collect();
        Rotary { dim: 8, frequencies }
    }

    /// `[token, 10]`: the last two components do not rotate.
    fn vectors(tokens: usize) -> Vec<f32> {
        (0..tokens * 10).map(|i| ((i * 37 % 101) as f32 - 50.0) / 10.0).collect()
    }

    fn at(position: i64, vectors: &[f32]) -> Vec<f32> {
        let mut vectors = vectors.to_vec();
        rotary().rotation(vectors.len() / 10, 0, position).apply(&mut vectors, 10);
        vectors
    }

    #[test]
    fn two_moves_equal_one_and_a_move_back_restores_the_key() {
        let start = vectors(5);
        for (there, further) in [(3, 700), (700, 3), (0, 0), (8_000, 30_000), (1, 0)] {
            let mut moved = at(there, &start);
            rotary().rotation(5, there, further).apply(&mut moved, 10);
            let direct = at(further, &start);
            let worst = moved.iter().zip(&direct).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 5e-6, "{there} to {further}: off by {worst}");
            assert_eq!(moved[8..10], start[8..10]);
        }
    }

    #[test]
    fn rotating_the_query_back_equals_moving_the_key() {
        let (key, query) = (vectors(1), vectors(3)[20..].to_vec());
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let mut back = query.clone();
        rotary().rotate_all(&mut back, 10, -40);
        let (found, expect) = (product(&back, &key), product(&query, &at(40, &key)));
        assert!((found - expect).abs() < 1e-4, "{found} {expect}");
        assert!((expect - product(&query, &key)).abs() > 1.0, "moving the key changes the product");
    }
}
