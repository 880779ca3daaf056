//! Writes values in the background, from a queue that is bounded in bytes. Callers that add to the queue
//! never wait. Also decides when a value that is in use is due for renewal. Does not know what the values
//! hold.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use redis::{Value, cmd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::outcome::{self, Failure};
use super::seal::OVERHEAD_BYTES;
use super::{BLOCK_BYTES_MAX, Core};

/// The number of writes in flight at once.
const WRITES_MAX: usize = 16;

/// How long all writes pause after a server that is up refused one, because it is full or a replica, or does
/// not permit it.
const WRITE_PAUSE: Duration = Duration::from_secs(1);

/// A queued value. Its bytes count as queued until it is written or dropped.
pub struct QueuedWrite {
    name: String,
    payload: Bytes,
    kind: WriteKind,
    bytes: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    /// Writes the value over any other.
    Put,
    /// Restarts the time to live of the value on the server, and sends the value only if the server has none.
    Renew,
    Remove,
}

enum WriteResult {
    Written,
    Renewed,
    Removed,
}

/// The free bytes of the queue, as permits of a semaphore: a write returns its bytes when it is dropped, for
/// whatever reason.
pub struct QueueCapacity {
    free: Arc<Semaphore>,
    bytes_max: usize,
}

impl QueueCapacity {
    pub fn new(bytes_max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes_max)), bytes_max }
    }

    fn try_acquire(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(bytes).ok()?;
        let acquired = Arc::clone(&self.free).try_acquire_many_owned(permits).ok();
        self.update_metric();
        acquired
    }

    pub fn is_half_free(&self) -> bool {
        self.free.available_permits() >= self.bytes_max / 2
    }

    fn update_metric(&self) {
        outcome::set_queue_bytes(self.bytes_max - self.free.available_permits());
    }

    pub async fn drained(&self) {
        let _all = self.free.acquire_many(self.bytes_max as u32).await;
    }
}

/// Writes the queued values until the sender of the queue is dropped.
pub async fn write(core: Arc<Core>, mut queue: UnboundedReceiver<QueuedWrite>) {
    let permits = Arc::new(Semaphore::new(WRITES_MAX));
    let mut writes = JoinSet::new();
    while let Some(queued) = queue.recv().await {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let core = Arc::clone(&core);
        writes.spawn(async move {
            core.write(queued).await;
            drop(permit);
        });
        while writes.try_join_next().is_some() {}
    }
    while writes.join_next().await.is_some() {}
}

impl Core {
    /// Queues a value. Returns the metric label of the reason if the value is not queued.
    pub(super) fn enqueue(
        &self,
        queue: &UnboundedSender<QueuedWrite>,
        name: String,
        payload: Bytes,
        kind: WriteKind,
    ) -> Result<(), &'static str> {
        if payload.len() > BLOCK_BYTES_MAX {
            return Err("too_large");
        }
        let table = self.nodes.table();
        if !table.nodes()[table.index(&name)].is_available() {
            return Err("skipped");
        }
        let bytes = OVERHEAD_BYTES + name.len() + payload.len();
        let bytes = self.queue_capacity.try_acquire(bytes).ok_or("dropped")?;
        queue.send(QueuedWrite { name, payload, kind, bytes }).map_err(|_| "dropped")
    }

    async fn write(&self, queued: QueuedWrite) {
        let started = Instant::now();
        let table = self.nodes.table();
        let outcome = if !table.nodes()[table.index(&queued.name)].is_available() {
            "skipped"
        } else if let Some(label) = self.pause_label() {
            label
        } else {
            let result = self.send(&queued, started + self.write_timeout).await;
            outcome::record_seconds("put", started.elapsed());
            match result {
                // Neither ends a pause, because a full server still accepts EXPIRE and UNLINK.
                Ok(WriteResult::Renewed) => "renewed",
                Ok(WriteResult::Removed) => "removed",
                Ok(WriteResult::Written) => {
                    self.end_pause();
                    "written"
                }
                Err(failure) => {
                    self.pause_if_refused(&failure);
                    failure.label()
                }
            }
        };
        outcome::count("put", outcome, 1);
        drop(queued.bytes);
        self.queue_capacity.update_metric();
    }

    async fn send(&self, queued: &QueuedWrite, deadline: Instant) -> Result<WriteResult, Failure> {
        if queued.kind == WriteKind::Renew {
            let mut command = cmd("EXPIRE");
            command.arg(&queued.name).arg(self.limits.ttl_s);
            if self.writes.send(&command, deadline).await? == Value::Int(1) {
                return Ok(WriteResult::Renewed);
            }
        }
        if queued.kind == WriteKind::Remove {
            let mut command = cmd("UNLINK");
            command.arg(&queued.name);
            self.writes.send(&command, deadline).await?;
            return Ok(WriteResult::Removed);
        }
        let value = self.sealer.seal(&[queued.name.as_bytes()], &queued.payload);
        let mut command = cmd("SET");
        command.arg(&queued.name).arg(value).arg("EX").arg(self.limits.ttl_s);
        self.writes.send(&command, deadline).await?;
        Ok(WriteResult::Written)
    }

    /// While writes are paused, returns the metric label of the failure that paused them.
    fn pause_label(&self) -> Option<&'static str> {
        let pause = self.write_pause.lock().unwrap_or_else(PoisonError::into_inner);
        pause.filter(|(_, until)| Instant::now() < *until).map(|(label, _)| label)
    }

    /// Pauses writes for [`WRITE_PAUSE`] if the server refused one. Reads go on, since a server that refuses
    /// writes may serve them.
    fn pause_if_refused(&self, failure: &Failure) {
        if !matches!(failure, Failure::Full | Failure::ReadOnly | Failure::Refused(_)) {
            return;
        }
        let mut pause = self.write_pause.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = pause.is_none();
        *pause = Some((failure.label(), Instant::now() + WRITE_PAUSE));
        drop(pause);
        if is_first {
            tracing::warn!(reason = %failure, "the shared tier takes no writes; reads go on");
        }
        if *failure == Failure::ReadOnly {
            // The server's name may now belong to another server, which is the primary.
            self.writes.disconnect();
        }
    }

    fn end_pause(&self) {
        let mut pause = self.write_pause.lock().unwrap_or_else(PoisonError::into_inner);
        if pause.take().is_some() {
            tracing::info!("the shared tier takes writes again");
        }
    }
}

/// The number of bits of the renewal filter, 128 KiB. With 100,000 values in use, one in ten shares its bit
/// with another and is left to the next round.
const RENEWAL_BITS: usize = 1 << 20;

/// The longest duration of a renewal round.
const ROUND_MAX: Duration = Duration::from_secs(600);

/// The number of renewal rounds in a value's time to live.
const ROUNDS_PER_TTL: u32 = 4;

/// Remembers in a fixed number of bits which values were renewed in the current round. Each round takes the
/// bit from other bytes of the key, so that two values that share a bit in one round do not in the next.
pub struct RenewalFilter {
    bits: Box<[AtomicU64]>,
    round: AtomicU64,
    round_duration: Duration,
}

impl RenewalFilter {
    pub fn new(ttl: Duration) -> Self {
        Self {
            bits: (0..RENEWAL_BITS / 64).map(|_| AtomicU64::default()).collect(),
            round: AtomicU64::default(),
            round_duration: (ttl / ROUNDS_PER_TTL).min(ROUND_MAX),
        }
    }

    /// Whether the value under `key` is due for renewal at `age`, the time since the filter's creation. Two
    /// concurrent callers may both get true.
    pub fn is_due(&self, key: &[u8; 32], age: Duration) -> bool {
        let (word, bit) = self.word_and_bit(key, age);
        word.load(Ordering::Relaxed) & bit == 0
    }

    /// Marks the value under `key` as renewed, for the round of `age`.
    pub fn mark(&self, key: &[u8; 32], age: Duration) {
        let (word, bit) = self.word_and_bit(key, age);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    fn word_and_bit(&self, key: &[u8; 32], age: Duration) -> (&AtomicU64, u64) {
        let round = (age.as_nanos() / self.round_duration.as_nanos().max(1)) as u64;
        if self.round.fetch_max(round, Ordering::Relaxed) < round {
            self.bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        let offset = (round % (32 - 3)) as usize;
        let bytes = [key[offset], key[offset + 1], key[offset + 2], key[offset + 3]];
        let index = u32::from_le_bytes(bytes) as usize % RENEWAL_BITS;
        (&self.bits[index / 64], 1 << (index % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_due_for_renewal_once_a_round() {
        let keys: Vec<[u8; 32]> =
            (0..50_000u32).map(|n| *blake3::hash(&n.to_le_bytes()).as_bytes()).collect();
        let renewals = RenewalFilter::new(Duration::from_secs(40));
        let mut never = vec![true; keys.len()];
        for round in 0..4 {
            let age = Duration::from_secs(10 * round);
            let mut due = 0;
            for (key, never) in keys.iter().zip(&mut never) {
                if renewals.is_due(key, age) {
                    (due, *never) = (due + 1, false);
                    renewals.mark(key, age);
                }
            }
            assert!(due > 45_000, "round {round}: {due} of {}", keys.len());
            assert!(!keys.iter().any(|key| renewals.is_due(key, age)), "round {round}");
        }
        assert!(!never.contains(&true), "every value is renewed within its time to live");
    }
}
