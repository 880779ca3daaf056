//! Offsets into a text in bytes, code points or UTF-16 code units, and their conversion.
//! Knows nothing of what the offsets mark.

use std::fmt;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::ByteRange;

/// The distance between two checkpoints, in bytes. The checkpoints take an eighth of the text's memory, and a
/// conversion counts the characters between two checkpoints at most.
const INTERVAL_BYTES: usize = 64;

/// The unit in which offsets into a text are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OffsetUnit {
    /// Bytes of the text in UTF-8, as Rust and Go count.
    Byte,
    /// Unicode code points, as Python counts.
    #[default]
    Codepoint,
    /// UTF-16 code units, as JavaScript and Java count.
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
    /// Returns the length in this unit of the characters that begin in `bytes`. It looks only at the first
    /// byte of each character, so `bytes` may be cut inside a character.
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

/// Why an offset or a range of offsets is invalid for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OffsetError {
    #[error("offset {offset} is past the end of a text of {len} ({unit})")]
    Outside {
        offset: usize,
        /// The length of the text in `unit`.
        len: usize,
        unit: OffsetUnit,
    },
    #[error("offset {offset} lies inside a character ({unit})")]
    Inside { offset: usize, unit: OffsetUnit },
    #[error("offset range {start}..{end} is reversed")]
    Reversed { start: usize, end: usize },
}

/// Converts between byte offsets of one text and offsets in one unit. Creating the map reads the text once.
///
/// ```
/// use thresher_core::text::offsets::{OffsetMap, OffsetUnit};
///
/// let map = OffsetMap::new("a😀b", OffsetUnit::Utf16);
/// assert_eq!(map.from_byte(5), 3, "b begins after a and the two surrogates of the emoji");
/// assert_eq!(map.to_byte(3), Ok(5));
/// assert!(map.to_byte(2).is_err(), "between the two surrogates");
/// ```
#[derive(Debug, Clone)]
pub struct OffsetMap<'a> {
    text: &'a str,
    unit: OffsetUnit,
    /// The offsets in `unit` of byte 0, `INTERVAL_BYTES`, 2 · `INTERVAL_BYTES`, ...; empty when all
    /// characters have one byte, or the unit is bytes.
    checkpoints: Vec<usize>,
    /// The length of the text in `unit`.
    len: usize,
}

impl<'a> OffsetMap<'a> {
    pub fn new(text: &'a str, unit: OffsetUnit) -> Self {
        if unit == OffsetUnit::Byte || text.is_ascii() {
            return Self { text, unit, checkpoints: Vec::new(), len: text.len() };
        }
        let (mut checkpoints, mut len) = (Vec::with_capacity(text.len().div_ceil(INTERVAL_BYTES)), 0);
        for interval in text.as_bytes().chunks(INTERVAL_BYTES) {
            checkpoints.push(len);
            len += unit.count(interval);
        }
        Self { text, unit, checkpoints, len }
    }

    /// Returns the length of the text in the map's unit.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Converts a byte offset to the map's unit, in constant time.
    ///
    /// # Panics
    /// When `byte` is not a character boundary of the text. Byte offsets come from the pipeline, never from a
    /// client.
    pub fn from_byte(&self, byte: usize) -> usize {
        assert!(
            self.text.is_char_boundary(byte),
            "byte {byte} is not a character boundary of a text of {} bytes",
            self.text.len()
        );
        let Some(&before) = self.checkpoints.get(byte / INTERVAL_BYTES) else {
            return if self.checkpoints.is_empty() { byte } else { self.len };
        };
        before + self.unit.count(&self.text.as_bytes()[byte / INTERVAL_BYTES * INTERVAL_BYTES..byte])
    }

    /// Converts a byte range to the map's unit.
    ///
    /// # Panics
    /// When an end of `range` is not a character boundary of the text.
    pub fn from_bytes(&self, range: ByteRange) -> Range<usize> {
        self.from_byte(range.start)..self.from_byte(range.end)
    }

    /// Converts an offset in the map's unit to a byte offset, in logarithmic time.
    ///
    /// # Errors
    /// Returns [`OffsetError`] when the offset is past the end of the text or inside a character.
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

    /// Converts a range in the map's unit to a byte range.
    ///
    /// # Errors
    /// Returns [`OffsetError`] when the range is reversed, or one of its ends is past the end of the text or
    /// inside a character.
    pub fn to_bytes(&self, range: Range<usize>) -> Result<ByteRange, OffsetError> {
        if range.start > range.end {
            return Err(OffsetError::Reversed { start: range.start, end: range.end });
        }
        Ok(ByteRange::new(self.to_byte(range.start)?, self.to_byte(range.end)?))
    }

    /// Returns the byte offset of the first character boundary whose offset in the map's unit is at least
    /// `offset`.
    fn search(&self, offset: usize) -> usize {
        let interval = self.checkpoints.partition_point(|&before| before < offset).saturating_sub(1);
        let bytes = self.text.as_bytes();
        let (mut byte, mut before) = (interval * INTERVAL_BYTES, self.checkpoints[interval]);
        while byte < bytes.len() && (before < offset || !begins_character(bytes[byte])) {
            before += self.unit.count(&bytes[byte..=byte]);
            byte += 1;
        }
        byte
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNITS: [OffsetUnit; 3] = [OffsetUnit::Byte, OffsetUnit::Codepoint, OffsetUnit::Utf16];

    fn naive(text: &str, unit: OffsetUnit, byte: usize) -> usize {
        match unit {
            OffsetUnit::Byte => byte,
            OffsetUnit::Codepoint => text[..byte].chars().count(),
            OffsetUnit::Utf16 => text[..byte].encode_utf16().count(),
        }
    }

    #[test]
    fn names_on_the_wire() {
        let names = serde_json::to_string(&UNITS).unwrap();
        assert_eq!(names, r#"["byte","codepoint","utf16"]"#);
    }

    #[test]
    fn offsets_of_mixed_text() {
        let text = "aé€😀z";
        let check = |unit, expected: [usize; 6]| {
            let map = OffsetMap::new(text, unit);
            let found = [0, 1, 3, 6, 10, 11].map(|byte| map.from_byte(byte));
            assert_eq!(found, expected, "{unit:?}");
            assert_eq!(map.len(), expected[5], "{unit:?}");
        };
        check(OffsetUnit::Byte, [0, 1, 3, 6, 10, 11]);
        check(OffsetUnit::Codepoint, [0, 1, 2, 3, 4, 5]);
        check(OffsetUnit::Utf16, [0, 1, 2, 3, 5, 6]);
    }

    #[test]
    fn invalid_offsets_are_refused() {
        let map = OffsetMap::new("a😀", OffsetUnit::Utf16);
        assert_eq!(map.to_byte(2), Err(OffsetError::Inside { offset: 2, unit: OffsetUnit::Utf16 }));
        assert_eq!(map.to_byte(4), Err(OffsetError::Outside { offset: 4, len: 3, unit: OffsetUnit::Utf16 }));
        #[expect(clippy::reversed_empty_ranges, reason = "a client may send such a range")]
        let reversed = map.to_bytes(3..1);
        assert_eq!(reversed, Err(OffsetError::Reversed { start: 3, end: 1 }));
        assert_eq!(map.to_bytes(1..3), Ok(ByteRange::new(1, 5)));
        let map = OffsetMap::new("é", OffsetUnit::Byte);
        assert_eq!(map.to_byte(1), Err(OffsetError::Inside { offset: 1, unit: OffsetUnit::Byte }));
        assert!(OffsetMap::new("", OffsetUnit::Codepoint).is_empty());
    }

    #[test]
    #[should_panic(expected = "not a character boundary")]
    fn a_byte_offset_inside_a_character_panics() {
        OffsetMap::new("é", OffsetUnit::Codepoint).from_byte(1);
    }

    proptest! {
        #[test]
        fn conversion_agrees_with_counting_characters(text in "([a-z]|\\PC|[😀👩\u{200D}\u{301}é€אش]){0,200}") {
            for unit in UNITS {
                let map = OffsetMap::new(&text, unit);
                let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
                for byte in ends {
                    let offset = map.from_byte(byte);
                    prop_assert_eq!(offset, naive(&text, unit, byte));
                    prop_assert_eq!(map.to_byte(offset), Ok(byte));
                }
                prop_assert!(map.to_byte(map.len() + 1).is_err());
            }
        }

        #[test]
        fn every_offset_is_a_character_boundary_or_refused(text in any::<String>()) {
            for unit in UNITS {
                let map = OffsetMap::new(&text, unit);
                let boundaries = (0..=map.len()).filter(|&offset| map.to_byte(offset).is_ok()).count();
                prop_assert_eq!(boundaries, text.chars().count() + 1);
            }
        }
    }
}
