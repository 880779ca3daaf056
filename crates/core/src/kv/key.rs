//! Block keys: the key of a block is a hash of everything that its bytes depend on, and the tag of its tenant.
//! It never depends on the caller's chunk id.

use std::fmt;

use blake3::Hasher;

use crate::domain::Tenant;

/// The context of the hash, which separates block keys from all other hashes. A new layout of blocks needs a
/// new number here.
pub(super) const CONTEXT: &str = "thresher 2026 chunk block 2";

const TENANT_CONTEXT: &str = "thresher 2026 block tenant 1";

/// The bytes of a key that are the tag of its tenant.
const TAG_BYTES: usize = 8;

/// The key of a block in every tier: a BLAKE3 hash, whose last bytes are the tag of its tenant. It is displayed
/// as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey([u8; 32]);

/// What all keys of a tenant end with, so that its blocks can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantTag([u8; TAG_BYTES]);

impl TenantTag {
    pub fn of(tenant: &Tenant) -> Self {
        let hash = blake3::derive_key(TENANT_CONTEXT, tenant.name().as_bytes());
        Self(hash[..TAG_BYTES].try_into().expect("a hash has 32 bytes"))
    }
}

/// The hash of everything that a block depends on besides the title and text of its chunk. Two spaces that
/// differ in anything have no key in common, so a lookup with another model, tokenizer or codec misses and
/// never returns a wrong block.
#[derive(Debug, Clone)]
pub struct KeySpace {
    tag: TenantTag,
    hasher: Hasher,
}

impl KeySpace {
    /// Returns the space of a tenant's blocks that depend on all of `parts`, in this order: the fingerprint of
    /// the model, the codec, and the versions of the rules of segmentation and tokenization.
    pub fn new(tenant: &Tenant, parts: &[&[u8]]) -> Self {
        let mut hasher = Hasher::new_derive_key(CONTEXT);
        add(&mut hasher, tenant.name().as_bytes());
        parts.iter().for_each(|part| add(&mut hasher, part));
        Self { tag: TenantTag::of(tenant), hasher }
    }

    /// Returns the key of the block of a chunk. A missing title and a blank one give the same key, because
    /// the model reads them alike.
    pub fn key(&self, title: Option<&str>, text: &str) -> BlockKey {
        let mut hasher = self.hasher.clone();
        add(&mut hasher, title.map_or("", str::trim).as_bytes());
        add(&mut hasher, text.as_bytes());
        let mut key = *hasher.finalize().as_bytes();
        // Behind the hash: the first bytes of keys are used as hashes.
        key[32 - TAG_BYTES..].copy_from_slice(&self.tag.0);
        BlockKey(key)
    }
}

/// Hashes the length of the part before the part, so that two different lists of parts never hash the same
/// bytes.
fn add(hasher: &mut Hasher, part: &[u8]) {
    hasher.update(&(part.len() as u64).to_le_bytes());
    hasher.update(part);
}

impl BlockKey {
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns whether the block belongs to the tenant with this tag.
    pub fn is_of(&self, tenant: TenantTag) -> bool {
        self.0.ends_with(&tenant.0)
    }

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
        let tenants = [Tenant::default(), Tenant::new("b").expect("a name")];
        let mut keys = HashSet::new();
        for tenant in &tenants {
            let tag = TenantTag::of(tenant);
            for (parts, (title, text)) in spaces.iter().flat_map(|parts| chunks.map(|chunk| (parts, chunk))) {
                let key = KeySpace::new(tenant, parts).key(title, text);
                keys.insert(key);
                let owners: Vec<bool> = tenants.iter().map(|other| key.is_of(TenantTag::of(other))).collect();
                assert!(key.is_of(tag) && owners.iter().filter(|&&owns| owns).count() == 1);
            }
        }
        assert_eq!(keys.len(), tenants.len() * spaces.len() * chunks.len());
    }

    #[test]
    fn titles_that_the_model_reads_alike_give_the_same_key() {
        let space = KeySpace::new(&Tenant::default(), &[b"m"]);
        assert_eq!(space.key(None, "a"), space.key(Some("  "), "a"));
        assert_eq!(space.key(Some(" t "), "a"), space.key(Some("t"), "a"));
    }
}
