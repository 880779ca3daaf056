//! `/mcp`: `compress` and `attribute` as tools, through the same door as the requests of these names.

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use http_body_util::Full;

use super::error::HttpError;
use super::{Scope, attribute, body, compress, observe, work};
use crate::api::{AttributeAnswer, CompressAnswer, ErrorBody};
use crate::mcp::{self, Answers};

/// Where the tools are.
pub const PATH: &str = "/mcp";

/// One request of the streamable HTTP transport.
pub async fn handle(service: Scope, request: Request) -> Result<Response, HttpError> {
    let (head, body) = request.into_parts();
    let body = body::whole(&service, &head.headers, body, body::Max::of(&service)).await?;
    // The SDK builds a tree of the whole message before a tool is called.
    let limits = service.limits.bodies;
    let body = work::aside(move || {
        limits.check_tree(&body, None)?;
        Ok(body)
    })
    .await?;
    let request = Request::from_parts(head, Full::new(body.into()));
    let origins = service.origins.named();
    let mut response = mcp::serve_http(Calls { service }, request, origins).await.map(Body::new);
    // The SDK leaves out what its sentences are written in.
    if !response.status().is_success() {
        response
            .headers_mut()
            .entry(CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    Ok(response)
}

/// Calls of one caller.
#[derive(Clone)]
struct Calls {
    service: Scope,
}

impl Answers for Calls {
    const REMEMBERS: bool = true;

    async fn compress(&self, body: Vec<u8>) -> Result<CompressAnswer, ErrorBody> {
        counted("compress", compress::answer(self.service.clone(), body).await)
    }

    async fn attribute(&self, body: Vec<u8>) -> Result<AttributeAnswer, ErrorBody> {
        counted("attribute", attribute::answer(self.service.clone(), body).await)
    }
}

fn counted<T>(tool: &'static str, answer: Result<T, HttpError>) -> Result<T, ErrorBody> {
    observe::tool(tool, answer.as_ref().map_or_else(HttpError::code, |_| "ok"));
    answer.map_err(|error| error.into_body().error)
}
