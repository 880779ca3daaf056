//! Judgement: compares a part of the answer with the sentences that its words were traced to, and finds what in
//! them excludes it. Gives the features from which [`super::verdict`] computes how probable it is that they support the part.
//!
//! A *claim word* is a word of the part. It is *aligned* with the word of the sentences that is most similar to it.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::candidates::Candidates;
use super::sentence_scores::{AnswerTerm, FUNCTION_WORD_FACTOR, SentenceScores};
use super::support::{NEGATION_SCOPE_WORDS, Support, denies_otherwise, words_near};
use super::verdict::{Feature, Features};
use crate::domain::ByteRange;
use crate::text::{self, Amount, Contrast, Limit, Negation, Term};

/// The most units with which a part is compared.
const UNITS_MAX: usize = 4;

/// The share of the part's words, by weight, that must be traced to a unit for the part to be compared with it.
const UNIT_SHARE_MIN: f32 = 0.1;

/// How many words of the part before and after a denial it may deny.
const DENIAL_REACH_WORDS: usize = 4;

/// The similarity from which on a claim word is taken to be in the sentences in other words.
const SIMILAR_MIN: f32 = 0.6;

/// The similarity from which on a denial beside the aligned word is taken to deny the claim word.
const DENIED_SIMILARITY_MIN: f32 = 0.5;

/// How many words two neighbours of the part may be apart in a unit.
const NEAR_WORDS: usize = 4;

/// The evidence below which a word counts as a gap.
const GAP_EVIDENCE_MAX: f32 = 0.5;

/// The fewest content words without evidence, in a row, that add something to what the sources say; and the mean
/// evidence that the other content words then have at least.
const ADDITION_WORDS_MIN: usize = 2;
const ADDITION_EVIDENCE_MIN: f32 = 0.8;

/// The share of the pairs of neighbouring words beside an addition that a source has at least. Parts that tell in other
/// words what their sources say have rows of words without evidence, too.
const ADDITION_COPIED_MIN: f32 = 0.5;

/// The most content words of a part that is supported in part by half of them.
const FEW_WORDS_MAX: usize = 2;

/// How many words before a number a word may be that limits it.
const LIMIT_REACH_WORDS: usize = 4;

/// Something in a sentence that excludes what the part says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    pub bytes: ByteRange,
    pub kind: ConflictKind,
    pub chunk: usize,
    /// Byte range in the chunk's text of the word that excludes it.
    pub source: ByteRange,
}

/// Why a sentence excludes what a part says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConflictKind {
    /// The sentence has another number of what the part counts.
    Number,
    /// The sentence has another name beside a name that both have.
    Name,
    /// The sentence has a word that excludes a word of the part, such as `Tuesday` for `Monday`.
    Contrast,
    /// The sentence denies what the part says.
    Negation,
    /// The sentence has two names of the part in the opposite order.
    Roles,
}

/// What a comparison of a part with sentences gives.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judgement {
    /// What support is computed from.
    pub features: Features,
    /// What excludes the part, in the order of the answer.
    pub conflicts: Vec<Conflict>,
    /// Whether the part says something more than its sources, which have the rest of it.
    pub has_addition: bool,
    /// Whether a number of the part stands only in sentences about something else, and the one with all other words of the part has
    /// another number.
    pub has_other_number: bool,
    /// Whether a unit has a word of the part with a prefix that denies it, such as `unpaid` for `paid`.
    pub is_denied_form: bool,
    /// Whether the part has so few words with meaning that one of them in the sources is half of what it says: "Knows SQL".
    pub has_half_of_few: bool,
    /// The units that the part was compared with, those with most of its words first.
    pub units: Vec<usize>,
}

/// A claim word with the word that it is aligned with.
struct Aligned<'a> {
    term: &'a AnswerTerm,
    /// How far the sources have it; see [`trace::Trace::evidence`](super::trace::Trace).
    evidence: f32,
    /// Their similarity; -1 if the units have no word.
    similarity: f32,
    /// The unit, as an index of [`Compared::units`], and the word in it.
    to: Option<(usize, usize)>,
}

/// A part and the units that it is compared with.
struct Compared<'a> {
    candidates: &'a Candidates,
    units: Vec<usize>,
    claim: Vec<Aligned<'a>>,
}

/// Compares a part with the units that its words were traced to, and with the `cited` ones. Returns `None` if the
/// model's logits have no fixed scale, or if there is no such unit.
pub(super) fn judge(
    candidates: &Candidates,
    scores: &[SentenceScores],
    part: ByteRange,
    cited: &[(usize, usize)],
    support: &Support,
) -> Option<Judgement> {
    let units = units(scores, part, cited);
    if units.is_empty() {
        return None;
    }
    let mut claim = Vec::new();
    for scores in scores {
        for index in (0..scores.terms.len()).filter(|&term| scores.terms[term].bytes.overlaps(part)) {
            claim.push(align(candidates, scores, index, &units)?);
        }
    }
    if claim.is_empty() {
        return None;
    }
    Some(Compared { candidates, units, claim }.judgement(support))
}

/// Returns the units to compare a part with, those with most of its words first.
fn units(scores: &[SentenceScores], part: ByteRange, cited: &[(usize, usize)]) -> Vec<usize> {
    let mut weights: BTreeMap<usize, f32> = BTreeMap::new();
    let mut sum = 0.0;
    for scores in scores {
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
    for &(_, unit) in cited {
        if !units.contains(&unit) {
            units.push(unit);
        }
    }
    units.truncate(UNITS_MAX);
    units
}

/// Aligns a claim word, the one with this index in its sentence, with a word of `units`. Returns `None` if the
/// model's logits have no fixed scale.
fn align<'a>(
    candidates: &Candidates,
    scores: &'a SentenceScores,
    index: usize,
    units: &[usize],
) -> Option<Aligned<'a>> {
    let mut best = (-1.0, None);
    for (at, &unit) in units.iter().enumerate() {
        let (similarity, word) = scores.most_similar_words(candidates, unit)?[index];
        if similarity > best.0 {
            best = (similarity, Some((at, word)));
        }
    }
    let (term, evidence) = (&scores.terms[index], scores.traces[index].evidence);
    Some(Aligned { term, evidence, similarity: best.0, to: best.1 })
}

impl Compared<'_> {
    fn judgement(&self, support: &Support) -> Judgement {
        let mut conflicts = Vec::new();
        let (numbers, has_other_number) = self.numbers(&mut conflicts);
        let denials = self.denials(&mut conflicts);
        let contrasts = self.contrasts(&mut conflicts);
        let is_denied_form = self.denied_forms(&mut conflicts);
        self.names(&mut conflicts);
        self.roles(&mut conflicts);
        // `third` is a number and a word that excludes `second`.
        let numbers_at: Vec<(ByteRange, ByteRange)> = (conflicts.iter())
            .filter(|conflict| conflict.kind == ConflictKind::Number)
            .map(|conflict| (conflict.bytes, conflict.source))
            .collect();
        conflicts.retain(|conflict| {
            conflict.kind != ConflictKind::Contrast
                || !numbers_at.contains(&(conflict.bytes, conflict.source))
        });
        conflicts.sort_by_key(|conflict| (conflict.bytes.start, conflict.chunk, conflict.source.start));
        let content: Vec<&Aligned> = self.claim.iter().filter(|word| word.term.is_content).collect();
        let gap = self.longest_gap(&content);
        let beside_gap = content.iter().enumerate().filter(|(at, _)| !gap.contains(at));
        let beside_gap: Vec<f32> = beside_gap.map(|(_, word)| word.evidence).collect();
        let adds_to = |gap: ByteRange| {
            mean(&beside_gap) >= ADDITION_EVIDENCE_MIN && self.copied(Some(gap)) >= ADDITION_COPIED_MIN
        };
        let words = content.get(gap.clone()).filter(|words| words.len() >= ADDITION_WORDS_MIN);
        let bytes = words
            .map(|words| ByteRange::new(words[0].term.bytes.start, words[words.len() - 1].term.bytes.end));
        let has_addition = bytes.is_some_and(adds_to);
        let flag = |is_set: bool| f32::from(u8::from(is_set));
        let mut features = Features::default();
        for (feature, value) in [
            (Feature::SimilarityMean, self.mean_similarity()),
            (Feature::NumbersFound, numbers[0]),
            (Feature::NumbersExcluded, numbers[1]),
            (Feature::NumbersMissing, numbers[2]),
            (Feature::DenialsFound, denials[0]),
            (Feature::DenialsMissing, denials[1]),
            (Feature::Contrastive, flag(self.is_contrastive())),
            (Feature::ContrastExcluded, contrasts[0]),
            (Feature::ContrastFound, contrasts[1]),
            (Feature::Paraphrased, self.paraphrased()),
            (Feature::EvidenceMean, support.mean),
            (Feature::EvidenceLeast, support.worst),
            (Feature::Evidence, support.value()),
            (Feature::Copied, self.copied(None)),
            (Feature::Replaced, flag(conflicts.iter().any(|conflict| self.is_in_place(conflict)))),
            (Feature::Gathered, self.gathered()),
            (Feature::Gap, gap.len() as f32 / content.len().max(1) as f32),
            (
                Feature::ConflictBeside,
                if conflicts.is_empty() { 0.0 } else { self.evidence_beside(&conflicts) },
            ),
        ] {
            features.set(feature, value);
        }
        let in_sources = content.iter().filter(|word| word.evidence >= GAP_EVIDENCE_MAX).count();
        let replaced = self.replaced_word().filter(|&bytes| adds_to(bytes));
        let has_addition = has_addition || replaced.is_some();
        let has_half_of_few = content.len() <= FEW_WORDS_MAX && 2 * in_sources >= content.len().max(1);
        Judgement {
            features,
            conflicts,
            has_addition,
            has_other_number,
            is_denied_form,
            has_half_of_few,
            units: self.units.clone(),
        }
    }

    /// The words of the units, with the index of the unit.
    fn words(&self) -> impl Iterator<Item = (usize, &Term)> {
        let words = |at: usize| self.candidates.words(self.units[at]).iter().map(move |word| (at, word));
        (0..self.units.len()).flat_map(words)
    }

    fn text_of(&self, unit: usize, word: &Term) -> &str {
        self.place(unit, word)
            .1
            .of(&self.candidates.chunks[self.candidates.units[self.units[unit]].chunk].text)
    }

    /// The chunk of a unit's word, and its byte range there.
    fn place(&self, unit: usize, word: &Term) -> (usize, ByteRange) {
        let unit = &self.candidates.units[self.units[unit]];
        (unit.chunk, word.bytes.shifted(unit.bytes.start))
    }

    fn conflict(&self, bytes: ByteRange, kind: ConflictKind, unit: usize, word: &Term) -> Conflict {
        let (chunk, source) = self.place(unit, word);
        Conflict { bytes, kind, chunk, source }
    }

    /// Whether a unit has a word of the part, in this form or as an equal number.
    fn units_have(&self, term: &AnswerTerm) -> bool {
        self.units.iter().any(|&unit| term.is_in(|id| self.candidates.unit_has(unit, id)))
    }

    fn mean_similarity(&self) -> f32 {
        let weight_of = |word: &Aligned| if word.term.is_content { 1.0 } else { FUNCTION_WORD_FACTOR };
        let weight: f32 = self.claim.iter().map(weight_of).sum();
        self.claim.iter().map(|word| weight_of(word) * word.similarity).sum::<f32>() / weight
    }

    /// How many numbers of the part the units have, exclude by another one, and do not have; and whether one of them is
    /// [another thing's](Judgement::has_other_number).
    fn numbers(&self, conflicts: &mut Vec<Conflict>) -> ([f32; 3], bool) {
        let [mut found, mut excluded, mut missing] = [0.0; 3];
        let mut has_other = false;
        let of_part: Vec<Amount> = self.claim.iter().filter_map(|word| word.term.word.amount).collect();
        // The numbers of the units, those first that the part does not have.
        let mut of_units: Vec<(usize, &Term, Amount)> =
            self.words().filter_map(|(unit, word)| Some((unit, word, word.amount?))).collect();
        of_units.sort_by_cached_key(|(.., other)| of_part.iter().any(|amount| amount.agrees_with(other)));
        for (at, word) in self.claim.iter().enumerate() {
            let Some(amount) = word.term.word.amount else { continue };
            let limit = self.claim[at.saturating_sub(LIMIT_REACH_WORDS)..at]
                .iter()
                .rev()
                .find_map(|w| w.term.word.limits());
            let mut same = of_units.iter().filter(|(.., other)| amount.is_comparable_with(other));
            if let Some(other) = self.own_number(at, &amount) {
                (excluded, has_other) = (excluded + 1.0, true);
                conflicts.push(self.conflict(word.term.bytes, ConflictKind::Number, other.0, other.1));
            } else if self.units_have(word.term)
                || same.clone().any(|(.., other)| is_met(&amount, limit, other))
            {
                found += 1.0;
            } else if let Some(&(unit, other, _)) = same.next() {
                excluded += 1.0;
                let mut conflict = self.conflict(word.term.bytes, ConflictKind::Number, unit, other);
                let unit_after = self.claim.get(at + 1).filter(|next| next.term.word.is_unit);
                conflict.bytes.end = unit_after.map_or(conflict.bytes.end, |next| next.term.bytes.end);
                let mut after =
                    self.candidates.words(self.units[unit]).iter().skip_while(|word| *word != other);
                let unit_after = after.nth(1).filter(|next| next.is_unit);
                let source = unit_after.map(|next| self.place(unit, next).1.end);
                conflict.source.end = source.unwrap_or(conflict.source.end);
                conflicts.push(conflict);
            } else {
                missing += 1.0;
            }
        }
        ([found, excluded, missing], has_other)
    }

    /// Returns the number of the unit that has all other words of the part, if it differs from the part's number, which stands only in
    /// units about something else: "The bridge opened in 1931. The tunnel opened in 1978."
    fn own_number(&self, at: usize, amount: &Amount) -> Option<(usize, &Term)> {
        const WORDS_MIN: usize = 2;
        let content: Vec<&AnswerTerm> = self
            .claim
            .iter()
            .map(|word| word.term)
            .filter(|term| term.is_content && term.word.amount.is_none())
            .collect();
        let has_all = |unit: usize| {
            content.iter().all(|term| term.is_in(|id| self.candidates.unit_has(self.units[unit], id)))
        };
        let number = self.claim[at].term;
        let has_number = |unit: usize| number.is_in(|id| self.candidates.unit_has(self.units[unit], id));
        let whole: Vec<usize> = (0..self.units.len()).filter(|&unit| has_all(unit)).collect();
        if content.len() < WORDS_MIN || whole.iter().any(|&unit| has_number(unit)) {
            return None;
        }
        let mut numbers = self.words().filter(|(unit, word)| {
            let is_other = |other: &Amount| amount.is_comparable_with(other) && !amount.agrees_with(other);
            whole.contains(unit) && word.amount.as_ref().is_some_and(is_other)
        });
        numbers.next()
    }

    /// How many denials of the part the units have, and do not have.
    fn denials(&self, conflicts: &mut Vec<Conflict>) -> [f32; 2] {
        let denied_by = |word: &Aligned| {
            let (unit, at) = word.to?;
            let words = self.candidates.words(self.units[unit]);
            let denies = |denial: &usize| is_denial(&words[*denial]) && words[*denial].reaches(*denial, at);
            words_near(at, NEGATION_SCOPE_WORDS, words.len()).find(denies).map(|denial| (unit, denial, at))
        };
        let is_said = |word: &Aligned| word.term.is_content && word.similarity >= DENIED_SIMILARITY_MIN;
        let [mut found, mut missing] = [0.0; 2];
        for at in (0..self.claim.len()).filter(|&at| is_denial(&self.claim[at].term.word)) {
            let near = words_near(at, DENIAL_REACH_WORDS, self.claim.len());
            let is_said_otherwise = || {
                let claim = self.claim.iter().map(|word| &word.term.word);
                (0..self.units.len())
                    .any(|unit| denies_otherwise(claim.clone(), self.candidates.words(self.units[unit])))
            };
            let is_denied = |word: &Aligned| word.term.is_content && denied_by(word).is_some();
            if self.claim[near.clone()].iter().any(is_denied) || is_said_otherwise() {
                found += 1.0;
                continue;
            }
            missing += 1.0;
            // What is denied mostly follows the denial.
            let said = (at..near.end).chain((near.start..at).rev()).find(|&word| is_said(&self.claim[word]));
            conflicts.extend(said.and_then(|word| {
                let (unit, place) = self.claim[word].to?;
                let bytes = self.claim[at].term.bytes.joined(self.claim[word].term.bytes);
                let place = &self.candidates.words(self.units[unit])[place];
                Some(self.conflict(bytes, ConflictKind::Negation, unit, place))
            }));
        }
        let extra = self.claim.iter().enumerate().find_map(|(at, word)| {
            let near = &self.claim[words_near(at, DENIAL_REACH_WORDS, self.claim.len())];
            let denies = near.iter().any(|word| is_denial(&word.term.word));
            let denied = (is_said(word) && !denies).then(|| denied_by(word)).flatten();
            // "Not open" in the sources is what "closed" in the part says.
            let denied = denied.filter(|(unit, ..)| {
                let words = self.candidates.words(self.units[*unit]);
                !denies_otherwise(words, self.claim.iter().map(|word| &word.term.word))
            });
            denied.map(|place| (word.term.bytes, place))
        });
        conflicts.extend(extra.map(|(bytes, (unit, denial, at))| {
            let words = self.candidates.words(self.units[unit]);
            let mut conflict = self.conflict(bytes, ConflictKind::Negation, unit, &words[denial]);
            conflict.source = conflict.source.joined(self.place(unit, &words[at]).1);
            conflict
        }));
        [found, missing]
    }

    /// Whether the units have a word such as `although`, and the part has none.
    fn is_contrastive(&self) -> bool {
        let is_in_units = self.words().any(|(_, word)| word.is_contrastive());
        let is_in_part = self.claim.iter().any(|word| word.term.word.is_contrastive());
        is_in_units && !is_in_part
    }

    /// Whether the units exclude a word of the part by a [contrast](text::contrasts); and whether they have one that
    /// is no opposite.
    fn contrasts(&self, conflicts: &mut Vec<Conflict>) -> [f32; 2] {
        // `[class]`: the groups in the part, and those in the units, each with the first word.
        let mut part: BTreeMap<usize, BTreeMap<usize, (ByteRange, bool)>> = BTreeMap::new();
        // "Not open" does not exclude "closed".
        for (at, word) in self.claim.iter().enumerate() {
            let before = &self.claim[at.saturating_sub(NEGATION_SCOPE_WORDS)..at];
            let is_denied = before.iter().any(|word| word.term.word.is_negation());
            for Contrast { class, group, is_opposite } in word.term.contrasts {
                if is_denied && *is_opposite {
                    continue;
                }
                part.entry(*class).or_default().entry(*group).or_insert((word.term.bytes, *is_opposite));
            }
        }
        let mut units: BTreeMap<usize, BTreeMap<usize, (usize, &Term)>> = BTreeMap::new();
        for unit in 0..self.units.len() {
            let words = self.candidates.words(self.units[unit]);
            for (at, word) in words.iter().enumerate() {
                let is_denied =
                    words[at.saturating_sub(NEGATION_SCOPE_WORDS)..at].iter().any(Term::is_negation);
                for Contrast { class, group, is_opposite } in text::contrasts(word, self.text_of(unit, word))
                {
                    if is_denied && *is_opposite {
                        continue;
                    }
                    units.entry(*class).or_default().entry(*group).or_insert((unit, word));
                }
            }
        }
        let (mut excluded, mut found) = (0.0, 0.0);
        for (class, groups) in part {
            let Some(others) = units.get(&class) else { continue };
            let absent = groups.iter().find(|(group, _)| !others.contains_key(group));
            let other = others.iter().find(|(group, _)| !groups.contains_key(group));
            match (absent, other) {
                (None, _) if groups.values().all(|(_, is_opposite)| !is_opposite) => found = 1.0,
                (None, _) => {}
                (Some((_, (bytes, _))), Some((_, &word))) => {
                    excluded = 1.0;
                    conflicts.push(self.conflict(*bytes, ConflictKind::Contrast, word.0, word.1));
                }
                (Some(_), None) => {}
            }
        }
        [excluded, found]
    }

    /// Returns the place of a word of the part that the units do not have, if a unit has another word that the part does not have
    /// between the same neighbours.
    fn replaced_word(&self) -> Option<ByteRange> {
        // `[unit]`: the ids of its words.
        let ids: Vec<Vec<Option<u32>>> = self
            .units
            .iter()
            .map(|&unit| {
                self.candidates.words(unit).iter().map(|word| self.candidates.term(&word.folded)).collect()
            })
            .collect();
        let replaced = |(at, word): (usize, &Aligned)| {
            if !word.term.is_content || self.units_have(word.term) {
                return None;
            }
            let neighbour = |place: Option<usize>| {
                let term = place.and_then(|place| self.claim.get(place)).map(|word| word.term);
                (term.is_some(), term.and_then(|term| term.id))
            };
            let (before, after) = (neighbour(at.checked_sub(1)), neighbour(Some(at + 1)));
            let is_there = |(&unit, ids): (&usize, &Vec<Option<u32>>)| {
                let words = self.candidates.words(unit);
                let is_new = |place: usize| {
                    !words[place].is_function_word()
                        && !self.claim.iter().any(|word| word.term.id == ids[place])
                };
                (0..words.len()).any(|place| {
                    let before_place = place.checked_sub(1).map(|place| ids[place]);
                    let is_before = match before {
                        (true, id) => id.is_some() && before_place == Some(id),
                        (false, _) => before_place.is_none(),
                    };
                    let after_place = ids.get(place + 1).copied();
                    let is_after = match after {
                        (true, id) => id.is_some() && after_place == Some(id),
                        (false, _) => after_place.is_none(),
                    };
                    is_before && is_after && is_new(place)
                })
            };
            self.units.iter().zip(&ids).any(is_there).then_some(word.term.bytes)
        };
        self.claim.iter().enumerate().find_map(replaced)
    }

    /// Finds words of the part that the units have only with a prefix that denies them, or without one that they have in the
    /// part. Nothing is found if either side has another denial, which may take the prefix's place.
    fn denied_forms(&self, conflicts: &mut Vec<Conflict>) -> bool {
        let is_denied = self.words().any(|(_, word)| is_denial(word))
            || self.claim.iter().any(|word| is_denial(&word.term.word));
        let absent = self.claim.iter().filter(|word| word.term.is_content && !self.units_have(word.term));
        let forms = absent.filter_map(|word| {
            let mut words = self.words();
            let place =
                words.find(|(_, other)| text::is_denied_form(&word.term.word.folded, &other.folded))?;
            Some(self.conflict(word.term.bytes, ConflictKind::Negation, place.0, place.1))
        });
        let forms: Vec<Conflict> = forms.filter(|_| !is_denied).collect();
        conflicts.extend(&forms);
        !forms.is_empty()
    }

    /// How many words of the part the units do not have, but have in other words.
    fn paraphrased(&self) -> f32 {
        let is_paraphrased = |word: &&Aligned| {
            word.term.is_content && word.similarity >= SIMILAR_MIN && !self.units_have(word.term)
        };
        self.claim.iter().filter(is_paraphrased).count() as f32
    }

    /// The share of the pairs of neighbouring words of the part that are neighbours in a unit, too. Pairs with a word
    /// in `without` are left out.
    fn copied(&self, without: Option<ByteRange>) -> f32 {
        let ids = |unit: usize| {
            self.candidates.words(self.units[unit]).iter().map(|word| self.candidates.term(&word.folded))
        };
        let pairs = |unit: usize| ids(unit).zip(ids(unit).skip(1));
        let known: HashSet<_> = (0..self.units.len()).flat_map(pairs).collect();
        let is_left_out = |word: &Aligned| without.is_some_and(|without| word.term.bytes.overlaps(without));
        let pairs = self.claim.windows(2).filter(|pair| !pair.iter().any(is_left_out));
        let pairs: Vec<_> = pairs.map(|pair| (pair[0].term.id, pair[1].term.id)).collect();
        let found = pairs
            .iter()
            .filter(|(one, other)| one.is_some() && other.is_some() && known.contains(&(*one, *other)));
        found.count() as f32 / pairs.len().max(1) as f32
    }

    /// The share of the pairs of content words of the part, without one between, that are near each other in a unit.
    /// Numbers that no unit has are left out: they do not show that a text was not copied.
    fn gathered(&self) -> f32 {
        let places = |word: &Aligned| -> Vec<(usize, usize)> {
            let amount = word.term.word.amount;
            let is_it = |(_, other): &(usize, &Term)| {
                let agrees = amount.zip(other.amount).is_some_and(|(one, other)| one.agrees_with(&other));
                agrees || word.term.id.is_some() && self.candidates.term(&other.folded) == word.term.id
            };
            let in_unit = |unit: usize| {
                let words = self.candidates.words(self.units[unit]).iter().enumerate();
                words.filter(is_it).map(move |(at, _)| (unit, at)).collect::<Vec<_>>()
            };
            (0..self.units.len()).flat_map(in_unit).collect()
        };
        let is_near = |one: &[(usize, usize)], other: &[(usize, usize)]| {
            one.iter().any(|a| {
                // Both are in ascending order.
                let first = (a.0, a.1.saturating_sub(NEAR_WORDS));
                let at = other.partition_point(|b| *b < first);
                other.get(at).is_some_and(|b| b.0 == a.0 && b.1 <= a.1 + NEAR_WORDS)
            })
        };
        let (mut pairs, mut near) = (0_usize, 0_usize);
        let mut before: Option<Vec<(usize, usize)>> = None;
        for word in self.claim.iter().filter(|word| word.term.is_content) {
            let places = places(word);
            if word.term.is_number && places.is_empty() {
                continue;
            }
            if let Some(before) = &before {
                pairs += 1;
                near += usize::from(is_near(before, &places));
            }
            before = Some(places);
        }
        near as f32 / pairs.max(1) as f32
    }

    /// The content words of the longest row of them for which there is no evidence, as a range of indices.
    fn longest_gap(&self, content: &[&Aligned]) -> Range<usize> {
        let (mut longest, mut start) = (0..0, 0);
        for (at, word) in content.iter().enumerate() {
            if word.evidence >= GAP_EVIDENCE_MAX {
                start = at + 1;
            } else if at + 1 - start > longest.len() {
                longest = start..at + 1;
            }
        }
        longest
    }

    /// The mean evidence of the part's content words that nothing excludes.
    fn evidence_beside(&self, conflicts: &[Conflict]) -> f32 {
        let is_excluded = |word: &Aligned| {
            conflicts.iter().any(|c| {
                c.bytes.start <= word.term.bytes.start
                    && word.term.bytes.end <= c.bytes.end
                    && c.kind != ConflictKind::Negation
            })
        };
        let rest: Vec<f32> = self
            .claim
            .iter()
            .filter(|word| word.term.is_content && !is_excluded(word))
            .map(|word| word.evidence)
            .collect();
        mean(&rest)
    }

    /// Returns whether the word that excludes a word of the part stands in its place.
    fn is_in_place(&self, conflict: &Conflict) -> bool {
        let is_replacement =
            matches!(conflict.kind, ConflictKind::Number | ConflictKind::Contrast | ConflictKind::Name);
        let Some(at) =
            self.claim.iter().position(|word| word.term.bytes == conflict.bytes).filter(|_| is_replacement)
        else {
            return false;
        };
        let content = |word: &&Aligned| word.term.is_content && word.term.id.is_some();
        let before = self.claim[at.saturating_sub(NEAR_WORDS)..at].iter().rev().find(content);
        let after = self.claim[at + 1..].iter().take(NEAR_WORDS).find(content);
        let beside: Vec<Option<u32>> = before.into_iter().chain(after).map(|word| word.term.id).collect();
        (0..self.units.len()).any(|unit| {
            let words = self.candidates.words(self.units[unit]);
            let place =
                words.iter().position(|word| self.place(unit, word) == (conflict.chunk, conflict.source));
            place.is_some_and(|place| {
                let near = place.saturating_sub(NEAR_WORDS)..words.len().min(place + NEAR_WORDS + 1);
                words[near].iter().any(|word| beside.contains(&self.candidates.term(&word.folded)))
            })
        })
    }

    /// Finds names of the part that no unit has where a unit has another name, beside the same word.
    fn names(&self, conflicts: &mut Vec<Conflict>) {
        let is_in =
            |term: &AnswerTerm| self.units.iter().any(|&unit| self.candidates.unit_has(unit, term.id));
        for (at, word) in self.claim.iter().enumerate() {
            if !word.term.is_name || word.term.is_number || is_in(word.term) {
                continue;
            }
            let beside = |neighbour: usize, step: isize| {
                let neighbour = &self.claim.get(neighbour)?.term;
                let id = neighbour.id.filter(|_| neighbour.is_name)?;
                (0..self.units.len()).find_map(|unit| {
                    let words = self.candidates.words(self.units[unit]);
                    let place =
                        words.iter().position(|word| self.candidates.term(&word.folded) == Some(id))?;
                    let other = words.get(place.checked_add_signed(step)?)?;
                    let begins_alike = |one: &str, other: &str| one.chars().take(4).eq(other.chars().take(4));
                    let is_other = self.text_of(unit, other).starts_with(char::is_uppercase)
                        && !begins_alike(&word.term.word.folded, &other.folded)
                        && !self.claim.iter().any(|word| word.term.id == self.candidates.term(&other.folded));
                    is_other.then_some((unit, other))
                })
            };
            let other = beside(at + 1, -1).or_else(|| beside(at.checked_sub(1)?, 1));
            conflicts.extend(
                other.map(|place| self.conflict(word.term.bytes, ConflictKind::Name, place.0, place.1)),
            );
        }
    }

    /// Finds two names that the part has before and after a word, and that one unit has in the opposite order
    /// around the same word. A name after `by` does what the name before it suffers.
    fn roles(&self, conflicts: &mut Vec<Conflict>) {
        for (unit, &index) in self.units.iter().enumerate() {
            let words = self.candidates.words(index);
            let place = |term: &AnswerTerm| {
                let mut places = (0..words.len())
                    .filter(|&at| term.id.is_some() && self.candidates.term(&words[at].folded) == term.id);
                places.next().filter(|_| places.next().is_none())
            };
            let is_name = |word: &Aligned| {
                word.term.bytes.len() > 1 && word.term.is_capitalized && word.term.is_content
            };
            let names: Vec<(usize, usize)> = (0..self.claim.len())
                .filter(|&at| is_name(&self.claim[at]))
                .filter_map(|at| Some((at, place(self.claim[at].term)?)))
                .collect();
            // The first word with meaning after a name.
            let verbs = (1..self.claim.len()).filter(|&at| {
                let term = self.claim[at].term;
                let before = self.claim[..at].iter().rev().find(|word| word.term.is_content);
                let is_verb =
                    term.is_content && !term.is_number && !term.is_capitalized && !term.word.is_mutual();
                is_verb && before.is_some_and(is_name)
            });
            for (verb, verb_place) in verbs.filter_map(|at| Some((at, place(self.claim[at].term)?))) {
                let before = names.iter().rev().find(|(at, _)| *at < verb);
                let after = names.iter().find(|(at, _)| *at > verb);
                let (Some(&(first, first_place)), Some(&(second, second_place))) = (before, after) else {
                    continue;
                };
                if !(second_place < verb_place && verb_place < first_place) {
                    continue;
                }
                let has_by =
                    |mut words: std::slice::Iter<Aligned>| words.any(|word| word.term.word.folded == "by");
                let is_passive = has_by(self.claim[verb..second].iter());
                let was_passive = words[verb_place..first_place].iter().any(|word| word.folded == "by");
                if is_passive == was_passive {
                    let bytes =
                        ByteRange::new(self.claim[first].term.bytes.start, self.claim[second].term.bytes.end);
                    conflicts.push(self.conflict(bytes, ConflictKind::Roles, unit, &words[verb_place]));
                    return;
                }
            }
        }
    }
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

/// Returns the mean of some values; 0 if there are none.
fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len().max(1) as f32
}

/// Returns whether a word denies a statement. A word with an opposite in it denies nothing by itself.
fn is_denial(word: &Term) -> bool {
    word.negation().is_some_and(|negation| negation <= Negation::Denial)
}
