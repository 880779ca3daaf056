//! Splits texts into words for the index, in every language and without a list of languages.
//! Does not know about indexes or chunks.
//!
//! A word is a run of letters and digits with their combining marks, in lower case and without Latin accents.
//! In scripts that are written without spaces (Chinese, Japanese, Thai, …), and in Korean, where particles
//! are attached to the word, each pair of neighbouring characters is a word instead, because a segmentation
//! into real words would have to be the same in the query and in the chunk. Words are not stemmed: a stemmer
//! fits one language only, and RC reads the candidates anyway.

use tantivy::tokenizer::{AsciiFoldingFilter, LowerCaser, TextAnalyzer, Token, TokenStream, Tokenizer};
use unicode_segmentation::UnicodeSegmentation;

/// The name of the tokenizer in the index. A change of the rules needs another name, so that no index is read
/// with other rules than it was written with.
pub const NAME: &str = "thresher_words_1";

/// The length to which words are cut, in bytes. Longer runs, such as base64, are not words.
const WORD_BYTES_MAX: usize = 128;

pub fn analyzer() -> TextAnalyzer {
    TextAnalyzer::builder(WordTokenizer).filter(LowerCaser).filter(AsciiFoldingFilter).build()
}

/// The number of distinct words of a query that are searched for. The limit exists because each word costs a
/// lookup in every segment.
pub const WORDS_MAX: usize = 1_024;

/// The number of bytes of a query that are searched for words.
const QUERY_BYTES_MAX: usize = 256 * 1024;

/// Returns the first [`WORDS_MAX`] distinct words of a query, in the order of their first occurrence.
pub fn words(query: &str) -> Vec<String> {
    let (mut words, mut seen) = (Vec::new(), std::collections::HashSet::new());
    let mut analyzer = analyzer();
    let end = query.floor_char_boundary(QUERY_BYTES_MAX);
    let mut tokens = analyzer.token_stream(&query[..end]);
    while words.len() < WORDS_MAX && tokens.advance() {
        let word = &tokens.token().text;
        if seen.insert(word.clone()) {
            words.push(word.clone());
        }
    }
    words
}

#[derive(Clone)]
struct WordTokenizer;

struct WordStream {
    tokens: std::vec::IntoIter<Token>,
    token: Token,
}

impl Tokenizer for WordTokenizer {
    type TokenStream<'a> = WordStream;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream {
        WordStream { tokens: split_words(text).into_iter(), token: Token::default() }
    }
}

impl TokenStream for WordStream {
    fn advance(&mut self) -> bool {
        self.tokens.next().map(|token| self.token = token).is_some()
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharKind {
    /// A letter or digit of a script that separates words with spaces.
    Spaced,
    /// A letter of a script without spaces between words.
    Unspaced,
    Separator,
}

fn split_words(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    // The current run of characters of one kind: its start, and, for unspaced scripts, its grapheme clusters.
    let (mut kind, mut start, mut clusters) = (CharKind::Separator, 0, Vec::new());
    let mut end_run =
        |kind: CharKind, range: std::ops::Range<usize>, clusters: &mut Vec<std::ops::Range<usize>>| {
            match kind {
                CharKind::Separator => {}
                CharKind::Spaced => push(&mut tokens, text, range),
                CharKind::Unspaced if clusters.len() == 1 => push(&mut tokens, text, range),
                CharKind::Unspaced => {
                    clusters.windows(2).for_each(|pair| push(&mut tokens, text, pair[0].start..pair[1].end));
                }
            }
            clusters.clear();
        };
    for (offset, cluster) in grapheme_clusters(text) {
        let cluster_kind = kind_of(cluster.chars().next().expect("a cluster has a character"));
        if cluster_kind != kind {
            end_run(kind, start..offset, &mut clusters);
            (kind, start) = (cluster_kind, offset);
        }
        if cluster_kind == CharKind::Unspaced {
            clusters.push(offset..offset + cluster.len());
        }
    }
    end_run(kind, start..text.len(), &mut clusters);
    tokens
}

/// The grapheme clusters of a text with their offsets. ASCII text has no combining marks, so its clusters are
/// its bytes.
fn grapheme_clusters(text: &str) -> Box<dyn Iterator<Item = (usize, &str)> + '_> {
    if text.is_ascii() {
        Box::new((0..text.len()).map(|offset| (offset, &text[offset..=offset])))
    } else {
        Box::new(text.grapheme_indices(true))
    }
}

fn push(tokens: &mut Vec<Token>, text: &str, range: std::ops::Range<usize>) {
    let mut word: String = text[range.clone()].chars().filter(|&c| !is_latin_mark(c)).collect();
    if word.len() > WORD_BYTES_MAX {
        word.truncate(word.floor_char_boundary(WORD_BYTES_MAX));
    }
    let position = tokens.len();
    tokens.push(Token {
        offset_from: range.start,
        offset_to: range.end,
        position,
        text: word,
        position_length: 1,
    });
}

/// Whether a character is a combining accent. Combining accents are removed, so that `e` with a combining
/// accent is the same word as `é`.
fn is_latin_mark(c: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&c)
}

fn kind_of(c: char) -> CharKind {
    match c {
        _ if !c.is_alphanumeric() => CharKind::Separator,
        '\u{0e00}'..='\u{0eff}'     // Thai, Lao
        | '\u{1000}'..='\u{109f}'   // Myanmar
        | '\u{1100}'..='\u{11ff}'   // Hangul Jamo
        | '\u{1780}'..='\u{17ff}'   // Khmer
        | '\u{3005}'..='\u{31ff}'   // Hiragana, Katakana, Bopomofo
        | '\u{3400}'..='\u{9fff}'   // Han
        | '\u{ac00}'..='\u{d7af}'   // Hangul
        | '\u{f900}'..='\u{faff}'   // Han, for compatibility
        | '\u{ff66}'..='\u{ffdc}'   // Katakana and Hangul of half width
        | '\u{20000}'..='\u{3ffff}' => CharKind::Unspaced,
        _ => CharKind::Spaced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_many_languages() {
        let check = |text: &str, expect: &[&str]| assert_eq!(words(text), expect, "{text}");
        check("", &[]);
        check(" ?! ", &[]);
        check("The moon's tide, THE Tide-table 3.5", &["the", "moon", "s", "tide", "table", "3", "5"]);
        check("Größe, cafe\u{301} café, naïve", &["grosse", "cafe", "naive"]);
        check("Прилив и отлив", &["прилив", "и", "отлив"]);
        check("हिन्दी में", &["हिन्दी", "में"]);
        check("مدّ البحر", &["مدّ", "البحر"]);
        check("東京都の潮", &["東京", "京都", "都の", "の潮"]);
        check("潮 tide潮汐", &["潮", "tide", "潮汐"]);
        check("학교에서", &["학교", "교에", "에서"]);
        check("น้ำขึ้น", &["น้ำขึ้", "ขึ้น"]);
        assert_eq!(words(&"x".repeat(1000))[0].len(), WORD_BYTES_MAX);
    }

    #[test]
    fn the_words_of_long_queries_are_limited() {
        let check = |text: &str, count: usize, last: &str| {
            let words = words(text);
            assert_eq!((words.len(), words.last().map_or("", String::as_str)), (count, last));
        };
        let numbers: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
        check(&numbers.join(" "), WORDS_MAX, "1023");
        check(&["0 ".repeat(5_000), numbers[..100].join(" ")].concat(), 100, "99");
        check(&["潮".repeat(QUERY_BYTES_MAX), numbers.join(" ")].concat(), 1, "潮潮");
    }
}
