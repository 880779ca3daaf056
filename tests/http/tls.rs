//! TLS over real sockets: both versions of HTTP, certificates that are renewed or invalid, and clients that
//! speak other protocols.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Version};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use thresher::access::Watched;
use thresher::http::{self, Serving, tls::Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::keys::entry;
use crate::process::Running;
use crate::support::wait::eventually;
use crate::support::wire::{self, get};
use crate::{assert_good, good, registry_settings, scripted, service, serving};

/// The files of a certificate for `localhost` and of its key.
pub struct Files {
    folder: TempDir,
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Files {
    /// Makes the files, with a new certificate, and returns that certificate, too.
    pub fn new() -> (Self, CertificateDer<'static>) {
        let folder = tempfile::tempdir().expect("a folder");
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let files = Self { folder, cert, key };
        let der = files.renew();
        (files, der)
    }

    /// Replaces both files and returns the new certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let (pair, cert) = new_certificate();
        std::fs::write(&self.cert, cert.pem()).expect("written");
        std::fs::write(&self.key, pair.serialize_pem()).expect("written");
        cert.der().clone()
    }
}

/// A new key and a self-signed certificate for `localhost`.
fn new_certificate() -> (KeyPair, rcgen::Certificate) {
    let pair = KeyPair::generate().expect("a key");
    let cert = CertificateParams::new(["localhost".to_owned()]).expect("a name").self_signed(&pair);
    (pair, cert.expect("a certificate"))
}

/// A daemon with TLS, whose clients have `head_time` for the handshake and for the head of a request. Returns
/// its address and what notices changes of the certificate's files.
async fn serve_tls(files: &Files, head_time: Duration) -> (SocketAddr, Tls, Watched) {
    let (tls, watched) = Tls::open(&files.cert, &files.key).expect("a certificate");
    let (service, _) = service(
        Some(crate::pipeline_of(scripted(), thresher_core::kv::store::KvStore::without_tiers())),
        2,
        2,
        &registry_settings(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serving = http::serve(
        listener,
        http::router(service),
        Serving { head_max: head_time, ..serving() },
        Some(tls.clone()),
        std::future::pending(),
    );
    tokio::spawn(serving);
    (address, tls, watched)
}

/// Connects with a client that trusts only `cert` and offers `protocols`.
async fn connect(
    address: SocketAddr,
    cert: &CertificateDer<'static>,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(cert.clone()).expect("a root");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Sends a request over HTTP/1.1 and reads the response.
async fn ask(mut stream: TlsStream<TcpStream>, path: &str, header: &str, body: &str) -> wire::Response {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{header}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("the daemon reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("a response and the end of the TLS session");
    wire::parse(&answer)
}

/// Sends a good request over HTTP/2. Returns the status and body of the response.
async fn ask_h2(stream: TlsStream<TcpStream>, key: &str) -> (u16, String) {
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let request =
        Request::post("https://localhost/v1/compress").header("authorization", format!("Bearer {key}"));
    let request = request.header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(good().to_string()))).expect("a request");
    let answer = sender.send_request(request).await.expect("an answer");
    assert_eq!(answer.version(), Version::HTTP_2);
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_and_http_2_are_served_over_tls() {
    let (files, cert) = Files::new();
    let (address, ..) = serve_tls(&files, Duration::from_secs(30)).await;
    for protocols in [&["http/1.1"][..], &[]] {
        let stream = connect(address, &cert, protocols).await.expect("the handshake succeeds");
        assert_good("HTTP/1.1", &ask(stream, "/v1/compress", "", &good().to_string()).await);
    }
    let stream = connect(address, &cert, &["h2", "http/1.1"]).await.expect("the handshake succeeds");
    let (status, body) = ask_h2(stream, "").await;
    assert!(status == 200 && body.contains("The tide is at noon."), "{status}: {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_complete_a_handshake_or_a_request_are_disconnected() {
    let (files, cert) = Files::new();
    let (address, ..) = serve_tls(&files, Duration::from_millis(300)).await;
    let beginnings: [&[u8]; 5] = [
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"\x00\xff\xff",
        b"",
    ];
    for beginning in beginnings {
        let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
        stream.write_all(beginning).await.expect("the daemon reads");
        let mut response = Vec::new();
        // The daemon ends the connection; it may also reset it.
        let _ = stream.read_to_end(&mut response).await;
        assert!(!response.starts_with(b"HTTP/"), "{beginning:?}: {response:?}");
    }
    // After the handshake comes nothing, or half a request. A busy machine may need longer for the handshake
    // than the daemon waits: then the client tries again.
    for begun in ["", "GET /v1/models HTTP/1.1\r\nhost: local"] {
        eventually("a client connects in time and is disconnected", async || {
            let Ok(mut stream) = connect(address, &cert, &["http/1.1"]).await else { return false };
            if stream.write_all(begun.as_bytes()).await.is_err() {
                return false;
            }
            let mut response = Vec::new();
            let _ = stream.read_to_end(&mut response).await;
            true
        })
        .await;
    }
    let stranger = new_certificate().1.der().clone();
    connect(address, &stranger, &[]).await.expect_err("a client that trusts another certificate");
    connect(address, &cert, &["gopher"]).await.expect_err("a client without a common protocol");
    // The listener still serves others.
    eventually("a client connects and sends its request in time", async || {
        let Ok(mut stream) = connect(address, &cert, &[]).await else { return false };
        let body = good().to_string();
        let head = format!(
            "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut response = String::new();
        let sent = stream.write_all(format!("{head}{body}").as_bytes()).await;
        sent.is_ok() && stream.read_to_string(&mut response).await.is_ok() && response.starts_with("HTTP/1.1 200 ")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_used_for_new_connections() {
    let (files, before) = Files::new();
    let (address, tls, mut watched) = serve_tls(&files, Duration::from_secs(30)).await;
    let mut kept = connect(address, &before, &["http/1.1"]).await.expect("the handshake succeeds");
    let after = files.renew();
    tls.refresh(&mut watched);
    connect(address, &before, &[]).await.expect_err("the old certificate is not used any more");
    let stream = connect(address, &after, &[]).await.expect("the handshake succeeds");
    assert_eq!(ask(stream, "/v1/models", "", "").await.status, 200);
    // An open connection continues.
    let head = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    kept.write_all(head.as_bytes()).await.expect("the daemon reads");
    let mut answer = String::new();
    kept.read_to_string(&mut answer).await.expect("an answer");
    assert_eq!(wire::parse(&answer).status, 200);
    // A certificate without its key, and a missing key.
    std::fs::write(&files.cert, new_certificate().1.pem()).expect("written");
    tls.refresh(&mut watched);
    std::fs::remove_file(&files.key).expect("removed");
    tls.refresh(&mut watched);
    connect(address, &after, &[]).await.expect("the last valid certificate is still used");
}

#[test]
fn an_unusable_certificate_is_refused_with_the_name_of_its_file() {
    let (files, _) = Files::new();
    let (pair, cert) = new_certificate();
    let check = |case: &str, cert: &str, key: &str, expect: &[&str]| {
        std::fs::write(&files.cert, cert).expect("written");
        std::fs::write(&files.key, key).expect("written");
        let error = Tls::open(&files.cert, &files.key).err().expect(case).to_string();
        for part in expect {
            assert!(error.contains(part), "{case}: {error:?} lacks {part:?}");
        }
        assert!(!error.contains("PRIVATE"), "{case}: {error}");
    };
    let (cert, key) = (cert.pem(), pair.serialize_pem());
    let in_cert = "cert.pem (http.tls_cert_file): ";
    let in_key = "key.pem (http.tls_key_file): ";
    check("an empty file", "", &key, &[in_cert, "no certificate in PEM"]);
    check("the key in place of the certificate", &key, &key, &[in_cert, "no certificate in PEM"]);
    check("the certificate in place of the key", &cert, &cert, &[in_key, "no private key in PEM"]);
    check("half of the certificate", &cert[..200], &key, &[in_cert]);
    check(
        "the key of another certificate",
        &cert,
        &new_certificate().0.serialize_pem(),
        &[in_key, "not the key of the certificate in"],
    );
    let none = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check("no certificate inside", none, &key, &[in_cert, "no certificate that can be used"]);
    let none = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    check("no key inside", &cert, none, &[in_key]);
    std::fs::remove_file(&files.cert).expect("removed");
    let error = Tls::open(&files.cert, &files.key).err().expect("a missing file").to_string();
    assert!(error.starts_with("cannot read ") && error.contains("http.tls_cert_file"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_accepts_keys_over_tls_and_logs_none() {
    let (files, cert) = Files::new();
    let keys = files.folder.path().join("keys.toml");
    std::fs::write(&keys, entry("caller", "tenant = \"acme\"")).expect("written");
    let path = |path: &PathBuf| path.to_str().expect("text").to_owned();
    let settings = [
        // With keys, the daemon may listen on all interfaces.
        ("THRESHER__HTTP__LISTEN", "0.0.0.0:0".to_owned()),
        ("THRESHER__ACCESS__KEYS_FILE", path(&keys)),
        ("THRESHER__HTTP__TLS_CERT_FILE", path(&files.cert)),
        ("THRESHER__HTTP__TLS_KEY_FILE", path(&files.key)),
    ];
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, &**value)).collect();
    let mut daemon = Running::start_with(&settings);
    let mut log = Vec::new();
    let (http, admin) = daemon.ready(&mut log).await;
    let http = SocketAddr::from(([127, 0, 0, 1], http.port()));
    let status = async |cert: &CertificateDer<'static>, header: &str| {
        let stream = connect(http, cert, &["http/1.1"]).await.ok()?;
        let body = json!({"query": "When is the tide?", "chunks": ["The tide is at noon."]}).to_string();
        Some(ask(stream, "/v1/compress", header, &body).await.status)
    };
    let (good, bad) = ("authorization: Bearer thr_caller\r\n", "x-thresher-key: thr_wrong\r\n");
    assert_eq!(status(&cert, good).await, Some(200));
    assert_eq!(status(&cert, bad).await, Some(401));
    let stream = connect(http, &cert, &["h2"]).await.expect("the handshake succeeds");
    assert_eq!(ask_h2(stream, "thr_caller").await.0, 200);
    assert_eq!(status(&cert, "").await, Some(401));
    assert_eq!(get(admin, "/livez").await.status, 200, "the admin listener needs neither TLS nor a key");
    let renewed = files.renew();
    std::fs::write(&keys, entry("caller", "revoked = true")).expect("written");
    eventually("the new certificate is used and the key is revoked", async || {
        status(&renewed, good).await == Some(403)
    })
    .await;
    assert_eq!(status(&cert, good).await, None, "the old certificate is still used");
    daemon.terminate();
    log.extend(daemon.log.iter());
    let named = log.iter().filter(|line| line.contains("\"key\":\"caller\"")).count();
    assert!(named > 0, "the log does not name the key: {log:#?}");
    let quoting: Vec<_> = log.iter().filter(|line| line.contains("thr_")).collect();
    assert!(quoting.is_empty(), "{quoting:#?}");
}
