//! The state of each tenant: its view of the pipeline, its registered chunks, its recent requests and exports. Tenants are isolated: a
//! request gets the [`TenantState`] of its own tenant, which gives no access to another one. The module knows nothing of API keys.

mod read_ahead;
pub mod ttl_store;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use thresher_core::domain::Tenant;
use thresher_core::pipeline::Pipeline;
use thresher_registry::log::journal::JournalLog;
use thresher_registry::warm::Warmer;
use thresher_registry::{Progress, Registry, RegistryError, RegistryLimits, RegistrySettings};
use thresher_shared::Shared;
use tokio::runtime::Handle;

use self::read_ahead::{ReadAhead, ReadAheadLock};
use self::ttl_store::{RecentRequest, TtlEntry, TtlStore, TtlStoreSettings};
use crate::admission::Admission;
use crate::executor::PipelineSlot;
use crate::kv_export::KvExportFile;
use crate::middleware::untouched::TextKinds;
use crate::savings::ledger::Ledger;
use crate::savings::settings::SavingsSettings;

/// The number of retries to open a tenant's registry whose folder is in use, and the time between two of them: five seconds in all.
const OPEN_RETRIES_MAX: usize = 100;
const OPEN_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Seconds until a recent request expires: an answer to it is attributed within the hour.
pub const RECENT_REQUEST_EXPIRE_S: u64 = 3_600;

/// Seconds until an export of keys and values expires: an engine fetches it as soon as it has the response.
pub const KV_EXPORT_EXPIRE_S: u64 = 600;

/// The settings with which the state of tenants is created.
#[derive(Clone, Default)]
pub struct TenantSettings {
    /// Settings of each tenant's registry. Its folder is that of the default tenant; other tenants have a subfolder each.
    pub registry: RegistrySettings,
    pub registry_limits: RegistryLimits,
    /// Settings of each tenant's store of recent requests.
    pub handles: TtlStoreSettings,
    /// Settings of each tenant's store of KV exports.
    pub kv_handles: TtlStoreSettings,
    pub savings: Arc<SavingsSettings>,
    /// The most tenants whose state is kept, beside the default tenant.
    pub count_max: usize,
    /// The shared tier through which sidecars exchange a tenant's registered chunks, if there is one.
    pub shared: Option<Shared>,
}

/// The state of all tenants. Clones share it.
#[derive(Clone)]
pub struct Tenants(Arc<TenantMap>);

struct TenantMap {
    settings: TenantSettings,
    state: RwLock<TenantMapState>,
    /// Held while tenants are opened, because a registry's folder cannot be opened twice.
    opening: Mutex<()>,
}

struct TenantMapState {
    by_tenant: BTreeMap<Tenant, Arc<TenantState>>,
    pipeline: Option<Arc<Pipeline>>,
    /// `Some` once registered chunks are read ahead.
    read_ahead: Option<ReadAheadContext>,
}

/// What the read-ahead of all tenants shares.
struct ReadAheadContext {
    admission: Admission,
    lock: Arc<ReadAheadLock>,
}

pub struct TenantState {
    tenant: Tenant,
    handles: TtlStore<RecentRequest>,
    kv_handles: TtlStore<KvExportFile>,
    savings: Ledger,
    text_kinds: TextKinds,
    pipeline: PipelineSlot,
    /// `Err`: the registry cannot be used, and the log says why.
    registry: OnceLock<Result<Registry, ()>>,
    warmer: Mutex<Option<Warmer>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRegistry {
    /// The registry is still being opened.
    NotYet,
    /// The registry could not be opened; the log says why.
    Unusable,
}

impl Tenants {
    /// Creates the state of the default tenant, which is empty.
    pub fn new(settings: TenantSettings) -> Self {
        let default = Arc::new(TenantState::new(Tenant::default(), &settings));
        let by_tenant = [(Tenant::default(), default)].into();
        let state = RwLock::new(TenantMapState { by_tenant, pipeline: None, read_ahead: None });
        Self(Arc::new(TenantMap { settings, state, opening: Mutex::default() }))
    }

    /// Returns the state of a tenant, or `None` if it has not been opened.
    pub fn get(&self, tenant: &Tenant) -> Option<Arc<TenantState>> {
        self.0.read().by_tenant.get(tenant).cloned()
    }

    pub fn default_tenant(&self) -> Arc<TenantState> {
        self.get(&Tenant::default()).expect("the default tenant always has a state")
    }

    /// Opens the default tenant's registry. If there is a shared tier, call it within a Tokio runtime.
    ///
    /// # Errors
    /// Fails if [`Registry::open`] fails.
    pub fn open_default(&self) -> Result<(), RegistryError> {
        let registry = self.0.registry(&Tenant::default())?;
        self.default_tenant().registry.get_or_init(|| Ok(registry));
        Ok(())
    }

    /// Opens the state of those of `tenants` that are not open yet. If there would be too many, drops the state of tenants that are not
    /// among `tenants`. A registry that cannot be opened is logged, and requests that need it get an error; other tenants are not affected.
    pub fn open(&self, tenants: &BTreeSet<Tenant>) {
        let _one_at_a_time = lock(&self.0.opening);
        let new: Vec<&Tenant> = tenants.iter().filter(|tenant| self.get(tenant).is_none()).collect();
        self.0.evict(tenants, new.len());
        for tenant in new {
            let started = Instant::now();
            let registry = self.0.registry(tenant).map_err(|error| {
                tracing::error!(tenant = tenant.name(), %error, "a tenant's registry cannot be opened");
            });
            let chunks = registry.as_ref().map_or(0, |registry| registry.progress().registered);
            let state = TenantState::new(tenant.clone(), &self.0.settings);
            let _ = state.registry.set(registry);
            self.0.insert(Arc::new(state));
            let ms = started.elapsed().as_millis() as u64;
            tracing::info!(tenant = tenant.name(), chunks, ms, "tenant opened");
        }
    }

    /// Returns the state of a tenant, which is opened if it is not; `None` if no tenant of this name was ever opened.
    pub fn opened(&self, tenant: &Tenant) -> Option<Arc<TenantState>> {
        let dir = self.0.settings.registry.of_tenant(tenant).dir;
        if self.get(tenant).is_none() && !dir.as_os_str().is_empty() && dir.is_dir() {
            self.open(&BTreeSet::from([tenant.clone()]));
        }
        self.get(tenant)
    }

    /// Gives every tenant, now and later, its view of the model that has been loaded.
    pub fn set_pipeline(&self, pipeline: Arc<Pipeline>) {
        let mut state = self.0.write();
        let pipeline = state.pipeline.get_or_insert(pipeline).clone();
        state.by_tenant.values().for_each(|tenant| tenant.set_pipeline(&pipeline));
    }

    /// Returns whether the model has been loaded.
    pub fn is_ready(&self) -> bool {
        self.0.read().pipeline.is_some()
    }

    /// The bytes of memory that the blocks of all requests hold.
    pub fn block_bytes_held(&self) -> usize {
        self.0.read().pipeline.as_ref().map_or(0, |pipeline| pipeline.memory_held())
    }

    /// The bytes of memory that the stores of all tenants hold, by the store.
    pub fn store_bytes(&self) -> [(&'static str, u64); 3] {
        let (mut recent, mut exports, mut texts) = (0, 0, 0);
        for tenant in self.all() {
            recent += tenant.handles.bytes() as u64;
            exports += tenant.kv_handles.bytes() as u64;
            texts += tenant.pipeline().map_or(0, |pipeline| pipeline.text_cache_bytes());
        }
        [("recent_compressions", recent), ("kv_exports", exports), ("text_caches", texts)]
    }

    /// Starts to read registered chunks ahead, also those of tenants that are opened later: one tenant at a time. Requests that wait
    /// for a permit of `admission` take precedence. Call it within a Tokio runtime, after [`Self::set_pipeline`].
    ///
    /// # Errors
    /// Fails if the system cannot create a thread.
    pub fn read_ahead(&self, admission: Admission) -> io::Result<()> {
        let mut state = self.0.write();
        let context = ReadAheadContext { admission, lock: Arc::new(ReadAheadLock::new(Handle::current())) };
        state.by_tenant.values().try_for_each(|tenant| tenant.read_ahead(&context))?;
        state.read_ahead = Some(context);
        Ok(())
    }

    /// Asks the read-ahead of all tenants to stop, and returns without waiting for it.
    pub fn stop_reading_ahead(&self) {
        let state = self.0.read();
        state.by_tenant.values().for_each(|tenant| {
            lock(&tenant.warmer).as_ref().inspect(|warmer| warmer.stop());
        });
    }

    /// Stops the read-ahead of all tenants and waits until it has ended.
    pub fn close(&self) {
        let tenants: Vec<Arc<TenantState>> = self.0.read().by_tenant.values().cloned().collect();
        tenants.iter().for_each(|tenant| drop(lock(&tenant.warmer).take()));
    }

    /// Returns all tenants, in the order of their names.
    pub fn all(&self) -> Vec<Arc<TenantState>> {
        self.0.read().by_tenant.values().cloned().collect()
    }

    /// Returns the numbers of registered chunks and of those read ahead, summed over all tenants.
    pub fn progress(&self) -> Progress {
        let state = self.0.read();
        let of =
            |tenant: &Arc<TenantState>| tenant.registry().map_or(Progress::default(), Registry::progress);
        state.by_tenant.values().map(of).fold(Progress::default(), |all, one| Progress {
            registered: all.registered + one.registered,
            warm: all.warm + one.warm,
            queued: all.queued + one.queued,
            failed: all.failed + one.failed,
        })
    }
}

impl TenantMap {
    fn registry(&self, tenant: &Tenant) -> Result<Registry, RegistryError> {
        let (settings, limits) = (self.settings.registry.of_tenant(tenant), self.settings.registry_limits);
        let mut opened = Registry::open_within(&settings, limits);
        // The folder of a tenant whose state was dropped stays in use until the last request of that tenant has its answer.
        for _ in 0..if tenant.is_default() { 0 } else { OPEN_RETRIES_MAX } {
            if !matches!(opened, Err(RegistryError::InUse { .. })) {
                break;
            }
            std::thread::sleep(OPEN_RETRY_DELAY);
            opened = Registry::open_within(&settings, limits);
        }
        let registry = opened?;
        // Before any request can write: other sidecars would never learn of a change that is not in the log.
        if let Some(shared) = &self.settings.shared {
            registry.follow(Arc::new(JournalLog::new(shared, tenant)));
        }
        Ok(registry)
    }

    /// Drops the state of tenants that are not `wanted`, as far as `more` new ones would be too many.
    fn evict(&self, wanted: &BTreeSet<Tenant>, more: usize) {
        let mut state = self.write();
        let count = state.by_tenant.len() - 1 + more;
        let over = count.saturating_sub(self.settings.count_max);
        let unwanted =
            state.by_tenant.keys().filter(|tenant| !tenant.is_default() && !wanted.contains(tenant));
        let unwanted: Vec<Tenant> = unwanted.take(over).cloned().collect();
        let evicted: Vec<_> = unwanted.iter().filter_map(|tenant| state.by_tenant.remove(tenant)).collect();
        drop(state);
        // Registered chunks stay on disk. Requests that still use the state go on until they are answered.
        drop(evicted);
    }

    fn insert(&self, tenant: Arc<TenantState>) {
        let mut state = self.write();
        if let Some(pipeline) = &state.pipeline {
            tenant.set_pipeline(pipeline);
        }
        if let Some(Err(error)) = state.read_ahead.as_ref().map(|context| tenant.read_ahead(context)) {
            tracing::error!(tenant = tenant.tenant.name(), %error, "the tenant's chunks will not be read ahead");
        }
        state.by_tenant.insert(tenant.tenant.clone(), tenant);
    }

    fn read(&self) -> RwLockReadGuard<'_, TenantMapState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, TenantMapState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TenantState {
    fn new(tenant: Tenant, settings: &TenantSettings) -> Self {
        Self {
            tenant,
            handles: TtlStore::new(&settings.handles),
            kv_handles: TtlStore::new(&settings.kv_handles),
            savings: Ledger::new(Arc::clone(&settings.savings)),
            text_kinds: TextKinds::default(),
            pipeline: PipelineSlot::default(),
            registry: OnceLock::new(),
            warmer: Mutex::default(),
        }
    }

    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns the store of this tenant's recent requests.
    pub fn handles(&self) -> &TtlStore<RecentRequest> {
        &self.handles
    }

    pub fn kv_handles(&self) -> &TtlStore<KvExportFile> {
        &self.kv_handles
    }

    /// Returns the kinds of texts that this tenant sent through the middleware.
    pub fn text_kinds(&self) -> &TextKinds {
        &self.text_kinds
    }

    /// Returns what the middleware saved for this tenant since the daemon started.
    pub fn savings(&self) -> &Ledger {
        &self.savings
    }

    /// Returns the pipeline with this tenant's view of the cache, or `None` while the model is being loaded.
    pub fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        self.pipeline.get()
    }

    /// Returns the place where the tenant's view of the pipeline is put once the model has been loaded.
    pub fn pipeline_slot(&self) -> &PipelineSlot {
        &self.pipeline
    }

    /// Returns the registry of this tenant's chunks.
    ///
    /// # Errors
    /// Fails while the registry is being opened, and if it could not be opened.
    pub fn registry(&self) -> Result<&Registry, NoRegistry> {
        match self.registry.get() {
            None => Err(NoRegistry::NotYet),
            Some(Err(())) => Err(NoRegistry::Unusable),
            Some(Ok(registry)) => Ok(registry),
        }
    }

    fn set_pipeline(&self, base: &Arc<Pipeline>) {
        if self.pipeline.initialized() {
            return;
        }
        let pipeline =
            if self.tenant.is_default() { Arc::clone(base) } else { Arc::new(base.of_tenant(&self.tenant)) };
        // Another thread may have been first, with the same pipeline.
        let _ = self.pipeline.set(pipeline);
    }

    fn read_ahead(&self, context: &ReadAheadContext) -> io::Result<()> {
        let (Ok(registry), Some(pipeline)) = (self.registry(), self.pipeline()) else { return Ok(()) };
        let reader =
            ReadAhead::new(Arc::clone(pipeline), context.admission.clone(), Arc::clone(&context.lock));
        *lock(&self.warmer) = Some(Warmer::start(registry, Arc::new(reader))?);
        Ok(())
    }
}

impl Drop for TenantState {
    /// Drops the warmer and the registry on a blocking thread, because both wait for their own threads.
    fn drop(&mut self) {
        let parts = (lock(&self.warmer).take(), self.registry.take());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(parts));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TtlEntry for KvExportFile {
    const ID_PREFIX: &'static str = "kv";

    fn bytes(&self) -> usize {
        self.bytes()
    }
}
