//! What can be kept or dropped as a whole: chunks, sentences or words, with their place in the text and on the key axis.

use super::blocks::Blocks;
use super::tokenize::Passage;
use crate::domain::{ByteRange, Chunk, Granularity, TokenSpan};
use crate::text;

/// A piece of one chunk that is kept or dropped as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Index of the chunk in the request.
    pub chunk: usize,
    /// Index of the unit's sentence within its chunk (of its first, for a chunk).
    pub sentence: usize,
    /// Bytes of the chunk's text.
    pub bytes: ByteRange,
    /// Its tokens on the key axis; empty when the model reads nothing in it.
    pub tokens: TokenSpan,
}

/// All units, in the order of the text. A chunk without text has none.
pub fn of(granularity: Granularity, chunks: &[Chunk], passages: &[Passage], blocks: &Blocks) -> Vec<Unit> {
    let mut units = Vec::new();
    for (index, (chunk, passage)) in chunks.iter().zip(passages).enumerate() {
        let first = blocks.passages[index].start;
        let mut push = |sentence: usize, bytes: ByteRange| {
            let tokens = passage.tokens_in(bytes);
            let tokens = TokenSpan::new(first + tokens.start, first + tokens.end);
            units.push(Unit { chunk: index, sentence, bytes, tokens });
        };
        match granularity {
            Granularity::Chunk if passage.sentences.is_empty() => {}
            Granularity::Chunk => push(0, ByteRange::new(0, chunk.text.len())),
            Granularity::Sentence => {
                passage.sentences.iter().enumerate().for_each(|(i, &bytes)| push(i, bytes))
            }
            Granularity::Token => {
                for (i, sentence) in passage.sentences.iter().enumerate() {
                    text::words(sentence.of(&chunk.text))
                        .into_iter()
                        .for_each(|w| push(i, w.shifted(sentence.start)));
                }
            }
        }
    }
    units
}
