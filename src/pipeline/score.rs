//! Logits to scores: how much the question is contextualised by each chunk and by each unit of its text.

use std::fmt;

use ndarray::{Array2, Array3, Axis};

use super::cancel::Cancel;
use super::scan::{self, Peaks};
use super::units::{Unit, sentences_of};
use super::{PipelineError, Reading};
use crate::domain::{Granularity, TokenSpan};
use crate::model::Logits;
use crate::rc::{self, Estimator, Reference};

/// How a request is scored. The default is chosen here, by measurement (`docs/evaluation.md`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Scoring {
    /// Peaks against ranked rivals; chunks by what they add to better ones; units in proportion to their chunk.
    #[default]
    RankedCoverage,
    /// One estimator for chunks and units, whose scores are added.
    Plain(Estimator),
}

/// Scores of one request; a higher one is better. They are not comparable between requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// One per chunk; sorting by them ranks the chunks.
    pub chunks: Vec<f32>,
    /// One per unit.
    pub units: Vec<f32>,
    /// `[question token, unit]`: each unit's RC before it was weighed by its chunk.
    pub unit_rc: Array2<f32>,
    /// How near the question's tokens come to anything: the mean of their best raw logits. RC says which chunk, this
    /// says whether any.
    pub reach: f32,
}

/// Scores by any rule: by the default from peaks that are scanned for here, by the others from all logits.
///
/// # Errors
/// A deadline when `cancel` says so.
pub fn all(reading: &Reading, scoring: Scoring, cancel: &Cancel) -> Result<Scores, PipelineError> {
    match scoring {
        Scoring::RankedCoverage => Ok(ranked_coverage(reading, &scan::peaks(reading, cancel)?)),
        Scoring::Plain(estimator) => Ok(plain(reading, &reading.logits(), estimator)),
    }
}

/// The default. A chunk counts for what it adds to better ones; a sentence in proportion to the square root of its chunk's
/// score; a word for its sentence, and up to twice that where the question speaks to the word itself.
pub fn ranked_coverage(reading: &Reading, peaks: &Peaks) -> Scores {
    let Reading { units, blocks, .. } = reading;
    let rc_of = |peaks: &Array3<f32>, segments: &dyn Fn() -> Vec<TokenSpan>| match is_contest(peaks) {
        true => rc::mean_over_heads(rc::ranked_rivals(peaks.view())),
        false => ranked(&reading.logits(), &segments()),
    };
    let chunk_rc = rc_of(&peaks.chunks, &|| blocks.spans.clone());
    let chunks = rc::with_coverage(&chunk_rc);
    let in_chunk = |(unit, rc): (&Unit, f32)| rc * chunks[unit.chunk].sqrt();
    let unit_spans = || units.iter().map(|unit| unit.tokens).collect();
    let (scores, unit_rc) = match reading.granularity {
        Granularity::Chunk => {
            let unit_rc = chunk_rc.select(Axis(1), &units.iter().map(|unit| unit.chunk).collect::<Vec<_>>());
            (units.iter().map(|unit| chunks[unit.chunk]).collect(), unit_rc)
        }
        Granularity::Sentence => {
            let unit_rc = rc_of(&peaks.units, &unit_spans);
            let own = rc::mean_over_queries(unit_rc.view());
            (units.iter().zip(own).map(in_chunk).collect(), unit_rc)
        }
        Granularity::Token => {
            let unit_rc = rc_of(&peaks.units, &unit_spans);
            let own = rc::mean_over_queries(unit_rc.view());
            let best = own.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
            // A sentence's rivals are the other sentences, each counted once.
            let (sentences, sentence_of) = sentences_of(units);
            let spans = || sentences.iter().map(|(_, place)| place.tokens).collect();
            let sentence_rc = rc::mean_over_queries(rc_of(&peaks.sentences, &spans).view());
            let of_sentence = sentence_of.iter().map(|&sentence| sentence_rc[sentence]);
            let in_sentence = of_sentence.zip(own).map(|(sentence, own)| sentence * (1.0 + own / best));
            (units.iter().zip(in_sentence).map(in_chunk).collect(), unit_rc)
        }
    };
    Scores { chunks, units: scores, unit_rc, reach: reach(&peaks.chunks) }
}

fn plain(reading: &Reading, logits: &Logits, estimator: Estimator) -> Scores {
    let Reading { blocks, units, .. } = reading;
    let score = |spans: &[TokenSpan]| rc::score(logits.cross.view(), logits.own.view(), spans, estimator);
    let chunks = score(&blocks.spans).scores;
    let own = score(&units.iter().map(|unit| unit.tokens).collect::<Vec<_>>());
    let units = units.iter().zip(own.scores).map(|(unit, own)| own + chunks[unit.chunk]).collect();
    let peaks = rc::peaks(logits.cross.view(), &blocks.spans);
    Scores { chunks, units, unit_rc: own.per_query, reach: reach(&peaks.value) }
}

/// RC of each segment per question token against ranked rivals, `[question token, segment]`. A segment that is the only
/// one has no rivals: it is compared with the question itself.
pub fn ranked(logits: &Logits, segments: &[TokenSpan]) -> Array2<f32> {
    let peaks = rc::peaks(logits.cross.view(), segments);
    let rc = if is_contest(&peaks.value) {
        rc::ranked_rivals(peaks.value.view())
    } else {
        let alone = Estimator { pooling: rc::Pooling::Peak, reference: Reference::Own };
        rc::coupled_segments(logits.cross.view(), logits.own.view(), segments, &peaks, alone)
    };
    rc::mean_over_heads(rc)
}

/// Whether more than one segment holds a token. Segments are empty for all heads and question tokens alike.
fn is_contest(peaks: &Array3<f32>) -> bool {
    let first = peaks.rows().into_iter().next();
    first.is_some_and(|row| row.iter().filter(|&&peak| peak != rc::EMPTY).take(2).count() > 1)
}

/// Mean over heads and question tokens of the best raw logit over all keys, from the chunks' peaks; 0 without keys.
fn reach(chunks: &Array3<f32>) -> f32 {
    let best = chunks.map_axis(Axis(2), |row| row.iter().copied().fold(rc::EMPTY, f32::max));
    match best.iter().all(|&best| best == rc::EMPTY) {
        true => 0.0,
        false => rc::mean_over_queries(rc::mean_over_heads(best.insert_axis(Axis(2))).view())[0],
    }
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::RankedCoverage => f.write_str("peak/ranked+coverage"),
            Self::Plain(estimator) => estimator.fmt(f),
        }
    }
}
