//! The index of the blocks on disk, which the threads of the disk tier share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::TierMetrics;
use super::bounded::{Bounded, Weighed};
use super::directory::{BlockFile, Directory};
use crate::kv::key::BlockKey;

/// The unit in which file systems allocate space.
const PAGE_BYTES: u64 = 4096;

/// The overhead in bytes of a file besides its pages: its inode and its name.
const FILE_BYTES: u64 = 512;

/// The state that the threads of the disk tier share.
pub struct Shared {
    pub directory: Directory,
    pub index: Bounded<IndexEntry>,
    pub metrics: TierMetrics,
    /// The number of removals per key that wait in the queue. Writes of the key that are queued before a
    /// removal must not take effect.
    pub pending_removals: Mutex<HashMap<BlockKey, usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    pub file: BlockFile,
    /// False while the file is being written: its bytes are counted, but it cannot be read yet.
    pub is_written: bool,
}

impl Shared {
    /// Returns the block in `file` if it is the one that was written. A missing or damaged block is removed
    /// from the index, so that the next insert writes it again.
    pub fn read(&self, file: &BlockFile) -> Option<Bytes> {
        match self.directory.read(file) {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => {}
            Err(error) => {
                // The error may be temporary, such as too many open files, so the block is kept.
                tracing::debug!(%error, key = %file.key, "the file of a block cannot be read");
                self.metrics.unreadable.increment(1);
                return None;
            }
        }
        // If the block was evicted, removed or written again in the meantime, the file was only read too late
        // and is not damaged.
        if self.remove_if(&file.key, |entry| entry.file.number == file.number) {
            tracing::warn!(key = %file.key, "a damaged block is deleted");
            self.metrics.damaged.increment(1);
        }
        None
    }

    /// Returns whether a removal of the block is still queued.
    pub fn is_removal_pending(&self, key: &BlockKey) -> bool {
        self.pending_removals().contains_key(key)
    }

    /// Records that the writer has reached one removal of the block in the queue.
    pub fn removal_done(&self, key: &BlockKey) {
        if let Entry::Occupied(mut pending) = self.pending_removals().entry(*key) {
            *pending.get_mut() -= 1;
            if *pending.get() == 0 {
                pending.remove();
            }
        }
    }

    pub fn pending_removals(&self) -> MutexGuard<'_, HashMap<BlockKey, usize>> {
        self.pending_removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the block from the index and deletes its file if `condition` is true for its entry. Returns
    /// whether it was removed.
    pub fn remove_if(&self, key: &BlockKey, condition: impl FnOnce(&IndexEntry) -> bool) -> bool {
        let Some(entry) = self.index.remove_if(key, condition) else { return false };
        if let Err(error) = self.directory.delete(&entry.file) {
            tracing::debug!(%error, %key, "the file of a block cannot be deleted");
        }
        self.metrics.set_stats(self.index.stats());
        true
    }

    /// Adds a file that was in the directory when it was opened. Of two files with the same key, the newer
    /// one is kept.
    pub fn add_existing(&self, file: BlockFile) {
        self.remove_if(&file.key, |_| true);
        let evicted = self.index.insert(file.key, IndexEntry { file, is_written: true });
        let to_delete =
            evicted.map_or(vec![file], |evicted| evicted.iter().map(|(_, entry)| entry.file).collect());
        for file in to_delete {
            self.metrics.evictions.increment(1);
            if let Err(error) = self.directory.delete(&file) {
                tracing::debug!(%error, key = %file.key, "the file of a block cannot be deleted");
            }
        }
    }
}

impl Weighed for IndexEntry {
    fn weight(&self) -> u64 {
        self.file
            .record_len()
            .checked_next_multiple_of(PAGE_BYTES)
            .unwrap_or(u64::MAX)
            .saturating_add(FILE_BYTES)
    }
}
