//! Checks of a block's contents: whether a block fits the model, the codec and the text of its chunk, so that
//! later stages can use it.

use half::f16;

use super::{BadBlock, Block, HEADER_BYTES, TokenCounts, encoding, tokens_under};
use crate::domain::ByteRange;
use crate::kv::codec::Codec;

/// The largest magnitude that a key's value may have in a block that comes from outside this process. The
/// keys of real models stay far below it. The product of two vectors of such values, with 2^16 dimensions, is
/// still a finite `f32`.
const KEY_VALUE_MAX: f32 = 1e15;

impl Block {
    /// Checks that the block was made with `codec` for a model with these numbers of heads and dimensions.
    /// Costs three comparisons.
    ///
    /// # Errors
    /// Returns [`BadBlock`] when any of the three differs.
    pub fn check_shape(&self, heads: usize, head_dim: usize, codec: Codec) -> Result<(), BadBlock> {
        if (self.heads, self.head_dim, self.codec) == (heads, head_dim, codec) {
            Ok(())
        } else {
            Err(BadBlock("it is of another model or codec"))
        }
    }

    /// Checks that the block has the same number of tokens as its chunk.
    ///
    /// # Errors
    /// Returns [`BadBlock`] when the numbers differ.
    pub fn check_tokens(&self, expected: TokenCounts) -> Result<(), BadBlock> {
        if self.token_counts() == expected {
            Ok(())
        } else {
            Err(BadBlock("it has more or fewer tokens than its chunk"))
        }
    }

    /// Checks everything about a block of `text` that later stages rely on without checking it again.
    ///
    /// A checksum only proves that the bytes are those that somebody wrote. A block from a disk or a server
    /// must therefore pass this check once, before it is used or kept in memory. The check reads the whole
    /// block, so it is not repeated for blocks in memory.
    ///
    /// # Errors
    /// Returns [`BadBlock`] when a sentence or a token is not in `text` or not on character boundaries, when
    /// the tokens of a sentence are not those under its bytes, when a key or a scale is not a number of at
    /// most `KEY_VALUE_MAX`, or when bytes follow the last offset.
    pub fn check(&self, text: &str) -> Result<(), BadBlock> {
        let is_in_text = |bytes: ByteRange| text.get(bytes.start..bytes.end).is_some();
        let offsets = encoding::strict_offsets(&self.bytes[self.parts.offsets..], self.text_tokens())
            .ok_or(BadBlock("the token offsets do not end at the end of the block"))?;
        if !offsets.iter().all(|&offset| is_in_text(offset)) {
            return Err(BadBlock("a token is outside the text or inside a character"));
        }
        for sentence in self.sentences() {
            if sentence.bytes.is_empty() || !is_in_text(sentence.bytes) {
                return Err(BadBlock("a sentence is empty, outside the text or inside a character"));
            }
            if sentence.tokens != tokens_under(&offsets, self.title_tokens, sentence.bytes) {
                return Err(BadBlock("the tokens of a sentence are not those under its text"));
            }
        }
        let is_number = |value: f32| value.abs() <= KEY_VALUE_MAX;
        let keys = &self.bytes[HEADER_BYTES..self.parts.scales];
        let scales = &self.bytes[self.parts.scales..self.parts.sentences];
        // The loops do not stop at the first bad value, so that the compiler can use vectors.
        let are_numbers = match self.codec {
            Codec::F32 => floats(keys).fold(true, |all, value| all & is_number(value)),
            Codec::F16 => halves(keys).fold(true, |all, value| all & value.is_finite()),
            Codec::Int8 => floats(scales).fold(true, |all, value| all & is_number(value)),
        };
        if are_numbers { Ok(()) } else { Err(BadBlock("keys are not finite numbers")) }
    }
}

/// Returns the elements of an array of little-endian `f16`.
fn halves(bytes: &[u8]) -> impl Iterator<Item = f16> + '_ {
    bytes.as_chunks().0.iter().map(|&value| f16::from_le_bytes(value))
}

/// Returns the elements of an array of little-endian `f32`.
fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value))
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;
    use proptest::prelude::*;

    use super::*;
    use crate::domain::TokenSpan;
    use crate::kv::block::{Parts, Sentence};

    #[test]
    fn a_block_of_another_model_or_codec_is_refused() {
        let keys = Array3::zeros((2, 20, 12));
        let offsets = vec![ByteRange::new(0, 1); 20];
        let parts =
            Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &[], lang: None };
        let block = Block::encode(parts, Codec::Int8);
        let fits = |heads, head_dim, codec| block.check_shape(heads, head_dim, codec).is_ok();
        assert!(fits(2, 12, Codec::Int8));
        assert!(!fits(1, 12, Codec::Int8), "heads");
        assert!(!fits(2, 24, Codec::Int8), "dimensions");
        assert!(!fits(2, 12, Codec::F16), "codec");
    }

    /// A text of two sentences. In its block, each word and each full stop is a token; the letter of three
    /// bytes is two tokens.
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
        Block::encode(Parts { keys: keys.view(), title_tokens: 1, offsets, sentences, lang: None }, codec)
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
        let [token_range, sentence_range, sentence_tokens, end, numbers] = [
            "a token is outside the text or inside a character",
            "a sentence is empty, outside the text or inside a character",
            "the tokens of a sentence are not those under its text",
            "the token offsets do not end at the end of the block",
            "keys are not finite numbers",
        ];
        check("a token beyond the text", &with(6, (17, 19)), TEXT, token_range);
        check("a token far beyond the text", &with(6, (4_000_000_000, 4_000_000_001)), TEXT, token_range);
        check("a token that ends inside a character", &with(4, (9, 11)), TEXT, token_range);
        check("a token that begins inside a character", &with(4, (10, 12)), TEXT, token_range);
        check("a token of another sentence", &with(2, (17, 18)), TEXT, sentence_tokens);
        let whole = with(0, (0, 3));
        check("a shorter text", &whole, &TEXT[..17], token_range);
        check("a text with another letter", &whole, &TEXT.replace("\u{6f6e} ", "\u{1f600}"), token_range);
        let of = |sentences: &[Sentence]| of_words(Codec::Int8, &offsets, sentences, 1.0);
        let changed = |change: &dyn Fn(&mut Sentence)| {
            let mut sentences = sentences.clone();
            change(&mut sentences[1]);
            of(&sentences)
        };
        check("a sentence beyond the text", &changed(&|s| s.bytes.end = 19), TEXT, sentence_range);
        check("a sentence inside a character", &changed(&|s| s.bytes.start = 10), TEXT, sentence_range);
        check("a sentence without text", &changed(&|s| s.bytes.start = 18), TEXT, sentence_range);
        check("a sentence with one token too few", &changed(&|s| s.tokens.end = 7), TEXT, sentence_tokens);
        check(
            "a sentence with the first one's tokens",
            &changed(&|s| s.tokens = sentences[0].tokens),
            TEXT,
            sentence_tokens,
        );
        check("a sentence with the title's token", &changed(&|s| s.tokens.start = 0), TEXT, sentence_tokens);

        let bytes = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole.bytes().to_vec();
            change(&mut bytes);
            Block::parse(bytes.into()).expect("it has the shape of a block")
        };
        check("a byte after the end", &bytes(&|all| all.push(0)), TEXT, end);
        let offsets_at = whole.parts.offsets;
        check("a token before the text", &bytes(&|all| all[offsets_at] = 3), TEXT, end);
        check("a number that does not end", &bytes(&|all| *all.last_mut().expect("bytes") = 0x80), TEXT, end);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -2e15] {
            let at = whole.parts.scales + 4;
            let scale = bytes(&|all| all[at..at + 4].copy_from_slice(&value.to_le_bytes()));
            check("a scale", &scale, TEXT, numbers);
            check("a key", &of_words(Codec::F32, &offsets, &sentences, value), TEXT, numbers);
        }
        check(
            "a key that half precision cannot represent",
            &of_words(Codec::F16, &offsets, &sentences, 1e9),
            TEXT,
            numbers,
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// A block that passes the check can be used as the stages use it: they cut texts at offsets and
        /// sentences, and join neighbouring sentences.
        #[test]
        fn a_checked_block_can_be_used_without_panics(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let (offsets, sentences) = words();
            let mut bytes = of_words(Codec::Int8, &offsets, &sentences, 1.0).bytes().to_vec();
            for (at, byte) in changes {
                // Changes are in the second half, which has the sentences and offsets.
                let at = bytes.len() / 2 + at.index(bytes.len() - bytes.len() / 2);
                bytes[at] = byte;
            }
            if let Ok(block) = Block::parse(bytes.into()) && block.check(TEXT).is_ok() {
                block.offsets().iter().for_each(|offset| drop(offset.slice(TEXT).to_owned()));
                let mut before = TokenSpan { start: 0, end: 0 };
                for Sentence { bytes, tokens } in block.sentences() {
                    assert!(!bytes.slice(TEXT).is_empty());
                    assert!(before.start <= tokens.start && before.end <= tokens.end && tokens.end <= block.tokens());
                    before = tokens;
                }
                assert!(block.keys().iter().all(|key| key.is_finite()));
            }
        }
    }
}
