//! The cache tiers in order: memory, disk, and a tier that several processes share. A block that the store accepts from a slow tier is
//! kept in the faster ones, and each use of a block renews it in the shared tier.
//! Knows nothing of requests.

use std::sync::Arc;

use bytes::Bytes;

use super::key::{BlockKey, TenantTag};
use super::local::{LocalTiers, TierName};
use super::store::{BlockOrigin, Tiers};

/// A tier that several processes share, such as a Redis server. Its bytes may come from other processes: the store checks each block
/// before it uses it.
pub trait SharedTier: Send + Sync {
    /// Fetches blocks, in the order of `keys`. May block the calling thread.
    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<Bytes>>;

    /// Queues a block to be written. Must not block.
    fn put(&self, key: &BlockKey, block: Bytes);

    /// Puts off a block's expiry because it was used. Must not block.
    fn renew(&self, key: &BlockKey, block: &Bytes);

    /// Queues a block to be removed. Must not block.
    fn forget(&self, key: &BlockKey);
}

/// This machine's tiers and, where there is one, the shared tier. Clones refer to the same tiers.
#[derive(Clone)]
pub struct AllTiers {
    local: LocalTiers,
    shared: Option<Arc<dyn SharedTier>>,
}

impl AllTiers {
    /// Puts the shared tier behind the local ones.
    pub fn new(local: LocalTiers, shared: Option<Arc<dyn SharedTier>>) -> Self {
        Self { local, shared }
    }

    pub fn local(&self) -> &LocalTiers {
        &self.local
    }
}

impl Tiers for AllTiers {
    fn resident(&self, key: &BlockKey) -> Option<Bytes> {
        let block = self.local.get_resident(key)?;
        if let Some(shared) = &self.shared {
            shared.renew(key, &block);
        }
        Some(block)
    }

    fn has_locally(&self, key: &BlockKey) -> bool {
        self.local.has_on_disk(key)
    }

    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, BlockOrigin)>> {
        let source = |tier| match tier {
            TierName::Memory => BlockOrigin::Memory,
            TierName::Disk => BlockOrigin::Disk,
        };
        // The disk tier answers through Tokio's channels, for which any executor can wait. In a Tokio task, those channels would return
        // "pending" once the task's budget is spent, and only Tokio's own scheduler would wake it: hence `unconstrained`.
        let found = pollster::block_on(tokio::task::unconstrained(self.local.get_many(keys))).into_iter();
        let mut found: Vec<_> = found.map(|hit| hit.map(|(block, tier)| (block, source(tier)))).collect();
        let Some(shared) = &self.shared else { return found };
        let missing: Vec<usize> = (0..keys.len()).filter(|&i| found[i].is_none()).collect();
        let missing_keys: Vec<BlockKey> = missing.iter().map(|&i| keys[i]).collect();
        for (i, block) in missing.into_iter().zip(shared.fetch(&missing_keys)) {
            // A copy of its own: a slice of the server's reply would keep the whole reply in memory.
            found[i] = block.map(|block| (Bytes::from(block.to_vec()), BlockOrigin::Shared));
        }
        found
    }

    fn accept(&self, key: BlockKey, block: Bytes, source: BlockOrigin) {
        if let Some(shared) = &self.shared {
            shared.renew(&key, &block);
        }
        match source {
            BlockOrigin::Disk => self.local.promote(key, block),
            BlockOrigin::Shared => self.local.insert(key, block),
            BlockOrigin::Memory | BlockOrigin::Joined | BlockOrigin::Read => {}
        }
    }

    fn keep(&self, key: BlockKey, block: Bytes) {
        if let Some(shared) = &self.shared {
            shared.put(&key, block.clone());
        }
        self.local.insert(key, block);
    }

    fn remove(&self, key: &BlockKey) {
        self.local.remove(key);
    }

    fn forget(&self, key: &BlockKey) {
        self.local.remove(key);
        if let Some(shared) = &self.shared {
            shared.forget(key);
        }
    }

    fn forget_tenant(&self, tenant: TenantTag) -> usize {
        self.local.remove_tenant(tenant)
    }
}
