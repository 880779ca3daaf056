//! Byte ranges of a text.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A half-open range `start..end` of UTF-8 byte offsets into a text. The field that holds the range says
/// which text.
///
/// ```
/// use thresher_text::ByteRange;
///
/// let text = "Größe matters. So does speed.";
/// let sentence = ByteRange::new(0, 16);
/// assert_eq!(sentence.slice(text), "Größe matters.");
/// assert_eq!(sentence.len(), 16, "ö and ß have two bytes each");
/// assert!(!sentence.overlaps(ByteRange::new(16, 31)), "neighbouring ranges share no byte");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    pub start: usize,
    /// Offset one past the last byte; never below `start`.
    pub end: usize,
}

impl ByteRange {
    /// Returns the range `start..end`.
    ///
    /// # Panics
    /// When `start > end`. Offsets that a client sends must be checked before this call.
    pub fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "byte range is reversed: {start}..{end}");
        Self { start, end }
    }

    pub fn len(self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns whether both ranges contain at least one common byte. An empty range overlaps nothing.
    pub fn overlaps(self, other: Self) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    /// Returns whether all bytes of another range are in this one.
    pub fn encloses(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns the range moved right by `bytes`.
    pub fn shifted(self, bytes: usize) -> Self {
        Self::new(self.start + bytes, self.end + bytes)
    }

    /// Returns the range from the start of the first of both ranges to the end of the last one.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self::new(self.start.min(other.start), self.end.max(other.end))
    }

    /// Returns the part of `text` that the range covers.
    ///
    /// # Panics
    /// When an end of the range lies beyond `text` or inside a character.
    pub fn slice(self, text: &str) -> &str {
        &text[self.start..self.end]
    }
}

impl From<Range<usize>> for ByteRange {
    fn from(range: Range<usize>) -> Self {
        Self::new(range.start, range.end)
    }
}
