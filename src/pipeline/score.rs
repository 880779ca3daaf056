//! Logits to scores: how much the question is contextualised by each chunk and by each unit of its text.

use std::fmt;

use ndarray::{Array2, Axis};

use super::Reading;
use super::units::Unit;
use crate::domain::{ByteRange, Granularity, TokenSpan};
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

/// Scores chunks, and units in the light of where they stand.
pub fn all(reading: &Reading, scoring: Scoring) -> Scores {
    match scoring {
        Scoring::RankedCoverage => ranked_coverage(reading),
        Scoring::Plain(estimator) => plain(reading, estimator),
    }
}

/// A chunk counts for what it adds to better ones; a sentence in proportion to the square root of its chunk's score; a
/// word for its sentence, and up to twice that where the question speaks to the word itself.
fn ranked_coverage(reading: &Reading) -> Scores {
    let Reading { logits, blocks, units, .. } = reading;
    let chunk_rc = ranked(logits, &blocks.passages);
    let chunks = rc::with_coverage(&chunk_rc);
    let in_chunk = |(unit, rc): (&Unit, f32)| rc * chunks[unit.chunk].sqrt();
    let rc_of = |span: fn(&Unit) -> TokenSpan| ranked(logits, &units.iter().map(span).collect::<Vec<_>>());
    let (scores, unit_rc) = match reading.granularity {
        Granularity::Chunk => {
            let unit_rc = chunk_rc.select(Axis(1), &units.iter().map(|unit| unit.chunk).collect::<Vec<_>>());
            (units.iter().map(|unit| chunks[unit.chunk]).collect(), unit_rc)
        }
        Granularity::Sentence => {
            let unit_rc = rc_of(|unit| unit.tokens);
            let own = rc::mean_over_queries(unit_rc.view());
            (units.iter().zip(own).map(in_chunk).collect(), unit_rc)
        }
        Granularity::Token => {
            let unit_rc = rc_of(|unit| unit.tokens);
            let own = rc::mean_over_queries(unit_rc.view());
            let best = own.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
            let sentences = sentence_scores(logits, units);
            let in_sentence =
                sentences.into_iter().zip(own).map(|(sentence, own)| sentence * (1.0 + own / best));
            (units.iter().zip(in_sentence).map(in_chunk).collect(), unit_rc)
        }
    };
    Scores { chunks, units: scores, unit_rc, reach: reach(logits) }
}

/// The mean RC of each unit's sentence, one per unit; a sentence's rivals are the other sentences, each counted once.
fn sentence_scores(logits: &Logits, units: &[Unit]) -> Vec<f32> {
    let mut sentences: Vec<(usize, ByteRange, TokenSpan)> = Vec::new();
    let mut sentence_of = Vec::with_capacity(units.len());
    for unit in units {
        if sentences
            .last()
            .is_none_or(|&(chunk, bytes, _)| (chunk, bytes) != (unit.chunk, unit.sentence.bytes))
        {
            sentences.push((unit.chunk, unit.sentence.bytes, unit.sentence.tokens));
        }
        sentence_of.push(sentences.len() - 1);
    }
    let spans: Vec<TokenSpan> = sentences.into_iter().map(|(_, _, tokens)| tokens).collect();
    let scores = rc::mean_over_queries(ranked(logits, &spans).view());
    sentence_of.into_iter().map(|sentence| scores[sentence]).collect()
}

fn plain(reading: &Reading, estimator: Estimator) -> Scores {
    let Reading { logits, blocks, units, .. } = reading;
    let score = |spans: &[TokenSpan]| rc::score(logits.cross.view(), logits.own.view(), spans, estimator);
    let chunks = score(&blocks.passages).scores;
    let own = score(&units.iter().map(|unit| unit.tokens).collect::<Vec<_>>());
    let units = units.iter().zip(own.scores).map(|(unit, own)| own + chunks[unit.chunk]).collect();
    Scores { chunks, units, unit_rc: own.per_query, reach: reach(logits) }
}

/// RC of each segment per question token against ranked rivals, `[question token, segment]`. A segment that is the only
/// one has no rivals: it is compared with the question itself.
pub fn ranked(logits: &Logits, segments: &[TokenSpan]) -> Array2<f32> {
    let peaks = rc::peaks(logits.cross.view(), segments);
    let rc = if segments.iter().filter(|segment| !segment.is_empty()).count() > 1 {
        rc::ranked_rivals(&peaks)
    } else {
        let alone = Estimator { pooling: rc::Pooling::Peak, reference: Reference::Own };
        rc::coupled_segments(logits.cross.view(), logits.own.view(), segments, &peaks, alone)
    };
    rc::mean_over_heads(rc)
}

/// Mean over heads and question tokens of the best raw logit over all keys; 0 without keys.
fn reach(logits: &Logits) -> f32 {
    let keys = logits.cross.len_of(Axis(2));
    match keys {
        0 => 0.0,
        _ => rc::raw_maxsim(&rc::peaks(logits.cross.view(), &[TokenSpan::new(0, keys)]))[0],
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
