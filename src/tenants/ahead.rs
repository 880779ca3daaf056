//! Reads a tenant's registered chunks ahead through the pipeline of its requests, behind them, and in turn with other tenants'.

use std::sync::Arc;

use thresher_core::domain::Chunk;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::cancel::Cancel;
use thresher_registry::warm::{Reader, Wanted};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::admission::Admission;
use crate::error::ErrorCode;

/// Whose turn it is. First come, first served: of many tenants with much to read none waits for all that another has, and a
/// request that comes in between finds the model busy with one piece, however many tenants there are.
pub struct Turn {
    semaphore: Semaphore,
    runtime: Handle,
}

impl Turn {
    /// Nobody's yet.
    pub fn new(runtime: Handle) -> Self {
        Self { semaphore: Semaphore::new(1), runtime }
    }
}

/// Reads for one tenant.
pub struct Ahead {
    pipeline: Arc<Pipeline>,
    busy: Admission,
    turn: Arc<Turn>,
    cancel: Cancel,
}

impl Ahead {
    /// Through this tenant's `pipeline`, behind those who wait at the door.
    pub fn new(pipeline: Arc<Pipeline>, busy: Admission, turn: Arc<Turn>) -> Self {
        Self { pipeline, busy, turn, cancel: Cancel::default() }
    }
}

impl Reader for Ahead {
    fn read(&self, chunks: &[Arc<Chunk>], wanted: Wanted) -> Result<(), String> {
        let turn = self.turn.runtime.block_on(self.turn.semaphore.acquire());
        let _turn = turn.expect("it is never closed");
        self.pipeline
            .warm(chunks, &self.cancel.while_wanted(wanted))
            .map(drop)
            .map_err(|error| ErrorCode::from(&error).to_string())
    }

    fn is_busy(&self) -> bool {
        self.busy.waiting() > 0
    }

    fn stop(&self) {
        self.cancel.cancel();
    }
}
