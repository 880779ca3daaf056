//! The HTTP API: the routes and layers of the public listener, and the admin listener.

pub mod admin;
mod attribute;
mod body;
mod compress;
mod connections;
mod deletion;
mod error;
mod health;
mod highlight;
mod keys;
mod kv;
mod mcp;
mod media_type;
mod memory;
mod middleware;
pub mod observe;
pub mod openapi;
pub mod origin;
mod originals;
pub mod page;
mod query;
mod registry;
mod request_id;
mod rerank;
mod savings;
mod serve;
mod service;
pub mod tls;
pub mod traces;

use axum::Router;
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use tower_http::catch_panic::CatchPanicLayer;

pub use self::body::{BODY_BYTES_MAX, READ_MAX};
pub use self::connections::ConnectionLimits;
pub use self::deletion::DEFAULT as DEFAULT_TENANT;

pub use self::middleware::{Middleware, UpstreamError};
pub use self::origin::OriginPolicy;
pub use self::serve::{Serving, serve};
pub use self::service::{Prefilter, ReceiptKey, Scope, ServeSettings, Service, TenantData};
use thresher_core::pipeline::answerable::Answerable;

use crate::error::ApiError;

/// The response header that says whether the chunks answer the question, and with which probability.
const ANSWERABLE: HeaderName = HeaderName::from_static("x-thresher-answerable");

/// The response header that says whether any text is related to the question.
const RELATED: HeaderName = HeaderName::from_static("x-thresher-related");
const RELEVANCE: HeaderName = HeaderName::from_static("x-thresher-relevance");

/// The value of [`ANSWERABLE`], such as `false;p=0.031`.
fn answerable_value(answerable: Answerable) -> HeaderValue {
    let value = format!("{};p={:.3}", answerable.answerable, answerable.probability);
    HeaderValue::try_from(value).expect("ASCII")
}

fn boolean_value(value: bool) -> HeaderValue {
    HeaderValue::from_static(if value { "true" } else { "false" })
}

/// All public paths and their handlers. `openapi` describes each of them.
fn routes() -> Vec<(&'static str, MethodRouter<Service>)> {
    vec![
        ("/v1/compress", post(compress::handle)),
        ("/v1/attribute", post(attribute::handle)),
        ("/v1/chunks", get(registry::list).post(registry::register)),
        ("/v1/chunks/{id}", get(registry::get_one).delete(registry::delete_one)),
        // Under other methods than POST, this is the path of the chunk with the id `delete`.
        (registry::DELETE, get(registry::get_one).delete(registry::delete_one).post(registry::delete_batch)),
        ("/v1/registry", get(registry::progress)),
        ("/v1/search", post(registry::search)),
        ("/v1/rerank", post(rerank::v1)),
        ("/v2/rerank", post(rerank::v2)),
        ("/rerank", tei_rerank()),
        ("/v1/highlight", post(highlight::handle)),
        ("/v1/retrieve/{hash}", get(originals::retrieve)),
        ("/headroom/v1/compress", post(compress::conversation::handle)),
        ("/headroom/v1/retrieve/{hash}", get(originals::retrieve)),
        ("/v1/savings", get(savings::show)),
        ("/v1/kv/{handle}", get(kv::fetch)),
        ("/v1/models", get(middleware::models::handle)),
        ("/v1/chat/completions", post(middleware::chat)),
        ("/v1/responses", post(middleware::responses)),
        ("/v1/messages", post(middleware::messages)),
        (openapi::PATH, get(openapi::handle)),
        (health::PATH, get(health::handle)),
        (mcp::PATH, post(mcp::handle)),
    ]
}

/// The methods of the paths of Text Embeddings Inference, whose errors all have its format.
fn tei_rerank() -> MethodRouter<Service> {
    post(rerank::tei)
        .fallback(async || ApiError::method_not_allowed().tei_response())
        .layer(CatchPanicLayer::custom(error::from_tei_panic))
}

/// The path of a route as [`paths`] has it, without the slash that may follow it.
fn route_of(matched: &str) -> &str {
    matched.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(matched)
}

/// All public paths, with parameters in braces.
pub fn paths() -> Vec<&'static str> {
    routes().into_iter().map(|(path, _)| path).collect()
}

pub fn router(service: Service) -> Router {
    let (origins, cors) = (service.origins.clone(), service.origins.cors());
    // Gateways join paths in different ways, so a slash may follow each of them.
    let with_slash = |router: Router<Service>, (path, methods): (&str, MethodRouter<Service>)| {
        router.route(path, methods.clone()).route(&format!("{path}/"), methods)
    };
    let router = routes()
        .into_iter()
        .fold(Router::new(), with_slash)
        .route(middleware::passthrough::ROUTE, passed_on())
        .fallback(async || ApiError::not_found(&paths()))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        // After a panic, which is a bug, the client gets a 500, the process lives, and the log says where.
        .layer(CatchPanicLayer::custom(error::from_panic))
        // Before any body is read, and around the fallback: a client without a key learns nothing.
        .layer(axum::middleware::from_fn_with_state(service.clone(), keys::authenticate))
        // Outside the keys: the page asks for one.
        .merge(page::router(service.settings.page))
        // Around the keys: web pages that are not allowed do not even learn whether there are keys.
        .layer(axum::middleware::from_fn_with_state(origins, origin::guard));
    // Around the keys, since a browser sends preflight requests without a key.
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    let router = router.layer(axum::middleware::map_response(without_sniffing));
    // Outermost, so that every answer is counted, including those after a panic.
    router.layer(axum::middleware::from_fn(observe::request)).with_state(service)
}

/// Forbids browsers to take the body of an answer for another type than it has.
async fn without_sniffing(mut answer: Response) -> Response {
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

fn passed_on() -> MethodRouter<Service> {
    let handle = middleware::passthrough::handle;
    get(handle).post(handle).put(handle).patch(handle).delete(handle)
}
