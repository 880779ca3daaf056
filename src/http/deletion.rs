//! Deletes what the daemon keeps: what was derived from deleted chunks, and all data of a tenant.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::Serialize;
use thresher_core::domain::{Chunk, Tenant};
use thresher_core::plain::Quoted;
use thresher_registry::{Change, Registry, RegistryError};

use super::connections::RequestHandle;
use super::originals::store_error;
use super::service::Admin;
use super::{Scope, Service};
use crate::error::{ApiError, ErrorCode};
use crate::executor::run_blocking;
use crate::tenants::TenantState;

/// The path of a tenant's data on the admin listener.
pub const TENANT: &str = "/admin/tenants/{name}";

/// The chunks that are deleted at once.
const BATCH_COUNT: usize = 1_000;

/// The bytes of text of the chunks that are deleted at once.
const BATCH_BYTES_MAX: usize = 32 << 20;

/// How often, and after which time, a batch is tried again while the registry is busy.
const RETRIES_MAX: usize = 50;
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// What was deleted of a tenant.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "TenantDeleted")]
pub struct TenantDeleted {
    pub tenant: String,
    /// Registered chunks. Their texts are gone from all files within a minute.
    pub chunks: u64,
    /// Originals, sessions, and records of what was sent.
    pub originals: u64,
    /// Cached blocks of this machine.
    pub blocks: u64,
}

/// Removes what was derived from chunks that were deleted: their blocks, and recent compressions that can cite them.
pub fn forget(scope: &Scope, deleted: &[Arc<Chunk>]) {
    if let Some(pipeline) = scope.pipeline() {
        pipeline.forget(deleted);
    }
    let all: HashSet<(&str, &str)> = deleted.iter().map(|chunk| (&*chunk.id, &*chunk.text)).collect();
    let is_deleted = |chunk: &Arc<Chunk>| all.contains(&(&*chunk.id, &*chunk.text));
    scope.handles().retain(|request| !request.chunks.iter().any(is_deleted));
    if !deleted.is_empty() {
        // An export does not say which texts its keys and values are of.
        scope.kv_handles().retain(|_| false);
    }
}

/// Headers that a proxy on this machine adds to requests from elsewhere.
const FORWARDED: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// Lets requests pass that come from this machine, and not through a proxy on it: the admin listener needs no key. Every connection of a daemon
/// has a handle.
pub async fn only_local(request: Request, next: Next) -> Response {
    let is_local = request.extensions().get::<RequestHandle>().is_none_or(RequestHandle::is_local);
    let is_forwarded = FORWARDED.iter().any(|name| request.headers().contains_key(*name));
    if is_local && !is_forwarded { next.run(request).await } else { ApiError::not_local().into_response() }
}

/// `DELETE /admin/tenants/{name}`: deletes all data of a tenant. Its keys stay in the file of keys.
pub async fn delete_tenant(
    State(admin): State<Admin>,
    Path(name): Path<String>,
) -> Result<Json<TenantDeleted>, ApiError> {
    let tenant = if name == DEFAULT { Some(Tenant::default()) } else { Tenant::new(&name) };
    let tenant = tenant.ok_or_else(|| ApiError::tenant_invalid(&name))?;
    // A client that disconnects must not leave half of the data.
    let deleting = tokio::spawn(deleted(admin.service, tenant));
    deleting.await.unwrap_or_else(|_panicked| Err(ApiError::internal())).map(Json)
}

/// The tenant of a daemon without keys, in paths. No other tenant has such a name.
pub const DEFAULT: &str = "@default";

async fn deleted(service: Service, tenant: Tenant) -> Result<TenantDeleted, ApiError> {
    let state = run_blocking({
        let (service, tenant) = (service.clone(), tenant.clone());
        move || service.opened_tenant(&tenant).ok_or_else(|| ApiError::tenant_unknown(tenant.name()))
    })
    .await?;
    let pipeline = state.pipeline().cloned().ok_or_else(ApiError::model_not_ready)?;
    let registry = state.registry()?;
    let mut found = TenantDeleted {
        tenant: tenant.name().to_owned(),
        blocks: pipeline.forget_all() as u64,
        ..TenantDeleted::default()
    };
    // Not more than there were: a client may go on registering.
    let most = registry.progress().registered as u64;
    while found.chunks < most {
        let listing = Arc::clone(&state);
        let listed =
            run_blocking(move || Ok(listing.registry()?.list(None, BATCH_COUNT, BATCH_BYTES_MAX)?.chunks));
        let chunks = listed.await?;
        if chunks.is_empty() {
            break;
        }
        delete(registry, &chunks).await?;
        found.chunks += chunks.len() as u64;
        pipeline.forget(&chunks);
    }
    // Requests and the read-ahead may have read some in the meantime.
    pipeline.forget_all();
    clear(&state);
    let originals = service.originals().clone();
    found.originals =
        run_blocking(move || originals.delete_tenant(tenant.name()).map_err(|error| store_error(&error)))
            .await?;
    tracing::info!(
        tenant = found.tenant,
        chunks = found.chunks,
        originals = found.originals,
        blocks = found.blocks,
        "a tenant's data was deleted"
    );
    Ok(found)
}

async fn delete(registry: &Registry, chunks: &[Arc<Chunk>]) -> Result<(), ApiError> {
    for _ in 0..RETRIES_MAX {
        let changes = chunks.iter().map(|chunk| Change::Delete(chunk.id.clone())).collect();
        match registry.write(changes).await {
            Err(RegistryError::Overloaded) => tokio::time::sleep(RETRY_DELAY).await,
            written => return Ok(written.map(drop)?),
        }
    }
    Err(RegistryError::Overloaded.into())
}

fn clear(state: &TenantState) {
    state.handles().retain(|_| false);
    state.kv_handles().retain(|_| false);
    state.savings().clear();
}

impl ApiError {
    fn not_local() -> Self {
        let message =
            "tenants can be deleted from the daemon's own machine only; run `thresher tenant delete` there";
        Self::new(ErrorCode::OriginNotAllowed, message)
    }

    fn tenant_unknown(name: &str) -> Self {
        let message = format!("there is no data of a tenant {}", Quoted(name));
        Self::with_param(ErrorCode::IdUnknown, message, "name")
    }

    fn tenant_invalid(name: &str) -> Self {
        let message = format!("{} is not the name of a tenant", Quoted(name));
        Self::with_param(ErrorCode::InvalidValue, message, "name")
    }
}
