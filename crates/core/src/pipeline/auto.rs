//! How much is worth keeping when the caller names no budget.
//!
//! The rule: *order units by score; keep the fewest that carry 97 % of the evidence there is for the question's tokens
//! (the sum over tokens of the best RC among the kept, against the same sum over all units) and 60 % of the total score.
//! If the question's tokens come near nothing at all (max_sim below [`Auto::max_sim_min`]), keep the best unit only.*

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
    /// The max_sim below which nothing sent has to do with the question. A raw logit, so it belongs to a model: 0.55 is
    /// measured for all-MiniLM-L6-v2. 0 switches the test off.
    pub max_sim_min: f32,
}

impl Default for Auto {
    fn default() -> Self {
        Self { max_sim_min: 0.55 }
    }
}

impl Auto {
    /// Whether anything sent has to do with the question; where the model's logits do not say, it is taken to have.
    pub fn is_related(&self, scores: &Scores) -> bool {
        scores.max_sim.is_none_or(|max_sim| max_sim >= self.max_sim_min)
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

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::domain::{ByteRange, TokenSpan};
    use crate::pipeline::units::{Unit, UnitSpan};

    /// Picks from units of one chunk each; `rc` is `[question token][unit]`, a unit's score the sum of its column.
    #[track_caller]
    fn check(name: &str, rc: &[&[f32]], max_sim: f32, keep: &[usize], expect: &[usize]) {
        let units = rc[0].len();
        let unit_rc = Array2::from_shape_vec((rc.len(), units), rc.concat()).expect("rows of one length");
        let units_scores: Vec<f32> = unit_rc.columns().into_iter().map(|column| column.sum()).collect();
        let scores =
            Scores { chunks: units_scores.clone(), units: units_scores, unit_rc, max_sim: Some(max_sim) };
        let place = UnitSpan { bytes: ByteRange::new(0, 1), tokens: TokenSpan::new(0, 1) };
        let unit = |chunk| Unit { chunk, bytes: place.bytes, tokens: place.tokens, sentence: place };
        let keep: Vec<bool> = (0..units).map(|unit| keep.contains(&unit)).collect();
        let candidates = Candidates {
            units: &(0..units).map(unit).collect::<Vec<_>>(),
            scores: &scores.units,
            costs: &vec![1; units],
            frame_costs: &vec![0; units],
            keep: &keep,
        };
        assert_eq!(Auto { max_sim_min: 0.5 }.select(&candidates, &scores).picked, expect, "{name}");
    }

    #[test]
    fn enough_is_what_carries_evidence_and_mass() {
        check("nothing sent", &[&[]], 1.0, &[], &[]);
        check("one speaks for every token", &[&[9.0, 1.0], &[9.0, 1.0]], 1.0, &[], &[0]);
        check("two tokens, each with its unit", &[&[0.0, 5.0, 0.0], &[4.0, 0.0, 0.0]], 1.0, &[], &[1, 0]);
        check("the evidence is there, the mass is not", &[&[3.0, 2.9, 2.8]], 1.0, &[], &[0, 1]);
        check("nothing speaks: the best, which is the first", &[&[0.0, 0.0]], 1.0, &[], &[0]);
        check("unrelated: the best only", &[&[0.0, 5.0], &[4.0, 0.0]], 0.4, &[], &[1]);
        check("what the caller wants is not picked again", &[&[9.0, 1.0, 0.0]], 1.0, &[0], &[1]);
        check("all is wanted", &[&[9.0, 1.0]], 1.0, &[0, 1], &[]);
    }
}
