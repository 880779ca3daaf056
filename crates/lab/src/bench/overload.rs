//! More than can be read: clients that send nothing but new chunks, as fast as they are answered, and one that asks about chunks
//! which have been read. Counts who is answered, who is told at once that it would be late, and who waits for nothing.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::client::{Caller, Client};
use super::json::{self, round_to};
use super::statistics::{quantile, sorted};
use super::workload::{Random, Workload, prose_of};
use super::{Progress, Subject};

/// Requests that one client sends alone, before the others come.
const ALONE: usize = 5;

/// What a client waits that was not answered, as `Retry-After` says.
const RETRY: Duration = Duration::from_secs(1);

/// Between two questions about chunks that have been read.
const PAUSE: Duration = Duration::from_millis(200);

/// Who sends what for how long.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How long.
    pub time: Duration,
    /// Clients that send new chunks.
    pub clients: usize,
    /// Shape of each request, about.
    pub workload: Workload,
}

/// What was seen.
#[derive(Debug, Clone)]
pub struct Report {
    json: Value,
    passed: bool,
}

/// How requests ended.
#[derive(Debug, Default)]
struct Tally {
    answered_ms: Vec<f64>,
    refused_ms: Vec<f64>,
    late: usize,
    failed: usize,
}

/// What all clients share.
struct Shared {
    caller: Caller,
    settings: Settings,
    until: Instant,
}

/// Sends for as long as `settings` say, with the deadline of requests that name none.
///
/// # Errors
/// When there is no daemon to send to, or one client alone is not answered.
pub fn run(subject: &Subject, settings: Settings, progress: Progress) -> anyhow::Result<Report> {
    let client = Client::new(subject.daemon.address())?;
    let mut random = Random::new(0, "overload alone");
    let workload = settings.workload;
    // One that is alone has all the time: a slow machine is no failure.
    let deadline_ms = Some(subject.daemon.deadline_ms_max());
    let alone =
        |chunks: &[String], random: &mut Random| client.ask(ask(workload, chunks, deadline_ms, random));
    let warm = chunks(workload, &mut random);
    alone(&warm, &mut random)?;
    let (mut cold_ms, mut warm_ms) = (Vec::new(), Vec::new());
    for n in 0..ALONE {
        progress("alone", n, ALONE);
        cold_ms.push(alone(&chunks(workload, &mut random), &mut random)?.ms());
        warm_ms.push(alone(&warm, &mut random)?.ms());
    }
    let shared =
        Arc::new(Shared { caller: client.caller(), settings, until: Instant::now() + settings.time });
    let started = Instant::now();
    let (cold, beside) = client.block_on(send(&shared, &warm, progress))?;
    let elapsed = started.elapsed();
    let passed = cold.failed + beside.failed == 0;
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
            "answered": beside.answered_ms.len(),
            "not_answered": beside.refused_ms.len() + beside.late + beside.failed,
            "answered_ms": quantiles(&beside.answered_ms),
        },
        "model": json::model(subject),
        "machine": json::machine(subject),
        "version": env!("CARGO_PKG_VERSION"),
    });
    Ok(Report { json, passed })
}

/// What became of requests about new chunks, and of those about `warm` ones beside them.
async fn send(
    shared: &Arc<Shared>,
    warm: &[String],
    progress: Progress<'_>,
) -> anyhow::Result<(Tally, Tally)> {
    let cold = Arc::new(Mutex::new(Tally::default()));
    let mut clients = JoinSet::new();
    for number in 0..shared.settings.clients {
        let (shared, cold) = (Arc::clone(shared), Arc::clone(&cold));
        let mut random = Random::new(number as u64, "overload");
        clients.spawn(async move {
            while Instant::now() < shared.until {
                let workload = shared.settings.workload;
                let body = ask(workload, &chunks(workload, &mut random), None, &mut random);
                if post(&shared.caller, body, &cold).await != Some(StatusCode::OK) {
                    tokio::time::sleep(RETRY).await;
                }
            }
        });
    }
    let beside = Mutex::new(Tally::default());
    let mut random = Random::new(0, "overload warm");
    let (started, seconds) = (Instant::now(), shared.settings.time.as_secs() as usize);
    while Instant::now() < shared.until {
        progress("overload", (started.elapsed().as_secs() as usize).min(seconds), seconds);
        tokio::time::sleep(PAUSE).await;
        post(&shared.caller, ask(shared.settings.workload, warm, None, &mut random), &beside).await;
    }
    while let Some(client) = clients.join_next().await {
        client?;
    }
    let cold = std::mem::take(&mut *cold.lock().expect("counting does not panic"));
    Ok((cold, beside.into_inner().expect("counting does not panic")))
}

/// Sends a request and counts how it ends.
async fn post(caller: &Caller, body: Bytes, tally: &Mutex<Tally>) -> Option<StatusCode> {
    let answer = caller.post("/v1/compress", body).await;
    let mut tally = tally.lock().expect("counting does not panic");
    let status = answer.as_ref().ok().map(|answer| answer.status);
    match (answer, status) {
        (Ok(answer), Some(StatusCode::OK)) => tally.answered_ms.push(answer.ms()),
        (Ok(answer), Some(StatusCode::TOO_MANY_REQUESTS)) => tally.refused_ms.push(answer.ms()),
        (_, Some(StatusCode::GATEWAY_TIMEOUT)) => tally.late += 1,
        _ => tally.failed += 1,
    }
    status
}

/// Texts that nobody has sent before.
fn chunks(workload: Workload, random: &mut Random) -> Vec<String> {
    (0..workload.chunks).map(|_| prose_of(random, workload.tokens)).collect()
}

/// A body with another question; without `deadline_ms` it has the default deadline.
fn ask(workload: Workload, chunks: &[String], deadline_ms: Option<u64>, random: &mut Random) -> Bytes {
    let query = prose_of(random, workload.query_tokens);
    json!({"query": query, "chunks": chunks, "deadline_ms": deadline_ms}).to_string().into()
}

/// None of nothing.
fn quantiles(values: &[f64]) -> Value {
    if values.is_empty() {
        return Value::Null;
    }
    let sorted = sorted(values.iter().copied());
    let at = |q| round_to(quantile(&sorted, q), 1);
    json!({"p50": at(0.5), "p99": at(0.99), "max": at(1.0)})
}

impl Report {
    /// For programs.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// Whether every request was answered, refused or late.
    pub fn passed(&self) -> bool {
        self.passed
    }
}

/// For people.
pub fn table(report: &Report) -> String {
    let json = &report.json;
    let shown = |path: &str| match json.pointer(path) {
        Some(Value::Null) | None => "-".to_owned(),
        Some(value) => value.to_string(),
    };
    let mut out = format!(
        "{} clients with {} new chunks of about {} tokens in each request, {} s\n\n",
        json["clients"], json["chunks"], json["tokens"], json["overload_s"],
    );
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<34} {value}");
    };
    let ms = |path: &str| {
        let at = |q: &str| shown(&format!("{path}/{q}"));
        format!("p50 {} ms, p99 {} ms, at most {} ms", at("p50"), at("p99"), at("max"))
    };
    line("answers/s to one client alone", shown("/alone/answers_per_s"));
    line("answers/s to all of them", shown("/cold/answers_per_s"));
    line("  after", ms("/cold/answered_ms"));
    line("refused/s", shown("/cold/refused_per_s"));
    line("  after", ms("/cold/refused_ms"));
    line("late/s", shown("/cold/late_per_s"));
    line("failed", shown("/cold/failed"));
    line("read before, alone", format!("p50 {} ms", shown("/alone/warm_p50_ms")));
    line("read before, beside them", ms("/warm/answered_ms"));
    line("  not answered", format!("{} of {}", shown("/warm/not_answered"), asked(json)));
    out
}

fn asked(json: &Value) -> u64 {
    let count = |name: &str| json["warm"][name].as_u64().unwrap_or_default();
    count("answered") + count("not_answered")
}
