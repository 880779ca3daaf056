//! Logits to scores: how much the question is contextualised by each chunk and by each unit of its text.

use std::fmt;

use ndarray::{Array2, Axis};

use super::blocks::Blocks;
use super::units::Unit;
use crate::domain::TokenSpan;
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

/// Scores chunks, and units in the light of their chunk: a sentence counts for itself and for where it stands.
pub fn all(logits: &Logits, blocks: &Blocks, units: &[Unit], scoring: Scoring) -> Scores {
    let spans: Vec<TokenSpan> = units.iter().map(|unit| unit.tokens).collect();
    let reach = reach(logits);
    match scoring {
        Scoring::RankedCoverage => {
            let chunks = rc::with_coverage(&ranked(logits, &blocks.passages));
            let unit_rc = ranked(logits, &spans);
            let own = rc::mean_over_queries(unit_rc.view());
            let units = units.iter().zip(own).map(|(unit, own)| own * chunks[unit.chunk].sqrt()).collect();
            Scores { chunks, units, unit_rc, reach }
        }
        Scoring::Plain(estimator) => {
            let score =
                |spans: &[TokenSpan]| rc::score(logits.cross.view(), logits.own.view(), spans, estimator);
            let chunks = score(&blocks.passages).scores;
            let own = score(&spans);
            let units = units.iter().zip(own.scores).map(|(unit, own)| own + chunks[unit.chunk]).collect();
            Scores { chunks, units, unit_rc: own.per_query, reach }
        }
    }
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
