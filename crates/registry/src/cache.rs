//! The chunks in use, within a number of bytes: the least recently used one goes first.
//! Knows nothing of where they come from.

use std::sync::Arc;

use lru::LruCache;
use thresher_core::domain::Chunk;

/// What an entry takes beside its texts: map, list, `Arc`, `String`s.
const ENTRY_BYTES: usize = 256;

/// Chunks by id.
pub struct Cache {
    chunks: LruCache<String, Arc<Chunk>>,
    bytes: usize,
    bytes_max: usize,
    generation: u64,
}

impl Cache {
    /// An empty cache of at most `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self { chunks: LruCache::unbounded(), bytes: 0, bytes_max, generation: 0 }
    }

    /// The chunk of `id`.
    pub fn get(&mut self, id: &str) -> Option<Arc<Chunk>> {
        self.chunks.get(id).map(Arc::clone)
    }

    /// Puts a chunk in the place of any other with its id.
    pub fn put(&mut self, chunk: Arc<Chunk>) {
        let bytes = bytes_of(&chunk);
        self.remove(&chunk.id);
        if bytes > self.bytes_max {
            return;
        }
        self.bytes += bytes;
        self.chunks.put(chunk.id.clone(), chunk);
        while self.bytes > self.bytes_max {
            let (_, oldest) = self.chunks.pop_lru().expect("bytes are those of entries");
            self.bytes -= bytes_of(&oldest);
        }
    }

    /// Forgets `id`.
    pub fn remove(&mut self, id: &str) {
        if let Some(chunk) = self.chunks.pop(id) {
            self.bytes -= bytes_of(&chunk);
        }
    }

    /// Counts commits. What was read from the index may be put here only while the count is what it was before reading:
    /// a chunk that has been replaced in between would otherwise come back.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Another commit.
    pub fn advance(&mut self) {
        self.generation += 1;
    }
}

fn bytes_of(chunk: &Chunk) -> usize {
    // The id is the map's key, too.
    ENTRY_BYTES + chunk.id.len() + chunk.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: &str, bytes: usize) -> Arc<Chunk> {
        Arc::new(Chunk { id: id.to_owned(), title: None, text: "x".repeat(bytes), metadata: None })
    }

    #[test]
    fn the_oldest_go_when_bytes_run_out() {
        let mut cache = Cache::new(3 * (ENTRY_BYTES + 102));
        for id in ["a", "b", "c"] {
            cache.put(chunk(id, 100));
        }
        assert!(cache.get("a").is_some());
        cache.put(chunk("d", 100));
        let left: Vec<_> = ["a", "b", "c", "d"].into_iter().filter(|id| cache.get(id).is_some()).collect();
        assert_eq!(left, ["a", "c", "d"]);
        cache.put(chunk("d", 200));
        assert!(cache.bytes <= cache.bytes_max);
        cache.put(chunk("huge", 10_000));
        assert!(cache.get("huge").is_none());
        for id in ["a", "b", "c", "d"] {
            cache.remove(id);
        }
        assert_eq!(cache.bytes, 0);
    }
}
