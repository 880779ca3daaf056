//! The shared tier against real Redis servers: hits and misses, logins, journals, and servers that fail.

mod blocks;
mod cluster;
mod failing;
mod journal;
mod login;
mod poison;

use std::time::Duration;

use bytes::Bytes;
use thresher_core::kv::key::BlockKey;
use thresher_shared::{Shared, SharedLimits, SharedSettings};

use crate::support::wait::eventually;

/// The longest that a call of the tier may take: far more than `timeout_ms`, so that a busy machine does not
/// break it, and less than the calls that would wait for a server that never answers.
const CALL_MAX: Duration = Duration::from_secs(30);

/// Settings for one server. The time limit of a call is wide, since the machine may be busy.
fn settings(url: &str) -> SharedSettings {
    SharedSettings { urls: [url].into_iter().collect(), timeout_ms: 400, ..SharedSettings::default() }
}

fn key(number: u8) -> BlockKey {
    BlockKey::from_bytes([number; 32])
}

fn value(number: u8) -> Bytes {
    Bytes::from(vec![number; 1000 + usize::from(number)])
}

/// Limits with which the breaker reacts soon.
fn limits() -> SharedLimits {
    SharedLimits { failures_max: 3, probe_pause: Duration::from_millis(50), ..SharedLimits::default() }
}

/// A tier that is connected and whose servers all answer.
async fn connected(settings: &SharedSettings) -> Shared {
    connected_within(settings, limits()).await
}

async fn connected_within(settings: &SharedSettings, limits: SharedLimits) -> Shared {
    let shared = Shared::connect_within(settings, limits).expect("settings are right");
    eventually("the tier is connected", async || shared.is_well()).await;
    shared
}

/// Puts these values and waits until they are written.
async fn store(shared: &Shared, numbers: impl IntoIterator<Item = u8>) {
    numbers.into_iter().for_each(|number| shared.put(&key(number), value(number)));
    shared.flush().await;
}

async fn get(shared: &Shared, number: u8) -> Option<Bytes> {
    bounded(shared.get_many(&[key(number)])).await.remove(0)
}

/// Panics if a call takes longer than [`CALL_MAX`].
async fn bounded<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(CALL_MAX, call).await.expect("a call does not wait for a server")
}

/// The metrics of this process, as the daemon exposes them.
fn metrics() -> String {
    static METRICS: std::sync::OnceLock<thresher::telemetry::Prometheus> = std::sync::OnceLock::new();
    METRICS.get_or_init(|| thresher::telemetry::install_metrics().expect("no other recorder")).render()
}

/// The counter of the shared tier's requests. All tests of this process count together, so tests compare it
/// with its value before.
fn counted(op: &str, outcome: &str) -> u64 {
    let line = format!("shared_requests_total{{op=\"{op}\",outcome=\"{outcome}\"}} ");
    let found =
        metrics().lines().find_map(|l| l.strip_prefix(&line).map(|count| count.parse().expect("a count")));
    found.unwrap_or(0)
}
