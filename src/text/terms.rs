//! Terms: words as a search engine compares them, without punctuation and letter case.

use unicode_segmentation::UnicodeSegmentation;

use crate::domain::ByteRange;

/// A word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Where it stands.
    pub bytes: ByteRange,
    /// In lower case, with straight apostrophes.
    pub folded: String,
}

/// The words of `text` by UAX #29, in order; `1,000`, `3.5` and `don't` are one each. A word that reaches across one of `cuts`
/// (ascending) is two.
pub fn terms(text: &str, cuts: &[usize]) -> Vec<Term> {
    let mut found = Vec::new();
    for (start, word) in text.unicode_word_indices() {
        let end = start + word.len();
        let first = cuts.partition_point(|&cut| cut <= start);
        let inside = cuts[first..].iter().copied().take_while(|&cut| cut < end);
        let mut from = start;
        for to in inside.chain([end]) {
            let bytes = ByteRange::new(from, to);
            if bytes.of(text).contains(char::is_alphanumeric) {
                found.push(Term { bytes, folded: folded(bytes.of(text)) });
            }
            from = to;
        }
    }
    found
}

/// Numbers as digits, so that `seven` is `7`. Not `one`, which is as often no number.
const NUMBER_WORDS: [(&str, &str); 20] = [
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("thirteen", "13"),
    ("fourteen", "14"),
    ("fifteen", "15"),
    ("sixteen", "16"),
    ("seventeen", "17"),
    ("eighteen", "18"),
    ("nineteen", "19"),
    ("twenty", "20"),
    ("thirty", "30"),
];

fn folded(word: &str) -> String {
    let lower: String =
        word.chars().flat_map(char::to_lowercase).map(|c| if c == '’' { '\'' } else { c }).collect();
    match NUMBER_WORDS.iter().find(|(name, _)| *name == lower) {
        Some((_, digits)) => (*digits).to_owned(),
        None => lower,
    }
}

/// What stands in a text to point elsewhere or to count, and says nothing: `[1]`, `[2, 3]`, `[^1]`, `【3】`, and the number of a list's
/// item at its start.
pub fn markers(text: &str) -> Vec<ByteRange> {
    let mut found = Vec::new();
    let start =
        text.len() - text.trim_start_matches(|c: char| c.is_whitespace() || "*_#>(".contains(c)).len();
    let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
    let behind = text[start + digits..].starts_with(['.', ')']);
    let blank = text[start + digits..].chars().nth(1).is_none_or(char::is_whitespace);
    if (1..=3).contains(&digits) && behind && blank {
        found.push(ByteRange::new(start, start + digits + 1));
    }
    for (open, bracket) in text.match_indices(['[', '【']) {
        let close = if bracket == "[" { ']' } else { '】' };
        let inside = &text[open + bracket.len()..];
        let Some(len) = inside.find(close) else { continue };
        let points = |c: char| c.is_ascii_digit() || matches!(c, ',' | ' ' | '^' | '-' | '–' | '†');
        if len > 0 && inside[..len].chars().all(points) {
            found.push(ByteRange::new(open, open + bracket.len() + len + close.len_utf8()));
        }
    }
    found
}

impl Term {
    /// Whether it holds a sentence together and says nothing by itself. English only.
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

    /// Whether it holds a digit.
    pub fn is_number(&self) -> bool {
        self.folded.contains(char::is_numeric)
    }

    /// Whether it turns what is said into its opposite. English only.
    pub fn is_negation(&self) -> bool {
        const WORDS: [&str; 11] = [
            "not", "no", "never", "none", "neither", "nor", "without", "cannot", "nobody", "nothing",
            "nowhere",
        ];
        WORDS.contains(&&*self.folded) || self.folded.ends_with("n't")
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
    fn words_as_they_are_compared() {
        check("letter case", ("The CAT.", &[]), &["the", "cat"]);
        check("numbers", ("1,000 or 3.5 (1998)", &[]), &["1,000", "or", "3.5", "1998"]);
        check("apostrophes", ("It’s don't", &[]), &["it's", "don't"]);
        check("a cut word", ("theSaudi bank", &[3]), &["the", "saudi", "bank"]);
        check("a cut beside a word", ("a b", &[0, 1, 2, 3]), &["a", "b"]);
        check("a number in words", ("Seven of one", &[]), &["7", "of", "one"]);
        check("no word", ("— …", &[]), &[]);
    }

    #[test]
    fn markers_point_and_count() {
        let check = |text: &str, expect: &[&str]| {
            let found: Vec<&str> = markers(text).into_iter().map(|marker| marker.of(text)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check("It is tall [1][2, 3].", &["[1]", "[2, 3]"]);
        check("1. It is【4】", &["1.", "【4】"]);
        check("(3) x[^1]", &["3)", "[^1]"]);
        check("1998. It [sic] was [ ", &[]);
        check("3.5 m", &[]);
        check("", &[]);
    }

    #[test]
    fn kinds() {
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
