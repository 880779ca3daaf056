//! A chunk as it is kept: its keys, and where its tokens and sentences stand in its text.
//! One run of bytes that every tier stores as it is and the scan reads where it lies; knows no tier.
//!
//! All windows of a chunk are one block: a window is never wanted without the others.

use bytes::Bytes;
use half::f16;
use ndarray::{Array3, ArrayView3};
use thiserror::Error;

use super::codec::{Codec, LANES};
use crate::domain::{ByteRange, TokenSpan};

/// First bytes of every block; the last one is the layout's version.
const MAGIC: [u8; 4] = *b"thr\x01";

/// Bytes before the keys: magic, codec, three bytes unused, then eight numbers of four bytes.
const HEADER_BYTES: usize = 64;

/// Bytes of one sentence: where its text and its tokens begin and end.
const SENTENCE_BYTES: usize = 16;

/// The largest magnitude that a key's value may have in a block that comes from outside this process. Keys of real models stay
/// far below it. The product of two vectors of such values, with 2^16 dimensions, is still a finite `f32`.
const KEY_VALUE_MAX: f32 = 1e15;

/// Why some bytes are not the block of a chunk.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a block: {0}")]
pub struct BadBlock(pub(super) &'static str);

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

/// How many tokens a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCounts {
    /// All of them.
    pub tokens: usize,
    /// Those of the title, which come first.
    pub title_tokens: usize,
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
        if heads == 0 || head_dim == 0 {
            return Err(BadBlock("of keys without values"));
        }
        if title_tokens + offsets != tokens {
            return Err(BadBlock("of tokens without a place"));
        }
        let bounds = bounds(codec, (heads, tokens, head_dim), sentences);
        let bounds = bounds.ok_or(BadBlock("larger than memory"))?;
        // A token's place takes two bytes at least.
        if bytes.len().checked_sub(bounds[2]).is_none_or(|left| left / 2 < offsets) {
            return Err(BadBlock("cut off"));
        }
        let block = Self { bytes, codec, heads, head_dim, tokens, title_tokens, sentences, bounds };
        let mut text_at = 0;
        for Sentence { bytes, tokens: span } in block.sentences() {
            if span.start > span.end || span.end > tokens {
                return Err(BadBlock("of sentences beyond its tokens"));
            }
            if bytes.start < text_at || bytes.end < bytes.start {
                return Err(BadBlock("of sentences out of order"));
            }
            text_at = bytes.end;
        }
        Ok(block)
    }

    /// Whether it was made by `codec` of a model with so many heads and dimensions. Costs three comparisons.
    ///
    /// # Errors
    /// [`BadBlock`].
    pub fn check_shape(&self, (heads, head_dim): (usize, usize), codec: Codec) -> Result<(), BadBlock> {
        match (self.heads, self.head_dim, self.codec) == (heads, head_dim, codec) {
            true => Ok(()),
            false => Err(BadBlock("of another model or codec")),
        }
    }

    /// Checks everything that later stages take from a block of `text` without looking again. A checksum only says that the bytes
    /// are those that somebody wrote: a block from a disk or from a server has to pass this check once, before it is used or
    /// kept in memory. It reads the whole block, so it is not repeated for blocks in memory.
    ///
    /// # Errors
    /// [`BadBlock`]: a sentence or a token that does not lie in `text` on character boundaries; a sentence whose tokens are not those
    /// that stand under its bytes; a key or a scale that is not a number below `KEY_VALUE_MAX`; bytes behind the end.
    pub fn check(&self, text: &str) -> Result<(), BadBlock> {
        let is_in_text = |bytes: ByteRange| text.get(bytes.start..bytes.end).is_some();
        let offsets =
            self.read_offsets().ok_or(BadBlock("of token offsets that do not end where the block does"))?;
        if !offsets.iter().all(|&offset| is_in_text(offset)) {
            return Err(BadBlock("of tokens outside its text, or inside a character"));
        }
        for sentence in self.sentences() {
            if sentence.bytes.is_empty() || !is_in_text(sentence.bytes) {
                return Err(BadBlock("of sentences outside its text, or inside a character"));
            }
            if sentence.tokens != tokens_under(&offsets, self.title_tokens, sentence.bytes) {
                return Err(BadBlock("of sentences with tokens of another place"));
            }
        }
        let is_number = |value: f32| value.abs() <= KEY_VALUE_MAX;
        let (keys, scales) =
            (&self.bytes[HEADER_BYTES..self.bounds[0]], &self.bytes[self.bounds[0]..self.bounds[1]]);
        // Without an early end, so that the compiler can use vectors.
        let are_numbers = match self.codec {
            Codec::F32 => floats(keys).fold(true, |all, value| all & is_number(value)),
            Codec::F16 => halves(keys).fold(true, |all, value| all & value.is_finite()),
            Codec::Int8 | Codec::Int4 => floats(scales).fold(true, |all, value| all & is_number(value)),
        };
        if are_numbers { Ok(()) } else { Err(BadBlock("of keys that are not finite numbers")) }
    }

    /// Checks that it has as many tokens as its chunk.
    ///
    /// # Errors
    /// [`BadBlock`].
    pub fn check_tokens(&self, expected: TokenCounts) -> Result<(), BadBlock> {
        match self.token_counts() == expected {
            true => Ok(()),
            false => Err(BadBlock("of more or fewer tokens than its chunk")),
        }
    }

    /// How many tokens it has.
    pub fn token_counts(&self) -> TokenCounts {
        TokenCounts { tokens: self.tokens, title_tokens: self.title_tokens }
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
        let mut keys = Array3::zeros(self.shape());
        for (plane, mut keys) in keys.outer_iter_mut().enumerate() {
            let keys = keys.as_slice_mut().expect("a new array is contiguous");
            self.read_plane(plane, TokenSpan::new(0, self.tokens), keys);
        }
        keys
    }

    /// Writes some tokens of one plane, `[token, head_dim]`, as near as the codec keeps them.
    ///
    /// # Panics
    /// When the block has no such plane or tokens, or `out` is of another size.
    pub fn read_plane(&self, plane: usize, tokens: TokenSpan, out: &mut [f32]) {
        assert!(plane < self.heads && tokens.end <= self.tokens, "plane {plane}, tokens to {}", tokens.end);
        assert_eq!(out.len(), tokens.len() * self.head_dim, "room for the tokens");
        self.codec.decode_into(self.head_keys(plane), self.head_scales(plane), tokens, self.head_dim, out);
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

    /// As [`Self::offsets`]; none when a number is cut off or too large, a range is reversed or begins before the text, or something
    /// stands behind the last token.
    fn read_offsets(&self) -> Option<Vec<ByteRange>> {
        let mut at = 0_i64;
        let mut bytes = self.bytes[self.bounds[2]..].iter().copied();
        let read = |_| {
            let start = at + unfold(strict_varint(&mut bytes)?);
            at = start + i64::try_from(strict_varint(&mut bytes)?).ok()?;
            Some(ByteRange { start: usize::try_from(start).ok()?, end: usize::try_from(at).ok()? })
        };
        let offsets = (0..self.text_tokens()).map(read).collect::<Option<Vec<_>>>()?;
        bytes.next().is_none().then_some(offsets)
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

/// The tokens that lie in `bytes` of a chunk's text, counted from the first of its title. `offsets` are those of the text's tokens.
pub fn tokens_under(offsets: &[ByteRange], title_tokens: usize, bytes: ByteRange) -> TokenSpan {
    let first = offsets.partition_point(|token| token.end <= bytes.start);
    let after = offsets.partition_point(|token| token.start < bytes.end);
    TokenSpan::new(title_tokens + first, title_tokens + after.max(first))
}

/// Where keys end, scales end and sentences end, if this machine can hold them, also as numbers of four bytes.
fn bounds(
    codec: Codec,
    (heads, tokens, head_dim): (usize, usize, usize),
    sentences: usize,
) -> Option<[usize; 3]> {
    // All are below 2^32: their product is below 2^96.
    let [heads, tokens, head_dim] = [heads, tokens, head_dim].map(|n| n as u128);
    let lanes = LANES as u128;
    isize::try_from(4 * heads * head_dim * tokens.next_multiple_of(lanes).max(lanes)).ok()?;
    // No codec takes more than four bytes a value, so nothing below overflows.
    let (heads, tokens, head_dim) = (heads as usize, tokens as usize, head_dim as usize);
    let scales_at = heads.checked_mul(codec.head_bytes(tokens, head_dim))?.checked_add(HEADER_BYTES)?;
    let sentences_at = (4 * heads).checked_mul(codec.head_scales(tokens))?.checked_add(scales_at)?;
    let offsets_at = SENTENCE_BYTES.checked_mul(sentences)?.checked_add(sentences_at)?;
    Some([scales_at, sentences_at, offsets_at])
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

/// As [`varint`]; none when bytes are missing or the number has more than 35 bits.
fn strict_varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Numbers of two bytes, little-endian.
fn halves(bytes: &[u8]) -> impl Iterator<Item = f16> + '_ {
    bytes.as_chunks().0.iter().map(|&value| f16::from_le_bytes(value))
}

/// Numbers of four bytes, little-endian.
fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    /// Everything that is asked of a block, which may hold anything that was parsed.
    fn use_all_of(block: &Block) {
        let (heads, tokens, dim) = block.shape();
        assert_eq!(block.keys().dim(), (heads, tokens, dim));
        assert_eq!(
            (block.offsets().len(), block.text_tokens()),
            (tokens - block.title_tokens(), block.text_tokens())
        );
        for head in [0, heads - 1] {
            assert_eq!(block.head_keys(head).len(), block.codec().head_bytes(tokens, dim));
            assert_eq!(block.head_scales(head).len(), 4 * block.codec().head_scales(tokens));
        }
        let mut at = 0;
        for Sentence { bytes, tokens: span } in block.sentences() {
            assert!(at <= bytes.start && bytes.start <= bytes.end);
            assert!(span.start <= span.end && span.end <= tokens);
            at = bytes.end;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn what_is_parsed_can_be_used_whatever_others_wrote(
            codec in prop::sample::select(&Codec::ALL[..]),
            tokens in 0_usize..40,
            // Numbers of the header, then of the whole.
            numbers in prop::collection::vec((2_usize..8, prop_oneof![0_u32..48, any::<u32>(), Just(u32::MAX), Just(1 << 31)]), 0..4),
            bytes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut whole = block(codec, tokens, tokens / 3).0.bytes().to_vec();
            for (at, number) in numbers {
                whole[4 * at..][..4].copy_from_slice(&number.to_le_bytes());
            }
            for (at, byte) in bytes {
                let at = at.index(whole.len());
                whole[at] = byte;
            }
            if let Some(cut) = cut {
                whole.truncate(cut.index(whole.len() + 1));
            }
            if let Ok(block) = Block::parse(whole.into()) {
                use_all_of(&block);
            }
        }
    }

    #[test]
    fn what_later_code_relies_on_is_refused() {
        let (whole, ..) = block(Codec::Int8, 37, 5);
        let sentences_at = whole.bounds[1];
        let refused = |bytes: &[u8]| Block::parse(bytes.to_vec().into()).unwrap_err().0;
        let check = |name: &str, numbers: &[(usize, u32)], expect: &str| {
            let mut bytes = whole.bytes().to_vec();
            for &(at, number) in numbers {
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            assert_eq!(refused(&bytes), expect, "{name}");
        };
        let [heads, dim, tokens, title, sentences] = [8, 12, 16, 20, 24];
        let half = 1 << 31;
        let wraps = [(4, 0), (dim, half), (tokens, half), (title, half - 32), (sentences, 0)];
        check("keys of 2^64 bytes, which wrap to none", &wraps, "larger than memory");
        check("no head", &[(heads, 0)], "of keys without values");
        check("no dimension", &[(dim, 0)], "of keys without values");
        check("more tokens than places", &[(tokens, 38)], "of tokens without a place");
        check(
            "a huge chunk without dimensions",
            &[(dim, 0), (tokens, u32::MAX), (title, u32::MAX - 32)],
            "of keys without values",
        );
        check("sentences beyond the end", &[(sentences, u32::MAX)], "cut off");
        check("a sentence's tokens reversed", &[(sentences_at + 8, 11)], "of sentences beyond its tokens");
        check("a sentence's tokens beyond", &[(sentences_at + 12, 38)], "of sentences beyond its tokens");
        check("a sentence's bytes reversed", &[(sentences_at, 70)], "of sentences out of order");
        check("two sentences over each other", &[(sentences_at + 4, 71)], "of sentences out of order");
        assert_eq!(refused(b"thr"), "shorter than a header");
        assert_eq!(refused(&[b'x'; 80]), "of another layout");
        assert_eq!(refused(&whole.bytes()[..100]), "cut off");
        assert_eq!(refused(&whole.bytes()[..whole.bounds[2] + 2 * 32 - 1]), "cut off", "within the places");
    }

    #[test]
    fn a_block_of_another_model_or_codec_does_not_fit() {
        let (block, ..) = block(Codec::Int8, 20, 0);
        let fits = |shape, codec| block.check_shape(shape, codec).is_ok();
        assert!(fits((2, 12), Codec::Int8));
        assert!(!fits((1, 12), Codec::Int8), "heads");
        assert!(!fits((2, 24), Codec::Int8), "dimensions");
        assert!(!fits((2, 12), Codec::Int4), "codec");
    }

    /// A text of two sentences, and its block: each word and each full stop is a token, the letter of three bytes is two.
    const TEXT: &str = "One two. \u{6f6e} four.";

    fn words() -> (Vec<ByteRange>, Vec<Sentence>) {
        let offsets = [(0, 3), (4, 7), (7, 8), (9, 12), (9, 12), (13, 17), (17, 18)];
        let offsets: Vec<ByteRange> = offsets.map(|(start, end)| ByteRange::new(start, end)).into();
        let sentence = |start, end| {
            let bytes = ByteRange::new(start, end);
            Sentence { bytes, tokens: tokens_under(&offsets, 1, bytes) }
        };
        let sentences = vec![sentence(0, 8), sentence(9, 18)];
        (offsets, sentences)
    }

    fn of_words(codec: Codec, offsets: &[ByteRange], sentences: &[Sentence], key: f32) -> Block {
        let mut keys = Array3::from_elem((1, offsets.len() + 1, 4), 1.0);
        keys[[0, 3, 2]] = key;
        Block::encode(Parts { keys: keys.view(), title_tokens: 1, offsets, sentences }, codec)
    }

    #[test]
    fn a_block_is_checked_against_its_text() {
        let (offsets, sentences) = words();
        for codec in Codec::ALL {
            assert_eq!(of_words(codec, &offsets, &sentences, -3.0).check(TEXT), Ok(()), "{codec}");
        }
        let with = |at: usize, range: (usize, usize)| {
            let mut offsets = offsets.clone();
            offsets[at] = ByteRange { start: range.0, end: range.1 };
            of_words(Codec::Int8, &offsets, &sentences, 1.0)
        };
        let check = |name: &str, block: &Block, text: &str, expect: &'static str| {
            assert_eq!(block.check(text), Err(BadBlock(expect)), "{name}");
        };
        let [tokens, pieces, places, end, numbers] = [
            "of tokens outside its text, or inside a character",
            "of sentences outside its text, or inside a character",
            "of sentences with tokens of another place",
            "of token offsets that do not end where the block does",
            "of keys that are not finite numbers",
        ];
        check("a token beyond the text", &with(6, (17, 19)), TEXT, tokens);
        check("a token far beyond the text", &with(6, (4_000_000_000, 4_000_000_001)), TEXT, tokens);
        check("a token that ends inside a character", &with(4, (9, 11)), TEXT, tokens);
        check("a token that begins inside a character", &with(4, (10, 12)), TEXT, tokens);
        check("a token of another sentence", &with(2, (17, 18)), TEXT, places);
        let whole = with(0, (0, 3));
        check("another text", &whole, &TEXT[..17], tokens);
        check("another letter", &whole, &TEXT.replace("\u{6f6e} ", "\u{1f600}"), tokens);
        let of = |sentences: &[Sentence]| of_words(Codec::Int8, &offsets, sentences, 1.0);
        let changed = |change: &dyn Fn(&mut Sentence)| {
            let mut sentences = sentences.clone();
            change(&mut sentences[1]);
            of(&sentences)
        };
        check("a sentence beyond the text", &changed(&|s| s.bytes.end = 19), TEXT, pieces);
        check("a sentence inside a character", &changed(&|s| s.bytes.start = 10), TEXT, pieces);
        check("a sentence without text", &changed(&|s| s.bytes.start = 18), TEXT, pieces);
        check("a sentence with a token too few", &changed(&|s| s.tokens.end = 7), TEXT, places);
        check(
            "a sentence with the first one's tokens",
            &changed(&|s| s.tokens = sentences[0].tokens),
            TEXT,
            places,
        );
        check("a sentence with the title", &changed(&|s| s.tokens.start = 0), TEXT, places);

        let bytes = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole.bytes().to_vec();
            change(&mut bytes);
            Block::parse(bytes.into()).expect("it has the shape of a block")
        };
        check("a byte behind the end", &bytes(&|all| all.push(0)), TEXT, end);
        let offsets_at = whole.bounds[2];
        check("a token before the text", &bytes(&|all| all[offsets_at] = 3), TEXT, end);
        check("a number that does not end", &bytes(&|all| *all.last_mut().expect("bytes") = 0x80), TEXT, end);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -2e15] {
            let at = whole.bounds[0] + 4;
            let scale = bytes(&|all| all[at..at + 4].copy_from_slice(&value.to_le_bytes()));
            check("a scale", &scale, TEXT, numbers);
            check("a key", &of_words(Codec::F32, &offsets, &sentences, value), TEXT, numbers);
        }
        check("half a key", &of_words(Codec::F16, &offsets, &sentences, 1e9), TEXT, numbers);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Whatever passes the check can be used as the stages use it: texts are cut at offsets and sentences, and neighbouring
        /// sentences are joined.
        #[test]
        fn what_is_checked_can_be_used(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let (offsets, sentences) = words();
            let mut bytes = of_words(Codec::Int8, &offsets, &sentences, 1.0).bytes().to_vec();
            for (at, byte) in changes {
                // Mostly in the second half: sentences and offsets.
                let at = bytes.len() / 2 + at.index(bytes.len() - bytes.len() / 2);
                bytes[at] = byte;
            }
            if let Ok(block) = Block::parse(bytes.into()) && block.check(TEXT).is_ok() {
                block.offsets().iter().for_each(|offset| drop(offset.of(TEXT).to_owned()));
                let mut before = TokenSpan { start: 0, end: 0 };
                for Sentence { bytes, tokens } in block.sentences() {
                    assert!(!bytes.of(TEXT).is_empty());
                    assert!(before.start <= tokens.start && before.end <= tokens.end && tokens.end <= block.tokens());
                    before = tokens;
                }
                assert!(block.keys().iter().all(|key| key.is_finite()));
            }
        }
    }
}
