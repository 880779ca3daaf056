//! Source conflicts: sentences of two chunks that say the same of the same thing with another number, date or version, or of which one denies what
//! the other says.
//!
//! Most sentences that look alike speak of two things: two tiers, two years, two rows. So the finder reports a pair only if
//!
//! 1. the sentences have the same content words in the same order, where a clause may have moved from the end to the beginning
//!    ([`Statement::matches`]),
//! 2. exactly one value differs, and the two values cannot both be true, or exactly one sentence has a negation ([`difference`]), and
//! 3. titles, headings and introductions name no two things ([`Scope::is_of_same`]).
//!
//! Two statements that use different words are never compared. Knows texts only, and works without a model.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::PipelineError;
use super::cancel::Cancel;
use super::units::Unit;
use crate::domain::{ByteRange, Chunk, Kind};
use crate::text::lexicon::{self, Class};
use crate::text::outline::{Layout, Piece};
use crate::text::{self, Amount, Limit, Measure, Term, Writing};

/// The most conflicts that one request reports.
pub const CONFLICTS_MAX: usize = 20;

/// The most pairs of sentences that are compared for one request, and the most sentences with one word that each is compared with.
const PAIRS_MAX: usize = 20_000;
const POSTINGS_MAX: usize = 16;

/// The least share of the longer words of two sentences that they have in common before they are read closely.
const SHARED_MIN: f64 = 0.6;

/// The letters of a word by which sentences are indexed. Shorter words than the least are in most sentences.
const INDEXED_LETTERS: usize = 5;
const INDEXED_LETTERS_MIN: usize = 4;

/// The fewest and the most words of a statement. A shorter one says of nothing what it is; a longer one is a list.
const WORDS_MIN: usize = 2;
const WORDS_MAX: usize = 40;

/// The fewest words of a statement that says by itself what it is about, so that the titles of its sources need not be alike.
const WORDS_ALONE_MIN: usize = 4;

/// The most bytes by which a form of a word is longer than another, as `parking` and `park`.
const ENDING_BYTES_MAX: usize = 3;

/// The largest relative difference of two values in different units that one text may have rounded, as 5 kg and 11 lb.
const ROUNDING: f64 = 0.03;

/// Two units of different chunks that disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceConflict {
    pub units: [Unit; 2],
    /// Their indices, in ascending order.
    pub indices: [usize; 2],
    pub kind: DifferenceKind,
    /// Which of the two is newer, 0 or 1; `None` if nothing says so.
    pub newer: Option<usize>,
}

/// In what two sentences differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// A number, with or without a unit.
    Number,
    /// A date, a year or a time of day.
    Date,
    /// A version.
    Version,
    /// One sentence denies what the other says.
    Negation,
}

/// Returns the conflicts between `units` of different chunks. `layout_of` returns the layout of the text of a chunk.
///
/// # Errors
/// Returns the error of `cancel` if it stops the work.
pub fn find(
    chunks: &[Arc<Chunk>],
    units: &[Unit],
    layout_of: &dyn Fn(usize) -> Arc<Layout>,
    cancel: &Cancel,
) -> Result<Vec<SourceConflict>, PipelineError> {
    let mut writings: HashMap<usize, Option<Writing>> = HashMap::new();
    let mut statements: HashMap<usize, Option<(Statement, Scope)>> = HashMap::new();
    let (mut found, mut unnamed) = (Vec::new(), Vec::new());
    for indices in likely_pairs(chunks, units, cancel)? {
        cancel.check()?;
        for unit in indices {
            if let Entry::Vacant(entry) = statements.entry(unit) {
                let Unit { chunk, bytes, .. } = units[unit];
                let writing = *writings.entry(chunk).or_insert_with(|| writing_of(&chunks[chunk]));
                entry.insert(read(&chunks[chunk], bytes, &layout_of(chunk), writing));
            }
        }
        let [Some((a, scope_a)), Some((b, scope_b))] = indices.map(|unit| &statements[&unit]) else { continue };
        let Some(kind) = difference(a, b).filter(|_| scope_a.is_of_same(scope_b, a)) else { continue };
        let newer = scope_a.newer(scope_b);
        let conflict = SourceConflict { units: indices.map(|unit| units[unit]), indices, kind, newer };
        if scope_a.words.is_empty() || !scope_a.is_named_as(scope_b, a) {
            unnamed.push(conflict);
        } else {
            found.push(conflict);
        }
    }
    found.extend(without_series(chunks, unnamed));
    found.sort_by_key(|conflict| conflict.indices);
    Ok(found)
}

/// Removes the conflicts between chunks of a series. Where no common title says that two chunks speak of the same thing, and a sentence has a
/// third value in a third chunk, the chunks speak of several things, such as the loans of a company.
fn without_series(chunks: &[Arc<Chunk>], mut conflicts: Vec<SourceConflict>) -> Vec<SourceConflict> {
    let text_of = |unit: &Unit| unit.bytes.slice(&chunks[unit.chunk].text);
    let mut others: HashMap<&str, HashSet<&str>> = HashMap::new();
    for SourceConflict { units: [a, b], .. } in &conflicts {
        others.entry(text_of(a)).or_default().insert(text_of(b));
        others.entry(text_of(b)).or_default().insert(text_of(a));
    }
    let in_series = conflicts.iter().flat_map(|conflict| &conflict.units);
    let in_series: HashSet<usize> =
        in_series.filter(|unit| others[text_of(unit)].len() > 1).map(|unit| unit.chunk).collect();
    conflicts.retain(|conflict| !conflict.units.iter().all(|unit| in_series.contains(&unit.chunk)));
    conflicts
}

fn writing_of(chunk: &Chunk) -> Option<Writing> {
    text::sentence_lang(&chunk.text).and_then(|found| Writing::in_lang(found.lang))
}

/// Returns the pairs of units of different chunks that share most of their longer words, without equal ones. Two units with a share of
/// [`SHARED_MIN`] have one of the rarest words of each in common, so only these words are indexed.
fn likely_pairs(
    chunks: &[Arc<Chunk>],
    units: &[Unit],
    cancel: &Cancel,
) -> Result<Vec<[usize; 2]>, PipelineError> {
    let text_of = |unit: usize| units[unit].bytes.slice(&chunks[units[unit].chunk].text);
    let mut frequency: HashMap<u64, usize> = HashMap::new();
    let mut words_of = Vec::with_capacity(units.len());
    for unit in 0..units.len() {
        if unit % 1024 == 0 {
            cancel.check()?;
        }
        let words = indexed_words(text_of(unit));
        words.iter().for_each(|&word| *frequency.entry(word).or_default() += 1);
        words_of.push(words);
    }
    let mut postings: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut pairs = Vec::new();
    for unit in 0..units.len() {
        if unit % 1024 == 0 {
            cancel.check()?;
        }
        let words = &words_of[unit];
        let mut rarest = words.clone();
        rarest.sort_by_key(|word| (frequency[word], *word));
        rarest.truncate(words.len() + 1 - (SHARED_MIN * words.len() as f64).ceil() as usize);
        let mut others: Vec<usize> = Vec::new();
        for word in rarest {
            let known = postings.entry(word).or_default();
            others.extend(known.iter().rev().take(POSTINGS_MAX));
            known.push(unit);
        }
        others.sort_unstable();
        others.dedup();
        for other in others {
            let is_likely = units[other].chunk != units[unit].chunk
                && share_of_words(&words_of[other], words) >= SHARED_MIN
                && text_of(other) != text_of(unit);
            if is_likely {
                pairs.push([other, unit]);
            }
            if pairs.len() == PAIRS_MAX {
                return Ok(pairs);
            }
        }
    }
    Ok(pairs)
}

/// Returns hashes of the beginnings of the longer words of a sentence, ascending and distinct; none for a sentence that is no statement.
fn indexed_words(sentence: &str) -> Vec<u64> {
    let mut words = Vec::new();
    for word in sentence.split(|c: char| !c.is_alphabetic()) {
        if word.chars().count() >= INDEXED_LETTERS_MIN {
            let mut hasher = DefaultHasher::new();
            word.chars().take(INDEXED_LETTERS).flat_map(char::to_lowercase).for_each(|c| c.hash(&mut hasher));
            words.push(hasher.finish());
        }
    }
    words.sort_unstable();
    words.dedup();
    if words.len() > WORDS_MAX { Vec::new() } else { words }
}

/// Returns the share of the words of either list that both have. The lists are ascending.
fn share_of_words(one: &[u64], other: &[u64]) -> f64 {
    let shared = one.iter().filter(|word| other.binary_search(word).is_ok()).count();
    shared as f64 / (one.len() + other.len() - shared).max(1) as f64
}

/// Reads a unit of a chunk, and what it speaks of. Returns `None` for what is no statement of a text.
fn read(chunk: &Chunk, bytes: ByteRange, layout: &Layout, writing: Option<Writing>) -> Option<(Statement, Scope)> {
    let at = layout.pieces.partition_point(|piece| piece.bytes.start <= bytes.start);
    let piece = at.checked_sub(1).map(|at| &layout.pieces[at]);
    let is_text = matches!(layout.kind, Kind::Prose | Kind::Markdown | Kind::Html | Kind::Pdf);
    if !is_text || piece.is_some_and(|piece| piece.is_row || piece.is_frame || piece.is_heading) {
        return None;
    }
    let statement = Statement::read(bytes.slice(&chunk.text), writing)?;
    Some((statement, Scope::read(chunk, layout, piece)))
}

/// A sentence, as it is compared with others.
struct Statement {
    /// The words with meaning, in their order; `None` is the place of a value.
    words: Vec<Option<String>>,
    values: Vec<Value>,
    is_negated: bool,
}

/// A number, a date or a version in a sentence.
#[derive(Debug, Clone, PartialEq)]
struct Value {
    amount: Amount,
    /// The unit as it is written.
    unit: Option<String>,
    limit: Option<Limit>,
    /// Whether the value is one end of what the sentence speaks of, as in `up to 30 days`.
    is_bound: bool,
    /// Whether the value says what the sentence is about, or is one of a list, so that another value does not exclude it.
    is_subject: bool,
}

impl Statement {
    /// Reads a sentence. Returns `None` for a question, a sentence about the one before it, and one with too few or too many words, or with more
    /// than a plain negation.
    fn read(sentence: &str, writing: Option<Writing>) -> Option<Self> {
        let terms = text::terms_in(sentence, &[], writing);
        let first = &terms.first()?.folded;
        // The number of a page, or a row.
        let has_number_alone = sentence.lines().any(|line| {
            line.contains(char::is_numeric) && !line.contains(char::is_alphabetic)
        });
        let is_about_another =
            [Class::Pronoun, Class::Owner, Class::Refers].iter().any(|&class| lexicon::has(class, first));
        if sentence.trim_end().ends_with(['?', '？']) || is_about_another || has_number_alone {
            return None;
        }
        let (mut words, mut values, mut negations) = (Vec::new(), Vec::new(), 0);
        let mut at = 0;
        while let Some(term) = terms.get(at) {
            let mut read = 1;
            if term.is_negation() {
                negations += 1;
                let next = terms.get(at + 1);
                // "Not only", "no later than".
                if next.is_some_and(|next| next.limits().is_some() || lexicon::has(Class::Exception, &next.folded)) {
                    return None;
                }
            } else if let Some((value, count)) = Value::read(sentence, &terms, at, words.len()) {
                read = count;
                words.push(None);
                values.push(value);
            } else if is_compared(term) {
                words.push(Some(term.folded.clone()));
            }
            at += read;
        }
        let count = words.iter().flatten().count();
        let is_plain = (WORDS_MIN..=WORDS_MAX).contains(&count) && negations <= 1;
        is_plain.then_some(Self { words, values, is_negated: negations == 1 })
    }

    /// Returns the number of words by which the words of the other statement are rotated against those of this one; `None` if they differ.
    fn rotation(&self, other: &Self) -> Option<usize> {
        let (len, same) = (self.words.len(), self.words.len() == other.words.len());
        let matches = |by: &usize| {
            (0..len).all(|at| match (&self.words[at], &other.words[(at + by) % len]) {
                (Some(one), Some(other)) => is_form_of(one, other),
                (None, None) => true,
                _ => false,
            })
        };
        if same { (0..len).find(matches) } else { None }
    }

    /// Returns the values in the order in which they stand if the words are rotated.
    fn values_rotated(&self, by: usize) -> impl Iterator<Item = &Value> {
        let before = self.words[..by].iter().filter(|word| word.is_none()).count();
        self.values[before..].iter().chain(&self.values[..before])
    }
}

/// Returns whether two statements must agree on a word: all but articles, auxiliary verbs and the like.
fn is_compared(term: &Term) -> bool {
    let is_kept = || [Class::Exception, Class::Denies].iter().any(|&class| lexicon::has(class, &term.folded));
    !term.is_unit && (term.is_content() || is_kept())
}

fn is_form_of(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let is_word = short.len() >= ENDING_BYTES_MAX && !short.contains(char::is_numeric);
    one == other || is_word && long.len() - short.len() <= ENDING_BYTES_MAX && long.starts_with(short)
}

impl Value {
    /// Reads the value or the range that begins at a term, and returns it with the number of its terms. `words_before` is the number of words
    /// before it.
    fn read(sentence: &str, terms: &[Term], at: usize, words_before: usize) -> Option<(Self, usize)> {
        let is_typed = |amount: &Amount| amount.measure != Measure::Ordinal;
        let mut amount = terms[at].amount.filter(is_typed)?;
        let mut count = 1;
        // "3 to 5 days", "3-5 days".
        let is_joined = terms.get(at + 1).is_some_and(Term::is_function_word);
        let end = if is_joined { at + 2 } else { at + 1 };
        let is_near = |end: &Term| is_joined || sentence[terms[at].bytes.end..end.bytes.start].trim().chars().count() == 1;
        if let Some((last, to)) = terms.get(end).filter(|end| is_near(end)).and_then(|term| Some((term, term.amount?))) {
            let factor = last.folded.parse().map_or(1.0, |value: f64| to.low / value);
            let low = if amount.measure == Measure::Count { amount.low * factor } else { amount.low };
            let is_range = amount.measure == to.measure || amount.measure == Measure::Count;
            if is_range && amount.measure != Measure::Clock && low < to.high {
                amount = Amount { low, ..to };
                count = end + 1 - at;
            }
        }
        let before = &terms[at.saturating_sub(3)..at];
        let is_named = at.checked_sub(1).is_some_and(|before| {
            let name = terms[before].bytes.slice(sentence);
            name.starts_with(char::is_uppercase) && terms[before].is_content()
        });
        let is_time = !matches!(amount.measure, Measure::Unit(_) | Measure::Count);
        let value = Self {
            amount,
            unit: terms.get(at + count).filter(|term| term.is_unit).map(|unit| unit.folded.clone()),
            limit: before.iter().rev().find_map(Term::limits),
            is_bound: before.iter().any(|term| lexicon::has(Class::Bound, &term.folded)),
            // "In 2023, ...", "Step 3 ...", "2.1 and 2.2".
            is_subject: is_time && (words_before == 0 || count > 1) || amount.measure == Measure::Count && is_named,
        };
        Some((value, count))
    }

    /// Returns whether two values say the same.
    fn equals(&self, other: &Self) -> bool {
        let (one, two) = (self.amount, other.amount);
        one.covers(&two) && two.covers(&one) && self.limit == other.limit && self.is_bound == other.is_bound
    }

    /// Returns in what two values differ if they answer the same question and cannot both be true.
    fn difference(&self, other: &Self) -> Option<DifferenceKind> {
        let (one, two) = in_one_unit(self.amount, other.amount);
        let is_alike = one.measure == two.measure
            && (self.limit, self.is_bound) == (other.limit, other.is_bound)
            && !self.is_subject
            && !other.is_subject
            && one.excludes(&two);
        let is_rounded = self.unit != other.unit && (one.low - two.low).abs() <= ROUNDING * one.low.abs();
        // A meeting on a day of another year is another meeting.
        let is_other_year = one.measure == Measure::Date && (one.low / 1e4).floor() != (two.low / 1e4).floor();
        (is_alike && !is_rounded && !is_other_year).then_some(match one.measure {
            Measure::Version => DifferenceKind::Version,
            Measure::Unit(_) | Measure::Count | Measure::Ordinal => DifferenceKind::Number,
            Measure::Year | Measure::Date | Measure::DayOfYear | Measure::Weekday | Measure::Clock => DifferenceKind::Date,
        })
    }
}

/// Returns two amounts; if one is in months and the other in days, both as ranges of seconds.
fn in_one_unit(one: Amount, two: Amount) -> (Amount, Amount) {
    const DAY: f64 = 86_400.0;
    let as_seconds = |amount: Amount, other: Amount| {
        let is_month = (amount.measure, other.measure) == (Measure::Unit("month"), Measure::Unit("s"));
        let seconds = Amount { low: amount.low * 28.0 * DAY, high: amount.high * 31.0 * DAY, ..other };
        if is_month { seconds } else { amount }
    };
    (as_seconds(one, two), as_seconds(two, one))
}

/// Returns in what two statements with the same words differ; `None` if they have different words, agree, or differ in several ways.
fn difference(a: &Statement, b: &Statement) -> Option<DifferenceKind> {
    let by = a.rotation(b)?;
    let mut differing = a.values.iter().zip(b.values_rotated(by)).filter(|(one, other)| !one.equals(other));
    match (differing.next(), differing.next()) {
        (None, _) if a.is_negated != b.is_negated => Some(DifferenceKind::Negation),
        (Some((one, other)), None) if a.is_negated == b.is_negated => one.difference(other),
        _ => None,
    }
}

/// What a sentence speaks of, besides its own words: the title of its chunk, its headings, and what introduces it.
#[derive(Default)]
struct Scope {
    words: Vec<String>,
    /// Whether the title is the name of what the text is about.
    is_name: bool,
    /// The years, dates and versions in it.
    times: Vec<Amount>,
    /// Whether it names a text of which there are editions, such as a policy.
    has_editions: bool,
    /// Whether it says that the text does not hold any more, or not yet.
    is_withdrawn: bool,
    /// The date of the chunk's metadata.
    date: Option<Amount>,
}

impl Scope {
    fn read(chunk: &Chunk, layout: &Layout, piece: Option<&Piece>) -> Self {
        let mut scope = Self { date: chunk.metadata.as_deref().and_then(date_of_metadata), ..Self::default() };
        let title = chunk.title.as_deref().unwrap_or_default();
        scope.is_name = text::terms(title, &[]).iter().any(|term| is_name_in(&chunk.text, term.bytes.slice(title)));
        scope.add(title);
        let mut above: Vec<usize> = piece.map_or(Vec::new(), |piece| piece.requires.clone());
        let mut next = 0;
        while let Some(&at) = above.get(next) {
            scope.add(layout.pieces[at].bytes.slice(&chunk.text));
            let further = layout.pieces[at].requires.iter().filter(|at| !above.contains(at)).copied();
            let further: Vec<usize> = further.take(WORDS_MAX.saturating_sub(above.len())).collect();
            above.extend(further);
            next += 1;
        }
        scope
    }

    fn add(&mut self, text: &str) {
        for term in text::terms_in(text, &[], None) {
            let has = |class| lexicon::has(class, &term.folded);
            self.is_withdrawn |= has(Class::Banner);
            self.has_editions |= has(Class::Edition);
            match term.amount {
                Some(amount) if matches!(amount.measure, Measure::Year | Measure::Date | Measure::Version) => {
                    self.times.push(amount);
                }
                _ if term.is_content() && !(has(Class::Banner) || has(Class::Generic) || has(Class::Edition)) => {
                    self.words.push(term.folded);
                }
                _ => {}
            }
        }
    }

    /// Returns whether titles, headings and introductions have the same words, besides those of the statement.
    fn is_named_as(&self, other: &Self, statement: &Statement) -> bool {
        let said: Vec<&String> = statement.words.iter().flatten().collect();
        let lacks = |one: &Self, other: &Self| {
            let mut words = one.words.iter();
            words.any(|word| !other.has(word) && !said.iter().any(|said| is_form_of(said, word)))
        };
        !lacks(self, other) && !lacks(other, self)
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own| is_form_of(own, word))
    }

    /// Returns whether a statement in this scope and an alike one in the other speak of the same thing: the scopes have the same words, or no
    /// word in common, as a handbook and a list of questions. Where one word is another one, as in `Basic plan`, the things are two.
    fn is_of_same(&self, other: &Self, statement: &Statement) -> bool {
        let is_shared = self.words.iter().any(|word| other.has(word));
        let is_self_contained = statement.words.iter().flatten().count() >= WORDS_ALONE_MIN;
        let is_apart = !is_shared && is_self_contained && !self.is_name && !other.is_name;
        // The revenue of another year is another revenue, but the policy of another year takes the place of this one.
        let years = |scope: &Self| -> Vec<f64> {
            let of_time = |time: &Amount| (time.measure != Measure::Version).then_some(time.low);
            scope.times.iter().filter_map(of_time).collect()
        };
        let is_of_year = years(self) == years(other) || self.has_editions && other.has_editions;
        is_of_year && (is_apart || self.is_named_as(other, statement))
    }

    /// Returns which of two scopes is newer, 0 for this one and 1 for the other: the one that is not withdrawn, that has the later date in its
    /// metadata, or that names the later version or date.
    fn newer(&self, other: &Self) -> Option<usize> {
        if self.is_withdrawn != other.is_withdrawn {
            return Some(usize::from(self.is_withdrawn));
        }
        let later = |one: Option<Amount>, other: Option<Amount>| {
            let (one, other) = (one?, other?);
            let is_known = one.excludes(&other);
            is_known.then_some(usize::from(other.low > one.low))
        };
        let of = |scope: &Self, is_version: bool| {
            scope.times.iter().find(|time| (time.measure == Measure::Version) == is_version).copied()
        };
        later(self.date, other.date)
            .or_else(|| later(of(self, true), of(other, true)))
            .or_else(|| later(of(self, false), of(other, false)))
    }
}

/// Returns whether a text has a word of its title with a capital inside of a sentence, as it has names.
fn is_name_in(text: &str, word: &str) -> bool {
    let is_inside = |(at, _): (usize, &str)| {
        let before = text[..at].strip_suffix(' ').is_some_and(|before| before.ends_with(|c: char| c.is_alphanumeric() || c == ','));
        before && !text[at + word.len()..].starts_with(char::is_alphanumeric)
    };
    word.starts_with(char::is_uppercase) && text.match_indices(word).any(is_inside)
}

/// Returns the date in the field `date` of a chunk's metadata; `None` for what is no date.
fn date_of_metadata(metadata: &str) -> Option<Amount> {
    let metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
    let first = text::terms_in(metadata.get("date")?.as_str()?, &[], None).into_iter().next()?;
    first.amount.filter(|amount| matches!(amount.measure, Measure::Date | Measure::Year))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::domain::TokenSpan;
    use crate::pipeline::units::UnitSpan;

    /// A side of a row of the data: a chunk.
    #[derive(Deserialize)]
    struct Side {
        title: Option<String>,
        text: String,
        date: Option<String>,
    }

    #[derive(Deserialize)]
    struct Row {
        half: String,
        a: Side,
        b: Side,
        kind: Option<String>,
        newer: Option<String>,
    }

    fn conflicts(sides: [&Side; 2]) -> Vec<SourceConflict> {
        let (mut chunks, mut units) = (Vec::new(), Vec::new());
        for (index, side) in sides.into_iter().enumerate() {
            let metadata = side.date.as_ref().map(|date| serde_json::json!({"date": date}).to_string());
            let chunk = Chunk { title: side.title.clone(), metadata, ..Chunk::new(index.to_string(), &*side.text) };
            let tokens = TokenSpan::new(0, 0);
            for bytes in text::sentences(&side.text) {
                units.push(Unit { chunk: index, bytes, tokens, sentence: UnitSpan { bytes, tokens } });
            }
            chunks.push(Arc::new(chunk));
        }
        let layout_of = |chunk: usize| Arc::new(Layout::detect(&chunks[chunk].text, Kind::Auto));
        find(&chunks, &units, &layout_of, &Cancel::default()).expect("not cancelled")
    }

    #[test]
    fn pairs() {
        let data = include_str!("../../../../tests/fixtures/source_conflicts.jsonl");
        for half in ["develop", "decide"] {
            let (mut right, mut wrong, mut missed) = (0, 0, 0);
            for line in data.lines() {
                let row: Row = serde_json::from_str(line).expect("a row");
                if row.half != half {
                    continue;
                }
                let found = conflicts([&row.a, &row.b]);
                let kinds: Vec<String> = found.iter().map(|found| format!("{:?}", found.kind).to_lowercase()).collect();
                let newer: Vec<Option<usize>> = found.iter().map(|found| found.newer).collect();
                let expected = row.kind.as_ref().is_some_and(|kind| kinds == [kind.clone()]);
                if std::env::var("SHOW").as_deref() == Ok(half) && expected == row.kind.is_none() || expected != !found.is_empty() {
                    println!("{half} {:?} {kinds:?} {newer:?} {:?}\n  {}\n  {}", row.kind, row.newer, row.a.text, row.b.text);
                }
                right += usize::from(expected);
                wrong += usize::from(!expected && !found.is_empty());
                missed += usize::from(row.kind.is_some() && !expected);
            }
            println!("{half}: {right} right, {wrong} wrong, {missed} missed");
        }
    }

    #[test]
    fn ordinary() {
        #[derive(Deserialize)]
        struct C { title: Option<String>, text: String }
        #[derive(Deserialize)]
        struct R { id: String, chunks: Vec<C> }
        for set in ["nq20","ragmc","tatqa","xquad","hotpot","musique","mtrag","finpages","helpdesk","wiki2","xquad_de"] {
            let data = std::fs::read_to_string(format!("/work/shared/data/{set}.jsonl")).unwrap();
            let (mut rows, mut hit, mut time, mut bytes) = (0, 0, 0.0, 0);
            for line in data.lines() {
                let Ok(row) = serde_json::from_str::<R>(line) else { continue };
                rows += 1;
                let (mut chunks, mut units) = (Vec::new(), Vec::new());
                for (index, c) in row.chunks.iter().enumerate() {
                    let chunk = Chunk { title: c.title.clone(), ..Chunk::new(index.to_string(), &*c.text) };
                    let tokens = TokenSpan::new(0, 0);
                    let layout = Layout::detect(&c.text, Kind::Auto);
                    bytes += c.text.len();
                    let ranges: Vec<_> = if layout.pieces.is_empty() { text::sentences(&c.text) } else { layout.pieces.iter().map(|p| p.bytes).collect() };
                    for bytes in ranges { units.push(Unit { chunk: index, bytes, tokens, sentence: UnitSpan { bytes, tokens } }); }
                    chunks.push(Arc::new(chunk));
                }
                let layouts: Vec<_> = chunks.iter().map(|c: &Arc<Chunk>| Arc::new(Layout::detect(&c.text, Kind::Auto))).collect();
                let start = std::time::Instant::now();
                let found = find(&chunks, &units, &|c| layouts[c].clone(), &Cancel::default()).unwrap();
                time += start.elapsed().as_secs_f64();
                hit += usize::from(!found.is_empty());
                for f in &found {
                    let t = |u: usize| (chunks[units[u].chunk].title.clone(), units[u].bytes.slice(&chunks[units[u].chunk].text).to_owned());
                    println!("{set} {} {:?} {:?}\n  {:?}\n  {:?}", row.id, f.kind, f.newer, t(f.indices[0]), t(f.indices[1]));
                }
            }
            println!("## {set}: {hit} of {rows}, {:.2} ms each, {} bytes each", 1e3 * time / rows as f64, bytes / rows.max(1));
        }
    }
}
