//! What can be kept or dropped as a whole: chunks, sentences or words, with their place in the text and on the key axis.

use std::sync::Arc;

use super::blocks::Blocks;
use super::tokenize::tokens_under;
use crate::domain::{ByteRange, Chunk, Granularity, TokenSpan};
use crate::kv::block::{Block, Sentence};
use crate::text;

/// A piece of one chunk that is kept or dropped as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Index of the chunk in the request.
    pub chunk: usize,
    /// Bytes of the chunk's text.
    pub bytes: ByteRange,
    /// Its tokens on the key axis; empty when the model reads nothing in it.
    pub tokens: TokenSpan,
    /// The sentence it lies in; itself, where units are sentences or chunks.
    pub sentence: UnitSpan,
}

/// A place in a chunk, in both ways of counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitSpan {
    /// Bytes of the chunk's text.
    pub bytes: ByteRange,
    /// Tokens on the key axis.
    pub tokens: TokenSpan,
}

/// All units, in the order of the text. A chunk without text has none.
pub fn of(granularity: Granularity, chunks: &[Arc<Chunk>], blocks: &Blocks) -> Vec<Unit> {
    let mut units = Vec::new();
    for (index, (chunk, block)) in chunks.iter().zip(&blocks.blocks).enumerate() {
        let first = blocks.spans[index].start;
        let place = |bytes: ByteRange, tokens: TokenSpan| UnitSpan { bytes, tokens: tokens.shifted(first) };
        let mut push = |UnitSpan { bytes, tokens }: UnitSpan, sentence: UnitSpan| {
            units.push(Unit { chunk: index, bytes, tokens, sentence });
        };
        match granularity {
            Granularity::Chunk if block.sentences().len() == 0 => {}
            Granularity::Chunk => {
                let text = TokenSpan::new(block.title_tokens(), block.tokens());
                let whole = place(ByteRange::new(0, chunk.text.len()), text);
                push(whole, whole);
            }
            Granularity::Sentence => {
                block.sentences().map(|s| place(s.bytes, s.tokens)).for_each(|s| push(s, s));
            }
            Granularity::Token => {
                for (sentence, words) in words(chunk, block) {
                    let sentence = place(sentence.bytes, sentence.tokens);
                    words.into_iter().for_each(|(bytes, tokens)| push(place(bytes, tokens), sentence));
                }
            }
        }
    }
    units
}

/// Each sentence with its words.
fn words(chunk: &Chunk, block: &Block) -> Vec<(Sentence, Vec<(ByteRange, TokenSpan)>)> {
    let offsets = block.offsets();
    let of_sentence = |sentence: Sentence| {
        let word = |word: ByteRange| {
            let bytes = word.shifted(sentence.bytes.start);
            (bytes, tokens_under(&offsets, block.title_tokens(), bytes))
        };
        (sentence, text::words(sentence.bytes.of(&chunk.text)).into_iter().map(word).collect())
    };
    block.sentences().map(of_sentence).collect()
}

/// The sentences that units lie in, with their chunks, each once and in order; and for each unit the index of its own.
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
