//! The element types of GGUF tensors, and how each is converted to `f32`. Does not know about files.
//!
//! A quantised type stores blocks of a fixed number of elements: small integers, and scales from which the
//! elements are computed. All scales are stored as 16-bit floats and all products are computed in `f32`, in
//! the order in which the reference implementation computes them, so that the results have the same bits.

use half::f16;

/// The number of elements in a block of the types `Q4_K`, `Q5_K` and `Q6_K`.
const SUPER_BLOCK: usize = 256;

/// The number of elements in a group of a [`SUPER_BLOCK`]; the elements of a group are stored together.
const GROUP: usize = 32;

/// The number of bytes that hold the scales and minima of the eight groups of a block, six bits each.
const SCALE_BYTES: usize = 12;

#[derive(Debug)]
pub struct Encoding {
    /// The number that stands for the type in a file.
    id: u32,
    /// The name of the type, as the format's documentation spells it.
    pub name: &'static str,
    pub block_elements: usize,
    pub block_bytes: usize,
    /// Converts one block. The slices have exactly the lengths above.
    decode: fn(&[u8], &mut [f32]),
}

pub static ENCODINGS: [Encoding; 11] = [
    encoding(0, "F32", 1, 4, f32_element),
    encoding(1, "F16", 1, 2, |block, out| out[0] = half(block)),
    encoding(30, "BF16", 1, 2, |block, out| out[0] = f32::from_le_bytes([0, 0, block[0], block[1]])),
    encoding(8, "Q8_0", 32, 34, q8_0),
    encoding(2, "Q4_0", 32, 18, nibbles::<false, false>),
    encoding(3, "Q4_1", 32, 20, nibbles::<true, false>),
    encoding(6, "Q5_0", 32, 22, nibbles::<false, true>),
    encoding(7, "Q5_1", 32, 24, nibbles::<true, true>),
    encoding(12, "Q4_K", SUPER_BLOCK, 144, grouped::<false>),
    encoding(13, "Q5_K", SUPER_BLOCK, 176, grouped::<true>),
    encoding(14, "Q6_K", SUPER_BLOCK, 210, q6_k),
];

/// The names of types that are not supported, for errors.
const OTHERS: [(u32, &str); 23] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

const fn encoding(
    id: u32,
    name: &'static str,
    block_elements: usize,
    block_bytes: usize,
    decode: fn(&[u8], &mut [f32]),
) -> Encoding {
    Encoding { id, name, block_elements, block_bytes, decode }
}

impl Encoding {
    /// Returns the type with the number `id`.
    ///
    /// # Errors
    /// Returns the name of the type, or its number, if it is not supported.
    pub fn with_id(id: u32) -> Result<&'static Self, String> {
        ENCODINGS.iter().find(|encoding| encoding.id == id).ok_or_else(|| {
            let other = OTHERS.iter().find(|(other, _)| *other == id);
            other.map_or_else(|| format!("type {id}"), |(_, name)| (*name).to_owned())
        })
    }

    /// Returns the type with this name, which must be one of [`ENCODINGS`].
    pub fn named(name: &str) -> &'static Self {
        ENCODINGS.iter().find(|encoding| encoding.name == name).expect("the name of a supported type")
    }

    /// The names of all supported types.
    pub fn supported() -> String {
        ENCODINGS.each_ref().map(|encoding| encoding.name).join(", ")
    }

    /// Converts whole blocks to their elements. Bytes after the last whole block are ignored.
    pub fn decode(&self, bytes: &[u8]) -> Vec<f32> {
        let mut elements = vec![0.0; bytes.len() / self.block_bytes * self.block_elements];
        let blocks = bytes.chunks_exact(self.block_bytes);
        for (block, out) in blocks.zip(elements.chunks_exact_mut(self.block_elements)) {
            (self.decode)(block, out);
        }
        elements
    }
}

/// Reads a 16-bit float from the first two bytes.
fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn f32_element(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
}

/// A scale, then one signed byte for each element.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let (scale, quants) = block.split_at(2);
    let scale = half(scale);
    for (out, quant) in out.iter_mut().zip(quants) {
        *out = scale * f32::from(quant.cast_signed());
    }
}

/// `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1`: a scale; with `MIN`, the value of the quant 0 (otherwise the quants
/// are centred around 0); with `FIFTH`, the fifth bits of all quants; then four bits for each quant, those of
/// the first half of the block in the lower halves of the bytes.
fn nibbles<const MIN: bool, const FIFTH: bool>(block: &[u8], out: &mut [f32]) {
    let (scale, rest) = block.split_at(2);
    let (min, rest) = rest.split_at(if MIN { 2 } else { 0 });
    let (fifth, quants) = rest.split_at(if FIFTH { 4 } else { 0 });
    let scale = half(scale);
    let half_block = out.len() / 2;
    for (at, out) in out.iter_mut().enumerate() {
        let byte = quants[at % half_block];
        let mut quant = if at < half_block { byte & 15 } else { byte >> 4 };
        if FIFTH {
            quant |= (fifth[at / 8] >> (at % 8) & 1) << 4;
        }
        *out = if MIN {
            scale * f32::from(quant) + half(min)
        } else {
            scale * (f32::from(quant) - if FIFTH { 16.0 } else { 8.0 })
        };
    }
}

/// `Q4_K` and, with `FIFTH`, `Q5_K`: the scale of the scales, the scale of the minima, a scale and a minimum
/// for each of eight groups, with `FIFTH` the fifth bits (one byte for each position in a group, one bit for
/// each group), then four bits for each quant, two groups side by side.
fn grouped<const FIFTH: bool>(block: &[u8], out: &mut [f32]) {
    let (of_scales, of_minima) = (half(block), half(&block[2..]));
    let (packed, rest) = block[4..].split_at(SCALE_BYTES);
    let (fifth, quants) = rest.split_at(if FIFTH { GROUP } else { 0 });
    for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let (scale, min) = scale_and_min(packed, group);
        let (scale, min) = (of_scales * f32::from(scale), of_minima * f32::from(min));
        let quants = &quants[group / 2 * GROUP..][..GROUP];
        for (at, out) in out.iter_mut().enumerate() {
            let mut quant = quants[at] >> (group % 2 * 4) & 15;
            if FIFTH {
                quant |= (fifth[at] >> group & 1) << 4;
            }
            *out = scale * f32::from(quant) - min;
        }
    }
}

/// The scale and the minimum of a group of [`grouped`], six bits each. Those of the first four groups have a
/// byte of their own. Those of the others have their lower four bits in the last four bytes, and their upper
/// two bits where the first four groups leave them free.
fn scale_and_min(packed: &[u8], group: usize) -> (u8, u8) {
    let at = group % 4;
    let (scale, min) = (packed[at], packed[4 + at]);
    if group < 4 {
        return (scale & 63, min & 63);
    }
    let lower = packed[8 + at];
    (lower & 15 | scale >> 2 & 48, lower >> 4 | min >> 2 & 48)
}

/// The lower four bits of all quants, the upper two bits, a scale for every 16 elements, and the scale of the
/// scales. Each half of the block has four groups of 32 elements.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (lower, rest) = block.split_at(SUPER_BLOCK / 2);
    let (upper, rest) = rest.split_at(SUPER_BLOCK / 4);
    let (scales, of_scales) = rest.split_at(SUPER_BLOCK / 16);
    let of_scales = half(of_scales);
    for (at, out) in out.iter_mut().enumerate() {
        let (part, group, within) = (at / 128, at / GROUP % 4, at % GROUP);
        let low = lower[part * 64 + group % 2 * GROUP + within] >> (group / 2 * 4) & 15;
        let high = upper[part * GROUP + within] >> (group * 2) & 3;
        let scale = of_scales * f32::from(scales[at / 16].cast_signed());
        *out = scale * (f32::from(high << 4 | low) - 32.0);
    }
}
