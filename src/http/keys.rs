//! The layer that authenticates requests by their keys. It gives each request its caller, and reads no body of a request without a valid key.

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, EXPECT};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::connections::RequestHandle;
use super::memory;
use super::observe::KeyName;
use super::{Service, body, health, openapi, route_of};
use crate::access::KEY_PREFIX;
use crate::error::ApiError;
use crate::middleware::dialect::Dialect;
use thresher_core::memory::PoolExhausted;

/// The header for the key of a client whose `Authorization` is for an upstream.
const KEY: &str = "x-thresher-key";

/// Layer around all routes and the fallback.
pub async fn authenticate(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    // The OpenAPI document is the same for all callers, and says that keys are needed. Probes have no key.
    let is_open = |path: &MatchedPath| [openapi::PATH, health::PATH].contains(&route_of(path.as_str()));
    if path.as_ref().is_some_and(is_open) {
        return next.run(request).await;
    }
    let authenticated = service.authenticate(key_in(request.headers()));
    remove_keys(request.headers_mut(), service.is_keyed());
    let (name, mut response) = match authenticated {
        Ok(caller) => {
            if let Some(handle) = request.extensions().get::<RequestHandle>() {
                handle.accept();
            }
            let tenant = caller.tenant().clone();
            let name = caller.key_name().cloned();
            if let Some(name) = &name {
                tracing::Span::current().record("key", &**name);
            }
            request.extensions_mut().insert(caller);
            let answer = next.run(request).await;
            let answer = memory::account(&service.answers, service.sharer_of(&tenant), answer);
            (
                name,
                answer.unwrap_or_else(|PoolExhausted| {
                    error_response(ApiError::answer_memory_full(), path.as_ref().map(MatchedPath::as_str))
                }),
            )
        }
        Err(denied) => {
            let name = denied.name().cloned();
            let expects_continue = request.headers().contains_key(EXPECT);
            if !expects_continue {
                body::discard_unauthenticated(request.into_body()).await;
            }
            (name, error_response(denied.into(), path.as_ref().map(MatchedPath::as_str)))
        }
    };
    if let Some(name) = name {
        response.extensions_mut().insert(KeyName(name));
    }
    response
}

/// The error in the format of the API that the path belongs to, or else in one in which every client finds the message.
fn error_response(error: ApiError, path: Option<&str>) -> Response {
    match path.map(route_of) {
        Some("/v1/messages") => error.dialect_response(Dialect::Messages),
        Some("/v1/chat/completions" | "/v1/responses") => error.dialect_response(Dialect::Chat),
        Some("/rerank") => error.tei_response(),
        _ => error.rerank_response(),
    }
}

/// Removes keys for this daemon, so that they are not passed on. An `Authorization` beside `x-thresher-key` is for the upstream, and stays.
fn remove_keys(headers: &mut HeaderMap, is_keyed: bool) {
    let was_in_authorization = headers.remove(KEY).is_none();
    if was_in_authorization && is_keyed {
        headers.remove(AUTHORIZATION);
    }
    // A client may have put a key for this daemon where the key for an upstream belongs.
    for name in [AUTHORIZATION, HeaderName::from_static("x-api-key")] {
        let is_daemon_key = |value: &HeaderValue| {
            let value = value.as_bytes();
            value.split(|&byte| byte == b' ').any(|word| word.starts_with(KEY_PREFIX.as_bytes()))
        };
        if headers.get_all(&name).iter().any(is_daemon_key) {
            headers.remove(name);
        }
    }
}

/// The key of a request. One that is not text becomes empty, which is no valid key.
fn key_in(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get(KEY) {
        return Some(key.to_str().unwrap_or_default().trim());
    }
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_for_this_daemon_are_removed_and_others_stay() {
        let check = |names: &[&'static str], is_keyed: bool, left: &[&str]| {
            let mut map = HeaderMap::new();
            names.iter().for_each(|name| {
                map.append(HeaderName::from_static(name), "Bearer k".parse().expect("a value"));
            });
            remove_keys(&mut map, is_keyed);
            assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), left, "{names:?} {is_keyed}");
        };
        check(&["authorization"], true, &[]);
        check(&["authorization", "x-thresher-key", "x-thresher-key"], true, &["authorization"]);
        check(&["authorization"], false, &["authorization"]);
        check(&["authorization", "x-thresher-key"], false, &["authorization"]);
        check(&["x-thresher-key", "x-api-key"], true, &["x-api-key"]);
        let mut mistaken = HeaderMap::new();
        mistaken.insert(AUTHORIZATION, "Bearer thr_a".parse().expect("a value"));
        mistaken.insert("x-api-key", "thr_a".parse().expect("a value"));
        mistaken.insert(KEY, "thr_a".parse().expect("a value"));
        remove_keys(&mut mistaken, true);
        assert!(mistaken.is_empty(), "{mistaken:?}");
    }

    #[test]
    fn the_key_is_in_one_of_two_headers_and_the_daemons_own_wins() {
        let check = |headers: &[(&'static str, &'static str)], expect: Option<&str>| {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value")))
                .collect();
            assert_eq!(key_in(&map), expect, "{headers:?}");
        };
        check(&[], None);
        check(&[("authorization", "Bearer thr_a")], Some("thr_a"));
        check(&[("authorization", "bearer  thr_a ")], Some("thr_a"));
        check(&[("authorization", "BEARER")], None);
        check(&[("authorization", "Basic dGhyX2E=")], None);
        check(&[("x-api-key", "thr_a")], None);
        check(&[("x-thresher-key", "thr_a")], Some("thr_a"));
        check(&[("authorization", "Bearer sk-upstream"), ("x-thresher-key", "thr_a")], Some("thr_a"));
        check(&[("authorization", "Bearer thr_a"), ("x-thresher-key", "")], Some(""));
        check(&[("authorization", "Bearer thr_a"), ("x-thresher-key", "th\u{fc}")], Some(""));
    }
}
