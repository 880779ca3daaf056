//! The disk tier: the index of the blocks on disk, and the threads that read and write them.
//! Knows nothing of the memory tier.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use rayon::{ThreadPool, ThreadPoolBuilder};
use tokio::sync::oneshot;

use super::bounded::Bounded;
use super::directory::Directory;
use super::index::Shared;
use super::writer::{Command, Writer};
use super::{LocalError, TierMetrics, TierName, TierStats};
use crate::kv::key::{BlockKey, TenantTag};

/// The number of threads that read blocks: enough to keep a solid-state disk busy. For reads from the
/// operating system's page cache, it is more than there are cores.
const READ_THREADS: usize = 8;

/// The bytes that the directory takes without blocks.
const DIRECTORY_BYTES: u64 = 64 << 10;

pub struct Disk {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    writer: Option<JoinHandle<()>>,
    /// Set when closing timed out, so that dropping the tier does not wait for the writer.
    is_abandoned: AtomicBool,
    queued_bytes: Arc<AtomicU64>,
    queue_bytes_max: u64,
    readers: ThreadPool,
}

impl Disk {
    /// Opens the directory and starts the threads.
    ///
    /// # Errors
    /// Returns [`LocalError`] when the directory cannot be used or a thread cannot be started.
    pub fn open(dir: &Path, bytes_max: u64, queue_bytes_max: u64) -> Result<Self, LocalError> {
        let (directory, files) = Directory::open(dir)?;
        let number = files.last().map_or(0, |file| file.number + 1);
        let index = Bounded::new(bytes_max.saturating_sub(DIRECTORY_BYTES));
        let shared = Arc::new(Shared {
            directory,
            index,
            metrics: TierMetrics::new(TierName::Disk),
            pending_removals: Mutex::default(),
        });
        files.into_iter().for_each(|file| shared.add_existing(file));
        let TierStats { entries, bytes } = shared.index.stats();
        shared.metrics.set_stats(TierStats { entries, bytes });
        tracing::info!(dir = %dir.display(), entries, bytes, bytes_max, "the disk tier is open");

        let (commands, received) = mpsc::channel();
        let queued_bytes = Arc::new(AtomicU64::new(0));
        let writer = Writer::new(Arc::clone(&shared), Arc::clone(&queued_bytes), number);
        let thread = thread::Builder::new().name("kv-write".to_owned()).spawn(move || writer.run(&received));
        let writer = thread.map_err(|e| LocalError::Thread { thread: "writing", reason: e.to_string() })?;
        let panicked = shared.metrics.unreadable.clone();
        let readers = ThreadPoolBuilder::new()
            .num_threads(READ_THREADS)
            .thread_name(|n| format!("kv-read-{n}"))
            // Without this handler, a panic would end the process. With it, the block is a miss.
            .panic_handler(move |_| {
                tracing::error!("reading a cached block panicked; the model reads its chunk again");
                panicked.increment(1);
            });
        let readers =
            readers.build().map_err(|e| LocalError::Thread { thread: "reading", reason: e.to_string() })?;
        let (writer, is_abandoned) = (Some(writer), AtomicBool::new(false));
        Ok(Self { shared, commands, writer, is_abandoned, queued_bytes, queue_bytes_max, readers })
    }

    /// Returns whether the block is on disk and complete.
    pub fn has(&self, key: &BlockKey) -> bool {
        self.shared.index.peek(key).is_some_and(|entry| entry.is_written)
    }

    /// Counts a use of the block, so that it is evicted later.
    pub fn touch(&self, key: &BlockKey) {
        self.shared.index.get(key);
    }

    /// Reads the block on another thread and calls `on_found` with it, unless it is missing or damaged.
    /// Returns at once.
    pub fn read_later(&self, key: BlockKey, on_found: impl FnOnce(Bytes) + Send + 'static) {
        let Some(entry) = self.shared.index.get(&key).filter(|entry| entry.is_written) else { return };
        let shared = Arc::clone(&self.shared);
        self.readers.spawn(move || {
            let bytes = shared.read(&entry.file);
            // The receiver of the block may open the directory again, which must not be held open here.
            drop(shared);
            if let Some(bytes) = bytes {
                on_found(bytes);
            }
        });
    }

    /// Queues the block to be written on another thread, unless it is on disk or the queue is full. Returns
    /// at once.
    pub fn write_later(&self, key: BlockKey, bytes: Bytes) {
        if self.shared.index.get(&key).is_some_and(|entry| entry.is_written) {
            return;
        }
        let cost = bytes.len() as u64;
        let admit = |queued: u64| {
            // A block larger than the limit of the queue is accepted if the queue is empty. The tier decides
            // what is too large.
            Some(queued + cost).filter(|sum| queued == 0 || *sum <= self.queue_bytes_max)
        };
        let admitted = self.queued_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit).is_ok();
        if !admitted {
            self.shared.metrics.dropped.increment(1);
        } else if self.commands.send(Command::Write(key, bytes)).is_err() {
            self.queued_bytes.fetch_sub(cost, Ordering::Relaxed);
            self.shared.metrics.dropped.increment(1);
        }
    }

    pub fn keys_of(&self, tenant: TenantTag) -> Vec<BlockKey> {
        self.shared.index.keys_of(tenant)
    }

    /// Removes the block, and cancels the queued writes of its key.
    pub fn remove(&self, key: &BlockKey) {
        *self.shared.pending_removals().entry(*key).or_default() += 1;
        self.shared.remove_if(key, |_| true);
        if self.commands.send(Command::Remove(*key)).is_err() {
            // The writer has ended, so no write is queued.
            self.shared.removal_done(key);
        }
    }

    /// Waits until all earlier commands are done.
    pub async fn flush(&self) {
        self.wait(Command::Flush).await;
    }

    /// Waits until all earlier commands are done, and ends the writer.
    pub async fn close(&self) {
        self.wait(Command::Close).await;
    }

    /// Closes the tier like [`Self::close`], but waits at most `timeout`. Blocks that are not written by then
    /// are dropped, and dropping the tier does not wait for them.
    pub async fn close_within(&self, timeout: Duration) {
        if tokio::time::timeout(timeout, self.close()).await.is_err() {
            self.is_abandoned.store(true, Ordering::Relaxed);
            let queued_bytes = self.queued_bytes.load(Ordering::Relaxed);
            tracing::warn!(queued_bytes, "the disk (blocks.dir) is too slow: queued blocks are not written");
        }
    }

    pub fn stats(&self) -> TierStats {
        self.shared.index.stats()
    }

    /// Sends a command with a channel, and waits until the writer answers on it.
    async fn wait(&self, command: fn(oneshot::Sender<()>) -> Command) {
        let (done, wait) = oneshot::channel();
        if self.commands.send(command(done)).is_ok() {
            // Receiving fails if the writer has ended, and then nothing is queued.
            let _ = wait.await;
        }
    }
}

impl Drop for Disk {
    /// Waits for the queued blocks, unless closing has timed out before.
    fn drop(&mut self) {
        // Sending fails if the writer has ended.
        let _ = self.commands.send(Command::Close(oneshot::channel().0));
        if *self.is_abandoned.get_mut() {
            return;
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_panics_is_a_miss_and_does_not_end_the_process() {
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
            panic!("of a test");
        });
        disk.read_later(key, move |bytes| sender.send(bytes).expect("the test waits"));
        assert_eq!(
            received.iter().collect::<Vec<_>>(),
            [&b"bytes"[..]],
            "the channel closes, because the panic dropped its sender"
        );
        let counted = || recorder.handle().render().contains("kv_unreadable_total{tier=\"disk\"} 1");
        let tries = (0..2_000).take_while(|_| !counted()).map(|_| thread::sleep(Duration::from_millis(5)));
        assert!(tries.count() < 2_000, "the panic is counted");
    }
}
