//! The score stage: computes a score of each chunk and each unit for the question. Knows neither budgets nor how
//! blocks are scanned.
//!
//! | scorer | scores by |
//! |---|---|
//! | [`ranked`] | Relative Contextualization (RC; RCStat, arXiv 2506.19549) of peaks with ranked rivals, the default |
//! | [`mean`] | the estimator of the RCStat paper, `mean/self` |
//! | [`bound`] | the paper's upper bound of it, `bound/self` |
//! | [`probe`] | the attention mass in all heads of a decoder, weighted by a trained probe |

pub mod bound;
pub mod mean;
pub mod probe;
pub mod ranked;

use std::fmt;
use std::sync::Arc;

use ndarray::{Array2, ArrayView2};
use serde::{Deserialize, Serialize};

use super::cancel::Cancel;
use super::clock::Clock;
use super::question::EncodedHeads;
use super::{PipelineError, Reading};
use crate::model::contract::Around;
use crate::model::{ModelError, ModelInfo};
use crate::rc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Scoring {
    /// See [`ranked`]. It was chosen as the default by measurement (`docs/evaluation.md`).
    #[default]
    #[serde(rename = "peak/ranked+coverage")]
    RankedCoverage,
    #[serde(rename = "mean/self")]
    Mean,
    #[serde(rename = "bound/self")]
    Bound,
    #[serde(rename = "probe")]
    Probe,
}

/// A rule that scores the chunks and units of a reading.
pub trait Scorer: Send + Sync {
    /// Returns what the pipeline has to read for this scorer.
    fn wants(&self) -> Wants<'_> {
        Wants::default()
    }

    /// Scores a reading that has what the scorer wants. `clock` measures its stages.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work.
    fn score(&self, reading: &Reading, cancel: &Cancel, clock: &mut Clock) -> Result<Scores, PipelineError>;
}

/// What a scorer needs of a reading.
#[derive(Debug, Clone, Copy)]
pub struct Wants<'a> {
    pub around: Around<'a>,
    /// Whether the model reads the turns of the conversation before the question.
    pub history: bool,
    pub heads: EncodedHeads,
    /// Whether the logits of all tokens are needed, and not only the peaks of chunks and units.
    pub all_logits: bool,
}

impl Default for Wants<'_> {
    fn default() -> Self {
        Self { around: Around::default(), history: true, heads: EncodedHeads::Readout, all_logits: false }
    }
}

impl Scoring {
    /// Returns the name of the method in settings and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::RankedCoverage => "peak/ranked+coverage",
            Self::Mean => "mean/self",
            Self::Bound => "bound/self",
            Self::Probe => "probe",
        }
    }

    /// Returns what scores by this method with a model.
    ///
    /// # Errors
    /// Returns [`ModelError::NoProbe`] if the method is a probe and the model has none.
    pub fn scorer(self, model: &ModelInfo) -> Result<Arc<dyn Scorer>, ModelError> {
        Ok(match self {
            Self::RankedCoverage => Arc::new(ranked::RankedCoverage),
            Self::Mean => Arc::new(mean::MeanRc),
            Self::Bound => Arc::new(bound::MeanRcBound),
            Self::Probe => match model.decoder.as_ref().and_then(|decoder| decoder.probe.clone()) {
                Some(probe) => Arc::new(probe::ProbeScorer(probe)),
                None => {
                    let (model, encoder) = (model.name.clone(), model.decoder.is_none());
                    return Err(ModelError::NoProbe { model, encoder });
                }
            },
        })
    }
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The scores of one request, which are at least 0. A higher score is better. Scores of different requests
/// are not comparable.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// `[chunk]`: sorting by these ranks the chunks. They are in units of a raw logit, or probabilities if a
    /// probe gave them.
    pub chunks: Vec<f32>,
    /// `[unit]`: sorting by these ranks the units.
    pub units: Vec<f32>,
    /// `[question_token, unit]`: the mean over heads of each unit's RC, before its chunk's score enters. Words
    /// that the model does not know have a row of the lexical head in place of the rows of their tokens. A
    /// probe does not score single question tokens; it gives one row, the probability of each unit.
    pub unit_rc: Array2<f32>,
    /// The mean over heads and question tokens of each token's largest raw logit over all keys. RC says which
    /// chunk is best; this says whether any chunk is related to the question at all. `None` for models whose
    /// logits have no fixed scale (decoders).
    pub relevance: Option<f32>,
    /// `[chunk]`: as `relevance`, over the keys of one chunk. Empty if the logits have no fixed scale, or
    /// another scorer than the default one scored.
    pub chunk_relevances: Vec<f32>,
    /// What `relevance` was measured on, which decides from which value on a chunk is related.
    pub measured: Measured,
    pub are_probabilities: bool,
}

/// A chunk scores like the best one if it has this share of its score. Measured: at 0.3 this is so for 0.26 and 0.16 of the questions
/// that need one chunk (nq20, xquad), and for 0.89, 0.97 and 0.76 of those that need several (hotpot, wiki2, musique).
const ALIKE_MIN: f32 = 0.3;

impl Scores {
    /// Returns whether several chunks score alike. Chunks that only repeat others do not count. Turns of a dialogue take part of each
    /// other's scores, so theirs say nothing.
    pub fn are_alike(&self, reading: &Reading) -> bool {
        if !reading.neighbours.is_empty() {
            return false;
        }
        let own = |unit: &usize| !reading.repeats.is_repeat(*unit);
        let mut chunks: Vec<usize> =
            (0..reading.units.len()).filter(own).map(|unit| reading.units[unit].chunk).collect();
        chunks.dedup();
        let mut scores: Vec<f32> = chunks.into_iter().map(|chunk| self.chunks[chunk]).collect();
        scores.sort_unstable_by(|a, b| b.total_cmp(a));
        matches!(scores[..], [best, second, ..] if best > 0.0 && second >= ALIKE_MIN * best)
    }
}

/// What [`Scores::relevance`] was measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Measured {
    /// The model's logits over prose.
    #[default]
    Prose,
    /// The model's logits over chunks of which some are not prose. A row of a table or an event of a log
    /// repeats fewer words of a question than a sentence does.
    Structured,
    /// The lexical head, because the model does not know the question's script.
    Lexical,
}

fn measured(reading: &Reading) -> Measured {
    match &reading.lexical {
        Some(lexical) if !lexical.knows_all => Measured::Lexical,
        _ if reading.outlines.is_prose() => Measured::Prose,
        _ => Measured::Structured,
    }
}

/// The most tokens of a question that count towards [`Scores::relevance`]: those that the chunks match best. What a long
/// question has beyond them is mostly how to answer ("state the result in millions"), which no chunk says.
const MAX_SIM_TOKENS: usize = 20;

/// Returns the mean over the best-matched question tokens of the largest raw logit over all keys, from the peaks of
/// the chunks, `[question_token, chunk]`. It is 0 if there are no keys.
fn measure_relevance(chunk_peaks: ArrayView2<f32>) -> f32 {
    let mut best: Vec<f32> =
        chunk_peaks.outer_iter().map(|row| row.iter().copied().fold(rc::EMPTY, f32::max)).collect();
    if best.iter().all(|&best| best == rc::EMPTY) {
        return 0.0;
    }
    best.sort_unstable_by(|a, b| b.total_cmp(a));
    best.truncate(MAX_SIM_TOKENS);
    best.iter().sum::<f32>() / best.len() as f32
}
