//! The id of a request, by which its line in the log is found: the header `x-request-id` of requests and answers.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::tenants::ttl_store;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The header of a response with the id that the upstream gave it.
const UPSTREAM_REQUEST_ID: HeaderName = HeaderName::from_static("x-upstream-request-id");

/// The most bytes of an id that a client gives. Ids are logged, so they can hold nothing but a name.
const BYTES_MAX: usize = 128;

/// The id that the client gives, or else a random one.
pub fn choose_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(|id| is_name(id));
    given.map_or_else(|| ttl_store::new_id("req"), str::to_owned)
}

pub fn add(headers: &mut HeaderMap, id: &str) {
    headers.insert(REQUEST_ID, HeaderValue::from_str(id).expect("an id is ASCII"));
}

/// Renames the id that an upstream gave its response, so that both ids reach the client.
pub fn keep_upstreams(headers: &mut HeaderMap) {
    if let Some(id) = headers.remove(REQUEST_ID) {
        headers.insert(UPSTREAM_REQUEST_ID, id);
    }
}

fn is_name(id: &str) -> bool {
    (1..=BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_client_is_kept_if_it_is_a_name() {
        let check = |given: &str, is_kept: bool| {
            let headers = HeaderMap::from_iter([(REQUEST_ID, given.parse().expect("a value"))]);
            assert_eq!(choose_id(&headers) == given, is_kept, "{given}");
        };
        check("0af7651916cd43dd8448eb211c80319c", true);
        check("Root=1-67891233:a_b.c", false);
        check("1-67891233:a_b.c", true);
        check("", false);
        check("what is my balance?", false);
        check(&"a".repeat(BYTES_MAX), true);
        check(&"a".repeat(BYTES_MAX + 1), false);
        assert_ne!(choose_id(&HeaderMap::new()), choose_id(&HeaderMap::new()));
    }

    #[test]
    fn an_answer_has_the_ids_of_the_daemon_and_of_the_upstream() {
        let mut headers = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static("theirs"))]);
        keep_upstreams(&mut headers);
        add(&mut headers, "ours");
        let ids =
            [REQUEST_ID, UPSTREAM_REQUEST_ID].map(|name| headers[name].to_str().expect("a name").to_owned());
        assert_eq!(ids, ["ours", "theirs"]);
    }
}
