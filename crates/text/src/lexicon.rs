//! The words that the rules know. Each language is a file in `lexicon/`, named by its ISO 639-1 code, in which each class of words has a
//! paragraph:
//!
//! ```text
//! [whole]
//! summar- translat-
//! ```
//!
//! Words are in lower case and sorted. `-` at the end stands for any ending, and `_` for the space in an expression of two words. A class
//! that a language lacks has no words in it. The function words also come from the crate `stop-words`, as far as it has the language.

use std::collections::HashMap;
use std::sync::LazyLock;

/// What a word does in a text or a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Agrees, thanks or asks to go on.
    Agrees,
    /// Joins questions, as `and`.
    And,
    /// Begins a question.
    Asks,
    /// Asks for one thing, as `who`.
    AsksOne,
    /// Compares all things of a kind, as `cheapest` and `total`.
    Compares,
    /// Has little meaning by itself, as `the`.
    Function,
    /// Names no content: kinds of text, their parts, and what one does with them.
    Generic,
    /// Begins a line of a program.
    Keyword,
    /// The level of an event of a log.
    Level,
    /// Asks for a list if a sentence begins with it.
    Lists,
    /// Begins a question that is also a polite request, as `can`.
    Modal,
    /// Names after a word what the thing is of.
    Of,
    /// Says the place in an order, as `first`.
    Ordinal,
    /// Asks for the contents of a text as a whole, as `decided`.
    Overview,
    /// Begins a line of a query.
    Query,
    /// Begins a relative clause as well as a question.
    Relative,
    /// Stands in the tables of a query.
    Schema,
    /// Asks for one of several, as `which`.
    Which,
    /// Asks for something that needs a whole text, as `translate`.
    Whole,
}

impl Class {
    const ALL: [Self; 19] = [
        Self::Agrees,
        Self::And,
        Self::Asks,
        Self::AsksOne,
        Self::Compares,
        Self::Function,
        Self::Generic,
        Self::Keyword,
        Self::Level,
        Self::Lists,
        Self::Modal,
        Self::Of,
        Self::Ordinal,
        Self::Overview,
        Self::Query,
        Self::Relative,
        Self::Schema,
        Self::Which,
        Self::Whole,
    ];

    /// The name of the class in the files.
    fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::And => "and",
            Self::Asks => "asks",
            Self::AsksOne => "asks-one",
            Self::Compares => "compares",
            Self::Function => "function",
            Self::Generic => "generic",
            Self::Keyword => "keyword",
            Self::Level => "level",
            Self::Lists => "lists",
            Self::Modal => "modal",
            Self::Of => "of",
            Self::Ordinal => "ordinal",
            Self::Overview => "overview",
            Self::Query => "query",
            Self::Relative => "relative",
            Self::Schema => "schema",
            Self::Which => "which",
            Self::Whole => "whole",
        }
    }
}

/// A set of languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Langs(u16);

impl Langs {
    /// Only English.
    pub const ENGLISH: Self = Self(1);
    /// All languages that have a file.
    pub const ALL: Self = Self((1 << FILES.len()) - 1);

    /// Returns whether the set has no language.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the languages of this set or of another.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the languages of this set that are in another, too.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the languages of this set that are not in another.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

macro_rules! files {
    ($($lang:literal)*) => { [$(($lang, include_str!(concat!("../lexicon/", $lang, ".txt")))),*] };
}

/// The languages with their files. The first is English; the last has the words of programs.
const FILES: [(&str, &str); 12] = files!["en" "de" "fr" "es" "it" "pt" "nl" "pl" "ru" "zh" "ja" "code"];

struct Lexicon {
    words: HashMap<(Class, &'static str), Langs>,
    /// Beginnings of words.
    stems: HashMap<(Class, &'static str), Langs>,
}

static LEXICON: LazyLock<Lexicon> = LazyLock::new(|| {
    let mut lexicon = Lexicon { words: HashMap::new(), stems: HashMap::new() };
    for (number, (lang, file)) in FILES.into_iter().enumerate() {
        let lang_bit = Langs(1 << number);
        for word in stop_words::lookup(lang).unwrap_or_default() {
            lexicon.add(Class::Function, word, lang_bit);
        }
        for (class, word) in entries(file) {
            let class = Class::ALL.into_iter().find(|known| known.name() == class);
            lexicon.add(class.expect("the test of the files has checked the names"), word, lang_bit);
        }
    }
    lexicon
});

impl Lexicon {
    fn add(&mut self, class: Class, word: &'static str, lang: Langs) {
        let (words, word) = match word.strip_suffix('-') {
            Some(stem) => (&mut self.stems, stem),
            None => (&mut self.words, word),
        };
        let langs = words.entry((class, word)).or_default();
        *langs = langs.or(lang);
    }
}

/// Returns the entries of a file, each with the name of its class.
fn entries(file: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut class = "";
    let lines = file.lines().filter(|line| !line.starts_with("# "));
    lines.flat_map(move |line| {
        let name = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        class = name.unwrap_or(class);
        let words = if name.is_some() { "" } else { line };
        words.split_whitespace().map(move |word| (class, word))
    })
}

/// Returns the languages in which `word`, in lower case, is of a class.
pub fn langs(class: Class, word: &str) -> Langs {
    let exact = LEXICON.words.get(&(class, word)).copied().unwrap_or_default();
    if class != Class::Whole {
        return exact;
    }
    let ends = word.char_indices().map(|(at, c)| at + c.len_utf8());
    let stems = ends.filter_map(|end| LEXICON.stems.get(&(class, &word[..end])));
    stems.fold(exact, |langs, &stem| langs.or(stem))
}

/// Returns whether `word`, in lower case, is of a class in some language.
///
/// ```
/// use thresher_text::lexicon::{Class, has};
///
/// assert!(has(Class::Whole, "summarise") && has(Class::Whole, "übersetzen"));
/// assert!(!has(Class::Compares, "first"));
/// ```
pub fn has(class: Class, word: &str) -> bool {
    !langs(class, word).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_known_classes_and_sorted_words_in_lower_case() {
        for (lang, file) in FILES {
            let found: Vec<_> = entries(file).collect();
            assert!(
                found.is_sorted_by(|one, next| one < next),
                "{lang}.txt is sorted, and has no word twice"
            );
            for (class, word) in found {
                assert!(Class::ALL.iter().any(|known| known.name() == class), "{lang}.txt: [{class}]");
                assert_eq!(word, word.to_lowercase(), "{lang}.txt");
                assert!(!word.ends_with('-') || class == Class::Whole.name(), "{lang}.txt: {word}");
            }
        }
    }
}
