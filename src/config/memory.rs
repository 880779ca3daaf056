//! How `memory_bytes_max` is divided.

use super::Config;

/// Parts of `memory_bytes_max`, which is 32 of them. Cached blocks get most: they are what makes a request warm.
const PARTS: u64 = 32;
const BLOCKS: u64 = 10;
const BLOCKS_OF_REQUESTS: u64 = 7;
const BLOCKS_OF_STREAMS: u64 = 1;
const BLOCK_WRITES: u64 = 1;
const BODIES: u64 = 4;
const RESPONSES: u64 = 4;
const CHUNKS: u64 = 2;
const KV_EXPORTS: u64 = 2;
const RECENT_REQUESTS: u64 = 1;

/// Bytes of memory for bodies for each byte of the largest body: a body counts twice, and one tenant may take half.
const BODIES_PER_BODY: usize = 4;

/// The bytes of memory that each cache and buffer may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryShares {
    /// Cached blocks, the overhead of the cache included.
    pub blocks: u64,
    /// Blocks that wait to be written to disk. A block that does not fit is cached in memory only.
    pub block_writes: u64,
    /// The blocks of all requests, as one model reads them.
    pub blocks_of_requests: usize,
    /// The same for attributions of streams, which last for minutes.
    pub blocks_of_streams: usize,
    /// The bodies of all requests while they are read and worked on. Each body counts twice, and one tenant may take half.
    pub bodies: usize,
    /// Responses that clients have not read yet.
    pub responses: usize,
    /// Registered chunks of one tenant.
    pub chunks: usize,
    /// Exports of keys and values of one tenant.
    pub kv_exports: u64,
    /// Recent requests of one tenant.
    pub recent_requests: u64,
}

impl Config {
    /// Divides `memory_bytes_max`. Registered chunks, recent requests and exports of keys and values are kept for each tenant apart, so
    /// their shares are divided by the number of `tenants`.
    pub fn memory_shares(&self, tenants: usize) -> MemoryShares {
        let tenants = tenants.max(1) as u64;
        let share = |parts: u64| self.memory_bytes_max / PARTS * parts;
        let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let models = 1 + u64::from(self.model.has_exporter());
        MemoryShares {
            blocks: share(BLOCKS),
            block_writes: share(BLOCK_WRITES),
            blocks_of_requests: in_memory(share(BLOCKS_OF_REQUESTS) / models),
            blocks_of_streams: in_memory(share(BLOCKS_OF_STREAMS) / models),
            bodies: in_memory(share(BODIES)),
            responses: in_memory(share(RESPONSES)),
            chunks: in_memory(share(CHUNKS) / tenants),
            kv_exports: share(KV_EXPORTS) / tenants,
            recent_requests: share(RECENT_REQUESTS) / tenants,
        }
    }
}

impl MemoryShares {
    /// Returns the bytes that one body may have: `most`, or less if there is little memory.
    pub fn body_bytes_max(&self, most: usize) -> usize {
        most.min(self.bodies / BODIES_PER_BODY)
    }
}
