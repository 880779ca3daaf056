//! Marks at the end of shortened texts: what is missing, and the hash by which the original is retrieved.

use std::fmt;

/// The hash by which an original text is stored: the first 12 bytes of its BLAKE3 hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hash([u8; 12]);

impl Hash {
    pub fn compute(text: &str) -> Self {
        let mut hash = [0; 12];
        hash.copy_from_slice(&blake3::hash(text.as_bytes()).as_bytes()[..12]);
        Self(hash)
    }

    /// Reads a hash as [`fmt::Display`] writes it; `None` if `text` is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut hash = [0; 12];
        hex::decode_to_slice(text, &mut hash).ok()?;
        Some(Self(hash))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Returns the mark of a text that was shortened from `original`. `left_out` says what is missing, such as `lines 3-16 of 60`.
pub fn mark(original: &str, left_out: &str) -> String {
    format!("\n[shortened: left out {left_out}; hash={}]", Hash::compute(original))
}
