//! What the readers of a registry, its writer and its warmer share: the index, the list of all chunks, and the cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tantivy::IndexReader;
use thresher_core::domain::Chunk;
use tokio::sync::watch;

use super::RegistryError;
use super::cache::Cache;
use super::directory::Directory;
use super::log::LogPosition;
use super::schema::{self, Fields};
use super::vectors::Vectors;

/// The state that readers, the writer and the warmer share.
pub struct Shared {
    pub fields: Fields,
    pub reader: IndexReader,
    pub directory: Mutex<Directory>,
    pub cache: Mutex<Cache>,
    pub vectors: RwLock<Vectors>,
    /// Notified when the directory changes.
    pub updates: watch::Sender<()>,
    pub warmer_stopped: AtomicBool,
    /// How far the log that sidecars share has been applied. Stored with every commit.
    pub log_position: Mutex<Option<LogPosition>>,
}

impl Shared {
    pub fn directory(&self) -> MutexGuard<'_, Directory> {
        lock(&self.directory)
    }

    pub fn vectors_mut(&self) -> RwLockWriteGuard<'_, Vectors> {
        self.vectors.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has_vectors(&self) -> bool {
        !read(&self.vectors).is_empty()
    }

    pub fn notify_update(&self) {
        self.updates.send_replace(());
    }

    /// Records that the warmer has stopped, so that nothing will be read ahead any more.
    pub fn set_warmer_stopped(&self) {
        self.warmer_stopped.store(true, Ordering::Relaxed);
        self.notify_update();
    }

    /// Whether [`Self::set_warmer_stopped`] was called.
    pub fn is_warmer_stopped(&self) -> bool {
        self.warmer_stopped.load(Ordering::Relaxed)
    }

    /// Returns chunks by id, in the order of `ids`. With `fill_cache`, chunks read from disk are put into the
    /// cache.
    pub fn get(
        &self,
        ids: &[impl AsRef<str>],
        fill_cache: bool,
    ) -> Result<Vec<Option<Arc<Chunk>>>, RegistryError> {
        let (mut found, generation): (Vec<_>, u64) = {
            let mut cache = lock(&self.cache);
            (ids.iter().map(|id| cache.get(id.as_ref())).collect(), cache.generation())
        };
        let missing: Vec<usize> = {
            let directory = self.directory();
            let is_uncached =
                |index: &usize| found[*index].is_none() && directory.content(ids[*index].as_ref()).is_some();
            (0..ids.len()).filter(is_uncached).collect()
        };
        if missing.is_empty() {
            return Ok(found);
        }
        let missing_ids: Vec<&str> = missing.iter().map(|&index| ids[index].as_ref()).collect();
        let read = schema::read_chunks(&self.reader.searcher(), &self.fields, &missing_ids)?;
        let mut cache = lock(&self.cache);
        let is_current = cache.generation() == generation;
        for (index, chunk) in missing.into_iter().zip(read) {
            if let Some(chunk) = chunk.as_ref().filter(|_| fill_cache && is_current) {
                cache.put(Arc::clone(chunk));
            }
            found[index] = chunk;
        }
        Ok(found)
    }
}

/// Locks a mutex, ignoring poison: no thread that panics leaves shared data in an inconsistent state.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, ignoring poison as [`lock`] does.
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}
