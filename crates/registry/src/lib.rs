//! Chunks that callers register once and later name by id: durable, searchable, known to all sidecars that share a log.
//! The only user of `tantivy`. Knows nothing of models, requests or transports.
//!
//! `store` keeps them on disk through one `writer`; `directory` knows which there are, `cache` holds those in use. `warm`
//! has them read ahead, `search` finds them by words and `filter`, `follow` applies the `log` that sidecars share, `adopt`
//! all that it adds up to.

use thresher_core::domain::Chunk;

mod adopt;
mod analyzer;
mod bm25;
mod cache;
mod change;
mod content;
mod directory;
pub mod filter;
mod follow;
pub mod log;
mod open;
mod reading;
mod schema;
mod search;
mod settings;
mod store;
pub mod warm;
mod writer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use thiserror::Error;

pub use self::bm25::{Bm25, LexicalError};
pub use self::change::{Change, Outcome};
pub use self::content::content_id;
pub use self::directory::Progress;
use self::filter::{Filter, FilterError};
use self::follow::Membership;
use self::log::{ChangeLog, LogError};
pub use self::search::Hit;
pub use self::settings::RegistrySettings;
use self::store::Store;

/// All registered chunks. Shared by everything that serves requests; dropping the last one stops its writer.
pub struct Registry {
    store: Arc<Store>,
    membership: OnceLock<Membership>,
}

/// Why the registry cannot do what it was asked.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// Another process has it.
    #[error("{dir} is in use by another process: every daemon needs a registry.dir of its own")]
    InUse {
        /// The setting.
        dir: PathBuf,
    },
    /// The folder cannot be made, read or written.
    #[error("{dir} (registry.dir) cannot be written: {reason}; give the daemon a folder that it may write")]
    NotWritable {
        /// The setting.
        dir: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// What is in the folder is not whole.
    #[error(
        "the registry in {dir} is damaged: {reason}; restore the folder from a backup, or move it away and register the \
         chunks again"
    )]
    Damaged {
        /// The setting.
        dir: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// What is in the folder was laid out by another version.
    #[error(
        "the registry in {dir} was written by another version of thresher; start that version, or move the folder away \
         and register the chunks again"
    )]
    OtherVersion {
        /// The setting.
        dir: PathBuf,
    },
    /// A batch could not be written; nothing of it is there.
    #[error("the registry could not be written: {0}; is registry.dir still there, and room on its disk?")]
    Write(String),
    /// What was stored could not be read.
    #[error("the registry could not be read: {0}")]
    Read(#[from] tantivy::TantivyError),
    /// Too many batches wait to be written.
    #[error("too many batches wait to be written; try again")]
    Overloaded,
    /// The log that sidecars share does not answer: a change that it does not know would be known here alone.
    #[error(transparent)]
    Log(LogError),
    /// What a search found is too much to hold.
    #[error(
        "what was found has more than {bytes_max} bytes of text (limits.registered_bytes_max): ask for less"
    )]
    FoundTooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// The writer is gone: the daemon is stopping, or it had a bug.
    #[error("the registry's writer has stopped")]
    Stopped,
    /// The filter asks what cannot be answered.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// Some of the registered chunks, in the order of their ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The chunks.
    pub chunks: Vec<Arc<Chunk>>,
    /// The id to go on after; none on the last page.
    pub next: Option<String>,
}

impl Registry {
    /// Opens the registry of `settings`, or makes an empty one where there is none.
    ///
    /// # Errors
    /// What is wrong with the folder and what to do; never an empty registry instead of a damaged one.
    pub fn open(settings: &RegistrySettings) -> Result<Self, RegistryError> {
        Ok(Self { store: Arc::new(Store::open(settings)?), membership: OnceLock::new() })
    }

    /// What [`Self::open`] would say of a folder, as far as it can be seen without changing anything in it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn inspect(dir: &std::path::Path) -> Result<(), RegistryError> {
        open::inspect(dir)
    }

    /// From now on changes go through `log`, and what others write into it is registered here, too. Chunks that are
    /// registered here and not there are given to a log that is new to this registry. Within a Tokio runtime; once.
    pub fn follow(&self, log: Arc<dyn ChangeLog>) {
        self.membership.get_or_init(|| Membership::start(Arc::clone(&self.store), log));
    }

    /// Applies `changes` in their order, durably when it returns: one outcome per change. Batches that wait at the same
    /// time are committed together.
    ///
    /// # Errors
    /// [`RegistryError`]; then none of the changes was applied, unless a log says otherwise. After [`RegistryError::Read`]
    /// they may be, but cannot be seen yet. Making them again is harmless.
    pub async fn write(&self, changes: Vec<Change>) -> Result<Vec<Outcome>, RegistryError> {
        match self.membership.get() {
            Some(membership) => membership.write(changes).await,
            None => self.store.write(changes).await,
        }
    }

    /// The chunks of `ids`, in their order; none where an id is not registered.
    ///
    /// # Errors
    /// [`RegistryError::Read`].
    pub fn get(&self, ids: &[impl AsRef<str>]) -> Result<Vec<Option<Arc<Chunk>>>, RegistryError> {
        self.store.get(ids)
    }

    /// Places in `ids` of those that are not registered.
    pub fn missing(&self, ids: &[impl AsRef<str>]) -> Vec<usize> {
        let directory = self.store.directory();
        (0..ids.len()).filter(|&at| directory.content(ids[at].as_ref()).is_none()).collect()
    }

    /// At most `limit` chunks after `after`, in the order of their ids, that pass `filter`; fewer when they have `bytes_max`
    /// bytes already.
    ///
    /// # Errors
    /// [`RegistryError`]; a filter on a field that no chunk has.
    pub fn list(
        &self,
        after: Option<&str>,
        limit: usize,
        bytes_max: usize,
        filter: Option<&Filter>,
    ) -> Result<Page, RegistryError> {
        self.store.list(after, limit, bytes_max, filter)
    }

    /// The `limit` best chunks for `query` by BM25 over titles and texts that pass `filter`, best first, then by id. Chunks
    /// without a word of the query are not found.
    ///
    /// # Errors
    /// [`RegistryError`]; a filter on a field that no chunk has; chunks with more than `bytes_max` bytes of text together.
    pub fn search(
        &self,
        query: &str,
        filter: Option<&Filter>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<Hit>, RegistryError> {
        self.store.search(query, filter, limit, bytes_max)
    }

    /// Places in `ids` of the `keep` best for `query` by BM25, ascending. Where it has no opinion the earlier ones stay.
    ///
    /// # Errors
    /// [`RegistryError::Read`].
    pub fn prefilter(
        &self,
        query: &str,
        ids: &[impl AsRef<str>],
        keep: usize,
    ) -> Result<Vec<usize>, RegistryError> {
        self.store.prefilter(query, ids, keep)
    }

    /// How much is registered and how much of it has been read by the model.
    pub fn progress(&self) -> Progress {
        self.store.directory().progress()
    }

    /// The same for some ids, each counted once; unknown ones are not counted.
    pub fn progress_of(&self, ids: &[impl AsRef<str>]) -> Progress {
        self.store.directory().progress_of(ids)
    }

    /// Waits until none of `ids` is queued for the model any more, or until `deadline`, or until there is no
    /// warmer any more.
    pub async fn settled(&self, ids: &[impl AsRef<str>], deadline: Instant) -> Progress {
        let mut turns = self.store.turns();
        let mut at = 0;
        loop {
            // Each turn looks at those that it was about, not at all: batches are read in about their order.
            at = self.store.directory().first_queued(ids, at);
            if at == ids.len() {
                // One may have changed behind this place.
                at = self.store.directory().first_queued(ids, 0);
            }
            if at == ids.len() || self.store.shared().gave_up() {
                return self.progress_of(ids);
            }
            match tokio::time::timeout_at(deadline.into(), turns.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return self.progress_of(ids),
            }
        }
    }
}
