//! Why: the RC of every token, and what each token of the question found.

use ndarray::Axis;

use super::{Reading, score};
use crate::domain::{ByteRange, TokenSpan};
use crate::rc;

/// Per-token RC of a request. All ranges are in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The question's tokens.
    pub question: Vec<ByteRange>,
    /// One per chunk, in the order of the request.
    pub chunks: Vec<ChunkExplanation>,
}

/// Per-token RC of one chunk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChunkExplanation {
    /// Tokens of the chunk's text with their RC, mean over the question's tokens.
    pub tokens: Vec<(ByteRange, f32)>,
    /// For each token of the question: its RC over the chunk, and the token that it speaks through when that token
    /// belongs to the text and not to the title.
    pub question: Vec<(f32, Option<ByteRange>)>,
}

/// Scores every token of every chunk.
pub fn tokens(reading: &Reading) -> Explanation {
    let logits = &reading.logits();
    let passages = &reading.blocks.spans;
    let single: Vec<_> = (0..logits.cross.len_of(Axis(2))).map(|i| TokenSpan::new(i, i + 1)).collect();
    let per_token = rc::mean_over_queries(score::ranked(logits, &single).view());
    let per_chunk = score::ranked(logits, passages);
    let peaks = rc::peaks(logits.cross.view(), passages);
    let chunk = |(index, span): (usize, &TokenSpan)| {
        let block = &reading.blocks.blocks[index];
        let (first, offsets) = (span.start + block.title_tokens(), block.offsets());
        let tokens = offsets.iter().zip(&per_token[first..span.end]).map(|(&at, &rc)| (at, rc)).collect();
        let question = (0..reading.tokens.ids.len()).map(|j| {
            // The first head's key: the late family's readout has one head.
            let key = peaks.key[[0, j, index]];
            let anchor = (key as usize).checked_sub(first).and_then(|token| offsets.get(token));
            (per_chunk[[j, index]], anchor.copied())
        });
        ChunkExplanation { tokens, question: question.collect() }
    };
    Explanation {
        question: reading.tokens.offsets.clone(),
        chunks: passages.iter().enumerate().map(chunk).collect(),
    }
}
