//! Whether the chunks say what a part of the answer says, word by word.

use super::candidates::Candidates;
use super::sentence_scores::{SentenceScores, TermScores};
use super::trace::Trace;
use crate::domain::ByteRange;
use crate::text::Term;
use schemars::JsonSchema;

/// From which support on a part counts as supported: `docs/attribution.md`.
pub const SUPPORT_MIN: f32 = 0.5;

/// What words around a part count beside its own, and how that fades with each token between.
const CONTEXT: f32 = 0.2;
const CONTEXT_FADES: f32 = 0.95;

/// What is left of a part's support when a number of it is in none of its sources; when a negation is on one side only; when a name is
/// missing and nothing comes near it.
const NUMBER_MISSING: f32 = 0.3;
const NEGATION_DIFFERS: f32 = 0.3;
const NAME_MISSING: f32 = 0.6;

/// How much of the support hangs on the worst word; words that most chunks have are none of these.
const WORST_SHARE: f32 = 0.5;
const TELLING: f32 = 0.3;

/// Words to either side that a negation is taken to speak of.
const SCOPE: usize = 3;

/// Evidence below which a telling word is said to unsupported support.
const LACKING: f32 = 0.5;

/// A word of a part that its sources do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedSpan {
    /// Where it stands in the answer.
    pub bytes: ByteRange,
    /// Why it matters.
    pub kind: UnsupportedKind,
}

/// Why a word that the sources do not say matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnsupportedKind {
    /// A number that they do not have.
    Number,
    /// A name that they do not have.
    Name,
    /// It says no where they do not.
    Negation,
    /// They say no where it does not: the whole part unsupported it.
    NegationDropped,
    /// Any other word.
    Word,
}

/// How far the sources say what the part says, from 0 to 1, and what they do not.
pub(super) fn of(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
) -> Option<(f32, Vec<UnsupportedSpan>)> {
    let inside = |term: &TermScores| term.bytes.overlaps(part);
    let (mut sum, mut weights) = (0.0, 0.0);
    let (mut left, mut worst): (f32, f32) = (1.0, 1.0);
    let mut unsupported = Vec::new();
    let mut of_part = Vec::new();
    for scores in scores {
        let own: Vec<usize> = (0..scores.terms.len()).filter(|&term| inside(&scores.terms[term])).collect();
        let (Some(&first), Some(&last)) = (own.first(), own.last()) else { continue };
        let tokens = scores.terms[first].tokens.start..scores.terms[last].tokens.end;
        for (term, trace) in scores.terms.iter().zip(&scores.traces) {
            let before = tokens.start.saturating_sub(term.tokens.start);
            let behind = term.tokens.start.saturating_sub(tokens.end - 1);
            let weight = match inside(term) {
                true => term.rarity,
                false => term.rarity * context(before + behind),
            };
            sum += weight * trace.evidence;
            weights += weight;
        }
        of_part.extend(own.into_iter().map(|term| (scores, term)));
    }
    of_part.first()?;
    for &(scores, index) in &of_part {
        let (term, trace) = (&scores.terms[index], &scores.traces[index]);
        let found = trace.evidence;
        let denies = || trace.unit.is_some_and(|unit| denies(candidates, unit, beside(scores, index)));
        let kind = if term.is_negation && !denies() {
            left = left.min(NEGATION_DIFFERS);
            Some(UnsupportedKind::Negation)
        } else if term.is_number && !trace.in_chunk {
            left = left.min(NUMBER_MISSING);
            Some(UnsupportedKind::Number)
        } else if term.is_name && !trace.in_unit {
            left = left.min(NAME_MISSING + (1.0 - NAME_MISSING) * found);
            (found < LACKING).then_some(UnsupportedKind::Name)
        } else {
            (found < LACKING && term.rarity > TELLING).then_some(UnsupportedKind::Word)
        };
        if term.rarity > TELLING {
            worst = worst.min(found);
        }
        unsupported.extend(kind.map(|kind| UnsupportedSpan { bytes: term.bytes, kind }));
    }
    let terms = || of_part.iter().map(|&(scores, index)| &scores.terms[index]);
    let says_no = terms().any(|term| term.is_negation);
    let main = main_unit(of_part.iter().map(|&(scores, index)| &scores.traces[index]));
    if !says_no && main.is_some_and(|unit| denies(candidates, unit, terms())) {
        left = left.min(NEGATION_DIFFERS);
        unsupported.push(UnsupportedSpan { bytes: part, kind: UnsupportedKind::NegationDropped });
    }
    let mean = if weights > 0.0 { sum / weights } else { 0.0 };
    Some((mean * left * (1.0 - WORST_SHARE + WORST_SHARE * worst), unsupported))
}

/// What a word so many tokens outside of a part counts for it.
pub(super) fn context(distance: usize) -> f32 {
    CONTEXT * CONTEXT_FADES.powi(i32::try_from(distance).unwrap_or(i32::MAX))
}

/// Words around one of a sentence.
fn beside(scores: &SentenceScores, index: usize) -> impl Iterator<Item = &TermScores> {
    let around = index.saturating_sub(SCOPE)..scores.terms.len().min(index + SCOPE + 1);
    scores.terms[around].iter()
}

/// Whether a unit says no of some words: a negation of it stands near one of them, or they are none that it could stand near.
fn denies<'a>(candidates: &Candidates, unit: usize, words: impl Iterator<Item = &'a TermScores>) -> bool {
    if !candidates.is_negated(unit) {
        return false;
    }
    let said: Vec<u32> = words.filter(|term| !term.is_negation).filter_map(|term| term.id).collect();
    let of_unit = candidates.words(unit);
    let tells = |term: &Term| !term.is_function_word() && !term.is_negation();
    let is_said = |term: &Term| candidates.term(&term.folded).is_some_and(|id| said.contains(&id));
    let shared: Vec<usize> =
        (0..of_unit.len()).filter(|&at| tells(&of_unit[at]) && is_said(&of_unit[at])).collect();
    let mut negations = (0..of_unit.len()).filter(|&at| of_unit[at].is_negation());
    shared.is_empty() || negations.any(|no| shared.iter().any(|&at| at.abs_diff(no) <= SCOPE))
}

/// The unit that most words came from; the first of several.
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
