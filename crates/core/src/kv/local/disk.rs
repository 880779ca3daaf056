//! The disk tier: which blocks are on disk, and the threads that read and write them.
//! Knows nothing of the memory tier.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::oneshot;

use super::bounded::{Bounded, Weighed};
use super::directory::{BlockFile, Directory};
use super::error::LocalError;
use super::meters::Meters;
use super::writer::{Command, Writer};
use super::{TierName, TierStats, record};
use crate::kv::key::BlockKey;

/// Reads at the same time: enough for a solid-state disk to be busy; from the system's cache, more than the cores are.
const READ_THREADS: usize = 8;

/// File systems give space in units of this.
const PAGE_BYTES: u64 = 4096;

/// What a file costs besides its pages: inode and name.
const FILE_BYTES: u64 = 512;

/// What the directory costs without a block in it.
const DIRECTORY_BYTES: u64 = 64 << 10;

/// What the disk tier's threads share.
pub struct Shared {
    /// The directory.
    pub directory: Directory,
    /// The blocks in it.
    pub slots: Bounded<Slot>,
    /// What is counted.
    pub meters: Meters,
    /// Keys with how many removals of them wait in the queue: what stands before those must not appear.
    unwanted: Mutex<HashMap<BlockKey, usize>>,
}

/// A block's place on disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The file.
    pub file: BlockFile,
    /// False while it is being written: its bytes count, but it cannot be read.
    pub whole: bool,
}

/// Blocks on disk.
pub struct Disk {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    writer: Option<JoinHandle<()>>,
    given_up: AtomicBool,
    queued_bytes: Arc<AtomicU64>,
    queue_bytes_max: u64,
    readers: ThreadPool,
}

impl Disk {
    /// Opens the directory and starts the threads.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn open(dir: &Path, bytes_max: u64, queue_bytes_max: u64) -> Result<Self, LocalError> {
        let (directory, files) = Directory::open(dir)?;
        let number = files.last().map_or(0, |file| file.number + 1);
        let slots = Bounded::new(bytes_max.saturating_sub(DIRECTORY_BYTES));
        let shared = Arc::new(Shared {
            directory,
            slots,
            meters: Meters::new(TierName::Disk),
            unwanted: Mutex::default(),
        });
        files.into_iter().for_each(|file| shared.found(file));
        let TierStats { entries, bytes } = shared.slots.stats();
        shared.meters.holds(TierStats { entries, bytes });
        tracing::info!(dir = %dir.display(), entries, bytes, bytes_max, "disk tier is open");

        let (commands, received) = mpsc::channel();
        let queued_bytes = Arc::new(AtomicU64::new(0));
        let writer = Writer::new(Arc::clone(&shared), Arc::clone(&queued_bytes), number);
        let thread = thread::Builder::new().name("kv-write".to_owned()).spawn(move || writer.run(&received));
        let writer = thread.map_err(|e| LocalError::Thread { thread: "writing", reason: e.to_string() })?;
        let panicked = shared.meters.unreadable.clone();
        let readers = ThreadPoolBuilder::new()
            .num_threads(READ_THREADS)
            .thread_name(|n| format!("kv-read-{n}"))
            // Without it the pool would end the process: one block is a miss.
            .panic_handler(move |_| {
                tracing::error!("reading a block panicked; it is read anew by the model");
                panicked.increment(1);
            });
        let readers =
            readers.build().map_err(|e| LocalError::Thread { thread: "reading", reason: e.to_string() })?;
        let (writer, given_up) = (Some(writer), AtomicBool::new(false));
        Ok(Self { shared, commands, writer, given_up, queued_bytes, queue_bytes_max, readers })
    }

    /// Whether the block is there.
    pub fn has(&self, key: &BlockKey) -> bool {
        self.shared.slots.peek(key).is_some_and(|slot| slot.whole)
    }

    /// Takes the block as used.
    pub fn touch(&self, key: &BlockKey) {
        self.shared.slots.get(key);
    }

    /// Reads the block on another thread and hands it to `found`, if it is there and sound. Returns at once.
    pub fn read_later(&self, key: BlockKey, found: impl FnOnce(Bytes) + Send + 'static) {
        let Some(slot) = self.shared.slots.get(&key).filter(|slot| slot.whole) else { return };
        let shared = Arc::clone(&self.shared);
        self.readers.spawn(move || {
            let bytes = shared.read(&slot.file);
            // Who gets the block may want to open the directory anew.
            drop(shared);
            if let Some(bytes) = bytes {
                found(bytes);
            }
        });
    }

    /// Writes the block on another thread, unless it is there already or too much is waiting. Returns at once.
    pub fn write_later(&self, key: BlockKey, bytes: Bytes) {
        if self.shared.slots.get(&key).is_some_and(|slot| slot.whole) {
            return;
        }
        let cost = bytes.len() as u64;
        let admit = |queued: u64| {
            // One larger than the whole queue goes when it is alone: the tier says what is too large.
            Some(queued + cost).filter(|sum| queued == 0 || *sum <= self.queue_bytes_max)
        };
        let admitted = self.queued_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit).is_ok();
        if !admitted {
            self.shared.meters.dropped.increment(1);
        } else if self.commands.send(Command::Write(key, bytes)).is_err() {
            self.queued_bytes.fetch_sub(cost, Ordering::Relaxed);
            self.shared.meters.dropped.increment(1);
        }
    }

    /// Forgets the block, and with it what waits to be written under this key.
    pub fn remove(&self, key: &BlockKey) {
        *self.shared.unwanted().entry(*key).or_default() += 1;
        self.shared.forget(key, |_| true);
        if self.commands.send(Command::Remove(*key)).is_err() {
            // Closed: nothing waits.
            self.shared.removed(key);
        }
    }

    /// Returns when all that was asked for before is done.
    pub async fn flush(&self) {
        self.wait(Command::Flush).await;
    }

    /// As [`Self::flush`], and the last that is done.
    pub async fn close(&self) {
        self.wait(Command::Close).await;
    }

    /// As [`Self::close`], but what is not written within `patience` is given up: nobody waits for it any more, nor when
    /// this goes.
    pub async fn close_within(&self, patience: Duration) {
        if tokio::time::timeout(patience, self.close()).await.is_err() {
            self.given_up.store(true, Ordering::Relaxed);
            let queued_bytes = self.queued_bytes.load(Ordering::Relaxed);
            tracing::warn!(
                queued_bytes,
                "the disk (blocks.dir) is too slow: blocks that wait are not written"
            );
        }
    }

    /// What it holds now.
    pub fn stats(&self) -> TierStats {
        self.shared.slots.stats()
    }

    async fn wait(&self, command: fn(oneshot::Sender<()>) -> Command) {
        let (done, wait) = oneshot::channel();
        if self.commands.send(command(done)).is_ok() {
            // An error: the writer has ended, so nothing waits.
            let _ = wait.await;
        }
    }
}

impl Drop for Disk {
    /// Waits for what is queued, unless it was given up.
    fn drop(&mut self) {
        // An error: it has ended already.
        let _ = self.commands.send(Command::Close(oneshot::channel().0));
        if *self.given_up.get_mut() {
            return;
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// The block in `file`, if it is what was written. One that is not is forgotten, so that the next insert writes it anew.
    fn read(&self, file: &BlockFile) -> Option<Bytes> {
        match self.directory.read(file).map(|record| record::open(&file.key, record)) {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => {}
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => {}
            Err(error) => {
                // Perhaps for now only, such as too many open files: the block stays.
                tracing::debug!(%error, key = %file.key, "a block cannot be read");
                self.meters.unreadable.increment(1);
                return None;
            }
        }
        // Not if it was evicted, removed or written anew meanwhile: then it is only late.
        if self.forget(&file.key, |slot| slot.file.number == file.number) {
            tracing::warn!(key = %file.key, "a damaged block is discarded");
            self.meters.damaged.increment(1);
        }
        None
    }

    /// Whether a removal of the block is still to come.
    pub fn is_unwanted(&self, key: &BlockKey) -> bool {
        self.unwanted().contains_key(key)
    }

    /// One removal of the block has come.
    pub fn removed(&self, key: &BlockKey) {
        if let Entry::Occupied(mut waiting) = self.unwanted().entry(*key) {
            *waiting.get_mut() -= 1;
            if *waiting.get() == 0 {
                waiting.remove();
            }
        }
    }

    fn unwanted(&self) -> MutexGuard<'_, HashMap<BlockKey, usize>> {
        self.unwanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the block if `condition` holds; says whether it did.
    pub fn forget(&self, key: &BlockKey, condition: impl FnOnce(&Slot) -> bool) -> bool {
        let Some(slot) = self.slots.remove_if(key, condition) else { return false };
        if let Err(error) = self.directory.delete(&slot.file) {
            tracing::debug!(%error, %key, "a block's file cannot be deleted");
        }
        self.meters.holds(self.slots.stats());
        true
    }

    /// Takes up a file that was there at the start. Of two with one key the later one counts.
    fn found(&self, file: BlockFile) {
        self.forget(&file.key, |_| true);
        let evicted = self.slots.insert(file.key, Slot { file, whole: true });
        let unwanted =
            evicted.map_or(vec![file], |evicted| evicted.iter().map(|(_, slot)| slot.file).collect());
        for file in unwanted {
            self.meters.evictions.increment(1);
            if let Err(error) = self.directory.delete(&file) {
                tracing::debug!(%error, key = %file.key, "a block's file cannot be deleted");
            }
        }
    }
}

impl Weighed for Slot {
    fn weight(&self) -> u64 {
        self.file
            .record_len()
            .checked_next_multiple_of(PAGE_BYTES)
            .unwrap_or(u64::MAX)
            .saturating_add(FILE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_panics_is_a_miss_and_the_process_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let open = || Disk::open(folder.path(), 1 << 20, 1 << 20).expect("it opens");
        let disk = metrics::with_local_recorder(&recorder, open);
        let key = BlockKey::from_bytes([1; 32]);
        let wait = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        disk.write_later(key, Bytes::from_static(b"bytes"));
        wait.block_on(disk.flush());
        let (sender, received) = mpsc::channel::<Bytes>();
        let keeps = sender.clone();
        disk.read_later(key, move |_| {
            let _keeps = keeps;
            panic!("a test's");
        });
        disk.read_later(key, move |bytes| sender.send(bytes).expect("a test that waits"));
        assert_eq!(
            received.iter().collect::<Vec<_>>(),
            [&b"bytes"[..]],
            "nobody waits for what does not come"
        );
        let counted = || recorder.handle().render().contains("kv_unreadable_total{tier=\"disk\"} 1");
        let tries = (0..2_000).take_while(|_| !counted()).map(|_| thread::sleep(Duration::from_millis(5)));
        assert!(tries.count() < 2_000, "it is counted");
    }
}
