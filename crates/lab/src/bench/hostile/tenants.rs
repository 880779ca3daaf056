//! Rows about who gets what share: two tenants of which one is greedy, and clients that come back when they are told to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hyper::StatusCode;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Finding;
use super::daemon::{Sandbox, Setup};
use super::wire::{self, Ask, retry_after_s};
use crate::bench::client::Caller;
use crate::bench::statistics::{quantile, sorted};
use crate::bench::workload::{Random, prose_of};

/// Warm requests of one tenant while it is alone.
const ALONE: usize = 100;

/// How long it goes on beside the other one.
const BESIDE: Duration = Duration::from_secs(20);

/// Clients of the greedy tenant, and the new chunks of each of their requests.
const CLIENTS: usize = 32;
const CHUNKS: (usize, usize) = (20, 100);

/// Tokens of a chunk, about.
const TOKENS: usize = 60;

/// Chunks of a warm request.
const WARM_CHUNKS: usize = 20;

/// Streams of the greedy tenant that do nothing.
const STREAMS: usize = 64;

/// Streams that the other one begins.
const STREAMS_OF_A: usize = 3;

/// A tenant's slowest hundredth may take so many times as long as when it is alone.
const RATIO_MAX: f64 = 3.0;

/// Clients that come at once, and the new chunks of each.
const CROWD: usize = 120;
const CROWD_CHUNKS: usize = 10;

/// How often a client that obeys may have to come.
const TRIES_MAX: usize = 6;

/// How long the crowd may take in all.
const CROWD_TIME: Duration = Duration::from_secs(90);

/// How requests ended, and how many of them.
type Ended = Arc<Mutex<BTreeMap<String, usize>>>;

/// Row `tenants`.
pub async fn tenants(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let mut sandbox = setup.sandbox()?;
    let (a, b) = (key(&sandbox, "a")?, key(&sandbox, "b")?);
    sandbox.set("access.keys_file", "keys.toml");
    let daemon = sandbox.start().await?;
    let (caller_a, caller_b) = (daemon.caller(), daemon.caller());
    let bearers = [&a, &b].map(|key| format!("Bearer {key}"));
    let mut random = Random::new(0, "hostile tenants");
    let warm: Vec<String> = (0..WARM_CHUNKS).map(|_| prose_of(&mut random, TOKENS)).collect();
    let mut ask = async || warm_ms(&caller_a, &bearers[0], &warm, &mut random).await;
    ask().await.context("a warm request of a tenant that is alone")?;
    let mut alone = Vec::new();
    for _ in 0..ALONE {
        alone.push(ask().await?);
    }
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.extend(stream(daemon.http(), &bearers[1]).await);
    }
    let open = streams.iter().filter(|(_, status)| *status == 200).count();
    // The longest that may be asked for: what cannot be done soon waits instead of being refused.
    let deadline_ms = setup.number("/admission/deadline_ms_max");
    let ended = Ended::default();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS as u64 {
        let who = (caller_b.clone(), bearers[1].clone());
        clients.spawn(greedy(who, number, deadline_ms, Arc::clone(&ended)));
    }
    // They have begun.
    sleep(Duration::from_secs(1)).await;
    let (mut beside, mut failed, until) = (Vec::new(), Vec::new(), Instant::now() + BESIDE);
    while Instant::now() < until {
        match ask().await {
            Ok(ms) => beside.push(ms),
            Err(error) => {
                failed.push(format!("{error:#}"));
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let mut accepted = Vec::new();
    for _ in 0..STREAMS_OF_A {
        accepted.push(stream(daemon.http(), &bearers[0]).await.map_or(0, |(_, status)| status));
    }
    clients.abort_all();
    drop(streams);
    let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    let answered_b = ended.get("200 OK").copied().unwrap_or_default();
    let p99 =
        |ms: &[f64]| if ms.is_empty() { f64::INFINITY } else { quantile(&sorted(ms.iter().copied()), 0.99) };
    let (p99_alone, p99_beside) = (p99(&alone), p99(&beside));
    let note = format!("{p99_alone:.0} ms alone, {p99_beside:.0} ms beside, {} requests", beside.len());
    let lost = failed.len() as f64;
    failed.sort();
    failed.dedup();
    let streams_note = format!("{accepted:?} beside {open} idle ones");
    let is_200 = accepted.iter().filter(|status| **status == 200).count();
    Ok(vec![
        // Without them there is nothing beside.
        Finding::at_least("answers to the greedy tenant", answered_b as f64, 1.0).note(format!("{ended:?}")),
        Finding::at_most("p99 beside over p99 alone", p99_beside / p99_alone, RATIO_MAX).note(note),
        Finding::at_most("warm requests that were not answered", lost, 0.0).note(failed.join(", ")),
        Finding::at_least("streams that were accepted", is_200 as f64, STREAMS_OF_A as f64)
            .note(streams_note),
        Finding::is_true("the daemon runs", daemon.is_alive()),
    ])
}

/// A key of a tenant of the same name, in the file of keys.
fn key(sandbox: &Sandbox, tenant: &str) -> anyhow::Result<String> {
    sandbox.run(&["key", "new", "--name", tenant, "--tenant", tenant, "--file", "keys.toml"])
}

/// Asks another question about the same chunks; how long that took.
async fn warm_ms(
    caller: &Caller,
    bearer: &str,
    chunks: &[String],
    random: &mut Random,
) -> anyhow::Result<f64> {
    let body = json!({"query": prose_of(random, 16), "chunks": chunks}).to_string();
    let answer = Ask::post("/v1/compress", body).with(&[("authorization", bearer)]).send(caller).await?;
    ensure!(answer.status == StatusCode::OK, "answered {}", answer.status);
    Ok(answer.ms())
}

/// Sends new chunks for as long as it is let, whatever comes back, and counts how its requests end.
async fn greedy((caller, bearer): (Caller, String), number: u64, deadline_ms: Option<u64>, ended: Ended) {
    let mut random = Random::new(number, "hostile greedy");
    loop {
        let count = random.between(CHUNKS.0, CHUNKS.1);
        let ask = new_chunks(&mut random, count, deadline_ms);
        let answer = Ask::post("/v1/compress", ask).with(&[("authorization", &bearer)]).send(&caller).await;
        let how = answer.map_or_else(|error| format!("{error:#}"), |answer| answer.status.to_string());
        let is_refused = how != "200 OK";
        *ended.lock().unwrap_or_else(PoisonError::into_inner).entry(how).or_default() += 1;
        if is_refused {
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A request about chunks that nobody has sent.
fn new_chunks(random: &mut Random, count: usize, deadline_ms: Option<u64>) -> String {
    let chunks: Vec<String> = (0..count).map(|_| prose_of(random, TOKENS)).collect();
    json!({"query": prose_of(random, 16), "chunks": chunks, "deadline_ms": deadline_ms}).to_string()
}

/// Begins a stream and sends its first event alone; the connection and the status.
async fn stream(address: std::net::SocketAddr, bearer: &str) -> anyhow::Result<(TcpStream, u16)> {
    let event = format!("data: {}\n\n", json!({"chunks": ["The tide is at noon. Ships are slow."]}));
    let request = format!(
        "POST /v1/attribute/stream HTTP/1.1\r\nhost: {address}\r\nauthorization: {bearer}\r\n\
         content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
        event.len()
    );
    let mut stream = wire::sent(address, request.as_bytes()).await?;
    let status = wire::status(&mut stream).await?;
    Ok((stream, status))
}

/// How one client of the crowd fared.
#[derive(Debug, Default)]
struct Fared {
    tries: usize,
    /// Refusals that did not say when to come back.
    untold: usize,
    answered: bool,
    last: String,
}

/// Row `retry-after`.
pub async fn retry_after(setup: &Setup) -> anyhow::Result<Vec<Finding>> {
    let sandbox = setup.sandbox()?;
    let daemon = sandbox.start().await?;
    let deadline_ms = setup.number("/admission/deadline_ms_max");
    let started = Instant::now();
    let until = started + CROWD_TIME;
    let mut crowd = JoinSet::new();
    for number in 0..CROWD {
        let caller = daemon.caller();
        crowd.spawn(obey(caller, number as u64, deadline_ms, until));
    }
    let fared: Vec<Fared> = crowd.join_all().await;
    let elapsed = started.elapsed().as_secs();
    let answered = fared.iter().filter(|fared| fared.answered).count();
    let refused = fared.iter().filter(|fared| fared.tries > 1).count();
    let tries = fared.iter().map(|fared| fared.tries).max().unwrap_or_default();
    let untold: usize = fared.iter().map(|fared| fared.untold).sum();
    let mut why: Vec<&str> = fared.iter().filter(|fared| !fared.answered).map(|fared| &*fared.last).collect();
    why.sort_unstable();
    why.dedup();
    let note = format!("of {CROWD} in {elapsed} s; {}", why.join(", "));
    Ok(vec![
        // Without them there is nothing to obey.
        Finding::at_least("clients that were refused at first", refused as f64, 1.0),
        Finding::at_least("clients that were answered", answered as f64, CROWD as f64).note(note),
        Finding::at_most("tries of the client that came most often", tries as f64, TRIES_MAX as f64),
        Finding::at_most("refusals without Retry-After", untold as f64, 0.0),
    ])
}

/// Sends one request until it is answered, and comes back when it is told to.
async fn obey(caller: Caller, number: u64, deadline_ms: Option<u64>, until: Instant) -> Fared {
    let mut random = Random::new(number, "hostile crowd");
    let body = new_chunks(&mut random, CROWD_CHUNKS, deadline_ms);
    let mut fared = Fared::default();
    while Instant::now() < until {
        fared.tries += 1;
        let left = until.saturating_duration_since(Instant::now());
        let answer = match Ask::post("/v1/compress", body.clone()).send_within(&caller, left).await {
            Ok(answer) => answer,
            Err(_late_or_broken) => {
                fared.last = "no answer in time".to_owned();
                return fared;
            }
        };
        fared.answered = answer.status == StatusCode::OK;
        fared.last = answer.status.to_string();
        if fared.answered {
            return fared;
        }
        let wait = retry_after_s(&answer.headers);
        fared.untold += usize::from(wait.is_none());
        sleep(Duration::from_secs(wait.unwrap_or(1))).await;
    }
    fared
}
