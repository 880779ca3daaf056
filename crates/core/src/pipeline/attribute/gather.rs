//! Gathers, once for each part of the answer, everything that the verdict on it depends on. [`super::verdict`] is a
//! function of it and does not look at the texts again.
//!
//! ```text
//! Part ─┬─▶ its words: how far the sources have them ──────────────────────────┐
//!       └─▶ what excludes them (`conflicts`), their order (`overlap`) ─────────┴─▶ Evidence ─▶ verdict
//! ```

use super::evidence::{Conflict, EVIDENCE_MIN, Evidence, UnsupportedKind, UnsupportedSpan};
use super::overlap::longest_gap;
use super::part::{Part, PartWord};
use super::sentence_scores::{AnswerTerm, FUNCTION_WORD_FACTOR};

/// The weight of a word outside of the part, relative to a word inside, is [`CONTEXT_WEIGHT`] times
/// [`CONTEXT_DECAY`] to the power of its distance from the part in tokens.
const CONTEXT_WEIGHT: f32 = 0.2;
const CONTEXT_DECAY: f32 = 0.95;

/// The factor for the evidence of a part with a number that its source does not contain.
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

/// The similarity from which on a word of the part is taken to be in the units in other words.
const SIMILAR_MIN: f32 = 0.6;

/// The most content words of a part that is supported in part by half of them.
const FEW_WORDS_MAX: usize = 2;

/// The evidence on a part, with the places in the answer and in the chunks that show it.
pub(super) struct Gathered<'a> {
    pub part: &'a Part<'a>,
    pub evidence: Evidence,
    /// What the sources do not support, in the order of the answer.
    pub unsupported: Vec<UnsupportedSpan>,
    /// What excludes the part, in the order of the answer.
    pub conflicts: Vec<Conflict>,
}

impl<'a> Gathered<'a> {
    /// Gathers the evidence on a part.
    pub fn gather(part: &'a Part<'a>, is_citable: bool) -> Self {
        let is_foreign = part.is_foreign();
        let evidence = Evidence { is_citable, is_foreign, ..Evidence::default() };
        let mut gathered = Self { part, evidence, unsupported: Vec::new(), conflicts: Vec::new() };
        gathered.measure_words();
        if part.compares_meaning(is_foreign) {
            gathered.find_conflicts();
            gathered.measure_overlap();
        }
        gathered
    }

    /// Measures how far the sources have the words of the part, and lists those that they do not have.
    fn measure_words(&mut self) {
        let part = self.part;
        let (mut least, mut names_least): (f32, f32) = (1.0, 1.0);
        for word in &part.words {
            let (term, evidence) = (word.term, part.evidence_of(word.term, &word.trace));
            let kind = if term.is_negation && !part.sources_negate(word) {
                self.evidence.negation_differs = true;
                Some(UnsupportedKind::Negation)
            } else if term.is_number && !part.chunks_have(term, &word.trace) {
                self.evidence.number_missing = true;
                Some(UnsupportedKind::Number)
            } else if term.is_name && !part.units_have(term) {
                names_least = names_least.min(evidence);
                (evidence < EVIDENCE_MIN).then_some(UnsupportedKind::Name)
            } else {
                (evidence < EVIDENCE_MIN && term.weight > RARE_WEIGHT_MIN).then_some(UnsupportedKind::Word)
            };
            if term.weight > RARE_WEIGHT_MIN {
                least = least.min(evidence);
            }
            self.unsupported.extend(kind.map(|kind| UnsupportedSpan { bytes: term.bytes, kind }));
        }
        if part.drops_negation() {
            self.evidence.negation_differs = true;
            let kind = UnsupportedKind::NegationDropped;
            self.unsupported.push(UnsupportedSpan { bytes: part.bytes, kind });
        }
        let mean = mean_evidence(part);
        let number = if self.evidence.number_missing { NUMBER_MISSING_FACTOR } else { 1.0 };
        let negation = if self.evidence.negation_differs { NEGATION_DIFFERS_FACTOR } else { 1.0 };
        let name = NAME_MISSING_FACTOR + (1.0 - NAME_MISSING_FACTOR) * names_least;
        let least_share = 1.0 - LEAST_WORD_SHARE + LEAST_WORD_SHARE * least;
        self.evidence.evidence_mean = mean;
        self.evidence.evidence_least = least;
        self.evidence.evidence = mean * least_share * number.min(negation).min(name);
    }

    /// Measures how far the part repeats its sources.
    fn measure_overlap(&mut self) {
        let part = self.part;
        let content: Vec<&PartWord> = part.content().collect();
        let gap = longest_gap(&content);
        let in_sources = content.iter().filter(|word| word.trace.evidence >= EVIDENCE_MIN).count();
        let is_paraphrased =
            |word: &&&PartWord| word.similarity >= SIMILAR_MIN && !part.units_have(word.term);
        let weight_of = |word: &PartWord| if word.term.is_content { 1.0 } else { FUNCTION_WORD_FACTOR };
        let weight: f32 = part.words.iter().map(weight_of).sum();
        let similarity: f32 = part.words.iter().map(|word| weight_of(word) * word.similarity).sum();
        let evidence = &mut self.evidence;
        evidence.similarity_mean = Some(similarity / weight);
        evidence.paraphrased = content.iter().filter(is_paraphrased).count() as f32;
        evidence.copied = part.share_copied(None);
        evidence.gathered = part.share_gathered();
        evidence.gap = gap.len() as f32 / content.len().max(1) as f32;
        evidence.has_addition = part.has_addition(&content, gap);
        evidence.has_half_of_few = content.len() <= FEW_WORDS_MAX && 2 * in_sources >= content.len().max(1);
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
