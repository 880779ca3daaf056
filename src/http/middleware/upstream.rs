//! Servers that answer: which one has a model, and a request to it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, EXPECT, HOST};
use axum::http::uri::{InvalidUri, PathAndQuery};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;

use crate::admission::{Claim, Place, Shares};
use crate::http::HttpError;
use crate::proxy::dialect::Dialect;
use crate::proxy::settings::{MiddlewareSettings, UpstreamSettings};

/// Headers that concern one connection only (RFC 9110, 7.6.1), and those that are made anew.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that are ours begin so.
pub const OURS: &str = "x-thresher";

/// A server that cannot be asked, as it is set.
#[derive(Debug, Error)]
#[error("middleware.upstreams, {url}: {cause}")]
pub struct UpstreamError {
    url: String,
    cause: String,
}

/// All servers.
pub struct Middleware {
    /// The settings.
    pub settings: MiddlewareSettings,
    upstreams: Vec<Upstream>,
    places: Shares,
}

/// A server.
pub struct Upstream {
    /// Its settings.
    pub settings: UpstreamSettings,
    base: Uri,
    /// The key that it is asked with instead of the caller's.
    key: Option<String>,
    client: Client<HttpsConnector<HttpConnector>, Body>,
    silence_max: Duration,
}

impl Middleware {
    /// Reads keys and certificates.
    ///
    /// # Errors
    /// A file that cannot be read, an address that is none.
    pub fn new(settings: &MiddlewareSettings) -> Result<Self, UpstreamError> {
        let upstream = |upstream: &UpstreamSettings| {
            let failed = |cause| UpstreamError { url: upstream.url.clone(), cause };
            Upstream::new(upstream, settings).map_err(failed)
        };
        Ok(Self {
            upstreams: settings.upstreams.iter().map(upstream).collect::<Result<_, _>>()?,
            places: Shares::new(settings.request_count_max, 0),
            settings: settings.clone(),
        })
    }

    /// Whether there is nobody to ask.
    pub fn is_off(&self) -> bool {
        self.upstreams.is_empty()
    }

    /// Who has a model; of no name, whoever has any.
    ///
    /// # Errors
    /// When nobody does.
    pub fn upstream(&self, model: &str) -> Result<&Upstream, HttpError> {
        let has = |upstream: &&Upstream| upstream.settings.has(model);
        self.upstreams.iter().find(has).ok_or_else(|| match model {
            "" => HttpError::model_missing(),
            name => HttpError::model_unknown(name),
        })
    }

    /// A place among the requests that are on their way to upstream servers.
    ///
    /// # Errors
    /// When this tenant has its share of them, and when to ask again.
    pub fn place(&self, claim: Claim) -> Result<Place, HttpError> {
        let retry_after_s = || self.places.retry_after_s(claim.tenant);
        self.places.take(claim).ok_or_else(|| HttpError::too_many_on_their_way(retry_after_s()))
    }
}

impl Upstream {
    fn new(upstream: &UpstreamSettings, settings: &MiddlewareSettings) -> Result<Self, String> {
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let tls = match upstream.ca_file.as_os_str().is_empty() {
            true => tls.with_webpki_roots(),
            false => tls.with_root_certificates(roots(&upstream.ca_file)?),
        };
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(Duration::from_millis(settings.connect_ms_max)));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new());
        let key = match upstream.key_file.as_os_str().is_empty() {
            true => None,
            false => {
                let file = &upstream.key_file;
                let key = std::fs::read_to_string(file).map_err(|cause| of_file(file, cause))?;
                let key = key.trim().to_owned();
                if key.is_empty() || HeaderValue::from_str(&key).is_err() {
                    return Err(of_file(file, "not a key: one line of text"));
                }
                Some(key)
            }
        };
        Ok(Self {
            base: upstream.url.parse().map_err(|error: InvalidUri| error.to_string())?,
            settings: upstream.clone(),
            key,
            client: client.build(connector),
            silence_max: Duration::from_millis(settings.silence_ms_max),
        })
    }

    /// How long it may say nothing.
    pub fn silence_max(&self) -> Duration {
        self.silence_max
    }

    /// Asks it what we were asked.
    ///
    /// # Errors
    /// When it cannot be reached, or says nothing.
    pub async fn ask(
        &self,
        (dialect, uri): (Dialect, &Uri),
        headers: &HeaderMap,
        body: Vec<u8>,
        reads_answer: bool,
    ) -> Result<Response<Incoming>, HttpError> {
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri(uri);
        *request.headers_mut() = passed_on(headers);
        for name in [HOST, CONTENT_LENGTH, EXPECT] {
            request.headers_mut().remove(name);
        }
        if reads_answer {
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        self.set_key(dialect, request.headers_mut())?;
        let answer = tokio::time::timeout(self.silence_max, self.client.request(request));
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                tracing::warn!(
                    upstream = self.base.host(),
                    connect = error.is_connect(),
                    "an upstream failed"
                );
                Err(HttpError::upstream_failed(error.is_connect()))
            }
            Err(_elapsed) => Err(HttpError::upstream_silent(self.silence_max)),
        }
    }

    /// The address of a path there. `/v1` is said once, whether the setting has it or not.
    fn uri(&self, asked: &Uri) -> Uri {
        let before = self.base.path().trim_end_matches('/');
        let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = match before.ends_with("/v1") {
            true => path.strip_prefix("/v1").unwrap_or(path),
            false => path,
        };
        let mut parts = self.base.clone().into_parts();
        parts.path_and_query = format!("{before}{path}").parse().ok();
        Uri::from_parts(parts).unwrap_or_else(|_| self.base.clone())
    }

    fn set_key(&self, dialect: Dialect, headers: &mut HeaderMap) -> Result<(), HttpError> {
        let Some(key) = &self.key else { return Ok(()) };
        let (name, other, value) = match dialect {
            Dialect::Messages => (HeaderName::from_static("x-api-key"), AUTHORIZATION, key.clone()),
            _ => (AUTHORIZATION, HeaderName::from_static("x-api-key"), format!("Bearer {key}")),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|_| HttpError::internal())?;
        value.set_sensitive(true);
        headers.remove(other);
        headers.insert(name, value);
        Ok(())
    }
}

/// Headers of an end-to-end message, without those that are said to us.
pub fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .collect();
    let stays = |name: &HeaderName| {
        let name = name.as_str();
        !OF_THE_CONNECTION.contains(&name) && !name.starts_with(OURS) && !named.iter().any(|n| n == name)
    };
    headers
        .iter()
        .filter(|(name, _)| stays(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn of_file(file: &Path, cause: impl std::fmt::Display) -> String {
    format!("{}: {cause}", file.display())
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|cause| of_file(file, cause))? {
        let certificate = certificate.map_err(|cause| of_file(file, cause))?;
        roots.add(certificate).map_err(|cause| of_file(file, cause))?;
    }
    if roots.is_empty() { Err(of_file(file, "no certificate in it")) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_put_together_once() {
        let check = |base: &str, asked: &str, expect: &str| {
            let settings = UpstreamSettings {
                url: base.to_owned(),
                models: Vec::new(),
                compress: None,
                key_file: "".into(),
                ca_file: "".into(),
            };
            let upstream = Upstream::new(&settings, &MiddlewareSettings::default()).expect("an upstream");
            assert_eq!(upstream.uri(&asked.parse().expect("a URI")).to_string(), expect, "{base} {asked}");
        };
        check("https://x.y", "/v1/messages?beta=true", "https://x.y/v1/messages?beta=true");
        check("https://x.y/v1", "/v1/chat/completions", "https://x.y/v1/chat/completions");
        check("http://x:1/a/v1/", "/v1/responses", "http://x:1/a/v1/responses");
        check("http://x:1/a", "/v1/responses", "http://x:1/a/v1/responses");
    }

    #[test]
    fn what_concerns_one_connection_stays_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("x-thresher-compress", "true"),
            ("authorization", "Bearer k"),
            ("anthropic-beta", "b"),
        ] {
            headers.insert(name, value.parse().expect("a value"));
        }
        let passed = passed_on(&headers);
        let names: Vec<&str> = passed.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["authorization", "anthropic-beta"]);
    }
}
