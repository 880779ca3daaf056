//! A part of the answer beside the sentences that it is compared with: which words they share, and how far in the same order.
//! [`super::gather`] gathers from it what the verdict depends on.

use std::collections::{BTreeMap, HashSet};

use super::candidates::Candidates;
use super::evidence::{Conflict, ConflictKind};
use super::sentence_scores::{AnswerTerm, SentenceScores, Trace};
use super::term_ids::{TermId, id_of};
use super::trace::IN_CHUNK_EVIDENCE;
use crate::domain::{ByteRange, Chunk};
use crate::text::{Amount, Term};

/// The most units with which a part is compared.
const UNITS_MAX: usize = 4;

/// The share of the part's words, by weight, that must be traced to a unit for the part to be compared with it.
const UNIT_SHARE_MIN: f32 = 0.1;

/// How many words two neighbours of the part may be apart in a unit.
const NEAR_WORDS: usize = 4;

/// The letters with which two forms of one word begin: `disables`, `disabling`.
const STEM_LETTERS: usize = 4;

/// A part of the answer and the units that it is compared with.
pub(super) struct Part<'a> {
    pub candidates: &'a Candidates,
    pub bytes: ByteRange,
    pub sentences: &'a [SentenceScores],
    /// The words of the part; at least one.
    pub words: Vec<PartWord<'a>>,
    /// The units, all of cited chunks, those with most of the part's words first.
    pub units: Vec<usize>,
    /// `[unit]`: the words of each of `units`.
    pub unit_words: Vec<Vec<UnitWord<'a>>>,
    /// `[unit]`: the indices of the words that each of `units` denies.
    denied: Vec<Vec<usize>>,
    /// The best unit of each chunk that is cited for the part.
    cited: &'a [usize],
}

pub(super) struct PartWord<'a> {
    pub term: &'a AnswerTerm,
    pub trace: Trace,
}

/// A word of a unit that the part is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UnitWord<'a> {
    /// The index of the unit in [`Part::units`].
    pub unit: usize,
    /// The index of the word in the unit.
    pub at: usize,
    pub term: &'a Term,
    pub id: Option<TermId>,
}

impl<'a> Part<'a> {
    /// Puts a part beside the units of `cited` chunks that its words were traced to, and beside the `cited` units. Returns `None` if the
    /// part has no word.
    pub fn align(
        candidates: &'a Candidates,
        sentences: &'a [SentenceScores],
        bytes: ByteRange,
        cited: &'a [usize],
    ) -> Option<Self> {
        let units = choose_units(candidates, sentences, bytes, cited);
        let words_of = |(unit, &index): (usize, &usize)| -> Vec<UnitWord<'a>> {
            let words = candidates.words(index).iter().enumerate();
            words.map(|(at, term)| UnitWord { unit, at, term, id: Some(id_of(&term.folded)) }).collect()
        };
        let unit_words: Vec<Vec<UnitWord>> = units.iter().enumerate().map(words_of).collect();
        let denied_of = |words: &Vec<UnitWord>| {
            let found =
                denied(words.len(), &|at| words[at].term.is_negation(), &|at| words[at].term.is_content());
            found.into_iter().map(|(_, word)| word).collect()
        };
        let denied = unit_words.iter().map(denied_of).collect();
        let mut words = Vec::new();
        for sentence in sentences {
            let inside = (0..sentence.terms.len()).filter(|&at| sentence.terms[at].bytes.overlaps(bytes));
            words.extend(inside.map(|at| PartWord { term: &sentence.terms[at], trace: sentence.traces[at] }));
        }
        (!words.is_empty()).then_some(Self {
            candidates,
            bytes,
            sentences,
            words,
            units,
            unit_words,
            denied,
            cited,
        })
    }

    /// Returns the words of the part that have meaning by themselves.
    pub fn content(&self) -> impl Iterator<Item = &PartWord<'a>> + Clone {
        self.words.iter().filter(|word| word.term.is_content)
    }

    pub fn all_unit_words(&self) -> impl Iterator<Item = UnitWord<'a>> {
        self.unit_words.iter().flatten().copied()
    }

    pub fn denies(&self, word: &UnitWord) -> bool {
        self.denied[word.unit].contains(&word.at)
    }

    /// Returns whether one of the units has a word of the part, in this form or as an equal number.
    pub fn units_have(&self, term: &AnswerTerm) -> bool {
        (0..self.units.len()).any(|unit| self.unit_has(unit, term))
    }

    /// Returns whether a unit has a word of the part, in this form or as an equal number.
    pub fn unit_has(&self, unit: usize, term: &AnswerTerm) -> bool {
        term.is_in(|id| self.candidates.unit_has(self.units[unit], id))
    }

    /// Returns whether a unit has a word of the part or another form of it.
    pub fn unit_has_form(&self, unit: usize, term: &AnswerTerm) -> bool {
        let stem = |word: &str| word.char_indices().nth(STEM_LETTERS).map(|(end, _)| word[..end].to_owned());
        self.unit_has(unit, term)
            || stem(&term.word.folded).is_some_and(|own| {
                self.unit_words[unit].iter().any(|word| word.term.folded.starts_with(&own))
            })
    }

    /// Returns whether a cited chunk has the word.
    pub fn chunks_have(&self, term: &AnswerTerm) -> bool {
        let mut chunks = self.cited.iter().map(|&unit| self.candidates.units[unit].chunk);
        chunks.any(|chunk| term.is_in(|id| self.candidates.chunk_has(chunk, id)))
    }

    /// Returns the evidence of a word of the sentences, where the chunks that are cited for the part count, too.
    pub fn evidence_of(&self, term: &AnswerTerm, trace: &Trace) -> f32 {
        if self.chunks_have(term) { trace.evidence.max(IN_CHUNK_EVIDENCE) } else { trace.evidence }
    }

    /// Returns what a model reads of the units: those of the chunk with most of the part's words first, each chunk with its title, and each unit
    /// with what it cannot be understood without, such as its heading or the sentence before a pronoun.
    pub fn text_of_units(&self) -> String {
        let mut chunks: Vec<usize> = Vec::new();
        for &unit in &self.units {
            let chunk = self.candidates.units[unit].chunk;
            if !chunks.contains(&chunk) {
                chunks.push(chunk);
            }
        }
        let mut text = String::new();
        let mut push = |piece: &str| {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(piece.trim());
        };
        for chunk in chunks {
            let of_chunk = self.units.iter().map(|&unit| &self.candidates.units[unit]);
            let mut ranges: Vec<ByteRange> =
                of_chunk.filter(|unit| unit.chunk == chunk).map(|unit| unit.bytes).collect();
            ranges.extend(self.candidates.contexts(chunk, &ranges));
            ranges.sort_by_key(|range| range.start);
            let Chunk { title, text, .. } = &*self.candidates.chunks[chunk];
            if let Some(title) = title {
                push(&format!("{title}."));
            }
            ranges.iter().for_each(|range| push(range.slice(text)));
        }
        text
    }

    /// Returns the byte range of a unit's word in the text of its chunk.
    pub fn source_bytes(&self, word: UnitWord) -> ByteRange {
        word.term.bytes.shifted(self.candidates.units[self.units[word.unit]].bytes.start)
    }

    /// Returns the conflict of some bytes of the part with a unit's word.
    pub fn conflict(&self, bytes: ByteRange, kind: ConflictKind, word: UnitWord) -> Conflict {
        let chunk = self.candidates.units[self.units[word.unit]].chunk;
        Conflict { bytes, kind, chunk, source: self.source_bytes(word) }
    }

    /// Returns the conflict of the whole part with the unit that has most of its words.
    pub fn conflict_of_meaning(&self) -> Option<Conflict> {
        let unit = &self.candidates.units[*self.units.first()?];
        let (kind, source) = (ConflictKind::Meaning, unit.bytes);
        Some(Conflict { bytes: self.bytes, kind, chunk: unit.chunk, source })
    }

    /// Returns the share of the pairs of neighbouring words of the part that are neighbours in a unit, too.
    pub fn share_copied(&self) -> f32 {
        if let [word] = &*self.words {
            // Such as a value of JSON.
            return if self.units_have(word.term) { 1.0 } else { 0.0 };
        }
        let mut known: HashSet<(TermId, TermId)> = HashSet::new();
        for words in &self.unit_words {
            known.extend(self.known_pairs(words.iter().map(|word| word.term)).into_iter().flatten());
        }
        let pairs = self.known_pairs(self.words.iter().map(|word| &word.term.word));
        let found = pairs.iter().filter(|pair| pair.is_some_and(|pair| known.contains(&pair))).count();
        found as f32 / pairs.len().max(1) as f32
    }

    /// Returns the pairs of neighbours among some words, as ids; `None` for a pair of which no chunk has one. A measured number counts by its
    /// value, so that its unit is left out: `24 months` is `two years`.
    fn known_pairs<'t>(&self, words: impl Iterator<Item = &'t Term>) -> Vec<Option<(TermId, TermId)>> {
        let key = |term: &Term| match term.number_key().filter(|_| term.is_measured()) {
            Some(key) => self.candidates.term(&key),
            None => self.candidates.term(&term.folded),
        };
        let ids: Vec<Option<TermId>> = words.filter(|word| !word.is_unit).map(key).collect();
        ids.windows(2).map(|pair| pair[0].zip(pair[1])).collect()
    }

    /// Returns whether a word is a content word that no cited chunk has. The unit of a number counts with the number.
    pub fn is_missing(&self, word: &PartWord) -> bool {
        word.term.is_content && !word.term.is_unit && !self.chunks_have(word.term)
    }

    /// Returns how many content words of the part, besides numbers, are as near the word of a unit as they are to the word `at` of the part.
    /// The word behind both, which they count, has more weight than all others.
    pub fn neighbours_shared(&self, at: usize, place: &UnitWord) -> usize {
        let around = |at: usize, len: usize| at.saturating_sub(NEAR_WORDS)..(at + NEAR_WORDS + 1).min(len);
        let is_same = |term: &AnswerTerm, other: &UnitWord| term.id.is_some() && other.id == term.id;
        let unit = &self.unit_words[place.unit];
        let near = &unit[around(place.at, unit.len())];
        let mut shared = 0;
        for word in &self.words[around(at, self.words.len())] {
            let counts = word.term.is_content && !word.term.is_number;
            shared += usize::from(counts && near.iter().any(|other| is_same(word.term, other)));
        }
        let behind = self.words.get(at + 1).zip(unit.get(place.at + 1));
        let counts_same = behind.is_some_and(|(word, other)| is_same(word.term, other));
        shared + if counts_same { 2 * NEAR_WORDS + 1 } else { 0 }
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
        for word in self.content().filter(|word| !word.term.is_unit) {
            let states = |other: &UnitWord| is_covered(word.term.word.amount, other.term.amount);
            let is_it =
                |other: &UnitWord| states(other) || word.term.id.is_some() && other.id == word.term.id;
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
}

/// Returns whether a source with an amount states the amount of the part.
fn is_covered(amount: Option<Amount>, source: Option<Amount>) -> bool {
    amount.zip(source).is_some_and(|(amount, source)| amount.covers(&source))
}

/// Returns the units to compare a part with, those with most of its words first. All are of chunks with a `cited` unit: what stands elsewhere
/// supports nothing.
fn choose_units(
    candidates: &Candidates,
    sentences: &[SentenceScores],
    part: ByteRange,
    cited: &[usize],
) -> Vec<usize> {
    let chunk_of = |unit: usize| candidates.units[unit].chunk;
    let mut weights: BTreeMap<usize, f32> = BTreeMap::new();
    let mut sum = 0.0;
    for scores in sentences {
        for (term, trace) in scores.terms.iter().zip(&scores.traces) {
            let Some(unit) = trace.unit.filter(|_| term.bytes.overlaps(part)) else { continue };
            sum += term.weight;
            if cited.iter().any(|&cited| chunk_of(cited) == chunk_of(unit)) {
                *weights.entry(unit).or_default() += term.weight;
            }
        }
    }
    let mut traced: Vec<(usize, f32)> =
        weights.into_iter().filter(|(_, weight)| *weight >= UNIT_SHARE_MIN * sum).collect();
    traced.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut units: Vec<usize> = traced.into_iter().map(|(unit, _)| unit).collect();
    let others: Vec<usize> =
        cited.iter().copied().filter(|unit| !units.contains(unit)).take(UNITS_MAX).collect();
    units.truncate(UNITS_MAX - others.len());
    units.extend(others);
    units
}

/// Returns the negations of a text of `len` words, each with the word that it denies: the next content word or, behind all of them, the last
/// one.
pub(super) fn denied(
    len: usize,
    is_negation: &dyn Fn(usize) -> bool,
    is_content: &dyn Fn(usize) -> bool,
) -> Vec<(usize, usize)> {
    let mut next = vec![None; len];
    let mut behind = None;
    for at in (0..len).rev() {
        next[at] = behind;
        behind = if is_content(at) { Some(at) } else { behind };
    }
    let (mut before, mut found) = (None, Vec::new());
    for (at, next) in next.into_iter().enumerate() {
        if is_negation(at) {
            found.extend(next.or(before).map(|word| (at, word)));
        }
        before = if is_content(at) { Some(at) } else { before };
    }
    found
}
