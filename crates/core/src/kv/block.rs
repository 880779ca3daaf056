//! Blocks: the cached form of one chunk, with its keys and with the positions of its tokens and sentences in
//! its text. Must not know where blocks are stored.
//!
//! A block is one contiguous run of bytes, which every tier stores unchanged and the scan reads in place. The
//! windows of a long chunk are one block, because they are always needed together. The layout is:
//!
//! | part | bytes |
//! |---|---|
//! | magic number, the last byte of which is the version of the layout | 4 |
//! | id of the codec | 1 |
//! | the text's language as an ISO 639-3 code; zeros if it is unknown | 3 |
//! | heads, head_dim, tokens, title tokens, sentences, offsets; each a little-endian `u32` | 24 |
//! | unused | 32 |
//! | keys, `[head]` in the layout of the codec | |
//! | scales `[head, token]` as little-endian `f32`, for quantized codecs; tokens fill whole tiles | 4 each |
//! | sentences: start and end in bytes of the text and in tokens, as little-endian `u32` | 16 each |
//! | offsets of the text's tokens, see `encoding` | about 2 each |

mod check;
mod encoding;

use bytes::Bytes;
use ndarray::{Array3, ArrayView3};
use thiserror::Error;

use super::codec::{Codec, LANES};
use crate::domain::{ByteRange, Lang, TokenSpan};

/// The first bytes of every block. The last one is the version of the layout.
const MAGIC: [u8; 4] = *b"thr\x02";

const HEADER_BYTES: usize = 64;

/// The offset in the header at which the language stands.
const LANG_AT: usize = MAGIC.len() + 1;

/// Bytes of one sentence: the start and end of its text and of its tokens.
const SENTENCE_BYTES: usize = 16;

/// The error for bytes that are not the block of a chunk. The text says what is wrong with them.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not a valid block: {0}")]
pub struct BadBlock(pub(super) &'static str);

/// The contents of a block, before it is encoded.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The keys, `[head, token, head_dim]`. The tokens of the title come first, then those of the text.
    pub keys: ArrayView3<'a, f32>,
    pub title_tokens: usize,
    /// The byte range in the text of each token after the title, in ascending order.
    pub offsets: &'a [ByteRange],
    /// The sentences of the text, in ascending order.
    pub sentences: &'a [Sentence],
    /// The language of the text; `None` if it is unknown.
    pub lang: Option<Lang>,
}

/// A sentence of a chunk, as a byte range of its text and as a span of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentence {
    /// Byte range in the chunk's text.
    pub bytes: ByteRange,
    /// Tokens of the block, counted from the first token of the title. The span is empty if the sentence has
    /// no tokens.
    pub tokens: TokenSpan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCounts {
    /// All tokens, those of the title included.
    pub tokens: usize,
    /// The tokens of the title, which come first.
    pub title_tokens: usize,
}

/// An encoded chunk. Cloning is cheap, because clones share the bytes.
#[derive(Debug, Clone)]
pub struct Block {
    bytes: Bytes,
    codec: Codec,
    heads: usize,
    head_dim: usize,
    tokens: usize,
    title_tokens: usize,
    sentences: usize,
    parts: PartOffsets,
}

/// The byte offsets at which the variable parts of a block begin, behind the keys.
#[derive(Debug, Clone, Copy)]
struct PartOffsets {
    scales: usize,
    sentences: usize,
    offsets: usize,
}

/// Encodes a block in parts, so that the values of a long chunk are never in memory all together.
pub struct BlockEncoder {
    codec: Codec,
    /// `(heads, tokens, head_dim)`.
    dim: (usize, usize, usize),
    /// Room for the header, then the keys.
    bytes: Vec<u8>,
    scales: Vec<f32>,
}

impl BlockEncoder {
    /// Begins a block with keys of these dimensions, `(heads, tokens, head_dim)`.
    pub fn new(dim: (usize, usize, usize), codec: Codec) -> Self {
        let (heads, tokens, head_dim) = dim;
        let bytes = vec![0; HEADER_BYTES + heads * codec.head_bytes(tokens, head_dim)];
        Self { codec, dim, bytes, scales: vec![0.0; heads * codec.head_scales(tokens)] }
    }

    /// Encodes the keys `[head, token, head_dim]` of the tokens from `first` on.
    pub fn add(&mut self, first: usize, keys: ArrayView3<f32>) {
        let (tokens, to) = (self.dim.1, &mut self.bytes[HEADER_BYTES..]);
        self.codec.encode_part(keys, first, tokens, to, &mut self.scales);
    }

    /// Returns the block, with everything of `parts` but its keys.
    ///
    /// # Panics
    /// When a number does not fit 32 bits. The limits on requests are far lower.
    pub fn finish(self, parts: Parts) -> Block {
        let Self { codec, dim: (heads, tokens, head_dim), mut bytes, scales } = self;
        bytes.reserve_exact(
            4 * scales.len() + SENTENCE_BYTES * parts.sentences.len() + 3 * parts.offsets.len(),
        );
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend(MAGIC);
        header.push(codec.id());
        header.extend(parts.lang.map_or([0; 3], Lang::as_bytes));
        let numbers =
            [heads, head_dim, tokens, parts.title_tokens, parts.sentences.len(), parts.offsets.len()];
        numbers.into_iter().for_each(|number| encoding::put_u32(&mut header, number));
        bytes[..header.len()].copy_from_slice(&header);
        scales.iter().for_each(|scale| bytes.extend(scale.to_le_bytes()));
        for Sentence { bytes: text, tokens } in parts.sentences {
            [text.start, text.end, tokens.start, tokens.end]
                .into_iter()
                .for_each(|n| encoding::put_u32(&mut bytes, n));
        }
        encoding::put_offsets(&mut bytes, parts.offsets);
        Block::parse(bytes.into()).expect("an encoded block can be parsed")
    }
}

impl Block {
    /// Encodes a chunk.
    ///
    /// # Panics
    /// When a number does not fit 32 bits. The limits on requests are far lower.
    pub fn encode(parts: Parts, codec: Codec) -> Self {
        let mut encoder = BlockEncoder::new(parts.keys.dim(), codec);
        encoder.add(0, parts.keys);
        encoder.finish(parts)
    }

    /// Finds the parts of a block without copying them. It checks the structure only: the tiers compare
    /// checksums, and [`Self::check`] checks the contents.
    ///
    /// # Errors
    /// Returns [`BadBlock`] when the bytes do not have the structure of a block.
    pub fn parse(bytes: Bytes) -> Result<Self, BadBlock> {
        let header = bytes.get(..HEADER_BYTES).ok_or(BadBlock("it is shorter than the header"))?;
        if header[..4] != MAGIC {
            return Err(BadBlock("the layout version is unknown"));
        }
        let codec = Codec::from_id(header[4]).ok_or(BadBlock("the codec is unknown"))?;
        let number = |i: usize| encoding::u32_at(&header[8..], i);
        let [heads, head_dim, tokens, title_tokens, sentences, offsets] = std::array::from_fn(number);
        if heads == 0 || head_dim == 0 {
            return Err(BadBlock("the keys have no values"));
        }
        if title_tokens + offsets != tokens {
            return Err(BadBlock("tokens have no offset in the text"));
        }
        let parts = PartOffsets::new(codec, heads, tokens, head_dim, sentences);
        let parts = parts.ok_or(BadBlock("it is larger than the address space"))?;
        // The offsets of a token take at least two bytes.
        if bytes.len().checked_sub(parts.offsets).is_none_or(|left| left / 2 < offsets) {
            return Err(BadBlock("it is truncated"));
        }
        let block = Self { bytes, codec, heads, head_dim, tokens, title_tokens, sentences, parts };
        let mut text_at = 0;
        for Sentence { bytes, tokens: span } in block.sentences() {
            if span.start > span.end || span.end > tokens {
                return Err(BadBlock("a sentence has tokens beyond the end"));
            }
            if bytes.start < text_at || bytes.end < bytes.start {
                return Err(BadBlock("the sentences are not in ascending order"));
            }
            text_at = bytes.end;
        }
        Ok(block)
    }

    pub fn token_counts(&self) -> TokenCounts {
        TokenCounts { tokens: self.tokens, title_tokens: self.title_tokens }
    }

    /// Returns the bytes of the block, as the tiers store them.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Returns the shape of the keys, `(heads, tokens, head_dim)`.
    pub fn shape(&self) -> (usize, usize, usize) {
        (self.heads, self.tokens, self.head_dim)
    }

    /// Returns the number of tokens, those of the title included.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of tokens in the title, which come first.
    pub fn title_tokens(&self) -> usize {
        self.title_tokens
    }

    /// Returns the number of tokens in the text, those of the title not included.
    pub fn text_tokens(&self) -> usize {
        self.tokens - self.title_tokens
    }

    /// Returns the keys of one head, in the layout of the codec.
    pub fn head_keys(&self, head: usize) -> &[u8] {
        let bytes = self.codec.head_bytes(self.tokens, self.head_dim);
        &self.bytes[HEADER_BYTES + head * bytes..][..bytes]
    }

    /// Returns the scales of one head's keys as little-endian `f32`, filled up to whole tiles. It is empty
    /// for codecs without scales.
    pub fn head_scales(&self, head: usize) -> &[u8] {
        let bytes = 4 * self.codec.head_scales(self.tokens);
        &self.bytes[self.parts.scales + head * bytes..][..bytes]
    }

    /// Returns the decoded keys, `[head, token, head_dim]`, with the precision of the codec.
    pub fn keys(&self) -> Array3<f32> {
        let mut keys = Array3::zeros(self.shape());
        for (plane, mut keys) in keys.outer_iter_mut().enumerate() {
            let keys = keys.as_slice_mut().expect("a new array is contiguous");
            self.read_plane(plane, TokenSpan::new(0, self.tokens), keys);
        }
        keys
    }

    /// Decodes the keys of some tokens of one plane (head) into `out`, `[token, head_dim]`, with the
    /// precision of the codec.
    ///
    /// # Panics
    /// When the block does not have the plane or the tokens, or `out` has another size.
    pub fn read_plane(&self, plane: usize, tokens: TokenSpan, out: &mut [f32]) {
        assert!(plane < self.heads && tokens.end <= self.tokens, "plane {plane}, tokens to {}", tokens.end);
        assert_eq!(out.len(), tokens.len() * self.head_dim, "the output has the size of the tokens");
        self.codec.decode_into(self.head_keys(plane), self.head_scales(plane), tokens, self.head_dim, out);
    }

    /// Returns the block of the same chunk in another codec. The decoded keys of this block are encoded
    /// again, so precision that its codec lost is not restored.
    pub fn recoded(&self, codec: Codec) -> Self {
        let (keys, offsets, sentences) = (self.keys(), self.offsets(), self.sentences().collect::<Vec<_>>());
        let parts = Parts {
            keys: keys.view(),
            title_tokens: self.title_tokens,
            offsets: &offsets,
            sentences: &sentences,
            lang: self.lang(),
        };
        Self::encode(parts, codec)
    }

    /// Returns the sentences of the text, in ascending order.
    pub fn sentences(&self) -> impl ExactSizeIterator<Item = Sentence> + '_ {
        let stored = &self.bytes[self.parts.sentences..self.parts.offsets];
        (0..self.sentences).map(|i| {
            let [start, end, first, after] = std::array::from_fn(|n| encoding::u32_at(stored, 4 * i + n));
            // `new` would panic for damaged numbers. `parse` calls this function and refuses them.
            Sentence { bytes: ByteRange { start, end }, tokens: TokenSpan { start: first, end: after } }
        })
    }

    /// Returns the language of the text; `None` if it is unknown.
    pub fn lang(&self) -> Option<Lang> {
        Lang::from_bytes(*self.bytes[LANG_AT..].first_chunk().expect("the header is longer"))
    }

    /// Returns the byte range in the text of each token after the title, in token order.
    pub fn offsets(&self) -> Vec<ByteRange> {
        encoding::offsets(&self.bytes[self.parts.offsets..], self.text_tokens())
    }
}

impl PartOffsets {
    /// Returns the offsets, or `None` if the address space could not hold the block with its keys as values
    /// of four bytes.
    fn new(codec: Codec, heads: usize, tokens: usize, head_dim: usize, sentences: usize) -> Option<Self> {
        // Each of the three numbers is below 2^32, so their product is below 2^96.
        let [wide_heads, wide_tokens, wide_dim] = [heads, tokens, head_dim].map(|n| n as u128);
        let lanes = LANES as u128;
        isize::try_from(4 * wide_heads * wide_dim * wide_tokens.next_multiple_of(lanes).max(lanes)).ok()?;
        // No codec takes more than four bytes per value, so nothing below overflows.
        let scales = heads.checked_mul(codec.head_bytes(tokens, head_dim))?.checked_add(HEADER_BYTES)?;
        let sentences_at = (4 * heads).checked_mul(codec.head_scales(tokens))?.checked_add(scales)?;
        let offsets = SENTENCE_BYTES.checked_mul(sentences)?.checked_add(sentences_at)?;
        Some(Self { scales, sentences: sentences_at, offsets })
    }
}

/// Returns the tokens that overlap the byte range `bytes` of a chunk's text, counted from the first token of
/// the title. `offsets` are the byte ranges of the text's tokens. The span is empty, at the right position,
/// if no token overlaps the range.
pub fn tokens_under(offsets: &[ByteRange], title_tokens: usize, bytes: ByteRange) -> TokenSpan {
    let first = offsets.partition_point(|token| token.end <= bytes.start);
    let after = offsets.partition_point(|token| token.start < bytes.end);
    TokenSpan::new(title_tokens + first, title_tokens + after.max(first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(codec: Codec, tokens: usize, title_tokens: usize) -> (Block, Vec<ByteRange>, Vec<Sentence>) {
        let keys =
            Array3::from_shape_fn((2, tokens, 12), |(h, t, i)| ((h + 3 * t + 5 * i) % 17) as f32 - 8.0);
        // With gaps between tokens, a letter of several tokens, and a jump back.
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
        let parts =
            Parts { keys: keys.view(), title_tokens, offsets: &offsets, sentences: &sentences, lang: None };
        (Block::encode(parts, codec), offsets, sentences)
    }

    #[test]
    fn the_layout_of_blocks_changes_only_with_its_version() {
        let version = MAGIC[3];
        let layout: Vec<String> = Codec::ALL
            .iter()
            .map(|&codec| blake3::hash(block(codec, 37, 5).0.bytes()).to_hex()[..16].to_owned())
            .collect();
        let expect = ["d61ee23a0bb9d8dc", "4806526dd2db4222", "413ad46ecae54913"];
        assert_eq!(layout, expect, "a new layout needs a new version in MAGIC and in CONTEXT of key.rs");
        assert!(super::super::key::CONTEXT.ends_with(&format!(" {version}")), "both name the same version");
        let mut old = block(Codec::Int8, 37, 5).0.bytes().to_vec();
        old[3] = version - 1;
        assert_eq!(Block::parse(old.into()).unwrap_err().0, "the layout version is unknown");
    }

    #[test]
    fn a_block_has_the_contents_it_was_encoded_from() {
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

    /// Calls everything that may be called on a block that was parsed, whatever it contains.
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
        fn a_parsed_block_can_be_used_without_panics(
            codec in prop::sample::select(&Codec::ALL[..]),
            tokens in 0_usize..40,
            // Changed numbers of the header, by index and value; then changed bytes anywhere.
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
    fn bytes_without_the_structure_of_a_block_are_refused() {
        let (whole, ..) = block(Codec::Int8, 37, 5);
        let sentences_at = whole.parts.sentences;
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
        check("keys of 2^64 bytes, which overflow to 0", &wraps, "it is larger than the address space");
        check("no heads", &[(heads, 0)], "the keys have no values");
        check("no dimensions", &[(dim, 0)], "the keys have no values");
        check("more tokens than offsets", &[(tokens, 38)], "tokens have no offset in the text");
        check(
            "a huge chunk without dimensions",
            &[(dim, 0), (tokens, u32::MAX), (title, u32::MAX - 32)],
            "the keys have no values",
        );
        check("sentences beyond the end", &[(sentences, u32::MAX)], "it is truncated");
        check(
            "a sentence's tokens reversed",
            &[(sentences_at + 8, 11)],
            "a sentence has tokens beyond the end",
        );
        check(
            "a sentence's tokens beyond",
            &[(sentences_at + 12, 38)],
            "a sentence has tokens beyond the end",
        );
        check(
            "a sentence's bytes reversed",
            &[(sentences_at, 70)],
            "the sentences are not in ascending order",
        );
        check(
            "two sentences that overlap",
            &[(sentences_at + 4, 71)],
            "the sentences are not in ascending order",
        );
        assert_eq!(refused(b"thr"), "it is shorter than the header");
        assert_eq!(refused(&[b'x'; 80]), "the layout version is unknown");
        assert_eq!(refused(&whole.bytes()[..100]), "it is truncated");
        assert_eq!(
            refused(&whole.bytes()[..whole.parts.offsets + 2 * 32 - 1]),
            "it is truncated",
            "within the offsets"
        );
    }
}
