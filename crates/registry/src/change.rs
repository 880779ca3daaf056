//! Changes to the registered chunks, their outcomes, and the content hashes that outcomes are derived from.
//! Does not know where chunks are stored.

use std::sync::Arc;

use blake3::Hasher;
use thresher_core::domain::{Anchors, Chunk};

#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Registers the chunk under its id, replacing any chunk with that id.
    Put(Arc<Chunk>),
    /// Registers the chunk if no chunk has its id.
    Offer(Arc<Chunk>),
    Delete(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The chunk was registered under a new id.
    Created,
    /// The chunk replaced another content of its id.
    Updated,
    /// The id already had this content; nothing was changed.
    Unchanged,
    Deleted,
    /// The id to delete is not registered; nothing was changed.
    Unknown,
    /// `registry.chunk_count_max` chunks are registered already; nothing was changed.
    Full,
}

pub fn id_of(change: &Change) -> &str {
    match change {
        Change::Put(chunk) | Change::Offer(chunk) => &chunk.id,
        Change::Delete(id) => id,
    }
}

/// The content hash of the chunk in a change; `None` for a deletion.
pub fn content_in(change: &Change) -> Option<u64> {
    match change {
        Change::Put(chunk) | Change::Offer(chunk) => Some(content_hash(chunk)),
        Change::Delete(_) => None,
    }
}

/// The content hash of an id after a change: `before` is the hash before it and `new` the hash in the change.
/// `None`: the id is not registered.
pub fn content_after(change: &Change, before: Option<u64>, new: Option<u64>) -> Option<u64> {
    match change {
        Change::Offer(_) => before.or(new),
        Change::Put(_) | Change::Delete(_) => new,
    }
}

impl Outcome {
    /// The outcome of a change that turns the content hash of an id from `before` to `after`, where `count`
    /// chunks are registered and at most `count_max` may be. Updates `count`.
    pub fn between(before: Option<u64>, after: Option<u64>, count: &mut usize, count_max: usize) -> Self {
        match (before, after) {
            (None, None) => Self::Unknown,
            (Some(_), None) => {
                *count -= 1;
                Self::Deleted
            }
            (None, Some(_)) if *count >= count_max => Self::Full,
            (None, Some(_)) => {
                *count += 1;
                Self::Created
            }
            (Some(before), Some(after)) if before == after => Self::Unchanged,
            (Some(_), Some(_)) => Self::Updated,
        }
    }

    /// Returns whether the change had an effect: true for created, updated and deleted.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Created | Self::Updated | Self::Deleted)
    }

    /// The outcome's name in metrics and responses, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
            Self::Unknown => "unknown",
            Self::Full => "full",
        }
    }
}

/// Returns the id of a chunk for which the caller gave none: 32 hexadecimal digits of a hash over its title,
/// text, metadata and anchors, so that equal chunks have equal ids, whatever their kind. Metadata and anchors are included because
/// otherwise a paragraph that occurs in two documents would be one chunk with those of the later document.
pub fn content_id(title: Option<&str>, text: &str, metadata: Option<&str>, anchors: &Anchors) -> String {
    hex::encode(&hash("id", [title, Some(text), metadata], anchors)[..16])
}

/// The content hash of a chunk, which distinguishes two versions of one id. 64 bits are enough, because a
/// version is only ever compared with the one before it.
pub fn content_hash(chunk: &Chunk) -> u64 {
    let kind = (!chunk.kind.is_auto()).then(|| chunk.kind.name());
    let parts = [chunk.title.as_deref(), Some(&chunk.text), chunk.metadata.as_deref(), kind];
    first_u64(&hash("version", parts, &chunk.anchors))
}

/// The hash of an id, which is stored in a column of the index, where comparing strings would be slow.
pub fn id_hash(id: &str) -> u64 {
    first_u64(blake3::hash(id.as_bytes()).as_bytes())
}

fn hash<const PARTS: usize>(purpose: &str, parts: [Option<&str>; PARTS], anchors: &Anchors) -> [u8; 32] {
    // A chunk without anchors has the hash that earlier versions gave it.
    let anchors = anchors.to_json();
    let mut hasher = Hasher::new();
    // Each part is preceded by whether it exists and by its length, so that no two chunks hash the same
    // bytes.
    for part in [Some(purpose)].into_iter().chain(parts).chain(anchors.as_deref().map(Some)) {
        hasher.update(&[u8::from(part.is_some())]);
        let part = part.unwrap_or_default();
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    *hasher.finalize().as_bytes()
}

fn first_u64(hash: &[u8; 32]) -> u64 {
    u64::from_le_bytes(*hash.first_chunk().expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn chunks_that_differ_have_different_ids() {
        let chunks = [
            (None, "a", None),
            (Some(""), "a", None),
            (Some("a"), "", None),
            (None, "a", Some("{}")),
            (None, "", Some("a")),
            (None, "b", None),
        ];
        let none = Anchors::default();
        let mut ids: HashSet<String> =
            chunks.iter().map(|&(title, text, meta)| content_id(title, text, meta, &none)).collect();
        ids.insert(content_id(None, "a", None, &Anchors::new(Vec::new(), Some(2), "a").expect("valid")));
        assert_eq!(ids.len(), chunks.len() + 1);
        assert!(ids.iter().all(|id| id.len() == 32));
    }
}
