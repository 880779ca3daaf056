#![doc = include_str!("../README.md")]

// The only crate that uses `tantivy`. It does not know about models, requests or transports.
//
// `store` keeps the chunks on disk, with one `writer` thread, and `shared` what both use; `directory` lists the chunks that exist. `warm`
// has chunks read by the model ahead of requests, `search` finds chunks by words, `vectors` by
// meaning, and `follow` applies the `log` that sidecars share.

pub mod analyzer;
mod cache;
mod change;
mod directory;
mod follow;
pub mod log;
mod open;
mod schema;
mod search;
mod shared;
mod store;
mod vectors;
pub mod warm;
mod writer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::domain::{Chunk, Tenant};

pub use self::change::{Change, Outcome, content_id};
pub use self::directory::Progress;
use self::follow::Membership;
use self::log::{ChangeLog, LogError};
pub use self::search::Hit;
use self::store::Store;

/// The folder inside `registry.dir` that holds one folder for each tenant other than the default one.
const TENANTS: &str = "tenants";

/// The section `[registry]` of the settings: where registered chunks are stored, and how many there may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrySettings {
    /// The folder of the registry, used by one daemon only; each tenant has a folder inside it. Empty: chunks
    /// are kept in memory only and lost at exit. Default: `data/registry`.
    pub dir: PathBuf,
    /// The largest number of registered chunks. Each takes about 100 bytes of memory, whether it is in use or
    /// not. Default: 1,000,000.
    pub chunk_count_max: usize,
}

/// What bounds a registry apart from its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryLimits {
    /// The size of the cache of chunks in memory, in bytes. Default: 256 MiB.
    pub cache_bytes_max: usize,
    /// How long a deleted or replaced text may stay in the files. Removing it rewrites a part of the index, so that
    /// several changes share one. Default: 30 seconds.
    pub purge_delay: Duration,
}

impl Default for RegistryLimits {
    fn default() -> Self {
        Self { cache_bytes_max: 256 * 1024 * 1024, purge_delay: Duration::from_secs(30) }
    }
}

impl RegistrySettings {
    /// Returns the settings of one tenant: the same, with the tenant's own folder as `dir`.
    pub fn of_tenant(&self, tenant: &Tenant) -> Self {
        let is_shared = tenant.is_default() || self.dir.as_os_str().is_empty();
        let dir = if is_shared { self.dir.clone() } else { self.dir.join(TENANTS).join(tenant.name()) };
        Self { dir, ..self.clone() }
    }
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self { dir: "data/registry".into(), chunk_count_max: 1_000_000 }
    }
}

#[derive(Debug, Error)]
pub enum RegistryError {
    #[error("{dir} is in use by another process; give every daemon a registry.dir of its own")]
    InUse { dir: PathBuf },
    #[error(
        "{dir} (registry.dir) cannot be written: {reason}; set registry.dir to a folder that the daemon may write"
    )]
    NotWritable {
        dir: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    #[error(
        "the registry in {dir} is damaged: {reason}; restore the folder from a backup, or move it away and register the \
         chunks again"
    )]
    Damaged {
        dir: PathBuf,
        /// What is damaged or missing.
        reason: String,
    },
    #[error(
        "the registry in {dir} was written by another version of thresher; start that version, or move the folder away \
         and register the chunks again"
    )]
    OtherVersion { dir: PathBuf },
    /// A batch could not be written; none of its changes was applied. Holds the reason.
    #[error(
        "the registry could not be written: {0}; check that registry.dir exists and that its disk has free space"
    )]
    Write(String),
    #[error("the registry could not be read: {0}")]
    Read(#[from] tantivy::TantivyError),
    #[error("too many batches wait to be written; try again later")]
    Overloaded,
    /// The log that sidecars share does not answer, so the change was refused: applied here alone, it would
    /// not reach the other sidecars.
    #[error(transparent)]
    Log(LogError),
    #[error("the chunks found have more than {bytes_max} bytes of text; ask for fewer candidates")]
    FoundTooLong { bytes_max: usize },
    #[error("the registry's writer has stopped")]
    Stopped,
}

/// The registered chunks of one tenant. Dropping it stops its writer.
pub struct Registry {
    store: Arc<Store>,
    membership: OnceLock<Membership>,
}

/// A page of registered chunks, in the order of their ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    pub chunks: Vec<Arc<Chunk>>,
    /// The id after which the next page starts; `None` on the last page.
    pub next: Option<String>,
}

impl Registry {
    /// Opens the registry in `settings.dir`, or creates an empty one if the folder is empty or missing.
    ///
    /// # Errors
    /// Returns a [`RegistryError`] that says what is wrong with the folder and what to do. A damaged registry
    /// is an error; it is never replaced by an empty one.
    pub fn open(settings: &RegistrySettings) -> Result<Self, RegistryError> {
        Self::open_within(settings, RegistryLimits::default())
    }

    /// Opens the registry as [`Self::open`] does, with other limits.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn open_within(settings: &RegistrySettings, limits: RegistryLimits) -> Result<Self, RegistryError> {
        Ok(Self { store: Arc::new(Store::open(settings, limits)?), membership: OnceLock::new() })
    }

    /// Checks, without changing anything in the folder `dir`, whether [`Self::open`] would accept it.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`], as far as they can be found without writing.
    pub fn inspect(dir: &std::path::Path) -> Result<(), RegistryError> {
        open::inspect(dir)
    }

    /// Starts to follow `log`: from now on changes are written to the log first, and changes that other
    /// sidecars write to it are applied here. If the log is new to this registry, the chunks that are
    /// registered only here are written to it. Calls after the first have no effect.
    ///
    /// # Panics
    /// Panics outside a Tokio runtime.
    pub fn follow(&self, log: Arc<dyn ChangeLog>) {
        self.membership.get_or_init(|| Membership::start(Arc::clone(&self.store), log));
    }

    /// Applies `changes` in their order and returns one outcome for each. The changes are durable when this
    /// returns. Batches that wait at the same time are committed together.
    ///
    /// # Errors
    /// Returns a [`RegistryError`]; none of the changes was applied then, unless the error is one of the log
    /// and says otherwise. After [`RegistryError::Read`] the changes may be durable but not visible yet.
    /// Making the changes again is harmless.
    pub async fn write(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, RegistryError> {
        match self.membership.get() {
            Some(membership) => membership.write(changes).await,
            None => self.store.write(changes).await,
        }
    }

    /// Returns the chunks with these `ids`, in the order of `ids`; `None` for an id that is not registered.
    ///
    /// # Errors
    /// Returns [`RegistryError::Read`] if the index cannot be read.
    pub fn get(&self, ids: &[impl AsRef<str>]) -> Result<Vec<Option<Arc<Chunk>>>, RegistryError> {
        self.store.get(ids)
    }

    /// Returns the indexes in `ids` of the ids that are not registered, ascending.
    pub fn missing(&self, ids: &[impl AsRef<str>]) -> Vec<usize> {
        let directory = self.store.directory();
        (0..ids.len()).filter(|&index| directory.content(ids[index].as_ref()).is_none()).collect()
    }

    /// Returns a page of at most `limit` chunks, starting after the id `after`, in the order of their ids. The page ends early once its chunks have `bytes_max` bytes of JSON.
    ///
    /// # Errors
    /// Returns [`RegistryError::Read`] if the index cannot be read.
    pub fn list(&self, after: Option<&str>, limit: usize, bytes_max: usize) -> Result<Page, RegistryError> {
        self.store.list(after, limit, bytes_max)
    }

    /// Returns whether chunks can be found by a vector.
    pub fn has_vectors(&self) -> bool {
        self.store.shared().has_vectors()
    }

    /// Returns the `limit` best chunks for `query` by BM25 over titles and texts, by descending score and then by id. Chunks without any word of the query are not returned.
    ///
    /// # Errors
    /// Returns [`RegistryError::FoundTooLong`] if the chunks have more than `bytes_max` bytes of text together, and
    /// [`RegistryError::Read`] if the index cannot be read.
    pub fn search(&self, query: &str, limit: usize, bytes_max: usize) -> Result<Vec<Hit>, RegistryError> {
        self.store.search(query, limit, bytes_max)
    }

    /// Returns the `limit` best chunks for `query` and its `vector`: those that [`Self::search`] finds and those whose vectors are nearest, in
    /// the order of both ranks together (reciprocal rank fusion, Cormack et al., SIGIR 2009).
    ///
    /// # Errors
    /// As [`Self::search`].
    pub fn search_by_meaning(
        &self,
        query: &str,
        vector: &[f32],
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Hit>, RegistryError> {
        let hits = self.store.search(query, limit, bytes_max)?;
        self.store.with_nearest(hits, vector, limit, bytes_max)
    }

    /// Returns the indexes in `ids` of the `keep` best chunks for `query` by BM25, ascending. Among chunks
    /// with equal scores, those that come first in `ids` are kept.
    ///
    /// # Errors
    /// Returns [`RegistryError::Read`] if the index cannot be read.
    pub fn prefilter(
        &self,
        query: &str,
        ids: &[impl AsRef<str>],
        keep: usize,
    ) -> Result<Vec<usize>, RegistryError> {
        self.store.prefilter(query, ids, keep)
    }

    /// Returns how many chunks are registered and how many of them the model has read.
    pub fn progress(&self) -> Progress {
        self.store.directory().progress()
    }

    /// Returns the progress of the chunks with these `ids`. An id that occurs twice counts once; unknown ids
    /// do not count.
    pub fn progress_of(&self, ids: &[impl AsRef<str>]) -> Progress {
        self.store.directory().progress_of(ids)
    }

    /// Waits until none of `ids` is queued to be read by the model, until `deadline`, or until the warmer has
    /// stopped. Returns the progress of `ids` at that time.
    pub async fn settled(&self, ids: &[impl AsRef<str>], deadline: Instant) -> Progress {
        let mut updates = self.store.updates();
        let mut index = 0;
        loop {
            // Each update continues at the first id that was queued before, since batches are read in about
            // their order.
            index = self.store.directory().first_queued(ids, index);
            if index == ids.len() {
                // An id before this index may have been queued again meanwhile.
                index = self.store.directory().first_queued(ids, 0);
            }
            if index == ids.len() || self.store.shared().is_warmer_stopped() {
                return self.progress_of(ids);
            }
            match tokio::time::timeout_at(deadline.into(), updates.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return self.progress_of(ids),
            }
        }
    }
}
