//! The state that handlers share, and the view of it that one caller has: handlers reach the data of tenants only through the [`Scope`] of
//! the caller of a request.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use thresher_core::domain::Tenant;
use thresher_core::memory::MemoryPool;
use thresher_core::pipeline::Pipeline;
use thresher_registry::{Progress, Registry};

use super::Middleware;
use super::memory::BodyMemory;
use super::origin::OriginPolicy;
use crate::access::{Access, Caller, Denied};
use crate::admission::{Admission, Sharer};
use crate::api::BodyLimits;
use crate::error::ApiError;
use crate::executor::{Executor, TimeLimits};
use crate::kv_export::KvExportFile;
use crate::middleware::untouched::TextKinds;
use crate::originals::{Originals, TenantOriginals};
use crate::receipt::{KeyError, SigningKey};
use crate::savings::ledger::Ledger;
use crate::tenants::ttl_store::{RecentRequest, TtlStore};
use crate::tenants::{NoRegistry, TenantState, Tenants};

#[derive(Clone)]
pub struct Service {
    pub receipts: Arc<ReceiptKey>,
    pub middleware: Arc<Middleware>,
    pub admission: Admission,
    pub settings: Arc<ServeSettings>,
    /// Which hosts and web pages may send requests.
    pub origins: OriginPolicy,
    /// The memory that all request bodies share.
    pub bodies: MemoryPool,
    /// The memory that all answers share until their clients have read them.
    pub answers: MemoryPool,
    pub data: TenantData,
}

#[derive(Clone)]
pub struct Admin {
    pub service: Service,
    /// Renders all metrics in the text format of Prometheus.
    pub render: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What handlers read of the settings and limits.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    pub page: bool,
    pub time_limits: TimeLimits,
    /// The bytes of a body, for requests that the daemon answers itself.
    pub body_bytes_max: usize,
    /// How long the first byte of a body may take to arrive.
    pub read_max: Duration,
    pub limits: BodyLimits,
    pub prefilter: Prefilter,
    /// The number of chunks that one tenant may register.
    pub registered_chunk_count_max: usize,
}

/// How many of the registered chunks that a request names are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefilter {
    /// If a request names more chunks, words choose among them (BM25).
    pub above: usize,
    /// The number of chunks that words choose.
    pub to: usize,
}

impl Default for Prefilter {
    /// Scoring so many cached chunks takes about a second.
    fn default() -> Self {
        Self { above: 10_000, to: 10_000 }
    }
}

/// The data of tenants, which handlers reach only through a [`Scope`].
#[derive(Clone)]
pub struct TenantData {
    access: Access,
    tenants: Tenants,
    originals: Originals,
}

impl TenantData {
    /// Data of `tenants`, who are known by `access`. `originals` is the store of original texts.
    pub fn new(access: Access, tenants: Tenants, originals: Originals) -> Self {
        Self { access, tenants, originals }
    }
}

/// The service as the caller of one request sees it: with the data of its tenant, and no other's.
#[derive(Clone)]
pub struct Scope {
    service: Service,
    executor: Executor,
    tenant_state: Arc<TenantState>,
    body_memory: Arc<BodyMemory>,
}

/// The private key of receipts. It is read, or created, for the first receipt.
#[derive(Default)]
pub struct ReceiptKey {
    file: PathBuf,
    key: OnceLock<SigningKey>,
}

impl ReceiptKey {
    pub fn at(file: &Path) -> Self {
        Self { file: file.to_owned(), key: OnceLock::new() }
    }

    fn get(&self) -> Result<&SigningKey, KeyError> {
        match self.key.get() {
            Some(key) => Ok(key),
            None => {
                let key = SigningKey::at(&self.file)?;
                Ok(self.key.get_or_init(|| key))
            }
        }
    }
}

impl Service {
    pub(super) fn limits(&self) -> BodyLimits {
        self.settings.limits
    }

    pub(super) fn authenticate(&self, key: Option<&str>) -> Result<Caller, Denied> {
        self.data.access.admit(key, Instant::now())
    }

    pub(super) fn is_keyed(&self) -> bool {
        self.data.access.is_keyed()
    }

    /// Whether the model has been loaded.
    pub(super) fn is_ready(&self) -> bool {
        self.data.tenants.is_ready()
    }

    /// Registered chunks of all tenants together, for operators.
    pub(super) fn progress_of_all(&self) -> Progress {
        self.data.tenants.progress()
    }

    /// The memory of the blocks of requests, for operators.
    pub(super) fn block_bytes_held(&self) -> usize {
        self.data.tenants.block_bytes_held()
    }

    /// The memory of the stores of all tenants, by the store, for operators.
    pub(super) fn store_bytes_held(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let originals = self.data.originals.cached_bytes() as u64;
        self.data.tenants.store_bytes().into_iter().chain([("originals", originals)])
    }

    /// The data of a tenant, which is opened if it is not; none if there is nothing of it.
    pub(super) fn opened_tenant(&self, tenant: &Tenant) -> Option<Arc<TenantState>> {
        self.data.tenants.opened(tenant)
    }

    /// The original texts of all tenants, for operators.
    pub fn originals(&self) -> &Originals {
        &self.data.originals
    }

    /// The data of all tenants, for operators.
    pub(super) fn all_tenants(&self) -> Vec<Arc<TenantState>> {
        self.data.tenants.all()
    }

    /// The tenant as one of those that share slots and memory.
    pub(super) fn sharer_of<'a>(&self, tenant: &'a Tenant) -> Sharer<'a> {
        Sharer { tenant, has_rivals: self.data.access.is_shared() }
    }

    /// The private key of receipts.
    ///
    /// # Errors
    /// `internal`; the cause is logged.
    pub(super) fn signing_key(&self) -> Result<&SigningKey, ApiError> {
        self.receipts.get().map_err(|error| {
            tracing::error!(%error, "receipts cannot be signed");
            ApiError::receipt_failed()
        })
    }
}

impl From<NoRegistry> for ApiError {
    fn from(reason: NoRegistry) -> Self {
        match reason {
            NoRegistry::NotYet => Self::registry_not_ready(),
            NoRegistry::Unusable => Self::registry_unusable(),
        }
    }
}

impl Scope {
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// The pipeline as the tenant sees it.
    ///
    /// # Errors
    /// `not_ready` while the model is being loaded.
    pub fn ready(&self) -> Result<&Pipeline, ApiError> {
        self.executor.ready()
    }

    /// The pipeline as the tenant sees it; none while the model is being loaded.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.executor.pipeline()
    }

    /// The name of the model that scores; none while it is being loaded.
    pub fn model_name(&self) -> Option<&str> {
        self.pipeline().map(|pipeline| &*pipeline.model().name)
    }

    /// The registry of the tenant.
    ///
    /// # Errors
    /// `not_ready` while it is being opened; `storage_failed`.
    pub fn registry(&self) -> Result<&Registry, ApiError> {
        Ok(self.tenant_state.registry()?)
    }

    pub fn handles(&self) -> &TtlStore<RecentRequest> {
        self.tenant_state.handles()
    }

    pub fn kv_handles(&self) -> &TtlStore<KvExportFile> {
        self.tenant_state.kv_handles()
    }

    /// The kinds of texts that the tenant sent through the middleware.
    pub fn text_kinds(&self) -> &TextKinds {
        self.tenant_state.text_kinds()
    }

    /// What the middleware saved for the tenant since the daemon started.
    pub fn savings(&self) -> &Ledger {
        self.tenant_state.savings()
    }

    pub fn originals(&self) -> TenantOriginals {
        self.service.data.originals.tenant(self.tenant().name())
    }

    pub fn caller(&self) -> &Caller {
        &self.executor.caller
    }

    /// The memory of the body of this request. It is freed when the last clone of the scope is dropped.
    pub fn body_memory(&self) -> &BodyMemory {
        &self.body_memory
    }

    pub fn tenant(&self) -> &Tenant {
        self.tenant_state.tenant()
    }

    /// The tenant as one of those that share slots and memory.
    pub fn sharer(&self) -> Sharer<'_> {
        self.executor.sharer()
    }
}

impl Deref for Scope {
    type Target = Service;

    fn deref(&self) -> &Service {
        &self.service
    }
}

impl FromRequestParts<Service> for Scope {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, ApiError> {
        let Some(caller) = parts.extensions.get::<Caller>().cloned() else {
            tracing::error!("a route is outside the layer that authenticates requests");
            return Err(ApiError::internal());
        };
        let tenant_state =
            service.data.tenants.get(caller.tenant()).ok_or_else(ApiError::registry_not_ready)?;
        let body_memory = Arc::new(BodyMemory::new(service.bodies.clone()));
        let executor = Executor {
            caller,
            has_rivals: service.data.access.is_shared(),
            admission: service.admission.clone(),
            time_limits: service.settings.time_limits,
            pipeline: Arc::clone(tenant_state.pipeline_slot()),
        };
        Ok(Self { service: service.clone(), executor, tenant_state, body_memory })
    }
}
