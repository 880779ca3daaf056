//! Explanations: the RC of every token of the chunks, and what each token of the question found in each
//! chunk.

use ndarray::{Array2, Array3};

use super::cancel::Cancel;
use super::score::ranked;
use super::{PipelineError, Reading};
use crate::domain::{ByteRange, TokenSpan};
use crate::rc::{self, HeadMean, KEY_NONE, Peaks};

/// RC per token of a request, in units of a raw logit. All positions in texts are UTF-8 byte offsets.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// `[question_token]`: the byte ranges in the question of the tokens that rank chunks and units.
    pub question: Vec<ByteRange>,
    /// One explanation per chunk, in the order of the request.
    pub chunks: Vec<ChunkExplanation>,
}

/// RC per token of one chunk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChunkExplanation {
    /// The byte range in the chunk's text and the RC of each token. RC is the mean over heads and question
    /// tokens, with all other tokens of all chunks as rivals.
    pub tokens: Vec<(ByteRange, f32)>,
    /// `[question_token]`: the RC of the chunk for this token, mean over heads with the other chunks as
    /// rivals; and the byte range in the chunk's text of the chunk's token with the largest logit, in the
    /// head with the largest RC. The range is `None` if that token belongs to the title.
    pub question: Vec<(f32, Option<ByteRange>)>,
}

/// Computes the RC of every token of every chunk.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn explanation(reading: &Reading, cancel: &Cancel) -> Result<Explanation, PipelineError> {
    let reading = &*reading.for_ranking();
    let chunk_spans = &reading.blocks.spans;
    let token_spans: Vec<_> = (0..reading.blocks.tokens()).map(|i| TokenSpan::new(i, i + 1)).collect();
    let (mut token_means, mut chunk_means) = (HeadMean::default(), HeadMean::default());
    let mut anchors = Anchors::new(reading.tokens.ids.len(), chunk_spans.len());
    for heads in reading.head_groups(token_spans.len()) {
        cancel.check()?;
        let logits = &reading.logits(heads);
        token_means.add(ranked::rc_of_segments(logits, &token_spans));
        let chunk_rc = ranked::rc_of_segments(logits, chunk_spans);
        anchors.add(&chunk_rc, &rc::peaks(logits.cross.view(), chunk_spans));
        chunk_means.add(chunk_rc);
    }
    // `[token]` and `[question_token, chunk]`.
    let (token_rc, chunk_rc) = (rc::mean_over_queries(token_means.finish().view()), chunk_means.finish());
    let chunk = |(index, span): (usize, &TokenSpan)| {
        let block = &reading.blocks.blocks[index];
        let (first, offsets) = (span.start + block.title_tokens(), block.offsets());
        let tokens = offsets.iter().zip(&token_rc[first..span.end]).map(|(&bytes, &rc)| (bytes, rc));
        let question = (0..reading.tokens.ids.len()).map(|j| {
            let anchor = anchors.key[[j, index]].checked_sub(first).and_then(|token| offsets.get(token));
            (chunk_rc[[j, index]], anchor.copied())
        });
        ChunkExplanation { tokens: tokens.collect(), question: question.collect() }
    };
    Ok(Explanation {
        question: reading.tokens.offsets.clone(),
        chunks: chunk_spans.iter().enumerate().map(chunk).collect(),
    })
}

/// The key with the peak of each question token in each chunk, taken from the head with the largest RC.
struct Anchors {
    /// `[question_token, chunk]`: the index on the key axis; [`KEY_NONE`] for an empty chunk.
    key: Array2<usize>,
    /// `[question_token, chunk]`: the largest RC of all heads so far.
    rc: Array2<f32>,
}

impl Anchors {
    fn new(tokens: usize, chunks: usize) -> Self {
        let none = KEY_NONE as usize;
        Self { key: Array2::from_elem((tokens, chunks), none), rc: Array2::from_elem((tokens, chunks), -1.0) }
    }

    /// Adds some heads: their RC `[head, question_token, chunk]` and their peaks.
    fn add(&mut self, rc: &Array3<f32>, peaks: &Peaks) {
        for (rc, keys) in rc.outer_iter().zip(peaks.key.outer_iter()) {
            let head = rc.iter().zip(keys).zip(self.rc.iter_mut().zip(self.key.iter_mut()));
            for ((&rc, &key), (best, anchor)) in head {
                if rc > *best {
                    (*best, *anchor) = (rc, key as usize);
                }
            }
        }
    }
}
