//! Why: the RC of every token, and what each token of the question found.

use ndarray::{Array2, Array3};

use super::cancel::Cancel;
use super::{PipelineError, Reading, score};
use crate::domain::{ByteRange, TokenSpan};
use crate::rc::{self, HeadMean, KEY_NONE, Peaks};

/// Per-token RC of a request. All ranges are in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The question's tokens that count.
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
///
/// # Errors
/// A deadline when `cancel` says so.
pub fn tokens(reading: &Reading, cancel: &Cancel) -> Result<Explanation, PipelineError> {
    let reading = &*reading.that_counts();
    let spans = &reading.blocks.spans;
    let single: Vec<_> = (0..reading.blocks.tokens()).map(|i| TokenSpan::new(i, i + 1)).collect();
    let (mut per_token, mut per_chunk) = (HeadMean::default(), HeadMean::default());
    let mut anchors = Anchors::new(reading.tokens.ids.len(), spans.len());
    for heads in reading.heads_at_once(single.len()) {
        cancel.check()?;
        let logits = &reading.logits(heads);
        per_token.add(score::ranked(logits, &single));
        let rc = score::ranked(logits, spans);
        anchors.add(&rc, &rc::peaks(logits.cross.view(), spans));
        per_chunk.add(rc);
    }
    let (per_token, per_chunk) = (rc::mean_over_queries(per_token.finish().view()), per_chunk.finish());
    let chunk = |(index, span): (usize, &TokenSpan)| {
        let block = &reading.blocks.blocks[index];
        let (first, offsets) = (span.start + block.title_tokens(), block.offsets());
        let tokens = offsets.iter().zip(&per_token[first..span.end]).map(|(&at, &rc)| (at, rc)).collect();
        let question = (0..reading.tokens.ids.len()).map(|j| {
            let anchor = anchors.key[[j, index]].checked_sub(first).and_then(|token| offsets.get(token));
            (per_chunk[[j, index]], anchor.copied())
        });
        ChunkExplanation { tokens, question: question.collect() }
    };
    Ok(Explanation {
        question: reading.tokens.offsets.clone(),
        chunks: spans.iter().enumerate().map(chunk).collect(),
    })
}

/// The key that each token of the question speaks through in each chunk: that of the head that says most there.
struct Anchors {
    /// `[question_token, chunk]`
    key: Array2<usize>,
    rc: Array2<f32>,
}

impl Anchors {
    fn new(tokens: usize, chunks: usize) -> Self {
        let none = KEY_NONE as usize;
        Self { key: Array2::from_elem((tokens, chunks), none), rc: Array2::from_elem((tokens, chunks), -1.0) }
    }

    /// Takes RC `[head, question_token, chunk]` and the peaks of the same heads.
    fn add(&mut self, rc: &Array3<f32>, peaks: &Peaks) {
        for (rc, keys) in rc.outer_iter().zip(peaks.key.outer_iter()) {
            let of_head = rc.iter().zip(keys).zip(self.rc.iter_mut().zip(self.key.iter_mut()));
            for ((&rc, &key), (best, anchor)) in of_head {
                if rc > *best {
                    (*best, *anchor) = (rc, key as usize);
                }
            }
        }
    }
}
