//! The model under test, and the device and runtime that run it, for reports.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use thresher_core::model::contract::{Contract, Weights};
use thresher_core::model::device::DeviceInUse;
use thresher_core::model::ort::{cpu_kernels, runtime_version};

/// A model, and what runs it. Every report names them.
#[derive(Debug, Clone)]
pub struct ModelOnDevice {
    name: String,
    weights: Weights,
    device: DeviceInUse,
    runtime_version: String,
}

impl ModelOnDevice {
    /// Describes the model in `model_dir` on a device with the ONNX Runtime in the file `runtime_lib`.
    ///
    /// # Errors
    /// Fails if the contract cannot be read or the library cannot be loaded.
    pub fn new(model_dir: &Path, runtime_lib: &Path, device: &DeviceInUse) -> anyhow::Result<Self> {
        let Contract { name, weights, .. } = Contract::load(model_dir)?;
        let runtime_version = runtime_version(runtime_lib)?;
        Ok(Self { name, weights: weights.dtype, device: device.clone(), runtime_version })
    }

    /// Returns the model's name and the precision of its stored weights (`f32`, `f16` or `int8`).
    pub fn model(&self) -> Value {
        json!({"name": self.name, "weights": self.weights})
    }

    /// Returns the machine with the device, its execution provider and the version of ONNX Runtime. `gpu` is
    /// the name of the GPU, and `int8_kernels` the kind of the CPU's 8-bit kernels; each is null on the other
    /// device.
    pub fn machine(&self) -> Value {
        let is_cpu = self.device.is_cpu();
        json!({
            "arch": std::env::consts::ARCH,
            "os": std::env::consts::OS,
            "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            "device": self.device.name,
            "gpu": gpu_name(&self.device.name),
            "int8_kernels": is_cpu.then(cpu_kernels),
            "execution_provider": if is_cpu { "CPUExecutionProvider" } else { "CUDAExecutionProvider" },
            "onnxruntime": self.runtime_version,
        })
    }
}

/// Returns the name of the GPU `cuda:N`, as NVIDIA's driver reports it.
fn gpu_name(device: &str) -> Option<String> {
    let number: usize = device.strip_prefix("cuda:")?.parse().ok()?;
    // With this variable, N counts the listed GPUs only. nvidia-smi ignores it.
    let id = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(visible) => visible.split(',').nth(number)?.trim().to_owned(),
        Err(_) => number.to_string(),
    };
    let query = ["--query-gpu=name", "--format=csv,noheader", "-i", &id];
    let found =
        Command::new("nvidia-smi").args(query).output().ok().filter(|found| found.status.success())?;
    let name = String::from_utf8(found.stdout).ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}
