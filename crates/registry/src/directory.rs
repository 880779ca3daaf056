//! Which chunks there are, in the order of their ids, and which of them the model has read.
//! Knows nothing of their texts, of disks or of models.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Failures after which a chunk is not tried again before it changes or the daemon restarts.
pub const ATTEMPTS_MAX: u8 = 5;

/// Every registered id. About 100 bytes each.
#[derive(Debug, Default)]
pub struct Directory {
    entries: BTreeMap<Arc<str>, Entry>,
    /// Cold ids in the order in which they came; some of them may have changed or gone since.
    fresh: VecDeque<Arc<str>>,
    /// Those of before the last start, behind the fresh ones: somebody may be waiting for a fresh one.
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

/// How much is registered, and how far reading it ahead has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Chunks.
    pub registered: usize,
    /// Of them, read by the model.
    pub warm: usize,
    /// Not yet.
    pub queued: usize,
    /// Given up; a request that needs one still tries.
    pub failed: usize,
}

/// A chunk to be read ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cold {
    /// Its id.
    pub id: Arc<str>,
    /// What it held when it was taken.
    content: u64,
    /// Whether it has failed before: it is then tried alone.
    pub suspect: bool,
}

impl Directory {
    /// Content of `id`, if it is registered.
    pub fn content(&self, id: &str) -> Option<u64> {
        self.entries.get(id).map(|entry| entry.content)
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Ids after `after`, ascending.
    pub fn after(&self, after: Option<&str>) -> impl Iterator<Item = &Arc<str>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.entries.range::<str, _>((from, Bound::Unbounded)).map(|(id, _)| id)
    }

    /// A chunk found on disk at start.
    pub fn found(&mut self, id: &str, content: u64) {
        let id: Arc<str> = id.into();
        self.entries.insert(Arc::clone(&id), Entry { content, warmth: Warmth::Cold, attempts: 0 });
        self.backlog.push_back(id);
    }

    /// `id` holds `content` now, which the model has not read.
    pub fn put(&mut self, id: &str, content: u64) {
        let entry = Entry { content, warmth: Warmth::Cold, attempts: 0 };
        match self.entries.get_mut(id) {
            Some(found) => {
                let was = std::mem::replace(found, entry).warmth;
                self.uncount(was);
                // A cold one has its place in the queue, or is being read and comes back when that is done.
                if was != Warmth::Cold {
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
        self.tidy();
    }

    /// `id` is gone.
    pub fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.uncount(entry.warmth);
        }
        self.tidy();
    }

    /// Takes up to `count` cold chunks out of the queue; each has to be given to [`Self::read`] or [`Self::give_back`].
    pub fn take(&mut self, count: usize) -> Vec<Cold> {
        let mut taken: Vec<Cold> = Vec::new();
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
            taken.push(Cold { id, content: entry.content, suspect });
            if suspect {
                break;
            }
        }
        taken
    }

    /// The model has read what was taken, or could not.
    pub fn read(&mut self, taken: &Cold, well: bool) {
        let Some(entry) = self.entries.get_mut(&taken.id).filter(|entry| entry.warmth == Warmth::Cold) else {
            return;
        };
        if entry.content != taken.content {
            self.fresh.push_back(Arc::clone(&taken.id));
        } else if well {
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

    /// Whether it is still registered as it was when it was taken.
    pub fn is_current(&self, taken: &Cold) -> bool {
        self.content(&taken.id) == Some(taken.content)
    }

    /// Nobody came to read it.
    pub fn give_back(&mut self, taken: Cold) {
        self.fresh.push_front(taken.id);
    }

    /// All chunks.
    pub fn progress(&self) -> Progress {
        let (registered, warm, failed) = (self.entries.len(), self.warm, self.failed);
        Progress { registered, warm, queued: registered - warm - failed, failed }
    }

    /// Some chunks, each counted once.
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

    /// The place of the first of `ids` from `from` on that is queued; their number if none is.
    pub fn first_queued(&self, ids: &[impl AsRef<str>], from: usize) -> usize {
        let queued = |id: &str| self.entries.get(id).is_some_and(|entry| entry.warmth == Warmth::Cold);
        (from..ids.len()).find(|&at| queued(ids[at].as_ref())).unwrap_or(ids.len())
    }

    fn uncount(&mut self, warmth: Warmth) {
        match warmth {
            Warmth::Cold => {}
            Warmth::Warm => self.warm -= 1,
            Warmth::Failed => self.failed -= 1,
        }
    }

    /// Ids that come and go while nobody reads would fill the queue: it never has more than twice the ids there are.
    fn tidy(&mut self) {
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

    fn ids(taken: &[Cold]) -> Vec<&str> {
        taken.iter().map(|cold| &*cold.id).collect()
    }

    #[test]
    fn fresh_ones_go_before_those_of_the_last_run() {
        let mut directory = Directory::default();
        directory.found("old", 1);
        directory.put("b", 1);
        directory.put("a", 1);
        assert_eq!(ids(&directory.take(2)), ["b", "a"]);
        assert_eq!(ids(&directory.take(2)), ["old"]);
        assert_eq!(directory.after(Some("a")).map(|id| &**id).collect::<Vec<_>>(), ["b", "old"]);
    }

    #[test]
    fn what_changes_while_it_is_read_is_read_again() {
        let mut directory = Directory::default();
        directory.put("a", 1);
        let taken = directory.take(1).remove(0);
        directory.put("a", 2);
        directory.read(&taken, true);
        assert_eq!(progress(&directory), [1, 0, 1, 0]);
        let taken = directory.take(1).remove(0);
        directory.read(&taken, true);
        assert_eq!(progress(&directory), [1, 1, 0, 0]);
        directory.put("a", 3);
        assert_eq!(progress(&directory), [1, 0, 1, 0]);
        directory.remove("a");
        assert_eq!(progress(&directory), [0, 0, 0, 0]);
        assert!(directory.take(9).is_empty());
    }

    #[test]
    fn failures_are_retried_alone_and_given_up_at_last() {
        let mut directory = Directory::default();
        directory.put("bad", 1);
        directory.put("good", 1);
        for cold in directory.take(2) {
            directory.read(&cold, false);
        }
        for attempt in 1..ATTEMPTS_MAX {
            for _ in ["bad", "good"] {
                let taken = directory.take(2);
                if taken.is_empty() {
                    break;
                }
                assert_eq!(taken.len(), 1, "attempt {attempt}");
                directory.read(&taken[0], &*taken[0].id == "good");
            }
        }
        assert_eq!(progress(&directory), [2, 1, 0, 1]);
        directory.put("bad", 2);
        assert_eq!(progress(&directory), [2, 1, 1, 0], "another text gets another chance");
    }

    #[test]
    fn the_queue_stays_as_long_as_the_directory() {
        let mut directory = Directory::default();
        for _ in 0..1_000 {
            directory.put("a", 1);
            directory.remove("a");
        }
        assert!(directory.fresh.len() <= 64, "{}", directory.fresh.len());
    }
}
