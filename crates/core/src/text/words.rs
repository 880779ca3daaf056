//! Words: the smallest pieces at which a text can be cut and still be read.

use std::sync::LazyLock;

use icu_segmenter::options::WordBreakInvariantOptions;
use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed};

use crate::domain::ByteRange;

static SEGMENTER: LazyLock<WordSegmenterBorrowed<'static>> =
    LazyLock::new(|| WordSegmenter::new_auto(WordBreakInvariantOptions::default()));

/// The words of `text`, in order, each with the punctuation that touches it. Every byte outside them is whitespace.
/// Scripts written without spaces are cut by ICU's dictionaries and models.
pub fn words(text: &str) -> Vec<ByteRange> {
    let mut words: Vec<ByteRange> = Vec::new();
    let mut start = 0;
    let mut last_is_word = false;
    for end in SEGMENTER.segment_str(text).skip(1) {
        let piece = ByteRange::new(start, end);
        start = end;
        if piece.of(text).trim().is_empty() {
            last_is_word = false;
            continue;
        }
        let is_word = piece.of(text).contains(char::is_alphanumeric);
        match words.last_mut() {
            Some(last) if last.end == piece.start && !(is_word && last_is_word) => last.end = piece.end,
            _ => words.push(piece),
        }
        last_is_word = is_word;
    }
    words
}
