//! Rows about connections: idle ones, clients that do not read, clients that send slowly, TLS handshakes that are never finished.

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

use super::Finding;
use super::daemon::{Daemon, Sandbox, Setup};
use super::memory::grown;
use super::wire::{self, Ask, Bystander};

/// How long a new client may wait for its answer.
const NEWCOMER_MS: f64 = 2_000.0;

/// How long the operators' listener may take.
const OPERATOR_MS: f64 = 1_000.0;

/// Connections that are made at the same time.
const CONNECTING: usize = 50;

/// Addresses that idle connections come from; new clients come from another one.
const SOURCES: usize = 4;

/// How long they are left before the row goes on: longer than a client waits that is not answered.
const IDLE: Duration = Duration::from_secs(12);

/// Between two questions beside them.
const PROBE: Duration = Duration::from_millis(100);

/// File descriptors of a daemon where the system gives few.
const FEW_DESCRIPTORS: u32 = 1_024;

/// Connections of HTTP/2 that are left idle.
const IDLE_H2: usize = 50;

/// A timeout that a row waits for is made this long where its default is longer than [`WAIT_MAX`].
const SHORT: Duration = Duration::from_secs(5);

/// A row waits for no timeout that is longer.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a row waits for what no setting names.
const WAIT_UNNAMED: Duration = Duration::from_secs(45);

/// What a timeout may take beyond what it is set to.
const SLACK: Duration = Duration::from_secs(10);

/// Clients of each version of HTTP that do not read.
const NON_READERS: usize = 20;

/// Clients that send a byte a second: half of them a head, half a body.
const SLOW_SENDERS: usize = 20;

/// Resident memory above the start that clients which do not read may hold on to for good, in MB.
const NON_READERS_MB: f64 = 100.0;

/// Above what is resident at the start, a daemon is killed.
const KILL_MB: f64 = 3_000.0;

/// TLS handshakes that are begun and left.
const HANDSHAKES: usize = 300;

/// Row `connections`.
pub async fn idle(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    for count in [300, 1_500] {
        findings.extend(beside_idle(&daemon, count, &format!("{count} idle"), idle_beginning).await);
    }
    drop(daemon);
    let mut few = setup.sandbox()?;
    few.limit_descriptors(FEW_DESCRIPTORS);
    let daemon = few.start().await?;
    // Those that no timeout for a request's head ends.
    let what = format!("1500 idle, all HTTP/2, {FEW_DESCRIPTORS} file descriptors");
    findings.extend(beside_idle(&daemon, 1_500, &what, |_, _| wire::H2_PREFACE.to_vec()).await);
    drop(daemon);
    findings.push(idle_h2(setup).await?);
    Ok(findings)
}

/// The slowest answer that new clients and operators wait for while `count` connections are made and are then left idle.
async fn beside_idle(
    daemon: &Daemon,
    count: usize,
    what: &str,
    beginning: fn(SocketAddr, usize) -> Vec<u8>,
) -> Vec<Finding> {
    let address = daemon.http();
    let being_idle = async {
        let begun = Instant::now();
        let connections: Vec<TcpStream> = stream::iter(0..count)
            .map(|number| async move {
                // A daemon may bound the connections of one address.
                let source = Ipv4Addr::new(127, 0, 0, 2 + (number % SOURCES) as u8);
                wire::sent_from(source, address, &beginning(address, number)).await.ok()
            })
            .buffer_unordered(CONNECTING)
            .filter_map(async |stream| stream)
            .collect()
            .await;
        let (made, took) = (connections.len(), begun.elapsed().as_secs_f64());
        sleep(IDLE).await;
        let open = connections.iter().filter(|stream| !wire::is_closed(stream)).count();
        format!("{made} of {count} connections made in {took:.1} s, {open} open at the end")
    };
    let mut probes = [
        Probe::new("slowest answer to a new client, ms", address, "/v1/models", NEWCOMER_MS),
        Probe::new("slowest /livez, ms", daemon.admin(), "/livez", OPERATOR_MS),
        Probe::new("slowest /readyz, ms", daemon.admin(), "/readyz", OPERATOR_MS),
    ];
    let [newcomer, livez, readyz] = &mut probes;
    let made = tokio::select! {
        made = being_idle => made,
        _ = futures_util::future::join3(newcomer.repeat(), livez.repeat(), readyz.repeat()) => {
            unreachable!("probes do not end")
        }
    };
    probes.into_iter().map(|probe| probe.finding(what, &made)).collect()
}

/// A question that is asked again and again, each time over a connection of its own.
struct Probe {
    name: &'static str,
    address: SocketAddr,
    path: &'static str,
    ms_aim: f64,
    ms_max: f64,
    answered: usize,
    failed: String,
    /// Since when the last one waits.
    asked_at: Option<Instant>,
}

impl Probe {
    fn new(name: &'static str, address: SocketAddr, path: &'static str, ms_aim: f64) -> Self {
        Self { name, address, path, ms_aim, ms_max: 0.0, answered: 0, failed: String::new(), asked_at: None }
    }

    async fn repeat(&mut self) {
        loop {
            self.asked_at = Some(Instant::now());
            match wire::newcomer_ms(self.address, self.path).await {
                Ok(ms) => {
                    self.answered += 1;
                    self.ms_max = self.ms_max.max(ms);
                }
                Err(error) => {
                    self.ms_max = f64::INFINITY;
                    self.failed = format!("; {error:#}");
                }
            }
            self.asked_at = None;
            sleep(PROBE).await;
        }
    }

    fn finding(self, what: &str, made: &str) -> Finding {
        let Self { name, ms_aim, ms_max, answered, failed, asked_at, .. } = self;
        // One that still waits at the end counts with what it has waited.
        let waiting_ms = asked_at.map_or(0.0, |at| at.elapsed().as_secs_f64() * 1e3);
        let note = format!("{answered} answers; {made}{failed}");
        Finding::at_most(format!("{what}: {name}"), ms_max.max(waiting_ms), ms_aim).note(note)
    }
}

/// How the connection with this number begins: with a request, with HTTP/2, with half a head.
fn idle_beginning(address: SocketAddr, number: usize) -> Vec<u8> {
    match number % 3 {
        0 => format!("GET /v1/models HTTP/1.1\r\nhost: {address}\r\n\r\n").into_bytes(),
        1 => wire::H2_PREFACE.to_vec(),
        _ => format!("POST /v1/compress HTTP/1.1\r\nhost: {address}\r\ncontent-le").into_bytes(),
    }
}

/// Whether connections of HTTP/2 without a request are closed.
async fn idle_h2(setup: &Setup) -> anyhow::Result<Finding> {
    let mut sandbox = setup.sandbox()?;
    let (wait, said) = waiting_for(setup, &mut sandbox, &["idle", "keep_alive"]);
    let daemon = sandbox.start().await?;
    let (begun, address) = (Instant::now(), daemon.http());
    let mut open = Vec::new();
    for _ in 0..IDLE_H2 {
        open.push(wire::sent(address, wire::H2_PREFACE).await?);
    }
    while !open.is_empty() && begun.elapsed() < wait {
        sleep(Duration::from_millis(500)).await;
        open.retain(|stream| !wire::is_closed(stream));
    }
    let what =
        format!("idle HTTP/2 connections still open after {} s, of {IDLE_H2}", begun.elapsed().as_secs());
    Ok(Finding::at_most(what, open.len() as f64, 0.0).note(said))
}

/// How long to wait for a timeout of the public listener that is called so, made shorter where it is long; and what was done.
fn waiting_for(setup: &Setup, sandbox: &mut Sandbox, parts: &[&str]) -> (Duration, String) {
    match setup.find_time("http", parts) {
        None => (WAIT_UNNAMED, format!("no setting of [http] is called {}", parts.join(" or "))),
        Some((name, time)) if time > WAIT_MAX => {
            sandbox.set(&name, SHORT.as_millis() as i64);
            (SHORT + SLACK, format!("with {name} = {} ms instead of {}", SHORT.as_millis(), time.as_millis()))
        }
        Some((name, time)) => (time + SLACK, format!("{name} = {} ms", time.as_millis())),
    }
}

/// Row `slow-clients`.
pub async fn slow_clients(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut sandbox = setup.sandbox()?;
    let (wait, said) = waiting_for(setup, &mut sandbox, &["write"]);
    let daemon = sandbox.start().await?;
    register_large(&daemon).await?;
    let before = daemon.resident()?.now_mb;
    let guard = daemon.guard(before + KILL_MB);
    let address = daemon.http();
    let path = "/v1/chunks?limit=8";
    let get = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    let mut non_readers = Vec::new();
    for number in 0..2 * NON_READERS {
        let bytes = match number % 2 {
            0 => get.clone().into_bytes(),
            _ => wire::h2_get_closed(address, path),
        };
        non_readers.push(wire::sent_to_read_nothing(address, &bytes).await?);
    }
    let bystander = Bystander::start(address);
    let begun = Instant::now();
    sleep(Duration::from_secs(5)).await;
    let after_5_s = daemon.resident().map_or(f64::INFINITY, |resident| resident.now_mb - before);
    let left = wait.saturating_sub(begun.elapsed());
    let after = daemon.given_back(before + NON_READERS_MB, left).await.map(|mb| mb - before);
    let bystander = bystander.finish().await;
    let guarded = guard.finish();
    let after = after.unwrap_or(f64::INFINITY);
    let held = format!("{:.0} MB after 5 s, {:.0} MB at most; {said}", after_5_s, guarded.peak_mb - before);
    let what = format!("resident above the start {} s after, MB", begun.elapsed().as_secs());
    let mut findings = vec![match guarded.killed {
        true => grown(&what, guarded.peak_mb - before, NON_READERS_MB, true),
        false => Finding::at_most(what, after, NON_READERS_MB).note(held),
    }];
    findings.extend(bystander);
    drop(non_readers);
    findings.push(slow_senders(setup, address).await?);
    findings.push(Finding::is_true("the daemon runs", daemon.is_alive()));
    Ok(findings)
}

/// Registers eight chunks of 1 MB: a page of them is as large as a body may be. Their words are too long for the vocabulary, so that
/// reading them takes no time.
async fn register_large(daemon: &Daemon) -> anyhow::Result<()> {
    let word = "x".repeat(400) + " ";
    let text = word.repeat(1_000_000 / word.len());
    for half in 0..2 {
        let chunks: Vec<_> = (0..4)
            .map(|n| json!({"id": format!("large-{half}-{n}"), "text": format!("{n} {text}")}))
            .collect();
        let body = json!({"chunks": chunks}).to_string();
        let answer = Ask::post("/v1/chunks", body).send(&daemon.caller()).await?;
        ensure!(answer.status.is_success(), "chunks of 1 MB cannot be registered: {}", answer.status);
    }
    // Work that has nothing to do with the attack.
    daemon.settled(Duration::from_secs(60)).await?;
    Ok(())
}

/// Clients that send a byte a second, and how many of them are still let go on when a head and a body have had their time.
async fn slow_senders(setup: &Setup, address: SocketAddr) -> anyhow::Result<Finding> {
    let time = setup.time("/http/read_ms_max")?;
    let head = format!("POST /v1/compress HTTP/1.1\r\nhost: {address}\r\n");
    let with_body = format!("{head}content-type: application/json\r\ncontent-length: 100000\r\n\r\n{{");
    let begun = Instant::now();
    let mut open = Vec::new();
    for number in 0..SLOW_SENDERS {
        let beginning = if number % 2 == 0 { &head } else { &with_body };
        open.push(wire::sent(address, beginning.as_bytes()).await?);
    }
    while !open.is_empty() && begun.elapsed() < time + SLACK {
        sleep(Duration::from_secs(1)).await;
        let mut left = Vec::new();
        for mut stream in open {
            // An answer that says why is an end, too.
            let ended = wire::is_closed(&stream)
                || stream.write_all(b"a").await.is_err()
                || timeout(Duration::from_millis(1), stream.peek(&mut [0])).await.is_ok();
            if !ended {
                left.push(stream);
            }
        }
        open = left;
    }
    let what = format!("clients that may send a byte a second for {} s", begun.elapsed().as_secs());
    let note = format!("of {SLOW_SENDERS}; http.read_ms_max = {} ms", time.as_millis());
    Ok(Finding::at_most(what, open.len() as f64, 0.0).note(note))
}

/// Row `tls-stall`.
pub async fn tls_stall(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut sandbox = setup.sandbox()?;
    let Ok(certificate) = certificate(sandbox.path()) else {
        return Ok(vec![Finding::skipped("handshakes", "openssl is not here to make a certificate")]);
    };
    sandbox.set("http.tls_cert_file", "cert.pem");
    sandbox.set("http.tls_key_file", "key.pem");
    let daemon = sandbox.start().await?;
    let address = daemon.http();
    // The first bytes of a ClientHello of 512 bytes; every second client sends nothing at all.
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xFC, 0x03, 0x03];
    let stalled: Vec<TcpStream> = stream::iter(0..HANDSHAKES)
        .map(|number| async move {
            let bytes = if number % 2 == 0 { &hello[..] } else { &[] };
            wire::sent(address, bytes).await.ok()
        })
        .buffer_unordered(CONNECTING)
        .filter_map(async |stream| stream)
        .collect()
        .await;
    let made = format!("{} of {HANDSHAKES} connections made", stalled.len());
    let started = Instant::now();
    let answered = timeout(wire::ANSWER_MAX, over_tls(address, certificate)).await;
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let finding = match answered.context("late").flatten() {
        Ok(()) => Finding::at_most("a new client's answer, ms", ms, NEWCOMER_MS).note(made),
        Err(error) => Finding::at_most("a new client's answer, ms", f64::INFINITY, NEWCOMER_MS)
            .note(format!("{error:#}; {made}")),
    };
    let time = setup.time("/http/read_ms_max")? + SLACK;
    let until = Instant::now() + time;
    let mut open = stalled;
    while !open.is_empty() && Instant::now() < until {
        sleep(Duration::from_millis(500)).await;
        open.retain(|stream| !wire::is_closed(stream));
    }
    let what = format!("handshakes still open after {} s", started.elapsed().as_secs());
    Ok(vec![finding, Finding::at_most(what, open.len() as f64, 0.0)])
}

/// Makes a certificate for this machine; the files are `cert.pem` and `key.pem`.
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

/// Asks once over TLS, trusting this certificate alone.
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
    let mut answer = Vec::new();
    // Some servers end without saying so.
    let _ = stream.read_to_end(&mut answer).await;
    ensure!(
        answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer[..answer.len().min(40)])
    );
    Ok(())
}
