//! Owns the longest sentence: divides a sentence that is too long to select, at the best place that it has.
//! Must not know why a sentence is long: no punctuation, a script without full stops, or one endless word.

use unicode_segmentation::UnicodeSegmentation;

use super::trimmed;
use crate::domain::ByteRange;

/// Text of a script that marks phrases with spaces and sentences not at all is divided beyond twice this length.
const PHRASE_CHARS_MIN: usize = 60;

/// Appends `unit` (trimmed, not empty) to `out`, in parts of at most `bytes_max` bytes.
pub(super) fn divide(text: &str, unit: ByteRange, bytes_max: usize, out: &mut Vec<ByteRange>) {
    for phrase in phrases(text, unit) {
        if phrase.len() <= bytes_max {
            out.push(phrase);
        } else {
            out.extend(parts(text, phrase, bytes_max));
        }
    }
}

/// How good a place to cut is; later is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Cluster,
    Space,
    Clause,
}

/// Cuts at the last clause mark or newline in the second half of the room, else at the last space in its last three
/// quarters, else at the last grapheme cluster that fits. Each cut moves a quarter of the room on: the time is linear.
fn parts(text: &str, unit: ByteRange, bytes_max: usize) -> Vec<ByteRange> {
    let mut parts = Vec::new();
    let mut rest = Some(unit);
    while let Some(unit) = rest.filter(|unit| unit.len() > bytes_max) {
        let cut = unit.start + first_cut(unit.of(text), bytes_max);
        parts.extend(trimmed(text, ByteRange::new(unit.start, cut)));
        rest = trimmed(text, ByteRange::new(cut, unit.end));
    }
    parts.extend(rest);
    parts
}

fn first_cut(text: &str, bytes_max: usize) -> usize {
    let mut best = (Place::Cluster, text.len());
    let mut clusters = text.grapheme_indices(true).peekable();
    while let Some((at, cluster)) = clusters.next() {
        let end = at + cluster.len();
        if end > bytes_max && at > 0 {
            break;
        }
        let spaced = clusters.peek().is_some_and(|(_, next)| next.starts_with(char::is_whitespace));
        let place = match cluster {
            "\n" | "\r\n" | "\r" | "；" | "，" | "、" | "：" if end >= bytes_max / 2 => Place::Clause,
            ";" | ":" | "," | "؛" | "،" if spaced && end >= bytes_max / 2 => Place::Clause,
            _ if cluster.trim().is_empty() && end >= bytes_max / 4 => Place::Space,
            _ => Place::Cluster,
        };
        if place >= best.0 {
            best = (place, end);
        }
    }
    best.1
}

/// Thai, Lao, Khmer, Burmese and Tibetan text: cut at a space between two of its letters, once a phrase is long enough
/// and enough is left. Any other text is one phrase.
fn phrases(text: &str, unit: ByteRange) -> Vec<ByteRange> {
    let inside = unit.of(text);
    if inside.len() <= 2 * PHRASE_CHARS_MIN || !inside.chars().take(2 * PHRASE_CHARS_MIN).any(is_unstopped) {
        return vec![unit];
    }
    let mut left = inside.chars().count();
    let (mut phrases, mut start, mut chars) = (Vec::new(), unit.start, 0);
    let mut before = ' ';
    for (at, c) in inside.char_indices() {
        let between = before.is_whitespace() && is_unstopped(c);
        if between && chars >= PHRASE_CHARS_MIN && left >= PHRASE_CHARS_MIN / 2 {
            let phrase = ByteRange::new(start, unit.start + at);
            if phrase.of(text).trim_end().ends_with(is_unstopped) {
                phrases.extend(trimmed(text, phrase));
                (start, chars) = (unit.start + at, 0);
            }
        }
        (before, chars, left) = (c, chars + 1, left - 1);
    }
    phrases.extend(trimmed(text, ByteRange::new(start, unit.end)));
    phrases
}

fn is_unstopped(c: char) -> bool {
    matches!(c, '\u{0E00}'..='\u{0FFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}')
}
