//! All tiers of a daemon, looked up in order: memory, disk, and the tier that sidecars share. A block from a
//! slow tier that the store accepts is copied to the faster ones, and using a block renews its time to live
//! in the shared tier. Knows nothing of requests.

use std::time::Duration;

use bytes::Bytes;
use thresher_shared::Shared;
use tokio::runtime::Handle;

use super::key::BlockKey;
use super::local::{LocalTiers, TierName};
use super::store::{Source, Tiers};

/// The tiers of this machine, and the shared tier if one is configured. Clones share the same tiers.
#[derive(Clone)]
pub struct AllTiers {
    local: LocalTiers,
    shared: Option<Shared>,
    runtime: Handle,
}

impl AllTiers {
    /// Returns the tiers. Calls that wait for I/O run it on `runtime`.
    pub fn new(local: LocalTiers, shared: Option<Shared>, runtime: Handle) -> Self {
        Self { local, shared, runtime }
    }

    /// Writes the queued blocks to disk and to the shared tier. Blocks that are not written within `timeout`
    /// are dropped.
    pub async fn close(&self, timeout: Duration) {
        let flush = async {
            if let Some(shared) = &self.shared {
                let _ = tokio::time::timeout(timeout, shared.flush()).await;
            }
        };
        tokio::join!(flush, self.local.close_within(timeout));
    }

    async fn find(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, Source)>> {
        let source = |tier| match tier {
            TierName::Memory => Source::Memory,
            TierName::Disk => Source::Disk,
        };
        let found = self.local.get_many(keys).await.into_iter();
        let mut found: Vec<_> = found.map(|hit| hit.map(|(bytes, tier)| (bytes, source(tier)))).collect();
        let Some(shared) = &self.shared else { return found };
        let missing: Vec<usize> = (0..keys.len()).filter(|&i| found[i].is_none()).collect();
        let missing_keys: Vec<BlockKey> = missing.iter().map(|&i| keys[i]).collect();
        for (i, bytes) in missing.into_iter().zip(shared.get_many(&missing_keys).await) {
            // The bytes are copied, because a slice of the server's reply would keep the whole reply in
            // memory.
            found[i] = bytes.map(|bytes| (Bytes::from(bytes.to_vec()), Source::Shared));
        }
        found
    }
}

impl Tiers for AllTiers {
    fn resident(&self, key: &BlockKey) -> Option<Bytes> {
        let bytes = self.local.get_resident(key)?;
        if let Some(shared) = &self.shared {
            shared.renew(key, &bytes);
        }
        Some(bytes)
    }

    fn has_locally(&self, key: &BlockKey) -> bool {
        self.local.has_on_disk(key)
    }

    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, Source)>> {
        self.runtime.block_on(self.find(keys))
    }

    fn accept(&self, key: BlockKey, bytes: Bytes, source: Source) {
        if let Some(shared) = &self.shared {
            shared.renew(&key, &bytes);
        }
        match source {
            Source::Disk => self.local.promote(key, bytes),
            Source::Shared => self.local.insert(key, bytes),
            Source::Memory | Source::Joined | Source::Read => {}
        }
    }

    fn keep(&self, key: BlockKey, bytes: Bytes) {
        if let Some(shared) = &self.shared {
            shared.put(&key, bytes.clone());
        }
        self.local.insert(key, bytes);
    }

    fn remove(&self, key: &BlockKey) {
        self.local.remove(key);
    }
}
