//! Numbers and the machine they were measured on, as JSON.
//! Knows nothing of what was measured.

use serde_json::{Value, json};

use super::Subject;
use super::statistics::Spread;

/// Digits that mean nothing are left out.
pub fn round_to(value: f64, digits: i32) -> Value {
    let scale = 10_f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// Median and quartiles.
pub fn spread_json(spread: Spread) -> Value {
    json!({
        "median": round_to(spread.median, 4),
        "low": round_to(spread.low, 4),
        "high": round_to(spread.high, 4),
    })
}

/// The model that was measured.
pub fn model(subject: &Subject) -> Value {
    let model = subject.daemon.pipeline().model();
    json!({"name": model.name, "fingerprint": model.fingerprint})
}

/// The machine that it was measured on.
pub fn machine(subject: &Subject) -> Value {
    let mut machine = host();
    machine["workers"] = subject.runtime.workers().into();
    machine
}

/// The machine alone.
pub fn host() -> Value {
    json!({
        "arch": std::env::consts::ARCH,
        "os": std::env::consts::OS,
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    })
}
