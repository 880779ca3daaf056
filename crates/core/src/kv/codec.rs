//! Codecs: how keys are encoded as bytes. Knows neither where the bytes are stored nor how a question is
//! scanned over them.
//!
//! | codec | layout per head | bytes per key of d values |
//! |---|---|---|
//! | `f32`, `f16` | `[key, d]` | 4 d, 2 d |
//! | `int8` | `[tile, d/4, 16 keys, 4 values]`, offset by 128 | d + 4 |
//!
//! A quantized key has one scale: value = scale · (stored − offset). A tile interleaves sixteen keys, so that
//! one vector register holds the same four values of each key. A token of the question is then multiplied
//! with sixteen keys at once, and no sum crosses lanes. The last tile is filled up with keys of scale 0.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use half::f16;
use ndarray::{ArrayView1, ArrayView3};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::domain::TokenSpan;

pub const LANES: usize = 16;

/// The largest magnitude of a quantized value.
const LARGEST: f32 = 127.0;

/// Is added to quantized values to make them unsigned.
const OFFSET: i32 = 128;

/// The format in which keys are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    F32,
    F16,
    /// Eight bits per value and one scale per key.
    #[default]
    Int8,
}

/// The error for a text that is not the name of a codec.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("unknown codec {0:?}; known are f32, f16 and int8")]
pub struct UnknownCodec(String);

#[derive(Debug, Clone, PartialEq)]
pub struct Encoded {
    /// `[head]`, each head in the layout of the codec.
    pub keys: Vec<u8>,
    /// `[head, key]`: the scale of each key, with keys filled up to whole tiles. Empty for codecs without
    /// scales.
    pub scales: Vec<f32>,
}

impl Codec {
    /// All codecs, in descending order of precision.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Int8];

    /// Returns the codec's id in the header of a block.
    pub fn id(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Int8 => 2,
        }
    }

    /// Returns the codec with this id, or `None` if there is none.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.id() == id)
    }

    /// Returns the offset that was added to quantized values to make them unsigned, or 0 for codecs without
    /// quantization.
    pub fn offset(self) -> i32 {
        if self.is_quantized() { OFFSET } else { 0 }
    }

    /// Returns whether keys are stored as small integers with a scale.
    pub fn is_quantized(self) -> bool {
        self == Self::Int8
    }

    /// Returns the bytes of one tile for a quantized codec, or of one key for the others.
    pub fn step_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::F32 => 4 * head_dim,
            Self::F16 => 2 * head_dim,
            Self::Int8 => LANES * 4 * head_dim.div_ceil(4),
        }
    }

    /// Returns the bytes of `tokens` keys of one head.
    pub fn head_bytes(self, tokens: usize, head_dim: usize) -> usize {
        let steps = if self.is_quantized() { tokens.div_ceil(LANES) } else { tokens };
        steps * self.step_bytes(head_dim)
    }

    /// Returns the number of scales of `tokens` keys of one head, filled up to whole tiles; 0 for codecs
    /// without scales.
    pub fn head_scales(self, tokens: usize) -> usize {
        if self.is_quantized() { tokens.next_multiple_of(LANES) } else { 0 }
    }

    /// Encodes the keys `[head, token, head_dim]`.
    pub fn encode(self, keys: ArrayView3<f32>) -> Encoded {
        let (heads, tokens, dim) = keys.dim();
        let mut out = Encoded {
            keys: vec![0; heads * self.head_bytes(tokens, dim)],
            scales: vec![0.0; heads * self.head_scales(tokens)],
        };
        self.encode_part(keys, 0, tokens, &mut out.keys, &mut out.scales);
        out
    }

    /// Encodes the keys `[head, token, head_dim]` of the tokens from `first` on into those of all `tokens`, which have the layout of
    /// [`Encoded`].
    pub fn encode_part(
        self,
        part: ArrayView3<f32>,
        first: usize,
        tokens: usize,
        keys: &mut [u8],
        scales: &mut [f32],
    ) {
        let dim = part.dim().2;
        let (head_bytes, head_scales) = (self.head_bytes(tokens, dim), self.head_scales(tokens));
        for (head, part) in part.outer_iter().enumerate() {
            let bytes = &mut keys[head * head_bytes..][..head_bytes];
            let scales = &mut scales[head * head_scales..][..head_scales];
            for (token, key) in part.outer_iter().enumerate() {
                let token = first + token;
                match self {
                    Self::F32 => fill(&mut bytes[token * 4 * dim..], key, f32::to_le_bytes),
                    Self::F16 => fill(&mut bytes[token * 2 * dim..], key, |v| f16::from_f32(v).to_le_bytes()),
                    Self::Int8 => {
                        let tile = &mut bytes[token / LANES * self.step_bytes(dim)..][..self.step_bytes(dim)];
                        scales[token] = quantize(key, token % LANES, tile);
                    }
                }
            }
        }
    }

    /// Decodes the keys of `tokens` of one head into `out`, `[token, head_dim]`. `keys` and `scales` are
    /// those of all tokens of the head.
    pub fn decode_into(self, keys: &[u8], scales: &[u8], tokens: TokenSpan, dim: usize, out: &mut [f32]) {
        let scale_of = |token: usize| f32::from_le_bytes(at(scales, token));
        for (token, out) in tokens.range().zip(out.chunks_exact_mut(dim)) {
            match self {
                Self::F32 => {
                    let stored = keys[4 * dim * token..].as_chunks().0;
                    out.iter_mut().zip(stored).for_each(|(out, &stored)| *out = f32::from_le_bytes(stored));
                }
                Self::F16 => {
                    let stored = keys[2 * dim * token..].as_chunks().0;
                    out.iter_mut()
                        .zip(stored)
                        .for_each(|(out, &stored)| *out = f16::from_le_bytes(stored).to_f32());
                }
                Self::Int8 => {
                    let tile = &keys[token / LANES * self.step_bytes(dim)..][..self.step_bytes(dim)];
                    let scale = scale_of(token);
                    // Decodes four values at a time, for speed: with a decoder model, all keys and values are
                    // decoded for each question.
                    for (group, out) in tile.as_chunks::<{ 4 * LANES }>().0.iter().zip(out.chunks_mut(4)) {
                        let four = &group[4 * (token % LANES)..][..4];
                        out.iter_mut()
                            .zip(four)
                            .for_each(|(out, v)| *out = (i32::from(*v) - OFFSET) as f32 * scale);
                    }
                }
            }
        }
    }
}

/// Writes one key into its lane of a tile, and returns its scale.
fn quantize(key: ArrayView1<f32>, lane: usize, tile: &mut [u8]) -> f32 {
    let key = key.to_slice().map_or_else(|| Cow::Owned(key.to_vec()), Cow::Borrowed);
    let scale = largest_magnitude(&key) / LARGEST;
    // The reciprocal of a smaller scale is infinite. Such keys are stored as zeros.
    let inverse = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
    let stored = |value: f32| (round(value * inverse).clamp(-LARGEST as i32, LARGEST as i32) + OFFSET) as u8;
    // Four values, from a multiple of four on, are in neighbouring bytes. The compiler has fast code for
    // four values at a time.
    let (fours, rest) = key.as_chunks::<4>();
    let (tile, last) = tile.split_at_mut(fours.len() * 4 * LANES);
    for (group, four) in tile.as_chunks_mut::<{ 4 * LANES }>().0.iter_mut().zip(fours) {
        group[4 * lane..][..4].iter_mut().zip(four).for_each(|(out, &value)| *out = stored(value));
    }
    last.iter_mut().skip(4 * lane).zip(rest).for_each(|(out, &value)| *out = stored(value));
    scale
}

/// Returns the largest magnitude of finite values. Magnitudes have the order of their bits, and the largest
/// integer is found several times as fast as the largest `f32`.
fn largest_magnitude(values: &[f32]) -> f32 {
    let magnitude = |value: &f32| value.abs().to_bits().cast_signed();
    f32::from_bits(values.iter().map(magnitude).fold(0, i32::max).cast_unsigned())
}

/// Rounds to an integer as [`f32::round`] does, halves away from zero, if the magnitude is below 2²¹.
/// [`f32::round`] is a call into a library on x86-64 and took most of the time of encoding a block. This is the
/// same in operations that the compiler does for four values at a time.
fn round(value: f32) -> i32 {
    /// 1.5 · 2²³. A sum with it has no bits for a fraction, and the bits of the sum count up with the integer.
    const LARGE: f32 = 12_582_912.0;
    let sum = value + LARGE;
    let integer = sum.to_bits().cast_signed() - LARGE.to_bits().cast_signed();
    // The sum rounds halves to even, which is towards zero for every other half.
    let rest = value - (sum - LARGE);
    integer + i32::from((rest == 0.5) & (value > 0.0)) - i32::from((rest == -0.5) & (value < 0.0))
}

fn fill<const N: usize>(out: &mut [u8], key: ArrayView1<f32>, bytes: impl Fn(f32) -> [u8; N]) {
    out.chunks_exact_mut(N).zip(key).for_each(|(out, &value)| out.copy_from_slice(&bytes(value)));
}

/// Returns element `i` of an array of elements of `N` bytes.
fn at<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
    bytes[i * N..][..N].try_into().expect("N bytes were taken")
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        })
    }
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        let known = Self::ALL.into_iter().find(|codec| codec.to_string() == name);
        known.ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;

    use super::*;

    /// Returns the largest error of a value, relative to the largest value of its key.
    fn error_of(codec: Codec, shape: (usize, usize, usize)) -> f32 {
        let keys = Array3::from_shape_fn(shape, |(h, t, i)| {
            (((h * 7 + t * 31 + i * 17) % 101) as f32 - 50.0) / 30.0
        });
        let encoded = codec.encode(keys.view());
        assert_eq!(encoded.keys.len(), shape.0 * codec.head_bytes(shape.1, shape.2));
        let mut decoded = Array3::zeros(shape);
        for (head, mut decoded) in decoded.outer_iter_mut().enumerate() {
            let keys = &encoded.keys[head * codec.head_bytes(shape.1, shape.2)..];
            let scales = &encoded.scales[head * codec.head_scales(shape.1)..];
            let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            // In two parts, because parts of a block are decoded too.
            for tokens in [TokenSpan::new(0, shape.1 / 3), TokenSpan::new(shape.1 / 3, shape.1)] {
                let mut part = decoded.slice_mut(ndarray::s![tokens.range(), ..]);
                let out = part.as_slice_mut().expect("rows of a new array are contiguous");
                codec.decode_into(keys, &scales, tokens, shape.2, out);
            }
        }
        let mut worst = 0.0_f32;
        for (key, found) in keys.lanes(ndarray::Axis(2)).into_iter().zip(decoded.lanes(ndarray::Axis(2))) {
            let most = key.iter().fold(f32::MIN_POSITIVE, |most, v| most.max(v.abs()));
            let error = key.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            worst = worst.max(error / most);
        }
        worst
    }

    #[test]
    fn the_error_of_each_codec_is_within_its_bound() {
        for shape in [(1, 1, 4), (1, 16, 8), (2, 17, 384), (3, 40, 30), (1, 0, 8)] {
            for (codec, bound) in [(Codec::F32, 0.0), (Codec::F16, 4.9e-4), (Codec::Int8, 0.501 / 127.0)] {
                let error = error_of(codec, shape);
                assert!(error <= bound, "{codec} {shape:?}: {error} over {bound}");
            }
        }
    }

    #[test]
    fn values_are_rounded_as_the_standard_library_does() {
        // All halves up to 200 with their neighbours, and numbers between them.
        let halves = (-400..=400).map(|n| n as f32 / 2.0);
        let close = halves.flat_map(|half| [half.next_down(), half, half.next_up()]);
        let between = (-2_000_000..2_000_000).map(|n| n as f32 * 1.003e-4);
        for value in close.chain(between).chain([-0.0, f32::MIN_POSITIVE]) {
            assert_eq!(round(value), value.round() as i32, "{value}");
        }
        assert_eq!(largest_magnitude(&[1.0, -3.5, 2.0, 0.0]), 3.5);
        assert_eq!(largest_magnitude(&[]), 0.0);
    }

    #[test]
    fn a_key_of_zeros_is_encoded_with_scale_zero() {
        let encoded = Codec::Int8.encode(Array3::zeros((1, 1, 8)).view());
        assert_eq!(encoded.scales, vec![0.0; LANES]);
    }

    #[test]
    fn a_key_that_is_too_small_for_a_scale_is_encoded_as_zeros() {
        let encoded = Codec::Int8.encode(Array3::from_elem((1, 1, 6), 1e-40).view());
        assert_eq!((encoded.keys[0], encoded.keys[4 * LANES + 1]), (128, 128));
        assert!(encoded.scales[0] < 1e-41);
    }

    #[test]
    fn names_and_ids_identify_the_codec() {
        for codec in Codec::ALL {
            assert_eq!((codec.to_string().parse(), Codec::from_id(codec.id())), (Ok(codec), Some(codec)));
        }
        assert_eq!(
            "int3".parse::<Codec>().unwrap_err().to_string(),
            "unknown codec \"int3\"; known are f32, f16 and int8"
        );
        assert_eq!(Codec::from_id(9), None);
    }
}
