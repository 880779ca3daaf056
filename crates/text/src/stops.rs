//! Sentence ends in running text: Unicode's rules (UAX #29, by ICU4X), and corrections where they are wrong.
//! Must not know of layout: the input is a group of lines of prose, whose newlines count as spaces.
//!
//! UAX #29 knows no abbreviations, never ends a sentence before a number that a lower-case word follows, and
//! takes an opening bracket after a stop for a closing one. This module therefore traces each of its
//! boundaries back to the stop that caused it, moves it past everything that closes the sentence (quotes,
//! brackets, citations), and then keeps or drops it depending on the words around it. All look-ups in the
//! text are limited by a constant or by the next boundary, so the time is linear.

use std::borrow::Cow;

use icu_segmenter::SentenceSegmenter;
use icu_segmenter::options::SentenceBreakInvariantOptions;
use unicode_segmentation::GraphemeCursor;

use crate::abbreviations::{Abbreviation, abbreviation, is_month, precedes_ordinal};
use crate::lexicon::{Class, has, is};
use crate::lines::is_wide;
use crate::stop_context::{NextWord, extended, is_closing, is_opening, is_roman, last_word, precedes_source};

/// Returns the byte offset of the end of each sentence of `prose`, including the end of the last one. The
/// whitespace between two sentences belongs to either of them.
pub(crate) fn ends(prose: &str) -> Vec<usize> {
    let flat = unwrapped(prose);
    let segmenter = SentenceSegmenter::new(SentenceBreakInvariantOptions::default());
    let mut breaks = segmenter.segment_str(&flat).skip(1).peekable();
    let mut missed = missed(&flat).peekable();
    let mut items = items(&flat).into_iter().peekable();
    let (mut ends, mut start, mut checked_to) = (Vec::new(), 0, 0);
    loop {
        let next = match (breaks.peek(), missed.peek()) {
            (Some(b), Some(m)) if m < b => missed.next(),
            (Some(_), _) => breaks.next(),
            (None, _) => missed.next(),
        };
        // A sentence ends before the number of an item, and not after it.
        while let Some(item) = items.next_if(|item| next.is_none_or(|at| item.start <= at)) {
            if item.start > start {
                ends.push(item.start);
            }
            (start, checked_to) = (item.start, checked_to.max(item.end));
        }
        let Some(at) = next.filter(|&at| at < flat.len()) else {
            break;
        };
        // Adjacent stops have the same end. Checking it only once keeps the time linear.
        if at <= checked_to {
            continue;
        }
        match (Boundary { text: &flat, start, at }).verdict() {
            Verdict::Ends(end) => {
                ends.push(end);
                (start, checked_to) = (end, end);
            }
            Verdict::Continues(end) => checked_to = checked_to.max(end),
        }
    }
    ends.push(flat.len());
    ends
}

/// Returns the numbers of the items of a list that is written in one line, such as `1. First 2. Second`, with the marks
/// around them. The list begins with the text, its numbers or letters follow each other, and its items begin with
/// capitals: numbers inside a sentence do not.
fn items(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut items = Vec::new();
    let mut last: Option<(u32, &str)> = None;
    let (mut at, mut before) = (0, "");
    for word in text.split_inclusive(char::is_whitespace) {
        let start = at;
        at += word.len();
        let before = std::mem::replace(&mut before, word.trim_end());
        // A bullet may stand before the number, also as a word of its own.
        let number = word.trim_end().trim_start_matches(['•', '⁃', '-', '*']);
        if number.is_empty() && !word.trim().is_empty() && last.is_none() && start == 0 {
            continue;
        }
        let (value, style) = match number.find(|c: char| !c.is_ascii_alphanumeric()) {
            Some(split) => (value(&number[..split]), &number[split..]),
            None => (None, ""),
        };
        let is_mark = matches!(style, "." | ")" | ".)") && text[at..].starts_with(char::is_uppercase);
        // A German ordinal, such as `der 2. Bundesliga`.
        let is_ordinal = precedes_ordinal(before) || is_month(NextWord::after(text, at).word);
        let Some(value) = value.filter(|_| is_mark && !is_ordinal) else {
            if last.is_none() {
                return Vec::new();
            }
            continue;
        };
        if last.is_none_or(|last| last == (value - 1, style)) {
            let bullet =
                text[..start].trim_end().char_indices().next_back().filter(|(_, c)| "•⁃".contains(*c));
            items.push(bullet.map_or(start, |(bullet, _)| bullet)..at);
            last = Some((value, style));
        }
    }
    if items.len() > 1 { items } else { Vec::new() }
}

/// Returns the place of an item from its number or letter.
fn value(number: &str) -> Option<u32> {
    match number.as_bytes() {
        [letter] if letter.is_ascii_lowercase() => Some(u32::from(*letter)),
        digits if digits.len() <= 2 => number.parse().ok().filter(|value| *value > 0),
        _ => None,
    }
}

/// Returns the text with each newline replaced by a space, because UAX #29 ends a sentence at a newline. Byte
/// offsets do not change.
fn unwrapped(prose: &str) -> Cow<'_, str> {
    if prose.contains(['\n', '\r']) {
        Cow::Owned(prose.replace(['\n', '\r'], " "))
    } else {
        Cow::Borrowed(prose)
    }
}

/// Returns possible boundaries that UAX #29 misses: before a number or a name like `iPhone`, after `…`, and
/// after a citation or tag in lower case, a colon in Armenian, which hides from UAX #29 that a capital follows.
fn missed(text: &str) -> impl Iterator<Item = usize> {
    let mut checked_to = 0;
    text.match_indices(['.', '…', ':']).filter_map(move |(at, stop)| {
        if at < checked_to {
            return None;
        }
        // Armenian is often written with a colon for its full stop.
        let is_armenian = |c: char| matches!(c, '\u{531}'..='\u{58F}');
        if stop == ":" && !text[..at].chars().rev().take(2).any(is_armenian) {
            return None;
        }
        let end = extended(text, at + stop.len());
        checked_to = end;
        if stop == ":" {
            return text[end..].starts_with(char::is_whitespace).then_some(end);
        }
        let next = text[end..].starts_with(char::is_whitespace).then(|| NextWord::after(text, end))?;
        let first = next.word.chars().next()?;
        let hides_case = text[at..end].contains(['[', '<']) || stop == "…";
        let is_candidate = first.is_numeric() || next.is_camel() || hides_case && !next.is_lower();
        is_candidate.then_some(end)
    })
}

/// The longest title of a work in Chinese that is looked through for its beginning, in characters.
const TITLE_CHARS_MAX: usize = 40;

/// A position `at` where a sentence that began at `start` may end, both as byte offsets of `text`.
struct Boundary<'a> {
    text: &'a str,
    start: usize,
    at: usize,
}

/// Whether a sentence ends at a stop, with the byte offset after the stop and everything that closes the
/// sentence.
enum Verdict {
    Ends(usize),
    Continues(usize),
}

impl Boundary<'_> {
    fn verdict(&self) -> Verdict {
        let through = &self.text[self.start..self.at];
        if through.ends_with(['\u{85}', '\u{2028}', '\u{2029}']) {
            return Verdict::Ends(self.at);
        }
        let through = through.trim_end_matches(|c: char| c.is_whitespace() || is_closing(c) || is_opening(c));
        let Some(stop) = through.chars().next_back() else {
            return Verdict::Continues(self.at);
        };
        let before = &through[..through.len() - stop.len_utf8()];
        let end = extended(self.text, self.start + through.len());
        let ends = match stop {
            '.' | '…' | '․' | '．' | '!' | '?' => self.ends_at_spaced(stop, before, end),
            _ => self.ends_at_unspaced(end),
        };
        if ends && is_cluster_boundary(self.text, end) { Verdict::Ends(end) } else { Verdict::Continues(end) }
    }

    /// Returns whether the sentence ends after a stop such as `。`, `？` or `।`. In Japanese, a particle after
    /// a quotation continues the sentence around the quotation.
    fn ends_at_unspaced(&self, end: usize) -> bool {
        const PARTICLES: [char; 10] = ['と', 'っ', 'な', 'の', 'は', 'が', 'を', 'に', 'も', 'で'];
        let quoted = self.text[..end].ends_with(['」', '』', '）', '”']);
        // The title of a work may have stops of its own.
        let near = self.text[self.start..end].char_indices().rev().take(TITLE_CHARS_MAX);
        let title = near.map(|(_, c)| c).find(|c| matches!(c, '《' | '》'));
        if title == Some('《') {
            return false;
        }
        !(quoted && self.text[end..].starts_with(PARTICLES))
    }

    /// Returns whether the sentence ends after a stop that ends it only before whitespace or before a script
    /// without spaces: not in `3.14`, `v1.2` or `a?b=c`.
    fn ends_at_spaced(&self, stop: char, before: &str, end: usize) -> bool {
        let Some(follows) = self.text[end..].chars().next() else {
            return false;
        };
        let next = NextWord::after(self.text, end);
        if !follows.is_whitespace() {
            return is_wide(follows) && !before.ends_with(|c: char| c.is_ascii_digit());
        }
        if next.is_lower() {
            return stop == '.' && next.is_camel() && ends_at_dot(before, &next);
        }
        let cited = self.text[self.start + before.len()..end].contains('[');
        match stop {
            _ if precedes_source(&self.text[end..]) => false,
            '!' | '?' => true,
            '…' => !next.is_pronoun_i(),
            _ if before.ends_with("...") || before.ends_with('…') => true,
            // Points with spaces between them, too: `. . .`
            _ if before.ends_with('.') || before.ends_with(". ") => !next.is_pronoun_i(),
            _ => cited || ends_at_dot(before, &next),
        }
    }
}

/// Returns whether the full stop between `before` and `next` ends a sentence.
fn ends_at_dot(before: &str, next: &NextWord) -> bool {
    let word = last_word(before);
    let rest = &before[..before.len() - word.len()];
    if is_enumerator(rest, word) || is_section(rest, word) {
        return false;
    }
    if word.bytes().all(|b| b.is_ascii_digit()) && !word.is_empty() {
        let ordinal =
            word.len() <= 2 && (precedes_ordinal(last_word(rest.trim_end())) || is_month(next.word));
        return !(ordinal || word.len() <= 2 && next.is_number());
    }
    match abbreviation(word) {
        Some(Abbreviation::Never) => false,
        Some(Abbreviation::Numbered) => !next.is_number() && !next.is_numeral(),
        Some(Abbreviation::Ambiguous) => next.is_starter() || is_measure(rest, word) && !next.is_number(),
        None => !next.is_number() || next.is_enumerator() || !may_be_abbreviation(word),
    }
}

/// Returns whether a word is a unit behind a number, such as `mg` in `10 mg`. What follows its stop with a capital is a new sentence.
fn is_measure(rest: &str, word: &str) -> bool {
    let number = rest.trim_end_matches([' ', '\u{a0}']);
    number.len() < rest.len() && number.ends_with(|c: char| c.is_ascii_digit()) && has(Class::Measure, word)
}

/// Returns whether an unknown word before a number looks like an abbreviation: `KV. 550`, `xii. 115`, but not
/// `it. 5 people`.
fn may_be_abbreviation(word: &str) -> bool {
    let vowel = |c: char| "aeiouyAEIOUY".contains(c);
    let roman = word.bytes().all(|b| matches!(b, b'i' | b'v' | b'x' | b'l' | b'c'));
    let short = (1..=3).contains(&word.chars().count()) && word.chars().all(char::is_alphabetic);
    !word.is_empty() && (roman || short && !word.contains(vowel))
}

/// Returns whether `word` numbers a list item, such as `1.`, `2.3.`, `IV.` or `a.`, at the start of the
/// sentence or after a colon or a semicolon.
fn is_enumerator(rest: &str, word: &str) -> bool {
    // The minutes of a time, such as `18:25.`
    if rest.strip_suffix(':').is_some_and(|hours| hours.ends_with(|c: char| c.is_ascii_digit())) {
        return false;
    }
    let rest = rest.trim_end_matches(|c: char| {
        c.is_whitespace() || matches!(c, '(' | '[' | '*' | '_' | '#' | '>' | '-' | '•')
    });
    let starts = rest.is_empty() || rest.ends_with([':', ';']);
    let number = word.len() <= 8
        && word.split('.').all(|p| matches!(p.len(), 1..=3) && p.bytes().all(|b| b.is_ascii_digit()));
    let letters = rest.is_empty()
        && (is_roman(word)
            || word.len() == 1 && word != "I" && word.bytes().all(|b| b.is_ascii_alphabetic()));
    starts && (number || letters)
}

/// Returns whether `word` is the number of a section that a sentence begins with, such as `Art. 5.` or `Kapitel 2.`
fn is_section(rest: &str, word: &str) -> bool {
    let name = rest.trim_start_matches(|c: char| !c.is_alphanumeric()).trim_end_matches([' ', '\u{a0}', '.']);
    name.len() < rest.len()
        && word.len() <= 8
        && word.starts_with(|c: char| c.is_ascii_digit())
        && is(Class::Section, name)
}

/// Returns whether a cut at byte offset `at` divides no grapheme cluster.
fn is_cluster_boundary(text: &str, at: usize) -> bool {
    let at_whitespace =
        text[..at].ends_with(char::is_whitespace) || text[at..].starts_with(char::is_whitespace);
    at_whitespace || GraphemeCursor::new(at, text.len(), true).is_boundary(text, 0).unwrap_or(false)
}
