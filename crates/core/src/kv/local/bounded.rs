//! A map from block keys to values whose total weight never exceeds a limit; the only user of `quick_cache`
//! in this module. Knows nothing of the values but their weight.

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use super::TierStats;
use crate::kv::key::{BlockKey, TenantTag};

/// The least limit of a shard, in bytes. A shard has its own lock and evicts independently of the others. It
/// must have space for the largest possible block (all tokens of a request in one chunk: 100 MB), so there
/// are several shards only if the limit of the map is large.
const SHARD_BYTES_MIN: u64 = 128 << 20;
const SHARDS_MAX: u64 = 16;

/// The share of a shard that is reserved for blocks that were used more than once. New blocks pass through
/// the rest, so that one large request does not evict the blocks that all other requests use. It is also the
/// share of a shard that the largest block may take.
const HOT_SHARE: f64 = 0.9;

/// The bytes of a block of 200 tokens, from which the number of entries is estimated.
const BLOCK_BYTES_TYPICAL: u64 = 80_000;

pub trait Weighed: Clone {
    /// Returns the bytes that the value takes, with the overhead of storing it. It must not change while the
    /// value is in the map.
    fn weight(&self) -> u64;
}

/// A map from block keys to values, whose total weight is limited.
pub struct Bounded<V: Weighed> {
    cache: Cache<BlockKey, V, ByWeight, DefaultHashBuilder, Collect>,
    weight_max: u64,
}

/// The error for a value that weighs more than the map accepts for a single value.
#[derive(Debug, PartialEq, Eq)]
pub struct TooHeavy;

impl<V: Weighed> Bounded<V> {
    /// Returns an empty map with this limit of the total weight.
    pub fn new(bytes_max: u64) -> Self {
        // The library rounds up the number of shards to a power of two, and then the limit of each shard.
        // Both are rounded down here first, so that the limit is never exceeded.
        let shards = 1 << (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX).ilog2();
        let entries = (bytes_max / BLOCK_BYTES_TYPICAL).clamp(32 * shards, 1 << 24);
        let options = OptionsBuilder::new()
            .shards(shards as usize)
            .weight_capacity(bytes_max / shards * shards)
            .estimated_items_capacity(entries as usize)
            .hot_allocation(HOT_SHARE)
            .build()
            .expect("all required options are set");
        let cache = Cache::with_options(options, ByWeight, DefaultHashBuilder::default(), Collect);
        let weight_max = (cache.shard_capacity() as f64 * HOT_SHARE) as u64;
        Self { cache, weight_max }
    }

    /// Inserts a value and returns the evicted entries. The total weight is within the limit at every moment.
    ///
    /// # Errors
    /// Returns [`TooHeavy`] when the value is too heavy. The map is then unchanged.
    pub fn insert(&self, key: BlockKey, value: V) -> Result<Vec<(BlockKey, V)>, TooHeavy> {
        if value.weight() > self.weight_max {
            return Err(TooHeavy);
        }
        let mut evicted = Vec::new();
        self.cache.insert_with_lifecycle(key, value, &mut evicted);
        Ok(evicted)
    }

    /// Replaces the value of `key` by a value of the same weight. Returns false if the map does not contain
    /// the key.
    pub fn replace(&self, key: BlockKey, value: V) -> bool {
        self.cache.replace(key, value, true).is_ok()
    }

    /// Returns the value, and counts this as a use of it.
    pub fn get(&self, key: &BlockKey) -> Option<V> {
        self.cache.get(key)
    }

    /// Returns the value without counting this as a use of it.
    pub fn peek(&self, key: &BlockKey) -> Option<V> {
        self.cache.peek(key)
    }

    /// Removes and returns the value of `key` if `condition` is true for it.
    pub fn remove_if(&self, key: &BlockKey, condition: impl FnOnce(&V) -> bool) -> Option<V> {
        self.cache.remove_if(key, condition).map(|(_, value)| value)
    }

    pub fn keys_of(&self, tenant: TenantTag) -> Vec<BlockKey> {
        self.cache.iter().map(|(key, _)| key).filter(|key| key.is_of(tenant)).collect()
    }

    /// Returns the number of entries and their total weight.
    pub fn stats(&self) -> TierStats {
        TierStats { entries: self.cache.len() as u64, bytes: self.cache.weight() }
    }
}

#[derive(Clone)]
struct ByWeight;

impl<V: Weighed> Weighter<BlockKey, V> for ByWeight {
    fn weight(&self, _key: &BlockKey, value: &V) -> u64 {
        value.weight()
    }
}

/// Collects evicted entries for the caller, who gets them after the lock is released.
#[derive(Clone)]
struct Collect;

impl<V> Lifecycle<BlockKey, V> for Collect {
    type RequestState = Vec<(BlockKey, V)>;

    fn on_evict(&self, evicted: &mut Self::RequestState, key: BlockKey, value: V) {
        evicted.push((key, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weighed for u64 {
        fn weight(&self) -> u64 {
            *self
        }
    }

    fn key(n: u64) -> BlockKey {
        BlockKey::from_bytes(*blake3::hash(&n.to_le_bytes()).as_bytes())
    }

    #[test]
    fn the_limit_holds_at_every_moment_and_evicted_entries_are_returned() {
        let check = |bytes_max: u64, weights: fn(u64) -> u64| {
            let bounded = Bounded::<u64>::new(bytes_max);
            let (mut kept, mut count) = (0, 0);
            for n in 0..2000 {
                if let Ok(evicted) = bounded.insert(key(n), weights(n)) {
                    kept += weights(n);
                    kept -= evicted.iter().map(|(_, weight)| weight).sum::<u64>();
                    count = count + 1 - evicted.len() as u64;
                }
                assert_eq!(bounded.stats(), TierStats { entries: count, bytes: kept }, "{bytes_max}, {n}");
                assert!(kept <= bytes_max, "{bytes_max}: {kept} after {n}");
            }
        };
        check(0, |_| 1);
        check(1_000, |_| 100);
        check(1_000, |n| 1 + n % 1_200);
        check(1_000_000, |n| 1 + n * 7919 % 100_000);
        check(300 << 20, |n| 1 + n * 7919 % (1 << 20));
        check(1 << 30, |n| 1 + n * 7919 % (4 << 20));
    }

    #[test]
    fn a_value_that_is_too_heavy_changes_nothing() {
        let bounded = Bounded::<u64>::new(1_000);
        assert_eq!(bounded.insert(key(1), 10), Ok(vec![]));
        assert_eq!(bounded.insert(key(1), 1_000), Err(TooHeavy));
        assert_eq!(bounded.insert(key(2), u64::MAX), Err(TooHeavy));
        assert_eq!((bounded.get(&key(1)), bounded.get(&key(2))), (Some(10), None));
    }
}
