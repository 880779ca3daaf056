//! Selection: chooses the units to keep, within a budget of tokens or, without a budget, by shares of the
//! evidence. Knows nothing of texts and tokenizers: costs are given.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ndarray::ArrayView1;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::answerable::Answerable;
use super::calibration::Calibration;
use super::conformal;
use super::outcome::Relevance;
use super::repeats::Repeats;
use super::score::{Measured, Scores};
use super::units::{Outlines, Unit};
use crate::domain::{Chunk, CompressRequest};
use crate::text::{self, Names};

/// The share of the evidence that the units kept by [`Auto::select`] carry.
const EVIDENCE_SHARE: f64 = 0.97;

/// The share of the total score that the units kept by [`Auto::select`] carry.
const SCORE_SHARE: f64 = 0.6;

/// The share of the best unit's score below which a unit is noise, which no budget is filled with. Larger shares
/// lose answers of questions that need two passages (`docs/evaluation.md`).
const NOISE_SHARE: f32 = 0.02;

/// The share of the threshold that `relevance` reaches at least if a chunk has all names of the question
/// (`docs/evaluation.md`).
const NAMED_SHARE: f32 = 0.75;

/// The units to select from, with their scores and costs.
#[derive(Debug, Clone, Copy)]
pub struct SelectionInput<'a> {
    /// The units, in the order of the text.
    pub units: &'a [Unit],
    /// `[unit]`: the score of each unit.
    pub scores: &'a [f32],
    /// `[unit]`: the number of tokens in each unit, by the caller's tokenizer.
    pub costs: &'a [usize],
    /// `[chunk]`: the number of tokens around the chunk's text: its marker, its title and the break after it.
    pub frame_costs: &'a [usize],
    /// `[chunk]`: the same if the chunk's first unit is kept, whose text may begin with the title.
    pub frame_costs_of_first: &'a [usize],
    /// `[unit]`: whether the request wants the unit kept, whatever its score.
    pub required: &'a [bool],
    pub outlines: &'a Outlines,
    /// The units that say again what another one says. They are not chosen for themselves.
    pub repeats: &'a Repeats,
    /// The best unit for each of several questions in one, which are chosen before all others.
    pub leading: &'a [usize],
    /// Whether the question compares all rows of a table, so that a row is kept with all others of its table.
    pub compares_rows: bool,
}

/// The selected units. If the budget turns out to be smaller than estimated, the choices at the end are
/// dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The indices of the units that the request wants kept.
    pub required: Vec<usize>,
    /// The indices of the units that were chosen by score, in descending order of score, each after the units
    /// that it requires.
    pub chosen: Vec<usize>,
    /// The number of units in `chosen` after each choice. The units up to such a number, together with
    /// `required`, are a valid selection, too.
    pub ends: Vec<usize>,
}

impl Selection {
    /// Returns the selection of the required units alone.
    pub fn of_required(required: Vec<usize>) -> Self {
        Self { required, chosen: Vec::new(), ends: Vec::new() }
    }

    /// Returns the units of the first `choices` choices.
    pub fn first(&self, choices: usize) -> &[usize] {
        &self.chosen[..choices.checked_sub(1).map_or(0, |last| self.ends[last])]
    }

    fn add(&mut self, group: Vec<usize>) {
        self.chosen.extend(group);
        self.ends.push(self.chosen.len());
    }
}

/// Units that a promise keeps together; see [`conformal`].
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The effort of the first of them.
    pub effort: f32,
    pub units: Vec<usize>,
}

impl SelectionInput<'_> {
    /// Selects the required units and, in descending order of score, every other unit that still fits into a
    /// budget of `tokens`. A unit that does not fit is skipped; a smaller one after it may fit. Units that score
    /// far below the best one are left out, even if they fit.
    pub fn within(&self, tokens: usize) -> Selection {
        let (mut ranked, leads) = (self.ranked(), self.leads());
        if let Some(best) = ranked.iter().map(|&unit| self.scores[unit]).max_by(f32::total_cmp) {
            let is_noise = |unit: usize| self.scores[unit] < NOISE_SHARE * best && !leads[unit];
            ranked.retain(|&unit| !is_noise(unit));
        }
        self.fill(tokens, &ranked)
    }

    /// As [`Self::within`], but with units of any score.
    pub fn filling(&self, tokens: usize) -> Selection {
        self.fill(tokens, &self.ranked())
    }

    /// Selects the required units and those of `ranked` that fit into a budget of `tokens`.
    fn fill(&self, tokens: usize, ranked: &[usize]) -> Selection {
        let required = self.required();
        let mut has_frame = self.has_required();
        let mut tokens_left = tokens.saturating_sub(self.required_cost(&required));
        let mut selection = Selection::of_required(required);
        let mut taken = vec![false; self.units.len()];
        // The rows of a chunk are tried together once.
        let mut tries_rows = vec![self.compares_rows; self.frame_costs.len()];
        for &unit in ranked {
            let chunk = self.units[unit].chunk;
            let frame_cost = if has_frame[chunk] { 0 } else { self.frame_cost(unit) };
            for compares_rows in [true, false] {
                if taken[unit] || compares_rows && !std::mem::take(&mut tries_rows[chunk]) {
                    continue;
                }
                // What it requires makes it only longer.
                if frame_cost + self.costs[unit] > tokens_left {
                    continue;
                }
                let mut group = self.group(unit, compares_rows, &|unit| taken[unit]);
                let cost_of =
                    |group: &[usize]| frame_cost + group.iter().map(|&unit| self.costs[unit]).sum::<usize>();
                // The best unit without a part of its group is better than a worse one with all of it.
                if cost_of(&group) > tokens_left
                    && !compares_rows
                    && selection.chosen.is_empty()
                    && self.outlines.may_be_cut(chunk)
                {
                    group = self.cut_group(unit, group, tokens_left - frame_cost);
                }
                let cost = cost_of(&group);
                if cost <= tokens_left && !group.is_empty() {
                    tokens_left -= cost;
                    has_frame[chunk] = true;
                    group.iter().for_each(|&unit| taken[unit] = true);
                    selection.add(group);
                }
            }
        }
        selection
    }

    /// Selects everything: the units in descending order of score, and then those that nothing requires and
    /// that are never chosen for themselves, such as a heading without text.
    pub fn everything(&self) -> Selection {
        let mut selection = self.filling(usize::MAX);
        let mut rest = vec![true; self.units.len()];
        selection.required.iter().chain(&selection.chosen).for_each(|&unit| rest[unit] = false);
        let is_rest = |unit: &usize| rest[*unit] && !self.repeats.is_repeat(*unit);
        let rest: Vec<usize> = (0..rest.len()).filter(is_rest).collect();
        if !rest.is_empty() {
            selection.add(rest);
        }
        selection
    }

    /// Returns the unit with the lowest cost by itself, with its chunk's frame and, in a chunk whose groups may not be cut, all units
    /// that it requires; `None` if there are no units to choose. Of equal costs, the better unit wins.
    pub fn cheapest(&self) -> Option<usize> {
        // Neighbours, such as the members of an object, require the same units.
        let mut required: HashMap<(usize, Vec<usize>), (BTreeSet<usize>, usize)> = HashMap::new();
        let mut cost_alone = |unit: usize| {
            let chunk = self.units[unit].chunk;
            if self.outlines.may_be_cut(chunk) {
                return self.frame_cost(unit) + self.costs[unit];
            }
            let direct: Vec<usize> = self.outlines.required_by(unit, chunk).collect();
            let (all, cost) = required.entry((chunk, direct)).or_insert_with_key(|(_, direct)| {
                let all: BTreeSet<usize> =
                    direct.iter().flat_map(|&other| self.with_required(other)).collect();
                let cost = all.iter().map(|&other| self.costs[other]).sum();
                (all, cost)
            });
            let own = if all.contains(&unit) { 0 } else { self.costs[unit] };
            self.frame_cost(unit) + own + *cost
        };
        // A heading alone says nothing.
        let says = |unit: &usize| self.outlines.introduced_by(*unit, self.units[*unit].chunk).is_none();
        let ranked = self.ranked();
        let (saying, others): (Vec<usize>, Vec<usize>) = ranked.into_iter().partition(says);
        let units = if saying.is_empty() { others } else { saying };
        units.into_iter().min_by_key(|&unit| cost_alone(unit))
    }

    /// Returns the choices of units in the order in which a promise keeps them, each with its effort.
    pub fn steps(&self) -> Vec<Step> {
        let ranked = self.ranked();
        let best = ranked.first().map_or(0.0, |&unit| self.scores[unit]);
        let relative = |unit: usize| if best > 0.0 { self.scores[unit] / best } else { 1.0 };
        let mut taken = vec![false; self.units.len()];
        let mut steps = Vec::new();
        for (rank, &unit) in ranked.iter().enumerate().map(|(at, unit)| (at + 1, unit)) {
            if !taken[unit] {
                let units = self.group(unit, self.compares_rows, &|unit| taken[unit]);
                units.iter().for_each(|&unit| taken[unit] = true);
                steps.push(Step { effort: conformal::effort(rank, relative(unit)), units });
            }
        }
        steps
    }

    /// Selects the required units, and all others up to an effort.
    pub fn up_to(&self, limit: f32) -> Selection {
        let mut selection = Selection::of_required(self.required());
        let steps = self.steps().into_iter().take_while(|step| step.effort <= limit);
        steps.for_each(|step| selection.add(step.units));
        selection
    }

    /// Returns a unit with all units that it requires, in the order of the text.
    pub fn with_required(&self, unit: usize) -> Vec<usize> {
        self.group(unit, false, &|_| false)
    }

    /// Returns a unit with the units that must be kept with it in any budget.
    pub fn least_group(&self, unit: usize) -> Vec<usize> {
        if self.outlines.may_be_cut(self.units[unit].chunk) { vec![unit] } else { self.with_required(unit) }
    }

    /// Returns a unit after all units that it requires and that are not `taken` yet, in the order of the text. With
    /// `compares_rows`, the group of a row has all rows of its chunk.
    fn group(&self, unit: usize, compares_rows: bool, taken: &dyn Fn(usize) -> bool) -> Vec<usize> {
        let chunk = self.units[unit].chunk;
        let Some(piece) = self.outlines.piece(unit, chunk) else { return vec![unit] };
        let mut group = BTreeSet::from([unit]);
        if compares_rows && piece.is_row {
            let is_row = |other: &usize| self.outlines.is_row(*other, chunk);
            group.extend(self.outlines.units_of(chunk).filter(is_row).filter(|&other| !taken(other)));
        }
        // A heading brings its first sentence.
        group.extend(self.outlines.introduced_by(unit, chunk).filter(|&other| !taken(other)));
        let mut open: Vec<usize> = group.iter().copied().collect();
        while let Some(next) = open.pop() {
            let required = self.outlines.required_by(next, chunk).filter(|&other| !taken(other));
            open.extend(required.filter(|&other| group.insert(other)));
        }
        group.into_iter().collect()
    }

    /// Returns a unit with as many others of its group as fit into a number of tokens: first the one that it introduces, those above
    /// that it requires itself, such as its introduction, and then the nearest. Returns none if it says nothing alone and what it
    /// introduces does not fit.
    fn cut_group(&self, unit: usize, mut group: Vec<usize>, tokens: usize) -> Vec<usize> {
        let direct: Vec<usize> = self.outlines.required_by(unit, self.units[unit].chunk).collect();
        let introduced = self.outlines.introduced_by(unit, self.units[unit].chunk);
        let is_above = |other: usize| other < unit && direct.contains(&other);
        group.sort_by_key(|&other| {
            (other != unit, introduced != Some(other), !is_above(other), unit.abs_diff(other))
        });
        let mut tokens_left = tokens;
        group.retain(|&other| {
            let fits = self.costs[other] <= tokens_left;
            tokens_left -= if fits { self.costs[other] } else { 0 };
            fits
        });
        if introduced.is_some_and(|other| !group.contains(&other)) {
            return Vec::new();
        }
        group.sort_unstable();
        group
    }

    /// Returns the indices of the units that may be chosen and are not required: the leading ones, and all others in descending
    /// order of score. Equal scores keep the order of the text.
    pub fn ranked(&self) -> Vec<usize> {
        let may_be_chosen = |&unit: &usize| {
            let chunk = self.units[unit].chunk;
            !self.required[unit] && !self.outlines.is_frame(unit, chunk) && !self.repeats.is_repeat(unit)
        };
        let mut order: Vec<usize> = (0..self.units.len()).filter(may_be_chosen).collect();
        order.par_sort_by(|&a, &b| self.scores[b].total_cmp(&self.scores[a]));
        if !self.leading.is_empty() {
            let leads = self.leads();
            order.sort_by_key(|&unit| !leads[unit]);
        }
        order
    }

    /// Returns `[unit]`, whether the unit is a leading one.
    fn leads(&self) -> Vec<bool> {
        let mut leads = vec![false; self.units.len()];
        self.leading.iter().for_each(|&unit| leads[unit] = true);
        leads
    }

    /// Returns the tokens around the text of a unit's chunk, if no other unit of it is kept.
    fn frame_cost(&self, unit: usize) -> usize {
        let chunk = self.units[unit].chunk;
        let is_first = unit == 0 || self.units[unit - 1].chunk != chunk;
        if is_first { self.frame_costs_of_first[chunk] } else { self.frame_costs[chunk] }
    }

    /// Returns the indices of the units that the request wants kept.
    pub fn required(&self) -> Vec<usize> {
        (0..self.units.len()).filter(|&unit| self.required[unit]).collect()
    }

    /// Returns `[chunk]`, whether the request wants a unit of the chunk kept.
    fn has_required(&self) -> Vec<bool> {
        let mut has_required = vec![false; self.frame_costs.len()];
        self.required().iter().for_each(|&unit| has_required[self.units[unit].chunk] = true);
        has_required
    }

    /// Returns the tokens of the required units and of the frames of their chunks.
    fn required_cost(&self, required: &[usize]) -> usize {
        let units: usize = required.iter().map(|&unit| self.costs[unit]).sum();
        let has_required = self.has_required();
        let frames = self.frame_costs.iter().zip(has_required).filter(|(_, has)| *has).map(|(cost, _)| cost);
        units + frames.sum::<usize>()
    }
}

/// The rule that decides how much is kept when a request names no budget .
///
/// It keeps the fewest units, in descending order of score, that carry 97 % of the evidence and 60 % of the
/// total score. The evidence of a set of units is the sum over the question's tokens of the largest RC among
/// these units; the share is relative to the evidence of all units. Units of chunks that are kept whole count
/// for neither share. `docs/evaluation.md` has the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auto {
    /// The [`relevance`](Scores::relevance) below which no chunk is related to the question. It is a raw logit, so its value depends on the
    /// model. `None` means what the calibration of the model says; without one, the model does not tell. 0 switches the test off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relevance_min: Option<f32>,
    /// As `relevance_min`, if some chunk is not prose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_relevance_min: Option<f32>,
    /// The share of the question's words and n-grams that a chunk has at least, where the model does not know
    /// the question's script. Half of it is enough over short texts. 0 switches the test off.
    pub lexical_min: f32,
}

impl Default for Auto {
    fn default() -> Self {
        Self { relevance_min: None, structured_relevance_min: None, lexical_min: 0.35 }
    }
}

impl Auto {
    /// Returns whether any chunk is related to the question. Models whose logits have no fixed scale, and models without a `calibration` and
    /// without a threshold of the operator, do not tell; for these it returns `None`. A question whose names all stand in one chunk needs only
    /// 3/4 of the threshold; one that the chunks answer is related to them, one that compares rows to each table, and one that asks for an
    /// overview to any text.
    pub fn relevance(
        &self,
        request: &CompressRequest,
        outlines: &Outlines,
        scores: &Scores,
        answerable: Option<&Answerable>,
        calibration: Option<&Calibration>,
    ) -> Option<Relevance> {
        let relevance = scores.relevance?;
        let fitted = calibration.and_then(|calibration| calibration.related);
        let least = match scores.measured {
            Measured::Prose => self.relevance_min.or(fitted.map(|fitted| fitted.prose))?,
            Measured::Structured => {
                self.structured_relevance_min.or(fitted.map(|fitted| fitted.structured))?
            }
            Measured::Lexical => self.lexical_min * lexical_share(&request.chunks),
        };
        // "Which is the cheapest?" has no word of the table that answers it.
        let compares_rows = outlines.has_rows() && text::compares_all(&request.query);
        let floor = match scores.measured {
            Measured::Lexical => 0.0,
            _ => calibration.and_then(|calibration| calibration.cosine_floor).unwrap_or(0.0).min(least),
        };
        let least_if_named = floor + NAMED_SHARE * (least - floor);
        let related = relevance >= least
            || answerable.is_some_and(|answerable| answerable.answerable)
            || compares_rows
            || text::asks_for_overview(&request.query)
            || relevance >= least_if_named && names_are_in_one(&request.query, &request.chunks);
        Some(Relevance { value: relevance, related, least })
    }

    /// Selects the required units, and the units that the rule keeps of the others.
    pub fn select(&self, input: &SelectionInput, scores: &Scores) -> Selection {
        let mut selection = Selection::of_required(input.required());
        let ranked = input.ranked();
        let mut taken = vec![false; input.units.len()];
        for &unit in &ranked[..sufficient_count(&ranked, scores)] {
            if !taken[unit] {
                let group = input.group(unit, input.compares_rows, &|unit| taken[unit]);
                group.iter().for_each(|&unit| taken[unit] = true);
                selection.add(group);
            }
        }
        selection
    }
}

/// Returns whether one chunk has all names of a question, and there are some.
fn names_are_in_one(query: &str, chunks: &[Arc<Chunk>]) -> bool {
    let names = Names::find(query);
    let has_names =
        |chunk: &Arc<Chunk>| names.are_in(&[chunk.title.as_deref().unwrap_or_default(), &chunk.text]);
    chunks.iter().any(has_names)
}

/// Returns the share of `lexical_min` that holds for texts of this length: the longer they are, the more words of
/// any question they have by chance. It grows with the logarithm, from 1/2 at 300 bytes to 1 at 3,000.
fn lexical_share(chunks: &[Arc<Chunk>]) -> f32 {
    let bytes: usize = chunks.iter().map(|chunk| chunk.text.len()).sum();
    (0.5 + 0.5 * (bytes as f32 / 300.0).log10()).clamp(0.5, 1.0)
}

/// Returns how many of the best units, in the order of `ranked`, carry both shares.
fn sufficient_count(ranked: &[usize], scores: &Scores) -> usize {
    let rc = &scores.unit_rc;
    let best = |row: ArrayView1<f32>| ranked.iter().map(|&unit| f64::from(row[unit])).fold(0.0, f64::max);
    let evidence_total: f64 = rc.outer_iter().map(best).sum();
    let score_total: f64 = ranked.iter().map(|&unit| f64::from(scores.units[unit])).sum();
    // `[question_token]`: the largest RC among the units so far.
    let mut evidence = vec![0.0_f64; rc.nrows()];
    let mut score = 0.0;
    for (kept, &unit) in ranked.iter().enumerate() {
        score += f64::from(scores.units[unit]);
        evidence.iter_mut().zip(rc.column(unit)).for_each(|(best, &rc)| *best = best.max(f64::from(rc)));
        let has_evidence = evidence.iter().sum::<f64>() >= EVIDENCE_SHARE * evidence_total;
        if has_evidence && score >= SCORE_SHARE * score_total {
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
    use crate::pipeline::units::UnitSpan;

    /// `units` are `(chunk, score, cost)`; a chunk's frame costs 2.
    #[track_caller]
    fn check_within(
        name: &str,
        units: &[(usize, f32, usize)],
        keep: &[bool],
        tokens: usize,
        expect: (&[usize], &[usize]),
    ) {
        let span = UnitSpan { bytes: ByteRange::new(0, 1), tokens: TokenSpan::new(0, 1) };
        let unit = |&(chunk, _, _): &(usize, f32, usize)| Unit {
            chunk,
            bytes: span.bytes,
            tokens: span.tokens,
            sentence: span,
        };
        let input = SelectionInput {
            units: &units.iter().map(unit).collect::<Vec<_>>(),
            scores: &units.iter().map(|unit| unit.1).collect::<Vec<_>>(),
            costs: &units.iter().map(|unit| unit.2).collect::<Vec<_>>(),
            frame_costs: &vec![2; keep.len()],
            frame_costs_of_first: &vec![2; keep.len()],
            required: &units.iter().map(|&(chunk, ..)| keep[chunk]).collect::<Vec<_>>(),
            outlines: &Outlines::of_prose(keep.len()),
            repeats: &Repeats::default(),
            leading: &[],
            compares_rows: false,
        };
        let found = input.within(tokens);
        assert_eq!((&*found.required, &*found.chosen), expect, "{name}");
        // Without noise, both are the same.
        let filled = input.filling(tokens);
        assert!(filled.chosen.starts_with(&found.chosen), "{name}: {:?}", filled.chosen);
        let noise = units.len() - filled.chosen.len() - filled.required.len();
        assert!(noise == 0 || tokens < 99, "{name}: {:?}", filled.chosen);
    }

    #[test]
    fn the_best_units_that_fit_are_chosen() {
        let (free, units) = ([false; 2], [(0, 1.0, 5), (0, 3.0, 4), (1, 2.0, 5)]);
        check_within("no units", &[], &[false], 100, (&[], &[]));
        check_within("no unit fits", &units, &free, 5, (&[], &[]));
        check_within("the best unit and its frame", &units, &free, 6, (&[], &[1]));
        check_within(
            "the second unit is skipped, the third shares a frame",
            &units,
            &free,
            11,
            (&[], &[1, 0]),
        );
        check_within(
            "noise is left out",
            &[(0, 3.0, 4), (0, 0.05, 1), (1, 0.06, 1)],
            &free,
            99,
            (&[], &[0, 2]),
        );
        check_within("nothing scores", &[(0, 0.0, 4), (1, 0.0, 1)], &free, 99, (&[], &[0, 1]));
        check_within("all units, best first", &units, &free, 18, (&[], &[1, 2, 0]));
        check_within(
            "equal scores in the order of the text",
            &[(0, 1.0, 1), (0, 1.0, 1)],
            &[false],
            9,
            (&[], &[0, 1]),
        );
        check_within(
            "a score that is not a number is the best",
            &[(0, 9.0, 1), (0, f32::NAN, 1)],
            &[false],
            3,
            (&[], &[1]),
        );
    }

    #[test]
    fn units_of_kept_chunks_are_required() {
        let units = [(0, 1.0, 5), (1, 3.0, 4), (1, 2.0, 5)];
        check_within("kept even if it exceeds the budget", &units, &[true, false], 0, (&[0], &[]));
        check_within("its tokens count towards the budget", &units, &[true, false], 12, (&[0], &[]));
        check_within(
            "the rest of the budget goes to the best unit",
            &units,
            &[true, false],
            13,
            (&[0], &[1]),
        );
        check_within("all chunks are kept", &units, &[true, true], 1, (&[0, 1, 2], &[]));
    }

    /// Selects by the rule from units of one chunk each. `rc` is `[question_token][unit]`; a unit's score is
    /// the sum of its column.
    #[track_caller]
    fn check_auto(name: &str, rc: &[&[f32]], relevance: f32, keep: &[usize], expect: &[usize]) {
        let units = rc[0].len();
        let unit_rc = Array2::from_shape_vec((rc.len(), units), rc.concat()).expect("rows of one length");
        let units_scores: Vec<f32> = unit_rc.columns().into_iter().map(|column| column.sum()).collect();
        let scores = Scores {
            chunks: units_scores.clone(),
            units: units_scores,
            unit_rc,
            relevance: Some(relevance),
            chunk_relevances: Vec::new(),
            measured: Measured::Prose,
            are_probabilities: false,
        };
        let span = UnitSpan { bytes: ByteRange::new(0, 1), tokens: TokenSpan::new(0, 1) };
        let unit = |chunk| Unit { chunk, bytes: span.bytes, tokens: span.tokens, sentence: span };
        let keep: Vec<bool> = (0..units).map(|unit| keep.contains(&unit)).collect();
        let input = SelectionInput {
            units: &(0..units).map(unit).collect::<Vec<_>>(),
            scores: &scores.units,
            costs: &vec![1; units],
            frame_costs: &vec![0; units],
            frame_costs_of_first: &vec![0; units],
            required: &keep,
            outlines: &Outlines::of_prose(units),
            repeats: &Repeats::default(),
            leading: &[],
            compares_rows: false,
        };
        assert_eq!(Auto::default().select(&input, &scores).chosen, expect, "{name}");
    }

    #[test]
    fn auto_keeps_the_fewest_units_with_enough_evidence_and_score() {
        check_auto("no units", &[&[]], 1.0, &[], &[]);
        check_auto("one unit is best for every token", &[&[9.0, 1.0], &[9.0, 1.0]], 1.0, &[], &[0]);
        check_auto(
            "two tokens with different best units",
            &[&[0.0, 5.0, 0.0], &[4.0, 0.0, 0.0]],
            1.0,
            &[],
            &[1, 0],
        );
        check_auto(
            "one unit has enough evidence, but not enough score",
            &[&[3.0, 2.9, 2.8]],
            1.0,
            &[],
            &[0, 1],
        );
        check_auto("no evidence: the first unit", &[&[0.0, 0.0]], 1.0, &[], &[0]);
        check_auto("a required unit is not chosen again", &[&[9.0, 1.0, 0.0]], 1.0, &[0], &[1]);
        check_auto("all units are required", &[&[9.0, 1.0]], 1.0, &[0, 1], &[]);
    }
}
