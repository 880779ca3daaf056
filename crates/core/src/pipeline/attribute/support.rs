//! Support: decides word by word how far the chunks support a part of the answer.

use schemars::JsonSchema;

use super::candidates::Candidates;
use super::sentence_scores::{AnswerTerm, SentenceScores};
use super::trace::Trace;
use crate::domain::ByteRange;
use crate::text::Term;

/// The support from which on a part counts as supported. `docs/attribution.md` describes how it is computed.
pub const SUPPORT_MIN: f32 = 0.5;

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

/// How many words before and after a negation it is taken to negate.
const NEGATION_SCOPE_WORDS: usize = 3;

/// A rare word or a name with less evidence than this is reported as unsupported.
const EVIDENCE_MIN: f32 = 0.5;

/// A word of a part, or the whole part, that its source does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedSpan {
    /// Byte range in the answer.
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

/// Returns the support of a part, from 0 to 1, and its unsupported spans; `None` if the part has no word.
/// `scores` are the sentences that the part overlaps.
///
/// Support is the weighted mean evidence of the part's words, in which other words of the sentences count
/// with the weight of [`context_weight`]; times (1 + e) / 2, where e is the least evidence of a rare word;
/// times the smallest factor for a missing number, a missing name or a differing negation.
pub(super) fn of(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
) -> Option<(f32, Vec<UnsupportedSpan>)> {
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
            let weight = match is_inside(term) {
                true => term.weight,
                false => term.weight * context_weight(before + after),
            };
            sum += weight * trace.evidence;
            weight_sum += weight;
        }
        part_terms.extend(inside.into_iter().map(|term| (scores, term)));
    }
    part_terms.first()?;
    let (mut factor, mut worst): (f32, f32) = (1.0, 1.0);
    let mut unsupported = Vec::new();
    for &(scores, index) in &part_terms {
        let (term, trace) = (&scores.terms[index], &scores.traces[index]);
        let evidence = trace.evidence;
        let source_negates =
            || trace.unit.is_some_and(|unit| negates(candidates, unit, words_around(scores, index)));
        let kind = if term.is_negation && !source_negates() {
            factor = factor.min(NEGATION_DIFFERS_FACTOR);
            Some(UnsupportedKind::Negation)
        } else if term.is_number && !trace.in_chunk {
            factor = factor.min(NUMBER_MISSING_FACTOR);
            Some(UnsupportedKind::Number)
        } else if term.is_name && !trace.in_unit {
            factor = factor.min(NAME_MISSING_FACTOR + (1.0 - NAME_MISSING_FACTOR) * evidence);
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
    let main_unit = main_unit(part_terms.iter().map(|&(scores, index)| &scores.traces[index]));
    if !part_is_negated && main_unit.is_some_and(|unit| negates(candidates, unit, terms())) {
        factor = factor.min(NEGATION_DIFFERS_FACTOR);
        unsupported.push(UnsupportedSpan { bytes: part, kind: UnsupportedKind::NegationDropped });
    }
    let mean = if weight_sum > 0.0 { sum / weight_sum } else { 0.0 };
    Some((mean * factor * (1.0 - WORST_WORD_SHARE + WORST_WORD_SHARE * worst), unsupported))
}

/// Returns the weight of a word or token that is `distance` tokens outside of a part, relative to one inside.
pub(super) fn context_weight(distance: usize) -> f32 {
    CONTEXT_WEIGHT * CONTEXT_DECAY.powi(i32::try_from(distance).unwrap_or(i32::MAX))
}

/// Returns a word of a sentence and the words within [`NEGATION_SCOPE_WORDS`] of it.
fn words_around(scores: &SentenceScores, index: usize) -> impl Iterator<Item = &AnswerTerm> {
    let end = scores.terms.len().min(index + NEGATION_SCOPE_WORDS + 1);
    scores.terms[index.saturating_sub(NEGATION_SCOPE_WORDS)..end].iter()
}

/// Returns whether a unit negates some words: it has a negation within [`NEGATION_SCOPE_WORDS`] of one of
/// them, or it has a negation and none of the words. Function words do not count.
fn negates<'a>(candidates: &Candidates, unit: usize, words: impl Iterator<Item = &'a AnswerTerm>) -> bool {
    if !candidates.is_negated(unit) {
        return false;
    }
    let ids: Vec<u32> = words.filter(|term| !term.is_negation).filter_map(|term| term.id).collect();
    let unit_words = candidates.words(unit);
    let is_content = |term: &Term| !term.is_function_word() && !term.is_negation();
    let is_given = |term: &Term| candidates.term(&term.folded).is_some_and(|id| ids.contains(&id));
    let shared: Vec<usize> = (0..unit_words.len())
        .filter(|&at| is_content(&unit_words[at]) && is_given(&unit_words[at]))
        .collect();
    let mut negations = (0..unit_words.len()).filter(|&at| unit_words[at].is_negation());
    shared.is_empty()
        || negations.any(|negation| shared.iter().any(|&at| at.abs_diff(negation) <= NEGATION_SCOPE_WORDS))
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
