//! Divides a text into sentences and words. Knows nothing of chunks, tokens or scores; takes text and returns byte ranges.
//!
//! Sentences are found in three steps, each in linear time. `lines` cuts the text where its layout does
//! (paragraphs, headings, list items, table rows, code), `stops` cuts prose at sentence ends, and `bound`
//! divides sentences that are still too long to select.

use std::sync::LazyLock;

use icu_segmenter::options::WordBreakInvariantOptions;
use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed};

use crate::bound::{self, trimmed};
use crate::lines::{GroupKind, LineGroup};
use crate::range::ByteRange;
use crate::{lines, stops};

/// The length limit of the sentences that [`sentences`] returns, in bytes. Only a single grapheme cluster may
/// be longer.
pub const SENTENCE_BYTES_MAX: usize = 2000;

/// The version of the segmentation rules. It changes whenever [`sentences`] may cut a text differently, so
/// that caches of sentences built with older rules are not used.
pub const RULES_VERSION: u32 = 8;

/// Returns the sentences of `text` in order.
///
/// The ranges are disjoint, not empty, on character boundaries and without whitespace at either end. Every
/// byte outside them is whitespace. A boundary between two characters that are not whitespace never cuts a
/// grapheme cluster. Empty and blank texts have no sentence.
///
/// ```
/// let text = "Dr. Smith paid $3.5 million. Was he happy?";
/// let ranges = thresher_text::sentences(text);
/// let found: Vec<&str> = ranges.into_iter().map(|range| range.slice(text)).collect();
/// assert_eq!(found, ["Dr. Smith paid $3.5 million.", "Was he happy?"]);
/// ```
pub fn sentences(text: &str) -> Vec<ByteRange> {
    sentences_within(text, SENTENCE_BYTES_MAX)
}

/// Returns the sentences of `text` like [`sentences`], with the length limit `bytes_max` (raised to 1 if it
/// is 0). Only a single grapheme cluster may be longer.
pub fn sentences_within(text: &str, bytes_max: usize) -> Vec<ByteRange> {
    let mut found = Vec::new();
    for group in lines::groups(text) {
        for sentence in sentences_of(text, group) {
            bound::divide(text, sentence, bytes_max.max(1), &mut found);
        }
    }
    found
}

/// Returns the sentences of a group of lines, trimmed. A sentence without a letter or digit (an emoji, a
/// stray bracket) is joined with its neighbour.
fn sentences_of(text: &str, group: LineGroup) -> Vec<ByteRange> {
    let ends = match group.kind {
        GroupKind::Whole => vec![group.range.len()],
        GroupKind::Prose => stops::ends(group.range.slice(text)),
    };
    let mut found: Vec<ByteRange> = Vec::with_capacity(ends.len());
    let (mut start, mut last_has_words) = (group.range.start, true);
    for end in ends {
        let untrimmed = ByteRange::new(start, group.range.start + end);
        start = untrimmed.end;
        let Some(sentence) = trimmed(text, untrimmed) else { continue };
        let has_words = sentence.slice(text).contains(char::is_alphanumeric);
        match found.last_mut() {
            Some(last) if !has_words || !last_has_words => {
                last.end = sentence.end;
                last_has_words |= has_words;
            }
            _ => {
                found.push(sentence);
                last_has_words = has_words;
            }
        }
    }
    found
}

static WORD_SEGMENTER: LazyLock<WordSegmenterBorrowed<'static>> =
    LazyLock::new(|| WordSegmenter::new_auto(WordBreakInvariantOptions::default()));

/// Returns the words of `text` in order, each with the punctuation that touches it. Every byte outside them
/// is whitespace. They are the smallest units at which a text can be cut and remain readable. ICU's
/// dictionaries and models cut scripts that are written without spaces.
///
/// ```
/// let text = "The tide, it rises!";
/// let found: Vec<&str> = thresher_text::words(text).into_iter().map(|range| range.slice(text)).collect();
/// assert_eq!(found, ["The", "tide,", "it", "rises!"]);
/// ```
pub fn words(text: &str) -> Vec<ByteRange> {
    let mut words: Vec<ByteRange> = Vec::new();
    let mut start = 0;
    let mut last_is_word = false;
    for end in WORD_SEGMENTER.segment_str(text).skip(1) {
        let segment = ByteRange::new(start, end);
        start = end;
        if segment.slice(text).trim().is_empty() {
            last_is_word = false;
            continue;
        }
        let is_word = segment.slice(text).contains(char::is_alphanumeric);
        match words.last_mut() {
            Some(last) if last.end == segment.start && !(is_word && last_is_word) => last.end = segment.end,
            _ => words.push(segment),
        }
        last_is_word = is_word;
    }
    words
}
