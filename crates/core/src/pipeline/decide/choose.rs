//! Chooses units: the order in which they are kept, what is kept together, and how much of that a number of tokens holds. Knows nothing of
//! texts and tokenizers: costs are given.

use std::collections::{BTreeSet, HashSet};

use rayon::prelude::*;

use super::coverage;
use crate::pipeline::PipelineError;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::repeats::Repeats;
use crate::pipeline::units::{Outlines, Unit};

/// How many units [`Candidates::fill`] looks at for each unit before it stops: in a chain in which each unit needs the one before, all that
/// do not fit would be followed to its beginning.
const LOOKS_PER_UNIT_MAX: usize = 64;

/// After how many units a selection looks whether its caller still waits.
const STEPS_PER_LOOK: usize = 256;

/// The units to choose from, with their scores and costs.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
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
    /// The units that are chosen before all others: the best one for each of several questions in one.
    pub leading: &'a [usize],
    /// Whether a row of a table is kept with all others of its table.
    pub rows_together: bool,
    pub cancel: &'a Cancel,
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

/// Units that are kept together, and how far down the ranking they stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The place in the ranking of the unit that is chosen; the others come with it.
    pub rank: usize,
    pub units: Vec<usize>,
    /// See [`coverage::effort`].
    pub effort: f32,
}

impl Candidates<'_> {
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
            let mut leads = vec![false; self.units.len()];
            self.leading.iter().for_each(|&unit| leads[unit] = true);
            order.sort_by_key(|&unit| !leads[unit]);
        }
        order
    }

    /// Returns the choices in the order of `ranked`, each with its effort.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work.
    pub fn choices(&self, ranked: &[usize]) -> Result<Vec<Choice>, PipelineError> {
        let tokens = |unit: &usize| self.units[*unit].tokens.len();
        let all: usize = (0..self.units.len()).map(|unit| tokens(&unit)).sum();
        let best = ranked.iter().map(|&unit| self.scores[unit]).max_by(f32::total_cmp).unwrap_or(0.0);
        let mut taken = self.required.to_vec();
        let leading: HashSet<usize> = self.leading.iter().copied().collect();
        let (mut before, mut effort, mut choices) = (0, 0.0_f32, Vec::new());
        for (rank, &unit) in ranked.iter().enumerate() {
            if taken[unit] {
                continue;
            }
            self.look(rank)?;
            // A leading unit is the best one for its question, whatever the others score.
            let is_best = best <= 0.0 || leading.contains(&unit);
            let relative = if is_best { 1.0 } else { self.scores[unit] / best };
            effort = effort.max(coverage::effort(before, all, relative));
            let units = self.group(unit, self.rows_together, &|unit| taken[unit])?;
            for &unit in &units {
                taken[unit] = true;
                before += tokens(&unit);
            }
            choices.push(Choice { rank, units, effort });
        }
        Ok(choices)
    }

    /// Looks at `cancel` once in a while, as steps are counted.
    fn look(&self, step: usize) -> Result<(), PipelineError> {
        if step.is_multiple_of(STEPS_PER_LOOK) { self.cancel.check() } else { Ok(()) }
    }

    /// Selects the required units, and all `choices`.
    pub fn all_of(&self, choices: Vec<Choice>) -> Selection {
        let mut selection = Selection::of_required(self.required());
        choices.into_iter().for_each(|choice| selection.add(choice.units));
        selection
    }

    /// Selects the required units and, in the order of `ranked`, every unit that still fits into `tokens` with what it needs. A unit that
    /// does not fit is skipped; a smaller one after it may fit. Only the best unit is kept with a part of what it needs if all of it does
    /// not fit.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work.
    pub fn fill(&self, ranked: &[usize], tokens: usize) -> Result<Selection, PipelineError> {
        let required = self.required();
        let mut has_frame = self.has_required();
        let mut tokens_left = tokens.saturating_sub(self.required_cost(&required));
        let mut selection = Selection::of_required(required);
        let mut taken = vec![false; self.units.len()];
        // The rows of a chunk are tried together once.
        let mut tries_rows = vec![self.rows_together; self.frame_costs.len()];
        let mut looks_left = LOOKS_PER_UNIT_MAX * self.units.len();
        for (rank, &unit) in ranked.iter().enumerate() {
            if looks_left == 0 {
                break;
            }
            self.look(rank)?;
            let chunk = self.units[unit].chunk;
            let own_frame = if has_frame[chunk] { 0 } else { self.frame_cost(unit) };
            for rows_together in [true, false] {
                if taken[unit] || rows_together && !std::mem::take(&mut tries_rows[chunk]) {
                    continue;
                }
                // What it requires makes it only longer.
                if own_frame + self.costs[unit] > tokens_left {
                    continue;
                }
                let mut group = self.group(unit, rows_together, &|unit| taken[unit])?;
                looks_left = looks_left.saturating_sub(group.len());
                // The best unit without a part of its group is better than a worse one with all of it.
                if self.group_cost(&group, &has_frame) > tokens_left
                    && !rows_together
                    && selection.chosen.is_empty()
                {
                    group = self.cut_group(unit, group, tokens_left - own_frame);
                }
                let cost = self.group_cost(&group, &has_frame);
                if cost <= tokens_left && !group.is_empty() {
                    tokens_left -= cost;
                    for &unit in &group {
                        has_frame[self.units[unit].chunk] = true;
                        taken[unit] = true;
                    }
                    selection.add(group);
                }
            }
        }
        Ok(selection)
    }

    /// Selects everything: the units in descending order of score, and then those that nothing requires and
    /// that are never chosen for themselves, such as a heading without text.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work.
    pub fn everything(&self) -> Result<Selection, PipelineError> {
        let mut selection = self.fill(&self.ranked(), usize::MAX)?;
        let mut rest = vec![true; self.units.len()];
        selection.required.iter().chain(&selection.chosen).for_each(|&unit| rest[unit] = false);
        let is_rest = |unit: &usize| rest[*unit] && !self.repeats.is_repeat(*unit);
        let rest: Vec<usize> = (0..rest.len()).filter(is_rest).collect();
        if !rest.is_empty() {
            selection.add(rest);
        }
        Ok(selection)
    }

    /// Returns the tokens of units in the order of the text, with the frames of the chunks that have none yet.
    fn group_cost(&self, group: &[usize], has_frame: &[bool]) -> usize {
        let mut cost = 0;
        let mut last_chunk = None;
        for &unit in group {
            let chunk = self.units[unit].chunk;
            if last_chunk != Some(chunk) && !has_frame[chunk] {
                cost += self.frame_cost(unit);
            }
            cost += self.costs[unit];
            last_chunk = Some(chunk);
        }
        cost
    }

    /// Returns a unit after all units that it requires and that are not `taken` yet, in the order of the text. With
    /// `rows_together`, the group of a row has all rows of its chunk.
    ///
    /// # Errors
    /// Returns the error of `cancel` if it stops the work.
    fn group(
        &self,
        unit: usize,
        rows_together: bool,
        taken: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<usize>, PipelineError> {
        let chunk = self.units[unit].chunk;
        let mut group = BTreeSet::from([unit]);
        if rows_together && self.outlines.is_row(unit, chunk) {
            let is_row = |other: &usize| self.outlines.is_row(*other, chunk);
            group.extend(self.outlines.units_of(chunk).filter(is_row).filter(|&other| !taken(other)));
        }
        // A heading brings its first sentence.
        group.extend(self.outlines.introduced_by(unit, chunk).filter(|&other| !taken(other)));
        let mut open: Vec<usize> = group.iter().copied().collect();
        let mut step = 0;
        while let Some(next) = open.pop() {
            step += 1;
            self.look(step)?;
            let required =
                self.outlines.required_by(next, self.units[next].chunk).filter(|&other| !taken(other));
            open.extend(required.filter(|&other| group.insert(other)));
        }
        Ok(group.into_iter().collect())
    }

    /// Returns a unit with as many others of its group as fit into a number of tokens: first the one that it introduces, those above
    /// that it requires itself, such as its introduction, and then the nearest. Returns none if it says nothing alone and what it
    /// introduces does not fit.
    fn cut_group(&self, unit: usize, mut group: Vec<usize>, tokens: usize) -> Vec<usize> {
        let direct: BTreeSet<usize> = self.outlines.required_by(unit, self.units[unit].chunk).collect();
        let introduced = self.outlines.introduced_by(unit, self.units[unit].chunk);
        let is_above = |other: usize| other < unit && direct.contains(&other);
        group.sort_by_key(|&other| {
            (other != unit, introduced != Some(other), !is_above(other), unit.abs_diff(other))
        });
        let mut has_frame = vec![false; self.frame_costs.len()];
        has_frame[self.units[unit].chunk] = true;
        let mut tokens_left = tokens;
        group.retain(|&other| {
            let cost = self.group_cost(&[other], &has_frame);
            if cost > tokens_left {
                return false;
            }
            tokens_left -= cost;
            has_frame[self.units[other].chunk] = true;
            true
        });
        if introduced.is_some_and(|other| !group.contains(&other)) {
            return Vec::new();
        }
        group.sort_unstable();
        group
    }

    /// Returns the tokens around the text of a unit's chunk, if no other unit of it is kept.
    pub fn frame_cost(&self, unit: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{ByteRange, TokenSpan};
    use crate::pipeline::units::UnitSpan;

    /// `units` are `(chunk, score, cost)`; a chunk's frame costs 2.
    #[track_caller]
    fn check(
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
        let candidates = Candidates {
            units: &units.iter().map(unit).collect::<Vec<_>>(),
            scores: &units.iter().map(|unit| unit.1).collect::<Vec<_>>(),
            costs: &units.iter().map(|unit| unit.2).collect::<Vec<_>>(),
            frame_costs: &vec![2; keep.len()],
            frame_costs_of_first: &vec![2; keep.len()],
            required: &units.iter().map(|&(chunk, ..)| keep[chunk]).collect::<Vec<_>>(),
            outlines: &Outlines::of_prose(keep.len()),
            repeats: &Repeats::default(),
            leading: &[],
            rows_together: false,
            cancel: &Cancel::default(),
        };
        let found = candidates.fill(&candidates.ranked(), tokens).expect("a selection");
        assert_eq!((&*found.required, &*found.chosen), expect, "{name}");
    }

    #[test]
    fn the_best_units_that_fit_are_chosen() {
        let (free, units) = ([false; 2], [(0, 1.0, 5), (0, 3.0, 4), (1, 2.0, 5)]);
        check("no units", &[], &[false], 100, (&[], &[]));
        check("no unit fits", &units, &free, 5, (&[], &[]));
        check("the best unit and its frame", &units, &free, 6, (&[], &[1]));
        check("the second unit is skipped, the third shares a frame", &units, &free, 11, (&[], &[1, 0]));
        check("nothing scores", &[(0, 0.0, 4), (1, 0.0, 1)], &free, 99, (&[], &[0, 1]));
        check("all units, best first", &units, &free, 18, (&[], &[1, 2, 0]));
        check(
            "equal scores in the order of the text",
            &[(0, 1.0, 1), (0, 1.0, 1)],
            &[false],
            9,
            (&[], &[0, 1]),
        );
        check(
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
        check("kept even if it exceeds the budget", &units, &[true, false], 0, (&[0], &[]));
        check("its tokens count towards the budget", &units, &[true, false], 12, (&[0], &[]));
        check("the rest of the budget goes to the best unit", &units, &[true, false], 13, (&[0], &[1]));
        check("all chunks are kept", &units, &[true, true], 1, (&[0, 1, 2], &[]));
    }

    #[test]
    fn a_chain_of_needs_is_looked_at_in_bounded_time() {
        // Each unit needs the one before, so that no group but the first few fits.
        let texts: Vec<String> = (0..20_000).map(|at| format!("w{at}")).collect();
        let mut start = 0;
        let unit = |text: &String| {
            let bytes = ByteRange::new(start, start + text.len());
            start = bytes.end;
            let span = UnitSpan { bytes, tokens: TokenSpan::new(0, 1) };
            Unit { chunk: 0, bytes: span.bytes, tokens: span.tokens, sentence: span }
        };
        let units: Vec<Unit> = texts.iter().map(unit).collect();
        let scores: Vec<f32> = (0..units.len()).map(|at| at as f32).collect();
        let candidates = Candidates {
            units: &units,
            scores: &scores,
            costs: &vec![1; units.len()],
            frame_costs: &[0],
            frame_costs_of_first: &[0],
            required: &vec![false; units.len()],
            outlines: &Outlines::of_chain(units.iter().map(|unit| unit.bytes)),
            repeats: &Repeats::default(),
            leading: &[],
            rows_together: false,
            cancel: &Cancel::default(),
        };
        let best = units.len() - 1;
        assert_eq!(
            candidates.fill(&candidates.ranked(), 2).expect("a selection").chosen,
            [best - 1, best],
            "the best and the one before"
        );
        assert_eq!(
            candidates.choices(&candidates.ranked()).expect("choices").len(),
            1,
            "all come with the best"
        );
    }
}
