//! Moves keys with rotary position encoding: computes from a key at one position the key at another position.
//! Knows nothing of where keys come from.

use std::sync::Arc;

use super::contract::{Decoder, Rotary};

/// The rotary position encodings of a decoder's layers. Most decoders have one encoding for all layers; some
/// have another one for layers with a sliding window.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRotary {
    /// The encoding of the layers with full attention or, without `local`, of all layers.
    pub global: Rotary,
    /// The encoding of the layers with a sliding window, if it is another one.
    pub local: Option<Rotary>,
    /// `[layer]`: whether the layer uses `local`.
    is_local: Arc<[bool]>,
}

/// The rotations that move the same sequence of tokens in the layers of a decoder.
#[derive(Debug, Clone)]
pub struct LayerRotations {
    global: Rotation,
    local: Option<Rotation>,
    is_local: Arc<[bool]>,
}

/// A rotation of a sequence of tokens: for each token and each pair of components, the cosine and the sine of
/// the angle.
#[derive(Debug, Clone)]
pub struct Rotation {
    pairs: usize,
    /// `[token][pair]`: (cosine, sine).
    angles: Vec<(f32, f32)>,
}

impl LayerRotary {
    /// Returns the encodings that a contract declares; `None` if the positions of the model are learned.
    pub fn declared_by(decoder: &Decoder) -> Option<Self> {
        let local = decoder.rotary_local.clone();
        let is_local = |layer| local.is_some() && decoder.sliding_window(layer).is_some();
        let is_local = (0..decoder.layers).map(is_local).collect();
        Some(Self { global: decoder.rotary.clone()?, local, is_local })
    }

    /// Returns the rotations that move `tokens` tokens from positions `from`, `from + 1`, ... to positions
    /// `to`, `to + 1`, ... in every layer.
    pub fn rotations(&self, tokens: usize, from: i64, to: i64) -> LayerRotations {
        LayerRotations {
            global: self.global.rotation(tokens, from, to),
            local: self.local.as_ref().map(|local| local.rotation(tokens, from, to)),
            is_local: Arc::clone(&self.is_local),
        }
    }

    /// Returns the rotations with which vectors are rotated by `positions` positions in every layer. The dot
    /// product of a query that is rotated by `-n` with a key equals the dot product of the query with the key
    /// moved by `n`.
    pub fn shift(&self, positions: i64) -> LayerRotations {
        self.rotations(1, 0, positions)
    }
}

impl LayerRotations {
    /// Returns the bytes of memory that the angles take.
    pub fn bytes(&self) -> usize {
        let of = |rotation: &Rotation| size_of_val(&*rotation.angles);
        of(&self.global) + self.local.as_ref().map_or(0, of)
    }

    pub fn of_layer(&self, layer: usize) -> &Rotation {
        self.local.as_ref().filter(|_| self.is_local[layer]).unwrap_or(&self.global)
    }
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
}

impl Rotation {
    /// Rotates the vectors of the tokens, `[token, head_dim]`.
    pub fn apply(&self, vectors: &mut [f32], head_dim: usize) {
        let vectors = vectors.chunks_exact_mut(head_dim).enumerate();
        vectors.for_each(|(token, vector)| self.apply_to_token(token, vector));
    }

    /// Rotates all vectors `[.., head_dim]` as the first token.
    pub fn apply_to_all(&self, vectors: &mut [f32], head_dim: usize) {
        vectors.chunks_exact_mut(head_dim).for_each(|vector| self.apply_to_token(0, vector));
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

    /// The second of two layers has a sliding window and frequencies of its own.
    fn layers() -> LayerRotary {
        let local = Rotary { dim: 8, frequencies: vec![1.0, 0.5, 0.25, 0.125] };
        LayerRotary { global: rotary(), local: Some(local), is_local: Arc::new([false, true]) }
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
        layers().shift(-40).of_layer(0).apply_to_all(&mut back, 10);
        let (found, expect) = (product(&back, &key), product(&query, &at(40, &key)));
        assert!((found - expect).abs() < 1e-4, "{found} {expect}");
        assert!((expect - product(&query, &key)).abs() > 1.0, "moving the key changes the product");
    }

    #[test]
    fn each_layer_is_moved_with_its_own_frequencies() {
        let moved = |rotation: &Rotation| {
            let mut moved = vectors(5);
            rotation.apply(&mut moved, 10);
            moved
        };
        let rotations = layers().rotations(5, 3, 40);
        for (layer, encoding) in [rotary(), layers().local.unwrap()].into_iter().enumerate() {
            assert_eq!(moved(rotations.of_layer(layer)), moved(&encoding.rotation(5, 3, 40)), "{layer}");
        }
        assert_ne!(moved(rotations.of_layer(0)), moved(rotations.of_layer(1)));
        let one = LayerRotary { local: None, is_local: Arc::new([false; 2]), ..layers() }.rotations(5, 3, 40);
        assert_eq!(moved(one.of_layer(1)), moved(one.of_layer(0)));
    }
}
