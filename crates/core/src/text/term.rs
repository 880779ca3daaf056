//! A term: one word of a text, what it counts, and what kind of word it is. How texts are divided into terms is not known here.

use thresher_text::lexicon::{self, Class, Langs};

use super::measure::{Amount, AmountRange, Measure};
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
    /// its value, such as `1200` for `1,200`. `cannot`, `instead of` and words that end in `n't` are `not`. A name such as `IT` that is a
    /// function word in lower case keeps its capitals.
    pub folded: String,
    /// What the number counts; `None` if the term is no number.
    pub amount: Option<Amount>,
    /// The range that the number begins or ends, as in `8:00 to 18:00`.
    pub range: Option<AmountRange>,
    /// Whether the term is the unit of the number before it.
    pub is_unit: bool,
    /// The amount of a unit behind an article, as in `an hour`. It may also be a rate: `600 requests an hour`.
    pub of_article: Option<Amount>,
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

impl Term {
    pub(super) fn new(bytes: ByteRange, folded: String) -> Self {
        Self {
            bytes,
            folded,
            amount: None,
            range: None,
            is_unit: false,
            of_article: None,
            is_translated: false,
        }
    }

    /// Returns whether the term is an English function word, which has little meaning by itself, such as
    /// `the` or `about`.
    pub fn is_function_word(&self) -> bool {
        !lexicon::langs(Class::Function, &self.folded).and(Langs::ENGLISH).is_empty()
    }

    /// Returns a second name for a number, and for the unit in `an hour`, which says what it counts: its amount in the base unit, its place in an
    /// order or in the week or, without a unit, its value. It begins with `=`, as no [`Self::folded`] does.
    pub fn number_key(&self) -> Option<String> {
        match self.amount.or(self.of_article) {
            Some(Amount { measure: Measure::Unit(base), low, .. }) => Some(format!("={low} {base}")),
            Some(Amount { measure: Measure::Ordinal, low, .. }) => Some(format!("={low} ordinal")),
            Some(Amount { measure: Measure::Weekday, low, .. }) => Some(format!("={low} weekday")),
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

    /// Returns whether the term is a number with a known unit, a place in an order or a day of the week.
    pub fn is_measured(&self) -> bool {
        self.amount.is_some_and(|amount| {
            matches!(amount.measure, Measure::Unit(_) | Measure::Ordinal | Measure::Weekday)
        })
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
        lexicon::has(Class::Negation, &self.folded)
    }

    /// Returns whether the term has meaning by itself: it is neither a function word nor a negation.
    pub fn is_content(&self) -> bool {
        !self.is_function_word() && !self.is_negation()
    }

    /// Returns how the term limits a number after it, as `over` does in `over 30`.
    pub fn limits(&self) -> Option<Limit> {
        if lexicon::has(Class::AtLeast, &self.folded) {
            Some(Limit::AtLeast)
        } else if lexicon::has(Class::AtMost, &self.folded) {
            Some(Limit::AtMost)
        } else {
            None
        }
    }

    /// Returns whether a source that states this number excludes the `stated` one. A range is compared with another end by end; one number between
    /// the ends of a range of the source is not excluded.
    pub fn excludes(&self, stated: &Self) -> bool {
        let (Some(own), Some(other)) = (self.amount, stated.amount) else { return false };
        let is_same_end = match (self.range, stated.range) {
            (Some(range), Some(stated)) => own.begins(&range) == other.begins(&stated),
            _ => !self.range_has(stated),
        };
        is_same_end && other.excludes(&own)
    }

    /// Returns whether a `stated` number without a range lies in the range that this one begins or ends.
    pub fn range_has(&self, stated: &Self) -> bool {
        let range = self.range.filter(|_| stated.range.is_none());
        range.zip(stated.amount).is_some_and(|(range, amount)| amount.is_within(&range))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `More than`, `after` and the like.
    AtLeast,
    /// `Less than`, `before` and the like.
    AtMost,
}

/// Returns the other names of a date, which say less than it: for `2028-06-30` these are `2028`, `june`, `2028-06` and `06-30`; and `8:00` of
/// the `8` in `8 bis 18 Uhr`.
fn coarser_names(term: &Term) -> Vec<String> {
    if let Some(Amount { measure: Measure::Clock, low, .. }) = term.amount
        && !term.folded.contains(':')
    {
        return vec![format!("{}:{:02}", (low / 60.0).floor(), low % 60.0)];
    }
    if !term.amount.is_some_and(|amount| matches!(amount.measure, Measure::Date | Measure::DayOfYear)) {
        return Vec::new();
    }
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
