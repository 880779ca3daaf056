//! Statements: sentences as they are compared with each other. Knows single sentences only.

use schemars::JsonSchema;
use serde::Serialize;

use crate::text::lexicon::{self, Class};
use crate::text::{self, Amount, Limit, Measure, Term, Writing};

/// The fewest and the most words of a statement. A shorter one says of nothing what it is; a longer one is a list.
const WORDS_MIN: usize = 2;
const WORDS_MAX: usize = 40;

/// The most bytes by which a form of a word is longer than another, as `parking` and `park`.
const ENDING_BYTES_MAX: usize = 3;

/// The largest relative difference of two values in different units that one text may have rounded, as 5 kg and 11 lb.
const ROUNDING: f64 = 0.03;

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

/// A sentence, as it is compared with others.
pub(super) struct Statement {
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
    pub fn read(sentence: &str, writing: Option<Writing>) -> Option<Self> {
        let terms = text::terms_in(sentence, &[], writing);
        let first = &terms.first()?.folded;
        // The number of a page, or a row.
        let has_number_alone = sentence
            .lines()
            .any(|line| line.contains(char::is_numeric) && !line.contains(char::is_alphabetic));
        let is_about_another =
            [Class::Pronoun, Class::Owner, Class::Refers].iter().any(|&class| lexicon::has(class, first));
        if sentence.trim_end().ends_with(['?', '？']) || is_about_another || has_number_alone {
            return None;
        }
        let (mut words, mut values, mut negations) = (Vec::new(), Vec::new(), 0);
        let mut at = 0;
        while let Some(term) = terms.get(at) {
            let mut read = 1;
            if lexicon::has(Class::Negates, &term.folded) && !term.bytes.slice(sentence).contains(' ') {
                negations += 1;
                let next = terms.get(at + 1);
                // "Not only", "no later than".
                if next.is_some_and(|next| {
                    next.limits().is_some() || lexicon::has(Class::Exception, &next.folded)
                }) {
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

    /// Returns whether the statement has a word or another form of it.
    pub fn says(&self, word: &str) -> bool {
        self.words.iter().flatten().any(|said| is_form_of(said, word))
    }

    /// Returns the number of words besides values.
    pub fn word_count(&self) -> usize {
        self.words.iter().flatten().count()
    }

    /// Returns the values in the order in which they stand if the words are rotated.
    fn values_rotated(&self, by: usize) -> impl Iterator<Item = &Value> {
        let before = self.words[..by].iter().filter(|word| word.is_none()).count();
        self.values[before..].iter().chain(&self.values[..before])
    }
}

/// Returns whether two statements must agree on a word: all but articles, auxiliary verbs and the like. "Without" and "before" say of what a
/// statement holds.
fn is_compared(term: &Term) -> bool {
    !term.is_unit && !lexicon::has(Class::Filler, &term.folded)
}

pub(super) fn is_form_of(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let is_word = short.len() > ENDING_BYTES_MAX && !short.contains(char::is_numeric);
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
        let is_near = |end: &Term| {
            is_joined || sentence[terms[at].bytes.end..end.bytes.start].trim().chars().count() == 1
        };
        if let Some((last, to)) =
            terms.get(end).filter(|end| is_near(end)).and_then(|term| Some((term, term.amount?)))
        {
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
            is_subject: is_time && (words_before == 0 || count > 1)
                || amount.measure == Measure::Count && is_named,
        };
        Some((value, count))
    }

    fn equals(&self, other: &Self) -> bool {
        let (one, two) = (self.amount, other.amount);
        one.covers(&two) && two.covers(&one) && self.limit == other.limit && self.is_bound == other.is_bound
    }

    /// Returns in what two values differ if they answer the same question and cannot both be true.
    fn difference(&self, other: &Self) -> Option<DifferenceKind> {
        let (one, two) = (self.amount, other.amount);
        let is_alike = one.measure == two.measure
            && (self.limit, self.is_bound) == (other.limit, other.is_bound)
            && !self.is_subject
            && !other.is_subject
            && one.excludes(&two);
        let is_rounded = self.unit != other.unit && (one.low - two.low).abs() <= ROUNDING * one.low.abs();
        // A meeting on a day of another year is another meeting.
        let is_other_year =
            one.measure == Measure::Date && (one.low / 1e4).floor() != (two.low / 1e4).floor();
        (is_alike && !is_rounded && !is_other_year).then_some(match one.measure {
            Measure::Version => DifferenceKind::Version,
            Measure::Unit(_) | Measure::Count | Measure::Ordinal => DifferenceKind::Number,
            Measure::Year | Measure::Date | Measure::DayOfYear | Measure::Weekday | Measure::Clock => {
                DifferenceKind::Date
            }
        })
    }
}

/// Returns in what two statements with the same words differ; `None` if they have different words, agree, or differ in several ways.
pub(super) fn difference(a: &Statement, b: &Statement) -> Option<DifferenceKind> {
    let by = a.rotation(b)?;
    let mut differing = a.values.iter().zip(b.values_rotated(by)).filter(|(one, other)| !one.equals(other));
    match (differing.next(), differing.next()) {
        (None, _) if a.is_negated != b.is_negated => Some(DifferenceKind::Negation),
        (Some((one, other)), None) if a.is_negated == b.is_negated => one.difference(other),
        _ => None,
    }
}
