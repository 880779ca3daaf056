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

fn folded(word: &str) -> String {
    word.chars().flat_map(char::to_lowercase).map(|c| if c == '’' { '\'' } else { c }).collect()
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
        check("no word", ("— …", &[]), &[]);
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
