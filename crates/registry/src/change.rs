//! Changes of what is registered, and what they do.
//! Knows nothing of where chunks are kept.

use std::sync::Arc;

use thresher_core::domain::Chunk;

use super::content::content_of;

/// A change to what is registered.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Registers the chunk under its id, or replaces the one that is there.
    Put(Arc<Chunk>),
    /// Registers the chunk if its id holds nothing.
    Offer(Arc<Chunk>),
    /// Takes the id away.
    Delete(String),
}

/// What a change did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The id is new.
    Created,
    /// The id held something else.
    Updated,
    /// The id held the same.
    Unchanged,
    /// The id is gone.
    Deleted,
    /// There was no such id.
    Unknown,
    /// There are `registry.chunk_count_max` chunks already; nothing was done.
    Full,
}

/// The id that it is about.
pub fn id_of(change: &Change) -> &str {
    match change {
        Change::Put(chunk) | Change::Offer(chunk) => &chunk.id,
        Change::Delete(id) => id,
    }
}

/// What it brings for its id; none when it takes it away.
pub fn content_brought(change: &Change) -> Option<u64> {
    match change {
        Change::Put(chunk) | Change::Offer(chunk) => Some(content_of(chunk)),
        Change::Delete(_) => None,
    }
}

/// What the id holds afterwards, where it held `before` and the change brings `brought`; none when it is gone.
pub fn content_after(change: &Change, before: Option<u64>, brought: Option<u64>) -> Option<u64> {
    match change {
        Change::Offer(_) => before.or(brought),
        Change::Put(_) | Change::Delete(_) => brought,
    }
}

impl Outcome {
    /// What a change does to an id that held `before` and shall hold `after`, where there are `count` chunks of at most
    /// `count_max`.
    pub fn of(before: Option<u64>, after: Option<u64>, count: &mut usize, count_max: usize) -> Self {
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

    /// Whether anything is different now.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Created | Self::Updated | Self::Deleted)
    }

    /// In metrics and answers.
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
