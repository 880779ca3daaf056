//! An in-memory store of recent requests and exports, keyed by the id that the answer gave. It is bounded in bytes, and entries expire.
//! Ids are random, so that they cannot be guessed. The module knows nothing of transports.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thresher_core::domain::{ByteRange, Chunk};

/// The size of a store and the lifetime of its entries. Each tenant has its own stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TtlStoreSettings {
    /// Bytes of all entries of one tenant; the oldest are dropped. 0: the store keeps nothing. Default: 64 MiB.
    pub bytes_max: u64,
    /// Seconds until an entry expires. Default: 3,600.
    pub expire_s: u64,
}

impl Default for TtlStoreSettings {
    fn default() -> Self {
        Self { bytes_max: 67_108_864, expire_s: 3_600 }
    }
}

/// A value that can be kept in a [`TtlStore`].
pub trait TtlEntry {
    /// Prefix of the ids of such values, before an underscore.
    const ID_PREFIX: &'static str;

    /// Returns the bytes of memory that the value takes.
    fn bytes(&self) -> usize;
}

/// The chunks of a compression request, and what it kept of them.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentRequest {
    pub chunks: Vec<Arc<Chunk>>,
    /// The index of each chunk in the caller's list, if a prefilter left chunks out; `None`: every chunk was scored.
    pub caller_indices: Option<Vec<usize>>,
    /// For each chunk, the ranges of its text that the context holds, ascending.
    pub kept: Vec<Vec<ByteRange>>,
    /// For each chunk, the number of its citation marker in the context; `None`: the context does not hold it.
    pub markers: Vec<Option<usize>>,
}

impl TtlEntry for RecentRequest {
    const ID_PREFIX: &'static str = "cmp";

    /// Chunks that other entries hold as well are counted in full.
    fn bytes(&self) -> usize {
        // Bytes of a chunk's entries in the lists, and of its allocations.
        const PER_CHUNK: usize = 256;
        let ranges: usize = self.kept.iter().map(Vec::len).sum();
        self.chunks.iter().map(|chunk| chunk.bytes() + PER_CHUNK).sum::<usize>() + 16 * ranges
    }
}

/// Values by id, each until it expires or is evicted. Clones share the values.
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
    /// Insertion times and ids, the oldest first: the order in which entries expire and are evicted.
    ages: VecDeque<(Instant, String)>,
    bytes: usize,
}

impl<T: TtlEntry> State<T> {
    fn remove_oldest(&mut self) {
        let oldest = self.ages.pop_front().and_then(|(_, id)| self.by_id.remove(&id));
        self.bytes -= oldest.map_or(0, |value| value.bytes());
    }

    fn remove_expired(&mut self, expire: Duration) {
        while self.ages.front().is_some_and(|(since, _)| since.elapsed() >= expire) {
            self.remove_oldest();
        }
    }
}

/// Returns a new random id, `<prefix>_<32 hexadecimal digits>`.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::new_v4().simple())
}

impl<T: TtlEntry> TtlStore<T> {
    pub fn new(settings: &TtlStoreSettings) -> Self {
        let state = State { by_id: HashMap::new(), ages: VecDeque::new(), bytes: 0 };
        Self {
            state: Arc::new(Mutex::new(state)),
            bytes_max: usize::try_from(settings.bytes_max).unwrap_or(usize::MAX),
            expire: Duration::from_secs(settings.expire_s),
        }
    }

    /// Stores `value` and returns its id. Evicts the oldest entries if there is not enough room. Returns `None` if the value is larger than
    /// the whole store.
    pub fn insert(&self, value: T) -> Option<String> {
        let bytes = value.bytes();
        if bytes > self.bytes_max {
            return None;
        }
        let id = new_id(T::ID_PREFIX);
        let mut state = self.state();
        state.remove_expired(self.expire);
        while state.bytes + bytes > self.bytes_max {
            state.remove_oldest();
        }
        state.bytes += bytes;
        state.ages.push_back((Instant::now(), id.clone()));
        state.by_id.insert(id.clone(), Arc::new(value));
        Some(id)
    }

    /// Returns the number of bytes that all entries together may have.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Returns the number of bytes of all entries.
    pub fn bytes(&self) -> usize {
        let mut state = self.state();
        state.remove_expired(self.expire);
        state.bytes
    }

    pub fn expire_s(&self) -> u64 {
        self.expire.as_secs()
    }

    /// Returns the value with this id, unless it has expired or was evicted.
    pub fn get(&self, id: &str) -> Option<Arc<T>> {
        let mut state = self.state();
        state.remove_expired(self.expire);
        state.by_id.get(id).cloned()
    }

    pub fn retain(&self, keeps: impl Fn(&T) -> bool) {
        let mut state = self.state();
        let State { by_id, ages, bytes } = &mut *state;
        by_id.retain(|_, value| keeps(value));
        ages.retain(|(_, id)| by_id.contains_key(id));
        *bytes = by_id.values().map(|value| value.bytes()).sum();
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> RecentRequest {
        let chunk = Chunk::new("a", text);
        RecentRequest {
            chunks: vec![Arc::new(chunk)],
            caller_indices: None,
            kept: vec![vec![ByteRange::new(0, text.len())]],
            markers: vec![Some(1)],
        }
    }

    #[test]
    fn an_entry_is_found_until_it_expires() {
        let store = TtlStore::<RecentRequest>::new(&TtlStoreSettings::default());
        let id = store.insert(request("text")).expect("there is room");
        assert_eq!(*store.get(&id).expect("just inserted"), request("text"));
        assert_eq!(store.get("cmp_0"), None);
        let short_lived = TtlStore::new(&TtlStoreSettings { expire_s: 0, ..TtlStoreSettings::default() });
        let id = short_lived.insert(request("text")).expect("there is room");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(short_lived.get(&id), None);
    }

    #[test]
    fn entries_can_be_dropped_by_what_they_hold() {
        let store = TtlStore::new(&TtlStoreSettings::default());
        let [gone, kept] = ["deleted", "kept"].map(|text| store.insert(request(text)).expect("small"));
        store.retain(|entry| entry.chunks.iter().all(|chunk| chunk.text != "deleted"));
        assert_eq!((store.get(&gone), store.get(&kept).is_some()), (None, true));
        store.retain(|_| false);
        assert_eq!(store.get(&kept), None);
        let state = store.state();
        assert_eq!((state.bytes, state.ages.len()), (0, 0));
    }

    #[test]
    fn the_oldest_entries_make_room() {
        let store = TtlStore::new(&TtlStoreSettings { bytes_max: 20_000, expire_s: 60 });
        let ids: Vec<String> =
            (0..100).map(|_| store.insert(request(&"x".repeat(1_000))).expect("small")).collect();
        let left: Vec<bool> = ids.iter().map(|id| store.get(id).is_some()).collect();
        let count = left.iter().filter(|left| **left).count();
        assert!((10..=20).contains(&count), "{count} of 100");
        assert!(left[100 - count..].iter().all(|left| *left), "the newest are left");
        assert_eq!(store.insert(request(&"x".repeat(20_000))), None, "too large by itself");
        let off = TtlStore::new(&TtlStoreSettings { bytes_max: 0, expire_s: 60 });
        assert_eq!(off.insert(request("text")), None);
    }
}
