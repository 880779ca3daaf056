//! Rows about connections: idle connections, clients that do not read, clients that send slowly, and TLS
//! handshakes that are never finished.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::stream::{self, StreamExt as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::Finding;
use crate::clients::{self, BackgroundClient, HttpRequest};
use crate::memory::resident_growth;
use crate::process::{DaemonProcess, Setup};
use thresher::http::ConnectionLimits;

/// The longest time that a new client may wait for a response, in milliseconds.
const NEW_CLIENT_MS: f64 = 2_000.0;

/// The longest time that the admin listener may take, in milliseconds.
const ADMIN_MS: f64 = 1_000.0;

/// Connections that are opened concurrently.
const CONNECTING: usize = 50;

/// Number of addresses that idle connections come from; new clients come from another one.
const SOURCES: usize = 4;

/// How long connections stay idle. It is longer than a new client waits for a response.
const IDLE_TIME: Duration = Duration::from_secs(12);

/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Limit of file descriptors, as on systems with a low default.
const FEW_DESCRIPTORS: u32 = 1_024;

/// Number of idle HTTP/2 connections.
const IDLE_H2: usize = 50;

/// How much longer than its setting a timeout may take.
const TIMEOUT_SLACK: Duration = Duration::from_secs(10);

/// Clients per HTTP version that do not read.
const NON_READERS: usize = 20;

/// Clients that send a byte a second; one half sends a head, the other half a body.
const SLOW_SENDERS: usize = 20;

/// Resident memory above the start that clients which do not read may occupy in the end, in MB.
const NON_READERS_MB: f64 = 100.0;

/// Resident memory above the start, in MB, at which the bench kills the daemon.
const KILL_ABOVE_MB: f64 = 3_000.0;

/// TLS handshakes that are started and never finished.
const HANDSHAKES: usize = 300;

/// Runs the row `connections`.
pub async fn idle(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    for count in [300, 1_500] {
        findings.extend(probe_beside_idle(&daemon, count, &format!("{count} idle"), idle_first_bytes).await);
    }
    drop(daemon);
    let mut few = setup.sandbox()?;
    few.limit_descriptors(FEW_DESCRIPTORS);
    let daemon = few.start().await?;
    // The timeout for a request's head does not end HTTP/2 connections.
    let case = format!("1500 idle, all HTTP/2, {FEW_DESCRIPTORS} file descriptors");
    findings.extend(probe_beside_idle(&daemon, 1_500, &case, |_, _| clients::H2_PREFACE.to_vec()).await);
    drop(daemon);
    findings.push(idle_h2(setup).await?);
    Ok(findings)
}

/// Measures the slowest response to new clients and on the admin listener while `count` connections are
/// opened and then left idle.
async fn probe_beside_idle(
    daemon: &DaemonProcess,
    count: usize,
    case: &str,
    first_bytes: fn(SocketAddr, usize) -> Vec<u8>,
) -> Vec<Finding> {
    let address = daemon.http();
    let hold_connections = async {
        let started = Instant::now();
        let connections: Vec<TcpStream> = stream::iter(0..count)
            .map(|number| async move {
                // A daemon may limit the connections of one address.
                let source = Ipv4Addr::new(127, 0, 0, 2 + (number % SOURCES) as u8);
                clients::connect_from_and_send(source, address, &first_bytes(address, number)).await.ok()
            })
            .buffer_unordered(CONNECTING)
            .filter_map(async |stream| stream)
            .collect()
            .await;
        let (connected, took) = (connections.len(), started.elapsed().as_secs_f64());
        sleep(IDLE_TIME).await;
        let open = connections.iter().filter(|stream| !clients::is_closed(stream)).count();
        format!("{connected} of {count} connections accepted in {took:.1} s, {open} open at the end")
    };
    let mut probes = [
        Probe::new("slowest response to a new client, ms", address, "/v1/models", NEW_CLIENT_MS),
        Probe::new("slowest /livez, ms", daemon.admin(), "/livez", ADMIN_MS),
        Probe::new("slowest /readyz, ms", daemon.admin(), "/readyz", ADMIN_MS),
    ];
    let [new_client, livez, readyz] = &mut probes;
    let connection_note = tokio::select! {
        connection_note = hold_connections => connection_note,
        _ = futures_util::future::join3(new_client.repeat(), livez.repeat(), readyz.repeat()) => {
            unreachable!("probes repeat without end")
        }
    };
    probes.into_iter().map(|probe| probe.finding(case, &connection_note)).collect()
}

/// A request that is sent again and again, each time over a new connection.
struct Probe {
    name: &'static str,
    address: SocketAddr,
    path: &'static str,
    limit_ms: f64,
    ms_max: f64,
    answered: usize,
    failed: String,
    /// When the current request was sent; `None` between requests.
    sent_at: Option<Instant>,
}

impl Probe {
    fn new(name: &'static str, address: SocketAddr, path: &'static str, limit_ms: f64) -> Self {
        Self { name, address, path, limit_ms, ms_max: 0.0, answered: 0, failed: String::new(), sent_at: None }
    }

    async fn repeat(&mut self) {
        loop {
            self.sent_at = Some(Instant::now());
            match clients::new_client_ms(self.address, self.path).await {
                Ok(ms) => {
                    self.answered += 1;
                    self.ms_max = self.ms_max.max(ms);
                }
                Err(error) => {
                    self.ms_max = f64::INFINITY;
                    self.failed = format!("; {error:#}");
                }
            }
            self.sent_at = None;
            sleep(PROBE_INTERVAL).await;
        }
    }

    fn finding(self, case: &str, connection_note: &str) -> Finding {
        let Self { name, limit_ms, ms_max, answered, failed, sent_at, .. } = self;
        // A request that is still waiting counts with its waiting time so far.
        let waiting_ms = sent_at.map_or(0.0, |at| at.elapsed().as_secs_f64() * 1e3);
        let note = format!("{answered} responses; {connection_note}{failed}");
        Finding::at_most(format!("{case}: {name}"), ms_max.max(waiting_ms), limit_ms).note(note)
    }
}

/// Returns the first bytes of the connection with this number: a request, an HTTP/2 preface, or half a
/// request head.
fn idle_first_bytes(address: SocketAddr, number: usize) -> Vec<u8> {
    match number % 3 {
        0 => format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\n\r\n").into_bytes(),
        1 => clients::H2_PREFACE.to_vec(),
        _ => format!("POST /v1/compress HTTP/1.1\r\nhost: {address}\r\ncontent-le").into_bytes(),
    }
}

/// Checks that HTTP/2 connections without a request are closed.
async fn idle_h2(setup: &Setup) -> anyhow::Result<Finding> {
    let sandbox = setup.sandbox()?;
    let wait = ConnectionLimits::PUBLIC.idle_max + TIMEOUT_SLACK;
    let daemon = sandbox.start().await?;
    let (started, address) = (Instant::now(), daemon.http());
    let mut open = Vec::new();
    for _ in 0..IDLE_H2 {
        open.push(clients::connect_and_send(address, clients::H2_PREFACE).await?);
    }
    while !open.is_empty() && started.elapsed() < wait {
        sleep(Duration::from_millis(500)).await;
        open.retain(|stream| !clients::is_closed(stream));
    }
    let case =
        format!("idle HTTP/2 connections still open after {} s, of {IDLE_H2}", started.elapsed().as_secs());
    Ok(Finding::at_most(case, open.len() as f64, 0.0))
}

/// Runs the row `slow-clients`.
pub async fn slow_clients(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let wait = ConnectionLimits::PUBLIC.write_max + TIMEOUT_SLACK;
    let daemon = sandbox.start().await?;
    register_large(&daemon).await?;
    let before = daemon.resident()?.now_mb;
    let guard = daemon.guard(before + KILL_ABOVE_MB);
    let address = daemon.http();
    let path = "/v1/chunks?limit=8";
    let get = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let mut non_readers = Vec::new();
    for number in 0..2 * NON_READERS {
        let bytes = match number % 2 {
            0 => get.clone().into_bytes(),
            _ => clients::h2_get_with_closed_window(address, path),
        };
        non_readers.push(clients::connect_without_reading(address, &bytes).await?);
    }
    let background_client = BackgroundClient::start(address);
    let started = Instant::now();
    sleep(Duration::from_secs(5)).await;
    let after_5_s = daemon.resident().map_or(f64::INFINITY, |rss| rss.now_mb - before);
    let left = wait.saturating_sub(started.elapsed());
    let after = daemon.wait_until_below(before + NON_READERS_MB, left).await.map(|mb| mb - before);
    let background_client = background_client.finish().await;
    let memory_use = guard.finish();
    let after = after.unwrap_or(f64::INFINITY);
    let note = format!("{:.0} MB after 5 s, {:.0} MB at most", after_5_s, memory_use.peak_mb - before);
    let case = format!("resident memory above the start after {} s, MB", started.elapsed().as_secs());
    let mut findings = vec![if memory_use.killed {
        resident_growth(&case, memory_use.peak_mb - before, NON_READERS_MB, true)
    } else {
        Finding::at_most(case, after, NON_READERS_MB).note(note)
    }];
    findings.extend(background_client);
    drop(non_readers);
    findings.push(slow_senders(setup, address).await?);
    findings.push(Finding::is_true("the daemon runs", daemon.is_alive()));
    Ok(findings)
}

/// Registers eight chunks of 1 MB; one page of them is as large as a body may be. Their words are too long
/// for the vocabulary, so reading them takes no time.
async fn register_large(daemon: &DaemonProcess) -> anyhow::Result<()> {
    let word = "x".repeat(400) + " ";
    let text = word.repeat(1_000_000 / word.len());
    for half in 0..2 {
        let chunks: Vec<_> = (0..4)
            .map(|n| json!({"id": format!("large-{half}-{n}"), "text": format!("{n} {text}")}))
            .collect();
        let body = json!({"chunks": chunks}).to_string();
        let response = HttpRequest::post("/v1/chunks", body).send(&daemon.caller()).await?;
        ensure!(
            response.status.is_success(),
            "registering chunks of 1 MB was answered with {}",
            response.status
        );
    }
    // Wait for the work of registering, which is not part of the attack.
    daemon.wait_until_idle(Duration::from_secs(60)).await?;
    Ok(())
}

/// Checks that clients which send a byte a second are cut off once the time for a head and a body has passed.
async fn slow_senders(setup: &Setup, address: SocketAddr) -> anyhow::Result<Finding> {
    let time = setup.limits.read_max;
    let head = format!("POST /v1/compress HTTP/1.1\r\nhost: {address}\r\n");
    let with_body = format!("{head}content-type: application/json\r\ncontent-length: 100000\r\n\r\n{{");
    let started = Instant::now();
    let mut open = Vec::new();
    for number in 0..SLOW_SENDERS {
        let first_bytes = if number % 2 == 0 { &head } else { &with_body };
        open.push(clients::connect_and_send(address, first_bytes.as_bytes()).await?);
    }
    while !open.is_empty() && started.elapsed() < time + TIMEOUT_SLACK {
        sleep(Duration::from_secs(1)).await;
        let mut left = Vec::new();
        for mut stream in open {
            // An error response also ends the attack.
            let ended = clients::is_closed(&stream)
                || stream.write_all(b"a").await.is_err()
                || timeout(Duration::from_millis(1), stream.peek(&mut [0])).await.is_ok();
            if !ended {
                left.push(stream);
            }
        }
        open = left;
    }
    let case = format!("clients that could send a byte a second for {} s", started.elapsed().as_secs());
    let note = format!("of {SLOW_SENDERS}; {} ms for a head or a body to arrive", time.as_millis());
    Ok(Finding::at_most(case, open.len() as f64, 0.0).note(note))
}

/// Runs the row `tls-stall`.
pub async fn tls_stall(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut sandbox = setup.sandbox()?;
    let Ok(certificate) = certificate(sandbox.path()) else {
        return Ok(vec![Finding::skipped(
            "handshakes",
            "cannot make a certificate: openssl is not installed",
        )]);
    };
    sandbox.set("http.tls_cert_file", "cert.pem");
    sandbox.set("http.tls_key_file", "key.pem");
    let daemon = sandbox.start().await?;
    let address = daemon.http();
    // The first bytes of a ClientHello of 512 bytes; every second client sends nothing.
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xFC, 0x03, 0x03];
    let stalled: Vec<TcpStream> = stream::iter(0..HANDSHAKES)
        .map(|number| async move {
            let bytes = if number % 2 == 0 { &hello[..] } else { &[] };
            clients::connect_and_send(address, bytes).await.ok()
        })
        .buffer_unordered(CONNECTING)
        .filter_map(async |stream| stream)
        .collect()
        .await;
    let connection_note = format!("{} of {HANDSHAKES} connections accepted", stalled.len());
    let started = Instant::now();
    let answered = timeout(clients::RESPONSE_TIME_MAX, over_tls(address, certificate)).await;
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let finding = match answered.context("no response in time").flatten() {
        Ok(()) => Finding::at_most("response to a new client, ms", ms, NEW_CLIENT_MS).note(connection_note),
        Err(error) => Finding::at_most("response to a new client, ms", f64::INFINITY, NEW_CLIENT_MS)
            .note(format!("{error:#}; {connection_note}")),
    };
    let time = setup.limits.read_max + TIMEOUT_SLACK;
    let until = Instant::now() + time;
    let mut open = stalled;
    while !open.is_empty() && Instant::now() < until {
        sleep(Duration::from_millis(500)).await;
        open.retain(|stream| !clients::is_closed(stream));
    }
    let case = format!("TLS handshakes still open after {} s", started.elapsed().as_secs());
    Ok(vec![finding, Finding::at_most(case, open.len() as f64, 0.0)])
}

/// Creates a certificate for localhost in the files `cert.pem` and `key.pem`.
fn certificate(folder: &Path) -> anyhow::Result<CertificateDer<'static>> {
    let done = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(folder)
        .output()
        .context("cannot run openssl")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(CertificateDer::from_pem_file(folder.join("cert.pem"))?)
}

/// Sends one request over TLS, trusting this certificate only.
async fn over_tls(address: SocketAddr, certificate: CertificateDer<'static>) -> anyhow::Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost")?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let request =
        format!("GET /v1/models HTTP/1.1\r\nhost: localhost:{}\r\nconnection: close\r\n\r\n", address.port());
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    // Some servers close the connection without a TLS close_notify.
    let _ = stream.read_to_end(&mut response).await;
    ensure!(
        response.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&response[..response.len().min(40)])
    );
    Ok(())
}
