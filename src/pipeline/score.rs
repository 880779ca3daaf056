//! Logits to scores: how much the question is contextualised by each chunk and by each unit of its text.

use ndarray::ArrayView3;

use super::blocks::Blocks;
use super::units::Unit;
use crate::domain::TokenSpan;
use crate::model::Logits;
use crate::rc::{self, Estimator};

/// Scores of one request; a higher one is better, and only their order within the request has a meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// One per chunk.
    pub chunks: Vec<f32>,
    /// One per unit.
    pub units: Vec<f32>,
}

/// Scores chunks, and units in the light of their chunk: a sentence counts for itself and for where it stands.
pub fn all(logits: &Logits, blocks: &Blocks, units: &[Unit], estimator: Estimator) -> Scores {
    let chunks = segments(logits, &blocks.passages, estimator);
    let spans: Vec<TokenSpan> = units.iter().map(|unit| unit.tokens).collect();
    let own = segments(logits, &spans, estimator);
    let units = units.iter().zip(own).map(|(unit, score)| score + chunks[unit.chunk]).collect();
    Scores { chunks, units }
}

fn segments(logits: &Logits, spans: &[TokenSpan], estimator: Estimator) -> Vec<f32> {
    let (cross, own): (ArrayView3<f32>, ArrayView3<f32>) = (logits.cross.view(), logits.own.view());
    rc::score(cross, own, spans, estimator).scores
}
