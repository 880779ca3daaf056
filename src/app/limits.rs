//! What bounds the daemon apart from its settings.

use std::time::Duration;

use thresher_core::pipeline::validate::RequestLimits;

use crate::access::TENANT_COUNT_MAX;
use crate::api::BodyLimits;
use crate::config::{Admission, Config, MemoryShares};
use crate::http::{BODY_BYTES_MAX, Prefilter, READ_MAX};
use crate::middleware::settings::MiddlewareLimits;

/// Limits that no operator sets: parts of `memory_bytes_max`, and constants that have their reason where they are defined. Tests and measurements
/// change some of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    pub memory: MemoryShares,
    /// The bytes of a request's body, for requests that the daemon answers itself.
    pub body_bytes_max: usize,
    /// How long the head of a request may take to arrive, and again the first byte of its body.
    pub read_max: Duration,
    pub deadline_max: Duration,
    pub bodies: BodyLimits,
    pub prefilter: Prefilter,
    pub middleware: MiddlewareLimits,
    pub tenant_count_max: usize,
}

impl Limits {
    /// The limits of a daemon with these settings and this number of tenants.
    pub fn new(config: &Config, tenants: usize) -> Self {
        let memory = config.memory_shares(tenants);
        let requests = RequestLimits {
            block_bytes_max: memory.blocks_of_requests,
            stream_block_bytes_max: memory.blocks_of_streams,
            ..RequestLimits::default()
        };
        let middleware = MiddlewareLimits::default();
        Self {
            memory,
            body_bytes_max: memory.body_bytes_max(BODY_BYTES_MAX),
            read_max: READ_MAX,
            deadline_max: Admission::DEADLINE_MAX,
            bodies: BodyLimits { requests, ..BodyLimits::default() },
            prefilter: Prefilter::default(),
            middleware: MiddlewareLimits {
                body_bytes_max: memory.body_bytes_max(middleware.body_bytes_max),
                ..middleware
            },
            tenant_count_max: TENANT_COUNT_MAX,
        }
    }

    /// Writes to the log how `memory_bytes_max` is divided.
    pub fn log(&self, memory_bytes_max: u64) {
        let memory = &self.memory;
        tracing::info!(
            memory_bytes_max,
            blocks = memory.blocks,
            blocks_of_requests = memory.blocks_of_requests,
            blocks_of_streams = memory.blocks_of_streams,
            block_writes = memory.block_writes,
            bodies = memory.bodies,
            responses = memory.responses,
            registered_chunks_per_tenant = memory.chunks,
            kv_exports_per_tenant = memory.kv_exports,
            middleware_body = self.middleware.body_bytes_max,
            recent_requests_per_tenant = memory.recent_requests,
            "memory is divided"
        );
    }
}
