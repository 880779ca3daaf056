//! Reads numbers by their value, so that `1,200`, `1200.0`, `1.2 thousand` and `twelve hundred` are the same
//! number. `locale` knows how other languages write them.

use std::borrow::Cow;
use std::sync::LazyLock;

use text2num::{Language, Token, find_numbers};
use thresher_text::lexicon::{self, Class, Langs};

/// Words after a number that multiply it, with the number of zeros that they add.
const SCALES: [(&str, usize); 5] =
    [("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)];

/// Suffixes that multiply the number they touch, with the number of zeros that they add. Letters that are
/// also units (`m`, `b`) are suffixes only as capitals.
const SUFFIXES: [(&str, usize); 6] = [("k", 3), ("K", 3), ("M", 6), ("mn", 6), ("B", 9), ("bn", 9)];

/// Endings of ordinals and decades, which are not units.
const ENDINGS: [&str; 5] = ["st", "nd", "rd", "th", "s"];

/// The longest word of a number, `seventeenth`, in bytes.
const NUMBER_WORD_BYTES_MAX: usize = 11;

/// A number that is written in words, such as `two hundred`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spelled {
    pub start: usize,
    /// The index after its last word.
    pub end: usize,
    /// Its value in digits, with the ending of an ordinal: `37`, `20th`.
    pub value: String,
}

/// A word that may be a part of a number.
struct Word<'a> {
    text: Cow<'a, str>,
    /// Whether more than a space or a hyphen is between the word before and this one.
    is_apart: bool,
    /// Whether the word cannot be a part of a number.
    is_other: bool,
}

impl Token for Word<'_> {
    fn text(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.text)
    }

    fn text_lowercase(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.text)
    }

    fn nt_separated(&self, _previous: &Self) -> bool {
        self.is_apart
    }

    fn not_a_number_part(&self) -> bool {
        self.is_other
    }
}

/// Finds the numbers in words among `words`, such as `thirty-seven` and `one hundred and five`. `words` are
/// pairs of a word and whether more than a space or a hyphen is between the word before and it.
pub(super) fn spelled<'a>(words: impl Iterator<Item = (&'a str, bool)>) -> Vec<Spelled> {
    static ENGLISH: LazyLock<Language> = LazyLock::new(Language::english);
    let is_letters =
        |word: &str| word.len() <= NUMBER_WORD_BYTES_MAX && word.bytes().all(|b| b.is_ascii_alphabetic());
    let mut words: Vec<Word> = words
        .map(|(word, is_apart)| {
            let is_other = !is_letters(word);
            let text = if is_other || !word.bytes().any(|b| b.is_ascii_uppercase()) {
                Cow::Borrowed(word)
            } else {
                Cow::Owned(word.to_ascii_lowercase())
            };
            Word { text, is_apart, is_other }
        })
        .collect();
    // "One hundred and two hundred" are two numbers, "one hundred and two" is one.
    for at in 0..words.len() {
        let is_scale = |word: &Word| SCALES.iter().any(|(name, _)| *name == word.text);
        words[at].is_other |= words[at].text == "and" && words.get(at + 2).is_some_and(is_scale);
    }
    let texts: Vec<Cow<str>> = words.iter().map(|word| word.text.clone()).collect();
    let is_clear = |found: &Spelled| {
        let is_plural = texts[found.end - 1].ends_with('s');
        // `hundred` and the like are read with `SCALES`.
        let ambiguous = lexicon::langs(Class::AmbiguousNumber, &texts[found.start]).and(Langs::ENGLISH);
        let is_word = found.end - found.start == 1 && !ambiguous.is_empty();
        !is_plural && !is_word
    };
    find_numbers(words.into_iter(), &*ENGLISH, 0.0)
        .into_iter()
        .map(|found| Spelled { start: found.start, end: found.end, value: found.text })
        .filter(is_clear)
        .collect()
}

/// Finds the numbers in words of another language, such as `zweiundzwanzig`. Ordinals, and words that may be articles, are none.
pub(super) fn spelled_in<'a>(
    language: &Language,
    words: impl Iterator<Item = (&'a str, bool)>,
) -> Vec<Spelled> {
    let words: Vec<Word> = words
        .map(|(word, is_apart)| {
            let is_other = word.len() > FOREIGN_WORD_BYTES_MAX || !word.chars().all(char::is_alphabetic);
            Word { text: Cow::Owned(word.to_lowercase()), is_apart, is_other }
        })
        .collect();
    let texts: Vec<String> = words.iter().map(|word| word.text.to_string()).collect();
    let is_word = |found: &Spelled| {
        let ambiguous = lexicon::langs(Class::AmbiguousNumber, &texts[found.start]).without(Langs::ENGLISH);
        found.end - found.start == 1 && !ambiguous.is_empty()
    };
    let is_clear = |found: &Spelled| {
        let is_cardinal = found.value.bytes().all(|byte| byte.is_ascii_digit());
        is_cardinal && !["0", "1"].contains(&&*found.value) && !is_word(found)
    };
    find_numbers(words.into_iter(), language, 0.0)
        .into_iter()
        .map(|found| Spelled { start: found.start, end: found.end, value: found.text })
        .filter(is_clear)
        .collect()
}

/// The longest word of a number in another language, in bytes: German writes a number as one word.
const FOREIGN_WORD_BYTES_MAX: usize = 60;

/// Returns the value of a word that is a number in digits, or one of `twice` and `thrice`: the sign, the digits without separators, and the
/// decimals without trailing zeros. Returns `None` for any other word.
pub(super) fn value(word: &str) -> Option<String> {
    if let Some((_, digits)) = [("twice", "2"), ("thrice", "3")].iter().find(|(name, _)| *name == word) {
        return Some((*digits).to_owned());
    }
    if !word.bytes().any(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // A narrow space between groups is no part of a word by itself, so it cannot be meant for anything else.
    let word = &*word.replace('\u{202f}', "");
    let (sign, number) = word.strip_prefix('-').map_or(("", word), |number| ("-", number));
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().filter(|first| is_digits(first))?;
    let is_grouped = groups.clone().next().is_none() || first.len() <= 3;
    if !(is_digits(decimals) && is_grouped && groups.all(|group| group.len() == 3 && is_digits(group))) {
        return None;
    }
    let (whole, decimals) = (whole.replace(',', ""), decimals.trim_end_matches('0'));
    Some(if decimals.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{decimals}") })
}

/// Returns a value multiplied by a suffix that touches it, such as the `M` of `4.2M`.
pub(super) fn times_suffix(value: &str, suffix: &str) -> Option<String> {
    let (_, zeros) = SUFFIXES.iter().find(|(name, _)| *name == suffix)?;
    Some(times_ten_to(value, *zeros))
}

/// The most digits of a number that a word such as `million` multiplies.
pub(super) const DIGITS_MAX: usize = 40;

/// Returns a value multiplied by a word after it, such as `million` or `dozen`.
pub(super) fn times_word(value: &str, word: &str) -> Option<String> {
    if word == "dozen" {
        return value.parse::<u64>().ok()?.checked_mul(12).map(|product| product.to_string());
    }
    let (_, zeros) = SCALES.iter().find(|(name, _)| *name == word)?;
    times_power(value, *zeros)
}

/// Returns a value multiplied by 10 to the power `zeros`; `None` if it gets too long: a row of scales would take quadratic time.
pub(super) fn times_power(value: &str, zeros: usize) -> Option<String> {
    (value.len() + zeros <= DIGITS_MAX).then(|| times_ten_to(value, zeros))
}

/// Returns a value multiplied by 10 to the power `zeros`.
fn times_ten_to(value: &str, zeros: usize) -> String {
    let (whole, decimals) = value.split_once('.').unwrap_or((value, ""));
    let (moved, remaining) = decimals.split_at(zeros.min(decimals.len()));
    let whole = format!("{whole}{moved}{}", "0".repeat(zeros - moved.len()));
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        significant => significant,
    };
    if remaining.is_empty() { whole.to_owned() } else { format!("{whole}.{remaining}") }
}

/// Returns the byte offset at which the unit begins in a word such as `200mg`. Returns `None` for other
/// words, ordinals and decades.
pub(super) fn unit_at(word: &str) -> Option<usize> {
    let at = word.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ',')))?;
    let unit = &word[at..];
    let is_unit = at > 0 && unit.chars().all(char::is_alphabetic) && !ENDINGS.contains(&unit);
    is_unit.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_their_value() {
        for (word, expect) in [
            ("1,200", Some("1200")),
            ("1,234,567.50", Some("1234567.5")),
            ("1999.0", Some("1999")),
            ("-5", Some("-5")),
            ("seven", None),
            ("007", Some("007")),
            ("1\u{202f}200", Some("1200")),
            ("1,2", None),
            ("1234,567", None),
            ("1.2.3", None),
            ("b12", None),
            ("-", None),
            ("", None),
        ] {
            assert_eq!(value(word).as_deref(), expect, "{word}");
        }
    }

    #[test]
    fn numbers_in_words_are_found() {
        for (text, expect) in [
            ("thirty seven rooms", &["37"][..]),
            ("Forty rooms", &["40"]),
            ("between one hundred and two hundred", &["100", "200"]),
            ("one hundred and twenty three", &["123"]),
            ("two million three hundred thousand", &["2300000"]),
            ("the twenty first of the twentieth", &["21st", "20th"]),
            ("eighteen hundred", &["1800"]),
            ("one of the first, a second", &[]),
            ("hundreds of thirds, a million", &[]),
            ("seven four", &["7", "4"]),
            ("37 rooms", &[]),
        ] {
            let found = spelled(text.split(' ').map(|word| (word.trim_matches(','), false)));
            let found: Vec<String> = found.into_iter().map(|found| found.value).collect();
            assert_eq!(found, expect, "{text}");
        }
        assert_eq!(spelled([("twenty", false), ("one", true)].into_iter()).len(), 1, "something is between");
        assert_eq!(spelled([("twenty", false), ("one", false)].into_iter())[0].value, "21");
    }

    #[test]
    fn multiplying_moves_the_decimal_point() {
        for (value, zeros, expect) in [
            ("4.2", 6, "4200000"),
            ("12", 2, "1200"),
            ("1.2345", 3, "1234.5"),
            ("0.5", 6, "500000"),
            ("0", 3, "0"),
        ] {
            assert_eq!(times_ten_to(value, zeros), expect, "{value} {zeros}");
        }
    }

    #[test]
    fn units_are_separated_from_numbers() {
        for (word, expect) in [
            ("200mg", Some(3)),
            ("4.2B", Some(3)),
            ("20th", None),
            ("90s", None),
            ("b12", None),
            ("12", None),
            ("3d4", None),
        ] {
            assert_eq!(unit_at(word), expect, "{word}");
        }
    }
}
