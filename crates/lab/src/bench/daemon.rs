//! The daemon inside the bench's process, on a free loopback port, with its tiers in a temporary directory.
//! The caller provides the router and the accept loop; this module does not know the requests.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use thresher_core::kv::local::{LocalStats, LocalTiers};
use thresher_core::pipeline::Pipeline;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// How long requests in flight may take after the daemon is dropped.
const STOP: Duration = Duration::from_secs(5);

/// The parts of a daemon.
pub struct Parts {
    /// Runtime that serves requests.
    pub runtime: Runtime,
    /// Longest deadline that a request may ask for.
    pub deadline_max: Duration,
    /// Pipeline that answers requests.
    pub pipeline: Arc<Pipeline>,
    /// The pipeline's local cache tiers.
    pub local: LocalTiers,
    /// Directory of the tiers, removed with the daemon.
    pub dir: TempDir,
}

/// A daemon that serves requests until it is dropped.
pub struct Daemon {
    address: SocketAddr,
    // Fields are dropped in this order: requests in flight first, then what they need, then the directory.
    runtime: Option<Runtime>,
    deadline_max: Duration,
    pipeline: Arc<Pipeline>,
    local: LocalTiers,
    dir: TempDir,
}

impl Daemon {
    /// Listens on a free port and runs the future that `serve` returns for the listener.
    ///
    /// # Errors
    /// Fails if the system provides no port.
    pub fn start<S>(parts: Parts, serve: impl FnOnce(TcpListener) -> S) -> anyhow::Result<Self>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let Parts { runtime, deadline_max, pipeline, local, dir } = parts;
        let listener =
            runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).context("no port to listen on")?;
        let address = listener.local_addr()?;
        runtime.spawn(serve(listener));
        Ok(Self { address, runtime: Some(runtime), deadline_max, pipeline, local, dir })
    }

    /// Returns the address that the daemon listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the directory of the tiers, which is removed with the daemon.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `task` on the daemon's runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.as_ref().expect("it is taken on drop only").spawn(task);
    }

    /// Returns the pipeline that answers requests.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Returns the longest deadline that a request may ask for, in milliseconds.
    pub fn deadline_ms_max(&self) -> u64 {
        self.deadline_max.as_millis() as u64
    }

    /// Returns the current contents of the local tiers, in entries and bytes.
    pub fn stats(&self) -> LocalStats {
        self.local.stats()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(STOP);
        }
    }
}
