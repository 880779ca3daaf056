//! Units: the smallest pieces of the chunks that selection keeps or drops (chunks, sentences or words), with
//! their positions in the text and on the key axis.

use std::sync::Arc;

use super::blocks::Blocks;
use super::tokenize::tokens_under;
use crate::domain::{ByteRange, Chunk, Granularity, TokenSpan};
use crate::kv::block::{Block, Sentence};
use crate::text;

/// A piece of one chunk that is kept or dropped as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// The index of the chunk in the request.
    pub chunk: usize,
    /// Byte range in the chunk's text.
    pub bytes: ByteRange,
    /// The unit's tokens on the key axis of the request. Empty if the tokenizer finds no token in the unit.
    pub tokens: TokenSpan,
    /// The sentence that contains the unit, if units are words; otherwise the unit itself.
    pub sentence: UnitSpan,
}

/// A piece of a chunk, as a range of bytes and as a span of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitSpan {
    /// Byte range in the chunk's text.
    pub bytes: ByteRange,
    /// Tokens on the key axis of the request.
    pub tokens: TokenSpan,
}

/// Returns all units of `chunks`, in the order of the text. A chunk without text has none. `blocks` are the
/// blocks of the same chunks.
pub fn of(granularity: Granularity, chunks: &[Arc<Chunk>], blocks: &Blocks) -> Vec<Unit> {
    let mut units = Vec::new();
    for (index, (chunk, block)) in chunks.iter().zip(&blocks.blocks).enumerate() {
        let first = blocks.spans[index].start;
        let on_key_axis =
            |bytes: ByteRange, tokens: TokenSpan| UnitSpan { bytes, tokens: tokens.shifted(first) };
        let mut push = |UnitSpan { bytes, tokens }: UnitSpan, sentence: UnitSpan| {
            units.push(Unit { chunk: index, bytes, tokens, sentence });
        };
        match granularity {
            Granularity::Chunk if block.sentences().len() == 0 => {}
            Granularity::Chunk => {
                let text = TokenSpan::new(block.title_tokens(), block.tokens());
                let whole = on_key_axis(ByteRange::new(0, chunk.text.len()), text);
                push(whole, whole);
            }
            Granularity::Sentence => {
                block.sentences().map(|s| on_key_axis(s.bytes, s.tokens)).for_each(|s| push(s, s));
            }
            Granularity::Token => {
                for (sentence, words) in words_by_sentence(chunk, block) {
                    let sentence = on_key_axis(sentence.bytes, sentence.tokens);
                    words.into_iter().for_each(|(bytes, tokens)| push(on_key_axis(bytes, tokens), sentence));
                }
            }
        }
    }
    units
}

/// Returns each sentence of a chunk with its words. The tokens are counted from the block's first token.
fn words_by_sentence(chunk: &Chunk, block: &Block) -> Vec<(Sentence, Vec<(ByteRange, TokenSpan)>)> {
    let offsets = block.offsets();
    let with_words = |sentence: Sentence| {
        let word = |word: ByteRange| {
            let bytes = word.shifted(sentence.bytes.start);
            (bytes, tokens_under(&offsets, block.title_tokens(), bytes))
        };
        (sentence, text::words(sentence.bytes.of(&chunk.text)).into_iter().map(word).collect())
    };
    block.sentences().map(with_words).collect()
}

/// Returns the distinct sentences that contain `units`, each with the index of its chunk, in order; and
/// `[unit]`, the index among them of each unit's sentence.
pub fn sentences_of(units: &[Unit]) -> (Vec<(usize, UnitSpan)>, Vec<usize>) {
    let mut sentences: Vec<(usize, UnitSpan)> = Vec::new();
    let index = |unit: &Unit| {
        if sentences.last() != Some(&(unit.chunk, unit.sentence)) {
            sentences.push((unit.chunk, unit.sentence));
        }
        sentences.len() - 1
    };
    let indices = units.iter().map(index).collect();
    (sentences, indices)
}
