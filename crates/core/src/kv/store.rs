//! Where blocks are found: the tiers in turn, then the requests that are reading them right now.
//! Knows neither how a chunk is read nor what its block is for.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use metrics::counter;
use schemars::JsonSchema;
use serde::Serialize;

use super::block::{BadBlock, Block};
use super::flights::{Flight, Flights, Leader, Outcome, Role, Wanted};
use super::key::BlockKey;

/// Chunks that a request claims at a time. Who asks for one of them waits for these at most, not for all of a large request;
/// and what a request may not have is refused before all of it is in memory.
const PIECE: usize = 64;

/// Blocks that can be had, and how to have each made only once.
pub struct KvStore {
    flights: Arc<Flights>,
    tiers: Arc<dyn Tiers>,
}

/// Where a block came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Memory.
    Memory,
    /// Disk.
    Disk,
    /// The tier that sidecars share.
    Shared,
    /// Another request that was reading it.
    Joined,
    /// This request.
    Read,
}

impl Source {
    /// Its name in metrics.
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

/// How many blocks of a request came from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Sources {
    /// From memory.
    pub memory: usize,
    /// From disk.
    pub disk: usize,
    /// From the tier that sidecars share.
    pub shared: usize,
    /// From another request that was reading them.
    pub joined: usize,
    /// Read by this request.
    pub read: usize,
}

/// What keeps blocks. Implementations bound what they keep, and compare checksums: a block that is not what was written is a miss.
/// A matching checksum does not make a block safe to use; the store checks that, see [`Tiers::accept`].
pub trait Tiers: Send + Sync {
    /// A block in memory; must not wait. Only blocks that were given to [`Tiers::keep`] or [`Tiers::accept`] are in memory.
    fn resident(&self, key: &BlockKey) -> Option<Bytes>;

    /// Whether this machine has a block that is not in memory, as far as is known without looking; must not wait.
    fn at_hand(&self, _: &BlockKey) -> bool {
        false
    }

    /// Blocks that are not in memory, from wherever else they are kept, in the order of `keys`; may wait. Their bytes may have
    /// been written by another process: they are kept nowhere else until [`Tiers::accept`] or [`Tiers::remove`] is called.
    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, Source)>>;

    /// Keeps a block that [`Tiers::fetch`] gave, now that the store has checked it; must not wait.
    fn accept(&self, _: BlockKey, _: Bytes, _: Source) {}

    /// Keeps a block; must not wait.
    fn keep(&self, key: BlockKey, bytes: Bytes);

    /// Drops what turned out not to be a block.
    fn remove(&self, key: &BlockKey);
}

/// Keeps nothing. Chunks asked for at the same time are still read once.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTiers;

impl Tiers for NoTiers {
    fn resident(&self, _: &BlockKey) -> Option<Bytes> {
        None
    }

    fn fetch(&self, keys: &[BlockKey]) -> Vec<Option<(Bytes, Source)>> {
        vec![None; keys.len()]
    }

    fn keep(&self, _: BlockKey, _: Bytes) {}

    fn remove(&self, _: &BlockKey) {}
}

/// What a request is asked to read.
pub struct Unread<'a> {
    /// Chunks to read now; there may be none.
    pub claims: &'a [Claim],
    /// Chunks of the request that come after them and will probably have to be read, too, by their places in it.
    pub later: &'a [usize],
    /// Tokens of the request's blocks that are there.
    pub known_tokens: usize,
}

/// A chunk that this request has to read, since nobody else has or does.
pub struct Claim {
    index: usize,
    leader: Leader,
    tiers: Arc<dyn Tiers>,
}

impl KvStore {
    /// A store over `tiers`.
    pub fn new(tiers: Arc<dyn Tiers>) -> Self {
        Self { flights: Arc::default(), tiers }
    }

    /// A store that keeps nothing; chunks asked for at the same time are still read once.
    pub fn without_tiers() -> Self {
        Self::new(Arc::new(NoTiers))
    }

    /// The blocks of `keys`, `PIECE` after `PIECE`. Those that no tier has and nobody reads are claimed, and `read` is
    /// called to land them; it is called without claims, too, so that it can refuse what is too much. What a tier has under the
    /// key of chunk `i` counts only if `check(i, block, source)` finds nothing wrong with it: others can write to a disk or a
    /// server. A block from memory has been checked before. A block is left out only when `wanted` said that nobody waits for it.
    ///
    /// # Errors
    /// What `read` reports.
    pub fn get<E>(
        &self,
        keys: &[BlockKey],
        wanted: Wanted,
        check: impl Fn(usize, &Block, Source) -> Result<(), BadBlock>,
        read: impl Fn(Unread) -> Result<(), E>,
    ) -> Result<(Vec<Option<Block>>, Sources), E> {
        let mut found = Found { blocks: vec![None; keys.len()], sources: Sources::default() };
        for (index, key) in keys.iter().enumerate() {
            let Some(bytes) = self.tiers.resident(key) else { continue };
            if let Some(block) =
                self.parse(key, (bytes, Source::Memory), |block| check(index, block, Source::Memory))
            {
                found.put(&[index], block, Source::Memory);
            }
        }
        // A chunk may stand in a request twice.
        let mut missing: HashMap<BlockKey, Vec<usize>> = HashMap::new();
        let mut order: Vec<(BlockKey, usize)> = Vec::new();
        for (index, key) in keys.iter().enumerate().filter(|(index, _)| found.blocks[*index].is_none()) {
            let indices = missing.entry(*key).or_default();
            if indices.is_empty() {
                order.push((*key, index));
            }
            indices.push(index);
        }
        // Those behind the first piece that nobody here has or reads, by their places in `order`.
        let away = |at: &usize| !self.tiers.at_hand(&order[*at].0) && !self.flights.has(&order[*at].0);
        let away: Vec<usize> = (PIECE.min(order.len())..order.len()).filter(away).collect();
        let later: Vec<usize> = away.iter().map(|&at| order[at].1).collect();
        for (n, piece) in order.chunks(PIECE).enumerate() {
            let mut missing = piece.iter().filter_map(|(key, _)| missing.remove_entry(key)).collect();
            let behind = away.partition_point(|&at| at < (n + 1) * PIECE);
            self.get_piece(&mut missing, &later[behind..], &mut found, &wanted, &check, &read)?;
        }
        found.count();
        Ok((found.blocks, found.sources))
    }

    /// Finds or reads what is `missing`, in as many turns as others give up what was waited for.
    fn get_piece<E>(
        &self,
        missing: &mut HashMap<BlockKey, Vec<usize>>,
        later: &[usize],
        found: &mut Found,
        wanted: &Wanted,
        check: &impl Fn(usize, &Block, Source) -> Result<(), BadBlock>,
        read: impl Fn(Unread) -> Result<(), E>,
    ) -> Result<(), E> {
        while !missing.is_empty() && wanted() {
            let (claims, followed) = self.join(missing, wanted);
            let away = claims.iter().filter(|claim| !self.tiers.at_hand(&claim.leader.key())).count();
            let claims = self.fetch(claims, check, missing, found);
            // What other sidecars have is known when it has been asked for: of later chunks as much as of these.
            let unread = (later.len() * claims.len()).div_ceil(away.max(1)).min(later.len());
            let known_tokens = found.blocks.iter().flatten().map(Block::tokens).sum();
            read(Unread { claims: &claims, later: &later[..unread], known_tokens })?;
            for claim in claims {
                if let Some(block) = claim.leader.landed() {
                    found.put(&missing.remove(&claim.leader.key()).unwrap_or_default(), block, Source::Read);
                }
            }
            for (key, flight) in followed {
                if let Some(Outcome::Landed(block)) = flight.wait(wanted) {
                    found.put(&missing.remove(&key).unwrap_or_default(), block, Source::Joined);
                }
            }
        }
        Ok(())
    }

    /// Leads or follows the flight of every missing block.
    fn join(
        &self,
        missing: &HashMap<BlockKey, Vec<usize>>,
        wanted: &Wanted,
    ) -> (Vec<Claim>, Vec<(BlockKey, Arc<Flight>)>) {
        let (mut claims, mut followed) = (Vec::new(), Vec::new());
        for (key, indices) in missing {
            match self.flights.join(*key, wanted) {
                Role::Leader(leader) => {
                    claims.push(Claim { index: indices[0], leader, tiers: Arc::clone(&self.tiers) });
                }
                Role::Follower(flight) => followed.push((*key, flight)),
            }
        }
        // In the order of the request, whatever the order of the map.
        claims.sort_by_key(|claim| claim.index);
        (claims, followed)
    }

    /// Lands what a tier has; gives back what none has.
    fn fetch(
        &self,
        claims: Vec<Claim>,
        check: &impl Fn(usize, &Block, Source) -> Result<(), BadBlock>,
        missing: &mut HashMap<BlockKey, Vec<usize>>,
        found: &mut Found,
    ) -> Vec<Claim> {
        if claims.is_empty() {
            return claims;
        }
        let keys: Vec<BlockKey> = claims.iter().map(|claim| claim.leader.key()).collect();
        let fetched = self.tiers.fetch(&keys);
        let mut unread = Vec::new();
        for (claim, fetched) in claims.into_iter().zip(fetched) {
            let key = claim.leader.key();
            // Another request may have landed it between the look into memory and the flight.
            let fetched = fetched.or_else(|| Some((self.tiers.resident(&key)?, Source::Memory)));
            let block = fetched.and_then(|(bytes, source)| {
                let check = |block: &Block| check(claim.index, block, source);
                Some((self.parse(&key, (bytes, source), check)?, source))
            });
            match block {
                Some((block, source)) => {
                    self.tiers.accept(key, block.bytes().clone(), source);
                    claim.leader.land(block.clone());
                    found.put(&missing.remove(&key).unwrap_or_default(), block, source);
                }
                None => unread.push(claim),
            }
        }
        unread
    }

    /// The block in what a tier gave. What is no block, or fails `check`, is counted and removed from the tiers of this machine; the
    /// shared tier gets the right block once the chunk has been read.
    fn parse(
        &self,
        key: &BlockKey,
        (bytes, source): (Bytes, Source),
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

impl Claim {
    /// Which of the keys asked for it is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether any request still waits for it.
    pub fn is_wanted(&self) -> bool {
        self.leader.is_wanted()
    }

    /// The block, for all tiers and for everyone who waits.
    pub fn land(&self, block: Block) {
        self.tiers.keep(self.leader.key(), block.bytes().clone());
        self.leader.land(block);
    }
}

/// Blocks of a request, as they come in.
struct Found {
    blocks: Vec<Option<Block>>,
    sources: Sources,
}

impl Found {
    fn put(&mut self, indices: &[usize], block: Block, source: Source) {
        let count = match source {
            Source::Memory => &mut self.sources.memory,
            Source::Disk => &mut self.sources.disk,
            Source::Shared => &mut self.sources.shared,
            Source::Joined => &mut self.sources.joined,
            Source::Read => &mut self.sources.read,
        };
        *count += indices.len();
        indices.iter().for_each(|&index| self.blocks[index] = Some(block.clone()));
    }

    fn count(&self) {
        let Sources { memory, disk, shared, joined, read } = self.sources;
        for (source, blocks) in
            [("memory", memory), ("disk", disk), ("shared", shared), ("joined", joined), ("read", read)]
        {
            counter!("kv_lookups_total", "source" => source).increment(blocks as u64);
        }
    }
}

#[cfg(test)]
mod tests;
