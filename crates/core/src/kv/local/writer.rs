//! The one thread that writes blocks to disk and evicts them: in the order in which it was asked.
//! Knows nothing of who asks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::directory::BlockFile;
use super::disk::{Shared, Slot};
use crate::kv::key::BlockKey;

/// What the writer is asked for.
pub enum Command {
    /// Write this block.
    Write(BlockKey, Bytes),
    /// What stood before this under the key has been removed.
    Remove(BlockKey),
    /// Say that all before is done.
    Flush(oneshot::Sender<()>),
    /// Say so and end.
    Close(oneshot::Sender<()>),
}

/// The writer's state.
pub struct Writer {
    shared: Arc<Shared>,
    queued_bytes: Arc<AtomicU64>,
    number: u64,
    failing: bool,
}

impl Writer {
    /// A writer whose first file gets this number.
    pub fn new(shared: Arc<Shared>, queued_bytes: Arc<AtomicU64>, number: u64) -> Self {
        Self { shared, queued_bytes, number, failing: false }
    }

    /// Does what it is asked for until it is closed or nobody can ask any more.
    pub fn run(mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            match command {
                Command::Write(key, bytes) => {
                    self.write(key, &bytes);
                    self.queued_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
                }
                Command::Remove(key) => self.shared.removed(&key),
                // Who waits may have gone.
                Command::Flush(done) => drop(done.send(())),
                Command::Close(done) => {
                    let _ = done.send(());
                    break;
                }
            }
        }
    }

    /// Room first, then the file: the directory is within its bound at every moment.
    fn write(&mut self, key: BlockKey, bytes: &Bytes) {
        let Shared { directory, slots, meters, .. } = &*self.shared;
        if slots.peek(&key).is_some() {
            return;
        }
        let file = BlockFile { number: self.number, key, len: bytes.len() as u64 };
        self.number += 1;
        let Ok(evicted) = slots.insert(key, Slot { file, whole: false }) else {
            meters.too_large.increment(1);
            return;
        };
        meters.evictions.increment(evicted.len() as u64);
        let deleted = evicted.iter().map(|(_, slot)| directory.delete(&slot.file));
        let room = deleted.fold(Ok(()), io::Result::and);
        // Asked only now: a removal from here on finds the slot.
        let written = match self.shared.is_unwanted(&key) {
            true => Ok(false),
            false => room.and_then(|()| directory.write(&file, bytes)).map(|()| true),
        };
        match &written {
            // Not if it was removed meanwhile.
            Ok(true) if slots.replace(key, Slot { file, whole: true }) => meters.written.increment(1),
            Ok(true) => drop(directory.delete(&file)),
            Ok(false) => drop(slots.remove_if(&key, |_| true)),
            Err(_) => {
                slots.remove_if(&key, |_| true);
                meters.failed.increment(1);
            }
        }
        meters.holds(slots.stats());
        self.report(written.map(|_| ()));
    }

    /// Logs the first failure and the recovery, not every block.
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
        self.shared.meters.failing(failing);
    }
}
