//! The listener for operators: is it alive, is it ready, what does it count.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use metrics::gauge;

use super::connections::Begun;
use super::{OriginPolicy, Service, memory, origin};
use crate::error::ApiError;

/// What the admin routes need.
#[derive(Clone)]
pub struct Admin {
    /// The public listener's state.
    pub service: Service,
    /// Writes all metrics in Prometheus' text format.
    pub render: Arc<dyn Fn() -> String + Send + Sync>,
}

/// `/livez`, `/readyz`, `/metrics`, for the hosts that `origins` allows.
pub fn router(admin: Admin, origins: OriginPolicy) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(async || ApiError::not_found(&["/livez", "/readyz", "/metrics"]))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(axum::middleware::from_fn_with_state(origins, origin::guard))
        .layer(axum::middleware::from_fn(accept))
        .with_state(admin)
}

/// No keys are asked for here: every request keeps its connection while it is in flight.
async fn accept(request: Request, next: Next) -> Response {
    if let Some(begun) = request.extensions().get::<Begun>() {
        begun.accept();
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
    memory::observe(admin.service.bodies(), admin.service.answers());
    // Of all tenants: who sees this is no tenant.
    let progress = admin.service.progress_of_all();
    for (state, count) in [("warm", progress.warm), ("queued", progress.queued), ("failed", progress.failed)]
    {
        gauge!("registry_chunks", "state" => state).set(count as f64);
    }
    (admin.render)()
}
