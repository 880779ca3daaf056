//! The list of registered chunks in the order of their ids, and the queue of chunks that the model has not
//! read yet. Does not know about texts, disks or models.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// After this many failures a chunk is not read ahead again until it changes or the daemon restarts.
pub const ATTEMPTS_MAX: u8 = 5;

/// All registered ids, about 100 bytes each, and the queue of those to read ahead.
#[derive(Debug, Default)]
pub struct Directory {
    entries: BTreeMap<Arc<str>, Entry>,
    /// Cold ids in the order of their registration. Some may have changed or been deleted since.
    fresh: VecDeque<Arc<str>>,
    /// Cold ids from before the last start, and ids to try again. They come after the fresh ones, which a
    /// request may be waiting for.
    backlog: VecDeque<Arc<str>>,
    warm: usize,
    failed: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    content: u64,
    warmth: Warmth,
    attempts: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Warmth {
    Cold,
    Warm,
    Failed,
}

/// The number of registered chunks and of those that the model has read ahead of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub registered: usize,
    /// The number of chunks that the model has read.
    pub warm: usize,
    /// The number of chunks that the model has yet to read.
    pub queued: usize,
    /// The number of chunks that could not be read and will not be tried again. A request that needs one
    /// still tries to read it.
    pub failed: usize,
}

/// A chunk that was taken from the queue to be read ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdChunk {
    pub id: Arc<str>,
    /// The content hash when the chunk was taken.
    content: u64,
    /// Whether reading the chunk has failed before; it is then read alone.
    pub suspect: bool,
}

impl Directory {
    /// The content hash of `id`, or `None` if it is not registered.
    pub fn content(&self, id: &str) -> Option<u64> {
        self.entries.get(id).map(|entry| entry.content)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The ids after `after`, ascending; all ids if it is `None`.
    pub fn after(&self, after: Option<&str>) -> impl Iterator<Item = &Arc<str>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.entries.range::<str, _>((from, Bound::Unbounded)).map(|(id, _)| id)
    }

    /// Adds a chunk that was found on disk at startup.
    pub fn add_stored(&mut self, id: &str, content: u64) {
        let id: Arc<str> = id.into();
        self.entries.insert(Arc::clone(&id), Entry { content, warmth: Warmth::Cold, attempts: 0 });
        self.backlog.push_back(id);
    }

    /// Sets the content of `id`, which the model has not read yet.
    pub fn put(&mut self, id: &str, content: u64) {
        let entry = Entry { content, warmth: Warmth::Cold, attempts: 0 };
        match self.entries.get_mut(id) {
            Some(found) => {
                let before = std::mem::replace(found, entry).warmth;
                self.uncount(before);
                // A cold chunk is in the queue already, or is being read and is queued again afterwards.
                if before != Warmth::Cold {
                    let (id, _) = self.entries.get_key_value(id).expect("just found");
                    self.fresh.push_back(Arc::clone(id));
                }
            }
            None => {
                let id: Arc<str> = id.into();
                self.entries.insert(Arc::clone(&id), entry);
                self.fresh.push_back(id);
            }
        }
        self.compact_queue();
    }

    pub fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.uncount(entry.warmth);
        }
        self.compact_queue();
    }

    /// Takes up to `count` cold chunks from the queue. The caller has to pass each to [`Self::finish_read`]
    /// or [`Self::give_back`].
    pub fn take(&mut self, count: usize) -> Vec<ColdChunk> {
        let mut taken: Vec<ColdChunk> = Vec::new();
        while taken.len() < count {
            let Some(id) = self.fresh.pop_front().or_else(|| self.backlog.pop_front()) else { break };
            let Some(entry) = self.entries.get(&id).filter(|entry| entry.warmth == Warmth::Cold) else {
                continue;
            };
            if taken.iter().any(|other| other.id == id) {
                continue;
            }
            let suspect = entry.attempts > 0;
            if suspect && !taken.is_empty() {
                self.fresh.push_front(id);
                break;
            }
            taken.push(ColdChunk { id, content: entry.content, suspect });
            if suspect {
                break;
            }
        }
        taken
    }

    /// Records whether the model could read a chunk that was taken.
    pub fn finish_read(&mut self, taken: &ColdChunk, succeeded: bool) {
        let Some(entry) = self.entries.get_mut(&taken.id).filter(|entry| entry.warmth == Warmth::Cold) else {
            return;
        };
        if entry.content != taken.content {
            self.fresh.push_back(Arc::clone(&taken.id));
        } else if succeeded {
            entry.warmth = Warmth::Warm;
            self.warm += 1;
        } else {
            entry.attempts += 1;
            if entry.attempts >= ATTEMPTS_MAX {
                entry.warmth = Warmth::Failed;
                self.failed += 1;
            } else {
                self.backlog.push_back(Arc::clone(&taken.id));
            }
        }
    }

    /// Whether the chunk is still registered with the content that it had when it was taken.
    pub fn is_current(&self, taken: &ColdChunk) -> bool {
        self.content(&taken.id) == Some(taken.content)
    }

    /// Returns a chunk that was taken but not read to the front of the queue.
    pub fn give_back(&mut self, taken: ColdChunk) {
        self.fresh.push_front(taken.id);
    }

    pub fn progress(&self) -> Progress {
        let (registered, warm, failed) = (self.entries.len(), self.warm, self.failed);
        Progress { registered, warm, queued: registered - warm - failed, failed }
    }

    /// The progress of the chunks with these ids, each counted once.
    pub fn progress_of(&self, ids: &[impl AsRef<str>]) -> Progress {
        let distinct: std::collections::HashSet<&str> = ids.iter().map(AsRef::as_ref).collect();
        let mut progress = Progress::default();
        for entry in distinct.into_iter().filter_map(|id| self.entries.get(id)) {
            progress.registered += 1;
            match entry.warmth {
                Warmth::Cold => progress.queued += 1,
                Warmth::Warm => progress.warm += 1,
                Warmth::Failed => progress.failed += 1,
            }
        }
        progress
    }

    /// The index of the first id at or after the index `from` that is queued, or `ids.len()` if there is
    /// none.
    pub fn first_queued(&self, ids: &[impl AsRef<str>], from: usize) -> usize {
        let queued = |id: &str| self.entries.get(id).is_some_and(|entry| entry.warmth == Warmth::Cold);
        (from..ids.len()).find(|&index| queued(ids[index].as_ref())).unwrap_or(ids.len())
    }

    fn uncount(&mut self, warmth: Warmth) {
        match warmth {
            Warmth::Cold => {}
            Warmth::Warm => self.warm -= 1,
            Warmth::Failed => self.failed -= 1,
        }
    }

    /// Removes stale and repeated ids when the queue has more than twice as many ids as there are chunks,
    /// plus 64. Otherwise chunks that are registered and deleted while nothing is read would fill the queue.
    fn compact_queue(&mut self) {
        if self.fresh.len() + self.backlog.len() <= 2 * self.entries.len() + 64 {
            return;
        }
        let mut seen = std::collections::HashSet::new();
        for queue in [&mut self.fresh, &mut self.backlog] {
            queue.retain(|id| self.entries.contains_key(id) && seen.insert(Arc::clone(id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(directory: &Directory) -> [usize; 4] {
        let Progress { registered, warm, queued, failed } = directory.progress();
        [registered, warm, queued, failed]
    }

    fn ids(taken: &[ColdChunk]) -> Vec<&str> {
        taken.iter().map(|cold| &*cold.id).collect()
    }

    #[test]
    fn new_chunks_are_read_before_those_of_the_last_run() {
        let mut directory = Directory::default();
        directory.add_stored("old", 1);
        directory.put("b", 1);
        directory.put("a", 1);
        assert_eq!(ids(&directory.take(2)), ["b", "a"]);
        assert_eq!(ids(&directory.take(2)), ["old"]);
        assert_eq!(directory.after(Some("a")).map(|id| &**id).collect::<Vec<_>>(), ["b", "old"]);
    }

    #[test]
    fn a_chunk_that_changes_while_it_is_read_is_read_again() {
        let mut directory = Directory::default();
        directory.put("a", 1);
        let taken = directory.take(1).remove(0);
        directory.put("a", 2);
        directory.finish_read(&taken, true);
        assert_eq!(progress(&directory), [1, 0, 1, 0]);
        let taken = directory.take(1).remove(0);
        directory.finish_read(&taken, true);
        assert_eq!(progress(&directory), [1, 1, 0, 0]);
        directory.put("a", 3);
        assert_eq!(progress(&directory), [1, 0, 1, 0]);
        directory.remove("a");
        assert_eq!(progress(&directory), [0, 0, 0, 0]);
        assert!(directory.take(9).is_empty());
    }

    #[test]
    fn chunks_that_fail_are_retried_alone_and_given_up_after_some_attempts() {
        let mut directory = Directory::default();
        directory.put("bad", 1);
        directory.put("good", 1);
        for cold in directory.take(2) {
            directory.finish_read(&cold, false);
        }
        for attempt in 1..ATTEMPTS_MAX {
            for _ in ["bad", "good"] {
                let taken = directory.take(2);
                if taken.is_empty() {
                    break;
                }
                assert_eq!(taken.len(), 1, "attempt {attempt}");
                directory.finish_read(&taken[0], &*taken[0].id == "good");
            }
        }
        assert_eq!(progress(&directory), [2, 1, 0, 1]);
        directory.put("bad", 2);
        assert_eq!(progress(&directory), [2, 1, 1, 0], "a chunk with a new text is tried again");
    }

    #[test]
    fn the_length_of_the_queue_is_bounded() {
        let mut directory = Directory::default();
        for _ in 0..1_000 {
            directory.put("a", 1);
            directory.remove("a");
        }
        assert!(directory.fresh.len() <= 64, "{}", directory.fresh.len());
    }
}
