//! Soak test (`thresher-lab soak`): for minutes, clients send requests of all kinds at once: requests of all sizes
//! about recurring and new chunks, registrations, searches, disconnects, short deadlines and invalid bodies.
//!
//! The test makes no demand on times. It fails if resident memory exceeds the configured limits by more than
//! a fixed slack, or if a request does not get the response that it should.

pub mod requests;

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use fastrand::Rng;
use serde::Deserialize;
use serde_json::{Value, json};
use thresher::config::MemoryShares;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::requests::{ChunkPool, Expectation, RequestGenerator, SoakRequest};
use crate::Progress;
use crate::client::{Caller, Client};
use crate::report::{self, quantile, round_to, sorted};
use crate::rss;
use crate::subject::Subject;
use crate::workload::seeded;

/// Resident memory allowed beyond the configured limits, in bytes.
pub const SLACK_BYTES: u64 = 300_000_000;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// How long requests in flight may take after the last request was sent.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(10);

/// Duration and load of the test, and the daemon's memory limits.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub time: Duration,
    pub clients: usize,
    pub memory: MemoryShares,
    /// Limit of the disk tier (`blocks.disk_bytes_max`), in bytes. The test uses several times as many chunks
    /// as the tier holds.
    pub disk_bytes_max: u64,
}

struct Observations {
    settings: Settings,
    /// Resident memory after the model was loaded and the chunks were generated.
    base_mb: f64,
    /// Resident memory, sampled every second.
    samples_mb: Vec<f64>,
    peak_mb: f64,
    chunks: usize,
    tally: Tally,
}

struct Shared {
    caller: Caller,
    address: std::net::SocketAddr,
    generator: RequestGenerator,
    until: Instant,
    tally: Mutex<Tally>,
}

/// Runs the soak test.
///
/// # Errors
/// Fails if the system does not report resident memory, or if chunks cannot be registered before the test.
pub fn run(subject: &Subject, settings: Settings, progress: Progress) -> anyhow::Result<Report> {
    let client = Client::new(subject.address)?;
    let chunks = ChunkPool::for_disk(settings.disk_bytes_max);
    let generator = RequestGenerator::new(chunks, subject.deadline_ms_max);
    for registration in generator.registrations() {
        client.register(registration)?;
    }
    rss::reset_peak();
    let base = rss::current()
        .context("cannot read resident memory: /proc/self/status is missing or has another format")?;
    let count = generator.chunks().count();
    let started = Instant::now();
    let shared = Arc::new(Shared {
        caller: client.caller(),
        address: subject.address,
        generator,
        until: started + settings.time,
        tally: Mutex::default(),
    });
    let samples_mb = client.block_on(send_and_watch(&shared, settings, started, progress))?;
    let peak_mb = rss::current().map_or(f64::NAN, |rss| rss.peak_mb);
    let tally = std::mem::take(&mut *shared.tally.lock().expect("counting does not panic"));
    let observations =
        Observations { settings, base_mb: base.now_mb, samples_mb, peak_mb, chunks: count, tally };
    Ok(Report::new(subject, &observations))
}

/// Samples resident memory every second while clients send requests.
async fn send_and_watch(
    shared: &Arc<Shared>,
    settings: Settings,
    started: Instant,
    progress: Progress<'_>,
) -> anyhow::Result<Vec<f64>> {
    let mut clients = JoinSet::new();
    for number in 0..settings.clients {
        clients.spawn(client(Arc::clone(shared), seeded(number as u64, "soak")));
    }
    let mut samples = Vec::new();
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    let (seconds, end) = (settings.time.as_secs() as usize, shared.until + SHUTDOWN_TIME_MAX);
    while Instant::now() < end {
        tokio::select! {
            _ = ticks.tick() => {
                samples.extend(rss::current().map(|rss| rss.now_mb));
                progress("soak", (started.elapsed().as_secs() as usize).min(seconds), seconds);
            }
            done = clients.join_next() => match done {
                None => break,
                Some(done) => done?,
            },
        }
    }
    // Clients still in flight are dropped, which closes their connections.
    shared.tally.lock().expect("counting does not panic").cut_off = clients.len();
    ensure!(
        !samples.is_empty(),
        "cannot read resident memory: /proc/self/status is missing or has another format"
    );
    Ok(samples)
}

async fn client(shared: Arc<Shared>, mut rng: Rng) {
    while Instant::now() < shared.until {
        let request = shared.generator.draw(&mut rng);
        let outcome = send(&shared, &request).await;
        shared.tally.lock().expect("counting does not panic").count(&request, outcome);
    }
}

/// Sends a request; returns status and body, or `None` if the client disconnected on purpose.
async fn send(shared: &Shared, request: &SoakRequest) -> anyhow::Result<Option<(u16, Bytes)>> {
    let response = match request.expectation {
        Expectation::DisconnectWhileSending => {
            disconnect_half_way(shared, &request.body).await?;
            return Ok(None);
        }
        Expectation::DisconnectWhileWaiting(after) => {
            match timeout(after, shared.caller.post(request.path, request.body.clone())).await {
                Err(_disconnected) => return Ok(None),
                Ok(response) => response?,
            }
        }
        _ => shared.caller.post(request.path, request.body.clone()).await?,
    };
    Ok(Some((response.status.as_u16(), response.body)))
}

/// Sends half of a body and closes the connection.
async fn disconnect_half_way(shared: &Shared, body: &[u8]) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(shared.address).await?;
    let head = format!(
        "POST /v1/compress HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        shared.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body[..body.len() / 2]).await?;
    Ok(())
}

const SAMPLES_MAX: usize = 120;

#[derive(Debug, Default)]
pub struct Tally {
    answered: usize,
    left: usize,
    late: usize,
    passed_through: usize,
    refused: usize,
    /// Requests that should have ended otherwise, by how they ended.
    failed: BTreeMap<String, usize>,
    /// Number of chunks in answered requests.
    chunks: usize,
    blocks: Blocks,
    /// Number of requests in flight when the time was up.
    cut_off: usize,
}

/// Where the blocks of answered requests came from, as the responses report it.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Blocks {
    memory: usize,
    disk: usize,
    shared: usize,
    joined: usize,
    read: usize,
}

#[derive(Deserialize)]
struct CompressResponse {
    degraded: Option<Code>,
    blocks: Option<Blocks>,
}

#[derive(Deserialize)]
struct ErrorResponse {
    error: Code,
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

impl Tally {
    /// Counts the outcome of `request`: status and body, or `None` if the client disconnected on purpose.
    pub fn count(&mut self, request: &SoakRequest, outcome: anyhow::Result<Option<(u16, Bytes)>>) {
        let (status, body) = match outcome {
            Ok(Some(response)) => response,
            Ok(None) => {
                self.left += 1;
                return;
            }
            Err(error) => return self.fail(format!("no response: {error:#}")),
        };
        match (request.expectation, status) {
            (Expectation::Rejected(expected), status) if status == expected => self.refused += 1,
            // The daemon missed the deadline (504), or refused the request because it would miss it (429).
            (Expectation::LateAllowed, 504 | 429) => self.late += 1,
            (Expectation::Rejected(_), _) | (_, 400..) => {
                let code = serde_json::from_slice::<ErrorResponse>(&body).map(|response| response.error.code);
                self.fail(format!("{status} {}", code.as_deref().unwrap_or("without a code")));
            }
            (expectation, _) => match serde_json::from_slice(&body) {
                Err(error) => self.fail(format!("the response body cannot be parsed: {error}")),
                Ok(CompressResponse { degraded: Some(_), .. })
                    if expectation == Expectation::LateOrPassthrough =>
                {
                    self.passed_through += 1;
                }
                Ok(CompressResponse { degraded: Some(error), .. }) => {
                    self.fail(format!("degraded: {}", error.code))
                }
                Ok(CompressResponse { degraded: None, blocks }) => {
                    self.answered += 1;
                    self.chunks += request.chunks;
                    self.blocks.add(blocks.unwrap_or_default());
                }
            },
        }
    }

    /// Counts a request that should have ended otherwise, by how it ended.
    pub fn fail(&mut self, reason: String) {
        *self.failed.entry(reason).or_default() += 1;
    }

    /// Returns the number of requests that should have ended otherwise.
    pub fn failures(&self) -> usize {
        self.failed.values().sum()
    }

    /// Returns the number of requests that were answered.
    pub fn answered(&self) -> usize {
        self.answered
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, left, late, passed_through, refused, failed, .. } = self;
        write!(out, "{answered} answered, {refused} refused, {left} left, {late} late, ")?;
        write!(out, "{passed_through} passed through, failed {failed:?}")
    }
}

impl Blocks {
    fn add(&mut self, other: Self) {
        self.memory += other.memory;
        self.disk += other.disk;
        self.shared += other.shared;
        self.joined += other.joined;
        self.read += other.read;
    }
}

#[derive(Debug, Clone)]
pub struct Report {
    json: Value,
    passed: bool,
}

impl Report {
    fn new(subject: &Subject, observations: &Observations) -> Self {
        let Observations { settings, base_mb, samples_mb, peak_mb, chunks, tally } = observations;
        let max = samples_mb.iter().copied().fold(peak_mb.max(*base_mb), f64::max);
        let MemoryShares { blocks: block_bytes, block_writes, chunks: chunk_bytes, recent_requests, .. } =
            settings.memory;
        let bounds = block_bytes + block_writes + chunk_bytes as u64 + recent_requests;
        let limit_mb = (bounds + SLACK_BYTES) as f64 / 1e6;
        let memory_met = max <= limit_mb;
        let median = |samples: &[f64]| round_to(quantile(&sorted(samples.iter().copied()), 0.5), 1);
        let (first, second) = samples_mb.split_at(samples_mb.len() / 2);
        let stats = subject.local.stats();
        let Tally { answered, left, late, passed_through, refused, failed, cut_off, blocks, .. } = tally;
        let json = json!({
            "soak_s": settings.time.as_secs(),
            "clients": settings.clients,
            "chunks": chunks,
            "rss_mb": {
                "base": round_to(*base_mb, 1),
                "max": round_to(max, 1),
                "peak": round_to(*peak_mb, 1),
                "bounds": round_to(bounds as f64 / 1e6, 1),
                "at_most": round_to(limit_mb, 1),
                "median_of_first_half": if first.is_empty() { Value::Null } else { median(first) },
                "median_of_second_half": median(second),
                "samples": samples(samples_mb),
            },
            "requests": {
                "answered": answered,
                "answered_chunks": tally.chunks,
                "left": left,
                "late": late,
                "passed_through": passed_through,
                "refused": refused,
                "cut_off_at_the_end": cut_off,
                "failed": tally.failures(),
                "failures": failed,
            },
            "blocks": {
                "memory": blocks.memory,
                "disk": blocks.disk,
                "joined": blocks.joined,
                "read": blocks.read,
            },
            "kv": {
                "memory_bytes": stats.memory.bytes,
                "memory_bytes_max": settings.memory.blocks,
                "disk_bytes": stats.disk.bytes,
                "disk_bytes_max": settings.disk_bytes_max,
            },
            "met": {"memory": memory_met, "requests": tally.failures() == 0 && *answered > 0},
            "model": report::model(subject),
            "machine": report::machine(subject),
            "version": env!("CARGO_PKG_VERSION"),
        });
        Self { passed: json["met"]["memory"] == json!(true) && json["met"]["requests"] == json!(true), json }
    }

    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Returns whether memory stayed within its limits, at least one request was answered, and no request
    /// failed that should not.
    pub fn passed(&self) -> bool {
        self.passed
    }
}

/// Returns at most [`SAMPLES_MAX`] samples, evenly spaced.
fn samples(samples_mb: &[f64]) -> Vec<Value> {
    let step = samples_mb.len().div_ceil(SAMPLES_MAX).max(1);
    samples_mb.iter().step_by(step).map(|&mb| round_to(mb, 1)).collect()
}

pub fn table(report: &Report) -> String {
    let json = &report.json;
    let shown = |path: &str| {
        json.pointer(path).and_then(Value::as_f64).map_or("-".to_owned(), |number| format!("{number:.0}"))
    };
    let met = |name: &str| if json["met"][name] == json!(true) { "met" } else { "missed" };
    let mut out = report::headline(json);
    let _ = writeln!(
        out,
        "{} s, {} clients, {} chunks; memory limits add up to {} MB, disk limit {} MB\n",
        json["soak_s"],
        json["clients"],
        json["chunks"],
        shown("/rss_mb/bounds"),
        json["kv"]["disk_bytes_max"].as_f64().unwrap_or_default() / 1e6,
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<34} {value}");
    };
    for name in ["answered", "left", "late", "passed_through", "refused", "cut_off_at_the_end"] {
        line(&name.replace('_', " "), shown(&format!("/requests/{name}")));
    }
    for name in ["memory", "disk", "joined", "read"] {
        line(&format!("blocks: {name}"), shown(&format!("/blocks/{name}")));
    }
    let (memory, disk) = (shown("/kv/memory_bytes"), shown("/kv/disk_bytes"));
    line("bytes of cached blocks", format!("{memory} in memory, {disk} on disk"));
    let (first, second) = (shown("/rss_mb/median_of_first_half"), shown("/rss_mb/median_of_second_half"));
    line("resident memory, median by half", format!("first {first} MB, second {second} MB"));
    line("resident memory after loading", format!("{} MB", shown("/rss_mb/base")));
    let memory = format!(
        "{} MB, limit {} (configured limits + {}): {}",
        shown("/rss_mb/max"),
        shown("/rss_mb/at_most"),
        SLACK_BYTES / 1_000_000,
        met("memory")
    );
    line("resident memory, maximum", memory);
    line("failed", format!("{}, limit 0: {}", shown("/requests/failed"), met("requests")));
    for (reason, times) in json["requests"]["failures"].as_object().into_iter().flatten() {
        line(&format!("  {times} times"), reason.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_classified() {
        let check = |name: &str, expectation: Expectation, status: u16, body: &'static str, failed: usize| {
            let mut tally = Tally::default();
            let request = SoakRequest { expectation, path: "", body: Bytes::new(), chunks: 1 };
            tally.count(&request, Ok(Some((status, Bytes::from_static(body.as_bytes())))));
            assert_eq!(tally.failures(), failed, "{name}: {tally:?}");
        };
        let (answer, degraded) = (r#"{"blocks": {"read": 1}}"#, r#"{"degraded": {"code": "overloaded"}}"#);
        check("an answer", Expectation::Answered, 200, answer, 0);
        check("a full queue", Expectation::Answered, 429, r#"{"error": {"code": "overloaded"}}"#, 1);
        check("a late one that had all the time", Expectation::Answered, 504, "", 1);
        check("a degraded one that did not ask for it", Expectation::Answered, 200, degraded, 1);
        check("no JSON", Expectation::Answered, 200, "", 1);
        check("a hurried answer", Expectation::LateAllowed, 200, answer, 0);
        check("a hurried one that is late", Expectation::LateAllowed, 504, "", 0);
        check("a hurried one that would be late", Expectation::LateAllowed, 429, "", 0);
        check("one that had all the time", Expectation::Answered, 429, "", 1);
        check("a hurried one that failed", Expectation::LateAllowed, 500, "", 1);
        check("passed through", Expectation::LateOrPassthrough, 200, degraded, 0);
        check("not passed through", Expectation::LateOrPassthrough, 504, "", 1);
        check("refused", Expectation::Rejected(422), 422, "", 0);
        check("taken", Expectation::Rejected(422), 200, answer, 1);
        check("refused otherwise", Expectation::Rejected(422), 400, "", 1);
        let mut tally = Tally::default();
        let request =
            SoakRequest { expectation: Expectation::Answered, path: "", body: Bytes::new(), chunks: 1 };
        tally.count(&request, Err(anyhow::anyhow!("reset")));
        assert_eq!(tally.failures(), 1, "no answer at all");
    }
}
