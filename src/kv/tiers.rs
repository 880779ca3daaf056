//! The tiers in turn: memory, disk, the one that sidecars share. What a slow one has is kept in the faster ones.
//! Knows nothing of who asks.

use bytes::Bytes;
use tokio::runtime::Handle;

use super::key::BlockKey;
use super::local::{LocalTiers, TierName};
use super::store::{Source, Tiers};

/// Keys that are asked for at once: what they bring is in memory together, whatever the tiers' bounds.
const KEYS_AT_ONCE: usize = 1024;

/// This machine's tiers, and the shared one when there is one.
pub struct AllTiers {
    local: LocalTiers,
    runtime: Handle,
}

impl AllTiers {
    /// Over `local`; waits for I/O on `runtime`.
    pub fn new(local: LocalTiers, runtime: Handle) -> Self {
        Self { local, runtime }
    }

    async fn find(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, Source)>> {
        let source = |tier| match tier {
            TierName::Memory => Source::Memory,
            TierName::Disk => Source::Disk,
        };
        let found = self.local.get_many(keys).await;
        found.into_iter().map(|hit| hit.map(|(bytes, tier)| (bytes, source(tier)))).collect()
    }
}

impl Tiers for AllTiers {
    fn resident(&self, key: &BlockKey) -> Option<Bytes> {
        self.local.get_resident(key)
    }

    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, Source)>> {
        keys.chunks(KEYS_AT_ONCE).flat_map(|keys| self.runtime.block_on(self.find(keys))).collect()
    }

    fn keep(&self, key: BlockKey, bytes: Bytes) {
        self.local.insert(key, bytes);
    }

    fn remove(&self, key: &BlockKey) {
        self.local.remove(key);
    }
}
