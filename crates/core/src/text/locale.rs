//! Reads numbers, months and weekdays as other languages than English write them, so that `1,5 Mio.` and `1.5 million`, `3. August` and `3
//! августа` and `8月3日` are the same. What they mean is said in English terms. `locales.txt` has the words.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use text2num::Language;

use super::numbers::{self, Spelled};
use super::term::{MONTHS, Term};
use crate::domain::{ByteRange, Lang};

/// What may be between the groups of a number, or between a number and a scale.
const SPACES: [char; 4] = [' ', '\u{a0}', '\u{202f}', '\u{2009}'];

/// The sign of months after their number, in Chinese and Japanese.
const MONTH_SIGN: &str = "月";

/// How many words may be between a month and its day or year: `3 de agosto de 2019`.
const DATE_WORDS: usize = 2;

#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// The English name of a month or a weekday.
    Calendar(&'static str),
    /// It multiplies the number before it by ten to this power.
    Scale(usize),
}

struct Locale {
    has_decimal_comma: bool,
    /// Whether months and weekdays are written with a capital, as other names are.
    has_capital_months: bool,
    words: HashMap<&'static str, Meaning>,
    /// The words that occur most often in texts of the language.
    common: HashSet<&'static str>,
    /// The numbers in words, where the library for them knows the language.
    spelled: Option<Language>,
}

/// How a text in another language than English is written.
#[derive(Clone, Copy)]
pub struct Writing {
    locale: &'static Locale,
}

impl Writing {
    /// Returns how a text in a language is written; `None` for English and for languages that are not known here.
    pub fn in_lang(lang: Lang) -> Option<Self> {
        Some(Self { locale: LOCALES.get(lang.code())? })
    }
}

/// Returns the language of which a text has the most different common words, and how many it has. `words` are the words of the text in lower
/// case.
pub(super) fn with_most_common_words(words: &HashSet<&str>) -> Option<(usize, Lang)> {
    let hits = |locale: &Locale| words.iter().filter(|word| locale.common.contains(**word)).count();
    let (count, code) = LOCALES.iter().map(|(code, locale)| (hits(locale), *code)).max()?;
    Some((count, Lang::from_bytes(code.as_bytes().try_into().ok()?)?))
}

static LOCALES: LazyLock<HashMap<&str, Locale>> = LazyLock::new(|| {
    let sections = include_str!("locales.txt").split("\n[").skip(1);
    sections.map(locale).collect()
});

fn locale(section: &'static str) -> (&'static str, Locale) {
    let (head, lines) = section.split_once('\n').expect("a line after the code");
    let (code, style) = head.split_once(']').expect("a code in brackets");
    let (mut words, mut common) = (HashMap::new(), HashSet::new());
    for (name, forms) in lines.lines().filter_map(|line| line.split_once(": ")) {
        if name == "words" {
            common.extend(forms.split(' '));
            continue;
        }
        let meaning = match name.strip_prefix("scale ") {
            Some(power) => Meaning::Scale(power.parse().expect("a power of ten")),
            None => Meaning::Calendar(name),
        };
        words.extend(forms.split(' ').map(|form| (form, meaning)));
    }
    let spelled = match code {
        "deu" => Some(Language::german()),
        "fra" => Some(Language::french()),
        "spa" => Some(Language::spanish()),
        "ita" => Some(Language::italian()),
        "nld" => Some(Language::dutch()),
        _ => None,
    };
    (
        code,
        Locale {
            has_decimal_comma: style.contains("comma"),
            has_capital_months: style.contains("capital"),
            words,
            common,
            spelled,
        },
    )
}

/// Says in English terms what the words of a text mean. `terms` are its words in order; none is joined across one of the byte offsets `cuts`
/// (ascending).
pub(super) fn translate(text: &str, cuts: &[usize], terms: Vec<Term>, writing: Writing) -> Vec<Term> {
    let mut found: Vec<Term> = Vec::with_capacity(terms.len());
    for mut term in terms {
        let word = term.bytes.slice(text);
        if let Some(value) = writing.value(word) {
            term.folded = value;
        }
        let joined = found.last().and_then(|before| {
            let gap = ByteRange::new(before.bytes.end, term.bytes.start);
            let is_cut =
                cuts.get(cuts.partition_point(|&cut| cut < gap.start)).is_some_and(|&cut| cut <= gap.end);
            if is_cut { None } else { writing.joined(text, before, gap.slice(text), &term) }
        });
        match (joined, found.last_mut()) {
            (Some((folded, is_translated)), Some(before)) => {
                before.bytes.end = term.bytes.end;
                (before.folded, before.is_translated) = (folded, is_translated);
            }
            _ => {
                found.push(term);
            }
        }
    }
    for at in 0..found.len() {
        if let Some(name) = writing.calendar(text, &found, at) {
            (found[at].folded, found[at].is_translated) = (name.to_owned(), true);
        }
    }
    found
}

impl Writing {
    /// Returns the numbers in words, as [`numbers::spelled`] does; `None` for languages whose numbers are not known.
    pub(super) fn spelled(self, words: &[(&str, bool)]) -> Option<Vec<Spelled>> {
        let mut found = numbers::spelled_in(self.locale.spelled.as_ref()?, words.iter().copied());
        // The scale of a number in digits is read with that.
        let is_scale =
            |word: &str| matches!(self.locale.words.get(&*word.to_lowercase()), Some(Meaning::Scale(_)));
        found.retain(|number| number.end - number.start > 1 || !is_scale(words[number.start].0));
        Some(found)
    }

    /// Returns the value of a number in digits, if this language writes it in another way than English.
    fn value(self, word: &str) -> Option<String> {
        let digits = |c: char| decimal_digit(c).unwrap_or(c);
        if word.chars().any(|c| digits(c) != c) {
            let word: String = word.chars().map(digits).collect();
            return self.value(&word).or_else(|| numbers::value(&word));
        }
        if !self.locale.has_decimal_comma {
            return None;
        }
        let in_english = |c: char| match c {
            '.' => ',',
            ',' => '.',
            '\u{2212}' => '-',
            c => c,
        };
        numbers::value(&word.chars().map(in_english).collect::<String>())
    }

    /// Returns the English name of the month or weekday at an index. A month stands near a number, and where such names are written small, a
    /// capital is that of something else: `mars` and `Mars`, `julio` and `Julio`.
    fn calendar(self, text: &str, terms: &[Term], at: usize) -> Option<&'static str> {
        let Some(Meaning::Calendar(name)) = self.locale.words.get(&*terms[at].folded) else { return None };
        let near = at.saturating_sub(DATE_WORDS)..terms.len().min(at + DATE_WORDS + 1);
        let is_date = !MONTHS.contains(name) || terms[near].iter().any(Term::is_number);
        let is_capital = terms[at].bytes.slice(text).starts_with(char::is_uppercase);
        (is_date && (self.locale.has_capital_months || !is_capital || at == 0)).then_some(*name)
    }

    /// Returns what a number and the word after it mean together, and whether that is the name of a month.
    fn joined(self, text: &str, before: &Term, gap: &str, term: &Term) -> Option<(String, bool)> {
        let is_number =
            before.folded.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
        if !is_number || before.folded.is_empty() {
            return None;
        }
        let word = term.bytes.slice(text);
        if word == MONTH_SIGN && gap.is_empty() {
            let month: usize = before.folded.parse().ok()?;
            return Some(((*MONTHS.get(month.checked_sub(1)?)?).to_owned(), true));
        }
        let is_space = gap.strip_prefix(SPACES) == Some("");
        if let (true, Some(Meaning::Scale(power))) =
            (is_space || gap.is_empty(), self.locale.words.get(&*term.folded))
        {
            return numbers::times_power(&before.folded, *power).map(|value| (value, false));
        }
        // "2 400": a group has three digits, and the one before it at most three.
        let (group, decimals) = word.split_once(',').unwrap_or((word, ""));
        let is_group = self.locale.has_decimal_comma
            && is_space
            && group.len() == 3
            && [group, decimals].concat().bytes().all(|byte| byte.is_ascii_digit());
        let written = before.bytes.slice(text);
        let last = written.rsplit(SPACES).next().unwrap_or(written);
        // With plain spaces, three groups may be the cells of a table.
        let is_cell = |neighbour: Option<char>| gap == " " && neighbour.is_some_and(|c| c.is_ascii_digit());
        let after = text[term.bytes.end..].strip_prefix(' ').and_then(|rest| rest.chars().next());
        let before_it =
            text[..before.bytes.start].strip_suffix(' ').and_then(|rest| rest.chars().next_back());
        let can_go_on = !is_cell(after)
            && !is_cell(before_it)
            && last.bytes().all(|byte| byte.is_ascii_digit())
            && (1..=3).contains(&last.len())
            && (last.len() == 3 || last.len() == written.len())
            && before.folded.len() + 3 <= numbers::DIGITS_MAX;
        if !(is_group && can_go_on) {
            return None;
        }
        let both = format!("{}{}", before.folded, word.replace(',', "."));
        numbers::value(&both).map(|value| (value, false))
    }
}

/// Returns the ASCII digit of a decimal digit of another script.
fn decimal_digit(c: char) -> Option<char> {
    /// The zeros of the scripts that write numbers with their own digits.
    const ZEROS: [u32; 11] = [0x660, 0x6F0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xBE6, 0xC66, 0xCE6, 0xE50, 0xFF10];
    let digit = ZEROS.iter().find_map(|&zero| (c as u32).checked_sub(zero).filter(|digit| *digit < 10))?;
    char::from_digit(digit, 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{sentence_lang, terms_in};

    fn folded(lang: &str, text: &str) -> Vec<String> {
        let lang = Lang::from_bytes(lang.as_bytes().try_into().expect("three letters")).expect("a code");
        let writing = Writing::in_lang(lang);
        assert!(writing.is_some(), "{lang:?}");
        terms_in(text, &[], writing).into_iter().map(|term| term.folded).collect()
    }

    #[test]
    fn numbers_of_other_languages_have_their_value() {
        for (lang, text, expect) in [
            ("deu", "1,5 Millionen", "1500000"),
            ("deu", "1.234.567,80", "1234567.8"),
            ("deu", "2.400", "2400"),
            ("deu", "2,5 Mrd", "2500000000"),
            ("deu", "vierzig", "40"),
            ("deu", "zweiundzwanzig", "22"),
            ("fra", "2 400", "2400"),
            ("fra", "1\u{202f}234\u{202f}567,5", "1234567.5"),
            ("fra", "3,2 millions", "3200000"),
            ("spa", "cuarenta", "40"),
            ("rus", "12,5 тыс", "12500"),
            ("ara", "٢٤٠٠", "2400"),
            ("hin", "३ लाख", "300000"),
            ("cmn", "150万", "1500000"),
            ("jpn", "２００", "200"),
        ] {
            assert_eq!(folded(lang, text), [expect], "{lang}: {text}");
        }
        assert_eq!(folded("deu", "ein Haus"), ["ein", "haus"], "an article");
        assert_eq!(folded("fra", "en 2021 400 vélos"), ["en", "2021", "400", "vélos"], "a year is no group");
        assert_eq!(folded("fra", "12 34 567"), ["12", "34", "567"]);
        assert_eq!(folded("fra", "120 340 560"), ["120", "340", "560"], "cells of a table");
        assert_eq!(folded("ita", "tu sei qui"), ["tu", "sei", "qui"], "you are");
    }

    #[test]
    fn months_and_weekdays_have_their_english_names() {
        assert_eq!(folded("deu", "am 3. März, montags"), ["am", "03-03", "monday"]);
        assert_eq!(
            folded("fra", "la planète Mars, en mars 2019"),
            ["la", "planète", "mars", "en", "2019-03"]
        );
        assert_eq!(folded("spa", "Julio vino el 3 de julio"), ["julio", "vino", "el", "07-03"]);
        assert_eq!(folded("rus", "3 августа"), ["08-03"]);
        assert_eq!(folded("fra", "le 3 août"), ["le", "08-03"]);
        assert_eq!(folded("cmn", "1912年8月3日"), ["1912-08-03", "日"]);
        assert_eq!(folded("cmn", "13月"), ["13", "月"], "there is no such month");
        assert_eq!(folded("ara", "3 أغسطس 1912"), ["1912-08-03"]);
    }

    #[test]
    fn short_sentences_have_the_language_of_their_common_words() {
        for (text, expect) in [
            ("Der Preis liegt bei 1.200 Euro pro Monat.", Some("deu")),
            ("De huur is 1.200 euro en het huis is van hout.", Some("nld")),
            ("Le prix est de 2 400 euros pour le mois.", Some("fra")),
            ("Мост открыли в августе.", Some("rus")),
            ("Tesla delivered two million cars.", None),
            ("Nine people died.", None),
            ("Lunch costs ten euros.", None),
            ("Parking costs 3,500 yen a month.", None),
            ("He was in the house on a hill.", None),
            ("No pets, no smoking, 1,200 dollars.", None),
            ("1,200 UN observers replaced UN troops.", None),
            ("Leonardo da Vinci met Vasco da Gama.", None),
        ] {
            let found = sentence_lang(text).filter(|found| Writing::in_lang(found.lang).is_some());
            assert_eq!(found.as_ref().map(|found| found.lang.code()), expect, "{text}");
        }
    }
}
