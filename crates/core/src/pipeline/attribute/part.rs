//! A part of the answer beside the units that it is compared with: where its words came from, and which words of the units are like
//! them. [`super::gather`] gathers from it what the verdict depends on.

use std::collections::BTreeMap;
use std::ops::Range;

use super::candidates::Candidates;
use super::evidence::{Conflict, ConflictKind};
use super::sentence_scores::{AnswerTerm, SentenceScores};
use super::trace::{IN_CHUNK_EVIDENCE, Trace};
use crate::domain::ByteRange;
use crate::text::Term;

/// The most units with which a part is compared.
const UNITS_MAX: usize = 4;

/// The share of the part's words, by weight, that must be traced to a unit for the part to be compared with it.
const UNIT_SHARE_MIN: f32 = 0.1;

/// A part of the answer and the units that it is compared with.
pub(super) struct Part<'a> {
    pub candidates: &'a Candidates,
    pub bytes: ByteRange,
    /// The sentences that the part overlaps.
    pub sentences: &'a [SentenceScores],
    /// The words of the part; at least one.
    pub words: Vec<PartWord<'a>>,
    /// The units, those with most of its words first.
    pub units: Vec<usize>,
    /// `[unit]`: the words of each of `units`.
    pub unit_words: Vec<Vec<UnitWord<'a>>>,
    /// The best unit of each chunk that is cited for the part.
    cited: &'a [usize],
}

pub(super) struct PartWord<'a> {
    pub term: &'a AnswerTerm,
    pub trace: Trace,
    pub sentence: &'a [AnswerTerm],
    /// The index of the word in its sentence.
    pub index: usize,
    /// The most similar word of the units; `None` if they have no word, or if the model's logits have no fixed scale.
    pub aligned: Option<UnitWord<'a>>,
    /// The similarity of that word; -1 without one.
    pub similarity: f32,
}

/// A word of a unit that the part is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UnitWord<'a> {
    /// The index of the unit in [`Part::units`].
    pub unit: usize,
    /// The index of the word in the unit.
    pub at: usize,
    pub term: &'a Term,
    pub id: Option<u32>,
}

impl<'a> Part<'a> {
    /// Aligns the words of a part with the units that they were traced to, and with the `cited` ones. Returns `None` if the part has
    /// no word.
    pub fn align(
        candidates: &'a Candidates,
        sentences: &'a [SentenceScores],
        bytes: ByteRange,
        cited: &'a [usize],
    ) -> Option<Self> {
        let units = choose_units(sentences, bytes, cited);
        let words_of = |(unit, &index): (usize, &usize)| -> Vec<UnitWord<'a>> {
            let words = candidates.words(index).iter().enumerate();
            words.map(|(at, term)| UnitWord { unit, at, term, id: candidates.term(&term.folded) }).collect()
        };
        let unit_words = units.iter().enumerate().map(words_of).collect();
        let mut part = Self { candidates, bytes, sentences, words: Vec::new(), units, unit_words, cited };
        for sentence in sentences {
            let inside = (0..sentence.terms.len()).filter(|&at| sentence.terms[at].bytes.overlaps(bytes));
            part.words.extend(inside.map(|index| part.align_word(sentence, index)).collect::<Vec<_>>());
        }
        (!part.words.is_empty()).then_some(part)
    }

    fn align_word(&self, sentence: &'a SentenceScores, index: usize) -> PartWord<'a> {
        let (mut similarity, mut aligned) = (-1.0, None);
        for (unit, &candidate) in self.units.iter().enumerate() {
            let Some(similar) = sentence.most_similar_words(self.candidates, candidate) else { break };
            if similar[index].0 > similarity {
                similarity = similar[index].0;
                aligned = Some(self.unit_words[unit][similar[index].1]);
            }
        }
        let (term, trace) = (&sentence.terms[index], sentence.traces[index]);
        PartWord { term, trace, sentence: &sentence.terms, index, aligned, similarity }
    }

    /// Returns whether the model's logits have a fixed scale, so that similar words can be compared, and the part has units.
    pub fn is_aligned(&self) -> bool {
        !self.units.is_empty() && self.sentences.iter().all(|sentence| sentence.similarity.is_some())
    }

    /// Returns whether the part is in another language than the unit that has most of its words, and few of its words are the same.
    pub fn is_foreign(&self) -> bool {
        let (Some(own), Some(&unit)) =
            (self.sentences.first().and_then(|sentence| sentence.lang), self.units.first())
        else {
            return false;
        };
        let (in_units, all) = self.content().fold((0, 0), |(in_units, all), word| {
            (in_units + usize::from(self.units_have(word.term)), all + 1)
        });
        if 2 * in_units >= all {
            return false;
        }
        let other = self.candidates.langs[self.candidates.units[unit].chunk];
        other.is_some_and(|other| other != own)
    }

    /// Returns whether similar words mean something: the model is calibrated and, if the part is in another language than its sources,
    /// compares languages.
    pub fn compares_meaning(&self, is_foreign: bool) -> bool {
        self.is_aligned()
            && (!is_foreign || self.sentences.iter().all(|sentence| sentence.compares_languages))
    }

    /// Returns the words of the part that have meaning by themselves.
    pub fn content(&self) -> impl Iterator<Item = &PartWord<'a>> + Clone {
        self.words.iter().filter(|word| word.term.is_content)
    }

    pub fn all_unit_words(&self) -> impl Iterator<Item = UnitWord<'a>> {
        self.unit_words.iter().flatten().copied()
    }

    /// Returns whether one of the units has a word of the part, in this form or as an equal number.
    pub fn units_have(&self, term: &AnswerTerm) -> bool {
        (0..self.units.len()).any(|unit| self.unit_has(unit, term))
    }

    /// Returns whether a unit has a word of the part, in this form or as an equal number.
    pub fn unit_has(&self, unit: usize, term: &AnswerTerm) -> bool {
        term.is_in(|id| self.candidates.unit_has(self.units[unit], id))
    }

    /// Returns whether a chunk has the word: the one that it was traced to, or one that is cited for the part.
    pub fn chunks_have(&self, term: &AnswerTerm, trace: &Trace) -> bool {
        let has =
            |&unit: &usize| term.is_in(|id| self.candidates.chunk_has(self.candidates.units[unit].chunk, id));
        trace.in_chunk || self.cited.iter().any(has)
    }

    /// Returns the evidence of a word of the sentences, where the chunks that are cited for the part count, too.
    pub fn evidence_of(&self, term: &AnswerTerm, trace: &Trace) -> f32 {
        if self.chunks_have(term, trace) { trace.evidence.max(IN_CHUNK_EVIDENCE) } else { trace.evidence }
    }

    /// Returns the text of the units in the order of the chunks.
    pub fn text_of_units(&self) -> String {
        let mut units: Vec<_> = self.units.iter().map(|&unit| &self.candidates.units[unit]).collect();
        units.sort_by_key(|unit| (unit.chunk, unit.bytes.start));
        let texts =
            units.iter().map(|unit| unit.bytes.slice(&self.candidates.chunks[unit.chunk].text).trim());
        texts.collect::<Vec<_>>().join(" ")
    }

    /// Returns the byte range of a unit's word in the text of its chunk.
    pub fn source_bytes(&self, word: UnitWord) -> ByteRange {
        word.term.bytes.shifted(self.candidates.units[self.units[word.unit]].bytes.start)
    }

    /// Returns a unit's word as its chunk has it.
    pub fn text_of(&self, word: UnitWord) -> &'a str {
        self.source_bytes(word).slice(&self.candidates.chunks[self.chunk_of(word)].text)
    }

    pub fn chunk_of(&self, word: UnitWord) -> usize {
        self.candidates.units[self.units[word.unit]].chunk
    }

    /// Returns the conflict of some bytes of the part with a unit's word.
    pub fn conflict(&self, bytes: ByteRange, kind: ConflictKind, word: UnitWord) -> Conflict {
        Conflict { bytes, kind, chunk: self.chunk_of(word), source: self.source_bytes(word) }
    }
}

/// Returns the units to compare a part with, those with most of its words first.
fn choose_units(sentences: &[SentenceScores], part: ByteRange, cited: &[usize]) -> Vec<usize> {
    let mut weights: BTreeMap<usize, f32> = BTreeMap::new();
    let mut sum = 0.0;
    for scores in sentences {
        for (term, trace) in scores.terms.iter().zip(&scores.traces) {
            let Some(unit) = trace.unit.filter(|_| term.bytes.overlaps(part)) else { continue };
            *weights.entry(unit).or_default() += term.weight;
            sum += term.weight;
        }
    }
    let mut traced: Vec<(usize, f32)> =
        weights.into_iter().filter(|(_, weight)| *weight >= UNIT_SHARE_MIN * sum).collect();
    traced.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut units: Vec<usize> = traced.into_iter().map(|(unit, _)| unit).collect();
    for &unit in cited {
        if !units.contains(&unit) {
            units.push(unit);
        }
    }
    units.truncate(UNITS_MAX);
    units
}

/// Returns the places of the word `at` and of those up to `reach` words away, in a text of `len` words.
pub(super) fn words_near(at: usize, reach: usize, len: usize) -> Range<usize> {
    at.saturating_sub(reach)..len.min(at + reach + 1)
}
