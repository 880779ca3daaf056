//! The name of a block: a hash of everything that its bytes depend on, never the caller's id.

use std::fmt;

use blake3::Hasher;

/// Separates these hashes from any others; a new layout of blocks takes a new number.
const CONTEXT: &str = "thresher 2026 chunk block 1";

/// Names a block in every tier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey([u8; 32]);

/// Everything but title and text that a block depends on. Two spaces that differ in anything share no key, so another
/// model, tokenizer or codec never finds a wrong block, only none.
#[derive(Debug, Clone)]
pub struct KeySpace(Hasher);

impl KeySpace {
    /// A space for blocks that depend on all of `parts`, in this order: the model's fingerprint, the codec, the rules of
    /// segmentation, a tenant's salt.
    pub fn new(parts: &[&[u8]]) -> Self {
        let mut hasher = Hasher::new_derive_key(CONTEXT);
        parts.iter().for_each(|part| add(&mut hasher, part));
        Self(hasher)
    }

    /// The block of a chunk.
    pub fn key(&self, title: Option<&str>, text: &str) -> BlockKey {
        let mut hasher = self.0.clone();
        // No title and an empty one are read alike.
        add(&mut hasher, title.map_or("", str::trim).as_bytes());
        add(&mut hasher, text.as_bytes());
        BlockKey(*hasher.finalize().as_bytes())
    }
}

/// Length first: no two lists of parts hash the same bytes.
fn add(hasher: &mut Hasher, part: &[u8]) {
    hasher.update(&(part.len() as u64).to_le_bytes());
    hasher.update(part);
}

impl BlockKey {
    /// A key from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
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
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
    fn whatever_differs_gives_another_key() {
        let spaces = [&[&b"m"[..], b"int8"][..], &[b"m", b"f32"], &[b"mi", b"nt8"], &[b"m", b"int8", b""]];
        let chunks = [(None, "a b"), (Some("a"), "b"), (Some("a b"), ""), (None, "a  b"), (None, "")];
        let keys: HashSet<BlockKey> = spaces
            .iter()
            .flat_map(|parts| chunks.map(|(title, text)| KeySpace::new(parts).key(title, text)))
            .collect();
        assert_eq!(keys.len(), spaces.len() * chunks.len());
    }

    #[test]
    fn what_is_read_alike_has_one_key() {
        let space = KeySpace::new(&[b"m"]);
        assert_eq!(space.key(None, "a"), space.key(Some("  "), "a"));
        assert_eq!(space.key(Some(" t "), "a"), space.key(Some("t"), "a"));
    }
}
