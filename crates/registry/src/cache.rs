//! The cache of the chunks in use. It knows nothing of the index.

use std::sync::Arc;

use thresher_core::domain::Chunk;

/// The overhead of a cache entry beside its texts, in bytes: map, list, `Arc` and `String`s.
const CACHE_ENTRY_BYTES: usize = 256;

/// The mean size of a cached chunk, in bytes, from which the number of entries is estimated.
const CHUNK_BYTES_TYPICAL: usize = 1_500;

/// A cache of chunks by id, bounded in bytes. Chunks that are used often stay longest.
pub struct Cache {
    chunks: quick_cache::unsync::Cache<String, Arc<Chunk>, CachedBytes>,
    generation: u64,
}

#[derive(Clone)]
struct CachedBytes;

impl quick_cache::Weighter<String, Arc<Chunk>> for CachedBytes {
    fn weight(&self, _id: &String, chunk: &Arc<Chunk>) -> u64 {
        cached_bytes(chunk) as u64
    }
}

impl Cache {
    pub fn new(bytes_max: usize) -> Self {
        let entries = (bytes_max / CHUNK_BYTES_TYPICAL).clamp(16, 1 << 20);
        let chunks = quick_cache::unsync::Cache::with_weighter(entries, bytes_max as u64, CachedBytes);
        Self { chunks, generation: 0 }
    }

    pub fn get(&mut self, id: &str) -> Option<Arc<Chunk>> {
        self.chunks.get(id).cloned()
    }

    /// Adds a chunk, replacing any chunk with its id. A chunk larger than the cache is not kept.
    pub fn put(&mut self, chunk: Arc<Chunk>) {
        self.chunks.remove(&chunk.id);
        self.chunks.insert(chunk.id.clone(), chunk);
    }

    pub fn remove(&mut self, id: &str) {
        self.chunks.remove(id);
    }

    /// The number of commits. A chunk that was read from the index may be added only if this number is the
    /// same as before the read; otherwise the old version of a chunk that was replaced meanwhile could get
    /// into the cache.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn advance(&mut self) {
        self.generation += 1;
    }
}

fn cached_bytes(chunk: &Chunk) -> usize {
    // The id is stored a second time, as the key of the map.
    CACHE_ENTRY_BYTES + chunk.id.len() + chunk.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(id: &str, bytes: usize) -> Arc<Chunk> {
        Arc::new(Chunk::new(id, "x".repeat(bytes)))
    }

    #[test]
    fn the_cache_stays_within_its_bytes_and_keeps_what_is_used() {
        let bytes_max = 3 * (CACHE_ENTRY_BYTES + 102);
        let mut cache = Cache::new(bytes_max);
        for id in ["a", "b", "c"] {
            cache.put(cached(id, 100));
        }
        assert!(cache.get("a").is_some());
        cache.put(cached("d", 100));
        assert!(cache.get("a").is_some(), "it was used");
        let left = ["a", "b", "c", "d"].into_iter().filter(|id| cache.get(id).is_some()).count();
        assert_eq!(left, 3, "one was evicted");
        cache.put(cached("d", 200));
        assert!(cache.chunks.weight() <= bytes_max as u64);
        cache.put(cached("huge", 10_000));
        assert!(cache.get("huge").is_none());
        for id in ["a", "b", "c", "d"] {
            cache.remove(id);
        }
        assert_eq!(cache.chunks.weight(), 0);
    }
}
