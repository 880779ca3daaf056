//! The single thread that writes blocks to disk and evicts them, in the order of its queue of commands.
//! Knows nothing of where the commands come from.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::directory::BlockFile;
use super::index::{IndexEntry, Shared};
use crate::kv::key::BlockKey;

pub enum Command {
    Write(BlockKey, Bytes),
    /// Marks the position of a removal in the queue: writes of the key that were queued before it must not
    /// take effect.
    Remove(BlockKey),
    /// Confirm that all earlier commands are done.
    Flush(oneshot::Sender<()>),
    /// Confirm that all earlier commands are done, and end.
    Close(oneshot::Sender<()>),
}

pub struct Writer {
    shared: Arc<Shared>,
    queued_bytes: Arc<AtomicU64>,
    next_number: u64,
    failing: bool,
}

impl Writer {
    /// Returns a writer whose first file gets the number `next_number`.
    pub fn new(shared: Arc<Shared>, queued_bytes: Arc<AtomicU64>, next_number: u64) -> Self {
        Self { shared, queued_bytes, next_number, failing: false }
    }

    /// Executes commands until it is closed or the other end of the queue is dropped.
    pub fn run(mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            match command {
                Command::Write(key, bytes) => {
                    self.write(key, &bytes);
                    self.queued_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
                }
                Command::Remove(key) => self.shared.removal_done(&key),
                // Sending fails if the caller no longer waits.
                Command::Flush(done) => drop(done.send(())),
                Command::Close(done) => {
                    let _ = done.send(());
                    break;
                }
            }
        }
    }

    /// Writes a block. It evicts other blocks before it writes the file, so that the directory is within its
    /// limit at every moment.
    fn write(&mut self, key: BlockKey, bytes: &Bytes) {
        let Shared { directory, index, metrics, .. } = &*self.shared;
        if index.peek(&key).is_some() {
            return;
        }
        let file = BlockFile { number: self.next_number, key, len: bytes.len() as u64 };
        self.next_number += 1;
        let Ok(evicted) = index.insert(key, IndexEntry { file, is_written: false }) else {
            metrics.too_large.increment(1);
            return;
        };
        metrics.evictions.increment(evicted.len() as u64);
        let deleted = evicted.iter().map(|(_, entry)| directory.delete(&entry.file));
        let evictions = deleted.fold(Ok(()), io::Result::and);
        // The check comes after the insert into the index, so that any later removal finds the entry.
        let written = if self.shared.is_removal_pending(&key) {
            Ok(false)
        } else {
            evictions.and_then(|()| directory.write(&file, bytes)).map(|()| true)
        };
        match &written {
            // The replacement fails if the block was removed in the meantime.
            Ok(true) if index.replace(key, IndexEntry { file, is_written: true }) => {
                metrics.written.increment(1)
            }
            Ok(true) => drop(directory.delete(&file)),
            Ok(false) => drop(index.remove_if(&key, |_| true)),
            Err(_) => {
                index.remove_if(&key, |_| true);
                metrics.failed.increment(1);
            }
        }
        metrics.set_stats(index.stats());
        self.report(written.map(|_| ()));
    }

    /// Logs the first failure and the recovery, but not every block.
    fn report(&mut self, written: io::Result<()>) {
        let failing = written.is_err();
        match written {
            Err(error) if !self.failing => {
                tracing::warn!(%error, "blocks cannot be written to disk (blocks.dir) and are kept in memory only");
            }
            Ok(()) if self.failing => tracing::info!("blocks are written to disk again"),
            Err(_) | Ok(()) => {}
        }
        self.failing = failing;
        self.shared.metrics.set_failing(failing);
    }
}
