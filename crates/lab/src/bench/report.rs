//! Statistics of a few dozen numbers (medians, quartiles, quantiles), and the values that all bench reports
//! share.

use serde_json::{Value, json};

use super::Subject;

/// Median and quartiles of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The 0.5 quantile.
    pub median: f64,
    /// The 0.25 quantile.
    pub low: f64,
    /// The 0.75 quantile.
    pub high: f64,
}

/// Returns the median and quartiles of at least one number.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Spread {
    let sorted = sorted(values);
    Spread { median: quantile(&sorted, 0.5), low: quantile(&sorted, 0.25), high: quantile(&sorted, 0.75) }
}

/// Returns the values in ascending order.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Returns the `q` quantile of a sorted sample, linearly interpolated.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Rounds to `digits` decimals and converts to JSON.
pub fn round_to(value: f64, digits: i32) -> Value {
    let scale = 10_f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// Converts median and quartiles to JSON, with four decimals.
pub fn spread_json(spread: Spread) -> Value {
    json!({
        "median": round_to(spread.median, 4),
        "low": round_to(spread.low, 4),
        "high": round_to(spread.high, 4),
    })
}

/// Returns the name and fingerprint of the model under test.
pub fn model(subject: &Subject) -> Value {
    let model = subject.daemon.pipeline().model();
    json!({"name": model.name, "fingerprint": model.fingerprint})
}

/// Returns the machine, with the number of the model's worker threads.
pub fn machine(subject: &Subject) -> Value {
    let mut machine = host();
    machine["workers"] = subject.runtime.workers().into();
    machine
}

/// Returns the machine's architecture, operating system and number of cores.
pub fn host() -> Value {
    json!({
        "arch": std::env::consts::ARCH,
        "os": std::env::consts::OS,
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cases() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Spread { median: 2.0, low: 1.5, high: 2.5 });
        assert_eq!(spread([7.0]), Spread { median: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(quantile(&sorted([0.0, 100.0]), 0.99), 99.0);
    }
}
