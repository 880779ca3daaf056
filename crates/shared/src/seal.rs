//! The frame around every value: a version and a hash over the value and the place it was made for.
//! Knows nothing of what values mean.

use blake3::Hasher;
use bytes::Bytes;

/// Separates these hashes from any others.
const CONTEXT: &str = "thresher 2026 shared value 1";

/// Separates the public name of a secret from the key made of it.
const NAME_CONTEXT: &str = "thresher 2026 shared secret name 1";

const VERSION: u8 = 1;

/// Bytes that a seal adds: `[version, hash; 32]` stand before the value.
pub const OVERHEAD_BYTES: usize = 1 + blake3::OUT_LEN;

/// Seals and opens values. With a secret, only who has it can make a value that opens; without, a seal finds damage and
/// other programs' values, no malice.
#[derive(Clone)]
pub struct Seal {
    key: [u8; 32],
    name: Option<String>,
}

impl Seal {
    /// Seals with `secret`, or for everyone.
    pub fn new(secret: Option<&[u8]>) -> Self {
        let name = |secret: &[u8]| blake3::derive_key(NAME_CONTEXT, secret)[..4].iter().map(hex).collect();
        Self { key: blake3::derive_key(CONTEXT, secret.unwrap_or_default()), name: secret.map(name) }
    }

    /// Eight digits that tell one secret from another, for key names: with a new secret, old values are out of sight
    /// rather than damaged. Tells nothing about the secret.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// `payload` as it goes to the server. `place` is all that names it there.
    pub fn close(&self, place: &[&[u8]], payload: &[u8]) -> Vec<u8> {
        let mut value = Vec::with_capacity(OVERHEAD_BYTES + payload.len());
        value.push(VERSION);
        value.extend_from_slice(self.hash(place, payload).as_bytes());
        value.extend_from_slice(payload);
        value
    }

    /// What was sealed for this place; `None` for anything else.
    pub fn open(&self, place: &[&[u8]], value: Bytes) -> Option<Bytes> {
        let (head, payload) = value.split_at_checked(OVERHEAD_BYTES)?;
        let hash: [u8; blake3::OUT_LEN] = head[1..].try_into().ok()?;
        // Hashes compare in constant time.
        let whole = head[0] == VERSION && self.hash(place, payload) == blake3::Hash::from_bytes(hash);
        whole.then(|| value.slice(OVERHEAD_BYTES..))
    }

    fn hash(&self, place: &[&[u8]], payload: &[u8]) -> blake3::Hash {
        let mut hasher = Hasher::new_keyed(&self.key);
        for part in place {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(payload);
        hasher.finalize()
    }
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_here_opens() {
        let (open, secret) = (Seal::new(None), Seal::new(Some(b"secret")));
        let value = open.close(&[b"a", b"b"], b"payload");
        assert_eq!(value.len(), OVERHEAD_BYTES + 7);
        let check = |name: &str, seal: &Seal, place: &[&[u8]], value: &[u8], expect: bool| {
            let opened = seal.open(place, Bytes::copy_from_slice(value));
            assert_eq!(opened.as_deref(), expect.then_some(&b"payload"[..]), "{name}");
        };
        check("as it was", &open, &[b"a", b"b"], &value, true);
        check("another place", &open, &[b"a", b"c"], &value, false);
        check("parts cut elsewhere", &open, &[b"ab", b""], &value, false);
        check("another secret", &secret, &[b"a", b"b"], &value, false);
        check("cut short", &open, &[b"a", b"b"], &value[..value.len() - 1], false);
        check("only a head", &open, &[b"a", b"b"], &value[..20], false);
        check("nothing", &open, &[b"a", b"b"], b"", false);
        for at in 0..value.len() {
            let mut flipped = value.clone();
            flipped[at] ^= 4;
            check(&format!("bit flipped at {at}"), &open, &[b"a", b"b"], &flipped, false);
        }
        let empty = Bytes::from(open.close(&[], b""));
        assert_eq!(open.open(&[], empty).as_deref(), Some(&b""[..]), "an empty value is one");
    }

    #[test]
    fn secrets_have_names() {
        let name = |secret: &[u8]| Seal::new(Some(secret)).name().map(str::to_owned);
        assert_eq!(Seal::new(None).name(), None);
        assert_eq!(name(b"a").map(|name| name.len()), Some(8));
        assert_ne!(name(b"a"), name(b"b"));
    }
}
