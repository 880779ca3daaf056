//! Rows about fairness: two tenants of which one sends as much as it can, and clients that obey
//! `Retry-After`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use fastrand::Rng;
use hyper::StatusCode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Finding;
use crate::clients::{HttpRequest, retry_after_s};
use crate::process::{Sandbox, Setup};
use thresher_lab::client::Caller;
use thresher_lab::report::{quantile, sorted};
use thresher_lab::workload::{prose_of, seeded};

/// Warm requests of one tenant without load.
const ALONE_REQUESTS: usize = 100;

/// How long this tenant goes on under the load of the other one.
const CONTENDED_TIME: Duration = Duration::from_secs(20);

/// Clients of the greedy tenant, and fewest and most new chunks of each of their requests.
const GREEDY_CLIENTS: usize = 32;
const GREEDY_CHUNKS: (usize, usize) = (20, 100);

/// Approximate number of tokens of a chunk.
const CHUNK_TOKENS: usize = 60;

/// Chunks of a warm request.
const WARM_CHUNKS: usize = 20;

/// The largest ratio of a tenant's p99 under load to its p99 without load.
const RATIO_MAX: f64 = 3.0;

/// Clients that send at once, and new chunks of each of their requests.
const CROWD_CLIENTS: usize = 120;
const CROWD_CHUNKS: usize = 10;

/// The most requests that a client which obeys `Retry-After` may have to send.
const TRIES_MAX: usize = 6;

/// How long all these clients may take together.
const CROWD_TIME_MAX: Duration = Duration::from_secs(90);

/// Number of requests by how they ended.
type OutcomeCounts = Arc<Mutex<BTreeMap<String, usize>>>;

/// Runs the row `tenants`.
pub async fn tenants(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut sandbox = setup.sandbox()?;
    let (a, b) = (create_key(&sandbox, "a")?, create_key(&sandbox, "b")?);
    sandbox.set("access.keys_file", "keys.toml");
    let daemon = sandbox.start().await?;
    let (caller_a, caller_b) = (daemon.caller(), daemon.caller());
    let bearers = [&a, &b].map(|key| format!("Bearer {key}"));
    let mut rng = seeded(0, "hostile tenants");
    let warm: Vec<String> = (0..WARM_CHUNKS).map(|_| prose_of(&mut rng, CHUNK_TOKENS)).collect();
    let mut send_warm = async || warm_ms(&caller_a, &bearers[0], &warm, &mut rng).await;
    send_warm().await.context("a warm request without load failed")?;
    let mut alone = Vec::new();
    for _ in 0..ALONE_REQUESTS {
        alone.push(send_warm().await?);
    }
    // With the longest deadline, requests wait in the queue instead of being refused.
    let deadline_ms = Some(setup.limits.deadline_max.as_millis() as u64);
    let outcomes = OutcomeCounts::default();
    let mut clients = JoinSet::new();
    for number in 0..GREEDY_CLIENTS as u64 {
        let sender = (caller_b.clone(), bearers[1].clone());
        clients.spawn(send_greedily(sender, number, deadline_ms, Arc::clone(&outcomes)));
    }
    // Wait until the greedy clients have started.
    sleep(Duration::from_secs(1)).await;
    let (mut contended, mut failed, until) = (Vec::new(), Vec::new(), Instant::now() + CONTENDED_TIME);
    while Instant::now() < until {
        match send_warm().await {
            Ok(ms) => contended.push(ms),
            Err(error) => {
                failed.push(format!("{error:#}"));
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    clients.abort_all();
    let outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
    let answered_b = outcomes.get("200 OK").copied().unwrap_or_default();
    let p99 =
        |ms: &[f64]| if ms.is_empty() { f64::INFINITY } else { quantile(&sorted(ms.iter().copied()), 0.99) };
    let (p99_alone, p99_contended) = (p99(&alone), p99(&contended));
    let note =
        format!("{p99_alone:.0} ms alone, {p99_contended:.0} ms under load, {} requests", contended.len());
    let lost = failed.len() as f64;
    failed.sort();
    failed.dedup();
    Ok(vec![
        // Without responses to the greedy tenant there is no load.
        Finding::at_least("responses to the greedy tenant", answered_b as f64, 1.0)
            .note(format!("{outcomes:?}")),
        Finding::at_most("p99 under load / p99 alone", p99_contended / p99_alone, RATIO_MAX).note(note),
        Finding::at_most("warm requests that were not answered", lost, 0.0).note(failed.join(", ")),
        Finding::is_true("the daemon runs", daemon.is_alive()),
    ])
}

/// Creates a key for the tenant in the key file.
/// Writes a key of a tenant to the file of keys, and returns it.
pub fn create_key(sandbox: &Sandbox, tenant: &str) -> anyhow::Result<String> {
    sandbox.run(&["key", "new", "--name", tenant, "--tenant", tenant, "--file", "keys.toml"])
}

/// Sends a new question about the same chunks and returns its time in milliseconds.
async fn warm_ms(caller: &Caller, bearer: &str, chunks: &[String], rng: &mut Rng) -> anyhow::Result<f64> {
    let body = json!({"query": prose_of(rng, 16), "chunks": chunks}).to_string();
    let response =
        HttpRequest::post("/v1/compress", body).with(&[("authorization", bearer)]).send(caller).await?;
    ensure!(response.status == StatusCode::OK, "answered with {}", response.status);
    Ok(response.ms())
}

/// Sends new chunks until it is aborted, whatever the responses, and counts how its requests end.
async fn send_greedily(
    (caller, bearer): (Caller, String),
    number: u64,
    deadline_ms: Option<u64>,
    outcomes: OutcomeCounts,
) {
    let mut rng = seeded(number, "hostile greedy");
    loop {
        let count = rng.usize(GREEDY_CHUNKS.0..=GREEDY_CHUNKS.1);
        let body = request_with_new_chunks(&mut rng, count, deadline_ms);
        let response =
            HttpRequest::post("/v1/compress", body).with(&[("authorization", &bearer)]).send(&caller).await;
        let result =
            response.map_or_else(|error| format!("{error:#}"), |response| response.status.to_string());
        let is_refused = result != "200 OK";
        *outcomes.lock().unwrap_or_else(PoisonError::into_inner).entry(result).or_default() += 1;
        if is_refused {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Returns the body of a request with new chunks.
fn request_with_new_chunks(rng: &mut Rng, count: usize, deadline_ms: Option<u64>) -> String {
    let chunks: Vec<String> = (0..count).map(|_| prose_of(rng, CHUNK_TOKENS)).collect();
    json!({"query": prose_of(rng, 16), "chunks": chunks, "deadline_ms": deadline_ms}).to_string()
}

/// How the requests of one client ended.
#[derive(Debug, Default)]
struct ClientOutcome {
    tries: usize,
    /// Number of refusals without `Retry-After`.
    without_retry_after: usize,
    answered: bool,
    last: String,
}

/// Runs the row `retry-after`.
pub async fn retry_after(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    let deadline_ms = Some(setup.limits.deadline_max.as_millis() as u64);
    let started = Instant::now();
    let until = started + CROWD_TIME_MAX;
    let mut crowd = JoinSet::new();
    for number in 0..CROWD_CLIENTS {
        let caller = daemon.caller();
        crowd.spawn(send_until_answered(caller, number as u64, deadline_ms, until));
    }
    let outcomes: Vec<ClientOutcome> = crowd.join_all().await;
    let elapsed = started.elapsed().as_secs();
    let answered = outcomes.iter().filter(|outcome| outcome.answered).count();
    let refused = outcomes.iter().filter(|outcome| outcome.tries > 1).count();
    let tries = outcomes.iter().map(|outcome| outcome.tries).max().unwrap_or_default();
    let without_retry_after: usize = outcomes.iter().map(|outcome| outcome.without_retry_after).sum();
    let mut reasons: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.answered).map(|outcome| &*outcome.last).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let note = format!("of {CROWD_CLIENTS} in {elapsed} s; {}", reasons.join(", "));
    Ok(vec![
        // Without refusals there is no `Retry-After` to obey.
        Finding::at_least("clients that were refused at first", refused as f64, 1.0),
        Finding::at_least("clients that were answered", answered as f64, CROWD_CLIENTS as f64).note(note),
        Finding::at_most("most requests that one client sent", tries as f64, TRIES_MAX as f64),
        Finding::at_most("refusals without Retry-After", without_retry_after as f64, 0.0),
    ])
}

/// Sends one request until it is answered, and waits between attempts as `Retry-After` says.
async fn send_until_answered(
    caller: Caller,
    number: u64,
    deadline_ms: Option<u64>,
    until: Instant,
) -> ClientOutcome {
    let mut rng = seeded(number, "hostile crowd");
    let body = request_with_new_chunks(&mut rng, CROWD_CHUNKS, deadline_ms);
    let mut outcome = ClientOutcome::default();
    while Instant::now() < until {
        outcome.tries += 1;
        let left = until.saturating_duration_since(Instant::now());
        let response = match HttpRequest::post("/v1/compress", body.clone()).send_within(&caller, left).await
        {
            Ok(response) => response,
            Err(_late_or_broken) => {
                outcome.last = "no response in time".to_owned();
                return outcome;
            }
        };
        outcome.answered = response.status == StatusCode::OK;
        outcome.last = response.status.to_string();
        if outcome.answered {
            return outcome;
        }
        let wait = retry_after_s(&response.headers);
        outcome.without_retry_after += usize::from(wait.is_none());
        sleep(Duration::from_secs(wait.unwrap_or(1))).await;
    }
    outcome
}
