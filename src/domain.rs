//! The words that every module shares: chunks, ranges, budgets, scores, citations.
//! Knows nothing of models, HTTP or storage.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A half-open range of UTF-8 bytes of some text; which text, the field that holds it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl ByteRange {
    /// # Panics
    /// When `start > end`: a reversed range is a bug of the caller, never of the input.
    pub fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "byte range is reversed: {start}..{end}");
        Self { start, end }
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether the range holds no byte.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Whether the two ranges share at least one byte.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The same range, `bytes` further right.
    pub fn shifted(self, bytes: usize) -> Self {
        Self::new(self.start + bytes, self.end + bytes)
    }

    /// The text under the range.
    ///
    /// # Panics
    /// When the range does not lie on character boundaries of `text`.
    pub fn of(self, text: &str) -> &str {
        &text[self.start..self.end]
    }
}

impl From<Range<usize>> for ByteRange {
    fn from(range: Range<usize>) -> Self {
        Self::new(range.start, range.end)
    }
}

/// A half-open range of tokens along one key axis: a segment that is scored as one (a token, a sentence, a chunk).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpan {
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

impl TokenSpan {
    /// # Panics
    /// When `start > end`.
    pub fn new(start: usize, end: usize) -> Self {
        assert!(start <= end, "token span is reversed: {start}..{end}");
        Self { start, end }
    }

    /// Number of tokens.
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// Whether the span holds no token.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// As a range for slicing.
    pub fn range(self) -> Range<usize> {
        self.start..self.end
    }
}
