//! Terms: the words of a text in the form in which search engines compare them, without punctuation and
//! letter case.

use unicode_segmentation::UnicodeSegmentation;

use super::numbers;
use crate::domain::ByteRange;

/// A word of a text in normalized form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Byte range of the word in the text.
    pub bytes: ByteRange,
    /// The normalized form: lower case, with straight apostrophes and without a possessive `'s`. A number is
    /// its value, such as `1200` for `1,200`. `cannot` and words that end in `n't`, such as `doesn't`, are
    /// `not`.
    pub folded: String,
}

/// Returns the words of `text` in order, by the word boundaries of UAX #29. `1,000`, `3.5`, `-4`, `2 million`
/// and `don't` are one word each; `200mg` is two. A word is also divided at each byte offset of `cuts`
/// (ascending) that lies inside it.
///
/// ```
/// use thresher_core::text::terms;
///
/// let found = terms("It’s 1,200 mg, isn't it?", &[]);
/// let folded: Vec<String> = found.into_iter().map(|term| term.folded).collect();
/// assert_eq!(folded, ["it", "1200", "mg", "not", "it"]);
/// ```
pub fn terms(text: &str, cuts: &[usize]) -> Vec<Term> {
    let mut found: Vec<Term> = Vec::new();
    for (start, word) in text.unicode_word_indices() {
        let end = start + word.len();
        let first = cuts.partition_point(|&cut| cut <= start);
        let inside = cuts[first..].iter().copied().take_while(|&cut| cut < end);
        let mut from = start;
        for to in inside.chain([end]) {
            let part = ByteRange::new(from, to).of(text).trim_matches('_');
            let at = part.as_ptr() as usize - text.as_ptr() as usize;
            let unit = numbers::unit_at(part);
            for (first, last) in
                unit.map_or(vec![(0, part.len())], |unit| vec![(0, unit), (unit, part.len())])
            {
                let word = ByteRange::new(at + first, at + last);
                if word.of(text).contains(char::is_alphanumeric) {
                    push(&mut found, (text, cuts), word);
                }
            }
            from = to;
        }
    }
    found
}

/// Appends a word, or multiplies the number before it if the word is a scale such as `million`.
fn push(found: &mut Vec<Term>, (text, cuts): (&str, &[usize]), bytes: ByteRange) {
    if let Some(number) = found.last_mut() {
        let next_cut = cuts.get(cuts.partition_point(|&cut| cut < number.bytes.end));
        let is_cut = next_cut.is_some_and(|&cut| cut <= bytes.start);
        let between = &text[number.bytes.end..bytes.start];
        let zeros = match between {
            "" => numbers::zeros(bytes.of(text), true),
            " " | "-" | "\u{a0}" => numbers::zeros(&bytes.of(text).to_lowercase(), false),
            _ => None,
        };
        let value = match &*number.folded {
            "a" | "one" => Some("1".to_owned()),
            folded => numbers::value(folded),
        };
        if let (false, Some(zeros), Some(value)) = (is_cut, zeros, value) {
            number.bytes.end = bytes.end;
            number.folded = numbers::times_ten_to(&value, zeros);
            return;
        }
    }
    let bytes = with_sign(text, cuts, bytes);
    found.push(Term { bytes, folded: folded(bytes.of(text)) });
}

/// Extends a number by the minus sign in front of it. A dash after a word or after another dash is not a
/// minus sign.
fn with_sign(text: &str, cuts: &[usize], bytes: ByteRange) -> ByteRange {
    let before = &text[..bytes.start];
    let Some(rest) = before.strip_suffix(['-', '\u{2212}']) else { return bytes };
    let is_sign = bytes.of(text).starts_with(|c: char| c.is_ascii_digit())
        && !rest.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '\u{2212}' | '.'))
        && cuts.binary_search(&bytes.start).is_err();
    if is_sign { ByteRange::new(rest.len(), bytes.end) } else { bytes }
}

fn folded(word: &str) -> String {
    let straight = |c| match c {
        '’' => '\'',
        '\u{2212}' => '-',
        c => c,
    };
    let lower: String = word.chars().flat_map(char::to_lowercase).map(straight).collect();
    if lower == "cannot" || lower.ends_with("n't") {
        return "not".to_owned();
    }
    let bare = lower.strip_suffix("'s").unwrap_or(&lower);
    numbers::value(bare).unwrap_or_else(|| bare.to_owned())
}

/// Returns the byte ranges of the markers in `text`, which refer to a source or number an item and are not
/// part of the content: `[1]`, `[2, 3]`, `[^1]`, `【3】`, `【3†source】`, and the number of a list item at the
/// start of the text. Numbers of more than three digits, such as years, are not markers.
///
/// ```
/// use thresher_core::text::markers;
///
/// let text = "It is 330 m tall [1][2, 3].";
/// let found: Vec<&str> = markers(text).into_iter().map(|range| range.of(text)).collect();
/// assert_eq!(found, ["[1]", "[2, 3]"]);
/// ```
pub fn markers(text: &str) -> Vec<ByteRange> {
    const DIGITS_MAX: usize = 3;
    let mut found = Vec::new();
    let start =
        text.len() - text.trim_start_matches(|c: char| c.is_whitespace() || "*_#>(".contains(c)).len();
    let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
    let item = text[start + digits..].strip_prefix(['.', ')']).unwrap_or_default();
    if (1..=DIGITS_MAX).contains(&digits) && item.starts_with(char::is_whitespace) && !item.trim().is_empty()
    {
        found.push(ByteRange::new(start, start + digits + 1));
    }
    for (open, bracket) in text.match_indices(['[', '【']) {
        let close = if bracket == "[" { ']' } else { '】' };
        let inside = &text[open + bracket.len()..];
        let Some(len) = inside.find(close) else { continue };
        let numbers = match inside[..len].split_once('†') {
            // The text after the dagger is the name of the source.
            Some((numbers, name)) if bracket == "【" && !name.contains('\n') => numbers,
            _ => &inside[..len],
        };
        let mut numbers = numbers.split([',', ' ', '^', '-', '–', ':']);
        let is_marker =
            |number: &str| number.len() <= DIGITS_MAX && number.bytes().all(|b| b.is_ascii_digit());
        if len > 0 && numbers.all(is_marker) {
            found.push(ByteRange::new(open, open + bracket.len() + len + close.len_utf8()));
        }
    }
    found
}

impl Term {
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

    /// Returns whether the term contains a digit.
    pub fn is_number(&self) -> bool {
        self.folded.contains(char::is_numeric)
    }

    /// Returns whether the term is an English negation, such as `not` or `without`.
    pub fn is_negation(&self) -> bool {
        const WORDS: [&str; 10] =
            ["not", "no", "never", "none", "neither", "nor", "without", "nobody", "nothing", "nowhere"];
        WORDS.contains(&&*self.folded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, (text, cuts): (&str, &[usize]), expect: &[&str]) {
        let found: Vec<String> = terms(text, cuts).into_iter().map(|term| term.folded).collect();
        assert_eq!(found, expect, "{name}");
    }

    #[test]
    fn normalized_terms_of_texts() {
        check("letter case", ("The CAT.", &[]), &["the", "cat"]);
        check("numbers", ("1,000 or 3.50 (1998)", &[]), &["1000", "or", "3.5", "1998"]);
        check(
            "signs",
            ("-5 or \u{2212}4, 1990-1995, COVID-19 --2", &[]),
            &["-5", "or", "-4", "1990", "1995", "covid", "19", "2"],
        );
        check("a cut between sign and number", ("x: -5", &[4]), &["x", "5"]);
        check(
            "scales",
            ("$4.2 million, 4.2B, twelve hundred, a million, 7 m", &[]),
            &["4200000", "4200000000", "1200", "1000000", "7", "m"],
        );
        check("a cut between number and scale", ("4 million", &[2]), &["4", "million"]);
        check(
            "units",
            ("200mg on the 20th of the 1990s", &[]),
            &["200", "mg", "on", "the", "20th", "of", "the", "1990s"],
        );
        check("possessives", ("Eiffel’s dog's", &[]), &["eiffel", "dog"]);
        check("emphasis", ("_1999_ a_b", &[]), &["1999", "a_b"]);
        check("apostrophes", ("It’s don't", &[]), &["it", "not"]);
        check("a cut inside a word", ("theSaudi bank", &[3]), &["the", "saudi", "bank"]);
        check("cuts at word boundaries", ("a b", &[0, 1, 2, 3]), &["a", "b"]);
        check("a number in words", ("Seven of one", &[]), &["7", "of", "one"]);
        check("no words", ("— …", &[]), &[]);
    }

    #[test]
    fn markers_refer_to_sources_or_number_items() {
        let check = |text: &str, expect: &[&str]| {
            let found: Vec<&str> = markers(text).into_iter().map(|marker| marker.of(text)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check("It is tall [1][2, 3].", &["[1]", "[2, 3]"]);
        check("1. It is【4】", &["1.", "【4】"]);
        check("(3) x[^1]", &["3)", "[^1]"]);
        check("1998. It [sic] was [ ", &[]);
        check("42.", &[]);
        check("in [1999] on [2024-11-05]", &[]);
        check("here【4:0†source】 [1-3]", &["【4:0†source】", "[1-3]"]);
        check("3.5 m", &[]);
        check("", &[]);
    }

    #[test]
    fn numbers_and_negations() {
        let kind = |text: &str| {
            let term = terms(text, &[]).remove(0);
            (term.is_number(), term.is_negation())
        };
        for (text, expect) in [
            ("1998", (true, false)),
            ("B12", (true, false)),
            ("Never", (false, true)),
            ("wasn’t", (false, true)),
            ("note", (false, false)),
        ] {
            assert_eq!(kind(text), expect, "{text}");
        }
    }
}
