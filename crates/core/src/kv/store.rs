//! The block store: finds the blocks of a request in the tiers or in concurrent requests, and has missing
//! ones read once. Knows neither how the model reads a chunk nor what a block is used for.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use metrics::counter;
use schemars::JsonSchema;
use serde::Serialize;

use super::block::{BadBlock, Block};
use super::key::{BlockKey, TenantTag};
use super::single_flight::{CallerWaits, Flight, Flights, Leader, Outcome, Role};

/// A store of blocks over tiers. Concurrent requests for the same missing block have its chunk read once.
pub struct KvStore {
    flights: Arc<Flights>,
    tiers: Arc<dyn Tiers>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOrigin {
    Memory,
    Disk,
    /// The tier that sidecars share.
    Shared,
    /// Another request, which was having the model read the chunk.
    Joined,
    /// The model, which read the chunk for this request.
    Read,
}

impl BlockOrigin {
    /// Returns the name of the source in metrics and logs.
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Shared => "shared",
            Self::Joined => "joined",
            Self::Read => "read",
        }
    }
}

/// How many blocks of a request came from each source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct BlockOrigins {
    /// Blocks from the memory tier.
    pub memory: usize,
    /// Blocks from the disk tier.
    pub disk: usize,
    /// Blocks from the tier that sidecars share.
    pub shared: usize,
    /// Blocks that the model read for another request at the same time.
    pub joined: usize,
    /// Blocks that the model read for this request.
    pub read: usize,
}

impl std::ops::AddAssign for BlockOrigins {
    fn add_assign(&mut self, other: Self) {
        let Self { memory, disk, shared, joined, read } = other;
        self.memory += memory;
        self.disk += disk;
        self.shared += shared;
        self.joined += joined;
        self.read += read;
    }
}

/// The tiers that store blocks. An implementation limits what it stores, and compares checksums: a block
/// whose bytes differ from those that were written is a miss. A matching checksum does not make a block safe
/// to use, because another process may have written it. The store checks the contents before it calls
/// [`Tiers::accept`].
pub trait Tiers: Send + Sync {
    /// Returns a block that is in memory. It must not wait. Only blocks that were passed to [`Tiers::keep`]
    /// or [`Tiers::accept`] are in memory.
    fn resident(&self, key: &BlockKey) -> Option<Bytes>;

    /// Returns whether this machine has a block outside of memory (on disk), as far as is known without I/O.
    /// It must not wait.
    fn has_locally(&self, _: &BlockKey) -> bool {
        false
    }

    /// Returns blocks that are not in memory from the other tiers, in the order of `keys`. It may wait for
    /// I/O. Another process may have written the bytes, so they are not copied to other tiers unless
    /// [`Tiers::accept`] is called.
    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, BlockOrigin)>>;

    /// Copies a block that [`Tiers::fetch`] returned to the faster tiers, after the store has checked it. It
    /// must not wait.
    fn accept(&self, _: BlockKey, _: Bytes, _: BlockOrigin) {}

    /// Stores a new block in all tiers. It must not wait.
    fn keep(&self, key: BlockKey, bytes: Bytes);

    /// Removes an invalid block from the tiers of this machine.
    fn remove(&self, key: &BlockKey);

    /// Removes a block from all tiers, because its text was deleted. It must not wait.
    fn forget(&self, key: &BlockKey) {
        self.remove(key);
    }

    /// Removes all blocks of a tenant from the tiers of this machine. Returns how many there were in the largest
    /// of them.
    fn forget_tenant(&self, _: TenantTag) -> usize {
        0
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct NoTiers;

impl Tiers for NoTiers {
    fn resident(&self, _: &BlockKey) -> Option<Bytes> {
        None
    }

    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, BlockOrigin)>> {
        vec![None; keys.len()]
    }

    fn keep(&self, _: BlockKey, _: Bytes) {}

    fn remove(&self, _: &BlockKey) {}
}

/// The chunks that the model must read for a request, and what is known about the rest of the request.
pub struct Unread<'a> {
    /// The chunks to read now; may be empty.
    pub pending: &'a [PendingChunk],
    /// Indices in the request of the chunks after the current batch that will probably have to be read, too.
    pub later: &'a [usize],
    /// The number of tokens in the blocks of the request that have been found or read.
    pub known_tokens: usize,
}

/// A chunk that the model must read for this request, because no tier has its block and no other request is
/// having it read.
pub struct PendingChunk {
    index: usize,
    leader: Leader,
    tiers: Arc<dyn Tiers>,
}

impl KvStore {
    pub fn new(tiers: Arc<dyn Tiers>) -> Self {
        Self { flights: Arc::default(), tiers }
    }

    /// Removes a block from all tiers, because its text was deleted.
    pub fn forget(&self, key: &BlockKey) {
        self.tiers.forget(key);
    }

    /// Removes all blocks of a tenant from the tiers of this machine; see [`Tiers::forget_tenant`].
    pub fn forget_tenant(&self, tenant: TenantTag) -> usize {
        self.tiers.forget_tenant(tenant)
    }

    /// Returns a store that keeps no blocks. Concurrent requests for the same chunk still have it read once.
    pub fn without_tiers() -> Self {
        Self::new(Arc::new(NoTiers))
    }

    /// Returns the blocks of `keys` that a tier has, without reading any or waiting for other requests.
    pub fn find(
        &self,
        keys: &[BlockKey],
        check: impl Fn(usize, &Block, BlockOrigin) -> Result<(), BadBlock>,
    ) -> (Vec<Option<Block>>, BlockOrigins) {
        let mut found = FoundBlocks { blocks: vec![None; keys.len()], sources: BlockOrigins::default() };
        let mut put = |index: usize, bytes: Bytes, source: BlockOrigin| {
            let block =
                self.parse(&keys[index], bytes, source, |block: &Block| check(index, block, source))?;
            found.put(&[index], block.clone(), source);
            Some(block)
        };
        let is_missing = |index: &usize| match self.tiers.resident(&keys[*index]) {
            Some(bytes) => put(*index, bytes, BlockOrigin::Memory).is_none(),
            None => true,
        };
        let missing: Vec<usize> = (0..keys.len()).filter(is_missing).collect();
        let wanted: Vec<BlockKey> = missing.iter().map(|&index| keys[index]).collect();
        let fetched = if wanted.is_empty() { Vec::new() } else { self.tiers.fetch(&wanted) };
        for (index, fetched) in missing.into_iter().zip(fetched) {
            let Some((bytes, source)) = fetched else { continue };
            if let Some(block) = put(index, bytes, source) {
                self.tiers.accept(keys[index], block.bytes().clone(), source);
            }
        }
        found.count_lookups();
        (found.blocks, found.sources)
    }

    /// Returns the blocks of `keys`, and how many came from each source. A block is `None` only if
    /// `caller_waits` returned false.
    ///
    /// The store works through the keys in batches of `keys_per_batch` keys, at least 1. For the chunks of a batch
    /// that no tier has and no other request is having read, it calls `read`, which completes each [`PendingChunk`]. It calls `read` for a
    /// batch without such chunks, too, so that `read` can refuse a request over its limits. A block of a tier
    /// under the key of chunk `i` is used only if `check(i, block, source)` accepts it, because other
    /// processes can write to a disk or a server. Blocks from memory have been checked before they were put
    /// there.
    ///
    /// # Errors
    /// Returns the first error of `read`.
    pub fn get<E>(
        &self,
        keys: &[BlockKey],
        keys_per_batch: usize,
        caller_waits: CallerWaits,
        check: impl Fn(usize, &Block, BlockOrigin) -> Result<(), BadBlock>,
        read: impl Fn(Unread) -> Result<(), E>,
    ) -> Result<(Vec<Option<Block>>, BlockOrigins), E> {
        let mut found = FoundBlocks { blocks: vec![None; keys.len()], sources: BlockOrigins::default() };
        for (index, key) in keys.iter().enumerate() {
            let Some(bytes) = self.tiers.resident(key) else { continue };
            if let Some(block) =
                self.parse(key, bytes, BlockOrigin::Memory, |block| check(index, block, BlockOrigin::Memory))
            {
                found.put(&[index], block, BlockOrigin::Memory);
            }
        }
        // The same chunk may occur in a request more than once.
        let mut missing: HashMap<BlockKey, Vec<usize>> = HashMap::new();
        let mut order: Vec<(BlockKey, usize)> = Vec::new();
        for (index, key) in keys.iter().enumerate().filter(|(index, _)| found.blocks[*index].is_none()) {
            let indices = missing.entry(*key).or_default();
            if indices.is_empty() {
                order.push((*key, index));
            }
            indices.push(index);
        }
        // Positions in `order`, after the first batch, of the blocks that are neither on this machine nor
        // being read.
        let is_absent =
            |at: &usize| !self.tiers.has_locally(&order[*at].0) && !self.flights.contains(&order[*at].0);
        let keys_per_batch = keys_per_batch.max(1);
        let absent: Vec<usize> = (keys_per_batch.min(order.len())..order.len()).filter(is_absent).collect();
        let later: Vec<usize> = absent.iter().map(|&at| order[at].1).collect();
        for (n, batch) in order.chunks(keys_per_batch).enumerate() {
            let mut missing = batch.iter().filter_map(|(key, _)| missing.remove_entry(key)).collect();
            let after_batch = absent.partition_point(|&at| at < (n + 1) * keys_per_batch);
            self.get_batch(&mut missing, &later[after_batch..], &mut found, &caller_waits, &check, &read)?;
        }
        found.count_lookups();
        Ok((found.blocks, found.sources))
    }

    /// Finds or reads the `missing` blocks of a batch. It repeats for as long as other requests abandon
    /// blocks that this one waited for.
    fn get_batch<E>(
        &self,
        missing: &mut HashMap<BlockKey, Vec<usize>>,
        later: &[usize],
        found: &mut FoundBlocks,
        caller_waits: &CallerWaits,
        check: &impl Fn(usize, &Block, BlockOrigin) -> Result<(), BadBlock>,
        read: impl Fn(Unread) -> Result<(), E>,
    ) -> Result<(), E> {
        while !missing.is_empty() && caller_waits() {
            let (pending, followed) = self.join(missing, caller_waits);
            let absent = pending.iter().filter(|chunk| !self.tiers.has_locally(&chunk.leader.key())).count();
            let pending = self.fetch(pending, check, missing, found);
            // How many later blocks the shared tier has is unknown until they are fetched. The estimate is
            // the share in this batch.
            let unread = (later.len() * pending.len()).div_ceil(absent.max(1)).min(later.len());
            let known_tokens = found.blocks.iter().flatten().map(Block::tokens).sum();
            read(Unread { pending: &pending, later: &later[..unread], known_tokens })?;
            for chunk in pending {
                if let Some(block) = chunk.leader.completed_block() {
                    found.put(
                        &missing.remove(&chunk.leader.key()).unwrap_or_default(),
                        block,
                        BlockOrigin::Read,
                    );
                }
            }
            for (key, flight) in followed {
                if let Some(Outcome::Completed(block)) = flight.wait(caller_waits) {
                    found.put(&missing.remove(&key).unwrap_or_default(), block, BlockOrigin::Joined);
                }
            }
        }
        Ok(())
    }

    /// Joins the flight of every missing block, as its leader or as a follower.
    fn join(
        &self,
        missing: &HashMap<BlockKey, Vec<usize>>,
        caller_waits: &CallerWaits,
    ) -> (Vec<PendingChunk>, Vec<(BlockKey, Arc<Flight>)>) {
        let (mut pending, mut followed) = (Vec::new(), Vec::new());
        for (key, indices) in missing {
            match self.flights.join(*key, caller_waits) {
                Role::Leader(leader) => {
                    pending.push(PendingChunk { index: indices[0], leader, tiers: Arc::clone(&self.tiers) });
                }
                Role::Follower(flight) => followed.push((*key, flight)),
            }
        }
        // The order of the map is arbitrary; pending chunks are in the order of the request.
        pending.sort_by_key(|chunk| chunk.index);
        (pending, followed)
    }

    /// Completes the pending chunks whose blocks a tier has. Returns the others.
    fn fetch(
        &self,
        pending: Vec<PendingChunk>,
        check: &impl Fn(usize, &Block, BlockOrigin) -> Result<(), BadBlock>,
        missing: &mut HashMap<BlockKey, Vec<usize>>,
        found: &mut FoundBlocks,
    ) -> Vec<PendingChunk> {
        if pending.is_empty() {
            return pending;
        }
        let keys: Vec<BlockKey> = pending.iter().map(|chunk| chunk.leader.key()).collect();
        let fetched = self.tiers.fetch(&keys);
        let mut unread = Vec::new();
        for (chunk, fetched) in pending.into_iter().zip(fetched) {
            let key = chunk.leader.key();
            // Another request may have completed the block after this one looked in memory and before it
            // joined the flight.
            let fetched = fetched.or_else(|| Some((self.tiers.resident(&key)?, BlockOrigin::Memory)));
            let block = fetched.and_then(|(bytes, source)| {
                let check = |block: &Block| check(chunk.index, block, source);
                Some((self.parse(&key, bytes, source, check)?, source))
            });
            match block {
                Some((block, source)) => {
                    self.tiers.accept(key, block.bytes().clone(), source);
                    chunk.leader.complete(block.clone());
                    found.put(&missing.remove(&key).unwrap_or_default(), block, source);
                }
                None => unread.push(chunk),
            }
        }
        unread
    }

    /// Parses and checks the bytes that a tier returned. An invalid block is counted and removed from the
    /// tiers of this machine; in the shared tier, it is overwritten once the model has read the chunk.
    fn parse(
        &self,
        key: &BlockKey,
        bytes: Bytes,
        source: BlockOrigin,
        check: impl Fn(&Block) -> Result<(), BadBlock>,
    ) -> Option<Block> {
        match Block::parse(bytes).and_then(|block| check(&block).map(|()| block)) {
            Ok(block) => Some(block),
            Err(error) => {
                counter!("kv_damaged_total", "tier" => source.name()).increment(1);
                tracing::warn!(%key, %error, tier = source.name(), "a cached block cannot be used; the model reads its chunk again");
                self.tiers.remove(key);
                None
            }
        }
    }
}

impl PendingChunk {
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns whether the caller of any request still waits for the block.
    pub fn is_wanted(&self) -> bool {
        self.leader.is_wanted()
    }

    /// Stores the block in the tiers and returns it to all requests that wait for it.
    pub fn complete(&self, block: Block) {
        self.tiers.keep(self.leader.key(), block.bytes().clone());
        self.leader.complete(block);
    }
}

/// The blocks of a request that have been found or read so far.
struct FoundBlocks {
    blocks: Vec<Option<Block>>,
    sources: BlockOrigins,
}

impl FoundBlocks {
    fn put(&mut self, indices: &[usize], block: Block, source: BlockOrigin) {
        let count = match source {
            BlockOrigin::Memory => &mut self.sources.memory,
            BlockOrigin::Disk => &mut self.sources.disk,
            BlockOrigin::Shared => &mut self.sources.shared,
            BlockOrigin::Joined => &mut self.sources.joined,
            BlockOrigin::Read => &mut self.sources.read,
        };
        *count += indices.len();
        indices.iter().for_each(|&index| self.blocks[index] = Some(block.clone()));
    }

    fn count_lookups(&self) {
        let BlockOrigins { memory, disk, shared, joined, read } = self.sources;
        for (source, blocks) in
            [("memory", memory), ("disk", disk), ("shared", shared), ("joined", joined), ("read", read)]
        {
            counter!("kv_lookups_total", "source" => source).increment(blocks as u64);
        }
    }
}

#[cfg(test)]
mod tests;
