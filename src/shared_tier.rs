//! The tier that sidecars share: the core's [`SharedTier`] on Redis or Valkey. Without the feature `redis` there is no such tier, and
//! settings that name a server are refused.

use std::sync::Arc;

use thresher_core::domain::Tenant;
use thresher_core::kv::tiers::SharedTier;
use thresher_registry::log::ChangeLog;
#[cfg(feature = "redis")]
pub use thresher_shared::Shared;
use thresher_shared::SharedSettings;
use tokio::runtime::Handle;

/// A connection to the shared tier, of which this build has none.
#[cfg(not(feature = "redis"))]
#[derive(Clone)]
pub enum Shared {}

/// Connects to the tier that the settings name, if they name one. A server that is down is no error. Must run in a Tokio runtime.
///
/// # Errors
/// A setting or file that cannot be used.
pub fn connect(settings: &SharedSettings) -> anyhow::Result<Option<Shared>> {
    if !settings.enabled() {
        return Ok(None);
    }
    #[cfg(feature = "redis")]
    return Ok(Some(Shared::connect(settings)?));
    #[cfg(not(feature = "redis"))]
    Err(not_built())
}

/// Asks the servers once whether they answer.
///
/// # Errors
/// A setting that cannot be used, or the server that does not answer and why.
#[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))]
pub async fn probe(settings: &SharedSettings) -> anyhow::Result<()> {
    #[cfg(feature = "redis")]
    return Ok(Shared::probe(settings).await?);
    #[cfg(not(feature = "redis"))]
    connect(settings).map(drop)
}

#[cfg(not(feature = "redis"))]
fn not_built() -> anyhow::Error {
    anyhow::anyhow!(
        "shared.urls names a server, but this program was built without the feature `redis`: leave shared.urls empty"
    )
}

/// The block cache on the shared tier. Its calls wait for the server on `runtime`.
pub fn blocks(shared: Shared, runtime: Handle) -> Arc<dyn SharedTier> {
    #[cfg(feature = "redis")]
    return Arc::new(redis::Blocks { shared, runtime });
    #[cfg(not(feature = "redis"))]
    match (shared, runtime).0 {}
}

/// The log through which all sidecars learn of changes to a tenant's registered chunks.
pub fn change_log(shared: &Shared, tenant: &Tenant) -> Arc<dyn ChangeLog> {
    #[cfg(feature = "redis")]
    return Arc::new(thresher_registry::log::journal::JournalLog::new(shared, tenant));
    #[cfg(not(feature = "redis"))]
    {
        let _ = tenant;
        match *shared {}
    }
}

/// Waits until all queued writes have been sent.
#[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))]
pub async fn flush(shared: &Shared) {
    #[cfg(feature = "redis")]
    shared.flush().await;
    #[cfg(not(feature = "redis"))]
    match *shared {}
}

#[cfg(feature = "redis")]
mod redis {
    use bytes::Bytes;
    use thresher_core::kv::key::BlockKey;
    use thresher_core::kv::tiers::SharedTier;
    use thresher_shared::Shared;
    use tokio::runtime::Handle;

    pub struct Blocks {
        pub shared: Shared,
        pub runtime: Handle,
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
    }
}
