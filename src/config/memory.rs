//! How `memory_bytes_max` is divided.

use super::Config;

/// Parts of `memory_bytes_max`, which is 32 of them. Cached blocks get most: they are what makes a request warm.
const PARTS: u64 = 32;
const BLOCKS: u64 = 10;
const BLOCKS_OF_REQUESTS: u64 = 7;
const BLOCKS_OF_STREAMS: u64 = 1;
const BLOCK_WRITES: u64 = 1;
const BODIES: u64 = 4;
const ANSWERS: u64 = 4;
const CHUNKS: u64 = 2;
const KV_EXPORTS: u64 = 2;
const HANDLES: u64 = 1;

/// The largest body of a request to an upstream, images included.
const MIDDLEWARE_BODY_BYTES_MAX: usize = 32 << 20;

/// Bytes of memory for bodies for each byte of the largest body: a body counts twice, and one tenant may take half.
pub(super) const BODIES_PER_BODY: usize = 4;

impl Config {
    /// Gives each cache and buffer its share of `memory_bytes_max`. Registered chunks, recent requests and exports of keys and values are kept for each
    /// tenant apart, so their shares are divided by the number of `tenants`.
    pub fn divide_memory(&mut self, tenants: usize) {
        let tenants = tenants.max(1) as u64;
        let share = |parts: u64| self.memory_bytes_max / PARTS * parts;
        let in_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        self.blocks.memory_bytes_max = share(BLOCKS);
        self.blocks.write_queue_bytes_max = share(BLOCK_WRITES);
        let models = 1 + u64::from(self.model.has_exporter());
        self.limits.block_bytes_max = in_memory(share(BLOCKS_OF_REQUESTS) / models);
        self.limits.stream_block_bytes_max = in_memory(share(BLOCKS_OF_STREAMS) / models);
        self.http.bodies_bytes_max = in_memory(share(BODIES));
        self.http.answers_bytes_max = in_memory(share(ANSWERS));
        self.registry.cache_bytes_max = in_memory(share(CHUNKS) / tenants);
        self.kv_export.bytes_max = share(KV_EXPORTS) / tenants;
        self.handles.bytes_max = share(HANDLES) / tenants;
        self.middleware.body_bytes_max =
            MIDDLEWARE_BODY_BYTES_MAX.min(self.http.bodies_bytes_max / BODIES_PER_BODY);
    }

    /// Writes the shares to the log.
    pub fn log_memory(&self) {
        tracing::info!(
            memory_bytes_max = self.memory_bytes_max,
            blocks = self.blocks.memory_bytes_max,
            blocks_of_requests = self.limits.block_bytes_max,
            blocks_of_streams = self.limits.stream_block_bytes_max,
            block_writes = self.blocks.write_queue_bytes_max,
            bodies = self.http.bodies_bytes_max,
            responses = self.http.answers_bytes_max,
            registered_chunks_per_tenant = self.registry.cache_bytes_max,
            kv_exports_per_tenant = self.kv_export.bytes_max,
            middleware_body = self.middleware.body_bytes_max,
            recent_requests_per_tenant = self.handles.bytes_max,
            "memory is divided"
        );
    }
}
