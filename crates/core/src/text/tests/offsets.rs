//! Offsets: tables, and equality with counting one character at a time.

use proptest::prelude::*;

use crate::domain::ByteRange;
use crate::text::offsets::{OffsetError, OffsetMap, OffsetUnit};

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
fn wrong_offsets_are_refused() {
    let map = OffsetMap::new("a😀", OffsetUnit::Utf16);
    assert_eq!(map.to_byte(2), Err(OffsetError::Inside { offset: 2, unit: OffsetUnit::Utf16 }));
    assert_eq!(map.to_byte(4), Err(OffsetError::Outside { offset: 4, len: 3, unit: OffsetUnit::Utf16 }));
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller may send")]
    let reversed = map.to_bytes(3..1);
    assert_eq!(reversed, Err(OffsetError::Reversed { start: 3, end: 1 }));
    assert_eq!(map.to_bytes(1..3), Ok(ByteRange::new(1, 5)));
    let map = OffsetMap::new("é", OffsetUnit::Byte);
    assert_eq!(map.to_byte(1), Err(OffsetError::Inside { offset: 1, unit: OffsetUnit::Byte }));
    assert!(OffsetMap::new("", OffsetUnit::Codepoint).is_empty());
}

#[test]
#[should_panic(expected = "no character boundary")]
fn a_byte_inside_a_character_is_a_bug() {
    OffsetMap::new("é", OffsetUnit::Codepoint).from_byte(1);
}

proptest! {
    #[test]
    fn agrees_with_counting(text in "([a-z]|\\PC|[😀👩\u{200D}\u{301}é€אش]){0,200}") {
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
    fn every_offset_is_a_boundary_or_refused(text in any::<String>()) {
        for unit in UNITS {
            let map = OffsetMap::new(&text, unit);
            let boundaries = (0..=map.len()).filter(|&offset| map.to_byte(offset).is_ok()).count();
            prop_assert_eq!(boundaries, text.chars().count() + 1);
        }
    }
}
