//! The daemon in this process, on a free port of the loopback interface, over tiers in a directory that goes with it. Who starts it
//! brings the router and the accept loop; nothing is known here of what is asked of it.

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

/// What work in flight gets when the daemon is dropped.
const STOP: Duration = Duration::from_secs(5);

/// What a daemon is made of.
pub struct Parts {
    /// What requests run on.
    pub runtime: Runtime,
    /// The longest deadline that a request may name.
    pub deadline_max: Duration,
    /// What it answers with.
    pub pipeline: Arc<Pipeline>,
    /// The pipeline's tiers.
    pub local: LocalTiers,
    /// The directory that they are in.
    pub dir: TempDir,
}

/// A daemon that answers until it is dropped.
pub struct Daemon {
    address: SocketAddr,
    // Dropped in this order: work in flight, what it needs, the directory that this needs.
    runtime: Option<Runtime>,
    deadline_max: Duration,
    pipeline: Arc<Pipeline>,
    local: LocalTiers,
    dir: TempDir,
}

impl Daemon {
    /// Listens on a free port, and has `serve` answer who connects to it.
    ///
    /// # Errors
    /// When the system gives no port.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The directory that goes when it does.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `task` beside it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.as_ref().expect("it is taken on drop only").spawn(task);
    }

    /// What it answers with.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The longest deadline that a request may name, in milliseconds.
    pub fn deadline_ms_max(&self) -> u64 {
        self.deadline_max.as_millis() as u64
    }

    /// What its tiers hold now.
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
