//! Scopes: what a sentence speaks of besides its own words, and how old its text is.

use super::statement::{Statement, is_form_of};
use crate::domain::{ByteRange, Chunk};
use crate::text::lexicon::{self, Class};
use crate::text::outline::{Layout, Piece};
use crate::text::{self, Amount, Measure, Term};

/// The most pieces above a sentence that are read.
const ABOVE_MAX: usize = 16;

/// The most bytes of a title, or of a piece above a sentence, that are read.
const TITLE_BYTES_MAX: usize = 200;

/// The fewest words of a statement that says by itself what it is about, so that the titles of its sources need not be alike.
const WORDS_ALONE_MIN: usize = 4;

/// Returns the piece of a layout in which a range begins; `None` in prose whose sentences stand for themselves.
pub(super) fn piece_at(layout: &Layout, bytes: ByteRange) -> Option<&Piece> {
    let after = layout.pieces.partition_point(|piece| piece.bytes.start <= bytes.start);
    after.checked_sub(1).map(|at| &layout.pieces[at])
}

/// What a sentence speaks of, besides its own words: the title of its chunk, its headings, and what introduces it.
#[derive(Default)]
pub(super) struct Scope {
    /// Words with meaning that are not in the sentence.
    words: Vec<String>,
    /// Whether nothing stands above the sentence.
    is_untitled: bool,
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
    /// Reads what `statement`, which stands at `bytes` in a chunk, speaks of. `names` are those of the chunk's title ([`names_of_title`]).
    pub fn read(
        chunk: &Chunk,
        names: &[String],
        bytes: ByteRange,
        layout: &Layout,
        statement: &Statement,
    ) -> Self {
        let mut scope =
            Self { date: chunk.metadata.as_deref().and_then(date_of_metadata), ..Self::default() };
        let title = chunk.title.as_deref().unwrap_or_default();
        scope.is_name = names.iter().any(|name| !statement.says(name));
        scope.add(title, statement);
        let mut above = piece_at(layout, bytes).map_or(Vec::new(), |piece| piece.required().collect());
        scope.is_untitled = title.is_empty() && above.is_empty();
        let mut next = 0;
        while let Some(&at) = above.get(next) {
            scope.add(layout.pieces[at].bytes.slice(&chunk.text), statement);
            let further = layout.pieces[at].required().filter(|at| !above.contains(at));
            let further: Vec<usize> = further.take(ABOVE_MAX.saturating_sub(above.len())).collect();
            above.extend(further);
            next += 1;
        }
        scope
    }

    fn add(&mut self, text: &str, statement: &Statement) {
        let text = beginning(text);
        let terms = text::terms_in(text, &[], None);
        self.is_withdrawn |= is_withdrawn(text, &terms);
        for term in terms {
            let has = |class| lexicon::has(class, &term.folded);
            self.has_editions |= has(Class::Edition);
            match term.amount {
                Some(amount)
                    if matches!(amount.measure, Measure::Year | Measure::Date | Measure::Version) =>
                {
                    self.times.push(amount);
                }
                _ => {
                    let is_of_text = has(Class::Banner) || has(Class::Generic) || has(Class::Edition);
                    if let Some(version) = major_version(&term) {
                        self.times.push(version);
                    } else if term.is_content() && !is_of_text && !statement.says(&term.folded) {
                        self.words.push(term.folded);
                    }
                }
            }
        }
    }

    fn is_named_as(&self, other: &Self) -> bool {
        self.words.iter().all(|word| other.has(word)) && other.words.iter().all(|word| self.has(word))
    }

    /// Returns whether titles, headings and introductions are there, and have the same words.
    pub fn names_the_same(&self, other: &Self) -> bool {
        !self.is_untitled && self.is_named_as(other)
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|own| is_form_of(own, word))
    }

    /// Returns whether a statement in this scope and an alike one in the other speak of the same thing: the scopes have the same words, or each
    /// has none or names only a text, as a handbook and a list of questions. Otherwise, as in `Germany` and `France`, the things are two.
    pub fn is_of_same(&self, other: &Self, statement: &Statement) -> bool {
        let is_shared = self.words.iter().any(|word| other.has(word));
        let is_self_contained = statement.word_count() >= WORDS_ALONE_MIN;
        let names_thing = |scope: &Self| scope.is_name || !scope.words.is_empty() && !scope.has_editions;
        let is_apart = !is_shared && is_self_contained && !names_thing(self) && !names_thing(other);
        // The revenue of another year is another revenue, but the policy of another year takes the place of this one.
        let years = |scope: &Self| -> Vec<f64> {
            let of_time = |time: &Amount| (time.measure != Measure::Version).then_some(time.low);
            scope.times.iter().filter_map(of_time).collect()
        };
        let is_of_year = years(self) == years(other) || self.has_editions && other.has_editions;
        is_of_year && (is_apart || self.is_named_as(other))
    }

    /// Returns which of two scopes is newer, 0 for this one and 1 for the other: the one that is not withdrawn, that has the later date in its
    /// metadata, or that names the later version or date.
    pub fn newer(&self, other: &Self) -> Option<usize> {
        if self.is_withdrawn != other.is_withdrawn {
            return Some(usize::from(self.is_withdrawn));
        }
        let later = |one: Option<Amount>, other: Option<Amount>| {
            let (one, other) = (one?, other?);
            let is_known = one.excludes(&other);
            is_known.then_some(usize::from(in_days(other) > in_days(one)))
        };
        let of = |scope: &Self, is_version: bool| {
            scope.times.iter().find(|time| (time.measure == Measure::Version) == is_version).copied()
        };
        later(self.date, other.date)
            .or_else(|| later(of(self, true), of(other, true)))
            .or_else(|| later(of(self, false), of(other, false)))
    }
}

/// Returns a version, or the first day of a year or a date, as a number that is larger for a later one.
fn in_days(time: Amount) -> f64 {
    if time.measure == Measure::Year { time.low * 1e4 } else { time.low }
}

/// Returns the part of a title or of what stands above a sentence that is read.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(TITLE_BYTES_MAX)]
}

/// Returns the words of a chunk's title that are names in its text.
pub(super) fn names_of_title(chunk: &Chunk) -> Vec<String> {
    let title = beginning(chunk.title.as_deref().unwrap_or_default());
    let mut terms = text::terms(title, &[]);
    terms.retain(|term| is_name_in(&chunk.text, term.bytes.slice(title)));
    terms.into_iter().map(|term| term.folded).collect()
}

/// Returns whether a title or a heading says that its text does not hold: by its last word, or by the first one before a colon or the like.
fn is_withdrawn(text: &str, terms: &[Term]) -> bool {
    let is_banner = |term: &Term| lexicon::has(Class::Banner, &term.folded);
    let is_apart =
        |term: &Term| text[term.bytes.end..].trim_start().starts_with([':', ')', ']', '-', '–', '—', '.']);
    let begins = terms.first().is_some_and(|first| is_banner(first) && is_apart(first));
    (begins || terms.last().is_some_and(is_banner)) && !terms.iter().any(Term::is_negation)
}

/// Returns whether a text has a word of its title with a capital inside of a sentence, as it has names.
fn is_name_in(text: &str, word: &str) -> bool {
    let is_inside = |(at, _): (usize, &str)| {
        let before = text[..at]
            .strip_suffix(' ')
            .is_some_and(|before| before.ends_with(|c: char| c.is_alphanumeric() || c == ','));
        before && !text[at + word.len()..].starts_with(char::is_alphanumeric)
    };
    word.starts_with(char::is_uppercase) && text.match_indices(word).any(is_inside)
}

/// Returns the version that a word such as `v2` is.
fn major_version(term: &Term) -> Option<Amount> {
    let number: f64 = term.folded.strip_prefix('v')?.parse().ok()?;
    Some(Amount { measure: Measure::Version, low: number, high: number })
}

/// Returns the date in the field `date` of a chunk's metadata; `None` for what is no date.
pub(super) fn date_of_metadata(metadata: &str) -> Option<Amount> {
    let metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
    let terms = text::terms_in(metadata.get("date")?.as_str()?, &[], None);
    let first = terms.first()?.amount?;
    // A time may follow a date. What follows a year makes it something else, such as a date that does not exist.
    let is_date = first.measure == Measure::Date || first.measure == Measure::Year && terms.len() == 1;
    is_date.then_some(first)
}
