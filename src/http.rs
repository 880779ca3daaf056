//! The public listener: routes and layers, in the order in which a request meets them.

pub mod admin;
mod attribute;
mod body;
mod chunks;
mod compress;
mod connections;
mod error;
mod keys;
mod mcp;
mod memory;
mod middleware;
mod named;
mod kv;
pub mod observe;
pub mod openapi;
pub mod origin;
mod originals;
mod query;
mod rerank;
mod search;
mod serve;
mod service;
pub mod tls;

use std::time::Duration;

use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use thresher_core::pipeline::validate::RequestLimits;
use thresher_registry::RegistrySettings;
use tower_http::catch_panic::CatchPanicLayer;

pub use self::connections::ConnectionLimits;

pub use self::memory::MemoryPool;
pub use self::middleware::{Middleware, UpstreamError};
pub use self::origin::OriginPolicy;
pub use self::serve::{Serving, serve};
pub use self::service::{ReceiptKey, Scope, Service, ServiceParts};
use crate::api::{BodyLimits, ModelsAnswer, RegisterLimits, SearchLimits};
use crate::error::ApiError;

/// Bounds of being served.
#[derive(Debug, Clone, Copy)]
pub struct ServeLimits {
    /// Bytes of one request body.
    pub body_bytes_max: usize,
    /// Bytes of memory that the bodies of all requests may take together.
    pub bodies_bytes_max: usize,
    /// Bytes of memory that answers may take together which clients have not read.
    pub answers_bytes_max: usize,
    /// For a request's head, and again for its body, to arrive.
    pub read_max: Duration,
    /// For requests that name no deadline.
    pub deadline_default: Duration,
    /// The longest deadline that a request may name.
    pub deadline_max: Duration,
    /// For an answer that arrives piece by piece.
    pub stream_max: Duration,
    /// Bounds of what request bodies hold.
    pub bodies: BodyLimits,
    /// Bounds of registered chunks.
    pub registry: RegistryLimits,
}

/// Bounds of registered chunks.
#[derive(Debug, Clone, Copy)]
pub struct RegistryLimits {
    /// Of registering.
    pub register: RegisterLimits,
    /// Of searching.
    pub search: SearchLimits,
    /// Registered chunks, in all.
    pub chunk_count_max: usize,
    /// Registered chunks that one request may name.
    pub named_count_max: usize,
    /// Bytes of their text.
    pub named_bytes_max: usize,
    /// A request that names more is prefiltered; 0: never.
    pub prefilter_above: usize,
    /// To this many.
    pub prefilter_to: usize,
}

impl RegistryLimits {
    /// Those of the settings.
    pub fn new(registry: &RegistrySettings, requests: &RequestLimits) -> Self {
        Self {
            register: RegisterLimits {
                chunk_bytes_max: requests.chunk_bytes_max,
                metadata_bytes_max: registry.metadata_bytes_max,
            },
            search: SearchLimits {
                candidate_count_default: registry.candidate_count_default,
                candidate_count_max: registry.candidate_count_max,
            },
            chunk_count_max: registry.chunk_count_max,
            named_count_max: requests.registered_chunk_count_max,
            named_bytes_max: requests.registered_bytes_max,
            prefilter_above: registry.prefilter_above,
            prefilter_to: registry.prefilter_to,
        }
    }
}

/// Every public path and what is served there. Each has its description in `openapi`.
fn routes() -> Vec<(&'static str, MethodRouter<Service>)> {
    vec![
        ("/v1/compress", post(compress::handle)),
        ("/v1/attribute", post(attribute::handle)),
        ("/v1/attribute/stream", post(attribute::stream::handle)),
        ("/v1/chunks", get(chunks::list).post(chunks::register)),
        ("/v1/chunks/{id}", get(chunks::get_one).delete(chunks::delete_one)),
        // A chunk may have any id: this one is reached beside what is posted here.
        (chunks::DELETE, get(chunks::get_one).delete(chunks::delete_one).post(chunks::delete_batch)),
        ("/v1/registry", get(chunks::progress)),
        ("/v1/search", post(search::handle)),
        ("/v1/rerank", post(rerank::v1)),
        ("/v2/rerank", post(rerank::v2)),
        ("/rerank", post(rerank::v1)),
        ("/v1/score", post(rerank::score)),
        ("/score", post(rerank::score)),
        ("/v1/retrieve/{hash}", get(originals::retrieve)),
        ("/v1/kv/{handle}", get(kv::fetch)),
        ("/v1/models", get(models)),
        ("/v1/chat/completions", post(middleware::chat)),
        ("/v1/responses", post(middleware::responses)),
        ("/v1/messages", post(middleware::messages)),
        (mcp::PATH, post(mcp::handle)),
        (openapi::PATH, get(openapi::handle)),
    ]
}

/// Every public path, as it is routed: parameters in braces.
pub fn paths() -> Vec<&'static str> {
    routes().into_iter().map(|(path, _)| path).collect()
}

/// All public routes.
pub fn router(service: Service) -> Router {
    let (origins, cors) = (service.origins.clone(), service.origins.cors());
    let router = routes()
        .into_iter()
        .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
        .fallback(async || ApiError::not_found(&paths()))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        // A panic is a bug of ours: the caller gets a 500, the process lives, the log says where.
        .layer(CatchPanicLayer::custom(error::from_panic))
        // Before anything is read of a request, and around what is no route, too: who has no key learns nothing.
        .layer(axum::middleware::from_fn_with_state(service.clone(), keys::ask))
        // Web pages that may not ask learn not even whether there are keys.
        .layer(axum::middleware::from_fn_with_state(origins, origin::guard));
    // A browser asks without a key whether a page may ask with one.
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    // Outermost, so that every answer is counted, a panic's too.
    router.layer(axum::middleware::from_fn(observe::request)).with_state(service)
}

async fn models(service: Scope) -> Result<Json<ModelsAnswer>, ApiError> {
    Ok(Json(ModelsAnswer::new(service.ready()?)))
}
