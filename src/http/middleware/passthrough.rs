//! Paths of the API of a model that the middleware does not read: embeddings, token counts, files, batches, and so on. They go to an upstream as
//! they are, with the same rules for keys and headers, and their answers come back as they are.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};

use super::forward::Forwarder;
use super::upstream::Upstream;
use super::{Middleware, Scope, body};
use crate::error::ApiError;
use crate::http::traces::model_call::{Call, ModelCall};
use crate::middleware::dialect::Dialect;
use crate::middleware::json::Located;

/// The route of all paths below `/v1` that no other route has.
pub const ROUTE: &str = "/v1/{*path}";

/// The paths of Anthropic's Messages.
const MESSAGES: &str = "/v1/messages";

/// The path of models, which the id of one may follow.
const MODELS: &str = "/v1/models/";

/// Passes a request on to the upstream that has its model. A request that names no model goes to the only upstream, or to the first one that has
/// any model.
pub async fn handle(service: Scope, method: Method, uri: Uri, headers: HeaderMap, body: Body) -> Response {
    // A mistake in one of the daemon's own paths must not reach another server.
    if service.middleware.is_off() || is_ours(uri.path()) {
        return ApiError::not_found(&crate::http::paths()).into_response();
    }
    let dialect = dialect_of(uri.path(), &headers);
    let response = pass_on(service, (dialect, method, uri), headers, body).await;
    response.unwrap_or_else(|error| error.dialect_response(dialect))
}

async fn pass_on(
    service: Scope,
    (dialect, method, uri): (Dialect, Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let middleware = Arc::clone(&service.middleware);
    let is_json = body::check_json(&headers).is_ok();
    if let Err(error) = middleware.check_hops(&headers).and_then(|()| check_sender(&service, &headers)) {
        body::discard(body, &service).await;
        return Err(error);
    }
    let slot = middleware.request_slot(service.claim())?;
    let limit =
        body::BodyLimit { bytes: middleware.settings.body_bytes_max, setting: "middleware.body_bytes_max" };
    let body = body::collect(body, limit, &service).await?;
    let model = match uri.path().strip_prefix(MODELS) {
        Some(model) => Some(percent_encoding::percent_decode_str(model).decode_utf8_lossy().into_owned()),
        None if is_json => model_in(&body),
        None => None,
    };
    let upstream = choose(&middleware, model.as_deref())?;
    let body = service.body_memory().transfer(body, 0);
    let mut call = ModelCall::begin(&Call {
        dialect,
        method: method.as_str(),
        path: uri.path(),
        model: model.as_deref().unwrap_or_default(),
        upstream: upstream.base(),
        body: &body,
    });
    let reads_answer = call.is_recording();
    let answer = call.send(upstream.send((dialect, method, &uri), &headers, body, reads_answer)).await?;
    let forwarder =
        Forwarder { service, dialect, sources: None, tally: None, silence_max: upstream.silence_max(), call };
    Ok(forwarder.forward(answer, slot).await)
}

/// The upstream for a model, or for a request without one.
fn choose<'a>(middleware: &'a Middleware, model: Option<&str>) -> Result<&'a Upstream, ApiError> {
    match model {
        Some(model) => middleware.upstream(model).ok_or_else(|| ApiError::model_unknown(model)),
        None => {
            middleware.only_upstream().or_else(|| middleware.upstream("")).ok_or_else(ApiError::model_missing)
        }
    }
}

/// Checks that no web page can have sent the request without asking first: a page may send forms and plain text to any server, but no JSON and
/// no keys.
fn check_sender(service: &Scope, headers: &HeaderMap) -> Result<(), ApiError> {
    let has_key = headers.contains_key(AUTHORIZATION) || headers.contains_key("x-api-key");
    match headers.contains_key(CONTENT_TYPE) && !has_key && !service.is_keyed() {
        true => body::check_json(headers),
        false => Ok(()),
    }
}

/// Whether a path begins as one of the daemon's own paths does, apart from those of the middleware.
fn is_ours(path: &str) -> bool {
    let first = |path: &str| path.trim_start_matches("/v1/").split('/').next().unwrap_or_default().to_owned();
    let of_models = ["chat", "responses", "messages", "models"];
    let name = first(path);
    let ours = crate::http::paths().into_iter().filter(|path| path.starts_with("/v1/")).map(first);
    !of_models.contains(&&*name) && ours.into_iter().any(|ours| ours == name)
}

fn dialect_of(path: &str, headers: &HeaderMap) -> Dialect {
    let below = path.strip_prefix(MESSAGES).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if below || headers.contains_key("anthropic-version") { Dialect::Messages } else { Dialect::Chat }
}

/// The model that a JSON body names.
fn model_in(body: &[u8]) -> Option<String> {
    let body = std::str::from_utf8(body).ok()?;
    Located::parse(body).ok()?.text_of("model")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_begin_as_the_daemons_own_are_not_passed_on() {
        let check = |path: &str, expect: bool| assert_eq!(is_ours(path), expect, "{path}");
        check("/v1/compress/x", true);
        check("/v1/attribute/strem", true);
        check("/v1/chunks/a/b", true);
        check("/v1/usage/x", true);
        check("/v1/embeddings", false);
        check("/v1/messages/count_tokens", false);
        check("/v1/chat/completions/x", false);
        check("/v1/models/gpt-5", false);
        check("/v1/", false);
    }

    #[test]
    fn the_api_of_a_request_is_known_by_its_path_or_its_version() {
        let check = |path: &str, version: bool, expect: Dialect| {
            let mut headers = HeaderMap::new();
            if version {
                headers.insert("anthropic-version", "2023-06-01".parse().expect("a value"));
            }
            assert_eq!(dialect_of(path, &headers), expect, "{path} {version}");
        };
        check("/v1/messages/count_tokens", false, Dialect::Messages);
        check("/v1/messagesx", false, Dialect::Chat);
        check("/v1/models/claude-sonnet-5", true, Dialect::Messages);
        check("/v1/embeddings", false, Dialect::Chat);
    }
}
