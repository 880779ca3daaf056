//! The shared tier against real servers: what is kept, what is a miss, and what happens when servers fail.

mod blocks;
mod cluster;
mod failing;
mod journal;
mod login;
mod poison;
mod server;

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use thresher_core::kv::key::BlockKey;
use thresher_shared::{Shared, SharedSettings};

/// How long anything may take to heal.
const HEAL_MAX: Duration = Duration::from_secs(20);

/// Far over `timeout_ms`, for machines with other work to do: a call that waits for a server would take this long.
const CALL_MAX: Duration = Duration::from_secs(2);

/// Settings for one server, with short pauses. The time limit is wide, since the machine may be busy.
fn settings(url: &str) -> SharedSettings {
    SharedSettings {
        urls: [url].into_iter().collect(),
        timeout_ms: 400,
        breaker_failures: 3,
        breaker_probe_ms: 50,
        ..SharedSettings::default()
    }
}

fn key(number: u8) -> BlockKey {
    BlockKey::from_bytes([number; 32])
}

fn value(number: u8) -> Bytes {
    Bytes::from(vec![number; 1000 + usize::from(number)])
}

/// Connected, and every server answers.
async fn well(settings: &SharedSettings) -> Shared {
    let shared = Shared::connect(settings).expect("settings are right");
    eventually("the tier is well", async || shared.is_well()).await;
    shared
}

/// Puts and waits until written.
async fn store(shared: &Shared, numbers: impl IntoIterator<Item = u8>) {
    numbers.into_iter().for_each(|number| shared.put(&key(number), value(number)));
    shared.flush().await;
}

async fn get(shared: &Shared, number: u8) -> Option<Bytes> {
    bounded(shared.get_many(&[key(number)])).await.remove(0)
}

/// No call may wait for a server.
async fn bounded<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(CALL_MAX, call).await.expect("a call waited for a server")
}

/// Waits until `so`, with a bound.
#[track_caller]
fn eventually(what: &str, mut so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        while !so().await {
            assert!(started.elapsed() < HEAL_MAX, "waited in vain: {what} ({place})");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What is exposed as metrics.
fn metrics() -> String {
    static METRICS: std::sync::OnceLock<thresher::telemetry::Prometheus> = std::sync::OnceLock::new();
    METRICS.get_or_init(|| thresher::telemetry::install_metrics().expect("no other recorder")).render()
}

/// A counter of the shared tier; the tests of this process add to the same ones.
fn counted(op: &str, outcome: &str) -> u64 {
    let line = format!("shared_requests_total{{op=\"{op}\",outcome=\"{outcome}\"}} ");
    let found =
        metrics().lines().find_map(|l| l.strip_prefix(&line).map(|count| count.parse().expect("a count")));
    found.unwrap_or(0)
}
