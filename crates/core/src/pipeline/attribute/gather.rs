//! Gathers, once for each part of the answer, everything that the verdict on it depends on. [`super::verdict`] is a
//! function of it and does not look at the texts again.
//!
//! ```text
//! Part ─┬─▶ its words: how far the sources have them ───┐
//!       ├─▶ its numbers, by value; its negations ───────┼─▶ Evidence ─▶ verdict
//!       └─▶ how far it repeats the sources ─────────────┘
//! ```

use std::collections::HashSet;

use super::evidence::{
    Conflict, ConflictKind, EVIDENCE_MIN, Evidence, UnsupportedKind, UnsupportedSpan, mean,
};
use super::part::{Part, PartWord, UnitWord, denied};
use super::sentence_scores::AnswerTerm;
use super::term_ids::TermId;
use crate::text::lexicon::{self, Class};
use crate::text::{Amount, Limit};

/// The weight of a word outside of the part, relative to a word inside, is [`CONTEXT_WEIGHT`] times
/// [`CONTEXT_DECAY`] to the power of its distance from the part in tokens.
const CONTEXT_WEIGHT: f32 = 0.2;
const CONTEXT_DECAY: f32 = 0.95;

/// The factor for the evidence of a part with a number that its sources do not contain.
const NUMBER_MISSING_FACTOR: f32 = 0.3;

/// The factor for the evidence of a part if either the part or its source is negated, but not both.
const NEGATION_DIFFERS_FACTOR: f32 = 0.3;

/// The factor for the evidence of a part with a name for which there is no evidence. It rises to 1 with the
/// evidence.
const NAME_MISSING_FACTOR: f32 = 0.6;

/// The share of the evidence that depends on the rare word with the least evidence.
const LEAST_WORD_SHARE: f32 = 0.5;

/// A word is rare if its weight exceeds this. Words that most chunks contain, and function words, are not.
const RARE_WEIGHT_MIN: f32 = 0.3;

/// How many words before a number a word may be that limits it.
const LIMIT_REACH_WORDS: usize = 4;

/// The fewest content words of a part beside a number from which on a unit with all of them is taken to be about the same thing.
const SAME_WORDS_MIN: usize = 2;

/// The evidence on a part, with the places in the answer and in the chunks that show it.
pub(super) struct Gathered {
    pub evidence: Evidence,
    /// What the sources do not support, in the order of the answer.
    pub unsupported: Vec<UnsupportedSpan>,
    /// What excludes the part, in the order of the answer.
    pub conflicts: Vec<Conflict>,
}

impl Gathered {
    pub fn gather(part: &Part, is_citable: bool) -> Self {
        let evidence = Evidence { is_citable, ..Evidence::default() };
        let mut gathered = Self { evidence, unsupported: Vec::new(), conflicts: Vec::new() };
        gathered.compare_numbers(part);
        gathered.compare_negations(part);
        gathered.measure_words(part);
        gathered.measure_overlap(part);
        gathered
            .conflicts
            .sort_by_key(|conflict| (conflict.bytes.start, conflict.chunk, conflict.source.start));
        gathered.unsupported.sort_by_key(|span| (span.bytes.start, span.bytes.end));
        gathered
    }

    /// Counts the numbers of the part that the sources have, exclude by another one, and do not have. Weekdays and months count as numbers.
    fn compare_numbers(&mut self, part: &Part) {
        let mut of_part: Vec<Amount> = Vec::new();
        of_part.extend(part.words.iter().filter_map(|word| word.term.word.amount));
        // The numbers of the units, those first that the part does not have.
        let mut of_units: Vec<(UnitWord, Amount)> =
            part.all_unit_words().filter_map(|word| Some((word, word.term.amount?))).collect();
        of_units.sort_by_cached_key(|(_, other)| of_part.iter().any(|amount| amount.covers(other)));
        for (at, word) in part.words.iter().enumerate() {
            let amount = word.term.word.amount;
            if amount.is_none() && !word.term.is_number {
                continue;
            }
            let before = &part.words[at.saturating_sub(LIMIT_REACH_WORDS)..at];
            let limit = before.iter().rev().find_map(|word| word.term.word.limits());
            let is_met = |other: &Amount| amount.is_some_and(|amount| is_met(&amount, limit, other));
            let stated = &word.term.word;
            let is_within = |(other, _): &(UnitWord, Amount)| other.term.range_has(stated);
            // What holds for a range may hold for a number between its ends; one end alone is less than the range.
            if amount.is_some_and(|amount| is_end_of_range(part, word, &amount))
                || !part.chunks_have(word.term) && of_units.iter().any(is_within)
            {
                self.evidence.numbers_within += 1.0;
                continue;
            }
            let of_same = amount.and_then(|_| number_of_same(part, at));
            let other = if of_same.is_some() {
                of_same
            } else if part.chunks_have(word.term) || of_units.iter().any(|(_, other)| is_met(other)) {
                continue;
            } else {
                let excluding = of_units.iter().map(|(other, _)| *other);
                nearest(part, at, excluding.filter(|other| other.term.excludes(stated)))
            };
            if let Some(other) = other {
                self.evidence.numbers_excluded += 1.0;
                self.conflicts.push(conflict_with_units(part, at, other));
            } else if word.term.is_number {
                self.evidence.numbers_missing += 1.0;
            } else {
                // `first` and `half` are also ordinary words.
                continue;
            }
            let (bytes, kind) = (word.term.bytes, UnsupportedKind::Number);
            self.unsupported.push(UnsupportedSpan { bytes, kind });
        }
    }

    /// Finds words that the part denies and its sources do not, and the reverse.
    fn compare_negations(&mut self, part: &Part) {
        let own: Vec<(Option<TermId>, bool)> =
            part.words.iter().map(|word| (word.term.id, word.term.is_negation)).collect();
        let is_content = |at: usize| part.words[at].term.is_content;
        let denied_by_part = denied(own.len(), &|at| own[at].1, &is_content);
        let reached = reached_by_negations(part, &denied_by_part);
        let may_agree = |unit: usize| {
            let mut words = part.all_unit_words().filter(|word| word.unit == unit);
            words.any(|word| reached.contains(&word.id) && part.denies(&word))
        };
        for &(negation, word) in &denied_by_part {
            let Some(id) = part.words[word].term.id else { continue };
            let places: Vec<UnitWord> = part.all_unit_words().filter(|other| other.id == Some(id)).collect();
            if places.iter().any(|place| part.denies(place)) {
                continue;
            }
            let Some(&place) = places.first() else { continue };
            if may_agree(place.unit) {
                self.evidence.negation_is_unclear = true;
                continue;
            }
            let (bytes, kind) = (part.words[negation].term.bytes, UnsupportedKind::Negation);
            self.evidence.negation_differs = true;
            self.unsupported.push(UnsupportedSpan { bytes, kind });
            self.conflicts.push(part.conflict(bytes, ConflictKind::Negation, place));
        }
        // A denial of the sentence that has most of the part's words, which the part leaves out.
        let Some(top) = part.unit_words.first() else { return };
        let is_affirmed = |word: &&UnitWord| {
            let own = part.words.iter().position(|own| own.term.is_content && own.term.id == word.id);
            own.is_some_and(|own| !denied_by_part.iter().any(|(_, denied)| *denied == own))
        };
        let affirmed = || top.iter().filter(|word| part.denies(word)).filter(is_affirmed);
        if let Some(word) = affirmed().find(|word| !reached.contains(&word.id)) {
            let (bytes, kind) = (part.bytes, UnsupportedKind::NegationDropped);
            self.evidence.negation_differs = true;
            self.unsupported.push(UnsupportedSpan { bytes, kind });
            self.conflicts.push(part.conflict(bytes, ConflictKind::Negation, *word));
        } else if affirmed().next().is_some() {
            self.evidence.negation_is_unclear = true;
        }
    }

    /// Measures how far the sources have the words of the part, and lists those that they do not have.
    fn measure_words(&mut self, part: &Part) {
        let (mut least, mut names_least): (f32, f32) = (1.0, 1.0);
        for word in &part.words {
            let (term, evidence) = (word.term, part.evidence_of(word.term, &word.trace));
            if term.weight > RARE_WEIGHT_MIN {
                least = least.min(evidence);
            }
            let kind = if term.is_negation || term.is_number {
                None
            } else if term.is_name && !part.units_have(term) {
                names_least = names_least.min(evidence);
                (evidence < EVIDENCE_MIN).then_some(UnsupportedKind::Name)
            } else {
                (evidence < EVIDENCE_MIN && term.weight > RARE_WEIGHT_MIN).then_some(UnsupportedKind::Word)
            };
            self.unsupported.extend(kind.map(|kind| UnsupportedSpan { bytes: term.bytes, kind }));
        }
        let is_shared_word = |word: &&PartWord| !word.term.is_number && word.term.word.amount.is_none();
        let shared: Vec<f32> =
            part.content().filter(is_shared_word).map(|word| word.trace.evidence).collect();
        let lacks_number = self.evidence.numbers_excluded + self.evidence.numbers_missing > 0.0;
        let number = if lacks_number { NUMBER_MISSING_FACTOR } else { 1.0 };
        let negation = if self.evidence.negation_differs { NEGATION_DIFFERS_FACTOR } else { 1.0 };
        let name = NAME_MISSING_FACTOR + (1.0 - NAME_MISSING_FACTOR) * names_least;
        let least_share = 1.0 - LEAST_WORD_SHARE + LEAST_WORD_SHARE * least;
        self.evidence.shared = match (&*shared, lacks_number) {
            // Of a part of numbers alone, such as a value of JSON, nothing says what the sources have in its place.
            ([], true) => 0.0,
            ([], false) => 1.0,
            (shared, _) => mean(shared),
        };
        self.evidence.evidence = mean_evidence(part) * least_share * number.min(negation).min(name);
    }

    /// Measures how far the part repeats its sources.
    fn measure_overlap(&mut self, part: &Part) {
        let missing = part.words.iter().filter(|word| part.is_missing(word));
        self.evidence.words_missing = missing.clone().count() as f32;
        if self.unsupported.is_empty() {
            // Words that do not count much, such as `until`, are all that the sources lack.
            for word in missing {
                let kind = if word.term.is_number { UnsupportedKind::Number } else { UnsupportedKind::Word };
                self.unsupported.push(UnsupportedSpan { bytes: word.term.bytes, kind });
            }
        }
        self.evidence.copied = part.share_copied();
        self.evidence.gathered = part.share_gathered();
    }
}

/// Returns the conflict of the number `at` of a part with another number of a unit. Both ranges have the units of measurement that follow.
fn conflict_with_units(part: &Part, at: usize, other: UnitWord) -> Conflict {
    let mut conflict = part.conflict(part.words[at].term.bytes, ConflictKind::Number, other);
    if let Some(unit) = part.words.get(at + 1).filter(|next| next.term.word.is_unit) {
        conflict.bytes.end = unit.term.bytes.end;
    }
    let after = part.unit_words[other.unit].get(other.at + 1);
    if let Some(unit) = after.filter(|next| next.term.is_unit) {
        conflict.source.end = part.source_bytes(*unit).end;
    }
    conflict
}

/// Returns the ids of the words that a negation of the part may deny: those that it denies, and all content words after it, up to a word such as
/// `but` or `and`. "Not ordered by IT" may deny that something is ordered, or that IT does it.
fn reached_by_negations(part: &Part, denied: &[(usize, usize)]) -> HashSet<Option<TermId>> {
    let mut reached: HashSet<_> = denied.iter().map(|&(_, word)| part.words[word].term.id).collect();
    let mut is_denied = false;
    for PartWord { term, .. } in &part.words {
        let ends = [Class::GoesOn, Class::And].iter().any(|&class| lexicon::has(class, &term.word.folded));
        is_denied = (is_denied || term.is_negation) && !ends;
        if is_denied && term.is_content {
            reached.insert(term.id);
        }
    }
    reached
}

/// Returns the number of a unit that has all other words of the part, if it differs from the number `at` of the part, which stands only in
/// units about something else: "The bridge opened in 1931. The tunnel opened in 1978."
fn number_of_same<'a>(part: &Part<'a>, at: usize) -> Option<UnitWord<'a>> {
    let number = part.words[at].term;
    let is_other = |term: &&AnswerTerm| term.is_content && term.word.amount.is_none() && !term.word.is_unit;
    let others: Vec<&AnswerTerm> = part.words.iter().map(|word| word.term).filter(is_other).collect();
    let has_all = |&unit: &usize| others.iter().all(|word| part.unit_has_form(unit, word));
    let same: Vec<usize> = (0..part.units.len()).filter(has_all).collect();
    let with_number: Vec<usize> = (0..part.units.len()).filter(|&unit| part.unit_has(unit, number)).collect();
    let is_same = |unit: &usize| {
        // The other half of a sentence that two chunks share is about the same thing.
        let is_half = |other: &usize| part.candidates.are_halves(part.units[*other], part.units[*unit]);
        same.contains(unit) || same.iter().any(is_half)
    };
    if others.len() < SAME_WORDS_MIN || with_number.iter().any(is_same) {
        return None;
    }
    let words = same.into_iter().flat_map(|unit| part.unit_words[unit].iter().copied());
    nearest(part, at, words.filter(|word| word.term.excludes(&number.word)))
}

/// Returns whether the units state a number of the part only as one end of a range: `two weeks`, where a unit has `two to three weeks`.
fn is_end_of_range(part: &Part, word: &PartWord, amount: &Amount) -> bool {
    if word.term.word.range.is_some() {
        return false;
    }
    let states = |other: &UnitWord| other.term.amount.is_some_and(|other| amount.covers(&other));
    let mut stated = part.all_unit_words().filter(states).peekable();
    stated.peek().is_some() && stated.all(|other| other.term.range.is_some())
}

/// Returns the word that has most of the neighbours of the word `at` of a part: of "5 users and 10 GB", `10` for "20 GB".
fn nearest<'a>(part: &Part, at: usize, words: impl Iterator<Item = UnitWord<'a>>) -> Option<UnitWord<'a>> {
    let mut best: Option<(usize, UnitWord)> = None;
    for word in words {
        let shared = part.neighbours_shared(at, &word);
        if best.is_none_or(|(most, _)| shared > most) {
            best = Some((shared, word));
        }
    }
    best.map(|(_, word)| word)
}

/// Returns whether a number of the source has the value that the part gives, or keeps within the part's limit.
fn is_met(amount: &Amount, limit: Option<Limit>, other: &Amount) -> bool {
    amount.covers(other)
        || amount.excludes(other)
            && amount.measure == other.measure
            && match limit {
                Some(Limit::AtLeast) => other.high > amount.low,
                Some(Limit::AtMost) => other.low < amount.high,
                None => false,
            }
}

/// Returns the weighted mean evidence of the words of a part; other words of its sentences count with the weight of
/// [`context_weight`].
fn mean_evidence(part: &Part) -> f32 {
    let (mut sum, mut weight_sum) = (0.0, 0.0);
    for scores in part.sentences {
        let is_inside = |term: &AnswerTerm| term.bytes.overlaps(part.bytes);
        let mut inside = scores.terms.iter().filter(|term| is_inside(term));
        let Some(first) = inside.next() else { continue };
        let tokens = first.tokens.start..inside.next_back().unwrap_or(first).tokens.end;
        for (term, trace) in scores.terms.iter().zip(&scores.traces) {
            let before = tokens.start.saturating_sub(term.tokens.start);
            let after = term.tokens.start.saturating_sub(tokens.end - 1);
            let context = if is_inside(term) { 1.0 } else { context_weight(before + after) };
            sum += term.weight * context * part.evidence_of(term, trace);
            weight_sum += term.weight * context;
        }
    }
    if weight_sum > 0.0 { sum / weight_sum } else { 0.0 }
}

/// Returns the weight of a word or token that is `distance` tokens outside of a part, relative to one inside.
pub(super) fn context_weight(distance: usize) -> f32 {
    CONTEXT_WEIGHT * CONTEXT_DECAY.powi(i32::try_from(distance).unwrap_or(i32::MAX))
}
