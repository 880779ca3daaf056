//! Builds and wires the parts of the daemon. Only this module knows the whole configuration.

mod limits;

use std::future::Future;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use thresher_core::domain::{Chunk, CompressRequest};
use thresher_core::kv::local::{LocalSettings, LocalTiers};
use thresher_core::kv::store::KvStore;
use thresher_core::kv::tiers::AllTiers;
use thresher_core::memory::MemoryPool;
use thresher_core::model::ModelRuntime;
use thresher_core::model::cross::CrossEncoder;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::calibration::Calibration;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, Settings};
use thresher_core::{Engine, EngineBuilder};
use thresher_registry::RegistryLimits;
use thresher_shared::Shared;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

pub use self::limits::Limits;
use crate::access::{Access, LOOK_AGAIN, Watched};
use crate::admission::{Admission, Bounds};
use crate::config::{self, Config, MemoryShares};
use crate::executor::TimeLimits;
use crate::http::tls::{Tls, TlsError};
use crate::http::{
    self, ConnectionLimits, OriginPolicy, ReceiptKey, ServeSettings, Service, Serving, TenantData,
};
use crate::local::{Local, LocalParts};
use crate::middleware::settings::MiddlewareLimits;
use crate::originals::Originals;
use crate::process;
use crate::shared_tier;
use crate::telemetry::{self, Prometheus};
use crate::tenants::ttl_store::TtlStoreSettings;
use crate::tenants::{KV_EXPORT_EXPIRE_S, RECENT_REQUEST_EXPIRE_S, TenantSettings, Tenants};

/// The most connections of the admin listener, which has only probes and scrapers.
const ADMIN_CONNECTION_COUNT_MAX: usize = 64;

/// How long requests in flight have to finish after SIGTERM, and then waiting blocks to be written. Kubernetes kills what has not ended after 30
/// seconds, by default.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// How often recorded samples are moved into their histograms.
const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// An engine with the configuration's model and settings. It has no cache: every block lives as long as its request.
pub fn engine(config: &Config) -> EngineBuilder {
    let config::Model { device, device_memory_bytes_max, .. } = config.model;
    let engine = Engine::builder(&config.model.dir, config.model.runtime_lib())
        .workers(config.model.workers())
        .device(device)
        .device_memory_bytes_max(device_memory_bytes_max)
        .all_layers(config.model.exports_itself())
        .settings(pipeline_settings(config, &Limits::new(config, 1)))
        .store(Arc::new(KvStore::without_tiers()));
    let verdict_model = &config.verdict.model;
    if verdict_model.as_os_str().is_empty() { engine } else { engine.verdict_model_dir(verdict_model) }
}

/// The same engine as a daemon serves it: with the model for KV export, if the configuration names one.
pub fn engine_with_exporter(config: &Config) -> EngineBuilder {
    let engine = engine(config);
    if config.model.has_exporter() { engine.kv_model_dir(&config.model.kv_dir) } else { engine }
}

/// A pipeline without a cache, for one request of the command line.
///
/// # Errors
/// Names what of the model directory or the runtime cannot be used, and what to do about it.
pub fn pipeline(config: &Config) -> anyhow::Result<Arc<Pipeline>> {
    Ok(engine(config).build()?.into_pipeline())
}

/// A pipeline of parts that the caller has made, with the configuration's settings and the thresholds of the default model.
pub fn wire(
    config: &Config,
    limits: &Limits,
    model: Arc<dyn ModelRuntime>,
    tokenizer: Arc<ModelTokenizer>,
    store: Arc<KvStore>,
) -> Arc<Pipeline> {
    let settings =
        Settings { calibration: Calibration::shipped("minilm-l6"), ..pipeline_settings(config, limits) };
    Arc::new(Pipeline::new(model, tokenizer, store, settings))
}

/// The settings of a pipeline without a calibration.
pub fn pipeline_settings(config: &Config, limits: &Limits) -> Settings {
    let blocks = &config.blocks;
    Settings {
        limits: limits.bodies.requests,
        calibration: None,
        codec: blocks.codec,
        scoring: config.rc.estimator,
    }
}

/// Opens the local cache tiers that the configuration names, in front of the shared tier. With a shared tier it must run inside a Tokio
/// runtime.
fn tiers(config: &Config, limits: &Limits, shared: Option<Shared>) -> anyhow::Result<AllTiers> {
    let local = LocalTiers::open(&local_settings(config, &limits.memory))?;
    let shared = shared.map(|shared| shared_tier::blocks(shared, Handle::current()));
    Ok(AllTiers::new(local, shared))
}

/// Checks once whether the shared tier answers.
///
/// # Errors
/// Names the setting that cannot be used, or the server that does not answer.
pub fn probe_shared(config: &Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(Shared::probe(&config.shared))?)
}

/// The limits and the directory of the local tiers.
pub fn local_settings(config: &Config, memory: &MemoryShares) -> LocalSettings {
    let blocks = &config.blocks;
    LocalSettings {
        memory_bytes_max: memory.blocks,
        disk_bytes_max: blocks.disk_bytes_max,
        write_queue_bytes_max: memory.block_writes,
        dir: blocks.disk().then(|| blocks.dir.clone()),
    }
}

/// Runs one real request through the whole pipeline, and returns its time.
///
/// # Errors
/// What failed; a model that cannot answer this can answer nothing.
pub fn warm_up(pipeline: &Pipeline) -> anyhow::Result<Duration> {
    let started = Instant::now();
    // Long enough to show how fast chunks are read here.
    let long = "This sentence answers. Another one does not, it only stands here and is long. ".repeat(12);
    let chunks = vec![Chunk::new("a", long.as_str()), Chunk::new("b", long.replace("sentence", "question"))];
    let request = CompressRequest::new("Which sentence answers?", chunks);
    let cancel = Cancel::default();
    pipeline.compress(&request, &cancel).context("the warm-up request failed")?;
    if let Some(exporter) = pipeline.exporter() {
        exporter.warm(&request.chunks, &cancel).context("the model for KV export failed")?;
    }
    Ok(started.elapsed())
}

/// Runs the daemon: listens, loads the model, serves until `stop`, and drains. The listeners are bound first, so that a port in use is an error
/// at once, and probes are answered while the model is being loaded.
///
/// # Errors
/// Fails if a listener cannot be bound, or the keys, the certificate or the model cannot be used.
pub async fn serve(config: Config, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    let (access, keys) = Access::open(&config.access)?;
    // The default tenant has its own part, too.
    let limits = Limits::new(&config, access.tenants().len() + usize::from(access.is_keyed()));
    limits.log(config.memory_bytes_max);
    let (tls, certificate) = tls(&config)?.unzip();
    if !config.http.listen.ip().to_canonical().is_loopback() && tls.is_none() {
        tracing::warn!(http = %config.http.listen, "keys and texts are sent unencrypted, since http.tls_cert_file is not set");
    }
    let public = bind("http.listen", config.http.listen).await?;
    let admin = bind("admin.listen", config.admin.listen).await?;
    let metrics = telemetry::install_metrics()?;
    access.record_keys();
    let shared = config.shared.enabled().then(|| Shared::connect(&config.shared)).transpose()?;
    let tiers = tiers(&config, &limits, shared.clone())?;
    let store = Arc::new(KvStore::new(Arc::new(tiers.clone())));
    let tenants = tenants(&config, &limits, shared.clone());
    let service = service(&config, &limits, access.clone(), tenants.clone())?;
    let public_serving = serving(&limits);
    let admin_serving = Serving {
        listener: "admin",
        connections: ConnectionLimits {
            count_max: ADMIN_CONNECTION_COUNT_MAX,
            per_peer_max: ADMIN_CONNECTION_COUNT_MAX,
            ..public_serving.connections
        },
        ..public_serving
    };
    let (stopped, drained) = stop_signals(stop, service.admission.clone());
    let admin_router = admin_router(&config, &service, &metrics);
    tracing::info!(http = %public.local_addr()?, admin = %admin.local_addr()?, tls = tls.is_some(), "listening");
    if config.http.page && std::io::stderr().is_terminal() {
        let scheme = if tls.is_some() { "https" } else { "http" };
        eprintln!("open {scheme}://{}/ in a browser once the model is ready", public.local_addr()?);
    }
    let (admission, originals) = (service.admission.clone(), service.originals().clone());
    let serving = [
        tokio::spawn(http::serve(
            public,
            http::router(service),
            public_serving,
            tls.clone(),
            until(stopped.clone()),
        )),
        tokio::spawn(http::serve(admin, admin_router, admin_serving, None, until(drained.subscribe()))),
    ];
    tokio::spawn(upkeep(metrics));
    tokio::spawn(expire_originals(originals));
    if let Some(watched) = keys {
        tokio::spawn(follow_keys(access.clone(), watched, tenants.clone()));
    }
    if let Some((tls, watched)) = tls.zip(certificate) {
        tokio::spawn(check_repeatedly(watched, move |watched| tls.refresh(watched)));
    }
    let mut stopping = stopped.clone();
    tokio::select! {
        loaded = load(config.clone(), store, tenants.clone(), access, admission) => loaded?,
        _ = stopping.wait_for(|stop| *stop) => {}
    }
    let [public, _admin] = serving;
    let mut stopped = stopped;
    let _ = stopped.wait_for(|stop| *stop).await;
    tenants.stop_reading_ahead();
    match tokio::time::timeout(DRAIN_MAX, public).await {
        Ok(served) => served?,
        Err(_elapsed) => {
            tracing::warn!(
                drain_s_max = DRAIN_MAX.as_secs(),
                "requests were still in flight at the end of the drain and are cut off"
            )
        }
    }
    tokio::task::spawn_blocking(move || tenants.close()).await?;
    let flush = async {
        if let Some(shared) = &shared {
            let _ = tokio::time::timeout(DRAIN_MAX, shared.flush()).await;
        }
    };
    tokio::join!(flush, tiers.local().close_within(DRAIN_MAX));
    drained.send_replace(true);
    tracing::info!("stopped");
    Ok(())
}

/// Applies changes of the file of keys, until the process ends. The data of a new tenant is opened before its keys are valid.
pub async fn follow_keys(access: Access, watched: Watched, tenants: Tenants) {
    let prepare = move |watched: &mut Watched| access.refresh(watched, |named| tenants.open(named));
    check_repeatedly(watched, prepare).await;
}

/// Calls `check` at intervals, on a thread that may block.
async fn check_repeatedly(watched: Watched, check: impl Fn(&mut Watched) + Send + Sync + 'static) {
    let (mut watched, check) = (watched, Arc::new(check));
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let (mut files, check) = (watched, Arc::clone(&check));
        let checked = tokio::task::spawn_blocking(move || {
            check(&mut files);
            files
        });
        match checked.await {
            Ok(files) => watched = files,
            // The check panicked, which is logged, or the runtime has ended.
            Err(_) => return tracing::error!("files are not checked for changes any more"),
        }
    }
}

/// The certificate, and what is watched for changes of it; none if the settings name none.
///
/// # Errors
/// [`TlsError`].
pub fn tls(config: &Config) -> Result<Option<(Tls, Watched)>, TlsError> {
    let config::Http { tls_cert_file: cert, tls_key_file: key, .. } = &config.http;
    (!cert.as_os_str().is_empty()).then(|| Tls::open(cert, key)).transpose()
}

/// The data of tenants; nothing is opened yet.
pub fn tenants(config: &Config, limits: &Limits, shared: Option<Shared>) -> Tenants {
    let memory = &limits.memory;
    Tenants::new(TenantSettings {
        registry: config.registry.clone(),
        registry_limits: RegistryLimits { cache_bytes_max: memory.chunks, ..RegistryLimits::default() },
        handles: TtlStoreSettings { bytes_max: memory.recent_requests, expire_s: RECENT_REQUEST_EXPIRE_S },
        kv_handles: TtlStoreSettings { bytes_max: memory.kv_exports, expire_s: KV_EXPORT_EXPIRE_S },
        savings: Arc::new(config.savings.clone()),
        count_max: limits.tenant_count_max,
        shared,
    })
}

/// Checks the settings, keys and certificates of the upstreams of the middleware, without a connection to any of them.
///
/// # Errors
/// Names the upstream whose settings cannot be used.
pub fn check_upstreams(config: &Config) -> anyhow::Result<()> {
    http::Middleware::new(&config.middleware, MiddlewareLimits::default())?;
    Ok(())
}

/// The state that HTTP handlers share. There is no pipeline yet.
///
/// # Errors
/// Fails if the settings of an upstream cannot be used, or if there are upstreams and the store of original texts does not open.
pub fn service(
    config: &Config,
    limits: &Limits,
    access: Access,
    tenants: Tenants,
) -> anyhow::Result<Service> {
    let admission = &config.admission;
    let access_is_keyed = access.is_keyed();
    let originals = Originals::at(&config.originals);
    // The middleware needs the store, so that an error shows at the start. Without upstreams, it may never be used.
    if !config.middleware.upstreams.is_empty() {
        originals.open()?;
    }
    let middleware = http::Middleware::new(&config.middleware, limits.middleware)?;
    middleware.announce();
    Ok(Service {
        middleware: Arc::new(middleware),
        receipts: Arc::new(ReceiptKey::at(&config.receipts.key_file)),
        admission: Admission::new(Bounds {
            concurrency_max: admission.concurrency_max(),
            queue_max: config::Admission::QUEUE_MAX,
        }),
        origins: OriginPolicy::public(
            &config.http.hosts_allowed,
            &config.http.origins_allowed,
            access_is_keyed,
        ),
        bodies: MemoryPool::new(limits.memory.bodies),
        answers: MemoryPool::new(limits.memory.responses),
        data: TenantData::new(access, tenants, originals),
        settings: Arc::new(ServeSettings {
            page: config.http.page,
            time_limits: TimeLimits { default: admission.deadline_default(), max: limits.deadline_max },
            body_bytes_max: limits.body_bytes_max,
            read_max: limits.read_max,
            limits: limits.bodies,
            prefilter: limits.prefilter,
            registered_chunk_count_max: config.registry.chunk_count_max,
        }),
    })
}

/// Answers requests in this process, without a daemon. `time_default` is for requests that name no deadline.
pub fn local(config: &Config, time_default: Duration) -> Local {
    let (admission, limits) = (&config.admission, Limits::new(config, 1));
    Local::new(LocalParts {
        admission: Admission::new(Bounds {
            concurrency_max: admission.concurrency_max(),
            queue_max: config::Admission::QUEUE_MAX,
        }),
        time_limits: TimeLimits { default: time_default, max: limits.deadline_max },
        limits: limits.bodies,
        receipt_key_file: config.receipts.key_file.clone(),
    })
}

/// The settings of the public listener. Half of the file descriptors that the system allows are kept for files, upstreams and the admin
/// listener.
pub fn serving(limits: &Limits) -> Serving {
    let allowed = process::file_descriptors() / 2;
    let connections = ConnectionLimits::PUBLIC;
    if allowed < connections.count_max {
        tracing::warn!(
            connection_count_max = allowed,
            "the system allows too few file descriptors for as many connections; raise the limit (ulimit -n)"
        );
    }
    Serving {
        listener: "public",
        head_max: limits.read_max,
        connections: ConnectionLimits { count_max: connections.count_max.min(allowed), ..connections },
    }
}

fn admin_router(config: &Config, service: &Service, metrics: &Prometheus) -> Router {
    let metrics = metrics.clone();
    let is_reachable = !config.admin.listen.ip().to_canonical().is_loopback();
    let origins = OriginPolicy::admin(&config.http.hosts_allowed, is_reachable);
    let admin = http::admin::Admin { service: service.clone(), render: Arc::new(move || metrics.render()) };
    http::admin::router(admin, origins)
}

/// Opens the registries, which can then register chunks, and loads the model. Registries do not wait for the log that sidecars share: they serve
/// their own chunks until the log has more.
async fn load(
    config: Config,
    store: Arc<KvStore>,
    tenants: Tenants,
    access: Access,
    admission: Admission,
) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(move || {
        let started = Instant::now();
        tenants.open_default()?;
        let (chunks, ms) = (tenants.progress().registered, started.elapsed().as_millis() as u64);
        tracing::info!(chunks, ms, "registry open");
        tenants.open(&access.tenants());
        let started = Instant::now();
        let pipeline = engine_with_exporter(&config).store(store).build()?.into_pipeline();
        let warm_up = warm_up(&pipeline)?;
        let (model, ms) = (pipeline.model(), started.elapsed().as_millis() as u64);
        if let Some(why) = &model.device.gpu_unavailable_reason {
            tracing::warn!(
                device = model.device.name,
                why,
                "model.device is auto, and there is no GPU to use"
            );
        }
        if model.decoder.is_none() && pipeline.settings().calibration.is_none() {
            let why = "nothing was fitted for this model: thresher calibrate, docs/models.md";
            tracing::info!(
                model = model.name,
                why,
                "related and answerable are null, and no verdict is a probability"
            );
        }
        let device = &model.device.name;
        let kv_model = pipeline.exporter().map(Pipeline::model);
        let verdict_model = pipeline.verdict_model().map(CrossEncoder::name);
        tracing::info!(
            model = model.name,
            kv_model = kv_model.map(|model| &*model.name),
            verdict_model,
            device,
            ms,
            warm_up_ms = warm_up.as_millis() as u64,
            "ready"
        );
        http::observe::model(model);
        kv_model.into_iter().for_each(http::observe::model);
        tenants.set_pipeline(pipeline);
        process::notify_ready();
        Ok(tenants.read_ahead(admission)?)
    })
    .await?
}

/// Two signals: "stop accepting connections", which is sent at `stop`, and "drained", which the caller sends.
fn stop_signals(
    stop: impl Future<Output = ()> + Send + 'static,
    admission: Admission,
) -> (watch::Receiver<bool>, watch::Sender<bool>) {
    let (stopping, stopped) = watch::channel(false);
    tokio::spawn(async move {
        stop.await;
        tracing::info!("draining");
        admission.drain();
        stopping.send_replace(true);
    });
    (stopped, watch::Sender::new(false))
}

/// Waits until `stop` is true, or its sender is gone.
async fn until(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// How often originals that are too old are dropped.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(3_600);

/// Drops originals that are too old, also those of tenants that send nothing any more.
async fn expire_originals(originals: Originals) {
    loop {
        tokio::time::sleep(EXPIRE_INTERVAL).await;
        let store = originals.clone();
        match tokio::task::spawn_blocking(move || store.expire()).await {
            Ok(Ok(dropped)) if dropped > 0 => {
                tracing::info!(dropped, "original texts were too old and are dropped")
            }
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(error)) => tracing::warn!(%error, "original texts that are too old cannot be dropped"),
        }
    }
}

/// Moves recorded samples into their histograms, so that they do not accumulate with every request.
pub async fn upkeep(metrics: Prometheus) {
    loop {
        tokio::time::sleep(METRICS_UPKEEP_INTERVAL).await;
        metrics.upkeep();
    }
}

async fn bind(setting: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} ({setting})"))
}
