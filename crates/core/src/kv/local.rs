//! The tiers of this machine: a memory tier over a disk tier, each limited in bytes.
//! Knows nothing of what a block contains, nor of the tier that sidecars share.

mod bounded;
mod directory;
mod disk;
mod index;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::{Counter, Gauge, counter, gauge};
use thiserror::Error;
use tokio::sync::mpsc;

use self::bounded::{Bounded, Weighed};
use self::disk::Disk;
use super::key::{BlockKey, TenantTag};

/// Where the tiers store blocks, and their limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSettings {
    /// The limit of the memory tier in bytes: the blocks and the overhead of storing them. 0 stores no blocks
    /// in memory.
    pub memory_bytes_max: u64,
    /// The limit of the disk tier in bytes, as the file system counts them. 0 means no disk tier.
    pub disk_bytes_max: u64,
    /// The limit in bytes of the blocks that wait to be written to disk. They may have left the memory tier,
    /// so they take additional memory.
    pub write_queue_bytes_max: u64,
    /// The directory of the disk tier. `None` means no disk tier.
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TierName {
    Memory,
    Disk,
}

impl TierName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// The bytes of a block, and the tier that they came from.
pub type Hit = (Bytes, TierName);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    pub entries: u64,
    /// The bytes of the blocks and of the overhead of storing them.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalStats {
    pub memory: TierStats,
    /// The disk tier; zero if there is none.
    pub disk: TierStats,
}

/// Why the disk tier cannot be opened. Each message names the directory and says what to do. Once the tier is
/// open, problems are counted and logged and are never errors.
#[derive(Debug, Error)]
pub enum LocalError {
    #[error(
        "cannot create {} (blocks.dir): {source}; create it for this user, name another, or set blocks.dir to \"\" for no disk tier",
        path.display()
    )]
    Create { path: PathBuf, source: io::Error },
    #[error(
        "cannot {action} {}: {source}; this user must be able to write in blocks.dir: change its owner, name another, or set it to \"\" for no disk tier",
        path.display()
    )]
    Access {
        /// The failed operation, such as `write`.
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} (blocks.dir) is in use by another process: give every daemon a directory of its own", path.display())]
    InUse { path: PathBuf },
    #[error("{} (blocks.dir) contains {found:?}, which is not part of a block store: name an empty or a new directory", path.display())]
    Foreign {
        path: PathBuf,
        /// The name of one of the files.
        found: String,
    },
    #[error("cannot start the disk tier's {thread} thread: {reason}; raise the limit on threads")]
    Thread {
        /// What the thread does: `reading` or `writing`.
        thread: &'static str,
        reason: String,
    },
}

/// The memory tier and the disk tier. Clones share the same tiers. Dropping the last clone waits for the
/// write queue and releases the directory.
///
/// A key names the same content forever, because it is a hash of all that the block depends on. A block that
/// is on disk is therefore not written again.
#[derive(Clone)]
pub struct LocalTiers {
    memory: Arc<Memory>,
    disk: Option<Arc<Disk>>,
}

impl LocalTiers {
    /// Opens the directory, which no other process may have open, and finds the blocks in it. It needs no
    /// async runtime. Metrics go to the recorder that is installed at the time of this call.
    ///
    /// # Errors
    /// Returns [`LocalError`] when the directory cannot be used. A full disk is not an error: the tier waits
    /// until there is space.
    pub fn open(settings: &LocalSettings) -> Result<Self, LocalError> {
        let memory = Arc::new(Memory::new(settings.memory_bytes_max));
        let disk = match &settings.dir {
            Some(dir) if settings.disk_bytes_max > 0 => {
                Some(Disk::open(dir, settings.disk_bytes_max, settings.write_queue_bytes_max)?)
            }
            _ => None,
        };
        Ok(Self { memory, disk: disk.map(Arc::new) })
    }

    /// Checks whether [`Self::open`] would accept a directory, as far as this is possible without changing
    /// anything in it.
    ///
    /// # Errors
    /// Returns the [`LocalError`] that [`Self::open`] would return.
    pub fn inspect(dir: &Path) -> Result<(), LocalError> {
        directory::Directory::inspect(dir)
    }

    /// Returns the block if it is in memory, without I/O and without copying it. The disk tier counts this as
    /// a use of the block, too.
    pub fn get_resident(&self, key: &BlockKey) -> Option<Bytes> {
        let bytes = self.memory.get(key)?;
        if let Some(disk) = &self.disk {
            disk.touch(key);
        }
        Some(bytes)
    }

    /// Returns whether the block is on disk, as far as is known without I/O.
    pub fn has_on_disk(&self, key: &BlockKey) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.has(key))
    }

    /// Returns the block from the first tier that has it, see [`Self::get_many`].
    pub async fn get(&self, key: &BlockKey) -> Option<Hit> {
        self.get_many(std::slice::from_ref(key)).await.pop().flatten()
    }

    /// Returns for each key, in order, the block from the first tier that has it. Several threads read the
    /// blocks that are not in memory from disk. These blocks are not put into memory until the caller has
    /// checked them and calls [`Self::promote`].
    ///
    /// All hits are in memory at the same time, whatever the limit of the memory tier, so callers should
    /// request only as many blocks as there is memory for. The future runs on any executor.
    pub async fn get_many(&self, keys: &[BlockKey]) -> Vec<Option<Hit>> {
        let resident = |key| self.get_resident(key).map(|bytes| (bytes, TierName::Memory));
        let mut found: Vec<Option<Hit>> = keys.iter().map(resident).collect();
        let Some(disk) = &self.disk else { return found };
        let (sender, mut reads) = mpsc::unbounded_channel();
        for (at, key) in keys.iter().enumerate().filter(|(at, _)| found[*at].is_none()) {
            let sender = sender.clone();
            // Sending fails only if the caller has dropped the future.
            disk.read_later(*key, move |bytes| drop(sender.send((at, bytes))));
        }
        drop(sender);
        while let Some((at, bytes)) = reads.recv().await {
            found[at] = Some((bytes, TierName::Disk));
        }
        found
    }

    /// Puts a block that was read from disk into memory, after the caller has checked it. Never waits.
    pub fn promote(&self, key: BlockKey, bytes: Bytes) {
        self.memory.insert(key, bytes);
    }

    /// Stores the block in memory at once and on disk later. Never waits. If the write queue is full, the
    /// block is stored in memory only. `bytes` should be an allocation of its own: a slice keeps the whole
    /// allocation alive, which is not counted.
    pub fn insert(&self, key: BlockKey, bytes: Bytes) {
        if let Some(disk) = &self.disk {
            disk.write_later(key, bytes.clone());
        }
        self.memory.insert(key, bytes);
    }

    /// Removes the block from both tiers. An insert after this call is kept.
    pub fn remove(&self, key: &BlockKey) {
        self.memory.remove(key);
        if let Some(disk) = &self.disk {
            disk.remove(key);
        }
    }

    /// Removes all blocks of a tenant from both tiers. Returns how many there were in the larger one.
    pub fn remove_tenant(&self, tenant: TenantTag) -> usize {
        let on_disk = self.disk.as_ref().map_or_else(Vec::new, |disk| disk.keys_of(tenant));
        let in_memory = self.memory.blocks.keys_of(tenant);
        let count = on_disk.len().max(in_memory.len());
        in_memory.iter().chain(&on_disk).for_each(|key| self.remove(key));
        count
    }

    /// Waits until every earlier insert is on disk, or has failed and been counted. Blocks on disk survive
    /// the end of the process, however it ends. They are not synced, so a power failure may lose blocks, but
    /// a damaged block is never returned.
    pub async fn flush(&self) {
        if let Some(disk) = &self.disk {
            disk.flush().await;
        }
    }

    /// Flushes the write queue and stops writing. Blocks that are inserted later are stored in memory only.
    pub async fn close(&self) {
        if let Some(disk) = &self.disk {
            disk.close().await;
        }
    }

    /// Closes the disk tier like [`Self::close`], but waits at most `timeout`. Blocks that are not written by
    /// then are dropped, and dropping the last clone does not wait for them. Must be called within a Tokio
    /// runtime.
    pub async fn close_within(&self, timeout: Duration) {
        if let Some(disk) = &self.disk {
            disk.close_within(timeout).await;
        }
    }

    pub fn stats(&self) -> LocalStats {
        LocalStats {
            memory: self.memory.stats(),
            disk: self.disk.as_ref().map_or(TierStats::default(), |disk| disk.stats()),
        }
    }
}

/// The overhead in bytes of a block in memory: key and handle in the map, the map's free slots and its memory
/// of evicted keys, the reference count of `Bytes`, and the allocator's rounding. Measured and rounded up.
const MEMORY_ENTRY_BYTES: u64 = 512;

struct Memory {
    blocks: Bounded<Bytes>,
    metrics: TierMetrics,
}

impl Memory {
    fn new(bytes_max: u64) -> Self {
        Self { blocks: Bounded::new(bytes_max), metrics: TierMetrics::new(TierName::Memory) }
    }

    fn get(&self, key: &BlockKey) -> Option<Bytes> {
        self.blocks.get(key)
    }

    /// Stores the block, unless it is too large for the tier.
    fn insert(&self, key: BlockKey, bytes: Bytes) {
        match self.blocks.insert(key, bytes) {
            Ok(evicted) => {
                self.metrics.written.increment(1);
                self.metrics.evictions.increment(evicted.len() as u64);
            }
            Err(_) => self.metrics.too_large.increment(1),
        }
        self.metrics.set_stats(self.stats());
    }

    fn remove(&self, key: &BlockKey) {
        self.blocks.remove_if(key, |_| true);
        self.metrics.set_stats(self.stats());
    }

    fn stats(&self) -> TierStats {
        self.blocks.stats()
    }
}

impl Weighed for Bytes {
    fn weight(&self) -> u64 {
        self.len() as u64 + MEMORY_ENTRY_BYTES
    }
}

/// The metrics of a tier, except lookups, which the block store counts. The handles are looked up once,
/// because a search in the registry of metrics takes longer than finding a block in memory.
struct TierMetrics {
    bytes: Gauge,
    entries: Gauge,
    /// Blocks that were evicted to make space for others.
    evictions: Counter,
    /// Blocks whose bytes differ from those that were written.
    damaged: Counter,
    unreadable: Counter,
    written: Counter,
    /// Blocks that could not be written.
    failed: Counter,
    /// Blocks that were not written because the write queue was full or closed.
    dropped: Counter,
    /// Blocks larger than the tier.
    too_large: Counter,
    failing: Gauge,
}

impl TierMetrics {
    /// Registers the metrics of a tier with the recorder that is installed now.
    fn new(tier: TierName) -> Self {
        let tier = tier.as_str();
        let writes =
            |outcome: &'static str| counter!("kv_writes_total", "tier" => tier, "outcome" => outcome);
        Self {
            bytes: gauge!("kv_bytes", "tier" => tier),
            entries: gauge!("kv_entries", "tier" => tier),
            evictions: counter!("kv_evictions_total", "tier" => tier),
            damaged: counter!("kv_damaged_total", "tier" => tier),
            unreadable: counter!("kv_unreadable_total", "tier" => tier),
            written: writes("ok"),
            failed: writes("failed"),
            dropped: writes("dropped"),
            too_large: writes("too_large"),
            failing: gauge!("kv_failing", "tier" => tier),
        }
    }

    fn set_stats(&self, stats: TierStats) {
        self.bytes.set(stats.bytes as f64);
        self.entries.set(stats.entries as f64);
    }

    /// Sets the gauge that says whether the last write failed.
    fn set_failing(&self, failing: bool) {
        self.failing.set(if failing { 1.0 } else { 0.0 });
    }
}
