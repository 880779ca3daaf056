//! The tier that sidecars share: the core's [`SharedTier`] on Redis or Valkey. Without the feature `redis` there is no such tier, and
//! settings that name a server are refused.

use std::sync::Arc;

use thiserror::Error;
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

/// Why the shared tier cannot be used.
#[derive(Debug, Error)]
pub enum SharedTierError {
    /// A setting or file cannot be used, or a server does not answer.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Client(#[from] thresher_shared::SharedError),
    /// The settings name a server, and this build has no client.
    #[cfg(not(feature = "redis"))]
    #[error(
        "shared.urls names a server, but this program was built without the feature `redis`: leave shared.urls empty"
    )]
    NotBuilt,
}

/// Connects to the tier that the settings name, if they name one. A server that is down is no error. Must run in a Tokio runtime.
///
/// # Errors
/// A setting or file that cannot be used.
pub fn connect(settings: &SharedSettings) -> Result<Option<Shared>, SharedTierError> {
    if !settings.enabled() {
        return Ok(None);
    }
    #[cfg(feature = "redis")]
    return Ok(Some(Shared::connect(settings)?));
    #[cfg(not(feature = "redis"))]
    Err(SharedTierError::NotBuilt)
}

/// Asks the servers once whether they answer.
///
/// # Errors
/// A setting that cannot be used, or the server that does not answer and why.
#[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))]
pub async fn probe(settings: &SharedSettings) -> Result<(), SharedTierError> {
    #[cfg(feature = "redis")]
    return Ok(Shared::probe(settings).await?);
    #[cfg(not(feature = "redis"))]
    connect(settings).map(drop)
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

        fn forget(&self, key: &BlockKey) {
            self.shared.remove(key);
        }
    }
}
