//! A cache of what was found in texts, such as their layouts. A conversation sends the same texts with each request.

use std::convert::Infallible;
use std::hash::Hash;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// The first half of a BLAKE3 hash, so that no two texts have the same.
type TextHash = [u8; 16];

/// A cache of values by the hash of the text that they were found in and by what else they depend on, such as its language. The bytes of its
/// entries are limited.
pub struct TextCache<K, V>(Cache<(K, TextHash), V, EntryBytes<V>>);

/// Weighs an entry by the bytes of its key and its value.
#[derive(Clone)]
struct EntryBytes<V>(fn(&V) -> usize);

impl<K, V> Weighter<(K, TextHash), V> for EntryBytes<V> {
    fn weight(&self, _: &(K, TextHash), value: &V) -> u64 {
        (size_of::<(K, TextHash)>() + (self.0)(value)) as u64
    }
}

impl<K: Eq + Hash, V: Clone> TextCache<K, V> {
    /// Returns an empty cache for the values of `texts_max` texts. The values own no memory outside themselves.
    pub fn new(texts_max: usize) -> Self {
        let entry_bytes = size_of::<(K, TextHash)>() + size_of::<V>();
        Self::with_bytes(texts_max, texts_max * entry_bytes, |_| size_of::<V>())
    }

    /// Returns an empty cache for `bytes_max` bytes, made for about `texts` texts. `bytes_of` returns the bytes of a value.
    pub fn with_bytes(texts: usize, bytes_max: usize, bytes_of: fn(&V) -> usize) -> Self {
        Self(Cache::with_weighter(texts, bytes_max as u64, EntryBytes(bytes_of)))
    }

    /// Returns the bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.0.weight()
    }

    /// Returns the value of a text if it is in the cache.
    pub fn get(&self, key: K, text: &str) -> Option<V> {
        self.0.get(&(key, hash_of(text)))
    }

    /// Returns the value of a text, from the cache if possible.
    pub fn get_or_find(&self, key: K, text: &str, find: impl FnOnce() -> V) -> V {
        let Ok(value) = self.get_or_try_find(key, text, || Ok::<V, Infallible>(find()));
        value
    }

    /// Returns the value of a text, from the cache if possible.
    ///
    /// # Errors
    /// Returns the error of `find`.
    pub fn get_or_try_find<E>(
        &self,
        key: K,
        text: &str,
        find: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let key = (key, hash_of(text));
        if let Some(value) = self.0.get(&key) {
            return Ok(value);
        }
        // Without a lock: two threads may find the same value at once.
        let value = find()?;
        self.0.insert(key, value.clone());
        Ok(value)
    }
}

fn hash_of(text: &str) -> TextHash {
    *blake3::hash(text.as_bytes()).as_bytes().first_chunk().expect("a hash has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_by_text_and_key_within_the_bytes() {
        let cache: TextCache<u8, usize> = TextCache::new(1000);
        assert_eq!(cache.get_or_find(1, "moon", || 4), 4);
        assert_eq!(cache.get_or_find(1, "moon", || unreachable!("it is known")), 4);
        assert_eq!((cache.get(2, "moon"), cache.get(1, "tide")), (None, None));
        assert_eq!(cache.get_or_try_find(1, "tide", || Err("stopped")), Err("stopped"));
        (0..10_000).for_each(|text| _ = cache.get_or_find(1, &text.to_string(), || text));
        assert!((900..=1100).contains(&cache.0.len()), "{}", cache.0.len());
    }
}
