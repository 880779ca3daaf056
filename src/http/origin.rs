//! Decides by `Host`, `Origin` and `Sec-Fetch-Site` whether a request is answered.
//!
//! A daemon without keys trusts every client that can reach its port. A browser on the same machine reaches it on behalf of any web page that
//! is open in it, in one of two ways: a page sends requests to `http://127.0.0.1:8080` (cross-site request forgery), or its own host name is
//! pointed at 127.0.0.1 after it was loaded (DNS rebinding), so that the browser takes the daemon for the page's own server. The first
//! kind carries a foreign `Origin` or `Sec-Fetch-Site: cross-site`, the second a foreign `Host`. Programs send neither.
//!
//! A link on another site to the page at `/` may be followed: its files hold no data, and no other page may embed them.
//!
//! A request that repeats `Host` or `Origin` is refused: another program might read the other one, and decide differently.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::page;
use crate::error::ApiError;
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use thresher_core::plain::Quoted;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer, ExposeHeaders};

/// The header in which browsers say how the page that sends a request relates to the server.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The header in which browsers say whether a request follows a link.
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// The header in which browsers say what kind of resource they will use a response as.
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// How long a browser may cache that a page is allowed.
const PREFLIGHT_AGE: Duration = Duration::from_secs(600);

/// Response headers that a page of an allowed origin may read, in addition to those that every page may read.
const EXPOSED: [HeaderName; 11] = [
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("www-authenticate"),
    super::request_id::REQUEST_ID,
    HeaderName::from_static("x-thresher"),
    HeaderName::from_static("x-thresher-cited"),
    HeaderName::from_static("x-thresher-reason"),
    super::ANSWERABLE,
    super::RELATED,
    super::RELEVANCE,
    HeaderName::from_static("x-thresher-tokens-after"),
    HeaderName::from_static("x-thresher-tokens-before"),
];

// Parts of error messages: which hosts a listener accepts, and what the caller can do.
const PUBLIC_RULE: &str = "without keys only this machine's loopback names are answered; add the name to http.hosts_allowed, or use \
                           127.0.0.1";
const ADMIN_RULE: &str = "the admin listener accepts only this machine's loopback names; add the name to http.hosts_allowed, or use \
                          127.0.0.1";
const REACHABLE_ADMIN_RULE: &str = "the admin listener accepts only IP addresses and this machine's loopback names; add the name to \
                                    http.hosts_allowed, or use an IP address";

const PUBLIC_PAGES: &str = "pages of other sites may not send requests to this daemon; add the page's origin to http.origins_allowed";
const ADMIN_PAGES: &str = "the admin listener answers no pages of other sites";

/// Which requests a listener answers. Clones share one policy.
#[derive(Debug, Clone)]
pub struct OriginPolicy(Arc<Allowed>);

#[derive(Debug, Default)]
struct Allowed {
    /// Whether requests need a key, which proves that no web page made them.
    is_keyed: bool,
    /// Whether this is the policy of the admin listener.
    is_admin: bool,
    /// Whether `Host` may be any IP address: a name can be rebound, an address cannot.
    any_address: bool,
    /// Host names that are allowed in addition to the loopback names, in lower case and without a port.
    hosts: Vec<String>,
    /// Origins of web pages, as browsers write them: scheme, host, and the port if it is not the default of the scheme.
    origins: Vec<HeaderValue>,
}

impl OriginPolicy {
    /// The policy of the public listener. `hosts` and `origins` are the settings `http.hosts_allowed` and `http.origins_allowed`.
    pub fn public(hosts: &[String], origins: &[String], is_keyed: bool) -> Self {
        Self::new(hosts, origins, Allowed { is_keyed, ..Allowed::default() })
    }

    /// The policy of the admin listener, which has no keys. If other machines can reach it, any IP address is allowed as host, since probes and
    /// scrapers use addresses.
    pub fn admin(hosts: &[String], is_reachable: bool) -> Self {
        Self::new(hosts, &[], Allowed { is_admin: true, any_address: is_reachable, ..Allowed::default() })
    }

    fn new(hosts: &[String], origins: &[String], allowed: Allowed) -> Self {
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        // Settings that cannot be header values were refused when they were read.
        let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
        Self(Arc::new(Allowed { hosts, origins, ..allowed }))
    }

    pub(super) fn origins(&self) -> Vec<String> {
        let origins = self.0.origins.iter().filter_map(|origin| origin.to_str().ok());
        origins.map(str::to_owned).collect()
    }

    /// The layer that lets web pages of the allowed origins read answers; none if no origin is allowed.
    pub(super) fn cors(&self) -> Option<CorsLayer> {
        let origins = &self.0.origins;
        (!origins.is_empty()).then(|| {
            CorsLayer::new()
                .allow_origin(AllowOrigin::list(origins.iter().cloned()))
                .allow_methods([Method::GET, Method::POST, Method::DELETE])
                .allow_headers(AllowHeaders::mirror_request())
                .expose_headers(ExposeHeaders::list(EXPOSED))
                .max_age(PREFLIGHT_AGE)
        })
    }

    /// Checks whether a request is answered.
    ///
    /// # Errors
    /// `origin_not_allowed`.
    fn check(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if self.0.is_keyed {
            return Ok(());
        }
        self.check_host(version, uri, headers)?;
        if uri.path() == page::PATH && is_followed_link(headers) {
            Ok(())
        } else {
            self.check_origin(headers)
        }
    }

    /// HTTP/1.1 requires exactly one `Host` header. HTTP/2 puts the host into the URI and needs no header.
    fn check_host(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let in_header = hosts.next();
        if hosts.next().is_some() {
            return Err(ApiError::host_unclear("several Host headers"));
        }
        let host = match (uri.authority(), in_header) {
            (Some(authority), in_header) if in_header.is_some() || version >= Version::HTTP_2 => {
                Cow::Borrowed(authority.as_str())
            }
            (_, Some(host)) => String::from_utf8_lossy(host.as_bytes()),
            // Old health probes send none, and browsers do not use HTTP/1.0.
            (_, None) if self.0.is_admin && version < Version::HTTP_11 => return Ok(()),
            (_, None) => return Err(ApiError::host_unclear("no Host header")),
        };
        if self.allows_host(&host) {
            return Ok(());
        }
        let rule = match (self.0.is_admin, self.0.any_address) {
            (false, _) => PUBLIC_RULE,
            (true, false) => ADMIN_RULE,
            (true, true) => REACHABLE_ADMIN_RULE,
        };
        Err(ApiError::host_not_allowed(&host, rule))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let rule = if self.0.is_admin { ADMIN_PAGES } else { PUBLIC_PAGES };
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = origins.next();
        if origins.next().is_some() {
            return Err(ApiError::origin_not_allowed("a page with several Origin headers", rule));
        }
        if origin.is_some_and(|origin| self.0.origins.contains(origin)) {
            return Ok(());
        }
        let is_cross_site = headers.get_all(SEC_FETCH_SITE).iter().any(|site| site == "cross-site");
        match origin {
            Some(origin) if is_cross_site || !is_loopback_origin(origin) => {
                let page = format!("a page of {}", Quoted(&String::from_utf8_lossy(origin.as_bytes())));
                Err(ApiError::origin_not_allowed(&page, rule))
            }
            None if is_cross_site => {
                Err(ApiError::origin_not_allowed("a page of another site (Sec-Fetch-Site: cross-site)", rule))
            }
            _ => Ok(()),
        }
    }

    fn allows_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        // Only a port, which may be empty, may follow the name, and no user name may precede it.
        let Some(rest) = host.strip_prefix(authority.host()) else { return false };
        if !rest.strip_prefix(':').map_or(rest.is_empty(), is_port) {
            return false;
        }
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let is_allowed_address = || self.0.any_address && address(&name).is_some();
        is_loopback(&name) || self.0.hosts.contains(&name) || is_allowed_address()
    }
}

/// Whether a browser follows a link to a document that it will show by itself, and not within another page.
fn is_followed_link(headers: &HeaderMap) -> bool {
    let is = |name: HeaderName, value: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().is_some_and(|sent| sent == value) && values.next().is_none()
    };
    is(SEC_FETCH_MODE, "navigate") && is(SEC_FETCH_DEST, "document") && !headers.contains_key(ORIGIN)
}

/// Layer that answers 403 to requests that [`OriginPolicy::check`] refuses.
pub(super) async fn guard(State(policy): State<OriginPolicy>, request: Request, next: Next) -> Response {
    match policy.check(request.version(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Whether a text after the colon of a host is a port, or empty.
fn is_port(text: &str) -> bool {
    text.is_empty() || (text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok())
}

/// The IP address that a host is, if it is one; IPv6 addresses are in brackets.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether a host, in lower case and without a port, can only be this machine.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || address(host).is_some_and(|address| address.to_canonical().is_loopback())
}

fn is_loopback_origin(origin: &HeaderValue) -> bool {
    let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    uri.as_ref().and_then(Uri::host).is_some_and(|host| is_loopback(&host.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    type Sent = [(&'static str, &'static str)];

    #[track_caller]
    fn check_in(policy: &OriginPolicy, version: Version, uri: &'static str, sent: &Sent, expect: &str) {
        let found = policy.check(version, &Uri::from_static(uri), &headers(sent));
        assert_eq!(
            found.map_or_else(|error| error.code.as_str(), |()| "ok"),
            expect,
            "{version:?} {uri} {sent:?}"
        );
    }

    /// A request over HTTP/1.1, to this machine where `sent` names no host.
    #[track_caller]
    fn check(policy: &OriginPolicy, sent: &Sent, expect: &str) {
        let host = sent.iter().all(|(name, _)| *name != "host").then_some(("host", "localhost"));
        let sent: Vec<_> = host.into_iter().chain(sent.iter().copied()).collect();
        check_in(policy, Version::HTTP_11, "/v1/compress", &sent, expect);
    }

    #[test]
    fn without_keys_only_this_machine_and_allowed_hosts_are_answered() {
        let policy = OriginPolicy::public(&["Thresher.internal".to_owned()], &[], false);
        for host in
            ["localhost", "LOCALHOST:8080", "localhost.:8080", "127.0.0.1:8080", "127.8.9.1", "[::1]:8080"]
        {
            check(&policy, &[("host", host)], "ok");
        }
        for host in ["thresher.internal", "thresher.INTERNAL:8080"] {
            check(&policy, &[("host", host)], "ok");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "0.0.0.0:8080",
            "192.168.1.2",
            "[::]",
            "",
            "a b",
            "127.0.0.1.nip.io",
            "localhost:99999",
            "localhost:+80",
            "localhost:http",
            "[::1]8080",
            "evil.example@localhost",
        ] {
            check(&policy, &[("host", host)], "origin_not_allowed");
        }
        check(&policy, &[("host", "localhost:")], "ok");
    }

    #[test]
    fn a_request_names_exactly_one_host() {
        let (public, admin) = (OriginPolicy::public(&[], &[], false), OriginPolicy::admin(&[], false));
        let (path, here, elsewhere) =
            ("/v1/chunks", "http://localhost/v1/chunks", "http://evil.example/v1/chunks");
        let localhost: &Sent = &[("host", "localhost")];
        // In each version: the URI, the headers, and what comes of it on both listeners.
        let table: [(Version, &'static str, &Sent, &str, &str); 10] = [
            (Version::HTTP_11, path, &[], "origin_not_allowed", "origin_not_allowed"),
            (Version::HTTP_10, path, &[], "origin_not_allowed", "ok"),
            (Version::HTTP_10, path, localhost, "ok", "ok"),
            (Version::HTTP_11, here, &[], "origin_not_allowed", "origin_not_allowed"),
            (Version::HTTP_11, here, localhost, "ok", "ok"),
            (Version::HTTP_11, elsewhere, localhost, "origin_not_allowed", "origin_not_allowed"),
            (Version::HTTP_2, here, &[], "ok", "ok"),
            (Version::HTTP_2, path, localhost, "ok", "ok"),
            (Version::HTTP_2, path, &[], "origin_not_allowed", "origin_not_allowed"),
            (Version::HTTP_2, elsewhere, &[], "origin_not_allowed", "origin_not_allowed"),
        ];
        for (version, uri, sent, on_public, on_admin) in table {
            check_in(&public, version, uri, sent, on_public);
            check_in(&admin, version, uri, sent, on_admin);
        }
        let twice: &Sent = &[("host", "localhost"), ("host", "localhost")];
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            check_in(&public, version, path, twice, "origin_not_allowed");
            check_in(&admin, version, here, twice, "origin_not_allowed");
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused_unless_their_origin_is_allowed() {
        let policy = OriginPolicy::public(&[], &["https://app.example".to_owned()], false);
        let refused = [
            &[("origin", "http://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "https://app.example.evil.example")],
            &[("origin", "http://app.example")],
            &[("sec-fetch-site", "cross-site")],
            &[("origin", "http://localhost:3000"), ("sec-fetch-site", "cross-site")],
            &[("origin", "http://localhost:3000"), ("origin", "http://evil.example")],
            &[("origin", "https://app.example"), ("origin", "https://app.example")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
        ];
        refused.iter().for_each(|sent| check(&policy, sent, "origin_not_allowed"));
        let allowed = [
            &[("origin", "https://app.example"), ("sec-fetch-site", "cross-site")][..],
            &[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
            &[("origin", "http://127.0.0.1:8080"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ];
        allowed.iter().for_each(|sent| check(&policy, sent, "ok"));
    }

    #[test]
    fn keys_need_no_origin_and_probes_may_use_addresses() {
        let keyed = OriginPolicy::public(&[], &[], true);
        check(&keyed, &[("host", "thresher.example.com"), ("origin", "https://gateway.example")], "ok");
        let reachable = OriginPolicy::admin(&[], true);
        check(&reachable, &[("host", "10.1.2.3:8081")], "ok");
        check(&reachable, &[("host", "evil.example:8081")], "origin_not_allowed");
        check(&OriginPolicy::admin(&[], false), &[("host", "10.1.2.3:8081")], "origin_not_allowed");
    }

    #[test]
    fn a_refusal_names_the_rule_of_its_listener() {
        let message = |policy: OriginPolicy| {
            let sent = headers(&[("host", "evil.example")]);
            let refused = policy.check(Version::HTTP_11, &Uri::from_static("/"), &sent);
            refused.expect_err("a foreign host").message
        };
        let public = message(OriginPolicy::public(&[], &[], false));
        assert!(public.contains("\"evil.example\", and without keys"), "{public}");
        // The admin listener has no keys, even if the public listener has.
        for is_reachable in [false, true] {
            let admin = message(OriginPolicy::admin(&[], is_reachable));
            assert!(admin.contains("the admin listener accepts only") && !admin.contains("keys"), "{admin}");
            assert_eq!(admin.contains("use an IP address"), is_reachable, "{admin}");
        }
    }
}
