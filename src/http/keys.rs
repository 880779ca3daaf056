//! The layer that asks for keys. What it lets through carries its caller; nothing is read of what it does not.

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, EXPECT};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::connections::Begun;
use super::memory::{self, NoRoom};
use super::observe::KeyName;
use super::{Service, body, openapi};
use crate::access::KEY_PREFIX;
use crate::error::ApiError;
use crate::middleware::dialect::Dialect;

/// Our own header: a caller whose `Authorization` is for somebody behind us sends its key here.
const KEY: &str = "x-thresher-key";

/// Layer around every route, and around what is no route.
pub async fn ask(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    // It is the same for everybody, and how one learns that there are keys.
    if path.as_ref().is_some_and(|path| path.as_str() == openapi::PATH) {
        return next.run(request).await;
    }
    let admitted = service.admit(presented(request.headers()));
    take_off(request.headers_mut(), service.is_keyed());
    let (name, mut response) = match admitted {
        Ok(caller) => {
            if let Some(begun) = request.extensions().get::<Begun>() {
                begun.accept();
            }
            let tenant = caller.tenant().clone();
            let name = caller.key_name().cloned();
            if let Some(name) = &name {
                tracing::Span::current().record("key", &**name);
            }
            request.extensions_mut().insert(caller);
            let answer = next.run(request).await;
            let answer = memory::held(service.answers(), service.claim_of(&tenant), answer);
            (
                name,
                answer.unwrap_or_else(|NoRoom| {
                    refusal(ApiError::answer_memory_full(), path.as_ref().map(MatchedPath::as_str))
                }),
            )
        }
        Err(denied) => {
            let name = denied.name().cloned();
            let asks_first = request.headers().contains_key(EXPECT);
            if !asks_first {
                body::discard_of_nobody(request.into_body()).await;
            }
            (name, refusal(denied.into(), path.as_ref().map(MatchedPath::as_str)))
        }
    };
    if let Some(name) = name {
        response.extensions_mut().insert(KeyName(name));
    }
    response
}

/// In the words of the API that was asked, as far as its path says which; else in a shape in which every client finds the
/// message.
fn refusal(error: ApiError, path: Option<&str>) -> Response {
    match path {
        Some("/v1/messages") => error.dialect_response(Dialect::Messages),
        Some("/v1/chat/completions" | "/v1/responses") => error.dialect_response(Dialect::Chat),
        _ => error.rerank_response(),
    }
}

/// Whoever passes a request on passes on no key of ours; an `Authorization` beside ours is for who stands behind us.
fn take_off(headers: &mut HeaderMap, is_keyed: bool) {
    let stood_in_authorization = headers.remove(KEY).is_none();
    if stood_in_authorization && is_keyed {
        headers.remove(AUTHORIZATION);
    }
    // Whoever puts a key of ours where an upstream's belongs has mistaken one for the other.
    for name in [AUTHORIZATION, HeaderName::from_static("x-api-key")] {
        let is_ours = |value: &HeaderValue| {
            let value = value.as_bytes();
            value.split(|&byte| byte == b' ').any(|word| word.starts_with(KEY_PREFIX.as_bytes()))
        };
        if headers.get_all(&name).iter().any(is_ours) {
            headers.remove(name);
        }
    }
}

/// The key that a request brings; one that is not even text is none that anybody has.
fn presented(headers: &HeaderMap) -> Option<&str> {
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
    fn keys_of_ours_are_taken_off_and_others_left() {
        let check = |names: &[&'static str], is_keyed: bool, left: &[&str]| {
            let mut map = HeaderMap::new();
            names.iter().for_each(|name| {
                map.append(HeaderName::from_static(name), "Bearer k".parse().expect("a value"));
            });
            take_off(&mut map, is_keyed);
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
        take_off(&mut mistaken, true);
        assert!(mistaken.is_empty(), "{mistaken:?}");
    }

    #[test]
    fn keys_come_in_two_headers_of_which_ours_wins() {
        let check = |headers: &[(&'static str, &'static str)], expect: Option<&str>| {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().expect("a value")))
                .collect();
            assert_eq!(presented(&map), expect, "{headers:?}");
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
