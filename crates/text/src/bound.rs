//! The length limit of sentences: divides a sentence that is too long to select at the best available
//! position. Must not know why a sentence is long: it may have no punctuation, be in a script without full
//! stops, or be one endless word.

use unicode_segmentation::UnicodeSegmentation;

use crate::range::ByteRange;

/// The least length in characters of a phrase in a script that separates phrases by spaces and does not mark
/// the ends of sentences. Text in such a script is divided if it has more than twice as many bytes.
const PHRASE_CHARS_MIN: usize = 60;

/// Appends `sentence` (trimmed, not empty) to `out`, in parts of at most `bytes_max` bytes.
pub(crate) fn divide(text: &str, sentence: ByteRange, bytes_max: usize, out: &mut Vec<ByteRange>) {
    for phrase in phrases(text, sentence) {
        if phrase.len() <= bytes_max {
            out.push(phrase);
        } else {
            out.extend(parts(text, phrase, bytes_max));
        }
    }
}

/// How good a position for a cut is, in ascending order: after any grapheme cluster, after a space, at the
/// end of a clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CutQuality {
    Cluster,
    Space,
    Clause,
}

/// Divides `phrase` into parts of at most `bytes_max` bytes. A part ends at the last clause mark or newline
/// in the second half of these bytes, else at the last space in their last three quarters, else after the
/// last grapheme cluster that fits.
fn parts(text: &str, phrase: ByteRange, bytes_max: usize) -> Vec<ByteRange> {
    let mut parts = Vec::new();
    let mut rest = Some(phrase);
    // Each cut advances by at least a quarter of `bytes_max`, so the time is linear.
    while let Some(range) = rest.filter(|range| range.len() > bytes_max) {
        let cut = range.start + first_cut(range.slice(text), bytes_max);
        parts.extend(trimmed(text, ByteRange::new(range.start, cut)));
        rest = trimmed(text, ByteRange::new(cut, range.end));
    }
    parts.extend(rest);
    parts
}

/// Returns the byte offset of the best cut that leaves at most `bytes_max` bytes in front of it.
fn first_cut(text: &str, bytes_max: usize) -> usize {
    let mut best = (CutQuality::Cluster, text.len());
    let mut clusters = text.grapheme_indices(true).peekable();
    while let Some((at, cluster)) = clusters.next() {
        let end = at + cluster.len();
        if end > bytes_max && at > 0 {
            break;
        }
        let space_follows = clusters.peek().is_some_and(|(_, next)| next.starts_with(char::is_whitespace));
        let quality = match cluster {
            "\n" | "\r\n" | "\r" | "；" | "，" | "、" | "：" if end >= bytes_max / 2 => {
                CutQuality::Clause
            }
            ";" | ":" | "," | "؛" | "،" if space_follows && end >= bytes_max / 2 => CutQuality::Clause,
            _ if cluster.trim().is_empty() && end >= bytes_max / 4 => CutQuality::Space,
            _ => CutQuality::Cluster,
        };
        if quality >= best.0 {
            best = (quality, end);
        }
    }
    best.1
}

/// Divides Thai, Lao, Khmer, Burmese and Tibetan text at spaces between two letters of these scripts, where
/// the phrase before the space is long enough and enough text follows. Any other text is returned as one
/// phrase.
fn phrases(text: &str, sentence: ByteRange) -> Vec<ByteRange> {
    let inside = sentence.slice(text);
    if inside.len() <= 2 * PHRASE_CHARS_MIN
        || !inside.chars().take(2 * PHRASE_CHARS_MIN).any(is_script_without_stops)
    {
        return vec![sentence];
    }
    let mut left = inside.chars().count();
    let (mut phrases, mut start, mut chars) = (Vec::new(), sentence.start, 0);
    let mut before = ' ';
    for (at, c) in inside.char_indices() {
        let may_cut = before.is_whitespace() && is_script_without_stops(c);
        if may_cut && chars >= PHRASE_CHARS_MIN && left >= PHRASE_CHARS_MIN / 2 {
            let phrase = ByteRange::new(start, sentence.start + at);
            if phrase.slice(text).trim_end().ends_with(is_script_without_stops) {
                phrases.extend(trimmed(text, phrase));
                (start, chars) = (sentence.start + at, 0);
            }
        }
        (before, chars, left) = (c, chars + 1, left - 1);
    }
    phrases.extend(trimmed(text, ByteRange::new(start, sentence.end)));
    phrases
}

fn is_script_without_stops(c: char) -> bool {
    matches!(c, '\u{0E00}'..='\u{0FFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}')
}

/// Returns `range` without the whitespace at its ends, or `None` when nothing is left.
pub(crate) fn trimmed(text: &str, range: ByteRange) -> Option<ByteRange> {
    let inside = range.slice(text);
    let start = range.start + (inside.len() - inside.trim_start().len());
    let len = inside.trim().len();
    (len > 0).then(|| ByteRange::new(start, start + len))
}
