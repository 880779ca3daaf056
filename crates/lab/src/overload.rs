//! Overload bench (`thresher-lab overload`): clients send requests with new chunks as fast as they are answered,
//! more than the daemon can read; another client sends requests about cached chunks. Counts the requests that
//! are answered, refused at once (429), or late (504).

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Progress;
use crate::client::{Caller, Client};
use crate::report::{self, quantile, round_to, sorted};
use crate::subject::Subject;
use crate::workload::{Workload, prose_of, seeded};

/// Requests of a single client before the load starts.
const ALONE_COUNT: usize = 5;

/// How long a client waits after a request that was not answered, which is what `Retry-After` says.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Time between two requests about cached chunks.
const WARM_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub time: Duration,
    /// Number of concurrent clients that send new chunks.
    pub clients: usize,
    pub workload: Workload,
}

#[derive(Debug, Clone)]
pub struct Report {
    json: Value,
    passed: bool,
}

/// Counts of how requests ended, with times in milliseconds.
#[derive(Debug, Default)]
struct Tally {
    answered_ms: Vec<f64>,
    refused_ms: Vec<f64>,
    late: usize,
    failed: usize,
}

struct Shared {
    caller: Caller,
    settings: Settings,
    until: Instant,
}

/// Runs the load for `settings.time` with the default deadline.
///
/// # Errors
/// Fails if the daemon cannot be reached, or if a request of a single client without load is not answered.
pub fn run(subject: &Subject, settings: Settings, progress: Progress) -> anyhow::Result<Report> {
    let client = Client::new(subject.address)?;
    let mut rng = seeded(0, "overload alone");
    let workload = settings.workload;
    // Without load, requests have the longest deadline: a slow machine is not a failure.
    let deadline_ms = Some(subject.deadline_ms_max);
    let alone =
        |chunks: &[String], rng: &mut Rng| client.compress(request_body(workload, chunks, deadline_ms, rng));
    let warm = new_chunks(workload, &mut rng);
    alone(&warm, &mut rng)?;
    let (mut cold_ms, mut warm_ms) = (Vec::new(), Vec::new());
    for n in 0..ALONE_COUNT {
        progress("alone", n, ALONE_COUNT);
        cold_ms.push(alone(&new_chunks(workload, &mut rng), &mut rng)?.ms());
        warm_ms.push(alone(&warm, &mut rng)?.ms());
    }
    let shared =
        Arc::new(Shared { caller: client.caller(), settings, until: Instant::now() + settings.time });
    let started = Instant::now();
    let (cold, warm_tally) = client.block_on(run_clients(&shared, &warm, progress))?;
    let elapsed = started.elapsed();
    let passed = cold.failed + warm_tally.failed == 0;
    let alone = json!({
        "answers_per_s": round_to(1e3 / quantile(&sorted(cold_ms), 0.5), 2),
        "warm_p50_ms": round_to(quantile(&sorted(warm_ms), 0.5), 1),
    });
    let per_s = |count: usize| round_to(count as f64 / elapsed.as_secs_f64(), 2);
    let json = json!({
        "overload_s": settings.time.as_secs(),
        "clients": settings.clients,
        "chunks": workload.chunks,
        "tokens": workload.tokens,
        "alone": alone,
        "cold": {
            "answers_per_s": per_s(cold.answered_ms.len()),
            "refused_per_s": per_s(cold.refused_ms.len()),
            "refused_ms": quantiles(&cold.refused_ms),
            "late_per_s": per_s(cold.late),
            "failed": cold.failed,
            "answered_ms": quantiles(&cold.answered_ms),
        },
        "warm": {
            "answered": warm_tally.answered_ms.len(),
            "not_answered": warm_tally.refused_ms.len() + warm_tally.late + warm_tally.failed,
            "answered_ms": quantiles(&warm_tally.answered_ms),
        },
        "model": report::model(subject),
        "machine": report::machine(subject),
        "version": env!("CARGO_PKG_VERSION"),
    });
    Ok(Report { json, passed })
}

/// Runs the clients; returns the tally of requests with new chunks and the tally of requests with cached
/// chunks.
async fn run_clients(
    shared: &Arc<Shared>,
    warm: &[String],
    progress: Progress<'_>,
) -> anyhow::Result<(Tally, Tally)> {
    let cold = Arc::new(Mutex::new(Tally::default()));
    let mut clients = JoinSet::new();
    for number in 0..shared.settings.clients {
        let (shared, cold) = (Arc::clone(shared), Arc::clone(&cold));
        let mut rng = seeded(number as u64, "overload");
        clients.spawn(async move {
            while Instant::now() < shared.until {
                let workload = shared.settings.workload;
                let body = request_body(workload, &new_chunks(workload, &mut rng), None, &mut rng);
                if post(&shared.caller, body, &cold).await != Some(StatusCode::OK) {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        });
    }
    let warm_tally = Mutex::new(Tally::default());
    let mut rng = seeded(0, "overload warm");
    let (started, seconds) = (Instant::now(), shared.settings.time.as_secs() as usize);
    while Instant::now() < shared.until {
        progress("overload", (started.elapsed().as_secs() as usize).min(seconds), seconds);
        tokio::time::sleep(WARM_INTERVAL).await;
        post(&shared.caller, request_body(shared.settings.workload, warm, None, &mut rng), &warm_tally).await;
    }
    while let Some(client) = clients.join_next().await {
        client?;
    }
    let cold = std::mem::take(&mut *cold.lock().expect("counting does not panic"));
    Ok((cold, warm_tally.into_inner().expect("counting does not panic")))
}

async fn post(caller: &Caller, body: Bytes, tally: &Mutex<Tally>) -> Option<StatusCode> {
    let response = caller.post("/v1/compress", body).await;
    let mut tally = tally.lock().expect("counting does not panic");
    let status = response.as_ref().ok().map(|response| response.status);
    match (response, status) {
        (Ok(response), Some(StatusCode::OK)) => tally.answered_ms.push(response.ms()),
        (Ok(response), Some(StatusCode::TOO_MANY_REQUESTS)) => tally.refused_ms.push(response.ms()),
        (_, Some(StatusCode::GATEWAY_TIMEOUT)) => tally.late += 1,
        _ => tally.failed += 1,
    }
    status
}

/// Generates chunk texts that no request has sent before.
fn new_chunks(workload: Workload, rng: &mut Rng) -> Vec<String> {
    (0..workload.chunks).map(|_| prose_of(rng, workload.tokens)).collect()
}

/// Builds a request body with a new question. Without `deadline_ms`, the daemon's default deadline applies.
fn request_body(workload: Workload, chunks: &[String], deadline_ms: Option<u64>, rng: &mut Rng) -> Bytes {
    let query = prose_of(rng, workload.query_tokens);
    json!({"query": query, "chunks": chunks, "deadline_ms": deadline_ms}).to_string().into()
}

/// Returns p50, p99 and maximum; null if there are no values.
fn quantiles(values: &[f64]) -> Value {
    if values.is_empty() {
        return Value::Null;
    }
    let sorted = sorted(values.iter().copied());
    let at = |q| round_to(quantile(&sorted, q), 1);
    json!({"p50": at(0.5), "p99": at(0.99), "max": at(1.0)})
}

impl Report {
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Returns whether every request was answered, refused (429) or late (504).
    pub fn passed(&self) -> bool {
        self.passed
    }
}

pub fn table(report: &Report) -> String {
    let json = &report.json;
    let shown = |path: &str| match json.pointer(path) {
        Some(Value::Null) | None => "-".to_owned(),
        Some(value) => value.to_string(),
    };
    let mut out = report::headline(json);
    let _ = writeln!(
        out,
        "{} clients with {} new chunks of about {} tokens in each request, {} s\n",
        json["clients"], json["chunks"], json["tokens"], json["overload_s"],
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<34} {value}");
    };
    let ms = |path: &str| {
        let at = |q: &str| shown(&format!("{path}/{q}"));
        format!("p50 {} ms, p99 {} ms, max {} ms", at("p50"), at("p99"), at("max"))
    };
    line("answers/s, one client alone", shown("/alone/answers_per_s"));
    line("answers/s, all clients", shown("/cold/answers_per_s"));
    line("  time to the answer", ms("/cold/answered_ms"));
    line("refused/s", shown("/cold/refused_per_s"));
    line("  time to the refusal", ms("/cold/refused_ms"));
    line("deadline exceeded/s", shown("/cold/late_per_s"));
    line("failed", shown("/cold/failed"));
    line("warm requests, alone", format!("p50 {} ms", shown("/alone/warm_p50_ms")));
    line("warm requests, under load", ms("/warm/answered_ms"));
    line("  not answered", format!("{} of {}", shown("/warm/not_answered"), warm_count(json)));
    out
}

fn warm_count(json: &Value) -> u64 {
    let count = |name: &str| json["warm"][name].as_u64().unwrap_or_default();
    count("answered") + count("not_answered")
}
