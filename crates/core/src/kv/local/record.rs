//! A block as a file holds it: magic number, checksum, bytes.
//! Knows nothing of files, nor of what a block holds.

use blake3::Hasher;
use bytes::Bytes;

use crate::kv::key::BlockKey;

/// Also the version: what begins otherwise is not read.
const MAGIC: &[u8; 8] = b"threshk1";

/// Separates this checksum from any other hash.
const CONTEXT: &str = "thresher 2026 block file 1";

const CHECKSUM_BYTES: usize = 32;

/// Bytes before the block's own.
pub const HEADER_BYTES: usize = MAGIC.len() + CHECKSUM_BYTES;

/// What stands before the block's bytes.
pub fn header(key: &BlockKey, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    header[MAGIC.len()..].copy_from_slice(&checksum(key, bytes));
    header
}

/// The block in `record`, if that is what was written for `key`. Not copied.
pub fn open(key: &BlockKey, record: Vec<u8>) -> Option<Bytes> {
    let (header, bytes) = record.split_at_checked(HEADER_BYTES)?;
    let sound = header.starts_with(MAGIC) && header[MAGIC.len()..] == checksum(key, bytes);
    sound.then(|| Bytes::from(record).slice(HEADER_BYTES..))
}

/// Over the key too: another block's file under this key's name is damage.
fn checksum(key: &BlockKey, bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = Hasher::new_derive_key(CONTEXT);
    hasher.update(key.as_bytes()).update(bytes);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_read() {
        let (key, other) = (BlockKey::from_bytes([1; 32]), BlockKey::from_bytes([2; 32]));
        let block = b"keys and offsets";
        let record = [&header(&key, block)[..], block].concat();
        let check = |name: &str, key: &BlockKey, record: &[u8], expect: Option<&[u8]>| {
            assert_eq!(open(key, record.to_vec()).as_deref(), expect, "{name}");
        };
        check("whole", &key, &record, Some(block));
        check("another key", &other, &record, None);
        check("one byte more", &key, &[&record[..], b"\0"].concat(), None);
        check("an empty block", &key, &header(&key, b""), Some(b""));
        for at in 0..record.len() {
            check("cut short", &key, &record[..at], None);
            for bit in 0..8 {
                let mut flipped = record.clone();
                flipped[at] ^= 1 << bit;
                check("a flipped bit", &key, &flipped, None);
            }
        }
    }
}
