//! The words of a unit that is too long for a budget: which run of them says most of what is asked.

use std::sync::Arc;

use crate::domain::{ByteRange, Chunk, KeptSpan, TokenSpan};
use crate::kv::block::tokens_under;
use crate::pipeline::units::{Unit, UnitSpan};
use crate::pipeline::{Reading, scan};
use crate::text;

pub struct Words {
    words: Vec<UnitSpan>,
    /// `[word]`: the largest raw logit of any of the question's tokens over the tokens of the word; at least 0.
    weights: Vec<f32>,
}

/// Weighs the words of a unit. Where logits have no fixed scale, all weigh the same, and the first ones are best.
pub fn weigh(reading: &Reading, chunks: &[Arc<Chunk>], unit: &Unit) -> Words {
    let block = &reading.blocks.blocks[unit.chunk];
    let (offsets, first) = (block.offsets(), reading.blocks.spans[unit.chunk].start);
    let mut words = Vec::new();
    for word in text::words(unit.bytes.slice(&chunks[unit.chunk].text)) {
        let bytes = word.shifted(unit.bytes.start);
        let tokens = tokens_under(&offsets, block.title_tokens(), bytes).shifted(first);
        words.push(UnitSpan { bytes, tokens });
    }
    let mut weights = vec![0.0; words.len()];
    if reading.logits_have_fixed_scale && !unit.tokens.is_empty() {
        let own = TokenSpan::new(unit.tokens.start - first, unit.tokens.end - first);
        let logits = scan::mean_logits(reading, unit.chunk, own);
        for (weight, word) in weights.iter_mut().zip(&words) {
            let inside = word.tokens.range().filter_map(|token| token.checked_sub(unit.tokens.start));
            let columns = inside.filter(|&token| token < logits.ncols()).map(|token| logits.column(token));
            *weight = columns.flat_map(|column| column.to_vec()).fold(0.0, f32::max);
        }
    }
    Words { words, weights }
}

impl Words {
    pub fn count(&self) -> usize {
        self.words.len()
    }

    /// Returns the run of `count` words with the largest weight; the first one of several. A unit without words is returned as a whole.
    pub fn best_run(&self, count: usize, unit: &Unit, score: f32) -> KeptSpan {
        let mut best = (f32::NEG_INFINITY, 0);
        for (start, run) in self.weights.windows(count).enumerate() {
            let weight = run.iter().sum();
            if weight > best.0 {
                best = (weight, start);
            }
        }
        let (bytes, tokens) = match self.words.get(best.1..best.1 + count) {
            Some([first, .., last]) => (
                ByteRange::new(first.bytes.start, last.bytes.end),
                TokenSpan::new(first.tokens.start, last.tokens.end),
            ),
            Some([word]) => (word.bytes, word.tokens),
            _ => (unit.bytes, unit.tokens),
        };
        KeptSpan { tokens, score: Some(score), ..KeptSpan::unscored(unit.chunk, bytes) }
    }
}
