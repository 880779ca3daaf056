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

use super::abbreviations::{Abbreviation, abbreviation, precedes_ordinal};
use super::around::{Next, extended, is_closing, is_opening, is_roman, last_word};
use super::lines::is_wide;

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
        let Some(at) = next.filter(|&at| at < flat.len()) else {
            break;
        };
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

/// Boundaries that UAX #29 does not offer: before a number or a name like `iPhone`, after `…`, and where the lower
/// case of a citation or a tag hides that a capital follows.
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
        let hidden = text[at..end].contains(['[', '<']) || stop == "…";
        let offered = first.is_numeric() || next.is_camel() || hidden && !next.is_lower();
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
        let Some(stop) = through.chars().next_back() else {
            return Verdict::GoesOn(self.at);
        };
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
        let Some(follows) = self.text[end..].chars().next() else {
            return false;
        };
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
            _ if before.ends_with("...") || before.ends_with('…') => true,
            _ if before.ends_with('.') => !next.is_pronoun_i(),
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
        return !(ordinal || word.len() <= 2 && next.is_number());
    }
    match abbreviation(word) {
        Some(Abbreviation::Never) => false,
        Some(Abbreviation::Numbered) => !next.is_number() && !next.is_numeral(),
        Some(Abbreviation::Ambiguous) => next.is_starter(),
        None => !next.is_number() || next.is_enumerator() || !may_shorten(word),
    }
}

/// Whether an unknown word before a number looks shortened: `KV. 550`, `xii. 115`, but not `it. 5 people`.
fn may_shorten(word: &str) -> bool {
    let vowel = |c: char| "aeiouyAEIOUY".contains(c);
    let roman = word.bytes().all(|b| matches!(b, b'i' | b'v' | b'x' | b'l' | b'c'));
    let short = (1..=3).contains(&word.chars().count()) && word.chars().all(char::is_alphabetic);
    !word.is_empty() && (roman || short && !word.contains(vowel))
}

/// `1.`, `2.3.`, `IV.`, `a.` where an item starts: at the start of the sentence, or after a colon or a semicolon.
fn is_enumerator(rest: &str, word: &str) -> bool {
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

/// Whether a cut at `at` leaves every grapheme cluster whole.
fn is_cluster_boundary(text: &str, at: usize) -> bool {
    let spaced = text[..at].ends_with(char::is_whitespace) || text[at..].starts_with(char::is_whitespace);
    spaced || GraphemeCursor::new(at, text.len(), true).is_boundary(text, 0).unwrap_or(false)
}
