//! The memory tier.
//! Knows no files.

use bytes::Bytes;

use super::bounded::{Bounded, Weighed};
use super::meters::Meters;
use super::{TierName, TierStats};
use crate::kv::key::BlockKey;

/// What a block in memory costs besides its bytes: key and handle in the map, the map's free slots and its memory of keys
/// that were evicted, the shared counter of `Bytes`, the allocator's rounding. Measured, rounded up.
const ENTRY_BYTES: u64 = 512;

/// Blocks in memory.
pub struct Memory {
    blocks: Bounded<Bytes>,
    meters: Meters,
}

impl Memory {
    /// An empty tier.
    pub fn new(bytes_max: u64) -> Self {
        Self { blocks: Bounded::new(bytes_max), meters: Meters::new(TierName::Memory) }
    }

    /// The block, not copied.
    pub fn get(&self, key: &BlockKey) -> Option<Bytes> {
        self.blocks.get(key)
    }

    /// Keeps the block, if it is not too large for the tier.
    pub fn insert(&self, key: BlockKey, bytes: Bytes) {
        match self.blocks.insert(key, bytes) {
            Ok(evicted) => {
                self.meters.written.increment(1);
                self.meters.evictions.increment(evicted.len() as u64);
            }
            Err(_) => self.meters.too_large.increment(1),
        }
        self.meters.holds(self.stats());
    }

    /// Forgets the block.
    pub fn remove(&self, key: &BlockKey) {
        self.blocks.remove_if(key, |_| true);
        self.meters.holds(self.stats());
    }

    /// What it holds now.
    pub fn stats(&self) -> TierStats {
        self.blocks.stats()
    }
}

impl Weighed for Bytes {
    fn weight(&self) -> u64 {
        self.len() as u64 + ENTRY_BYTES
    }
}
