//! Conflicts: finds what in the units excludes something that a part says, and counts what they share.

use std::collections::BTreeMap;

use super::evidence::{Conflict, ConflictKind, mean};
use super::gather::Gathered;
use super::negations::NEGATION_SCOPE_WORDS;
use super::overlap::NEAR_WORDS;
use super::part::{Part, PartWord, UnitWord, words_near};
use super::sentence_scores::AnswerTerm;
use crate::text::{self, Amount, Contrast, Limit, Term};

/// How many words before a number a word may be that limits it.
const LIMIT_REACH_WORDS: usize = 4;

/// The fewest content words of a part beside a number from which on a unit with all of them is taken to be about the same thing.
const SAME_WORDS_MIN: usize = 2;

/// `[class][group]`: the first word of each group of contrasts.
type Groups<T> = BTreeMap<usize, BTreeMap<usize, (T, bool)>>;

impl Gathered<'_> {
    /// Compares what can exclude each other in the part and its units.
    pub fn find_conflicts(&mut self) {
        self.compare_numbers();
        self.compare_denials();
        self.compare_contrasts();
        self.compare_denied_forms();
        self.compare_names();
        self.compare_roles();
        self.conflicts.sort_by_key(|conflict| (conflict.bytes.start, conflict.chunk, conflict.source.start));
        self.evidence.has_conflict = !self.conflicts.is_empty();
        self.evidence.conflict_beside = if self.conflicts.is_empty() { 0.0 } else { self.evidence_beside() };
        self.evidence.replaced = flag(self.conflicts.iter().any(|conflict| is_in_place(self.part, conflict)));
    }

    /// Counts the numbers of the part that the units have, exclude by another one, and do not have.
    fn compare_numbers(&mut self) {
        let part = self.part;
        let of_part: Vec<Amount> = part.words.iter().filter_map(|word| word.term.word.amount).collect();
        // The numbers of the units, those first that the part does not have.
        let mut of_units: Vec<(UnitWord, Amount)> =
            part.all_unit_words().filter_map(|word| Some((word, word.term.amount?))).collect();
        of_units.sort_by_cached_key(|(_, other)| of_part.iter().any(|amount| amount.agrees_with(other)));
        for (at, word) in part.words.iter().enumerate() {
            let Some(amount) = word.term.word.amount else { continue };
            let before = &part.words[at.saturating_sub(LIMIT_REACH_WORDS)..at];
            let limit = before.iter().rev().find_map(|word| word.term.word.limits());
            let mut same = of_units.iter().filter(|(_, other)| amount.is_comparable_with(other));
            if let Some(other) = number_of_same(part, word.term, &amount) {
                self.evidence.numbers_excluded += 1.0;
                self.evidence.has_other_number = true;
                self.conflicts.push(part.conflict(word.term.bytes, ConflictKind::Number, other));
            } else if part.units_have(word.term)
                || same.clone().any(|(_, other)| is_met(&amount, limit, other))
            {
                self.evidence.numbers_found += 1.0;
            } else if let Some(&(other, _)) = same.next() {
                self.evidence.numbers_excluded += 1.0;
                let mut conflict = part.conflict(word.term.bytes, ConflictKind::Number, other);
                if let Some(unit) = part.words.get(at + 1).filter(|next| next.term.word.is_unit) {
                    conflict.bytes.end = unit.term.bytes.end;
                }
                let after = part.unit_words[other.unit].get(other.at + 1);
                if let Some(unit) = after.filter(|next| next.term.is_unit) {
                    conflict.source.end = part.source_bytes(*unit).end;
                }
                self.conflicts.push(conflict);
            } else {
                self.evidence.numbers_missing += 1.0;
            }
        }
    }

    /// Compares the [contrasts](text::contrasts) of the part with those of its units.
    fn compare_contrasts(&mut self) {
        let part = self.part;
        let is_contrastive = |word: UnitWord| word.term.is_contrastive();
        let part_is_contrastive = part.words.iter().any(|word| word.term.word.is_contrastive());
        self.evidence.contrastive = flag(part.all_unit_words().any(is_contrastive) && !part_is_contrastive);
        let terms: Vec<&Term> = part.words.iter().map(|word| &word.term.word).collect();
        let mut of_part = Groups::new();
        for (at, word) in part.words.iter().enumerate() {
            add_groups(&mut of_part, word.term.contrasts, is_denied(&terms, at), word.term.bytes);
        }
        let mut of_units = Groups::new();
        for words in &part.unit_words {
            let terms: Vec<&Term> = words.iter().map(|word| word.term).collect();
            for word in words {
                let contrasts = text::contrasts(word.term, part.text_of(*word));
                add_groups(&mut of_units, contrasts, is_denied(&terms, word.at), *word);
            }
        }
        for (class, groups) in of_part {
            let Some(others) = of_units.get(&class) else { continue };
            let absent = groups.iter().find(|(group, _)| !others.contains_key(group));
            let other = others.iter().find(|(group, _)| !groups.contains_key(group));
            if let (Some((_, (bytes, _))), Some((_, (other, _)))) = (absent, other) {
                self.evidence.contrast_excluded = 1.0;
                let conflict = part.conflict(*bytes, ConflictKind::Contrast, *other);
                // A number such as `third` is also a contrast to `second`. Only the number is reported.
                let as_number = Conflict { kind: ConflictKind::Number, ..conflict };
                if !self.conflicts.contains(&as_number) {
                    self.conflicts.push(conflict);
                }
            } else if absent.is_none() && groups.values().all(|(_, is_opposite)| !is_opposite) {
                self.evidence.contrast_found = 1.0;
            }
        }
    }

    /// Finds names of the part that no unit has where a unit has another name, beside the same word.
    fn compare_names(&mut self) {
        let part = self.part;
        for (at, word) in part.words.iter().enumerate() {
            if !word.term.is_name || word.term.is_number || part.units_have(word.term) {
                continue;
            }
            let beside = |neighbour: Option<usize>, step: isize| {
                let neighbour = part.words.get(neighbour?)?.term;
                let id = neighbour.id.filter(|_| neighbour.is_name)?;
                part.unit_words.iter().find_map(|words| {
                    let place = words.iter().position(|word| word.id == Some(id))?;
                    let other = *words.get(place.checked_add_signed(step)?)?;
                    let is_other = part.text_of(other).starts_with(char::is_uppercase)
                        && !begin_alike(&word.term.word.folded, &other.term.folded)
                        && !part.words.iter().any(|word| word.term.id == other.id);
                    is_other.then_some(other)
                })
            };
            let other = beside(Some(at + 1), -1).or_else(|| beside(at.checked_sub(1), 1));
            let conflict = |other| part.conflict(word.term.bytes, ConflictKind::Name, other);
            self.conflicts.extend(other.map(conflict));
        }
    }

    /// Finds two names that the part has before and after a word, and that one unit has in the opposite order
    /// around the same word. A name after `by` does what the name before it suffers.
    fn compare_roles(&mut self) {
        let part = self.part;
        let is_name =
            |word: &PartWord| word.term.bytes.len() > 1 && word.term.is_capitalized && word.term.is_content;
        // The first word with meaning after a name.
        let is_verb = |&at: &usize| {
            let term = part.words[at].term;
            let before = part.words[..at].iter().rev().find(|word| word.term.is_content);
            let may_be = !term.is_number && !term.is_capitalized && !term.word.is_mutual();
            term.is_content && may_be && before.is_some_and(is_name)
        };
        let names: Vec<usize> = (0..part.words.len()).filter(|&at| is_name(&part.words[at])).collect();
        let verbs: Vec<usize> = (0..part.words.len()).filter(is_verb).collect();
        let exchanged = part.unit_words.iter().find_map(|words| {
            let place = |at: usize| place_of_only(words, part.words[at].term);
            let names: Vec<(usize, usize)> = names.iter().filter_map(|&at| Some((at, place(at)?))).collect();
            verbs.iter().find_map(|&verb| {
                let verb_place = place(verb)?;
                let &(first, first_place) = names.iter().rev().find(|(at, _)| *at < verb)?;
                let &(second, second_place) = names.iter().find(|(at, _)| *at > verb)?;
                if !(second_place < verb_place && verb_place < first_place) {
                    return None;
                }
                let is_passive = part.words[verb..second].iter().any(|word| word.term.word.folded == "by");
                let was_passive = words[verb_place..first_place].iter().any(|word| word.term.folded == "by");
                let bytes = part.words[first].term.bytes.joined(part.words[second].term.bytes);
                (is_passive == was_passive)
                    .then(|| part.conflict(bytes, ConflictKind::Roles, words[verb_place]))
            })
        });
        self.evidence.roles_differ = exchanged.is_some();
        self.conflicts.extend(exchanged);
    }

    /// Returns the mean evidence of the part's content words that nothing excludes.
    fn evidence_beside(&self) -> f32 {
        let is_excluded = |word: &&PartWord| {
            self.conflicts.iter().any(|conflict| {
                conflict.bytes.start <= word.term.bytes.start
                    && word.term.bytes.end <= conflict.bytes.end
                    && conflict.kind != ConflictKind::Negation
            })
        };
        let rest = self.part.content().filter(|word| !is_excluded(word));
        mean(&rest.map(|word| word.trace.evidence).collect::<Vec<_>>())
    }
}

/// Returns the number of the unit that has all other words of the part, if it differs from the part's `number`, which stands only in
/// units about something else: "The bridge opened in 1931. The tunnel opened in 1978."
fn number_of_same<'a>(part: &Part<'a>, number: &AnswerTerm, amount: &Amount) -> Option<UnitWord<'a>> {
    let others = part.content().filter(|word| word.term.word.amount.is_none());
    let has_all = |&unit: &usize| others.clone().all(|word| part.unit_has(unit, word.term));
    let same: Vec<usize> = (0..part.units.len()).filter(has_all).collect();
    if others.clone().count() < SAME_WORDS_MIN || same.iter().any(|&unit| part.unit_has(unit, number)) {
        return None;
    }
    let is_other = |other: Amount| amount.is_comparable_with(&other) && !amount.agrees_with(&other);
    let mut words = same.into_iter().flat_map(|unit| part.unit_words[unit].iter().copied());
    words.find(|word| word.term.amount.is_some_and(is_other))
}

/// Adds the groups of a word's contrasts, if they have none yet. An opposite that is denied is none: "not open" does not exclude
/// "closed".
fn add_groups<T: Copy>(groups: &mut Groups<T>, contrasts: &[Contrast], is_denied: bool, word: T) {
    for Contrast { class, group, is_opposite } in contrasts {
        if !(is_denied && *is_opposite) {
            groups.entry(*class).or_default().entry(*group).or_insert((word, *is_opposite));
        }
    }
}

/// Returns whether a negation stands shortly before a word.
fn is_denied(words: &[&Term], at: usize) -> bool {
    words[at.saturating_sub(NEGATION_SCOPE_WORDS)..at].iter().any(|word| word.is_negation())
}

/// Returns the place of a word in a unit that has it once.
fn place_of_only(words: &[UnitWord], term: &AnswerTerm) -> Option<usize> {
    let id = term.id?;
    let mut places = words.iter().filter(|word| word.id == Some(id)).map(|word| word.at);
    places.next().filter(|_| places.next().is_none())
}

/// Returns whether two names may be forms of one.
fn begin_alike(one: &str, other: &str) -> bool {
    one.chars().take(4).eq(other.chars().take(4))
}

/// Returns whether the word that excludes a word of the part stands in its place.
fn is_in_place(part: &Part, conflict: &Conflict) -> bool {
    let is_replacement =
        matches!(conflict.kind, ConflictKind::Number | ConflictKind::Contrast | ConflictKind::Name);
    let at = part.words.iter().position(|word| word.term.bytes == conflict.bytes);
    let Some(at) = at.filter(|_| is_replacement) else { return false };
    let content = |word: &&PartWord| word.term.is_content && word.term.id.is_some();
    let before = part.words[at.saturating_sub(NEAR_WORDS)..at].iter().rev().find(content);
    let after = part.words[at + 1..].iter().take(NEAR_WORDS).find(content);
    let beside: Vec<Option<u32>> = before.into_iter().chain(after).map(|word| word.term.id).collect();
    let is_source = |word: &&UnitWord| part.conflict(conflict.bytes, conflict.kind, **word) == *conflict;
    part.unit_words.iter().any(|words| {
        let near = |place: &UnitWord| &words[words_near(place.at, NEAR_WORDS, words.len())];
        let is_beside = |word: &UnitWord| beside.contains(&word.id);
        words.iter().find(is_source).is_some_and(|place| near(place).iter().any(is_beside))
    })
}

/// Returns whether a number of the source has the value that the part gives, or keeps within the part's limit.
fn is_met(amount: &Amount, limit: Option<Limit>, other: &Amount) -> bool {
    amount.agrees_with(other)
        || match limit {
            Some(Limit::AtLeast) => other.high > amount.low,
            Some(Limit::AtMost) => other.low < amount.high,
            None => false,
        }
}

fn flag(is_set: bool) -> f32 {
    f32::from(u8::from(is_set))
}
