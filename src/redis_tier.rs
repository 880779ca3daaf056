//! The cache tier that sidecars share, as the core's [`SharedTier`].

use bytes::Bytes;
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::tiers::SharedTier;
use thresher_shared::Shared;
use tokio::runtime::Handle;

/// A Redis or Valkey server, or cluster, that holds blocks for several sidecars.
pub struct RedisTier {
    shared: Shared,
    runtime: Handle,
}

impl RedisTier {
    /// Waits for the server's replies on `runtime`.
    pub fn new(shared: Shared, runtime: Handle) -> Self {
        Self { shared, runtime }
    }
}

impl SharedTier for RedisTier {
    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<Bytes>> {
        self.runtime.block_on(self.shared.get_many(keys))
    }

    fn put(&self, key: &BlockKey, block: Bytes) {
        self.shared.put(key, block);
    }

    fn renew(&self, key: &BlockKey, block: &Bytes) {
        self.shared.renew(key, block);
    }
}
