//! Blocks on this machine: a memory tier over a disk tier, each bounded in bytes.
//! Knows nothing of what a block holds, nor of the tier that machines share.

mod bounded;
mod directory;
mod disk;
mod error;
mod memory;
mod meters;
mod record;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use self::disk::Disk;
use self::memory::Memory;
use super::key::BlockKey;

pub use self::error::LocalError;

/// Bounds and place of the tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSettings {
    /// Bytes of blocks in memory, with what it costs to keep them; 0: none.
    pub memory_bytes_max: u64,
    /// Bytes on disk, as the file system counts them; 0: no disk tier.
    pub disk_bytes_max: u64,
    /// Bytes of blocks that wait to be written to disk. They may have left the memory tier: memory of their own.
    pub write_queue_bytes_max: u64,
    /// The disk tier's directory; none: no disk tier.
    pub dir: Option<PathBuf>,
}

/// Where a block was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TierName {
    /// In memory.
    Memory,
    /// On disk.
    Disk,
}

impl TierName {
    /// As metrics call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// A block and where it was found.
pub type Hit = (Bytes, TierName);

/// What a tier holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Blocks.
    pub entries: u64,
    /// Their bytes, with what it costs to keep them.
    pub bytes: u64,
}

/// What both tiers hold now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalStats {
    /// In memory.
    pub memory: TierStats,
    /// On disk.
    pub disk: TierStats,
}

/// The two tiers. A clone is another handle on the same ones. The last one to go waits for the write queue and lets go of the
/// directory.
///
/// A key names one content for good (it is a hash of all that the block depends on): a block that is on disk already is not
/// written again.
#[derive(Clone)]
pub struct LocalTiers {
    memory: Arc<Memory>,
    disk: Option<Arc<Disk>>,
}

impl LocalTiers {
    /// Opens the directory, which no other process may have open, and finds the blocks in it. Needs no async runtime. Metrics
    /// go to the recorder that is installed by now.
    ///
    /// # Errors
    /// [`LocalError`] names the directory and says what to do. A full disk is none: the tier then waits for room.
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

    /// What [`Self::open`] would say of a directory, as far as it can be seen without changing anything in it.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn inspect(dir: &std::path::Path) -> Result<(), LocalError> {
        directory::Directory::inspect(dir)
    }

    /// The block, if it is in memory: no I/O, no copy. The disk tier takes it as used, too.
    pub fn get_resident(&self, key: &BlockKey) -> Option<Bytes> {
        let bytes = self.memory.get(key)?;
        if let Some(disk) = &self.disk {
            disk.touch(key);
        }
        Some(bytes)
    }

    /// Whether the block is on disk, as far as is known without looking.
    pub fn has_on_disk(&self, key: &BlockKey) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.has(key))
    }

    /// The block from the first tier that has it.
    pub async fn get(&self, key: &BlockKey) -> Option<Hit> {
        self.get_many(std::slice::from_ref(key)).await.pop().flatten()
    }

    /// For each key, in order, the block from the first tier that has it. What memory lacks is read from disk by several
    /// threads at once. It is not kept in memory: the caller checks it first, see [`Self::promote`]. All hits are in memory
    /// together, whatever the memory tier's bound: ask for as many as there is room for. Runs on any executor.
    pub async fn get_many(&self, keys: &[BlockKey]) -> Vec<Option<Hit>> {
        let resident = |key| self.get_resident(key).map(|bytes| (bytes, TierName::Memory));
        let mut found: Vec<Option<Hit>> = keys.iter().map(resident).collect();
        let Some(disk) = &self.disk else { return found };
        let (sender, mut reads) = mpsc::unbounded_channel();
        for (at, key) in keys.iter().enumerate().filter(|(at, _)| found[*at].is_none()) {
            let sender = sender.clone();
            // An error: the caller has gone.
            disk.read_later(*key, move |bytes| drop(sender.send((at, bytes))));
        }
        drop(sender);
        while let Some((at, bytes)) = reads.recv().await {
            found[at] = Some((bytes, TierName::Disk));
        }
        found
    }

    /// Keeps a block in memory that was read from disk, once the caller has checked it. Never waits.
    pub fn promote(&self, key: BlockKey, bytes: Bytes) {
        self.memory.insert(key, bytes);
    }

    /// Keeps the block: in memory now, on disk in a while. Never waits; when the write queue is full, the block is in memory
    /// only. `bytes` should be an allocation of its own: a slice keeps alive, uncounted, all of what it is a slice of.
    pub fn insert(&self, key: BlockKey, bytes: Bytes) {
        if let Some(disk) = &self.disk {
            disk.write_later(key, bytes.clone());
        }
        self.memory.insert(key, bytes);
    }

    /// Forgets the block in both tiers. An insert after this one is kept.
    pub fn remove(&self, key: &BlockKey) {
        self.memory.remove(key);
        if let Some(disk) = &self.disk {
            disk.remove(key);
        }
    }

    /// Returns when every insert before it is on disk, or has failed and been counted. What is on disk survives the end of
    /// the process, however it ends; it is not synced, so a power cut may lose it (never damage what is served).
    pub async fn flush(&self) {
        if let Some(disk) = &self.disk {
            disk.flush().await;
        }
    }

    /// Flushes and stops writing; what is inserted later is kept in memory only.
    pub async fn close(&self) {
        if let Some(disk) = &self.disk {
            disk.close().await;
        }
    }

    /// As [`Self::close`], for `patience` at most: what is not written by then is given up, and the last handle to go does
    /// not wait for it. To be called within a Tokio runtime.
    pub async fn close_within(&self, patience: Duration) {
        if let Some(disk) = &self.disk {
            disk.close_within(patience).await;
        }
    }

    /// What the tiers hold now.
    pub fn stats(&self) -> LocalStats {
        LocalStats {
            memory: self.memory.stats(),
            disk: self.disk.as_ref().map_or(TierStats::default(), |disk| disk.stats()),
        }
    }
}
