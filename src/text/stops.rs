//! Owns where a sentence ends in running text: Unicode's rules (UAX #29, by ICU4X), and what they get wrong.
//! Must not know of layout: a piece of prose comes in, its newlines are spaces here.
//!
//! UAX #29 knows no abbreviation, never ends a sentence before a number that a lower-case word follows, and takes an
//! opening bracket after a stop for a closing one. So each of its boundaries is traced back to the stop that made it,
//! moved past what closes the sentence (quotes, brackets, citations), and then kept or not by the words around it.
//! Every look around is bounded by a constant or by the next boundary: the time is linear.

use std::borrow::Cow;

use icu_segmenter::SentenceSegmenter;
use icu_segmenter::options::SentenceBreakInvariantOptions;
use unicode_segmentation::GraphemeCursor;

use super::abbreviations::{Abbreviation, abbreviation, is_starter, precedes_ordinal};
use super::lines::is_wide;

/// How far a rule looks for the word next to a stop.
const WORD_BYTES_MAX: usize = 32;
/// The longest `[citation needed]` or `</closing tag>` that still belongs to the sentence before it.
const CITATION_BYTES_MAX: usize = 40;

/// The end of each sentence of `piece`, its own end included; the whitespace between two is on either side.
pub(super) fn ends(piece: &str) -> Vec<usize> {
    let flat = unwrapped(piece);
    let segmenter = SentenceSegmenter::new(SentenceBreakInvariantOptions::default());
    let mut breaks = segmenter.segment_str(&flat).skip(1).peekable();
    let mut missed = missed(&flat).peekable();
    let (mut ends, mut start, mut judged) = (Vec::new(), 0, 0);
    loop {
        let next = match (breaks.peek(), missed.peek()) {
            (Some(b), Some(m)) if m < b => missed.next(),
            (Some(_), _) => breaks.next(),
            (None, _) => missed.next(),
        };
        let Some(at) = next.filter(|&at| at < flat.len()) else { break };
        // Stops that stand together have one end: judging it once keeps the time linear.
        if at <= judged {
            continue;
        }
        match (Boundary { text: &flat, start, at }).verdict() {
            Verdict::Ends(end) => {
                ends.push(end);
                (start, judged) = (end, end);
            }
            Verdict::GoesOn(end) => judged = judged.max(end),
        }
    }
    ends.push(flat.len());
    ends
}

/// The piece with its newlines as spaces, byte for byte in place: to UAX #29 a newline ends a sentence.
fn unwrapped(piece: &str) -> Cow<'_, str> {
    match piece.contains(['\n', '\r']) {
        true => Cow::Owned(piece.replace(['\n', '\r'], " ")),
        false => Cow::Borrowed(piece),
    }
}

/// Boundaries that UAX #29 never offers: after a stop, before a number or a name like `iPhone`, and after `…`.
fn missed(text: &str) -> impl Iterator<Item = usize> {
    let mut judged = 0;
    text.match_indices(['.', '…']).filter_map(move |(at, stop)| {
        if at < judged {
            return None;
        }
        let end = extended(text, at + stop.len());
        judged = end;
        let next = text[end..].starts_with(char::is_whitespace).then(|| Next::after(text, end))?;
        let first = next.word.chars().next()?;
        let offered = first.is_numeric() || next.is_camel() || stop == "…" && !next.is_lower();
        offered.then_some(end)
    })
}

/// A place where a sentence that began at `start` may end.
struct Boundary<'a> {
    text: &'a str,
    start: usize,
    at: usize,
}

/// The place behind a stop and all that closes its sentence, and whether the sentence ends there.
enum Verdict {
    Ends(usize),
    GoesOn(usize),
}

impl Boundary<'_> {
    fn verdict(&self) -> Verdict {
        let through = &self.text[self.start..self.at];
        if through.ends_with(['\u{85}', '\u{2028}', '\u{2029}']) {
            return Verdict::Ends(self.at);
        }
        let through = through.trim_end_matches(|c: char| c.is_whitespace() || is_closing(c) || is_opening(c));
        let Some(stop) = through.chars().next_back() else { return Verdict::GoesOn(self.at) };
        let before = &through[..through.len() - stop.len_utf8()];
        let end = extended(self.text, self.start + through.len());
        let ends = match stop {
            '.' | '…' | '․' | '．' | '!' | '?' => self.ends_at_spaced(stop, before, end),
            _ => self.ends_at_unspaced(end),
        };
        if ends && is_cluster_boundary(self.text, end) { Verdict::Ends(end) } else { Verdict::GoesOn(end) }
    }

    /// After `。`, `？`, `।` and their like; in Japanese a particle takes a quotation on into its sentence.
    fn ends_at_unspaced(&self, end: usize) -> bool {
        const PARTICLES: [char; 10] = ['と', 'っ', 'な', 'の', 'は', 'が', 'を', 'に', 'も', 'で'];
        let quoted = self.text[..end].ends_with(['」', '』', '）', '”']);
        !(quoted && self.text[end..].starts_with(PARTICLES))
    }

    /// After a stop that only white space, or a script without spaces, makes one: not in `3.14`, `v1.2`, `a?b=c`.
    fn ends_at_spaced(&self, stop: char, before: &str, end: usize) -> bool {
        let Some(follows) = self.text[end..].chars().next() else { return false };
        let next = Next::after(self.text, end);
        if !follows.is_whitespace() {
            return is_wide(follows) && !before.ends_with(|c: char| c.is_ascii_digit());
        }
        if next.is_lower() {
            return stop == '.' && next.is_camel() && ends_at_dot(before, &next);
        }
        let cited = self.text[self.start + before.len()..end].contains('[');
        match stop {
            '!' | '?' => true,
            '…' => !next.is_pronoun_i(),
            _ if before.ends_with(['.', '…']) => !next.is_pronoun_i(),
            _ => cited || ends_at_dot(before, &next),
        }
    }
}

/// Whether the full stop between `before` and `next` ends a sentence.
fn ends_at_dot(before: &str, next: &Next) -> bool {
    let word = last_word(before);
    let rest = &before[..before.len() - word.len()];
    if is_enumerator(rest, word) {
        return false;
    }
    if word.bytes().all(|b| b.is_ascii_digit()) && !word.is_empty() {
        let ordinal = word.len() <= 2 && precedes_ordinal(last_word(rest.trim_end()));
        return !ordinal && !(word.len() <= 2 && next.is_number());
    }
    match abbreviation(word) {
        Some(Abbreviation::Never) => false,
        Some(Abbreviation::Numbered) => !next.is_number() && !next.is_numeral(),
        Some(Abbreviation::Ambiguous) => next.is_starter(),
        None => !next.is_number() || word.is_empty() || word.chars().count() > 3 || !word.chars().all(char::is_alphabetic),
    }
}

/// `1.`, `2.3.`, `IV.`, `a.` where an item starts: at the start of the sentence, or after a colon or a semicolon.
fn is_enumerator(rest: &str, word: &str) -> bool {
    let rest = rest.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '(' | '[' | '*' | '_' | '#' | '>' | '-' | '•'));
    let starts = rest.is_empty() || rest.ends_with([':', ';']);
    let number = word.len() <= 8 && word.split('.').all(|p| matches!(p.len(), 1..=3) && p.bytes().all(|b| b.is_ascii_digit()));
    let letters = rest.is_empty() && (is_roman(word) || word.len() == 1 && word != "I" && word.bytes().all(|b| b.is_ascii_alphabetic()));
    starts && (number || letters)
}

fn is_roman(word: &str) -> bool {
    (1..=5).contains(&word.len()) && word.bytes().all(|b| matches!(b, b'I' | b'V' | b'X'))
}

/// The letters, digits and inner dots at the end of `text`; empty when there are more than a rule would know.
fn last_word(text: &str) -> &str {
    let tail = text.chars().rev().take(WORD_BYTES_MAX).take_while(|&c| c.is_alphanumeric() || c == '.');
    let len = tail.map(char::len_utf8).sum::<usize>();
    text[text.len() - len..].trim_start_matches('.')
}

/// The first word after a boundary, past opening quotes, brackets and marks.
struct Next<'a> {
    word: &'a str,
    /// The character after the word.
    then: Option<char>,
}

impl<'a> Next<'a> {
    fn after(text: &'a str, end: usize) -> Self {
        let rest = text[end..].trim_start();
        let marks = rest.chars().take(8).take_while(|c| !c.is_alphanumeric()).map(char::len_utf8).sum();
        let rest: &str = &rest[marks..];
        let letters = rest.chars().take(WORD_BYTES_MAX).take_while(|&c| c.is_alphanumeric() || matches!(c, '\'' | '’'));
        let (word, rest) = rest.split_at(letters.map(char::len_utf8).sum());
        Self { word, then: rest.chars().next() }
    }

    /// Georgian letters count as lower case in Unicode, but start sentences.
    fn is_lower(&self) -> bool {
        self.word.starts_with(|c: char| c.is_lowercase() && !matches!(c, '\u{10D0}'..='\u{10FF}'))
    }

    fn is_camel(&self) -> bool {
        self.is_lower() && self.word.chars().skip(1).take(2).any(char::is_uppercase)
    }

    fn is_number(&self) -> bool {
        self.word.starts_with(char::is_numeric)
    }

    /// A Roman numeral or a capital letter; `I` and `A` are words as well.
    fn is_numeral(&self) -> bool {
        let letter = self.word.len() == 1 && !matches!(self.word, "A" | "I");
        letter && self.word.bytes().all(|b| b.is_ascii_uppercase()) || self.word.len() > 1 && is_roman(self.word)
    }

    fn is_pronoun_i(&self) -> bool {
        self.word == "I" || self.word.starts_with("I'") || self.word.starts_with("I’")
    }

    fn is_starter(&self) -> bool {
        is_starter(self.word) && !matches!(self.then, Some('.' | '-'))
    }
}

/// `end` moved past what closes the sentence: marks of the same stop, quotes, brackets, emphasis, `[12]`, `</b>`.
fn extended(text: &str, mut end: usize) -> usize {
    loop {
        let rest = &text[end..];
        let Some(c) = rest.chars().next() else { return end };
        let after = rest[c.len_utf8()..].chars().next();
        end += match c {
            '“' | '‘' | '«' | '»' if after.is_some_and(char::is_alphanumeric) => return end,
            '[' | '<' => match citation(rest) {
                Some(len) => len,
                None => return end,
            },
            _ if is_closing(c) || matches!(c, '.' | '!' | '?' | '…' | '！' | '？' | '。' | '\u{FE0F}' | '\u{200D}') => c.len_utf8(),
            // French puts a space before its closing quotation mark.
            _ if c.is_whitespace() && after == Some('»') => match rest.chars().nth(2) {
                Some(c) if c.is_alphanumeric() => return end,
                _ => c.len_utf8() + '»'.len_utf8(),
            },
            _ => return end,
        };
    }
}

/// The length of the `[12]`, `[citation needed]` or `</sup>` that `text` starts with.
fn citation(text: &str) -> Option<usize> {
    let open = text.as_bytes()[0];
    let close = if open == b'[' { b']' } else { b'>' };
    let len = text.bytes().take(CITATION_BYTES_MAX).position(|b| b == close)? + 1;
    let tag = open == b'[' || text[1..].starts_with(['/', 's']) || text.starts_with("<br");
    tag.then_some(len)
}

/// Also quotation marks that open in some languages: right after a stop they close.
fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '}' | '”' | '’' | '“' | '‘' | '»' | '«' | '›' | '*' | '_' | '`' | '~' | '」' | '』' | '）'
        | '】' | '》' | '〉' | '〕' | '］' | '｝' | '＂' | '¹' | '²' | '³' | '⁴'..='⁹' | '⁰')
}

fn is_opening(c: char) -> bool {
    matches!(c, '(' | '[' | '{' | '¿' | '¡' | '„' | '‚' | '‹' | '「' | '『' | '（' | '【' | '《' | '〈' | '〔' | '［' | '｛')
}

/// Whether a cut at `at` leaves every grapheme cluster whole.
fn is_cluster_boundary(text: &str, at: usize) -> bool {
    let spaced = text[..at].ends_with(char::is_whitespace) || text[at..].starts_with(char::is_whitespace);
    spaced || GraphemeCursor::new(at, text.len(), true).is_boundary(text, 0).unwrap_or(false)
}
