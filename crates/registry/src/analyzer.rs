//! Texts to words for the index: every language, no list of languages.
//! Knows nothing of indexes or chunks.
//!
//! A word is a run of letters, digits and their marks, in lower case and without Latin accents. Scripts that are written
//! without spaces (Chinese, Japanese, Thai, …), and Korean, whose particles hang on the word, give pairs of neighbours
//! instead: any cut into words would have to be the same in the question and in the chunk. Nothing is stemmed: a stemmer
//! belongs to one language, and RC reads the candidates anyway.

use tantivy::tokenizer::{AsciiFoldingFilter, LowerCaser, TextAnalyzer, Token, TokenStream, Tokenizer};
use unicode_segmentation::UnicodeSegmentation;

/// Name in the index. Another way of cutting takes another name, so that no index is read with it by mistake.
pub const NAME: &str = "thresher_words_1";

/// Characters of a word that count; identifiers in base64 are no words.
const WORD_BYTES_MAX: usize = 128;

/// The analyzer of texts and of questions.
pub fn analyzer() -> TextAnalyzer {
    TextAnalyzer::builder(Words).filter(LowerCaser).filter(AsciiFoldingFilter).build()
}

/// Distinct words of a question that are searched for: each costs a look at every segment.
pub const WORDS_MAX: usize = 1_024;

/// Bytes of a question that are looked at.
const QUESTION_BYTES_MAX: usize = 256 * 1024;

/// The first [`WORDS_MAX`] distinct words of a question, in the order of their first use.
pub fn words(question: &str) -> Vec<String> {
    let (mut words, mut seen) = (Vec::new(), std::collections::HashSet::new());
    let mut analyzer = analyzer();
    let looked_at = question.floor_char_boundary(QUESTION_BYTES_MAX);
    let mut tokens = analyzer.token_stream(&question[..looked_at]);
    while words.len() < WORDS_MAX && tokens.advance() {
        let word = &tokens.token().text;
        if seen.insert(word.clone()) {
            words.push(word.clone());
        }
    }
    words
}

#[derive(Clone)]
struct Words;

struct Stream {
    tokens: std::vec::IntoIter<Token>,
    token: Token,
}

impl Tokenizer for Words {
    type TokenStream<'a> = Stream;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Stream {
        Stream { tokens: cut(text).into_iter(), token: Token::default() }
    }
}

impl TokenStream for Stream {
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
enum Kind {
    Spaced,
    Unspaced,
    Between,
}

fn cut(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    // A run of one kind: where it begins, and its clusters where pairs are made of them.
    let (mut kind, mut start, mut clusters) = (Kind::Between, 0, Vec::new());
    let mut end_run =
        |kind: Kind, range: std::ops::Range<usize>, clusters: &mut Vec<std::ops::Range<usize>>| {
            match kind {
                Kind::Between => {}
                Kind::Spaced => push(&mut tokens, text, range),
                Kind::Unspaced if clusters.len() == 1 => push(&mut tokens, text, range),
                Kind::Unspaced => {
                    clusters.windows(2).for_each(|pair| push(&mut tokens, text, pair[0].start..pair[1].end));
                }
            }
            clusters.clear();
        };
    for (at, cluster) in clusters_of(text) {
        let here = kind_of(cluster.chars().next().expect("a cluster has a character"));
        if here != kind {
            end_run(kind, start..at, &mut clusters);
            (kind, start) = (here, at);
        }
        if here == Kind::Unspaced {
            clusters.push(at..at + cluster.len());
        }
    }
    end_run(kind, start..text.len(), &mut clusters);
    tokens
}

/// Letters with their marks; in ASCII, where there are no marks, without looking for them.
fn clusters_of(text: &str) -> Box<dyn Iterator<Item = (usize, &str)> + '_> {
    match text.is_ascii() {
        true => Box::new((0..text.len()).map(|at| (at, &text[at..=at]))),
        false => Box::new(text.grapheme_indices(true)),
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

/// Accents that stand for themselves: `e` and `´` is then the same word as `é`.
fn is_latin_mark(c: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&c)
}

fn kind_of(c: char) -> Kind {
    match c {
        _ if !c.is_alphanumeric() => Kind::Between,
        '\u{0e00}'..='\u{0eff}'     // Thai, Lao
        | '\u{1000}'..='\u{109f}'   // Myanmar
        | '\u{1100}'..='\u{11ff}'   // Hangul Jamo
        | '\u{1780}'..='\u{17ff}'   // Khmer
        | '\u{3005}'..='\u{31ff}'   // Hiragana, Katakana, Bopomofo
        | '\u{3400}'..='\u{9fff}'   // Han
        | '\u{ac00}'..='\u{d7af}'   // Hangul
        | '\u{f900}'..='\u{faff}'   // Han, for compatibility
        | '\u{ff66}'..='\u{ffdc}'   // Katakana and Hangul of half width
        | '\u{20000}'..='\u{3ffff}' => Kind::Unspaced,
        _ => Kind::Spaced,
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
    fn long_questions_have_so_many_words() {
        let check = |text: &str, count: usize, last: &str| {
            let words = words(text);
            assert_eq!((words.len(), words.last().map_or("", String::as_str)), (count, last));
        };
        let numbers: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
        check(&numbers.join(" "), WORDS_MAX, "1023");
        check(&["0 ".repeat(5_000), numbers[..100].join(" ")].concat(), 100, "99");
        check(&["潮".repeat(QUESTION_BYTES_MAX), numbers.join(" ")].concat(), 1, "潮潮");
    }
}
