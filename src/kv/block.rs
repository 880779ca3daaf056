//! A chunk as it is kept: its keys, and where its tokens and sentences stand in its text.
//! One run of bytes that every tier stores as it is and the scan reads where it lies; knows no tier.
//!
//! All windows of a chunk are one block: a window is never wanted without the others.

use bytes::Bytes;
use ndarray::{Array3, ArrayView3};
use thiserror::Error;

use super::codec::Codec;
use crate::domain::{ByteRange, TokenSpan};

/// First bytes of every block; the last one is the layout's version.
const MAGIC: [u8; 4] = *b"thr\x01";

/// Bytes before the keys: magic, codec, three bytes unused, then eight numbers of four bytes.
const HEADER_BYTES: usize = 64;

/// Bytes of one sentence: where its text and its tokens begin and end.
const SENTENCE_BYTES: usize = 16;

/// Bytes that are not a block.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a block: {0}")]
pub struct BadBlock(&'static str);

/// What a block is made of.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// `[head, token, head_dim]`, title first.
    pub keys: ArrayView3<'a, f32>,
    /// How many tokens belong to the title.
    pub title_tokens: usize,
    /// Bytes of the text under each token that follows the title, ascending.
    pub offsets: &'a [ByteRange],
    /// Sentences of the text.
    pub sentences: &'a [Sentence],
}

/// A sentence of a chunk, in both ways of counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentence {
    /// Bytes of the chunk's text.
    pub bytes: ByteRange,
    /// Tokens of the block, title included; empty when the model reads nothing in it.
    pub tokens: TokenSpan,
}

/// An encoded chunk. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Block {
    bytes: Bytes,
    codec: Codec,
    heads: usize,
    head_dim: usize,
    tokens: usize,
    title_tokens: usize,
    sentences: usize,
    /// Where keys end and scales begin, scales end and sentences begin, sentences end and offsets begin.
    bounds: [usize; 3],
}

impl Block {
    /// Encodes a chunk.
    ///
    /// # Panics
    /// When a number does not fit 32 bits: requests are bounded far below.
    pub fn encode(parts: Parts, codec: Codec) -> Self {
        let (heads, tokens, head_dim) = parts.keys.dim();
        let encoded = codec.encode(parts.keys);
        let mut bytes = Vec::with_capacity(
            HEADER_BYTES
                + encoded.keys.len()
                + 4 * encoded.scales.len()
                + SENTENCE_BYTES * parts.sentences.len()
                + 3 * parts.offsets.len(),
        );
        bytes.extend(MAGIC);
        bytes.extend([codec.id(), 0, 0, 0]);
        let header =
            [heads, head_dim, tokens, parts.title_tokens, parts.sentences.len(), parts.offsets.len()];
        header.into_iter().for_each(|number| put(&mut bytes, number));
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(encoded.keys);
        encoded.scales.iter().for_each(|scale| bytes.extend(scale.to_le_bytes()));
        for Sentence { bytes: text, tokens } in parts.sentences {
            [text.start, text.end, tokens.start, tokens.end].into_iter().for_each(|n| put(&mut bytes, n));
        }
        put_offsets(&mut bytes, parts.offsets);
        Self::parse(bytes.into()).expect("what was just written can be read")
    }

    /// Finds a block's parts without copying them. Checksums are the tiers' affair; this refuses what does not even
    /// have the shape.
    ///
    /// # Errors
    /// [`BadBlock`].
    pub fn parse(bytes: Bytes) -> Result<Self, BadBlock> {
        let header = bytes.get(..HEADER_BYTES).ok_or(BadBlock("shorter than a header"))?;
        if header[..4] != MAGIC {
            return Err(BadBlock("of another layout"));
        }
        let codec = Codec::from_id(header[4]).ok_or(BadBlock("of an unknown codec"))?;
        let number = |i: usize| number(&header[8..], i);
        let [heads, head_dim, tokens, title_tokens, sentences, offsets] = std::array::from_fn(number);
        let too_large = BadBlock("larger than memory");
        let keys = (codec.head_bytes(tokens, head_dim)).checked_mul(heads);
        let scales = (4 * codec.head_scales(tokens)).checked_mul(heads);
        let (Some(keys), Some(scales)) = (keys, scales) else { return Err(too_large) };
        let scales_at = HEADER_BYTES.checked_add(keys).ok_or(too_large)?;
        let sentences_at = scales_at.checked_add(scales).ok_or(BadBlock("larger than memory"))?;
        let offsets_at =
            sentences_at.checked_add(SENTENCE_BYTES * sentences).ok_or(BadBlock("larger than memory"))?;
        if offsets_at > bytes.len() {
            return Err(BadBlock("cut off"));
        }
        if title_tokens + offsets != tokens {
            return Err(BadBlock("of tokens without a place"));
        }
        let bounds = [scales_at, sentences_at, offsets_at];
        let block = Self { bytes, codec, heads, head_dim, tokens, title_tokens, sentences, bounds };
        if block.sentences().any(|s| s.tokens.end > tokens) {
            return Err(BadBlock("of sentences beyond its tokens"));
        }
        Ok(block)
    }

    /// Its bytes, as tiers store them.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How its keys are stored.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// `(head, token, head_dim)` of its keys.
    pub fn shape(&self) -> (usize, usize, usize) {
        (self.heads, self.tokens, self.head_dim)
    }

    /// Tokens, those of the title included.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens of the title, which come first.
    pub fn title_tokens(&self) -> usize {
        self.title_tokens
    }

    /// Tokens of the text.
    pub fn text_tokens(&self) -> usize {
        self.tokens - self.title_tokens
    }

    /// Keys of one head, in the codec's layout.
    pub fn head_keys(&self, head: usize) -> &[u8] {
        let bytes = self.codec.head_bytes(self.tokens, self.head_dim);
        &self.bytes[HEADER_BYTES + head * bytes..][..bytes]
    }

    /// Scales of one head's keys, filled up to whole tiles; empty for codecs without. Four bytes each, little-endian.
    pub fn head_scales(&self, head: usize) -> &[u8] {
        let bytes = 4 * self.codec.head_scales(self.tokens);
        &self.bytes[self.bounds[0] + head * bytes..][..bytes]
    }

    /// Keys `[head, token, head_dim]`, as near as the codec keeps them.
    pub fn keys(&self) -> Array3<f32> {
        let scale_of =
            |head: usize, token: usize| f32::from_bits(number(self.head_scales(head), token) as u32);
        self.codec.decode(&self.bytes[HEADER_BYTES..self.bounds[0]], scale_of, self.shape())
    }

    /// The same chunk in another codec, as far as this one has kept it.
    pub fn recoded(&self, codec: Codec) -> Self {
        let (keys, offsets, sentences) = (self.keys(), self.offsets(), self.sentences().collect::<Vec<_>>());
        let parts = Parts {
            keys: keys.view(),
            title_tokens: self.title_tokens,
            offsets: &offsets,
            sentences: &sentences,
        };
        Self::encode(parts, codec)
    }

    /// Sentences of the text, in its order.
    pub fn sentences(&self) -> impl ExactSizeIterator<Item = Sentence> + '_ {
        let stored = &self.bytes[self.bounds[1]..self.bounds[2]];
        (0..self.sentences).map(|i| {
            let [start, end, first, after] = std::array::from_fn(|n| number(stored, 4 * i + n));
            // Not `new`: damaged numbers are refused when the block is parsed, without a panic.
            Sentence { bytes: ByteRange { start, end }, tokens: TokenSpan { start: first, end: after } }
        })
    }

    /// Bytes of the text under each token that follows the title.
    pub fn offsets(&self) -> Vec<ByteRange> {
        let mut at = 0;
        let mut bytes = self.bytes[self.bounds[2]..].iter().copied();
        (0..self.text_tokens())
            .map(|_| {
                let start = at + unfold(varint(&mut bytes));
                let end = start + varint(&mut bytes) as i64;
                at = end;
                ByteRange { start: start.max(0) as usize, end: end.max(0) as usize }
            })
            .collect()
    }
}

fn put(bytes: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("requests are bounded far below 2^32 tokens and bytes");
    bytes.extend(number.to_le_bytes());
}

/// The `i`-th number of four bytes.
fn number(bytes: &[u8], i: usize) -> usize {
    u32::from_le_bytes(bytes[4 * i..][..4].try_into().expect("four bytes were taken")) as usize
}

/// Gap to the token before and length of each token: two bytes a token, mostly. Tokens may overlap (a letter of several
/// tokens), so gaps have a sign.
fn put_offsets(bytes: &mut Vec<u8>, offsets: &[ByteRange]) {
    let mut at = 0;
    for offset in offsets {
        put_varint(bytes, fold(offset.start as i64 - at));
        put_varint(bytes, offset.len() as u64);
        at = offset.end as i64;
    }
}

/// Signed to unsigned, small ones small.
fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unfold(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Missing bytes read as 0, and no more than 32 bits are taken: damaged offsets are wrong, but cannot panic.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> u64 {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = bytes.next().unwrap_or(0);
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(codec: Codec, tokens: usize, title_tokens: usize) -> (Block, Vec<ByteRange>, Vec<Sentence>) {
        let keys =
            Array3::from_shape_fn((2, tokens, 12), |(h, t, i)| ((h + 3 * t + 5 * i) % 17) as f32 - 8.0);
        // Gaps, a letter of several tokens, and a jump back.
        let offset = |t: usize| match t % 5 {
            3 => ByteRange::new(7 * (t - 1), 7 * t + 4),
            _ => ByteRange::new(7 * t, 7 * t + 4 + 200 * (t % 2)),
        };
        let offsets: Vec<_> = (0..tokens - title_tokens).map(offset).collect();
        let sentence = |t: usize| Sentence {
            bytes: ByteRange::new(70 * t, 70 * t + 69),
            tokens: TokenSpan::new((10 * t).min(tokens), (10 * t + 10).min(tokens)),
        };
        let sentences: Vec<_> = (0..tokens.div_ceil(10)).map(sentence).collect();
        let parts = Parts { keys: keys.view(), title_tokens, offsets: &offsets, sentences: &sentences };
        (Block::encode(parts, codec), offsets, sentences)
    }

    #[test]
    fn what_goes_in_comes_out() {
        for codec in Codec::ALL {
            for (tokens, title) in [(0, 0), (1, 0), (16, 3), (37, 5), (200, 200)] {
                let (block, offsets, sentences) = block(codec, tokens, title);
                assert_eq!(
                    (block.codec(), block.shape(), block.title_tokens()),
                    (codec, (2, tokens, 12), title)
                );
                assert_eq!(block.offsets(), offsets, "{codec} {tokens}");
                assert_eq!(block.sentences().collect::<Vec<_>>(), sentences, "{codec} {tokens}");
                assert_eq!(block.keys().dim(), (2, tokens, 12));
            }
        }
        let (exact, ..) = block(Codec::F32, 20, 0);
        assert_eq!(exact.keys()[[1, 3, 2]], ((1 + 9 + 10) % 17) as f32 - 8.0);
    }

    #[test]
    fn damage_never_panics() {
        let (whole, ..) = block(Codec::Int8, 37, 5);
        let whole = whole.bytes();
        for cut in 0..whole.len() {
            let _ = Block::parse(whole.slice(..cut)).map(|block| block.offsets());
        }
        for at in 0..HEADER_BYTES {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] ^= flip;
                let _ = Block::parse(bytes.into()).map(|block| (block.keys().len(), block.offsets()));
            }
        }
        let refused = |bytes: &[u8]| Block::parse(bytes.to_vec().into()).unwrap_err().to_string();
        assert_eq!(refused(b"thr"), "not a block: shorter than a header");
        assert_eq!(refused(&[b'x'; 80]), "not a block: of another layout");
        assert_eq!(refused(&whole[..100]), "not a block: cut off");
    }
}
