//! Logits to scores: how much the question is contextualised by each chunk and by each unit of its text.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use ndarray::{Array2, Array3, Axis};
use serde::{Deserialize, Serialize};

use super::cancel::Cancel;
use super::scan;
use super::units::{Unit, sentences_of};
use super::{PipelineError, Reading};
use crate::domain::{Granularity, TokenSpan};
use crate::model::RawLogits;
use crate::rc::{self, Estimator, HeadMean, UnknownEstimator};

/// How a request is scored. The default is chosen here, by measurement (`docs/evaluation.md`).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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
    /// says whether any. None where logits have no scale of their own, as a decoder's.
    pub max_sim: Option<f32>,
}

/// Logits or peaks of several heads that are there at once: 32 MiB of them.
const CELLS_AT_ONCE: usize = 8 << 20;

/// RC before it is weighed, mean over heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Contrast {
    /// `[question token, chunk]`
    chunks: Array2<f32>,
    /// `[question token, unit]`
    units: Array2<f32>,
    /// `[question token, sentence]`; empty unless units are words.
    sentences: Array2<f32>,
    max_sim: Option<f32>,
}

/// Scores by any rule.
///
/// # Errors
/// A deadline when `cancel` says so.
pub fn all(reading: &Reading, scoring: Scoring, cancel: &Cancel) -> Result<Scores, PipelineError> {
    match scoring {
        Scoring::RankedCoverage => Ok(ranked_coverage(reading, contrast(reading, cancel)?)),
        Scoring::Plain(estimator) => plain(reading, estimator, cancel),
    }
}

/// Scans the blocks and compares peaks with those of ranked rivals, some heads at a time.
///
/// # Errors
/// A deadline when `cancel` says so.
pub fn contrast(reading: &Reading, cancel: &Cancel) -> Result<Contrast, PipelineError> {
    let reading = &*reading.that_counts();
    let [mut chunks, mut units, mut sentences] =
        [HeadMean::default(), HeadMean::default(), HeadMean::default()];
    let mut reaches = Vec::new();
    let columns = 2 * reading.units.len() + reading.blocks.spans.len();
    for heads in reading.heads_at_once(columns) {
        let peaks = scan::peaks(reading, heads.clone(), cancel)?;
        let rc_of = |peaks: &Array3<f32>| rc_of_peaks(peaks, || reading.question.self_logits(heads.clone()));
        chunks.add(rc_of(&peaks.chunks));
        if reading.granularity != Granularity::Chunk {
            units.add(rc_of(&peaks.units));
        }
        if reading.granularity == Granularity::Token {
            sentences.add(rc_of(&peaks.sentences));
        }
        reaches.push(max_sim(&peaks.chunks));
    }
    let max_sim = reading.reaches.then(|| reaches.iter().sum::<f32>() / reaches.len().max(1) as f32);
    Ok(Contrast { chunks: chunks.finish(), units: units.finish(), sentences: sentences.finish(), max_sim })
}

/// The default. A chunk counts for what it adds to better ones; a sentence in proportion to the square root of its chunk's
/// score; a word for its sentence, and up to twice that where the question speaks to the word itself.
pub fn ranked_coverage(reading: &Reading, contrast: Contrast) -> Scores {
    let units = &reading.units;
    let chunks = rc::with_coverage(&contrast.chunks);
    let in_chunk = |(unit, rc): (&Unit, f32)| rc * chunks[unit.chunk].sqrt();
    let (scores, unit_rc) = match reading.granularity {
        Granularity::Chunk => {
            let of_units = units.iter().map(|unit| unit.chunk).collect::<Vec<_>>();
            let unit_rc = contrast.chunks.select(Axis(1), &of_units);
            (units.iter().map(|unit| chunks[unit.chunk]).collect(), unit_rc)
        }
        Granularity::Sentence => {
            let own = rc::mean_over_queries(contrast.units.view());
            (units.iter().zip(own).map(in_chunk).collect(), contrast.units)
        }
        Granularity::Token => {
            let own = rc::mean_over_queries(contrast.units.view());
            let best = own.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
            // A sentence's rivals are the other sentences, each counted once.
            let (_, sentence_of) = sentences_of(units);
            let sentence_rc = rc::mean_over_queries(contrast.sentences.view());
            let of_sentence = sentence_of.iter().map(|&sentence| sentence_rc[sentence]);
            let in_sentence = of_sentence.zip(own).map(|(sentence, own)| sentence * (1.0 + own / best));
            (units.iter().zip(in_sentence).map(in_chunk).collect(), contrast.units)
        }
    };
    Scores { chunks, units: scores, unit_rc, max_sim: contrast.max_sim }
}

fn plain(reading: &Reading, estimator: Estimator, cancel: &Cancel) -> Result<Scores, PipelineError> {
    let Reading { blocks, units, .. } = reading;
    let unit_spans: Vec<TokenSpan> = units.iter().map(|unit| unit.tokens).collect();
    let (mut of_chunks, mut of_units) = (HeadMean::default(), HeadMean::default());
    let mut reaches = Vec::new();
    for heads in reading.heads_at_once(blocks.tokens()) {
        cancel.check()?;
        let RawLogits { cross, self_logits: own } = reading.logits(heads);
        let rc_of = |spans: &[TokenSpan], mean: &mut HeadMean| {
            let peaks = rc::peaks(cross.view(), spans);
            mean.add(rc::coupled_segments(cross.view(), own.view(), spans, &peaks, estimator));
            peaks
        };
        reaches.push(max_sim(&rc_of(&blocks.spans, &mut of_chunks).value));
        rc_of(&unit_spans, &mut of_units);
    }
    let chunks = rc::mean_over_queries(of_chunks.finish().view());
    let unit_rc = of_units.finish();
    let own = rc::mean_over_queries(unit_rc.view());
    let units = units.iter().zip(own).map(|(unit, own)| own + chunks[unit.chunk]).collect();
    let max_sim = reading.reaches.then(|| reaches.iter().sum::<f32>() / reaches.len().max(1) as f32);
    Ok(Scores { chunks, units, unit_rc, max_sim })
}

impl Reading {
    /// Heads in runs whose logits over so many columns may be there at once.
    pub fn heads_at_once(&self, columns: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (heads, cells) = (self.question.heads(), self.question.tokens() * columns);
        let at_once = (CELLS_AT_ONCE / cells.max(1)).max(1);
        (0..heads).step_by(at_once).map(move |first| first..(first + at_once).min(heads))
    }
}

/// RC of each segment per head and question token against ranked rivals, `[head, question token, segment]`. A segment that is the
/// only one has no rivals: it is compared with the question itself.
pub fn ranked(logits: &RawLogits, segments: &[TokenSpan]) -> Array3<f32> {
    rc_of_peaks(&rc::peaks(logits.cross.view(), segments).value, || logits.self_logits.clone())
}

/// The same from peaks `[head, question token, segment]`; `own` gives the question's own logits, where they are needed.
pub fn rc_of_peaks(peaks: &Array3<f32>, own: impl FnOnce() -> Array3<f32>) -> Array3<f32> {
    match is_contest(peaks) {
        true => rc::ranked_rivals(peaks.view()),
        false => rc::peaks_against_self(peaks.view(), own().view()),
    }
}

/// Whether more than one segment holds a token. Segments are empty for all heads and question tokens alike.
fn is_contest(peaks: &Array3<f32>) -> bool {
    let first = peaks.rows().into_iter().next();
    first.is_some_and(|row| row.iter().filter(|&&peak| peak != rc::EMPTY).take(2).count() > 1)
}

/// Mean over heads and question tokens of the best raw logit over all keys, from the chunks' peaks; 0 without keys.
fn max_sim(chunks: &Array3<f32>) -> f32 {
    let best = chunks.map_axis(Axis(2), |row| row.iter().copied().fold(rc::EMPTY, f32::max));
    match best.iter().all(|&best| best == rc::EMPTY) {
        true => 0.0,
        false => rc::mean_over_queries(rc::mean_over_heads(best.insert_axis(Axis(2))).view())[0],
    }
}

/// What the default is called.
const RANKED_COVERAGE: &str = "peak/ranked+coverage";

/// The text names no way to score.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}, nor is it {RANKED_COVERAGE}")]
pub struct UnknownScoring(#[from] UnknownEstimator);

impl FromStr for Scoring {
    type Err = UnknownScoring;

    fn from_str(text: &str) -> Result<Self, UnknownScoring> {
        if text == RANKED_COVERAGE { Ok(Self::RankedCoverage) } else { Ok(Self::Plain(text.parse()?)) }
    }
}

impl TryFrom<String> for Scoring {
    type Error = UnknownScoring;

    fn try_from(text: String) -> Result<Self, UnknownScoring> {
        text.parse()
    }
}

impl From<Scoring> for String {
    fn from(scoring: Scoring) -> Self {
        scoring.to_string()
    }
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::RankedCoverage => f.write_str(RANKED_COVERAGE),
            Self::Plain(estimator) => estimator.fmt(f),
        }
    }
}
