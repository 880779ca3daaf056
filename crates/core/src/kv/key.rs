//! Block keys: the key of a block is a hash of everything that its bytes depend on. It never depends on the
//! caller's chunk id.

use std::fmt;

use blake3::Hasher;

/// The context of the hash, which separates block keys from all other hashes. A new layout of blocks needs a
/// new number here.
pub(super) const CONTEXT: &str = "thresher 2026 chunk block 2";

/// The key of a block in every tier: a BLAKE3 hash. It is displayed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey([u8; 32]);

/// The hash of everything that a block depends on besides the title and text of its chunk. Two spaces that
/// differ in anything have no key in common, so a lookup with another model, tokenizer or codec misses and
/// never returns a wrong block.
#[derive(Debug, Clone)]
pub struct KeySpace(Hasher);

impl KeySpace {
    /// Returns the space of blocks that depend on all of `parts`, in this order: the fingerprint of the
    /// model, the codec, the versions of the rules of segmentation and tokenization, and the tenant.
    pub fn new(parts: &[&[u8]]) -> Self {
        let mut hasher = Hasher::new_derive_key(CONTEXT);
        parts.iter().for_each(|part| add(&mut hasher, part));
        Self(hasher)
    }

    /// Returns the key of the block of a chunk. A missing title and a blank one give the same key, because
    /// the model reads them alike.
    pub fn key(&self, title: Option<&str>, text: &str) -> BlockKey {
        let mut hasher = self.0.clone();
        add(&mut hasher, title.map_or("", str::trim).as_bytes());
        add(&mut hasher, text.as_bytes());
        BlockKey(*hasher.finalize().as_bytes())
    }
}

/// Hashes the length of the part before the part, so that two different lists of parts never hash the same
/// bytes.
fn add(hasher: &mut Hasher, part: &[u8]) {
    hasher.update(&(part.len() as u64).to_le_bytes());
    hasher.update(part);
}

impl BlockKey {
    /// Returns the key with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl AsRef<[u8; 32]> for BlockKey {
    fn as_ref(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "BlockKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_difference_gives_another_key() {
        let spaces = [&[&b"m"[..], b"int8"][..], &[b"m", b"f32"], &[b"mi", b"nt8"], &[b"m", b"int8", b""]];
        let chunks = [(None, "a b"), (Some("a"), "b"), (Some("a b"), ""), (None, "a  b"), (None, "")];
        let keys: HashSet<BlockKey> = spaces
            .iter()
            .flat_map(|parts| chunks.map(|(title, text)| KeySpace::new(parts).key(title, text)))
            .collect();
        assert_eq!(keys.len(), spaces.len() * chunks.len());
    }

    #[test]
    fn titles_that_the_model_reads_alike_give_the_same_key() {
        let space = KeySpace::new(&[b"m"]);
        assert_eq!(space.key(None, "a"), space.key(Some("  "), "a"));
        assert_eq!(space.key(Some(" t "), "a"), space.key(Some("t"), "a"));
    }
}
