//! Decides from `Host`, `Origin` and `Sec-Fetch-Site` whether a request may be answered.
//!
//! A daemon without keys trusts whoever can reach its port. A browser on the same machine reaches it on behalf of any web page that
//! is open in it, in two ways: a page sends requests to `http://127.0.0.1:8080` (cross-site request forgery), or its own host name is
//! pointed at 127.0.0.1 after it was loaded (DNS rebinding), so that the browser takes the daemon for the page's own server. The first
//! kind carries a foreign `Origin` or `Sec-Fetch-Site: cross-site`, the second a foreign `Host`. Programs send neither.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer, ExposeHeaders};

use super::HttpError;

/// Browsers say here how the page that sends a request relates to the server.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// How long a browser may remember that a page was allowed to ask.
const PREFLIGHT_AGE: Duration = Duration::from_secs(600);

/// Headers of answers that a page of an allowed origin may read beside those that every page may.
const EXPOSED: [HeaderName; 7] = [
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("www-authenticate"),
    HeaderName::from_static("x-thresher"),
    HeaderName::from_static("x-thresher-cited"),
    HeaderName::from_static("x-thresher-reason"),
    HeaderName::from_static("x-thresher-tokens-after"),
    HeaderName::from_static("x-thresher-tokens-before"),
];

/// Which requests a listener answers. Clones share one policy.
#[derive(Debug, Clone)]
pub struct OriginPolicy(Arc<Allowed>);

#[derive(Debug)]
struct Allowed {
    /// Whether requests prove by a key that no web page made them.
    is_keyed: bool,
    /// Whether any IP address may stand in `Host`: an address cannot be rebound, a name can.
    any_address: bool,
    /// Host names beside the loopback ones, in lower case, without a port.
    hosts: Vec<String>,
    /// Origins of web pages, as browsers write them: scheme, host, and the port where it is not the scheme's.
    origins: Vec<HeaderValue>,
}

impl OriginPolicy {
    /// The policy of the public listener. `hosts` and `origins` are the settings `http.hosts_allowed` and `http.origins_allowed`.
    pub fn public(hosts: &[String], origins: &[String], is_keyed: bool) -> Self {
        Self::new(hosts, origins, is_keyed, false)
    }

    /// The policy of the admin listener, which knows no keys. Where others than this machine reach it, probes and scrapers ask by IP
    /// address, and so any address is allowed.
    pub fn admin(hosts: &[String], is_reachable: bool) -> Self {
        Self::new(hosts, &[], false, is_reachable)
    }

    fn new(hosts: &[String], origins: &[String], is_keyed: bool, any_address: bool) -> Self {
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        // Settings that are no header values were refused when they were read.
        let origins = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
        Self(Arc::new(Allowed { is_keyed, any_address, hosts, origins }))
    }

    /// Origins that the settings name.
    pub(super) fn named(&self) -> Vec<String> {
        let origins = self.0.origins.iter().filter_map(|origin| origin.to_str().ok());
        origins.map(str::to_owned).collect()
    }

    /// What lets web pages of the allowed origins read answers; none where no origin is allowed.
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

    /// Whether a request may be answered.
    ///
    /// # Errors
    /// `host_not_allowed`, `origin_not_allowed`.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), HttpError> {
        if self.0.is_keyed {
            return Ok(());
        }
        if let Some(host) = authority(uri, headers)
            && !self.allows_host(&host)
        {
            return Err(HttpError::host_not_allowed(&host));
        }
        let origin = headers.get(ORIGIN);
        if origin.is_some_and(|origin| self.0.origins.contains(origin)) {
            return Ok(());
        }
        let is_cross_site = headers.get(SEC_FETCH_SITE).is_some_and(|site| site == "cross-site");
        match origin {
            Some(origin) if is_cross_site || !is_loopback_origin(origin) => {
                Err(HttpError::origin_not_allowed(&String::from_utf8_lossy(origin.as_bytes())))
            }
            None if is_cross_site => Err(HttpError::origin_not_allowed("another site")),
            _ => Ok(()),
        }
    }

    fn allows_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let is_allowed_address = || self.0.any_address && address(&name).is_some();
        is_loopback(&name) || self.0.hosts.contains(&name) || is_allowed_address()
    }
}

/// Layer that answers 403 where [`OriginPolicy::check`] refuses.
pub(super) async fn guard(State(policy): State<OriginPolicy>, request: Request, next: Next) -> Response {
    match policy.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The host that a request names: HTTP/2 puts it into the URI. Only old programs name none; browsers always do.
fn authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let in_header = || headers.get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    uri.authority().map(|authority| authority.as_str().to_owned()).or_else(in_header)
}

/// The IP address that a host name is; IPv6 stands in brackets.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether a host name, in lower case and without a port, can only mean this machine.
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

    fn check(policy: &OriginPolicy, sent: &[(&'static str, &'static str)], expect: &str) {
        let found = policy.check(&Uri::from_static("/v1/compress"), &headers(sent));
        assert_eq!(found.map_or_else(|error| error.code(), |()| "ok"), expect, "{sent:?}");
    }

    #[test]
    fn without_keys_only_this_machine_and_named_hosts_are_answered() {
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
        ] {
            check(&policy, &[("host", host)], "host_not_allowed");
        }
        check(&policy, &[], "ok");
        let absolute = Uri::from_static("http://evil.example/v1/chunks");
        assert!(policy.check(&absolute, &headers(&[("host", "localhost")])).is_err());
    }

    #[test]
    fn pages_of_other_sites_are_refused_unless_they_are_named() {
        let policy = OriginPolicy::public(&[], &["https://app.example".to_owned()], false);
        let refused = [
            &[("origin", "http://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "https://app.example.evil.example")],
            &[("origin", "http://app.example")],
            &[("sec-fetch-site", "cross-site")],
            &[("origin", "http://localhost:3000"), ("sec-fetch-site", "cross-site")],
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
    fn a_key_proves_enough_and_probes_ask_by_address() {
        let keyed = OriginPolicy::public(&[], &[], true);
        check(&keyed, &[("host", "thresher.example.com"), ("origin", "https://gateway.example")], "ok");
        let reachable = OriginPolicy::admin(&[], true);
        check(&reachable, &[("host", "10.1.2.3:8081")], "ok");
        check(&reachable, &[("host", "evil.example:8081")], "host_not_allowed");
        check(&OriginPolicy::admin(&[], false), &[("host", "10.1.2.3:8081")], "host_not_allowed");
    }
}
