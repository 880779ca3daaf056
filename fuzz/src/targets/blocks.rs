//! Blocks from a disk or a shared tier: the input is put over a true block, bit by bit. What passes the check must be usable.

use std::sync::LazyLock;

use libfuzzer_sys::Corpus;
use ndarray::Array3;
use thresher_core::domain::{ByteRange, TokenSpan};
use thresher_core::kv::block::{Block, Parts, Sentence};
use thresher_core::kv::codec::Codec;

const TEXT: &str = "The tide rises twice a day. The moon pulls the water; so does the sun, a little.";

/// Bytes, and so tokens, of the text's sentences.
const SENTENCES: [(usize, usize); 2] = [(0, 27), (28, TEXT.len())];

/// A block of each codec, in which every letter is a token.
static BLOCKS: LazyLock<Vec<Block>> = LazyLock::new(|| {
    let keys = Array3::from_shape_fn((2, TEXT.len(), 32), |(head, token, at)| {
        ((head * 31 + token * 7 + at) % 17) as f32 / 17.0 - 0.5
    });
    let offsets: Vec<ByteRange> = (0..TEXT.len()).map(|at| (at..at + 1).into()).collect();
    let sentences = SENTENCES
        .map(|(start, end)| Sentence { bytes: ByteRange { start, end }, tokens: TokenSpan { start, end } });
    let parts =
        Parts { keys: keys.view(), title_tokens: 0, offsets: &offsets, sentences: &sentences, lang: None };
    Codec::ALL.iter().map(|&codec| Block::encode(parts, codec)).collect()
});

pub fn run(data: &[u8]) -> Corpus {
    let Some((which, mask)) = data.split_first() else { return Corpus::Reject };
    let mut bytes = BLOCKS[usize::from(*which) % BLOCKS.len()].bytes().to_vec();
    bytes.resize(bytes.len().max(mask.len()), 0);
    bytes.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    let Ok(block) = Block::parse(bytes.into()) else { return Corpus::Keep };
    if block.check(TEXT).is_err() {
        return Corpus::Keep;
    }
    for offset in block.offsets() {
        assert!(TEXT.get(offset.start..offset.end).is_some(), "a token outside the text");
    }
    for sentence in block.sentences() {
        assert!(TEXT.get(sentence.bytes.start..sentence.bytes.end).is_some(), "a sentence outside the text");
    }
    assert!(block.keys().iter().all(|value| value.is_finite()), "keys that are not numbers");
    Corpus::Keep
}
