//! Owns how a text is divided into sentences, and how offsets into it are counted.
//! Knows nothing of chunks, tokens or scores: text in, byte ranges out.
//!
//! Three steps, each linear in the text: `lines` cuts what the layout separates (paragraphs, headings, list items,
//! table rows, code), `stops` cuts prose at sentence ends, `bound` divides what is still too long to select.

pub mod offsets;

mod abbreviations;
mod around;
mod arriving;
mod bound;
mod lines;
mod numbers;
mod stops;
mod terms;
mod words;

#[cfg(test)]
mod tests;

use crate::domain::ByteRange;
use lines::{Kind, Piece};

pub use arriving::{Arriving, arrived};
pub use terms::{Term, markers, terms};
pub use words::words;

/// The most bytes that [`sentences`] puts in one sentence, unless a single grapheme cluster is longer.
pub const SENTENCE_BYTES_MAX: usize = 2000;

/// Changes whenever [`sentences`] may cut a text otherwise: what was cut by older rules is then cut anew.
pub const RULES_VERSION: u32 = 1;

/// The sentences of `text`, in order.
///
/// What always holds: ranges are disjoint, not empty, on character boundaries, without whitespace at either end, and
/// every byte outside them is whitespace. A boundary between two characters that are not whitespace never cuts a
/// grapheme cluster. Empty and blank texts have no sentence.
pub fn sentences(text: &str) -> Vec<ByteRange> {
    sentences_within(text, SENTENCE_BYTES_MAX)
}

/// [`sentences`], none of them over `bytes_max` (at least 1) unless a single grapheme cluster is.
pub fn sentences_within(text: &str, bytes_max: usize) -> Vec<ByteRange> {
    let mut found = Vec::new();
    for piece in lines::pieces(text) {
        for unit in units(text, piece) {
            bound::divide(text, unit, bytes_max.max(1), &mut found);
        }
    }
    found
}

/// A piece's sentences, trimmed. One without a letter or digit (an emoji, a stray bracket) joins its neighbour.
fn units(text: &str, piece: Piece) -> Vec<ByteRange> {
    let ends = match piece.kind {
        Kind::Whole => vec![piece.range.len()],
        Kind::Prose => stops::ends(piece.range.of(text)),
    };
    let mut units: Vec<ByteRange> = Vec::with_capacity(ends.len());
    let (mut start, mut last_has_words) = (piece.range.start, true);
    for end in ends {
        let raw = ByteRange::new(start, piece.range.start + end);
        start = raw.end;
        let Some(unit) = trimmed(text, raw) else { continue };
        let has_words = unit.of(text).contains(char::is_alphanumeric);
        match units.last_mut() {
            Some(last) if !has_words || !last_has_words => {
                last.end = unit.end;
                last_has_words |= has_words;
            }
            _ => {
                units.push(unit);
                last_has_words = has_words;
            }
        }
    }
    units
}

/// `range` without the whitespace at its ends; `None` when nothing is left.
fn trimmed(text: &str, range: ByteRange) -> Option<ByteRange> {
    let inside = range.of(text);
    let start = range.start + (inside.len() - inside.trim_start().len());
    let len = inside.trim().len();
    (len > 0).then(|| ByteRange::new(start, start + len))
}
