//! Whether the chunks answer the question at all, as a probability.
//!
//! RC compares the chunks of a request with each other, so it always has a best one. This looks at how well one
//! passage of a chunk, two adjacent sentences, matches the question in both directions:
//!
//! - The *recall* of the question is the mean over its tokens of each token's largest raw logit in the passage. A
//!   token that the chunk's title has counts less: the title names the subject, and what is asked of it is the rest.
//! - The *precision* of the passage is the mean over its tokens of each one's largest raw logit over the question's
//!   tokens.
//!
//! The probability is the logistic function of the best passage's mean of the two. `docs/verdicts.md` has the data
//! and the measurements.

use std::sync::Arc;

use ndarray::{Array1, ArrayView1, Axis, s};

use super::calibration::{AnswerableCurve, is_other_language};
use super::cancel::Cancel;
use super::score::{Measured, Scores};
use super::{PipelineError, Reading, scan};
use crate::domain::{ByteRange, CompressRequest, Kind, Lang, TokenSpan};
use crate::kv::block::Sentence;
use crate::text::{self, outline::Layout};

/// The number of chunks that are looked at: those with the largest mean of the question's largest logits.
const CHUNKS_MAX: usize = 5;

/// The least weight of a question's token that the title has.
const WEIGHT_MIN: f32 = 0.02;

/// About how many tokens of a chunk have their logits in memory at the same time.
const SCANNED_TOKENS: usize = 2_048;

/// The share of answerable questions that may be taken for unanswerable if a request sets none. The smaller it is, the more unanswerable
/// questions pass for answerable; one in twenty is the usual level of a test.
pub const MISSED_MAX: f64 = 0.05;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answerable {
    pub probability: f32,
    /// Whether the probability reaches `least`.
    pub answerable: bool,
    /// The least probability of a question that counts as answerable.
    pub least: f32,
    /// The index of the chunk with the passage that comes closest to an answer.
    pub chunk: usize,
    /// The byte range of that passage in the chunk's text.
    pub bytes: ByteRange,
}

/// Returns whether the chunks answer the question, by a curve of the model's calibration, so that at most the share `missed_max` of the
/// answerable questions is missed. Returns `None` where it was not measured: for decoders, for texts that are neither prose nor pages of
/// PDFs, and if the question or a chunk that is looked at is recognised as of a language that the curve does not hold for.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn measure_answerable(
    reading: &Reading,
    request: &CompressRequest,
    scores: &Scores,
    (curve, missed_max): (&AnswerableCurve, f64),
    cancel: &Cancel,
) -> Result<Option<Answerable>, PipelineError> {
    let best = best_passage(reading, request, scores, cancel)?;
    let is_other = |lang: Option<Lang>| is_other_language(lang, &curve.languages);
    let best = best.filter(|best| {
        !is_other(text::lang_of(&request.query)) && !is_other(reading.blocks.blocks[best.chunk].lang())
    });
    Ok(best.map(|BestPassage { value, chunk, bytes }| {
        let probability = curve.probability(value);
        let least = least(&curve.missed, missed_max);
        Answerable { probability, answerable: probability >= least, least, chunk, bytes }
    }))
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BestPassage {
    /// The mean of its recall and its precision.
    pub value: f32,
    pub chunk: usize,
    /// Its byte range in the chunk's text.
    pub bytes: ByteRange,
}

/// Returns the passage that comes closest to an answer; `None` for decoders, and for texts that are neither prose nor pages of PDFs.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn best_passage(
    reading: &Reading,
    request: &CompressRequest,
    scores: &Scores,
    cancel: &Cancel,
) -> Result<Option<BestPassage>, PipelineError> {
    // Rows of a page are read as sentences are: a label, and what it says.
    let is_read = |layout: &Arc<Layout>| matches!(layout.kind, Kind::Prose | Kind::Pdf);
    if scores.measured == Measured::Lexical
        || !reading.outlines.layouts().iter().all(is_read)
        || scores.chunk_relevances.is_empty()
    {
        return Ok(None);
    }
    let mut best_chunks: Vec<usize> = (0..request.chunks.len()).collect();
    best_chunks.sort_by(|&a, &b| scores.chunk_relevances[b].total_cmp(&scores.chunk_relevances[a]));
    best_chunks.truncate(CHUNKS_MAX);
    let mut best: Option<BestPassage> = None;
    for chunk in best_chunks {
        for (value, bytes) in passages(reading, chunk, cancel)? {
            if best.is_none_or(|best| value > best.value) {
                best = Some(BestPassage { value, chunk, bytes });
            }
        }
    }
    Ok(best)
}

/// Returns the passages of a chunk, each with the mean of its recall and its precision.
fn passages(
    reading: &Reading,
    chunk: usize,
    cancel: &Cancel,
) -> Result<Vec<(f32, ByteRange)>, PipelineError> {
    let block = &reading.blocks.blocks[chunk];
    let sentences: Vec<Sentence> = block.sentences().filter(|sentence| !sentence.tokens.is_empty()).collect();
    if sentences.is_empty() {
        return Ok(Vec::new());
    }
    // `[sentence][question_token]`: the largest logit; and the sum of those of the sentence's tokens.
    let mut of_sentences: Vec<(Array1<f32>, f32)> = Vec::with_capacity(sentences.len());
    for group in sentences.chunk_by(|first, next| {
        // Logits of some sentences at a time, so that a long chunk does not need them all at once.
        first.tokens.start / SCANNED_TOKENS == next.tokens.start / SCANNED_TOKENS
    }) {
        cancel.check()?;
        let (start, end) = (group[0].tokens.start, group[group.len() - 1].tokens.end);
        let logits = scan::mean_logits(reading, chunk, TokenSpan::new(start, end));
        for Sentence { tokens, .. } in group {
            let logits = logits.slice(s![.., tokens.start - start..tokens.end - start]);
            of_sentences.push((logits.map_axis(Axis(1), max), logits.map_axis(Axis(0), max).sum()));
        }
    }
    let weights = match block.title_tokens() {
        0 => Array1::ones(of_sentences[0].0.len()),
        tokens => {
            let title = scan::mean_logits(reading, chunk, TokenSpan::new(0, tokens));
            title.map_axis(Axis(1), |row| (1.0 - max(row)).clamp(WEIGHT_MIN, 1.0))
        }
    };
    let weight_sum = weights.sum();
    let passage = |first: usize| {
        let last = (first + 1).min(sentences.len() - 1);
        let (one, other) = (&of_sentences[first], &of_sentences[last]);
        let best = one.0.iter().zip(&other.0).map(|(one, other)| one.max(*other));
        let recall = best.zip(&weights).map(|(best, weight)| weight * best).sum::<f32>() / weight_sum;
        let tokens: usize = sentences[first..=last].iter().map(|sentence| sentence.tokens.len()).sum();
        let precision = of_sentences[first..=last].iter().map(|(_, sum)| sum).sum::<f32>() / tokens as f32;
        let bytes = ByteRange::new(sentences[first].bytes.start, sentences[last].bytes.end);
        (0.5 * recall + 0.5 * precision, bytes)
    };
    Ok((0..sentences.len().saturating_sub(1).max(1)).map(passage).collect())
}

/// Returns the largest value; 0 if there is none.
fn max(row: ArrayView1<f32>) -> f32 {
    row.iter().copied().reduce(f32::max).unwrap_or(0.0)
}

/// Returns the probability below which the share `missed_max` of the answerable questions lies, between the measured shares on a straight
/// line.
fn least(missed: &[(f64, f32)], missed_max: f64) -> f32 {
    let after = missed.partition_point(|&(share, _)| share < missed_max).clamp(1, missed.len() - 1);
    let [(low, from), (high, to)] = [missed[after - 1], missed[after]];
    let share = ((missed_max - low) / (high - low)).clamp(0.0, 1.0) as f32;
    from + share * (to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_grows_with_the_tolerance_and_has_the_measured_values() {
        let missed = [(0.01, 0.1), (0.05, 0.2), (0.5, 0.9)];
        for (share, probability) in missed {
            assert_eq!(least(&missed, share), probability, "{share}");
        }
        let all: Vec<f32> = (0..60).map(|percent| least(&missed, f64::from(percent) / 100.0)).collect();
        assert!(all.is_sorted(), "{all:?}");
    }
}
