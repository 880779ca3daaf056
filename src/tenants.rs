//! What each tenant has of its own: its view of the pipeline, its registered chunks, the requests that are remembered for it. A
//! tenant_state holds all of it, and who is in one has no way into another.
//! Knows nothing of keys, or of who is asking.

mod ahead;
pub mod ttl_store;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use thresher_core::domain::Tenant;
use thresher_core::pipeline::Pipeline;
use thresher_registry::warm::Warmer;
use thresher_registry::{Progress, Registry, RegistryError, RegistrySettings};
use tokio::runtime::Handle;

use self::ahead::{Ahead, Turn};
use self::ttl_store::{RecentRequest, TtlEntry, TtlStore, TtlStoreSettings};
use crate::admission::Admission;
use crate::kv_export::KvExportFile;
use crate::shared_tier::{self, Shared};

/// How often is looked whether a tenant's folder is free, and how long between two looks: five seconds in all.
const LOOKS_MAX: usize = 100;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What state are made by.
#[derive(Clone, Default)]
pub struct TenantSettings {
    /// Of each tenant's registry; its folder is that of the default tenant, and others have one in it.
    pub registry: RegistrySettings,
    /// Of what is remembered for each tenant.
    pub handles: TtlStoreSettings,
    /// Of keys and values that each tenant may fetch.
    pub kv_handles: TtlStoreSettings,
    /// TenantMapState beside that of the default tenant.
    pub count_max: usize,
    /// Where registered chunks are shared, each tenant's with itself.
    pub shared: Option<Shared>,
}

/// All state. Clones have the same ones.
#[derive(Clone)]
pub struct Tenants(Arc<TenantMap>);

struct TenantMap {
    settings: TenantSettings,
    state: RwLock<TenantMapState>,
    /// One at a time opens: a folder cannot be opened twice.
    opening: Mutex<()>,
}

struct TenantMapState {
    by_tenant: BTreeMap<Tenant, Arc<TenantState>>,
    pipeline: Option<Arc<Pipeline>>,
    /// What registered chunks are read ahead by, once that has begun.
    ahead: Option<Readers>,
}

/// What all readers ahead have in common.
struct Readers {
    busy: Admission,
    turn: Arc<Turn>,
}

/// What a tenant has.
pub struct TenantState {
    tenant: Tenant,
    handles: TtlStore<RecentRequest>,
    kv_handles: TtlStore<KvExportFile>,
    pipeline: OnceLock<Arc<Pipeline>>,
    /// An error: it cannot be used, and the log says why.
    registry: OnceLock<Result<Registry, ()>>,
    warmer: Mutex<Option<Warmer>>,
}

/// Why there is no registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRegistry {
    /// It is being opened.
    NotYet,
    /// It was not possible.
    Unusable,
}

impl Tenants {
    /// With the tenant_state of the default tenant, nothing in it.
    pub fn new(settings: TenantSettings) -> Self {
        let tenant_state = Arc::new(TenantState::new(Tenant::default(), &settings));
        let by_tenant = [(Tenant::default(), tenant_state)].into();
        let state = RwLock::new(TenantMapState { by_tenant, pipeline: None, ahead: None });
        Self(Arc::new(TenantMap { settings, state, opening: Mutex::default() }))
    }

    /// The tenant_state of a tenant; none: it has not been opened.
    pub fn of(&self, tenant: &Tenant) -> Option<Arc<TenantState>> {
        self.0.read().by_tenant.get(tenant).cloned()
    }

    /// The tenant_state of the default tenant.
    pub fn default_tenant(&self) -> Arc<TenantState> {
        self.of(&Tenant::default()).expect("it is there from the beginning")
    }

    /// Opens the default tenant's registry. With a shared tier within a Tokio runtime.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn open_default(&self) -> Result<(), RegistryError> {
        let registry = self.0.registry(&Tenant::default())?;
        self.default_tenant().registry.get_or_init(|| Ok(registry));
        Ok(())
    }

    /// Opens the state of `tenants` that are not open. Where there would be too many, those that are not among them are given
    /// up. A registry that cannot be used is said in the log and to those who ask for it: it keeps nobody else from theirs.
    pub fn open(&self, tenants: &BTreeSet<Tenant>) {
        let _one_at_a_time = lock(&self.0.opening);
        let new: Vec<&Tenant> = tenants.iter().filter(|tenant| self.of(tenant).is_none()).collect();
        self.0.make_room(tenants, new.len());
        for tenant in new {
            let started = Instant::now();
            let registry = self.0.registry(tenant).map_err(|error| {
                tracing::error!(tenant = tenant.name(), %error, "a tenant's registry cannot be used");
            });
            let chunks = registry.as_ref().map_or(0, |registry| registry.progress().registered);
            let tenant_state = TenantState::new(tenant.clone(), &self.0.settings);
            let _ = tenant_state.registry.set(registry);
            self.0.let_in(Arc::new(tenant_state));
            let ms = started.elapsed().as_millis() as u64;
            tracing::info!(tenant = tenant.name(), chunks, ms, "tenant_state open");
        }
    }

    /// From now on there is a model: every tenant_state gets its view of it.
    pub fn set_pipeline(&self, pipeline: Arc<Pipeline>) {
        let mut state = self.0.write();
        let pipeline = state.pipeline.get_or_insert(pipeline).clone();
        state.by_tenant.values().for_each(|tenant_state| tenant_state.set_pipeline(&pipeline));
    }

    /// Whether there is a model.
    pub fn is_ready(&self) -> bool {
        self.0.read().pipeline.is_some()
    }

    /// From now on registered chunks are read ahead, also in state that are opened later: one tenant's at a time, in turn, and
    /// behind requests. Within a Tokio runtime, once there is a model.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn read_ahead(&self, busy: Admission) -> io::Result<()> {
        let mut state = self.0.write();
        let readers = Readers { busy, turn: Arc::new(Turn::new(Handle::current())) };
        state.by_tenant.values().try_for_each(|tenant_state| tenant_state.read_ahead(&readers))?;
        state.ahead = Some(readers);
        Ok(())
    }

    /// Tells all who read ahead to stop, without waiting until they have.
    pub fn stop_reading_ahead(&self) {
        let state = self.0.read();
        state.by_tenant.values().for_each(|tenant_state| {
            lock(&tenant_state.warmer).as_ref().inspect(|warmer| warmer.stop());
        });
    }

    /// Waits until nobody reads ahead any more.
    pub fn close(&self) {
        let state: Vec<Arc<TenantState>> = self.0.read().by_tenant.values().cloned().collect();
        state.iter().for_each(|tenant_state| drop(lock(&tenant_state.warmer).take()));
    }

    /// How much is registered, of all tenants together.
    pub fn progress(&self) -> Progress {
        let state = self.0.read();
        let of = |tenant_state: &Arc<TenantState>| {
            tenant_state.registry().map_or(Progress::default(), Registry::progress)
        };
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
        let settings = self.settings.registry.of_tenant(tenant);
        let mut opened = Registry::open(&settings);
        // A tenant_state that was given up has its folder until the last request in it has its answer.
        for _ in 0..if tenant.is_default() { 0 } else { LOOKS_MAX } {
            if !matches!(opened, Err(RegistryError::InUse { .. })) {
                break;
            }
            std::thread::sleep(LOOK_AGAIN);
            opened = Registry::open(&settings);
        }
        let registry = opened?;
        // Before anybody can write: a change that is not in the log would be known here alone.
        if let Some(shared) = &self.settings.shared {
            registry.follow(shared_tier::change_log(shared, tenant));
        }
        Ok(registry)
    }

    /// Gives up state that are not `wanted` where `more` would be too many.
    fn make_room(&self, wanted: &BTreeSet<Tenant>, more: usize) {
        let mut state = self.write();
        let count = state.by_tenant.len() - 1 + more;
        let over = count.saturating_sub(self.settings.count_max);
        let unwanted =
            state.by_tenant.keys().filter(|tenant| !tenant.is_default() && !wanted.contains(tenant));
        let unwanted: Vec<Tenant> = unwanted.take(over).cloned().collect();
        let given_up: Vec<_> = unwanted.iter().filter_map(|tenant| state.by_tenant.remove(tenant)).collect();
        drop(state);
        // What is registered stays on disk. Who is still in one goes on until it has its answer.
        drop(given_up);
    }

    fn let_in(&self, tenant_state: Arc<TenantState>) {
        let mut state = self.write();
        if let Some(pipeline) = &state.pipeline {
            tenant_state.set_pipeline(pipeline);
        }
        if let Some(Err(error)) = state.ahead.as_ref().map(|readers| tenant_state.read_ahead(readers)) {
            tracing::error!(tenant = tenant_state.tenant.name(), %error, "chunks will not be read ahead");
        }
        state.by_tenant.insert(tenant_state.tenant.clone(), tenant_state);
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
            pipeline: OnceLock::new(),
            registry: OnceLock::new(),
            warmer: Mutex::default(),
        }
    }

    /// Whose it is.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// What earlier requests of this tenant were about.
    pub fn handles(&self) -> &TtlStore<RecentRequest> {
        &self.handles
    }

    /// Keys and values that this tenant may fetch.
    pub fn kv_handles(&self) -> &TtlStore<KvExportFile> {
        &self.kv_handles
    }

    /// The pipeline as this tenant has it, once there is one.
    pub fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        self.pipeline.get()
    }

    /// What this tenant has registered.
    ///
    /// # Errors
    /// [`NoRegistry`].
    pub fn registry(&self) -> Result<&Registry, NoRegistry> {
        match self.registry.get() {
            None => Err(NoRegistry::NotYet),
            Some(Err(())) => Err(NoRegistry::Unusable),
            Some(Ok(registry)) => Ok(registry),
        }
    }

    fn set_pipeline(&self, base: &Arc<Pipeline>) {
        self.pipeline.get_or_init(|| match self.tenant.is_default() {
            true => Arc::clone(base),
            false => Arc::new(base.of_tenant(&self.tenant)),
        });
    }

    fn read_ahead(&self, readers: &Readers) -> io::Result<()> {
        let (Ok(registry), Some(pipeline)) = (self.registry(), self.pipeline()) else { return Ok(()) };
        let reader = Ahead::new(Arc::clone(pipeline), readers.busy.clone(), Arc::clone(&readers.turn));
        *lock(&self.warmer) = Some(Warmer::start(registry, Arc::new(reader))?);
        Ok(())
    }
}

impl Drop for TenantState {
    /// Its threads are waited for, which is nothing to do where connections are carried.
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
    const KIND: &'static str = "kv";

    fn bytes(&self) -> usize {
        self.bytes()
    }
}
