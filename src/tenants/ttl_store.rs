//! What earlier requests left behind, by the id that their answer gave: bounded in bytes, forgotten after a time, in memory only.
//! Knows nothing of transports; an id is guessed by nobody who was not told it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thresher_core::domain::{ByteRange, Chunk};

/// How much is remembered, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TtlStoreSettings {
    /// Bytes of the requests that are remembered; 0: none is.
    pub bytes_max: u64,
    /// Seconds after which a request is forgotten.
    pub expire_s: u64,
}

impl Default for TtlStoreSettings {
    fn default() -> Self {
        Self { bytes_max: 67_108_864, expire_s: 3_600 }
    }
}

/// Something that is held for a while.
pub trait TtlEntry {
    /// What ids of such begin with.
    const KIND: &'static str;

    /// Bytes that it takes.
    fn bytes(&self) -> usize;
}

/// The chunks of a request that compressed them, and what it kept.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentRequest {
    /// The caller's chunks.
    pub chunks: Vec<Arc<Chunk>>,
    /// For each chunk its place in the caller's list, where a prefilter left some out.
    pub places: Option<Vec<usize>>,
    /// For each chunk the ranges of its text that the context holds, ascending.
    pub kept: Vec<Vec<ByteRange>>,
    /// For each chunk its number in the context.
    pub markers: Vec<Option<usize>>,
}

impl TtlEntry for RecentRequest {
    const KIND: &'static str = "cmp";

    /// Chunks that others hold, too, are counted in full.
    fn bytes(&self) -> usize {
        const PER_CHUNK: usize = 256;
        let ranges: usize = self.kept.iter().map(Vec::len).sum();
        self.chunks.iter().map(|chunk| chunk.bytes() + PER_CHUNK).sum::<usize>() + 16 * ranges
    }
}

/// What is held, by id. Cheap to clone; clones hold the same.
pub struct TtlStore<T> {
    state: Arc<Mutex<State<T>>>,
    bytes_max: usize,
    expire: Duration,
}

impl<T> Clone for TtlStore<T> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), ..*self }
    }
}

struct State<T> {
    by_id: HashMap<String, Arc<T>>,
    /// Oldest first: the order in which they expire, and in which they make state.
    ages: VecDeque<(Instant, String)>,
    bytes: usize,
}

impl<T: TtlEntry> State<T> {
    fn forget_oldest(&mut self) {
        let oldest = self.ages.pop_front().and_then(|(_, id)| self.by_id.remove(&id));
        self.bytes -= oldest.map_or(0, |what| what.bytes());
    }

    fn forget_expired(&mut self, expire: Duration) {
        while self.ages.front().is_some_and(|(since, _)| since.elapsed() >= expire) {
            self.forget_oldest();
        }
    }
}

/// An id that nobody has and nobody guesses.
pub fn new_id(kind: &str) -> String {
    format!("{kind}_{}", uuid::Uuid::new_v4().simple())
}

impl<T: TtlEntry> TtlStore<T> {
    /// Holds nothing yet.
    pub fn new(settings: &TtlStoreSettings) -> Self {
        let state = State { by_id: HashMap::new(), ages: VecDeque::new(), bytes: 0 };
        Self {
            state: Arc::new(Mutex::new(state)),
            bytes_max: usize::try_from(settings.bytes_max).unwrap_or(usize::MAX),
            expire: Duration::from_secs(settings.expire_s),
        }
    }

    /// Holds this, the oldest ones making state; the id to ask for it by. None where it is larger than all state.
    pub fn remember(&self, what: T) -> Option<String> {
        let bytes = what.bytes();
        if bytes > self.bytes_max {
            return None;
        }
        let id = new_id(T::KIND);
        let mut state = self.state();
        state.forget_expired(self.expire);
        while state.bytes + bytes > self.bytes_max {
            state.forget_oldest();
        }
        state.bytes += bytes;
        state.ages.push_back((Instant::now(), id.clone()));
        state.by_id.insert(id.clone(), Arc::new(what));
        Some(id)
    }

    /// Whether there is no state for anything, or no time.
    pub fn holds_nothing(&self) -> bool {
        self.bytes_max == 0 || self.expire.is_zero()
    }

    /// Seconds after which something is forgotten.
    pub fn expire_s(&self) -> u64 {
        self.expire.as_secs()
    }

    /// What has this id, while it is held.
    pub fn get(&self, id: &str) -> Option<Arc<T>> {
        let mut state = self.state();
        state.forget_expired(self.expire);
        state.by_id.get(id).cloned()
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(text: &str) -> RecentRequest {
        let chunk = Chunk { id: "a".to_owned(), title: None, text: text.to_owned(), metadata: None };
        RecentRequest {
            chunks: vec![Arc::new(chunk)],
            places: None,
            kept: vec![vec![ByteRange::new(0, text.len())]],
            markers: vec![Some(1)],
        }
    }

    #[test]
    fn what_is_remembered_comes_back_until_it_expires() {
        let handles = TtlStore::<RecentRequest>::new(&TtlStoreSettings::default());
        let id = handles.remember(remembered("text")).expect("there is state");
        assert_eq!(*handles.get(&id).expect("just put there"), remembered("text"));
        assert_eq!(handles.get("cmp_0"), None);
        let forgetful = TtlStore::new(&TtlStoreSettings { expire_s: 0, ..TtlStoreSettings::default() });
        let id = forgetful.remember(remembered("text")).expect("there is state");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(forgetful.get(&id), None);
    }

    #[test]
    fn bytes_are_bounded() {
        let handles = TtlStore::new(&TtlStoreSettings { bytes_max: 20_000, expire_s: 60 });
        let ids: Vec<String> =
            (0..100).map(|_| handles.remember(remembered(&"x".repeat(1_000))).expect("small")).collect();
        let left: Vec<bool> = ids.iter().map(|id| handles.get(id).is_some()).collect();
        let count = left.iter().filter(|left| **left).count();
        assert!((10..=20).contains(&count), "{count} of 100");
        assert!(left[100 - count..].iter().all(|left| *left), "the newest are left");
        assert_eq!(handles.remember(remembered(&"x".repeat(20_000))), None, "too large by itself");
        let off = TtlStore::new(&TtlStoreSettings { bytes_max: 0, expire_s: 60 });
        assert_eq!(off.remember(remembered("text")), None);
    }
}
