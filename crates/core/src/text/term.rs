//! A term: one word of a text, what it counts, and what kind of word it is. How texts are divided into terms is not known here.

use super::measure::{Amount, Measure};
use crate::domain::ByteRange;

pub(super) const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// The names of the months, in their order.
pub(super) const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

/// A word of a text in normalized form.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    pub bytes: ByteRange,
    /// The normalized form: lower case, with straight apostrophes and without a possessive `'s`. A number is
    /// its value, such as `1200` for `1,200`. `cannot` and words that end in `n't`, such as `doesn't`, are
    /// `not`.
    pub folded: String,
    /// What the number counts; `None` if the term is no number.
    pub amount: Option<Amount>,
    /// Whether the term is the unit of the number before it.
    pub is_unit: bool,
    /// Whether the term is the English name of a month or a weekday that the text has in another language.
    pub is_translated: bool,
}

/// Some words that are one term together.
pub(super) struct Run {
    /// How many terms these are now.
    pub terms: usize,
    pub folded: String,
    /// `None` if it is read as that of any other number.
    pub amount: Option<Amount>,
}

/// Words that deny, in several languages.
const NEGATIONS: [&str; 28] = [
    "not", "no", "never", "none", "neither", "nor", "without", "nobody", "nothing", "nowhere", "nicht",
    "kein", "keine", "keinen", "keiner", "keines", "nie", "niemals", "ohne", "pas", "jamais", "aucun",
    "aucune", "sans", "nunca", "non", "niet", "geen",
];

impl Term {
    pub(super) fn new(bytes: ByteRange, folded: String) -> Self {
        Self { bytes, folded, amount: None, is_unit: false, is_translated: false }
    }

    /// Returns whether the term is an English function word, which has little meaning by itself, such as
    /// `the` or `about`.
    pub fn is_function_word(&self) -> bool {
        const WORDS: [&str; 104] = [
            "a", "about", "after", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been",
            "before", "being", "between", "both", "but", "by", "can", "could", "did", "do", "does", "down",
            "during", "each", "for", "from", "had", "has", "have", "he", "her", "here", "him", "his", "i",
            "if", "in", "into", "is", "it", "its", "may", "might", "more", "most", "of", "on", "or", "other",
            "others", "our", "out", "over", "own", "same", "she", "should", "so", "some", "such", "than",
            "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "to", "up",
            "was", "we", "were", "what", "when", "where", "which", "while", "who", "will", "with", "would",
            "you", "your", "am", "because", "however", "how", "just", "like", "me", "my", "off", "only",
            "too", "us", "very", "whom",
        ];
        WORDS.contains(&&*self.folded)
    }

    /// Returns a second name for a number, which says what it counts: its amount in the base unit, its place in an order or, without a
    /// unit, its value. It begins with `=`, as no [`Self::folded`] does.
    pub fn number_key(&self) -> Option<String> {
        match self.amount {
            Some(Amount { measure: Measure::Unit(base), low, .. }) => Some(format!("={low} {base}")),
            Some(Amount { measure: Measure::Ordinal, low, .. }) => Some(format!("={low} ordinal")),
            Some(_) => Some(self.key_without_unit()),
            None => None,
        }
    }

    /// Returns the words that a source has if it has this one, besides [`Self::folded`]: the key of a number, and the month and the year of a
    /// date.
    pub fn other_names(&self) -> impl Iterator<Item = String> {
        self.number_key().into_iter().chain(coarser_names(self))
    }

    /// Returns [`Self::number_key`] as it would be without a unit.
    pub fn key_without_unit(&self) -> String {
        format!("={}", self.folded)
    }

    /// Returns whether the term is a number with a known unit, or a place in an order.
    pub fn is_measured(&self) -> bool {
        self.amount.is_some_and(|amount| matches!(amount.measure, Measure::Unit(_) | Measure::Ordinal))
    }

    /// Returns whether the term is the name of a weekday or a month. `may` and `march` are words, too.
    pub fn is_calendar(&self) -> bool {
        WEEKDAYS.contains(&&*self.folded) || MONTHS.contains(&&*self.folded)
    }

    /// Returns whether the term contains a digit.
    pub fn is_number(&self) -> bool {
        self.folded.contains(char::is_numeric)
    }

    /// Returns whether the term is a negation, such as `not`, `without`, `nicht` or `jamais`.
    pub fn is_negation(&self) -> bool {
        NEGATIONS.contains(&&*self.folded)
    }

    /// Returns whether the term has meaning by itself: it is neither a function word nor a negation.
    pub fn is_content(&self) -> bool {
        !self.is_function_word() && !self.is_negation()
    }

    /// Returns how the term limits a number after it, as `over` does in `over 30`.
    pub fn limits(&self) -> Option<Limit> {
        const LEAST: [&str; 9] =
            ["more", "over", "above", "least", "exceeding", "exceeds", "exceeded", "after", "since"];
        const MOST: [&str; 9] =
            ["less", "fewer", "under", "below", "most", "before", "nearly", "almost", "within"];
        match &*self.folded {
            word if LEAST.contains(&word) => Some(Limit::AtLeast),
            word if MOST.contains(&word) => Some(Limit::AtMost),
            _ => None,
        }
    }
}

/// How a word limits a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `More than`, `after` and the like.
    AtLeast,
    /// `Less than`, `before` and the like.
    AtMost,
}

/// Returns the other names of a date, which say less than it: for `2028-06-30` these are `2028`, `june`, `2028-06` and `06-30`.
fn coarser_names(term: &Term) -> Vec<String> {
    let fields: Vec<&str> = term.folded.split('-').collect();
    let month =
        |digits: &str| digits.parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    let names = match (term.amount.map(|amount| amount.measure), &*fields) {
        (Some(Measure::Date), [year, digits, day]) => {
            vec![
                (*year).to_owned(),
                format!("{year}-{digits}"),
                format!("{digits}-{day}"),
                (*digits).to_owned(),
            ]
        }
        (Some(Measure::Date), [year, digits]) => vec![(*year).to_owned(), (*digits).to_owned()],
        (Some(Measure::DayOfYear), [digits, _]) => vec![(*digits).to_owned()],
        _ => Vec::new(),
    };
    let named = |name: String| {
        if name.len() == 2 { month(&name).map(|month| (*month).to_owned()) } else { Some(name) }
    };
    names.into_iter().filter_map(named).collect()
}
