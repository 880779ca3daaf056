//! Gathers, once for each part of the answer, everything that the verdict on it depends on. [`super::verdict`] is a
//! function of it and does not look at the texts again.
//!
//! ```text
//! Part ─┬─▶ its words: how far the sources have them ───┐
//!       ├─▶ its numbers, by value; its negations ───────┼─▶ Evidence ─▶ verdict
//!       └─▶ how far it repeats the sources ─────────────┘
//! ```

use std::ops::Range;

use super::evidence::{
    Conflict, ConflictKind, EVIDENCE_MIN, Evidence, UnsupportedKind, UnsupportedSpan, mean,
};
use super::part::{Part, PartWord, UnitWord, words_near};
use super::sentence_scores::AnswerTerm;
use crate::domain::ByteRange;
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

/// How many words before and after a negation it is surely taken to negate.
const NEGATION_SCOPE_WORDS: usize = 3;

/// How many words before and after a negation it may negate: "does not expect to pay a dividend".
const NEGATION_REACH_WORDS: usize = 6;

/// The evidence on a part, with the places in the answer and in the chunks that show it.
pub(super) struct Gathered {
    pub evidence: Evidence,
    /// What the sources do not support, in the order of the answer.
    pub unsupported: Vec<UnsupportedSpan>,
    /// What excludes the part, in the order of the answer.
    pub conflicts: Vec<Conflict>,
}

impl Gathered {
    /// Gathers the evidence on a part.
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
        gathered.evidence.has_conflict = !gathered.conflicts.is_empty();
        gathered.evidence.conflict_beside = gathered.evidence_beside(part);
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
            let of_same = amount.and_then(|amount| number_of_same(part, word.term, &amount));
            let other = if of_same.is_some() {
                of_same
            } else if part.units_have(word.term) || of_units.iter().any(|(_, other)| is_met(other)) {
                self.evidence.numbers_found += 1.0;
                continue;
            } else if part.chunks_have(word.term) {
                continue;
            } else {
                let excludes = |other: &Amount| amount.is_some_and(|amount| amount.excludes(other));
                of_units.iter().find(|(_, other)| excludes(other)).map(|(other, _)| *other)
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

    /// Finds what the part denies and its sources do not, and the reverse.
    fn compare_negations(&mut self, part: &Part) {
        let mut negations = part.words.iter().filter(|word| word.term.is_negation).peekable();
        let Some(top) = part.unit_words.first() else {
            self.evidence.negation_differs = negations.peek().is_some();
            return;
        };
        if negations.peek().is_none() && !part.words.iter().any(|word| word.term.word.is_negative()) {
            let dropped = top.iter().filter(|word| word.term.is_negation()).find(|negation| {
                let is_denied = |word: &&UnitWord| {
                    word.at.abs_diff(negation.at) <= NEGATION_SCOPE_WORDS
                        && negation.term.reaches(negation.at, word.at)
                        && part.content().any(|own| own.term.id.is_some() && own.term.id == word.id)
                };
                top.iter().any(|word| is_denied(&word))
            });
            if let Some(&negation) = dropped {
                self.evidence.negation_differs = true;
                self.conflicts.push(part.conflict(part.bytes, ConflictKind::Negation, negation));
                let kind = UnsupportedKind::NegationDropped;
                self.unsupported.push(UnsupportedSpan { bytes: part.bytes, kind });
            }
        }
        for negation in negations.filter(|negation| !sources_negate(part, negation)) {
            let bytes = negation.term.bytes;
            self.evidence.negation_differs = true;
            self.unsupported.push(UnsupportedSpan { bytes, kind: UnsupportedKind::Negation });
            let around = words_near(negation.index, NEGATION_SCOPE_WORDS, negation.sentence.len());
            let is_denied = |word: &&UnitWord| {
                let has_meaning = |term: &&AnswerTerm| term.is_content && term.id.is_some();
                negation.sentence[around.clone()].iter().filter(has_meaning).any(|term| term.id == word.id)
            };
            if let Some(&word) = top.iter().find(is_denied) {
                self.conflicts.push(part.conflict(bytes, ConflictKind::Negation, word));
            }
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
        let mean = mean_evidence(part);
        let lacks_number = self.evidence.numbers_excluded + self.evidence.numbers_missing > 0.0;
        let number = if lacks_number { NUMBER_MISSING_FACTOR } else { 1.0 };
        let negation = if self.evidence.negation_differs { NEGATION_DIFFERS_FACTOR } else { 1.0 };
        let name = NAME_MISSING_FACTOR + (1.0 - NAME_MISSING_FACTOR) * names_least;
        let least_share = 1.0 - LEAST_WORD_SHARE + LEAST_WORD_SHARE * least;
        self.evidence.evidence_mean = mean;
        self.evidence.evidence_least = least;
        self.evidence.evidence = mean * least_share * number.min(negation).min(name);
    }

    /// Measures how far the part repeats its sources.
    fn measure_overlap(&mut self, part: &Part) {
        let content: Vec<&PartWord> = part.content().collect();
        let gap = longest_gap(&content);
        let without = content[gap.clone()].iter().map(|word| word.term.bytes);
        let without = without.reduce(ByteRange::joined);
        let is_missing = |word: &&&PartWord| !part.units_have(word.term) && !part.chunks_have(word.term);
        self.evidence.words_missing = content.iter().filter(is_missing).count() as f32;
        self.evidence.copied = part.share_copied(None);
        self.evidence.copied_beside = part.share_copied(without);
        self.evidence.gathered = part.share_gathered();
        self.evidence.gap = gap.len() as f32 / content.len().max(1) as f32;
    }

    /// Returns the mean evidence of the part's content words that no number excludes; 0 if nothing excludes the part.
    fn evidence_beside(&self, part: &Part) -> f32 {
        if self.conflicts.is_empty() {
            return 0.0;
        }
        let is_excluded = |word: &&PartWord| {
            self.conflicts.iter().any(|conflict| {
                conflict.kind == ConflictKind::Number && conflict.bytes.encloses(word.term.bytes)
            })
        };
        let rest = part.content().filter(|word| !is_excluded(word));
        mean(&rest.map(|word| word.trace.evidence).collect::<Vec<_>>())
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

/// Returns the number of a unit that has all other words of the part, if it differs from the part's `number`, which stands only in
/// units about something else: "The bridge opened in 1931. The tunnel opened in 1978."
fn number_of_same<'a>(part: &Part<'a>, number: &AnswerTerm, amount: &Amount) -> Option<UnitWord<'a>> {
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
    let mut words = same.into_iter().flat_map(|unit| part.unit_words[unit].iter().copied());
    words.find(|word| word.term.amount.is_some_and(|other| amount.excludes(&other)))
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

/// Returns whether a unit says what a negation in the part says: it has a negation, or a word with an opposite in it such as `closed`, near
/// one of the words around it, or a negation and none of these words.
fn sources_negate(part: &Part, negation: &PartWord) -> bool {
    let around =
        &negation.sentence[words_near(negation.index, NEGATION_SCOPE_WORDS, negation.sentence.len())];
    let next = negation.sentence.get(negation.index + 1).map(|next| &*next.word.folded);
    // "No other town" is what "the only town" says.
    let excludes_others = matches!(next, Some("other" | "others" | "else"));
    part.unit_words.iter().any(|words| {
        let is_shared = |word: &&UnitWord| {
            let has_meaning = |term: &&AnswerTerm| term.is_content && term.id.is_some();
            around.iter().filter(has_meaning).any(|term| term.id == word.id)
        };
        let shared: Vec<&UnitWord> = words.iter().filter(is_shared).collect();
        let is_near = |negation: &UnitWord| {
            shared.is_empty()
                || shared.iter().any(|word| word.at.abs_diff(negation.at) <= NEGATION_REACH_WORDS)
        };
        words.iter().any(|word| word.term.is_negative() && is_near(word))
            || excludes_others && words.iter().any(|word| word.term.folded == "only")
    })
}

/// Returns the longest row of content words for which there is no evidence, as a range of indices; the first of several.
fn longest_gap(content: &[&PartWord]) -> Range<usize> {
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
