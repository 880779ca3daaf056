//! What handlers share, and what of it one caller may have: who handles a request comes to a tenant's chunks, blocks and handles
//! through the [`Scope`] of its caller, and by no other way.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use thresher_core::domain::Tenant;
use thresher_core::pipeline::Pipeline;
use thresher_registry::{Progress, Registry};

use super::memory::{BodyMemory, MemoryPool};
use super::origin::OriginPolicy;
use super::{Middleware, ServeLimits};
use crate::access::{Access, Caller, Denied};
use crate::admission::{Admission, Claim};
use crate::error::ApiError;
use crate::executor::{Executor, TimeLimits};
use crate::kv_export::KvExportFile;
use crate::originals::{Originals, TenantOriginals};
use crate::receipt::{KeyError, SigningKey};
use crate::tenants::ttl_store::{RecentRequest, TtlStore};
use crate::tenants::{NoRegistry, TenantState, Tenants};

/// What handlers share. What belongs to tenants is closed up in it.
#[derive(Clone)]
pub struct Service {
    /// What receipts are signed with.
    pub receipts: Arc<ReceiptKey>,
    /// In front of whom we stand.
    pub middleware: Arc<Middleware>,
    /// Who may work.
    pub admission: Admission,
    /// Bounds of being served.
    pub limits: ServeLimits,
    /// Which hosts and web pages may ask.
    pub origins: OriginPolicy,
    bodies: MemoryPool,
    answers: MemoryPool,
    access: Access,
    tenants: Tenants,
    originals: Originals,
}

/// What a service is made of.
pub struct ServiceParts {
    /// Who may ask.
    pub access: Access,
    /// What each tenant has.
    pub tenants: Tenants,
    /// Texts that were shortened, as they were.
    pub originals: Originals,
    /// In front of whom we stand.
    pub middleware: Arc<Middleware>,
    /// What receipts are signed with.
    pub receipts: Arc<ReceiptKey>,
    /// Who may work.
    pub admission: Admission,
    /// Bounds of being served.
    pub limits: ServeLimits,
    /// Which hosts and web pages may ask.
    pub origins: OriginPolicy,
}

/// The service as one caller has it: with what its tenant has, and nobody else's.
#[derive(Clone)]
pub struct Scope {
    service: Service,
    executor: Executor,
    tenant_state: Arc<TenantState>,
    body_memory: Arc<BodyMemory>,
}

/// The key of receipts, which is read, or made, when the first one is asked for.
#[derive(Default)]
pub struct ReceiptKey {
    file: PathBuf,
    key: OnceLock<SigningKey>,
}

impl ReceiptKey {
    /// In this file.
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
    /// Of its parts.
    pub fn new(parts: ServiceParts) -> Self {
        let ServiceParts { access, tenants, originals, middleware, receipts, admission, limits, origins } =
            parts;
        let bodies = MemoryPool::new(limits.bodies_bytes_max);
        let answers = MemoryPool::new(limits.answers_bytes_max);
        Self { receipts, middleware, admission, limits, origins, bodies, answers, access, tenants, originals }
    }

    /// Who asks with this key.
    pub(super) fn admit(&self, key: Option<&str>) -> Result<Caller, Denied> {
        self.access.admit(key, Instant::now())
    }

    /// Whether keys are asked for.
    pub(super) fn is_keyed(&self) -> bool {
        self.access.is_keyed()
    }

    /// Whether there is a model.
    pub(super) fn is_ready(&self) -> bool {
        self.tenants.is_ready()
    }

    /// How much is registered, of all tenants together: for operators.
    pub(super) fn progress_of_all(&self) -> Progress {
        self.tenants.progress()
    }

    /// The memory that the bodies of all requests share.
    pub fn bodies(&self) -> &MemoryPool {
        &self.bodies
    }

    /// The memory that all answers share which clients have not read.
    pub fn answers(&self) -> &MemoryPool {
        &self.answers
    }

    /// A tenant as it asks for its share of what all tenants use.
    pub(super) fn claim_of<'a>(&self, tenant: &'a Tenant) -> Claim<'a> {
        Claim { tenant, has_rivals: self.access.is_shared() }
    }

    /// What receipts are signed with.
    pub(super) fn signing_key(&self) -> Result<&SigningKey, ApiError> {
        self.receipts.get().map_err(|error| {
            tracing::error!(%error, "receipts cannot be signed");
            ApiError::receipt_failed()
        })
    }
}

impl Scope {
    /// Runs the caller's work.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// The tenant's view of the pipeline, once there is one.
    pub fn ready(&self) -> Result<&Pipeline, ApiError> {
        self.executor.ready()
    }

    /// The same where there may be none yet.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.executor.pipeline()
    }

    /// The tenant's registry, once there is one.
    pub fn registry(&self) -> Result<&Registry, ApiError> {
        self.tenant_state.registry().map_err(|why| match why {
            NoRegistry::NotYet => ApiError::registry_not_ready(),
            NoRegistry::Unusable => ApiError::registry_unusable(),
        })
    }

    /// What earlier requests of the tenant were about.
    pub fn handles(&self) -> &TtlStore<RecentRequest> {
        self.tenant_state.handles()
    }

    /// Keys and values that the tenant may fetch.
    pub fn kv_handles(&self) -> &TtlStore<KvExportFile> {
        self.tenant_state.kv_handles()
    }

    /// Texts of the tenant that were shortened, as they were.
    pub fn originals(&self) -> TenantOriginals {
        self.service.originals.of(self.tenant().name())
    }

    /// Who asks.
    pub fn caller(&self) -> &Caller {
        &self.executor.caller
    }

    /// The tenant_state that the body of this request takes, until the last clone of the scope is dropped.
    pub fn body_memory(&self) -> &BodyMemory {
        &self.body_memory
    }

    /// Whose data this is.
    pub fn tenant(&self) -> &Tenant {
        self.tenant_state.tenant()
    }

    /// The tenant as it asks for its share of what all tenants use.
    pub fn claim(&self) -> Claim<'_> {
        self.executor.claim()
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
            // A route outside the layer that asks for keys: nobody comes in there.
            tracing::error!("a request came past the layer that asks for keys");
            return Err(ApiError::internal());
        };
        let tenant_state = service.tenants.of(caller.tenant()).ok_or_else(ApiError::registry_not_ready)?;
        let body_memory = Arc::new(BodyMemory::new(service.bodies.clone()));
        let ServeLimits { deadline_default, deadline_max, .. } = service.limits;
        let executor = Executor {
            caller,
            has_rivals: service.access.is_shared(),
            admission: service.admission.clone(),
            time_limits: TimeLimits { default: deadline_default, max: deadline_max },
            pipeline: Arc::clone(tenant_state.pipeline_slot()),
        };
        Ok(Self { service: service.clone(), executor, tenant_state, body_memory })
    }
}
