//! Negations: finds what a part denies and its units do not, and the reverse.

use super::evidence::ConflictKind;
use super::gather::Gathered;
use super::part::{Part, PartWord, UnitWord, words_near};
use crate::text::{self, Negation, Term};

/// How many words before and after a negation it is surely taken to negate.
pub(super) const NEGATION_SCOPE_WORDS: usize = 3;

/// How many words before and after a negation it may negate: "does not expect to pay a dividend".
const NEGATION_REACH_WORDS: usize = 6;

/// How many words of the part before and after a denial it may deny.
const DENIAL_REACH_WORDS: usize = 4;

/// How many content words after "no" it denies.
const NOUN_WORDS_MAX: usize = 2;

/// The similarity from which on a denial beside the aligned word is taken to deny the word of the part.
const DENIED_SIMILARITY_MIN: f32 = 0.5;

impl<'a> Part<'a> {
    /// Returns whether a unit says what a negation in the part says: it has a negation near one of the words around it, or a
    /// negation and none of these words, or says it in other words.
    pub fn sources_negate(&self, negation: &PartWord) -> bool {
        let sentence = negation.sentence;
        let around = &sentence[words_near(negation.index, NEGATION_SCOPE_WORDS, sentence.len())];
        let ids: Vec<u32> =
            around.iter().filter(|term| !term.is_negation).filter_map(|term| term.id).collect();
        let next = sentence.get(negation.index + 1).map(|next| &*next.word.folded);
        // "No other town" is what "the only town" says.
        let excludes_others = matches!(next, Some("other" | "others" | "else"));
        self.unit_words.iter().any(|words| {
            let shared = shared_words(words, &ids);
            let is_near = |negation: &UnitWord| {
                shared.iter().any(|word| word.at.abs_diff(negation.at) <= NEGATION_REACH_WORDS)
            };
            let mut negations = words.iter().filter(|word| word.term.is_negation());
            let negates = if shared.is_empty() { negations.next().is_some() } else { negations.any(is_near) };
            negates
                || excludes_others && words.iter().any(|word| word.term.folded == "only")
                // "Not open" is what "closed" says.
                || denies_otherwise(sentence.iter().map(|term| &term.word), terms_of(words))
        })
    }

    /// Returns whether the unit with most words of the part has a negation beside one of them, and the part has none.
    pub fn drops_negation(&self) -> bool {
        let Some(words) = self.unit_words.first() else { return false };
        if self.words.iter().any(|word| word.term.is_negation) {
            return false;
        }
        let ids: Vec<u32> = self.words.iter().filter_map(|word| word.term.id).collect();
        let shared = shared_words(words, &ids);
        let mut negations = words.iter().filter(|word| word.term.is_negation());
        let is_close = |negation: &UnitWord| shared.iter().any(|word| denies(*negation, *word));
        negations.any(is_close) && !denies_otherwise(terms_of(words), self.terms())
    }

    /// Returns the denial beside the unit's word that a word of the part is aligned with.
    fn denial_of(&self, word: &PartWord<'a>) -> Option<UnitWord<'a>> {
        let to = word.aligned?;
        let words = &self.unit_words[to.unit];
        let near = &words[words_near(to.at, NEGATION_SCOPE_WORDS, words.len())];
        near.iter().copied().find(|denial| is_denial(denial.term) && denies(*denial, to))
    }

    fn terms(&self) -> impl Iterator<Item = &Term> {
        self.words.iter().map(|word| &word.term.word)
    }
}

impl Gathered<'_> {
    /// Counts the denials of the part that the units have, and do not have, and finds one that only the units have.
    pub fn compare_denials(&mut self) {
        let part = self.part;
        let is_said = |word: &&PartWord| word.term.is_content && word.similarity >= DENIED_SIMILARITY_MIN;
        for at in (0..part.words.len()).filter(|&at| is_denial(&part.words[at].term.word)) {
            let near = words_near(at, DENIAL_REACH_WORDS, part.words.len());
            let is_denied = |word: &PartWord| word.term.is_content && part.denial_of(word).is_some();
            let is_said_otherwise =
                || part.unit_words.iter().any(|words| denies_otherwise(part.terms(), terms_of(words)));
            if part.words[near.clone()].iter().any(is_denied) || is_said_otherwise() {
                self.evidence.denials_found += 1.0;
                continue;
            }
            self.evidence.denials_missing += 1.0;
            // What is denied mostly follows the denial. "No lights" denies nothing else of its sentence.
            let after = &part.words[at..near.end];
            let said = if ["no", "without"].contains(&&*part.words[at].term.word.folded) {
                after.iter().filter(|word| word.term.is_content).take(NOUN_WORDS_MAX).find(is_said)
            } else {
                after.iter().chain(part.words[near.start..at].iter().rev()).find(is_said)
            };
            let Some(said) = said else { continue };
            let Some(source) = said.aligned else { continue };
            let bytes = part.words[at].term.bytes.joined(said.term.bytes);
            self.conflicts.push(part.conflict(bytes, ConflictKind::Negation, source));
        }
        let only_in_units = |at: usize| {
            let near = &part.words[words_near(at, DENIAL_REACH_WORDS, part.words.len())];
            let word = Some(&part.words[at]).filter(is_said)?;
            let denial = part.denial_of(word)?;
            // "Not open" in the sources is what "closed" in the part says.
            let is_in_part = near.iter().any(|word| is_denial(&word.term.word))
                || denies_otherwise(terms_of(&part.unit_words[denial.unit]), part.terms());
            (!is_in_part).then_some((word, denial))
        };
        if let Some((word, denial)) = (0..part.words.len()).find_map(only_in_units) {
            let mut conflict = part.conflict(word.term.bytes, ConflictKind::Negation, denial);
            let denied = word.aligned.map_or(conflict.source, |word| part.source_bytes(word));
            conflict.source = conflict.source.joined(denied);
            self.conflicts.push(conflict);
        }
    }

    /// Finds words of the part that the units have only with a prefix that denies them, or without one that they have in the
    /// part. Nothing is found if either side has another denial, which may take the prefix's place.
    pub fn compare_denied_forms(&mut self) {
        let part = self.part;
        if part.all_unit_words().any(|word| is_denial(word.term)) || part.terms().any(is_denial) {
            return;
        }
        for word in part.content().filter(|word| !part.units_have(word.term)) {
            let is_form = |other: &UnitWord| text::is_denied_form(&word.term.word.folded, &other.term.folded);
            let Some(other) = part.all_unit_words().find(is_form) else { continue };
            self.evidence.is_denied_form = true;
            self.conflicts.push(part.conflict(word.term.bytes, ConflictKind::Negation, other));
        }
    }
}

/// Returns whether a negation in a unit is so close to another word of the unit that it denies it.
fn denies(negation: UnitWord, word: UnitWord) -> bool {
    word.at.abs_diff(negation.at) <= NEGATION_SCOPE_WORDS && negation.term.reaches(negation.at, word.at)
}

/// Returns whether some words say in another way what others say with a negation: they have a negative word that the others lack, or
/// a word of the others with a prefix that denies it.
fn denies_otherwise<'a>(
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

/// Returns the words of a unit that have one of these ids. Function words and negations do not count.
fn shared_words<'a>(words: &[UnitWord<'a>], ids: &[u32]) -> Vec<UnitWord<'a>> {
    let is_shared = |word: &&UnitWord| {
        let has_meaning = !word.term.is_function_word() && !word.term.is_negation();
        has_meaning && word.id.is_some_and(|id| ids.contains(&id))
    };
    words.iter().filter(is_shared).copied().collect()
}

fn terms_of<'a>(words: &[UnitWord<'a>]) -> impl Iterator<Item = &'a Term> {
    words.iter().map(|word| word.term)
}

/// Returns whether a word denies a statement. A word with an opposite in it denies nothing by itself.
fn is_denial(word: &Term) -> bool {
    word.negation().is_some_and(|negation| negation <= Negation::Denial)
}
