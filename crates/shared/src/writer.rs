//! Writing values in the background: a queue bounded in bytes, and whoever adds to it never waits.
//! Knows nothing of what the values are.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use redis::{Value, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::failure::Failure;
use super::seal::OVERHEAD_BYTES;
use super::{BLOCK_BYTES_MAX, Core, observe};

/// Writes under way at once.
const WRITES_MAX: usize = 16;

/// How long nothing is written after a server that is up refused to: full, a replica, not allowed.
const PAUSE: Duration = Duration::from_secs(1);

/// A value on its way; its bytes count as queued until it is written or given up.
pub struct Queued {
    name: String,
    payload: Bytes,
    write: Write,
    bytes: OwnedSemaphorePermit,
}

/// What is to become of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// It stands there, whatever stood there before.
    Put,
    /// What stands there lives on; the value is sent only if nothing does.
    Renew,
}

/// What became of it.
enum Sent {
    Written,
    Renewed,
}

/// Bytes that may wait, as permits: an entry that is gone for whatever reason has given its bytes back.
pub struct Room {
    free: Arc<Semaphore>,
    bytes_max: usize,
}

impl Room {
    /// Room for `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes_max)), bytes_max }
    }

    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes).ok()?;
        let taken = Arc::clone(&self.free).try_acquire_many_owned(permits).ok();
        self.show();
        taken
    }

    /// Whether at least half of it is free.
    pub fn is_wide(&self) -> bool {
        self.free.available_permits() >= self.bytes_max / 2
    }

    fn show(&self) {
        observe::queue(self.bytes_max - self.free.available_permits());
    }

    /// Waits until nothing is queued.
    pub async fn emptied(&self) {
        let _all = self.free.acquire_many(self.bytes_max as u32).await;
    }
}

/// Writes what is queued until the queue's other end is gone.
pub async fn write(core: Arc<Core>, mut entries: UnboundedReceiver<Queued>) {
    let places = Arc::new(Semaphore::new(WRITES_MAX));
    let mut writes = JoinSet::new();
    while let Some(entry) = entries.recv().await {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let core = Arc::clone(&core);
        writes.spawn(async move {
            core.write(entry).await;
            drop(place);
        });
        while writes.try_join_next().is_some() {}
    }
    while writes.join_next().await.is_some() {}
}

impl Core {
    /// Queues a value or says why not, in a word for metrics.
    pub(super) fn queue(
        &self,
        entries: &UnboundedSender<Queued>,
        name: String,
        payload: Bytes,
        write: Write,
    ) -> Result<(), &'static str> {
        if payload.len() > BLOCK_BYTES_MAX {
            return Err("too_large");
        }
        let table = self.nodes.table();
        if !table.nodes()[table.index(&name)].admits() {
            return Err("skipped");
        }
        let bytes = self.room.take(OVERHEAD_BYTES + name.len() + payload.len()).ok_or("dropped")?;
        entries.send(Queued { name, payload, write, bytes }).map_err(|_| "dropped")
    }

    async fn write(&self, entry: Queued) {
        let started = Instant::now();
        let table = self.nodes.table();
        let outcome = if !table.nodes()[table.index(&entry.name)].admits() {
            "skipped"
        } else if let Some(refused) = self.paused() {
            refused
        } else {
            let sent = self.send(&entry, started + self.write_timeout).await;
            observe::time("put", started.elapsed());
            match sent {
                // A full server takes new times to expire, and nothing else.
                Ok(Sent::Renewed) => "renewed",
                Ok(Sent::Written) => {
                    self.writable();
                    "written"
                }
                Err(failure) => {
                    self.refused(&failure);
                    failure.label()
                }
            }
        };
        observe::count("put", outcome, 1);
        drop(entry.bytes);
        self.room.show();
    }

    async fn send(&self, entry: &Queued, deadline: Instant) -> Result<Sent, Failure> {
        if entry.write == Write::Renew {
            let mut command = cmd("EXPIRE");
            command.arg(&entry.name).arg(self.ttl_s);
            if self.writes.send(&command, deadline).await? == Value::Int(1) {
                return Ok(Sent::Renewed);
            }
        }
        let value = self.seal.close(&[entry.name.as_bytes()], &entry.payload);
        let mut command = cmd("SET");
        command.arg(&entry.name).arg(value).arg("EX").arg(self.ttl_s);
        self.writes.send(&command, deadline).await?;
        Ok(Sent::Written)
    }

    fn paused(&self) -> Option<&'static str> {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        refusal.filter(|(_, until)| Instant::now() < *until).map(|(why, _)| why)
    }

    /// A refusal to write says nothing about reads; it ends writes for a moment.
    fn refused(&self, failure: &Failure) {
        if !matches!(failure, Failure::Full | Failure::ReadOnly | Failure::Refused(_)) {
            return;
        }
        let mut refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        let first = refusal.is_none();
        *refusal = Some((failure.label(), Instant::now() + PAUSE));
        drop(refusal);
        if first {
            tracing::warn!(reason = %failure, "the shared tier takes no writes; reads go on");
        }
        if *failure == Failure::ReadOnly {
            // The name may by now stand for another server, which is the primary.
            self.writes.lose();
        }
    }

    fn writable(&self) {
        let mut refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if refusal.take().is_some() {
            tracing::info!("the shared tier takes writes again");
        }
    }
}
