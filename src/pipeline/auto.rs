//! How much is worth keeping when the caller names no budget.
//!
//! The rule: *order units by score; keep the fewest that carry 97 % of the evidence there is for the question's tokens
//! (the sum over tokens of the best RC among the kept, against the same sum over all units) and 60 % of the total score.
//! If the question's tokens come near nothing at all (reach below [`Auto::reach_min`]), keep the best unit only.*

use serde::{Deserialize, Serialize};

use super::score::Scores;
use super::select::{Candidates, Selection};

/// Share of the evidence that the kept units carry.
const EVIDENCE: f64 = 0.97;
/// Share of the total score that they carry.
const MASS: f64 = 0.6;

/// What the rule takes as given.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auto {
    /// The reach below which nothing sent has to do with the question. A raw logit, so it belongs to a model: 0.55 is
    /// measured for all-MiniLM-L6-v2. 0 switches the test off.
    pub reach_min: f32,
}

impl Default for Auto {
    fn default() -> Self {
        Self { reach_min: 0.55 }
    }
}

impl Auto {
    /// Whether anything sent has to do with the question.
    pub fn is_related(&self, scores: &Scores) -> bool {
        scores.reach >= self.reach_min
    }

    /// The units that are worth keeping, and those the caller wants.
    pub fn select(&self, candidates: &Candidates, scores: &Scores) -> Selection {
        let mut picked = candidates.ranked();
        let enough = if self.is_related(scores) { enough(&picked, scores) } else { 1 };
        picked.truncate(enough);
        Selection { wanted: candidates.wanted(), picked }
    }
}

/// How many of `ranked` meet both shares.
fn enough(ranked: &[usize], scores: &Scores) -> usize {
    let rc = &scores.unit_rc;
    let best =
        |row: ndarray::ArrayView1<f32>| ranked.iter().map(|&unit| f64::from(row[unit])).fold(0.0, f64::max);
    let evidence_all: f64 = rc.outer_iter().map(best).sum();
    let mass_all: f64 = ranked.iter().map(|&unit| f64::from(scores.units[unit])).sum();
    let mut found = vec![0.0_f64; rc.nrows()];
    let mut mass = 0.0;
    for (kept, &unit) in ranked.iter().enumerate() {
        mass += f64::from(scores.units[unit]);
        found.iter_mut().zip(rc.column(unit)).for_each(|(found, &rc)| *found = found.max(f64::from(rc)));
        if found.iter().sum::<f64>() >= EVIDENCE * evidence_all && mass >= MASS * mass_all {
            return kept + 1;
        }
    }
    ranked.len()
}
