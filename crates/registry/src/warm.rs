//! Has registered chunks read by the model ahead of the requests that will name them, in small batches, one
//! at a time. Does not know about the model: it is given a [`Reader`].

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use metrics::counter;
use thiserror::Error;
use thresher_core::domain::Chunk;
use tokio::sync::watch;

use super::Registry;
use super::directory::ColdChunk;
use super::shared::Shared;

/// The number of chunks that are read at a time. A request that arrives meanwhile waits for no more than
/// these.
const BATCH_COUNT: usize = 4;
/// The pause after the first failure; it doubles with each further failure in a row.
const RETRY_MS_MIN: u64 = 100;
const RETRY_MS_MAX: u64 = 10_000;
/// The longest time that requests are given precedence before one more batch is read.
const YIELD_MS_MAX: u64 = 500;
/// How often the warmer checks, during a pause, whether requests are still waiting and whether it has to
/// stop.
const POLL_MS: u64 = 10;

/// Returns whether any chunk of a batch is still registered with the content that is being read. Once it
/// returns false, the result of the read will not be used.
pub type IsCurrent = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct ReadError {
    /// The reason, for the log; it holds none of the chunks' text.
    pub reason: String,
}

/// Reads chunks with the model, so that requests that name them later find them in the cache.
pub trait Reader: Send + Sync + 'static {
    /// Reads `chunks`, and returns the vector of each, by which searches find it; empty for models that have none. Chunks that are in the
    /// cache should cost almost nothing, because after a restart all
    /// chunks are passed again. Once `is_current` returns false, this should return soon; its result is
    /// ignored then.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if a chunk could not be read. The chunks of the batch are then tried again one
    /// by one.
    fn read(&self, chunks: &[Arc<Chunk>], is_current: IsCurrent) -> Result<Vec<Vec<f32>>, ReadError>;

    /// Returns whether requests are waiting, which take precedence over reading ahead.
    fn is_busy(&self) -> bool;

    /// Makes the current and every later [`Self::read`] return as soon as possible.
    fn stop(&self);
}

/// The thread that reads the queued chunks. Dropping the warmer stops it. The chunks that are still queued
/// are queued again at the next start.
pub struct Warmer {
    shared: Arc<Shared>,
    reader: Arc<dyn Reader>,
    stop: Arc<AtomicBool>,
    wake: watch::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Warmer {
    /// Starts to read the chunks that are registered now and those that will be.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot create a thread.
    pub fn start(registry: &Registry, reader: Arc<dyn Reader>) -> std::io::Result<Self> {
        let (shared, stop) = (Arc::clone(registry.store.shared()), Arc::new(AtomicBool::new(false)));
        let worker =
            Worker { shared: Arc::clone(&shared), reader: Arc::clone(&reader), stop: Arc::clone(&stop) };
        let updates = registry.store.updates();
        let wake = watch::Sender::new(());
        let stopped = wake.subscribe();
        let thread = std::thread::Builder::new()
            .name("registry-warmer".to_owned())
            .spawn(move || worker.run(updates, stopped))?;
        Ok(Self { shared, reader, stop, wake, thread: Some(thread) })
    }

    /// Tells the thread to stop, without waiting for it. [`Registry::settled`] stops waiting, too.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.stop();
        self.wake.send_replace(());
        self.shared.set_warmer_stopped();
    }
}

impl Drop for Warmer {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    reader: Arc<dyn Reader>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn run(&self, mut updates: watch::Receiver<()>, mut stopped: watch::Receiver<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O");
        let mut failures = 0;
        while self.is_running() {
            updates.mark_unchanged();
            let batch = self.shared.directory().take(BATCH_COUNT);
            if batch.is_empty() {
                let ended = runtime.block_on(async {
                    tokio::select! {
                        update = updates.changed() => update.is_err(),
                        _ = stopped.changed() => true,
                    }
                });
                if ended { return } else { continue }
            }
            self.yield_to_requests();
            failures = if self.read(batch) { 0 } else { failures + 1 };
            if failures > 0 {
                self.pause((RETRY_MS_MIN << failures.min(10)).min(RETRY_MS_MAX));
            }
        }
    }

    /// Reads a batch and records the result. Returns whether it succeeded.
    fn read(&self, batch: Vec<ColdChunk>) -> bool {
        let ids: Vec<&str> = batch.iter().map(|cold| &*cold.id).collect();
        let is_current: IsCurrent = {
            let (shared, batch) = (Arc::clone(&self.shared), batch.clone());
            Arc::new(move || {
                let directory = shared.directory();
                batch.iter().any(|cold| directory.is_current(cold))
            })
        };
        // The cache is not filled, because after a start all registered chunks are read here.
        let read_batch = || {
            let chunks = self.shared.get(&ids, false);
            let chunks = chunks.map_err(|error| ReadError { reason: error.to_string() })?;
            let chunks: Vec<Arc<Chunk>> = chunks.into_iter().flatten().collect();
            if chunks.is_empty() {
                return Ok(HashMap::new());
            }
            let vectors = self.reader.read(&chunks, Arc::clone(&is_current))?;
            Ok(chunks
                .iter()
                .map(|chunk| chunk.id.clone())
                .zip(vectors)
                .collect::<HashMap<String, Vec<f32>>>())
        };
        // A chunk that makes the reader panic must not keep the other chunks from being read. Whatever state
        // the reader leaves behind, requests have to cope with it, too, because they survive a panic as well.
        let result = catch_unwind(AssertUnwindSafe(read_batch))
            .unwrap_or_else(|_| Err(ReadError { reason: "it panicked".to_owned() }));
        // A failure does not count if all chunks of the batch were deleted or changed meanwhile.
        let result = if is_current() { result } else { Ok(HashMap::new()) };
        let mut directory = self.shared.directory();
        if !self.is_running() && result.is_err() {
            batch.into_iter().rev().for_each(|cold| directory.give_back(cold));
            return true;
        }
        batch.iter().for_each(|cold| directory.finish_read(cold, result.is_ok()));
        if let Ok(read) = &result {
            let mut vectors = self.shared.vectors_mut();
            let is_current = |cold: &&ColdChunk| directory.is_current(cold);
            for (cold, vector) in
                batch.iter().filter(is_current).filter_map(|cold| Some((cold, read.get(&*cold.id)?)))
            {
                vectors.put(&cold.id, vector);
            }
        }
        drop(directory);
        self.shared.notify_update();
        let outcome = if result.is_ok() { "ok" } else { "failed" };
        counter!("registry_warmed_total", "outcome" => outcome).increment(batch.len() as u64);
        if let Err(cause) = &result {
            tracing::warn!(cause = cause.reason, chunks = batch.len(), "chunks could not be read ahead");
        }
        result.is_ok()
    }

    fn yield_to_requests(&self) {
        for _ in 0..YIELD_MS_MAX / POLL_MS {
            if !self.is_running() || !self.reader.is_busy() {
                return;
            }
            std::thread::sleep(Duration::from_millis(POLL_MS));
        }
    }

    fn pause(&self, ms: u64) {
        for _ in 0..ms / POLL_MS {
            if !self.is_running() {
                return;
            }
            std::thread::sleep(Duration::from_millis(POLL_MS));
        }
    }

    fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}
