//! Hashes of chunks: which content an id holds now, and the id of a chunk that was given none.

use blake3::Hasher;
use thresher_core::domain::Chunk;

/// The id of a chunk that its caller gave none: the same title, text and metadata have the same one. Metadata counts, or
/// one boilerplate paragraph in two documents would be one chunk with the metadata of the later.
pub fn content_id(title: Option<&str>, text: &str, metadata: Option<&str>) -> String {
    hash("id", title, text, metadata)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Tells two versions of one id apart. Versions are only ever compared with the one before, so 64 bits are plenty.
pub fn content_of(chunk: &Chunk) -> u64 {
    first_eight(&hash("version", chunk.title.as_deref(), &chunk.text, chunk.metadata.as_deref()))
}

/// Stands for an id in a column, where comparing texts would be slow.
pub fn id_hash(id: &str) -> u64 {
    first_eight(blake3::hash(id.as_bytes()).as_bytes())
}

fn hash(purpose: &str, title: Option<&str>, text: &str, metadata: Option<&str>) -> [u8; 32] {
    let mut hasher = Hasher::new();
    // Length first, and whether there is one at all: no two chunks hash the same bytes.
    for part in [Some(purpose), title, Some(text), metadata] {
        hasher.update(&[u8::from(part.is_some())]);
        let part = part.unwrap_or_default();
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn first_eight(hash: &[u8; 32]) -> u64 {
    u64::from_le_bytes(*hash.first_chunk().expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn whatever_differs_has_another_id() {
        let chunks = [
            (None, "a", None),
            (Some(""), "a", None),
            (Some("a"), "", None),
            (None, "a", Some("{}")),
            (None, "", Some("a")),
            (None, "b", None),
        ];
        let ids: HashSet<String> =
            chunks.iter().map(|&(title, text, meta)| content_id(title, text, meta)).collect();
        assert_eq!(ids.len(), chunks.len());
        assert!(ids.iter().all(|id| id.len() == 32));
    }
}
