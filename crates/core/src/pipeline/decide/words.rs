//! The words of a unit that is too long for a budget: which run of them says most of what is asked.

use std::sync::Arc;

use crate::domain::{ByteRange, Chunk, KeptSpan, TokenSpan};
use crate::pipeline::units::Unit;
use crate::pipeline::{Reading, scan};
use crate::text;

/// The words of a unit with their weights.
pub struct Words {
    /// The range of each word in the text of the chunk, ascending.
    words: Vec<ByteRange>,
    /// `[word]`: the largest raw logit of any of the question's tokens over the tokens of the word.
    weights: Vec<f32>,
}

/// Weighs the words of a unit. Where logits have no fixed scale, all weigh the same, and the first ones are best.
pub fn weigh(reading: &Reading, chunks: &[Arc<Chunk>], unit: &Unit) -> Words {
    let text = unit.bytes.slice(&chunks[unit.chunk].text);
    let words: Vec<ByteRange> =
        text::words(text).into_iter().map(|word| word.shifted(unit.bytes.start)).collect();
    let mut weights = vec![0.0; words.len()];
    if reading.logits_have_fixed_scale && !unit.tokens.is_empty() {
        let block = &reading.blocks.blocks[unit.chunk];
        let first = reading.blocks.spans[unit.chunk].start;
        let own = TokenSpan::new(unit.tokens.start - first, unit.tokens.end - first);
        let logits = scan::mean_logits(reading, unit.chunk, own);
        let offsets = block.offsets();
        for (token, column) in own.range().zip(logits.columns()) {
            let best = column.iter().copied().fold(0.0_f32, f32::max);
            // The title's tokens come first, and have no place in the text.
            let Some(place) = token.checked_sub(block.title_tokens()).and_then(|at| offsets.get(at)) else {
                continue;
            };
            let at = words.partition_point(|word| word.end <= place.start);
            if let Some(weight) = weights.get_mut(at) {
                *weight = best.max(*weight);
            }
        }
    }
    Words { words, weights }
}

impl Words {
    /// Returns the number of words.
    pub fn count(&self) -> usize {
        self.words.len()
    }

    /// Returns the run of `count` words with the largest weight; the first one of several.
    pub fn best_run(&self, count: usize, unit: &Unit, score: f32) -> KeptSpan {
        let count = count.clamp(1, self.words.len().max(1));
        let mut best = (f32::NEG_INFINITY, 0);
        for (start, run) in self.weights.windows(count).enumerate() {
            let weight = run.iter().sum();
            if weight > best.0 {
                best = (weight, start);
            }
        }
        let bytes = match self.words.get(best.1..best.1 + count) {
            Some([first, .., last]) => ByteRange::new(first.start, last.end),
            Some([word]) => *word,
            _ => unit.bytes,
        };
        KeptSpan { tokens: unit.tokens, score: Some(score), ..KeptSpan::unscored(unit.chunk, bytes) }
    }
}
