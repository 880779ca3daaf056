//! The tiers in turn: memory, disk, the one that sidecars share. A block of a slow tier that the store accepted is kept in the
//! faster ones, and a block that is used is kept alive in the one that sidecars share.
//! Knows nothing of who asks.

use std::time::Duration;

use bytes::Bytes;
use thresher_shared::Shared;
use tokio::runtime::Handle;

use super::key::BlockKey;
use super::local::{LocalTiers, TierName};
use super::store::{Source, Tiers};

/// This machine's tiers, and the one that sidecars share when there is one. A clone is another handle on the same ones.
#[derive(Clone)]
pub struct AllTiers {
    local: LocalTiers,
    shared: Option<Shared>,
    runtime: Handle,
}

impl AllTiers {
    /// Waits for I/O on `runtime`.
    pub fn new(local: LocalTiers, shared: Option<Shared>, runtime: Handle) -> Self {
        Self { local, shared, runtime }
    }

    /// Writes what still waits to be written, to disk and to the shared tier, within `patience`; the rest is given up.
    pub async fn close(&self, patience: Duration) {
        let flush = async {
            if let Some(shared) = &self.shared {
                let _ = tokio::time::timeout(patience, shared.flush()).await;
            }
        };
        tokio::join!(flush, self.local.close_within(patience));
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
        let asked: Vec<BlockKey> = missing.iter().map(|&i| keys[i]).collect();
        for (i, bytes) in missing.into_iter().zip(shared.get_many(&asked).await) {
            // An allocation of its own: a part of the server's reply would keep the whole reply in memory.
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

    fn at_hand(&self, key: &BlockKey) -> bool {
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
