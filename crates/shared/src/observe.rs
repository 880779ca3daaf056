//! What is counted. Keys and values are never labels.
//! Knows nothing of why.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

/// One command or block: `op` is `get`, `put` or `journal`; `outcome` one of the words of docs/deployment.md.
pub fn count(op: &'static str, outcome: &'static str, count: usize) {
    if count > 0 {
        counter!("shared_requests_total", "op" => op, "outcome" => outcome).increment(count as u64);
    }
}

/// How long a call took.
pub fn time(op: &'static str, took: Duration) {
    histogram!("shared_seconds", "op" => op).record(took);
}

/// Bytes of blocks that wait to be written.
pub fn queue(bytes: usize) {
    gauge!("shared_queue_bytes").set(bytes as f64);
}

/// Share of the servers that are left alone, 0 to 1.
pub fn breaker(open_share: f64) {
    gauge!("shared_breaker_open").set(open_share);
}
