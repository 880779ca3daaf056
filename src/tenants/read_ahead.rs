//! Reads the registered chunks of tenants into the cache before requests need them: one tenant at a time, and requests take precedence.

use std::sync::Arc;
use std::time::Duration;

use thresher_core::domain::Chunk;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};
use thresher_registry::warm::{IsCurrent, ReadError, Reader};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::admission::Admission;
use crate::error::ErrorCode;

/// How long reading waits after requests have had the memory.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A lock that lets one tenant read ahead at a time, first in, first out. No tenant waits until another one has read all its chunks, and
/// a request finds the model busy with at most one batch of read-ahead, however many tenants there are.
pub struct ReadAheadLock {
    semaphore: Semaphore,
    runtime: Handle,
}

impl ReadAheadLock {
    /// Creates the lock, not held. Threads that wait for it block on `runtime`.
    pub fn new(runtime: Handle) -> Self {
        Self { semaphore: Semaphore::new(1), runtime }
    }
}

/// Reads the registered chunks of one tenant ahead.
pub struct ReadAhead {
    pipeline: Arc<Pipeline>,
    admission: Admission,
    lock: Arc<ReadAheadLock>,
    cancel: Cancel,
}

impl ReadAhead {
    /// Creates a reader that uses this tenant's `pipeline` and is busy while requests wait for a permit of `admission`.
    pub fn new(pipeline: Arc<Pipeline>, admission: Admission, lock: Arc<ReadAheadLock>) -> Self {
        Self { pipeline, admission, lock, cancel: Cancel::default() }
    }
}

impl Reader for ReadAhead {
    fn read(&self, chunks: &[Arc<Chunk>], is_current: IsCurrent) -> Result<Vec<Vec<f32>>, ReadError> {
        let held = self.lock.runtime.block_on(self.lock.semaphore.acquire());
        let _held = held.expect("the semaphore is never closed");
        let cancel = self.cancel.while_wanted(is_current);
        let mut read = self.pipeline.mean_vectors(chunks, &cancel);
        // Requests hold memory for moments only, and that they hold it is no fault of these chunks.
        while matches!(read, Err(PipelineError::MemoryTaken)) && cancel.go_on() {
            std::thread::sleep(RETRY_DELAY);
            read = self.pipeline.mean_vectors(chunks, &cancel);
        }
        read.map_err(|error| ReadError { reason: ErrorCode::from(&error).to_string() })
    }

    fn is_busy(&self) -> bool {
        self.admission.waiting() > 0
    }

    fn stop(&self) {
        self.cancel.cancel();
    }
}
