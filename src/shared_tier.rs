//! The core's [`SharedTier`] on Redis or Valkey.

use std::sync::Arc;

use bytes::Bytes;
use thresher_core::kv::key::BlockKey;
use thresher_core::kv::tiers::SharedTier;
use thresher_shared::Shared;
use tokio::runtime::Handle;

/// The block cache on the shared tier. Its calls wait for the server on `runtime`.
pub fn blocks(shared: Shared, runtime: Handle) -> Arc<dyn SharedTier> {
    Arc::new(Blocks { shared, runtime })
}

struct Blocks {
    shared: Shared,
    runtime: Handle,
}

impl SharedTier for Blocks {
    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<Bytes>> {
        self.runtime.block_on(self.shared.get_many(keys))
    }

    fn put(&self, key: &BlockKey, block: Bytes) {
        self.shared.put(key, block);
    }

    fn renew(&self, key: &BlockKey, block: &Bytes) {
        self.shared.renew(key, block);
    }

    fn forget(&self, key: &BlockKey) {
        self.shared.remove(key);
    }
}
