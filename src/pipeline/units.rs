//! What can be kept or dropped as a whole: chunks, sentences or words, with their place in the text and on the key axis.

use std::sync::Arc;

use super::blocks::Blocks;
use super::tokenize::Passage;
use crate::domain::{ByteRange, Chunk, Granularity, TokenSpan};
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
    pub sentence: Place,
}

/// A place in a chunk, in both ways of counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Bytes of the chunk's text.
    pub bytes: ByteRange,
    /// Tokens on the key axis.
    pub tokens: TokenSpan,
}

/// All units, in the order of the text. A chunk without text has none.
pub fn of(
    granularity: Granularity,
    chunks: &[Arc<Chunk>],
    passages: &[Passage],
    blocks: &Blocks,
) -> Vec<Unit> {
    let mut units = Vec::new();
    for (index, (chunk, passage)) in chunks.iter().zip(passages).enumerate() {
        let first = blocks.passages[index].start;
        let place = |bytes: ByteRange| Place { bytes, tokens: passage.tokens_in(bytes).shifted(first) };
        let mut push = |Place { bytes, tokens }: Place, sentence: Place| {
            units.push(Unit { chunk: index, bytes, tokens, sentence });
        };
        match granularity {
            Granularity::Chunk if passage.sentences.is_empty() => {}
            Granularity::Chunk => {
                let whole = place(ByteRange::new(0, chunk.text.len()));
                push(whole, whole);
            }
            Granularity::Sentence => {
                passage.sentences.iter().map(|&bytes| place(bytes)).for_each(|s| push(s, s))
            }
            Granularity::Token => {
                for &bytes in &passage.sentences {
                    let sentence = place(bytes);
                    let words = text::words(bytes.of(&chunk.text)).into_iter();
                    words.for_each(|word| push(place(word.shifted(bytes.start)), sentence));
                }
            }
        }
    }
    units
}
