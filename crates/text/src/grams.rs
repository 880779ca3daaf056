//! Character n-grams: the parts of words by which texts can be compared in any script, whether or not a model
//! knows it. Inflected forms of a word share most of their n-grams.
//!
//! Words are compared in lower case, in compatibility form (NFKC) and without accents and vowel points. In
//! scripts without spaces between words, and in Korean, where particles are attached to the word, single
//! characters, pairs and, with small alphabets, triples stand for words.

use icu_normalizer::properties::CanonicalCombiningClassMapBorrowed;
use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use icu_properties::CodePointMapData;
use icu_properties::props::Script;
use unicode_segmentation::UnicodeSegmentation;

use crate::range::ByteRange;

/// The lengths in characters of the n-grams of a word, whose first and last character is followed by a mark
/// for the border of the word.
const LENGTHS: std::ops::RangeInclusive<usize> = 3..=5;

/// The number of characters of a word that are divided into n-grams. Longer runs, such as base64, are not
/// words.
const WORD_CHARS_MAX: usize = 64;

const CHAR_BITS: u32 = 21;

/// Stands for the borders of a word. It is the character U+0000, which is never a letter.
const BORDER: char = '\0';

/// One to five characters in comparable form. Equal grams have equal characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gram(u128);

impl Gram {
    fn new(chars: &[char]) -> Self {
        // The leading 1 keeps grams of different lengths apart.
        Self(chars.iter().fold(1, |packed, &c| packed << CHAR_BITS | u128::from(u32::from(c))))
    }
}

/// A word, or a character or pair of characters of a script without spaces, with its n-grams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GramWord {
    /// Byte range in the text of the run of letters and digits that holds the word.
    pub bytes: ByteRange,
    /// The script of its letters; [`Script::Common`] for numbers.
    pub script: Script,
    /// The distinct n-grams, in ascending order.
    pub grams: Vec<Gram>,
}

/// Returns the script of a character. Kana is Japanese whether it is Hiragana or Katakana.
pub fn script_of(c: char) -> Script {
    match CodePointMapData::<Script>::new().get(c) {
        Script::Katakana => Script::Hiragana,
        script => script,
    }
}

/// Returns whether words of the script are compared by single characters, pairs and triples.
pub(crate) fn by_characters(script: Script) -> bool {
    matches!(
        script,
        Script::Han
            | Script::Hiragana
            | Script::Bopomofo
            | Script::Hangul
            | Script::Thai
            | Script::Lao
            | Script::Khmer
            | Script::Myanmar
            | Script::Tibetan
    )
}

/// Returns whether a character is of such a script.
pub fn is_compared_by_characters(c: char) -> bool {
    !c.is_ascii() && by_characters(script_of(c))
}

/// Returns how many neighbouring characters of a script compared by characters are compared together. A pair of
/// Chinese characters is a word in most cases; a pair of Thai letters is in every text.
fn characters_together_max(script: Script) -> usize {
    match script {
        Script::Thai | Script::Lao | Script::Khmer | Script::Myanmar | Script::Tibetan => 3,
        _ => 2,
    }
}

/// Returns the words of `text` in order, each with its n-grams.
pub fn gram_words(text: &str) -> Vec<GramWord> {
    let mut found = Vec::new();
    for run in runs(text) {
        let chars = comparable(run.bytes.slice(text));
        let mut push =
            |grams: Vec<Gram>| found.push(GramWord { bytes: run.bytes, script: run.script, grams });
        if by_characters(run.script) {
            let lengths = 1..=characters_together_max(run.script);
            lengths.flat_map(|length| chars.windows(length)).for_each(|term| push(vec![Gram::new(term)]));
        } else if !chars.is_empty() {
            push(grams_of_word(&chars[..chars.len().min(WORD_CHARS_MAX)]));
        }
    }
    found
}

/// A run of letters and digits of one script.
struct Run {
    bytes: ByteRange,
    script: Script,
}

/// Returns the words of `text`, cut where the script changes. Neighbouring words of a script that is compared
/// by characters are one run.
fn runs(text: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (start, word) in text.unicode_word_indices() {
        let mut is_new = true;
        for (offset, c) in word.char_indices() {
            let bytes = ByteRange::new(start + offset, start + offset + c.len_utf8());
            let script = script_of(c);
            let last = runs.last_mut().filter(|last| last.bytes.end == bytes.start);
            let is_extension = matches!(script, Script::Inherited | Script::Common);
            match last {
                Some(last) if is_extension && !is_new && !(c.is_numeric() && by_characters(last.script)) => {
                    last.bytes.end = bytes.end;
                }
                Some(last) if last.script == script && (!is_new || by_characters(script)) => {
                    last.bytes.end = bytes.end;
                }
                _ => runs.push(Run { bytes, script }),
            }
            is_new = false;
        }
    }
    runs
}

/// Returns the characters of a word in the form in which words are compared.
fn comparable(word: &str) -> Vec<char> {
    if word.is_ascii() {
        return word.chars().map(|c| c.to_ascii_lowercase()).collect();
    }
    let lower = word.to_lowercase();
    let decomposed = DecomposingNormalizerBorrowed::new_nfkd().normalize(&lower);
    let bare: String = decomposed.chars().filter(|&c| !is_accent(c)).collect();
    ComposingNormalizerBorrowed::new_nfc().normalize(&bare).chars().collect()
}

/// Returns whether a character is an accent or a vowel point, which many texts leave out. The vowel signs of
/// Indic scripts have the combining class 0, and their virama and nukta have classes below 10.
fn is_accent(c: char) -> bool {
    CanonicalCombiningClassMapBorrowed::new().get_u8(c) >= 10
}

fn grams_of_word(chars: &[char]) -> Vec<Gram> {
    let with_borders: Vec<char> =
        std::iter::once(BORDER).chain(chars.iter().copied()).chain([BORDER]).collect();
    let mut grams: Vec<Gram> =
        LENGTHS.flat_map(|length| with_borders.windows(length)).map(Gram::new).collect();
    grams.sort_unstable();
    grams.dedup();
    grams
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, text: &str, expect: &[(&str, Script, usize)]) {
        let found = gram_words(text);
        let found: Vec<_> =
            found.iter().map(|word| (word.bytes.slice(text), word.script, word.grams.len())).collect();
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn words_have_the_grams_of_their_script() {
        check("no words", " …!", &[]);
        check("one letter with its borders", "a", &[("a", Script::Latin, 1)]);
        check("grams of 3, 4 and 5 characters", "Мост", &[("Мост", Script::Cyrillic, 4 + 3 + 2)]);
        check("a number", "1859", &[("1859", Script::Common, 9)]);
        let han = |n| vec![("灯塔高", Script::Han, 1); n];
        check("characters and pairs", "灯塔高", &han(5));
        let long = "灯".repeat(70);
        check("a long text without spaces", &long, &vec![(&*long, Script::Han, 1); 70 + 69]);
        let long = "ж".repeat(99);
        check("a long word", &long, &[(&*long, Script::Cyrillic, 3 * 3)]);
        let thai = |n| vec![("ไทย", Script::Thai, 1); n];
        check("characters, pairs and triples", "ไทย", &thai(6));
        check(
            "two scripts in one word",
            "Tシャツ",
            &[
                ("T", Script::Latin, 1),
                ("シャツ", Script::Hiragana, 1),
                ("シャツ", Script::Hiragana, 1),
                ("シャツ", Script::Hiragana, 1),
                ("シャツ", Script::Hiragana, 1),
                ("シャツ", Script::Hiragana, 1),
            ],
        );
    }

    #[track_caller]
    fn check_same(a: &str, b: &str) {
        let grams = |text: &str| gram_words(text).into_iter().map(|word| word.grams).collect::<Vec<_>>();
        assert_eq!(grams(a), grams(b), "{a} and {b}");
    }

    #[test]
    fn spellings_of_a_word_are_the_same() {
        check_same("ΦΆΡΟΣ", "φαρος");
        check_same("أحمد", "احمد");
        check_same("מִגְדָּל", "מגדל");
        check_same("ﬁn", "fin");
        check_same("１２", "12");
        check_same("\u{1112}\u{1161}\u{11ab}", "한");
    }
}
