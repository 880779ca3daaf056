//! Support: decides word by word how far the chunks support a part of the answer.

use std::ops::Range;

use schemars::JsonSchema;

use super::candidates::Candidates;
use super::sentence_scores::{AnswerTerm, SentenceScores};
use super::trace::{IN_CHUNK_EVIDENCE, Trace};
use crate::domain::ByteRange;
use crate::text::{self, Negation, Term};

/// The weight of a word outside of the part, relative to a word inside, is [`CONTEXT_WEIGHT`] times
/// [`CONTEXT_DECAY`] to the power of its distance from the part in tokens.
const CONTEXT_WEIGHT: f32 = 0.2;
const CONTEXT_DECAY: f32 = 0.95;

/// The factor for the support of a part with a number that its source does not contain.
const NUMBER_MISSING_FACTOR: f32 = 0.3;

/// The factor for the support of a part if either the part or its source is negated, but not both.
const NEGATION_DIFFERS_FACTOR: f32 = 0.3;

/// The factor for the support of a part with a name for which there is no evidence. It rises to 1 with the
/// evidence.
const NAME_MISSING_FACTOR: f32 = 0.6;

/// The share of the support that depends on the rare word with the least evidence.
const WORST_WORD_SHARE: f32 = 0.5;

/// A word is rare if its weight exceeds this. Words that most chunks contain, and function words, are not.
const RARE_WEIGHT_MIN: f32 = 0.3;

/// How many words before and after a negation it is surely taken to negate.
pub(super) const NEGATION_SCOPE_WORDS: usize = 3;

/// How many words before and after a negation it may negate: "does not expect to pay a dividend".
const NEGATION_REACH_WORDS: usize = 6;

/// A rare word or a name with less evidence than this is reported as unsupported.
const EVIDENCE_MIN: f32 = 0.5;

/// A word of a part, or the whole part, that its source does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedSpan {
    pub bytes: ByteRange,
    /// Why the source does not support it.
    pub kind: UnsupportedKind,
}

/// Why a source does not support a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnsupportedKind {
    /// The word is a number that the source does not contain.
    Number,
    /// The word is a name that the source does not contain.
    Name,
    /// The word is a negation that the source does not have.
    Negation,
    /// The source has a negation that the part does not have. The span is the whole part.
    NegationDropped,
    /// Any other word for which the source has no evidence.
    Word,
}

/// How far the sources have the words of a part.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Support {
    /// The weighted mean evidence of the part's words, in which other words of the sentences count with the
    /// weight of [`context_weight`].
    pub mean: f32,
    /// The least evidence of a rare word; 1 if there is none.
    pub worst: f32,
    /// The least evidence of a name that no source contains; 1 if there is none.
    pub names: f32,
    /// Whether a number is missing in the sources.
    pub number_missing: bool,
    /// Whether either the part or its source is negated, but not both.
    pub negation_differs: bool,
    /// The words without evidence.
    pub unsupported: Vec<UnsupportedSpan>,
}

impl Support {
    /// Returns the support as one number from 0 to 1: the mean evidence, times (1 + e) / 2, where e is the least
    /// evidence of a rare word, times the smallest factor for a missing number, a missing name or a differing
    /// negation.
    pub fn value(&self) -> f32 {
        let number = if self.number_missing { NUMBER_MISSING_FACTOR } else { 1.0 };
        let negation = if self.negation_differs { NEGATION_DIFFERS_FACTOR } else { 1.0 };
        let name = NAME_MISSING_FACTOR + (1.0 - NAME_MISSING_FACTOR) * self.names;
        let worst = 1.0 - WORST_WORD_SHARE + WORST_WORD_SHARE * self.worst;
        self.mean * worst * number.min(negation).min(name)
    }
}

/// Returns how far the sources have the words of a part; `None` if the part has no word.
/// `scores` are the sentences that the part overlaps; `cited` are the chunks cited for the part, each with its
/// best unit.
pub(super) fn of(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
    cited: &[(usize, usize)],
) -> Option<Support> {
    let found = |term: &AnswerTerm, trace: &Trace| Found::of(candidates, term, trace, cited);
    let is_inside = |term: &AnswerTerm| term.bytes.overlaps(part);
    let (mut sum, mut weight_sum) = (0.0, 0.0);
    // `[word of the part]`: the sentence, and the index of the word in it.
    let mut part_terms = Vec::new();
    for scores in scores {
        let inside: Vec<usize> =
            (0..scores.terms.len()).filter(|&term| is_inside(&scores.terms[term])).collect();
        let (Some(&first), Some(&last)) = (inside.first(), inside.last()) else { continue };
        let tokens = scores.terms[first].tokens.start..scores.terms[last].tokens.end;
        for (term, trace) in scores.terms.iter().zip(&scores.traces) {
            let before = tokens.start.saturating_sub(term.tokens.start);
            let after = term.tokens.start.saturating_sub(tokens.end - 1);
            let weight =
                if is_inside(term) { term.weight } else { term.weight * context_weight(before + after) };
            sum += weight * found(term, trace).evidence;
            weight_sum += weight;
        }
        part_terms.extend(inside.into_iter().map(|term| (scores, term)));
    }
    part_terms.first()?;
    let (mut worst, mut names): (f32, f32) = (1.0, 1.0);
    let (mut number_missing, mut negation_differs) = (false, false);
    let mut unsupported = Vec::new();
    for &(scores, index) in &part_terms {
        let (term, trace) = (&scores.terms[index], &scores.traces[index]);
        let Found { evidence, in_unit, in_chunk } = found(term, trace);
        let units = trace.unit.into_iter().chain(cited.iter().map(|&(_, unit)| unit));
        let source_negates =
            || units.clone().any(|unit| has_negation_of(candidates, unit, words_around(scores, index)));
        // "Not open" is what "closed" says.
        let is_said = || units.clone().any(|unit| denies_otherwise(words_of(scores), candidates.words(unit)));
        // "No other town" is what "the only town" says.
        let is_only = || {
            let excludes = scores
                .terms
                .get(index + 1)
                .is_some_and(|next| matches!(&*next.word.folded, "other" | "others" | "else"));
            excludes
                && units.clone().any(|unit| candidates.words(unit).iter().any(|word| word.folded == "only"))
        };
        let kind = if term.is_negation && !source_negates() && !is_only() && !is_said() {
            negation_differs = true;
            Some(UnsupportedKind::Negation)
        } else if term.is_number && !in_chunk {
            number_missing = true;
            Some(UnsupportedKind::Number)
        } else if term.is_name && !in_unit {
            names = names.min(evidence);
            (evidence < EVIDENCE_MIN).then_some(UnsupportedKind::Name)
        } else {
            (evidence < EVIDENCE_MIN && term.weight > RARE_WEIGHT_MIN).then_some(UnsupportedKind::Word)
        };
        if term.weight > RARE_WEIGHT_MIN {
            worst = worst.min(evidence);
        }
        unsupported.extend(kind.map(|kind| UnsupportedSpan { bytes: term.bytes, kind }));
    }
    let terms = || part_terms.iter().map(|&(scores, index)| &scores.terms[index]);
    let part_is_negated = terms().any(|term| term.is_negation);
    let is_cited = |trace: &&Trace| cited.iter().any(|&(chunk, _)| chunk == trace.chunk);
    let traces = part_terms.iter().map(|&(scores, index)| &scores.traces[index]);
    let main_unit = main_unit(traces.filter(is_cited));
    let part_words = || terms().map(|term| &term.word);
    let drops = |unit: usize| {
        negates(candidates, unit, terms()) && !denies_otherwise(candidates.words(unit).iter(), part_words())
    };
    if !part_is_negated && main_unit.is_some_and(drops) {
        negation_differs = true;
        unsupported.push(UnsupportedSpan { bytes: part, kind: UnsupportedKind::NegationDropped });
    }
    let mean = if weight_sum > 0.0 { sum / weight_sum } else { 0.0 };
    Some(Support { mean, worst, names, number_missing, negation_differs, unsupported })
}

/// How far the sources have a word: that to which it was traced, or any that is cited for the part.
struct Found {
    /// See [`Trace::evidence`].
    evidence: f32,
    in_unit: bool,
    in_chunk: bool,
}

impl Found {
    fn of(candidates: &Candidates, term: &AnswerTerm, trace: &Trace, cited: &[(usize, usize)]) -> Self {
        let has = |chunk: usize| term.is_in(|id| candidates.chunk_has(chunk, id));
        let in_chunk = trace.in_chunk || cited.iter().any(|&(chunk, _)| has(chunk));
        let evidence = if in_chunk { trace.evidence.max(IN_CHUNK_EVIDENCE) } else { trace.evidence };
        let in_unit =
            trace.in_unit || cited.iter().any(|&(_, unit)| term.is_in(|id| candidates.unit_has(unit, id)));
        Self { evidence, in_unit, in_chunk }
    }
}

/// Returns the weight of a word or token that is `distance` tokens outside of a part, relative to one inside.
pub(super) fn context_weight(distance: usize) -> f32 {
    CONTEXT_WEIGHT * CONTEXT_DECAY.powi(i32::try_from(distance).unwrap_or(i32::MAX))
}

/// Returns a word of a sentence and the words within [`NEGATION_SCOPE_WORDS`] of it.
fn words_around(scores: &SentenceScores, index: usize) -> impl Iterator<Item = &AnswerTerm> {
    scores.terms[words_near(index, NEGATION_SCOPE_WORDS, scores.terms.len())].iter()
}

/// Returns the places of the word `at` and of those up to `reach` words away, in a text of `len` words.
pub(super) fn words_near(at: usize, reach: usize, len: usize) -> Range<usize> {
    at.saturating_sub(reach)..len.min(at + reach + 1)
}

/// The words of a sentence.
fn words_of(scores: &SentenceScores) -> impl Iterator<Item = &Term> + Clone {
    scores.terms.iter().map(|term| &term.word)
}

/// Returns whether some words say in another way what others say with a negation: they have a negative word that the others lack, or
/// a word of the others with a prefix that denies it.
pub(super) fn denies_otherwise<'a>(
    negated: impl IntoIterator<Item = &'a Term>,
    words: impl IntoIterator<Item = &'a Term>,
) -> bool {
    let negated: Vec<&Term> = negated.into_iter().collect();
    let is_other = |word: &Term| {
        let is_shared = negated.iter().any(|other| other.folded == word.folded);
        word.negation().is_some_and(|kind| kind != Negation::Word) && !is_shared
            || negated.iter().any(|other| {
                text::is_denied_form(&other.folded, &word.folded) && word.folded.len() > other.folded.len()
            })
    };
    words.into_iter().any(is_other)
}

/// Returns whether a unit negates some words: it has a negation within [`NEGATION_SCOPE_WORDS`] of one of
/// them. Function words do not count.
fn negates<'a>(candidates: &Candidates, unit: usize, words: impl Iterator<Item = &'a AnswerTerm>) -> bool {
    let Some((negations, shared)) = negations_and_shared(candidates, unit, words) else { return false };
    let words = candidates.words(unit);
    let is_close = |negation: &usize| {
        let is_denied = |at: &usize| {
            at.abs_diff(*negation) <= NEGATION_SCOPE_WORDS && words[*negation].reaches(*negation, *at)
        };
        shared.iter().any(is_denied)
    };
    negations.iter().any(is_close)
}

/// Returns whether a unit says what a negation in the answer says of some words: it has a negation within
/// [`NEGATION_REACH_WORDS`] of one of them, or it has a negation and none of the words.
fn has_negation_of<'a>(
    candidates: &Candidates,
    unit: usize,
    words: impl Iterator<Item = &'a AnswerTerm>,
) -> bool {
    let Some((negations, shared)) = negations_and_shared(candidates, unit, words) else { return false };
    let is_near = |negation: &usize| shared.iter().any(|at| at.abs_diff(*negation) <= NEGATION_REACH_WORDS);
    shared.is_empty() || negations.iter().any(is_near)
}

/// Returns the places of the negations in a unit, and of the words that it shares with `words`, without function
/// words. Returns `None` if the unit has no negation.
fn negations_and_shared<'a>(
    candidates: &Candidates,
    unit: usize,
    words: impl Iterator<Item = &'a AnswerTerm>,
) -> Option<(Vec<usize>, Vec<usize>)> {
    if !candidates.is_negated(unit) {
        return None;
    }
    let ids: Vec<u32> = words.filter(|term| !term.is_negation).filter_map(|term| term.id).collect();
    let is_shared = |term: &Term| {
        !term.is_function_word() && candidates.term(&term.folded).is_some_and(|id| ids.contains(&id))
    };
    let (mut negations, mut shared) = (Vec::new(), Vec::new());
    for (at, term) in candidates.words(unit).iter().enumerate() {
        if term.is_negation() {
            negations.push(at);
        } else if is_shared(term) {
            shared.push(at);
        }
    }
    Some((negations, shared))
}

/// Returns the unit to which most words were traced; the first of several.
fn main_unit<'a>(traces: impl Iterator<Item = &'a Trace>) -> Option<usize> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for unit in traces.filter_map(|trace| trace.unit) {
        match counts.iter_mut().find(|(of, _)| *of == unit) {
            Some((_, count)) => *count += 1,
            None => counts.push((unit, 1)),
        }
    }
    counts.into_iter().reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(unit, _)| unit)
}
