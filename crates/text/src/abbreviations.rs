//! Abbreviations, and the words that start a sentence even after an abbreviation. Must not know where in the text a word is: `stops` looks
//! up the word before a full stop and the word after it.
//!
//! Words are looked up as they are written. A word in capitals (`DR`) is also looked up with only its first
//! letter in capitals (`Dr`).

use std::collections::HashSet;
use std::sync::LazyLock;

use crate::lexicon::{Class, Langs, has, is, langs};

/// Whether a full stop after an abbreviation ends the sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abbreviation {
    /// The sentence never ends here: a title before a name, or a word that introduces something.
    Never,
    /// The sentence continues before a number, a Roman numeral or a single letter, and ends before other
    /// words.
    Numbered,
    /// The sentence ends before a word that clearly starts one, and otherwise continues.
    Ambiguous,
}

/// Returns the kind of abbreviation that `word` is, or `None` for an ordinary word.
pub(crate) fn abbreviation(word: &str) -> Option<Abbreviation> {
    listed(word)
        .or_else(|| listed(&capitalized(word)?))
        .or_else(|| (is_initials(word) || OF_LANGUAGES.contains(word)).then_some(Abbreviation::Ambiguous))
}

fn listed(word: &str) -> Option<Abbreviation> {
    let kinds = [
        (Class::AbbreviationNever, Abbreviation::Never),
        (Class::AbbreviationNumber, Abbreviation::Numbered),
        (Class::Abbreviation, Abbreviation::Ambiguous),
    ];
    kinds.into_iter().find(|(class, _)| has(*class, word)).map(|(_, kind)| kind)
}

/// The languages whose abbreviations are read. A text does not say its language, so the abbreviations of all of them apply
/// to it. The lists of Italian, Dutch and Danish have many ordinary words of other languages, such as `age`, `class` and `on`.
const LANGUAGES: &str = "en de es fr pt pl ru sk uk bg";

/// The abbreviations of Wikimedia's sentencex, also with a capital, as titles before a name and days have it.
static OF_LANGUAGES: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let mut words = HashSet::new();
    for language in LANGUAGES.split(' ') {
        for word in sentencex::language_factory(language).get_abbreviations() {
            let word = word.trim_end_matches('.');
            if has(Class::Ordinary, word) {
                continue;
            }
            let mut letters = word.chars();
            let capital = letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>());
            words.extend(capital);
            words.insert(word.to_owned());
        }
    }
    words
});

/// Returns whether `word` starts a sentence even after an abbreviation that often precedes a name.
pub(crate) fn is_starter(word: &str) -> bool {
    is(Class::Starter, &word.replace('’', "'"))
}

/// Returns whether a number with a full stop after `word` is a German ordinal: `am 3. Oktober`,
/// `der 1. Platz`.
pub(crate) fn precedes_ordinal(word: &str) -> bool {
    is(Class::BeforeOrdinal, word)
}

/// Returns whether `word` is a month of a language in which a number with a full stop before it is a day: `Montag, 3. August`.
pub(crate) fn is_month(word: &str) -> bool {
    !langs(Class::Month, &word.to_lowercase()).without(Langs::ENGLISH).is_empty()
}

/// Returns whether `word` is a single letter, or parts of one or two letters joined by full stops: `J`,
/// `U.S`, `a.m`, `Ph.D`, `EE.UU`.
fn is_initials(word: &str) -> bool {
    let short = |part: &str, chars_max| {
        (1..=chars_max).contains(&part.chars().take(3).count()) && part.chars().all(char::is_alphabetic)
    };
    short(word, 1) || word.contains('.') && word.split('.').all(|part| short(part, 2))
}

/// Returns a word in capitals with only its first letter in capitals, or `None` for any other word.
fn capitalized(word: &str) -> Option<String> {
    let (first, rest) = word.split_at_checked(1)?;
    let all_capitals = word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase());
    all_capitals.then(|| first.to_owned() + &rest.to_ascii_lowercase())
}
