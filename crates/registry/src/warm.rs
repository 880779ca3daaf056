//! Has registered chunks read by the model ahead of the requests that will name them: small pieces, one at a time.
//! Knows nothing of the model: it is handed something that reads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use metrics::counter;
use thresher_core::domain::Chunk;
use tokio::sync::watch;

use super::Registry;
use super::directory::Cold;
use super::store::Shared;

/// Chunks handed over at a time: a request that comes in between waits for no more than these.
const PIECE_COUNT: usize = 4;
/// After the first failure; doubled for each one in a row.
const RETRY_MS_MIN: u64 = 100;
const RETRY_MS_MAX: u64 = 10_000;
/// How long requests are given way to before one more piece is read.
const GIVE_WAY_MS_MAX: u64 = 500;
/// How often is looked whether there is still somebody to give way to, or a reason to stop.
const LOOK_MS: u64 = 10;

/// Whether chunks are still to be read.
pub type Wanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// What reads chunks.
pub trait Reader: Send + Sync + 'static {
    /// Reads `chunks` so that a request finds them read, or says what went wrong. Chunks that are read already should cost
    /// next to nothing: after a restart all of them come again. Once `wanted` says that none of them is registered any more,
    /// it should return, whatever it says.
    ///
    /// # Errors
    /// A message for the log, without any of the chunks' text.
    fn read(&self, chunks: &[Arc<Chunk>], wanted: Wanted) -> Result<(), String>;

    /// Whether requests are waiting.
    fn is_busy(&self) -> bool;

    /// From now on [`Self::read`] returns as soon as it can.
    fn stop(&self);
}

/// The thread that goes through the queue. Dropping it stops it; what is queued is queued again at the next start.
pub struct Warmer {
    shared: Arc<Shared>,
    reader: Arc<dyn Reader>,
    stop: Arc<AtomicBool>,
    wake: watch::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Warmer {
    /// Starts reading what is and what will be registered.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(registry: &Registry, reader: Arc<dyn Reader>) -> std::io::Result<Self> {
        let (shared, stop) = (Arc::clone(registry.store.shared()), Arc::new(AtomicBool::new(false)));
        let work = Work { shared: Arc::clone(&shared), reader: Arc::clone(&reader), stop: Arc::clone(&stop) };
        let turns = registry.store.turns();
        let wake = watch::Sender::new(());
        let stopped = wake.subscribe();
        let thread = std::thread::Builder::new()
            .name("registry-warmer".to_owned())
            .spawn(move || work.run(turns, stopped))?;
        Ok(Self { shared, reader, stop, wake, thread: Some(thread) })
    }

    /// Tells it to stop, without waiting until it has. Who waits for chunks to be read stops waiting.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.stop();
        self.wake.send_replace(());
        self.shared.give_up();
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

struct Work {
    shared: Arc<Shared>,
    reader: Arc<dyn Reader>,
    stop: Arc<AtomicBool>,
}

impl Work {
    fn run(&self, mut turns: watch::Receiver<()>, mut stopped: watch::Receiver<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O");
        let mut failures = 0;
        while self.goes_on() {
            turns.mark_unchanged();
            let piece = self.shared.directory().take(PIECE_COUNT);
            if piece.is_empty() {
                let ended = runtime.block_on(async {
                    tokio::select! { turn = turns.changed() => turn.is_err(), _ = stopped.changed() => true }
                });
                if ended { return } else { continue }
            }
            self.give_way();
            failures = if self.read(piece) { 0 } else { failures + 1 };
            if failures > 0 {
                self.pause((RETRY_MS_MIN << failures.min(10)).min(RETRY_MS_MAX));
            }
        }
    }

    fn read(&self, piece: Vec<Cold>) -> bool {
        let ids: Vec<&str> = piece.iter().map(|cold| &*cold.id).collect();
        let wanted: Wanted = {
            let (shared, piece) = (Arc::clone(&self.shared), piece.clone());
            Arc::new(move || {
                let directory = shared.directory();
                piece.iter().any(|cold| directory.is_current(cold))
            })
        };
        // Not through the cache: a whole registry passes here after a start.
        let work = || {
            let chunks = self.shared.get(&ids, false).map_err(|error| error.to_string())?;
            let chunks: Vec<Arc<Chunk>> = chunks.into_iter().flatten().collect();
            if chunks.is_empty() { Ok(()) } else { self.reader.read(&chunks, Arc::clone(&wanted)) }
        };
        // One chunk that makes the reader panic shall not keep all others from being read. What the reader then leaves is
        // what it leaves to requests, which survive a panic as well.
        let read = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("it panicked".to_owned()));
        // What has gone or changed meanwhile is no failure.
        let read = if wanted() { read } else { Ok(()) };
        let mut directory = self.shared.directory();
        if !self.goes_on() && read.is_err() {
            piece.into_iter().rev().for_each(|cold| directory.give_back(cold));
            return true;
        }
        piece.iter().for_each(|cold| directory.read(cold, read.is_ok()));
        drop(directory);
        self.shared.turn();
        let outcome = if read.is_ok() { "ok" } else { "failed" };
        counter!("registry_warmed_total", "outcome" => outcome).increment(piece.len() as u64);
        if let Err(cause) = &read {
            tracing::warn!(cause, chunks = piece.len(), "chunks could not be read ahead");
        }
        read.is_ok()
    }

    fn give_way(&self) {
        for _ in 0..GIVE_WAY_MS_MAX / LOOK_MS {
            if !self.goes_on() || !self.reader.is_busy() {
                return;
            }
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    fn pause(&self, ms: u64) {
        for _ in 0..ms / LOOK_MS {
            if !self.goes_on() {
                return;
            }
            std::thread::sleep(Duration::from_millis(LOOK_MS));
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}
