//! The admin listener: probes for liveness and readiness, metrics, the savings of all tenants, and the page.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{delete, get};
use metrics::gauge;

use super::connections::RequestHandle;
pub use super::service::Admin;
use super::{OriginPolicy, deletion, memory, origin, page, savings};
use crate::error::ApiError;

/// The routes `/livez`, `/readyz`, `/metrics`, `/v1/savings` and `DELETE /admin/tenants/{name}`, and the page that shows savings, for the hosts
/// that `origins` allows.
pub fn router(admin: Admin, origins: OriginPolicy) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/v1/savings", get(savings::show_all))
        .route(
            deletion::TENANT,
            delete(deletion::delete_tenant).layer(axum::middleware::from_fn(deletion::only_local)),
        )
        .fallback(async || {
            ApiError::not_found(&["/livez", "/readyz", "/metrics", "/v1/savings", deletion::TENANT])
        })
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .merge(page::router(admin.service.settings.page))
        .layer(axum::middleware::from_fn_with_state(origins, origin::guard))
        .layer(axum::middleware::from_fn(accept))
        .with_state(admin)
}

/// Accepts every request, since the admin listener needs no keys: its connection is not evicted while it is in flight.
async fn accept(request: Request, next: Next) -> Response {
    if let Some(handle) = request.extensions().get::<RequestHandle>() {
        handle.accept();
    }
    next.run(request).await
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    match admin.service {
        ref service if service.admission.is_draining() => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        ref service if !service.is_ready() => (StatusCode::SERVICE_UNAVAILABLE, "loading the model\n"),
        _ => (StatusCode::OK, "ok\n"),
    }
}

async fn metrics(State(admin): State<Admin>) -> String {
    gauge!("requests_waiting").set(admin.service.admission.waiting() as f64);
    memory::observe(&admin.service.bodies, &admin.service.answers);
    gauge!("block_bytes_held").set(admin.service.block_bytes_held() as f64);
    for (store, bytes) in admin.service.store_bytes_held() {
        gauge!("store_bytes_held", "store" => store).set(bytes as f64);
    }
    // Of all tenants together, since this is for the operator.
    let progress = admin.service.progress_of_all();
    for (state, count) in [("warm", progress.warm), ("queued", progress.queued), ("failed", progress.failed)]
    {
        gauge!("registry_chunks", "state" => state).set(count as f64);
    }
    (admin.render)()
}
