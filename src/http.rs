//! The public listener: routes and layers, in the order in which a request meets them.

pub mod admin;
mod body;
mod compress;
mod error;
mod observe;
mod serve;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;

pub use self::error::HttpError;
pub use self::serve::serve;
use crate::admission::Admission;
use crate::pipeline::Pipeline;
use crate::pipeline::score::Scoring;

/// What handlers share.
#[derive(Clone)]
pub struct Service {
    /// Filled once the model is loaded and warmed up.
    pub pipeline: Arc<OnceLock<Pipeline>>,
    /// Who may work.
    pub admission: Admission,
    /// Bounds of being served.
    pub limits: ServeLimits,
}

/// Bounds of being served.
#[derive(Debug, Clone, Copy)]
pub struct ServeLimits {
    /// Bytes of one request body.
    pub body_bytes_max: usize,
    /// For a request's head, and again for its body, to arrive.
    pub read_max: Duration,
    /// For requests that name no deadline.
    pub deadline_default: Duration,
    /// The longest deadline that a request may name.
    pub deadline_max: Duration,
}

impl Service {
    /// The pipeline, once there is one.
    fn ready(&self) -> Result<&Pipeline, HttpError> {
        self.pipeline.get().ok_or_else(HttpError::not_ready)
    }
}

/// All public routes.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/v1/compress", post(compress::handle))
        .route("/v1/models", get(models))
        .fallback(async || HttpError::not_found())
        .method_not_allowed_fallback(async || HttpError::method_not_allowed())
        // A panic is a bug of ours: the caller gets a 500, the process lives, the log says where.
        .layer(CatchPanicLayer::custom(error::from_panic))
        // Outermost, so that every answer is counted, a panic's too.
        .layer(middleware::from_fn(observe::request))
        .with_state(service)
}

async fn models(State(service): State<Service>) -> Result<Json<Value>, HttpError> {
    let pipeline = service.ready()?;
    let model = pipeline.model();
    Ok(Json(json!({
        "object": "list",
        "data": [{
            "id": model.name,
            "object": "model",
            "fingerprint": model.fingerprint,
            "window_tokens_max": model.window_tokens_max,
            "heads": model.heads,
            "head_dim": model.head_dim,
            "estimator": Scoring::default().to_string(),
        }],
    })))
}
