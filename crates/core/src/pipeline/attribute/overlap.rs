//! Overlap: measures how far the words of a part stand in its units in the same order, and which of them were added.

use std::collections::HashSet;
use std::ops::Range;

use super::evidence::{EVIDENCE_MIN, mean};
use super::part::{Part, PartWord, UnitWord};
use crate::domain::ByteRange;

/// How many words two neighbours of the part may be apart in a unit.
pub(super) const NEAR_WORDS: usize = 4;

/// The fewest content words without evidence, in a row, that add something to what the sources say; and the mean
/// evidence that the other content words then have at least.
const ADDITION_WORDS_MIN: usize = 2;
const ADDITION_EVIDENCE_MIN: f32 = 0.8;

/// The share of the pairs of neighbouring words beside an addition that a source has at least. Parts that tell in other
/// words what their sources say have rows of words without evidence, too.
const ADDITION_COPIED_MIN: f32 = 0.5;

impl Part<'_> {
    /// Returns the share of the pairs of neighbouring words of the part that are neighbours in a unit, too. Pairs with a word
    /// in `without` are left out.
    pub fn share_copied(&self, without: Option<ByteRange>) -> f32 {
        let pairs_of = |words: &'_ Vec<UnitWord>| -> Vec<_> {
            words.windows(2).map(|pair| (pair[0].id, pair[1].id)).collect()
        };
        let known: HashSet<_> = self.unit_words.iter().flat_map(pairs_of).collect();
        let is_left_out = |word: &PartWord| without.is_some_and(|without| word.term.bytes.overlaps(without));
        let (mut pairs, mut found) = (0_usize, 0_usize);
        for pair in self.words.windows(2).filter(|pair| !pair.iter().any(is_left_out)) {
            let ids = (pair[0].term.id, pair[1].term.id);
            pairs += 1;
            found += usize::from(ids.0.is_some() && ids.1.is_some() && known.contains(&ids));
        }
        found as f32 / pairs.max(1) as f32
    }

    /// Returns the share of the pairs of content words of the part, without one between, that are near each other in a unit.
    /// Numbers that no unit has are left out: they do not show that a text was not copied.
    pub fn share_gathered(&self) -> f32 {
        let is_near = |one: &UnitWord, others: &[UnitWord]| {
            // The places are in ascending order.
            let at = others.partition_point(|other| (other.unit, other.at + NEAR_WORDS) < (one.unit, one.at));
            others.get(at).is_some_and(|other| other.unit == one.unit && other.at <= one.at + NEAR_WORDS)
        };
        let (mut pairs, mut near) = (0_usize, 0_usize);
        let mut before: Option<Vec<UnitWord>> = None;
        for word in self.content() {
            let amount = word.term.word.amount;
            let is_it = |other: &UnitWord| {
                let agrees =
                    amount.zip(other.term.amount).is_some_and(|(one, other)| one.agrees_with(&other));
                agrees || word.term.id.is_some() && other.id == word.term.id
            };
            let places: Vec<UnitWord> = self.all_unit_words().filter(is_it).collect();
            if word.term.is_number && places.is_empty() {
                continue;
            }
            if let Some(before) = &before {
                pairs += 1;
                near += usize::from(before.iter().any(|one| is_near(one, &places)));
            }
            before = Some(places);
        }
        near as f32 / pairs.max(1) as f32
    }

    /// Returns whether the part says something more than its sources: a row of `content` words without evidence, or one word in
    /// the place of another, beside words that it copies.
    pub fn has_addition(&self, content: &[&PartWord], gap: Range<usize>) -> bool {
        let beside = content.iter().enumerate().filter(|(at, _)| !gap.contains(at));
        let beside: Vec<f32> = beside.map(|(_, word)| word.trace.evidence).collect();
        let is_added = |bytes: ByteRange| {
            mean(&beside) >= ADDITION_EVIDENCE_MIN && self.share_copied(Some(bytes)) >= ADDITION_COPIED_MIN
        };
        let row = Some(&content[gap]).filter(|row| row.len() >= ADDITION_WORDS_MIN);
        let row = row.map(|row| row[0].term.bytes.joined(row[row.len() - 1].term.bytes));
        row.is_some_and(is_added) || self.replaced_word().is_some_and(is_added)
    }

    /// Returns the place of a word of the part that the units do not have, if a unit has another word that the part does not have
    /// between the same neighbours.
    fn replaced_word(&self) -> Option<ByteRange> {
        let is_same = |ours: Option<&PartWord>, theirs: Option<&UnitWord>| match (ours, theirs) {
            (Some(ours), Some(theirs)) => ours.term.id.is_some() && ours.term.id == theirs.id,
            (ours, theirs) => ours.is_none() && theirs.is_none(),
        };
        let is_new = |word: &UnitWord| {
            !word.term.is_function_word() && !self.words.iter().any(|ours| ours.term.id == word.id)
        };
        let before = |at: usize| at.checked_sub(1);
        let is_replaced = |at: usize| {
            let (ours_before, ours_after) = (before(at).map(|at| &self.words[at]), self.words.get(at + 1));
            self.unit_words.iter().any(|words| {
                words.iter().any(|word| {
                    is_same(ours_before, before(word.at).map(|at| &words[at]))
                        && is_same(ours_after, words.get(word.at + 1))
                        && is_new(word)
                })
            })
        };
        let is_absent = |word: &PartWord| word.term.is_content && !self.units_have(word.term);
        let mut places = (0..self.words.len()).filter(|&at| is_absent(&self.words[at]));
        places.find(|&at| is_replaced(at)).map(|at| self.words[at].term.bytes)
    }
}

/// Returns the longest row of content words for which there is no evidence, as a range of indices; the first of several.
pub(super) fn longest_gap(content: &[&PartWord]) -> Range<usize> {
    let (mut longest, mut start) = (0..0, 0);
    for (at, word) in content.iter().enumerate() {
        if word.trace.evidence >= EVIDENCE_MIN {
            start = at + 1;
        } else if at + 1 - start > longest.len() {
            longest = start..at + 1;
        }
    }
    longest
}
