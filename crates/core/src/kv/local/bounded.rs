//! A map of blocks that never weighs more than its bound; the only user of `quick_cache`.
//! Knows nothing of what it maps to but its weight.

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};

use super::TierStats;
use crate::kv::key::BlockKey;

/// A shard is locked as a whole and evicts for itself. It must hold the largest block there is (a request's tokens in one
/// chunk: 100 MB), so few blocks share many shards only where the bound is large.
const SHARD_BYTES_MIN: u64 = 128 << 20;
const SHARDS_MAX: u64 = 16;

/// The share of a shard for blocks that were asked for again; new ones pass through the rest, so that one large request
/// does not wash out what all others use. It also is the largest block that fits.
const HOT_SHARE: f64 = 0.9;

/// A block of 200 tokens: to guess how many there will be.
const BLOCK_BYTES_TYPICAL: u64 = 80_000;

/// What has a weight.
pub trait Weighed: Clone {
    /// Bytes, with what it costs to keep them; the same for as long as it is kept.
    fn weight(&self) -> u64;
}

/// Keys to values of bounded weight.
pub struct Bounded<V: Weighed> {
    cache: Cache<BlockKey, V, ByWeight, DefaultHashBuilder, Collect>,
    weight_max: u64,
}

/// The value weighs more than the map will hold of one.
#[derive(Debug, PartialEq, Eq)]
pub struct TooHeavy;

impl<V: Weighed> Bounded<V> {
    /// An empty map.
    pub fn new(bytes_max: u64) -> Self {
        // The library rounds up: the number of shards to a power of two, then a shard's share of the bound.
        let shards = 1 << (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX).ilog2();
        let entries = (bytes_max / BLOCK_BYTES_TYPICAL).clamp(32 * shards, 1 << 24);
        let options = OptionsBuilder::new()
            .shards(shards as usize)
            .weight_capacity(bytes_max / shards * shards)
            .estimated_items_capacity(entries as usize)
            .hot_allocation(HOT_SHARE)
            .build()
            .expect("what is required is set");
        let cache = Cache::with_options(options, ByWeight, DefaultHashBuilder::default(), Collect);
        let weight_max = (cache.shard_capacity() as f64 * HOT_SHARE) as u64;
        Self { cache, weight_max }
    }

    /// Maps `key` to `value`; returns what had to go. The bound holds at every moment.
    ///
    /// # Errors
    /// [`TooHeavy`]: nothing has changed.
    pub fn insert(&self, key: BlockKey, value: V) -> Result<Vec<(BlockKey, V)>, TooHeavy> {
        if value.weight() > self.weight_max {
            return Err(TooHeavy);
        }
        let mut evicted = Vec::new();
        self.cache.insert_with_lifecycle(key, value, &mut evicted);
        Ok(evicted)
    }

    /// Changes what `key` maps to, to a value of the same weight; false if it maps to nothing.
    pub fn replace(&self, key: BlockKey, value: V) -> bool {
        self.cache.replace(key, value, true).is_ok()
    }

    /// The value, which is taken as used.
    pub fn get(&self, key: &BlockKey) -> Option<V> {
        self.cache.get(key)
    }

    /// The value, as if nobody had asked.
    pub fn peek(&self, key: &BlockKey) -> Option<V> {
        self.cache.peek(key)
    }

    /// Forgets `key` if `condition` holds for its value, which is returned.
    pub fn remove_if(&self, key: &BlockKey, condition: impl FnOnce(&V) -> bool) -> Option<V> {
        self.cache.remove_if(key, condition).map(|(_, value)| value)
    }

    /// What is in it.
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

/// Hands evicted entries to the caller, outside the lock.
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
    fn the_bound_holds_at_every_moment_and_what_goes_is_returned() {
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
    fn one_that_is_too_heavy_changes_nothing() {
        let bounded = Bounded::<u64>::new(1_000);
        assert_eq!(bounded.insert(key(1), 10), Ok(vec![]));
        assert_eq!(bounded.insert(key(1), 1_000), Err(TooHeavy));
        assert_eq!(bounded.insert(key(2), u64::MAX), Err(TooHeavy));
        assert_eq!((bounded.get(&key(1)), bounded.get(&key(2))), (Some(10), None));
    }
}
