//! Upstreams of the middleware: which one has a model, and requests to it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_LENGTH};
use axum::http::uri::InvalidUri;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::{Body as _, Incoming};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;

use super::connect::Connector;
use super::headers::{self, Allowed};
use crate::admission::{Sharer, Shares, Slot};
use crate::error::ApiError;
use crate::executor::WorkerSlots;
use crate::http::{request_id, traces};
use crate::middleware::dialect::Dialect;
use crate::middleware::find::Policy;
use crate::middleware::settings::{Credential, MiddlewareLimits, MiddlewareSettings, UpstreamSettings};

/// The longest time to connect to an upstream, after which the next one would be as slow.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The most idle connections to one upstream that are kept open. Each takes a file descriptor: after a burst of `request_count_max`
/// requests, none might be left for clients.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// The header with the names of the daemons that have passed a request on. A daemon that finds its own name has been reached by a loop.
const HOPS: HeaderName = HeaderName::from_static("x-thresher-hops");

/// The most daemons that pass a request on, one behind the other.
const HOP_COUNT_MAX: usize = 8;

#[derive(Debug, Error)]
#[error("middleware.upstreams, {url}: {cause}")]
pub struct UpstreamError {
    url: String,
    cause: String,
}

pub struct Middleware {
    pub settings: MiddlewareSettings,
    pub limits: MiddlewareLimits,
    /// Runs the parsing and rewriting of requests and answers.
    pub workers: WorkerSlots,
    upstreams: Vec<Upstream>,
    requests: Shares,
    /// The name of this daemon in [`HOPS`].
    name: Arc<str>,
}

pub struct Upstream {
    pub settings: UpstreamSettings,
    base: Uri,
    allowed: Allowed,
    /// The key that requests are sent with instead of the client's.
    key: Option<String>,
    client: Client<HttpsConnector<Connector>, Body>,
    silence_max: Duration,
    /// The name of this daemon in [`HOPS`].
    name: Arc<str>,
}

impl Middleware {
    /// Reads the keys and certificates of all upstreams.
    ///
    /// # Errors
    /// Fails if a file cannot be read or a URL is invalid.
    pub fn new(settings: &MiddlewareSettings, limits: MiddlewareLimits) -> Result<Self, UpstreamError> {
        // Keys of a hash map are random for each process and map.
        let name: Arc<str> = format!("{:016x}", RandomState::new().build_hasher().finish()).into();
        let upstream = |upstream: &UpstreamSettings| {
            let failed = |cause| UpstreamError { url: upstream.url.clone(), cause };
            Upstream::new(upstream, limits.silence_max, &name).map_err(failed)
        };
        Ok(Self {
            upstreams: settings.upstreams.iter().map(upstream).collect::<Result<_, _>>()?,
            workers: WorkerSlots::per_core(),
            requests: Shares::new(limits.request_count_max, 0),
            settings: settings.clone(),
            limits,
            name,
        })
    }

    /// Which texts of a conversation may be compressed. `keeps_documents` excludes documents and search results.
    pub fn policy(&self, keeps_documents: bool) -> Policy {
        self.settings.policy(&self.limits, keeps_documents)
    }

    /// Logs the credentials of each upstream, and which keys are sent unencrypted.
    pub fn announce(&self) {
        for upstream in &self.settings.upstreams {
            let (url, credential) = (&upstream.url, upstream.credential_description());
            tracing::info!(upstream = url, "an upstream of the middleware is {credential}");
            if let Some(exposure) = upstream.cleartext_warning() {
                tracing::warn!(upstream = url, "{exposure}");
            }
        }
    }

    pub fn is_off(&self) -> bool {
        self.upstreams.is_empty()
    }

    /// The first upstream that has a model; for an empty name, the first that has any model.
    pub fn upstream(&self, model: &str) -> Option<&Upstream> {
        let has = |upstream: &&Upstream| upstream.settings.has(model);
        self.upstreams.iter().find(has)
    }

    /// The upstreams, in the order of the settings.
    pub fn upstreams(&self) -> &[Upstream] {
        &self.upstreams
    }

    pub fn only_upstream(&self) -> Option<&Upstream> {
        match &self.upstreams[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Checks that a request has not been passed on by this daemon before, and not by too many others.
    ///
    /// # Errors
    /// `upstream_loop`.
    pub fn check_hops(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let hops: Vec<&str> = hops(headers).collect();
        match (hops.contains(&&*self.name), hops.len()) {
            (true, _) => Err(ApiError::upstream_loop()),
            (false, count) if count >= HOP_COUNT_MAX => Err(ApiError::hops_too_many(count)),
            (false, _) => Ok(()),
        }
    }

    /// A slot for a request to an upstream, held until its answer has been sent.
    ///
    /// # Errors
    /// `overloaded`, if the tenant has its share of them.
    pub fn request_slot(&self, sharer: Sharer) -> Result<Slot, ApiError> {
        let retry_after_s = || self.requests.retry_after_s(sharer.tenant);
        self.requests.take(sharer).ok_or_else(|| ApiError::upstream_requests_too_many(retry_after_s()))
    }
}

impl Upstream {
    fn new(upstream: &UpstreamSettings, silence_max: Duration, name: &Arc<str>) -> Result<Self, String> {
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let tls = if upstream.ca_file.as_os_str().is_empty() {
            tls.with_webpki_roots()
        } else {
            tls.with_root_certificates(roots(&upstream.ca_file)?)
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_MAX));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .wrap_connector(Connector::new(http));
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_max_idle_per_host(IDLE_CONNECTIONS_MAX);
        let key = if upstream.key_file.as_os_str().is_empty() {
            None
        } else {
            let file = &upstream.key_file;
            let key = std::fs::read_to_string(file).map_err(|cause| file_error(file, cause))?;
            let key = key.trim().to_owned();
            if key.is_empty() || HeaderValue::from_str(&key).is_err() {
                return Err(file_error(file, "not a key: one line of text"));
            }
            Some(key)
        };
        Ok(Self {
            allowed: Allowed::new(upstream).map_err(|error| error.to_string())?,
            base: upstream.url.parse().map_err(|error: InvalidUri| error.to_string())?,
            settings: upstream.clone(),
            key,
            client: client.build(connector),
            silence_max,
            name: Arc::clone(name),
        })
    }

    pub fn base(&self) -> &Uri {
        &self.base
    }

    /// The longest time that the upstream may send nothing.
    pub fn silence_max(&self) -> Duration {
        self.silence_max
    }

    /// Sends a request and waits for the head of the response. `reads_answer`: the body of the response must not be compressed.
    ///
    /// # Errors
    /// `upstream_failed`, `upstream_silent`.
    pub async fn send(
        &self,
        dialect: Dialect,
        method: Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: Bytes,
        reads_answer: bool,
    ) -> Result<Response<Incoming>, ApiError> {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = self.uri(uri);
        *request.headers_mut() = self.allowed.of_request(headers);
        if reads_answer {
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let hops: Vec<&str> = hops(headers).chain([&*self.name]).collect();
        let hops = HeaderValue::from_str(&hops.join(",")).map_err(|_| ApiError::internal())?;
        request.headers_mut().insert(HOPS, hops);
        traces::inject(request.headers_mut());
        request.headers_mut().extend(self.key(dialect, headers)?);
        let answer = tokio::time::timeout(self.silence_max, self.client.request(request));
        match answer.await {
            Ok(Ok(mut answer)) => {
                if let Some(reason) = headers::unusable(answer.status(), answer.headers()) {
                    tracing::warn!(
                        upstream = without_credentials(&self.base),
                        reason,
                        "an upstream's answer cannot be passed on"
                    );
                    return Err(ApiError::upstream_answer_unusable(&reason));
                }
                // The frame of the answer is ours: what the upstream says of its own may not fit to it.
                let length = match method {
                    Method::HEAD => headers::declared_length(answer.headers()),
                    _ => answer.body().size_hint().exact(),
                };
                *answer.headers_mut() = self.allowed.of_response(answer.headers());
                let has_body = ![StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&answer.status());
                if let Some(length) = length.filter(|_| has_body) {
                    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
                }
                request_id::keep_upstreams(answer.headers_mut());
                Ok(answer)
            }
            Ok(Err(error)) => {
                let (url, cause) = (without_credentials(&self.base), causes(&error));
                tracing::warn!(upstream = url, connect = error.is_connect(), cause, "an upstream failed");
                Err(ApiError::upstream_failed(error.is_connect()))
            }
            Err(_elapsed) => Err(ApiError::upstream_silent(self.silence_max)),
        }
    }

    /// The URL of a request. `/v1` is in it once, whether the setting has it or not.
    fn uri(&self, requested: &Uri) -> Uri {
        let before = self.base.path().trim_end_matches('/');
        let path = if before.ends_with("/v1") {
            requested.path().strip_prefix("/v1").unwrap_or(requested.path())
        } else {
            requested.path()
        };
        let query = requested.query().and_then(headers::query_without_daemon_keys);
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts = self.base.clone().into_parts();
        parts.path_and_query = format!("{before}{path}{query}").parse().ok();
        Uri::from_parts(parts).unwrap_or_else(|_| self.base.clone())
    }

    /// The headers with the key: the upstream's own, or the client's.
    fn key(&self, dialect: Dialect, received: &HeaderMap) -> Result<HeaderMap, ApiError> {
        match (&self.key, self.settings.credential()) {
            (Some(key), _) => {
                let header = headers::own_key(dialect, key).map_err(|_| ApiError::internal())?;
                Ok(HeaderMap::from_iter([header]))
            }
            (None, Credential::Caller) => Ok(headers::caller_keys(dialect, received)),
            (None, _) => Ok(HeaderMap::new()),
        }
    }
}

/// The daemons that have passed a request on, in their order.
fn hops(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lists = headers.get_all(HOPS).iter().filter_map(|value| value.to_str().ok());
    let names = lists.flat_map(|list| list.split(',').map(str::trim));
    names.filter(|name| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// An upstream's URL for the log: scheme, host, port and path.
fn without_credentials(url: &Uri) -> String {
    let scheme = url.scheme_str().map_or_else(String::new, |scheme| format!("{scheme}://"));
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{scheme}{}{port}{}", url.host().unwrap_or_default(), url.path())
}

/// An error and what caused it, for the log.
fn causes(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn file_error(file: &Path, cause: impl std::fmt::Display) -> String {
    format!("{}: {cause}", file.display())
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|cause| file_error(file, cause))? {
        let certificate = certificate.map_err(|cause| file_error(file, cause))?;
        roots.add(certificate).map_err(|cause| file_error(file, cause))?;
    }
    if roots.is_empty() { Err(file_error(file, "no certificate in it")) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_a_url_once() {
        let check = |base: &str, path: &str, expect: &str| {
            let settings = UpstreamSettings { url: base.to_owned(), ..UpstreamSettings::default() };
            let name = Arc::from("0123456789abcdef");
            let upstream = Upstream::new(&settings, Duration::ZERO, &name).expect("an upstream");
            assert_eq!(upstream.uri(&path.parse().expect("a URI")).to_string(), expect, "{base} {path}");
        };
        check("https://x.y", "/v1/messages?beta=true", "https://x.y/v1/messages?beta=true");
        check("https://x.y/v1", "/v1/chat/completions", "https://x.y/v1/chat/completions");
        check("http://x:1/a/v1/", "/v1/responses", "http://x:1/a/v1/responses");
        check("http://x:1/a", "/v1/responses", "http://x:1/a/v1/responses");
        check("http://x:1/v1", "/v1/responses?key=thr_0123&a=b", "http://x:1/v1/responses?a=b");
        check("http://x:1", "/v1/responses?key=thr_0123", "http://x:1/v1/responses");
    }

    #[test]
    fn the_log_has_no_credentials_of_an_upstream() {
        let check = |url: &str, expect: &str| {
            assert_eq!(without_credentials(&url.parse().expect("a URL")), expect);
        };
        check("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1");
        check("https://user:secret@models.example/", "https://models.example/");
    }
}
