//! Statistics of a few dozen numbers (medians, quartiles, quantiles), and the values that all bench reports
//! share.

use serde_json::{Value, json};

use crate::subject::Subject;

/// Median and quartiles of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
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

/// Returns the model under test: [`ModelOnDevice::model`](crate::model_on_device::ModelOnDevice::model) with its fingerprint.
pub fn model(subject: &Subject) -> Value {
    let mut model = subject.on.model();
    model["fingerprint"] = subject.pipeline.model().fingerprint.clone().into();
    model
}

/// Returns [`ModelOnDevice::machine`](crate::model_on_device::ModelOnDevice::machine) with the number of the model's worker threads.
pub fn machine(subject: &Subject) -> Value {
    let mut machine = subject.on.machine();
    machine["workers"] = subject.runtime.workers().into();
    machine
}

/// Returns the first line of every printed table: the model, its precision, and what runs it. `report` has the
/// values of a model on a device as `model` and `machine`.
pub fn headline(report: &Value) -> String {
    let (model, machine) = (&report["model"], &report["machine"]);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let shown = |value: &Value| text(value).unwrap_or_else(|| "?".to_owned());
    let int8_kernels = text(&machine["int8_kernels"]).map(|kind| format!("8-bit kernels {kind}"));
    let about = [
        text(&machine["gpu"]),
        Some(shown(&machine["execution_provider"])),
        Some(format!("ONNX Runtime {}", shown(&machine["onnxruntime"]))),
        // The kind matters for these weights only.
        int8_kernels.filter(|_| model["weights"] == "int8"),
    ];
    let workers =
        machine["workers"].as_u64().map_or_else(String::new, |count| format!("{count} workers of "));
    format!(
        "{} in {} on {} ({}), {workers}{} cores ({})\n",
        shown(&model["name"]),
        shown(&model["weights"]),
        shown(&machine["device"]),
        about.into_iter().flatten().collect::<Vec<_>>().join(", "),
        machine["cores"],
        shown(&machine["arch"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headline_names_model_precision_device_and_runtime() {
        let check = |weights: &str, device: Value, expect: &str| {
            let mut machine = json!({"arch": "x86_64", "cores": 4, "onnxruntime": "1.31.1"});
            for (key, value) in device.as_object().expect("an object") {
                machine[key] = value.clone();
            }
            let report = json!({"model": {"name": "m", "weights": weights}, "machine": machine});
            assert_eq!(headline(&report), format!("m in {weights} on {expect} cores (x86_64)\n"));
        };
        let cpu = json!({"device": "cpu", "execution_provider": "CPUExecutionProvider", "int8_kernels": "x86-vnni", "workers": 2});
        check("f32", cpu.clone(), "cpu (CPUExecutionProvider, ONNX Runtime 1.31.1), 2 workers of 4");
        let vnni = "cpu (CPUExecutionProvider, ONNX Runtime 1.31.1, 8-bit kernels x86-vnni), 2 workers of 4";
        check("int8", cpu, vnni);
        let gpu =
            json!({"device": "cuda:0", "execution_provider": "CUDAExecutionProvider", "gpu": "NVIDIA X"});
        check("f16", gpu, "cuda:0 (NVIDIA X, CUDAExecutionProvider, ONNX Runtime 1.31.1), 4");
    }

    #[test]
    fn small_cases() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Spread { median: 2.0, low: 1.5, high: 2.5 });
        assert_eq!(spread([7.0]), Spread { median: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(quantile(&sorted([0.0, 100.0]), 0.99), 99.0);
    }
}
