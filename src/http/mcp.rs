//! `/mcp`: the MCP tools `compress`, `attribute`, `retrieve` and `search`, which run as the requests of these names.

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use http_body_util::{BodyExt as _, Full};

use super::error::ResponseCode;
use super::{Scope, attribute, body, compress, media_type, observe, originals, registry};
use crate::api::{AttributeAnswer, CompressAnswer, OriginalAnswer, SearchAnswer};
use crate::error::{ApiError, ErrorCode};
use crate::executor::run_blocking;
use crate::mcp::{self, Refusal, Tools};

pub const PATH: &str = "/mcp";

/// `POST /mcp`: one request of the streamable HTTP transport.
pub async fn handle(service: Scope, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = body::whole(&service, &head.headers, body, service.settings.body_bytes_max).await?;
    // The SDK parses the whole message into a tree before it calls a tool.
    let limits = service.limits();
    let (body, checked) = run_blocking(move || {
        limits.check_tree(&body, None)?;
        let checked = Refusal::check(&body);
        Ok((body, checked))
    })
    .await?;
    if let Err(refusal) = checked {
        let status = if refusal.has_id() { StatusCode::OK } else { StatusCode::BAD_REQUEST };
        return Ok(refusal_response(status, &refusal));
    }
    // The SDK refuses other types of JSON, such as application/vnd.api+json.
    let is_named_json = media_type::media_type(&head.headers).is_some_and(|kind| kind == "application/json");
    let request = Request::from_parts(head, Full::new(body.into()));
    let origins = service.origins.origins();
    let response = mcp::serve_http(CallerTools { service }, request, origins).await;
    let status = response.status();
    if status.is_success() || response.headers().contains_key(CONTENT_TYPE) {
        return Ok(response.map(Body::new));
    }
    // The SDK answers some mistakes with a plain sentence instead of a JSON-RPC error.
    let sentence = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let sentence = String::from_utf8_lossy(&sentence);
    Ok(match status {
        // The media type is right, so this is the answer of the SDK to a message that it cannot parse.
        StatusCode::UNSUPPORTED_MEDIA_TYPE if is_named_json => {
            refusal_response(StatusCode::BAD_REQUEST, &Refusal::message(&sentence))
        }
        status => refusal_response(status, &Refusal::request(&sentence)),
    })
}

/// A response with a JSON-RPC error: clients of the protocol read no other errors.
fn refusal_response(status: StatusCode, refusal: &Refusal) -> Response {
    let mut response = (status, Json(refusal.to_json())).into_response();
    let code = if refusal.is_no_json() { ErrorCode::InvalidJson.as_str() } else { "mcp_refused" };
    response.extensions_mut().insert(ResponseCode(code));
    response
}

/// The tools, as one caller may use them.
#[derive(Clone)]
struct CallerTools {
    service: Scope,
}

impl Tools for CallerTools {
    const HAS_REGISTRY: bool = true;

    async fn compress(&self, body: Vec<u8>) -> Result<CompressAnswer, ApiError> {
        counted("compress", compress::answer(self.service.clone(), body).await)
    }

    async fn attribute(&self, body: Vec<u8>) -> Result<AttributeAnswer, ApiError> {
        counted("attribute", attribute::answer(self.service.clone(), body).await)
    }

    async fn retrieve(&self, body: Vec<u8>) -> Result<OriginalAnswer, ApiError> {
        counted("retrieve", originals::answer(self.service.clone(), body).await)
    }

    async fn search(&self, body: Vec<u8>) -> Result<SearchAnswer, ApiError> {
        counted("search", registry::answer(self.service.clone(), body).await)
    }
}

fn counted<T>(tool: &'static str, answer: Result<T, ApiError>) -> Result<T, ApiError> {
    observe::tool(tool, answer.as_ref().map_or_else(|error| error.code.as_str(), |_| "ok"));
    answer
}
