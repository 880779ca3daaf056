//! Moving what rotary positions have turned: a key that was read at one position becomes what it would be at another.
//! Knows nothing of where keys come from.

use super::contract::Rotary;

/// Cosine and sine of each pair's angle, `[token][pair]`: how far each of some tokens is turned.
#[derive(Debug, Clone)]
pub struct Turn {
    pairs: usize,
    angles: Vec<(f32, f32)>,
}

impl Rotary {
    /// The turn that moves tokens from positions `from`, `from + 1`, ... to positions `to`, `to + 1`, ...
    ///
    /// A graph rounds position times frequency to single precision before it turns. The same is done here, so that what is moved
    /// equals what is read at the new position however far away that is.
    pub fn turn(&self, tokens: usize, from: i64, to: i64) -> Turn {
        let angle = |position: i64, frequency: f32| f64::from(position as f32 * frequency);
        let of_token = |token: i64| {
            self.frequencies.iter().map(move |&frequency| {
                let (sin, cos) = (angle(to + token, frequency) - angle(from + token, frequency)).sin_cos();
                (cos as f32, sin as f32)
            })
        };
        Turn { pairs: self.frequencies.len(), angles: (0..tokens as i64).flat_map(of_token).collect() }
    }

    /// Turns vectors `[.., head_dim]` by `positions`, all alike: a query that is turned back meets keys as if they had moved forth.
    pub fn turn_all(&self, vectors: &mut [f32], head_dim: usize, positions: i64) {
        let turn = self.turn(1, 0, positions);
        vectors.chunks_exact_mut(head_dim).for_each(|vector| turn.apply(0, vector));
    }
}

impl Turn {
    /// Turns the vectors `[token, head_dim]` of all its tokens.
    pub fn apply_all(&self, vectors: &mut [f32], head_dim: usize) {
        vectors.chunks_exact_mut(head_dim).enumerate().for_each(|(token, vector)| self.apply(token, vector));
    }

    fn apply(&self, token: usize, vector: &mut [f32]) {
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

    /// `[token, 10]`: two components do not turn.
    fn vectors(tokens: usize) -> Vec<f32> {
        (0..tokens * 10).map(|i| ((i * 37 % 101) as f32 - 50.0) / 10.0).collect()
    }

    fn at(position: i64, vectors: &[f32]) -> Vec<f32> {
        let mut vectors = vectors.to_vec();
        rotary().turn(vectors.len() / 10, 0, position).apply_all(&mut vectors, 10);
        vectors
    }

    #[test]
    fn moving_twice_is_moving_once_and_back_is_where_it_was() {
        let start = vectors(5);
        for (there, further) in [(3, 700), (700, 3), (0, 0), (8_000, 30_000), (1, 0)] {
            let mut moved = at(there, &start);
            rotary().turn(5, there, further).apply_all(&mut moved, 10);
            let direct = at(further, &start);
            let worst = moved.iter().zip(&direct).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 5e-6, "{there} to {further}: off by {worst}");
            assert_eq!(moved[8..10], start[8..10]);
        }
    }

    #[test]
    fn a_query_turned_back_meets_a_key_as_if_the_key_had_moved() {
        let (key, query) = (vectors(1), vectors(3)[20..].to_vec());
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let mut back = query.clone();
        rotary().turn_all(&mut back, 10, -40);
        let (found, expect) = (product(&back, &key), product(&query, &at(40, &key)));
        assert!((found - expect).abs() < 1e-4, "{found} {expect}");
        assert!((expect - product(&query, &key)).abs() > 1.0, "it moved");
    }
}
