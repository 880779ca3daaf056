//! The header of every stored value: a version and a hash over the value and the key that it is stored under.
//! Does not know what values hold.

use blake3::Hasher;
use bytes::Bytes;

/// The BLAKE3 context that separates these hashes from all others.
const CONTEXT: &str = "thresher 2026 shared value 1";

/// The BLAKE3 context that separates the public ID of a secret from the hash key derived from it.
const ID_CONTEXT: &str = "thresher 2026 shared secret name 1";

const VERSION: u8 = 1;

/// The bytes that sealing adds: the version (1 byte) and the hash (32 bytes), before the value.
pub const OVERHEAD_BYTES: usize = 1 + blake3::OUT_LEN;

/// Seals and opens values. With a secret, a value opens only if it was sealed with the same secret. Without
/// one, the hash detects damage and values of other programs, but not forgery.
#[derive(Clone)]
pub struct Sealer {
    key: [u8; 32],
    secret_id: Option<String>,
}

impl Sealer {
    pub fn new(secret: Option<&[u8]>) -> Self {
        let id = |secret: &[u8]| hex::encode(&blake3::derive_key(ID_CONTEXT, secret)[..4]);
        Self { key: blake3::derive_key(CONTEXT, secret.unwrap_or_default()), secret_id: secret.map(id) }
    }

    /// Eight hexadecimal digits that identify the secret without revealing it. They are part of the key
    /// names, so that values sealed with another secret are misses instead of damage. `None` without a
    /// secret.
    pub fn secret_id(&self) -> Option<&str> {
        self.secret_id.as_deref()
    }

    /// Adds the header to `payload`. `key_parts` is the full key of the value on the server: the Redis key
    /// and, for journals, the field.
    pub fn seal(&self, key_parts: &[&[u8]], payload: &[u8]) -> Vec<u8> {
        let mut value = Vec::with_capacity(OVERHEAD_BYTES + payload.len());
        value.push(VERSION);
        value.extend_from_slice(self.hash(key_parts, payload).as_bytes());
        value.extend_from_slice(payload);
        value
    }

    /// Returns the payload if it was sealed for this key, and `None` otherwise.
    pub fn open(&self, key_parts: &[&[u8]], value: Bytes) -> Option<Bytes> {
        let (head, payload) = value.split_at_checked(OVERHEAD_BYTES)?;
        let hash: [u8; blake3::OUT_LEN] = head[1..].try_into().ok()?;
        // `blake3::Hash` compares in constant time.
        let is_intact = head[0] == VERSION && self.hash(key_parts, payload) == blake3::Hash::from_bytes(hash);
        is_intact.then(|| value.slice(OVERHEAD_BYTES..))
    }

    fn hash(&self, key_parts: &[&[u8]], payload: &[u8]) -> blake3::Hash {
        let mut hasher = Hasher::new_keyed(&self.key);
        for part in key_parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(payload);
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_opens_only_under_the_key_and_secret_it_was_sealed_with() {
        let (open, secret) = (Sealer::new(None), Sealer::new(Some(b"secret")));
        let value = open.seal(&[b"a", b"b"], b"payload");
        assert_eq!(value.len(), OVERHEAD_BYTES + 7);
        let check = |name: &str, sealer: &Sealer, key_parts: &[&[u8]], value: &[u8], expect: bool| {
            let opened = sealer.open(key_parts, Bytes::copy_from_slice(value));
            assert_eq!(opened.as_deref(), expect.then_some(&b"payload"[..]), "{name}");
        };
        check("unchanged", &open, &[b"a", b"b"], &value, true);
        check("another key", &open, &[b"a", b"c"], &value, false);
        check("parts split elsewhere", &open, &[b"ab", b""], &value, false);
        check("another secret", &secret, &[b"a", b"b"], &value, false);
        check("cut short", &open, &[b"a", b"b"], &value[..value.len() - 1], false);
        check("only a head", &open, &[b"a", b"b"], &value[..20], false);
        check("nothing", &open, &[b"a", b"b"], b"", false);
        for at in 0..value.len() {
            let mut flipped = value.clone();
            flipped[at] ^= 4;
            check(&format!("bit flipped at {at}"), &open, &[b"a", b"b"], &flipped, false);
        }
        let empty = Bytes::from(open.seal(&[], b""));
        assert_eq!(open.open(&[], empty).as_deref(), Some(&b""[..]), "an empty value opens");
    }

    #[test]
    fn secrets_have_ids() {
        let id = |secret: &[u8]| Sealer::new(Some(secret)).secret_id().map(str::to_owned);
        assert_eq!(Sealer::new(None).secret_id(), None);
        assert_eq!(id(b"a").map(|id| id.len()), Some(8));
        assert_ne!(id(b"a"), id(b"b"));
    }
}
