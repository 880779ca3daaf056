//! `GET /health`: whether the daemon answers requests, as `/readyz` of the admin listener says it. Gateways ask the listener that they use.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::Service;
use crate::api::HealthAnswer;

/// The path of the probe. It needs no key.
pub const PATH: &str = "/health";

/// `GET /health`: 200, or 503 while the model is being loaded and while the daemon is shutting down.
pub async fn handle(State(service): State<Service>) -> (StatusCode, Json<HealthAnswer>) {
    let (status, word) = match service {
        ref service if service.admission.is_draining() => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        ref service if !service.is_ready() => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        _ => (StatusCode::OK, "ok"),
    };
    (status, Json(HealthAnswer { status: word, version: env!("CARGO_PKG_VERSION") }))
}
