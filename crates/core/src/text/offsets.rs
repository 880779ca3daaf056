//! Owns the units in which offsets into a text are counted, and the way from one to another.
//! Knows nothing of what the offsets mark.

use std::fmt;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::ByteRange;

/// Bytes between two checkpoints: memory is an eighth of the text's, a query reads one stretch at most.
const STRETCH: usize = 64;

/// What one step of an offset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OffsetUnit {
    /// A byte of the text in UTF-8.
    Byte,
    /// A Unicode code point: what Python counts.
    #[default]
    Codepoint,
    /// A UTF-16 code unit: what JavaScript and Java count.
    Utf16,
}

impl fmt::Display for OffsetUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Byte => "bytes",
            Self::Codepoint => "code points",
            Self::Utf16 => "UTF-16 code units",
        })
    }
}

impl OffsetUnit {
    /// How many steps the characters take that begin in `bytes`. By first bytes, so that any cut is fine.
    fn count(self, bytes: &[u8]) -> usize {
        match self {
            Self::Byte => bytes.len(),
            Self::Codepoint => bytes.iter().filter(|&&b| begins_character(b)).count(),
            Self::Utf16 => {
                bytes.iter().map(|&b| usize::from(begins_character(b)) + usize::from(b >= 0xF0)).sum()
            }
        }
    }
}

fn begins_character(byte: u8) -> bool {
    byte & 0xC0 != 0x80
}

/// An offset that is none of the text's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OffsetError {
    /// Past the end.
    #[error("offset {offset} is past the end of a text of {len} ({unit})")]
    Outside {
        /// The offset asked for.
        offset: usize,
        /// The text's length in the same unit.
        len: usize,
        /// The unit of both.
        unit: OffsetUnit,
    },
    /// Between the bytes, or the surrogates, of one character.
    #[error("offset {offset} lies inside a character ({unit})")]
    Inside {
        /// The offset asked for.
        offset: usize,
        /// Its unit.
        unit: OffsetUnit,
    },
    /// A range whose start lies after its end.
    #[error("offset range {start}..{end} is reversed")]
    Reversed {
        /// The start asked for.
        start: usize,
        /// The end asked for.
        end: usize,
    },
}

/// Turns byte offsets of one text into offsets of one unit, and back. Building reads the text once.
#[derive(Debug, Clone)]
pub struct OffsetMap<'a> {
    text: &'a str,
    unit: OffsetUnit,
    /// Steps before byte 0, `STRETCH`, 2 · `STRETCH`, ...; empty when every byte is one step.
    checkpoints: Vec<usize>,
    len: usize,
}

impl<'a> OffsetMap<'a> {
    /// A map for `text`.
    pub fn new(text: &'a str, unit: OffsetUnit) -> Self {
        if unit == OffsetUnit::Byte || text.is_ascii() {
            return Self { text, unit, checkpoints: Vec::new(), len: text.len() };
        }
        let (mut checkpoints, mut len) = (Vec::with_capacity(text.len().div_ceil(STRETCH)), 0);
        for stretch in text.as_bytes().chunks(STRETCH) {
            checkpoints.push(len);
            len += unit.count(stretch);
        }
        Self { text, unit, checkpoints, len }
    }

    /// The text's length in the unit.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The offset of `byte` in the unit, in constant time.
    ///
    /// # Panics
    /// When `byte` is not a character boundary of the text: a byte offset is ours, never the caller's of a request.
    pub fn from_byte(&self, byte: usize) -> usize {
        assert!(
            self.text.is_char_boundary(byte),
            "byte {byte} is no character boundary of {} bytes",
            self.text.len()
        );
        let Some(&before) = self.checkpoints.get(byte / STRETCH) else {
            return if self.checkpoints.is_empty() { byte } else { self.len };
        };
        before + self.unit.count(&self.text.as_bytes()[byte / STRETCH * STRETCH..byte])
    }

    /// The offsets of `range` in the unit.
    ///
    /// # Panics
    /// When an end of `range` is not a character boundary of the text.
    pub fn from_bytes(&self, range: ByteRange) -> Range<usize> {
        self.from_byte(range.start)..self.from_byte(range.end)
    }

    /// The byte at `offset`, in logarithmic time.
    pub fn to_byte(&self, offset: usize) -> Result<usize, OffsetError> {
        if offset > self.len {
            return Err(OffsetError::Outside { offset, len: self.len, unit: self.unit });
        }
        let byte = if self.checkpoints.is_empty() { offset } else { self.search(offset) };
        if self.text.is_char_boundary(byte) && self.from_byte(byte) == offset {
            Ok(byte)
        } else {
            Err(OffsetError::Inside { offset, unit: self.unit })
        }
    }

    /// The bytes of a range that is counted in the unit.
    pub fn to_bytes(&self, range: Range<usize>) -> Result<ByteRange, OffsetError> {
        if range.start > range.end {
            return Err(OffsetError::Reversed { start: range.start, end: range.end });
        }
        Ok(ByteRange::new(self.to_byte(range.start)?, self.to_byte(range.end)?))
    }

    /// The first character boundary with at least `offset` steps before it.
    fn search(&self, offset: usize) -> usize {
        let stretch = self.checkpoints.partition_point(|&before| before < offset).saturating_sub(1);
        let bytes = self.text.as_bytes();
        let (mut byte, mut before) = (stretch * STRETCH, self.checkpoints[stretch]);
        while byte < bytes.len() && (before < offset || !begins_character(bytes[byte])) {
            before += self.unit.count(&bytes[byte..=byte]);
            byte += 1;
        }
        byte
    }
}
