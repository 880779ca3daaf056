//! The model and the daemon under test: a daemon in this process, on a free loopback port, with its tiers in a temporary directory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;
use thresher::access::Access;
use thresher::app::{self, Limits};
use thresher::config::Config;
use thresher::{http, process, telemetry};
use thresher_core::kv::local::LocalTiers;
use thresher_core::kv::store::KvStore;
use thresher_core::kv::tiers::AllTiers;
use thresher_core::model::ModelRuntime as _;
use thresher_core::model::ort::{LateRuntime, LoadedModel};
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::Pipeline;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::model_on_device::ModelOnDevice;

/// How long requests in flight may take after the daemon is dropped.
const STOP: Duration = Duration::from_secs(5);

/// A model, and a daemon that serves requests with it until this is dropped.
pub struct Subject {
    /// The model; its graph is also run alone.
    pub runtime: Arc<LateRuntime>,
    /// The model's tokenizer; it counts the workload's tokens.
    pub tokenizer: Arc<ModelTokenizer>,
    /// The model's precision, and what runs it.
    pub on: ModelOnDevice,
    pub address: SocketAddr,
    pub pipeline: Arc<Pipeline>,
    pub local: LocalTiers,
    /// The longest deadline that a request may ask for.
    pub deadline_ms_max: u64,
    // Fields are dropped in this order: requests in flight first, then the directory.
    threads: Option<Runtime>,
    _dir: TempDir,
}

impl Subject {
    /// Starts a daemon as `thresher serve` wires it, except for its directories, and without a shared tier and reading ahead.
    ///
    /// # Errors
    /// Fails if the model cannot be loaded or is a decoder, or if the system provides no port or directory.
    pub fn start(config: &Config, limits: &Limits) -> anyhow::Result<Self> {
        let mut config = config.clone();
        let dir =
            tempfile::Builder::new().prefix("thresher-lab-").tempdir().context("no temporary directory")?;
        if config.blocks.disk() {
            config.blocks.dir = dir.path().join("kv");
        }
        config.registry.dir = dir.path().join("registry");
        config.originals.dir = dir.path().join("originals");
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let threads = threads.worker_threads(config.model.workers()).enable_all().build()?;
        let metrics = telemetry::install_metrics()?;
        threads.spawn(app::upkeep(metrics));
        let local = LocalTiers::open(&app::local_settings(&config, &limits.memory))?;
        let store = Arc::new(KvStore::new(Arc::new(AllTiers::new(local.clone(), None))));
        let settings = app::pipeline_settings(&config, limits);
        let engine = app::engine(&config).settings(settings).store(store).build()?;
        let LoadedModel::Late(late) = engine.model() else {
            anyhow::bail!("speed is measured of late-interaction models, and this model is a decoder")
        };
        let (runtime, tokenizer) = (Arc::clone(late), Arc::clone(engine.tokenizer()));
        let tenants = app::tenants(&config, limits, None);
        let service = app::service(&config, limits, Access::open_to_all(), tenants.clone())?;
        tenants.open_default()?;
        app::warm_up(engine.pipeline())?;
        tenants.set_pipeline(engine.into_pipeline());
        let pipeline = tenants.default_tenant().pipeline().map(Arc::clone).context("it was set")?;
        let deadline_ms_max = limits.deadline_max.as_millis() as u64;
        let listener =
            threads.block_on(TcpListener::bind(("127.0.0.1", 0))).context("no port to listen on")?;
        let address = listener.local_addr()?;
        let router = http::router(service);
        threads.spawn(http::serve(listener, router, app::serving(limits), None, std::future::pending()));
        let files = dir.path().to_owned();
        threads.spawn(async move {
            // An interrupted run leaves no files.
            let Ok(mut term) = signal(SignalKind::terminate()) else { return };
            let code = tokio::select! {
                _ = tokio::signal::ctrl_c() => 130,
                _ = term.recv() => 143,
            };
            let _ = std::fs::remove_dir_all(files);
            process::leave(code)
        });
        let on = ModelOnDevice::new(&config.model.dir, &config.model.runtime_lib(), &runtime.info().device)?;
        let threads = Some(threads);
        Ok(Self { runtime, tokenizer, on, address, pipeline, local, deadline_ms_max, threads, _dir: dir })
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_timeout(STOP);
        }
    }
}
