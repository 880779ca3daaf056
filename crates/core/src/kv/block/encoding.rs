//! The encoding of a block's numbers: little-endian `u32`, and byte ranges of tokens as variable-length
//! integers.
//!
//! The offsets of a token are two integers: the gap to the end of the previous token, and the length of the
//! token. They mostly take one byte each. Tokens may overlap (a letter may be several tokens), so gaps are
//! signed.

use crate::domain::ByteRange;

/// Appends `number` as a little-endian `u32`.
///
/// # Panics
/// When the number does not fit 32 bits.
pub(super) fn put_u32(bytes: &mut Vec<u8>, number: usize) {
    let number = u32::try_from(number).expect("requests are bounded far below 2^32 tokens and bytes");
    bytes.extend(number.to_le_bytes());
}

/// Returns element `i` of an array of little-endian `u32`.
pub(super) fn u32_at(bytes: &[u8], i: usize) -> usize {
    u32::from_le_bytes(bytes[4 * i..][..4].try_into().expect("four bytes were taken")) as usize
}

pub(super) fn put_offsets(bytes: &mut Vec<u8>, offsets: &[ByteRange]) {
    let mut end = 0;
    for offset in offsets {
        put_varint(bytes, zigzag(offset.start as i64 - end));
        put_varint(bytes, offset.len() as u64);
        end = offset.end as i64;
    }
}

/// Returns the byte ranges of `count` tokens. Damaged bytes give wrong ranges but cannot cause a panic;
/// [`strict_offsets`] refuses them.
pub(super) fn offsets(bytes: &[u8], count: usize) -> Vec<ByteRange> {
    let mut previous_end = 0;
    let mut bytes = bytes.iter().copied();
    (0..count)
        .map(|_| {
            let start = previous_end + unzigzag(varint(&mut bytes));
            let end = start + varint(&mut bytes) as i64;
            previous_end = end;
            ByteRange { start: start.max(0) as usize, end: end.max(0) as usize }
        })
        .collect()
}

/// Returns the byte ranges of `count` tokens like [`offsets`]. Returns `None` if a number is cut off or too
/// large, a range begins before the text, or bytes are left after the last token.
pub(super) fn strict_offsets(bytes: &[u8], count: usize) -> Option<Vec<ByteRange>> {
    let mut previous_end = 0_i64;
    let mut bytes = bytes.iter().copied();
    let read = |_| {
        let start = previous_end + unzigzag(strict_varint(&mut bytes)?);
        previous_end = start + i64::try_from(strict_varint(&mut bytes)?).ok()?;
        Some(ByteRange { start: usize::try_from(start).ok()?, end: usize::try_from(previous_end).ok()? })
    };
    let offsets = (0..count).map(read).collect::<Option<Vec<_>>>()?;
    bytes.next().is_none().then_some(offsets)
}

/// Maps a signed number to an unsigned one, so that small magnitudes give small numbers (ZigZag encoding).
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a variable-length integer: seven bits per byte, the lowest first; the high bit says that another
/// byte follows (LEB128).
fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads a variable-length integer of at most 35 bits. Missing bytes count as 0.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> u64 {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = bytes.next().unwrap_or(0);
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// Reads a variable-length integer like [`varint`]. Returns `None` if bytes are missing or the number has
/// more than 35 bits.
fn strict_varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
