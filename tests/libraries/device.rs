//! Models on the CPU and on a GPU: results stay close to those of the CPU with exact weights. Tests that need
//! a GPU are ignored unless they are asked for; `make test GPU=1` runs them.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;

use crate::support::{gpu, in_checkout, model_dir, ort_settings};
use ndarray::{Array3, ArrayView3, Axis};
use tempfile::TempDir;
use thresher_core::model::contract::{Contract, Weights};
use thresher_core::model::device::DeviceChoice;
use thresher_core::model::ort::{Batching, LoadedModel, OrtSettings, StageSize};
use thresher_core::model::{ModelError, ModelRuntime, Past};
use thresher_export::{ExportOptions, export};

fn load(dir: &Path, device: DeviceChoice) -> std::sync::Arc<dyn ModelRuntime> {
    LoadedModel::load(&OrtSettings { device, ..ort_settings(dir, 2) }).expect("it loads").runtime()
}

fn exported(weights: Weights) -> TempDir {
    let out = TempDir::new().unwrap();
    let options = ExportOptions { weights, name: "facts".into(), ..ExportOptions::default() };
    export(&in_checkout("models/facts"), out.path(), &options, &|_, _| {}).unwrap();
    out
}

fn planes(model: &dyn ModelRuntime, windows: &[&[u32]]) -> Vec<Array3<f32>> {
    let found = Mutex::new(vec![Array3::zeros((0, 0, 0)); windows.len()]);
    let done = |i: usize, planes: ArrayView3<f32>| found.lock().unwrap()[i] = planes.to_owned();
    model.read(windows, &|_| true, &done).unwrap();
    found.into_inner().unwrap()
}

/// Keys and values of windows that were read before, at positions that all begin at 1.
struct Windows<'a> {
    planes: &'a [Array3<f32>],
    positions: Vec<i64>,
    question_position: i64,
}

impl<'a> Windows<'a> {
    fn new(planes: &'a [Array3<f32>]) -> Self {
        let lengths = planes.iter().map(|planes| planes.dim().1 as i64);
        let question_position = 1 + lengths.clone().max().unwrap();
        Self { planes, positions: lengths.flat_map(|tokens| 1..=tokens).collect(), question_position }
    }
}

impl Past for Windows<'_> {
    fn positions(&self) -> &[i64] {
        &self.positions
    }

    fn question_position(&self) -> i64 {
        self.question_position
    }

    fn read_plane(&self, plane: usize, out: &mut [f32]) {
        let all = self.planes.iter().flat_map(|window| window.index_axis(ndarray::Axis(0), plane).to_owned());
        out.iter_mut().zip(all).for_each(|(out, value)| *out = value);
    }

    fn go_on(&self) -> bool {
        true
    }
}

fn worst(a: &Array3<f32>, b: &Array3<f32>) -> f32 {
    assert_eq!(a.dim(), b.dim());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

const WINDOWS: [&[u32]; 4] = [&[7, 30, 41, 99, 120, 7, 30], &[12, 300, 8], &[50; 90], &[12, 301, 9]];

/// Compares a decoder on `device` with the same decoder in f32 on the CPU.
fn check_decoder(device: DeviceChoice) {
    for (weights, bound) in [(Weights::F32, 2e-3), (Weights::F16, 6e-2)] {
        let (exact, out) = (exported(Weights::F32), exported(weights));
        let (here, there) = (load(exact.path(), DeviceChoice::Cpu), load(out.path(), device));
        println!("{weights:?} on {}", there.info().device);
        let (expect, found) = (planes(&*here, &WINDOWS), planes(&*there, &WINDOWS));
        for (window, (expect, found)) in expect.iter().zip(&found).enumerate() {
            let off = worst(expect, found);
            assert!(off < bound, "{weights:?}, window {window}: off by {off}");
        }
        // More tokens than one tile of a layer has.
        let question: Vec<u32> = (0..70).map(|i| 20 + i * 5 % 400).collect();
        let ask =
            |model: &dyn ModelRuntime| model.encode_question(&question, &Windows::new(&expect)).unwrap();
        let (expect, found) = (ask(&*here), ask(&*there));
        let off = worst(&expect.vectors, &found.vectors)
            .max(worst(&expect.self_logits(0..16), &found.self_logits(0..16)));
        assert!(off < 10.0 * bound, "{weights:?}, a question: off by {off}");
    }
}

#[test]
fn a_decoder_on_the_cpu_stays_close_to_its_exact_weights() {
    check_decoder(DeviceChoice::Cpu);
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn a_decoder_on_a_gpu_stays_close_to_the_cpu() {
    check_decoder(gpu());
}

/// A token of a question sees only the tokens before it, however the question is split into tiles.
fn check_long_question(device: DeviceChoice) {
    let out = exported(Weights::F32);
    let model = load(out.path(), device);
    let past = planes(&*model, &WINDOWS);
    let question: Vec<u32> = (0..100).map(|i| 20 + i * 7 % 400).collect();
    let ask =
        |tokens: usize| model.encode_question(&question[..tokens], &Windows::new(&past)).unwrap().vectors;
    let whole = ask(100);
    for tokens in [1, 31, 32, 33, 64, 65] {
        let part = ask(tokens);
        let off = worst(&part, &whole.slice(ndarray::s![.., ..tokens, ..]).to_owned());
        assert!(off < 1e-4, "{tokens} tokens: off by {off}");
    }
}

#[test]
fn the_first_tokens_of_a_long_question_do_not_depend_on_the_rest_on_the_cpu() {
    check_long_question(DeviceChoice::Cpu);
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn the_first_tokens_of_a_long_question_do_not_depend_on_the_rest_on_a_gpu() {
    check_long_question(gpu());
}

/// The largest difference between keys of the same window in different batches on a GPU: the distance of unit
/// vectors for an encoder, and relative to the largest component for a decoder. The products of matrices of
/// other shapes are summed in another order.
const GPU_BATCH_TOLERANCE: f32 = 1e-3;

/// Compares windows that are read alone with the same windows in batches: bit by bit on the CPU.
fn check_windows(model: &dyn ModelRuntime, windows: &[&[u32]]) {
    let together = planes(model, windows);
    for (i, window) in windows.iter().enumerate() {
        let alone = &planes(model, &[window])[0];
        let name = format!("window {i} of {} tokens", window.len());
        if model.info().device.name == "cpu" {
            let bits = |planes: &Array3<f32>| planes.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(alone) == bits(&together[i]), "{name}");
        } else {
            let off = match model.info().decoder {
                Some(_) => worst(alone, &together[i]) / largest(alone),
                None => distance(alone, &together[i]),
            };
            assert!(off < GPU_BATCH_TOLERANCE, "{name}: off by {off}");
        }
    }
}

fn check_windows_of_a_decoder(device: DeviceChoice) {
    let out = exported(Weights::F32);
    let many: Vec<&[u32]> = WINDOWS.iter().cycle().take(40).copied().collect();
    check_windows(&*load(out.path(), device), &many);
}

#[test]
fn a_window_of_a_decoder_gives_the_same_bits_alone_and_in_a_batch_on_the_cpu() {
    check_windows_of_a_decoder(DeviceChoice::Cpu);
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn a_window_of_a_decoder_gives_close_keys_alone_and_in_a_batch_on_a_gpu() {
    check_windows_of_a_decoder(gpu());
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn a_window_of_an_encoder_gives_close_keys_alone_and_in_a_batch_on_a_gpu() {
    let windows = windows_of_lengths((0..100).map(|i| 180 + i * 7 % 41), 20_000);
    let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
    check_windows(&*load(&model_dir(), gpu()), &windows);
}

/// The largest distance of two keys of the same token.
fn distance(a: &Array3<f32>, b: &Array3<f32>) -> f32 {
    (a - b).lanes(Axis(2)).into_iter().map(|key| key.dot(&key).sqrt()).fold(0.0, f32::max)
}

fn largest(planes: &Array3<f32>) -> f32 {
    planes.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()))
}

/// Returns windows of these lengths, whose ids are below `vocab_size`.
fn windows_of_lengths(lengths: impl Iterator<Item = usize>, vocab_size: usize) -> Vec<Vec<u32>> {
    let mut state = 7_u64;
    let mut id = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (7 + (state >> 33) % (vocab_size as u64 - 7)) as u32
    };
    lengths.map(|tokens| (0..tokens).map(|_| id()).collect()).collect()
}

/// Returns the windows that a model reads one by one, and the same windows in padded batches, as a GPU reads them.
fn alone_and_padded(name: &str, dir: &Path, lengths: &[usize]) -> [Vec<Array3<f32>>; 2] {
    let padded = Batching { tokens_max: 16_384, length_step: 32 };
    let [alone, together] =
        [(None, None), (Some(padded), NonZeroUsize::new(8))].map(|(batching, row_multiple)| {
            let settings = OrtSettings { batching, row_multiple, ..ort_settings(dir, 2) };
            LoadedModel::load(&settings).expect("it loads").runtime()
        });
    assert!(together.info().windows_at_once > alone.info().windows_at_once, "{name}: no padded batches");
    let lengths = lengths.iter().copied().filter(|tokens| *tokens <= alone.info().window_tokens_max);
    let vocab_size = Contract::load(dir).unwrap().tokenizer.vocab_size;
    let windows = windows_of_lengths(lengths, vocab_size);
    let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
    assert!(windows.len() > 10, "{name}: {} windows", windows.len());
    [alone, together].map(|model| planes(&*model, &windows))
}

/// A GPU reads windows of different lengths in one batch with padding. The CPU can do the same.
#[test]
fn padding_in_a_batch_does_not_change_the_keys_of_a_window() {
    let check = |name: &str, dir: &Path, lengths: &[usize]| {
        let [expect, found] = alone_and_padded(name, dir, lengths);
        let off =
            |(found, expect): (&Array3<f32>, &Array3<f32>)| worst(found, expect) / largest(expect).max(1.0);
        let off = found.iter().zip(&expect).map(off).fold(0.0, f32::max);
        println!("{name}: {} windows, off by at most {off:.1e}", found.len());
        assert!(off < 1e-5, "{name}: off by {off}");
    };
    check("minilm", &model_dir(), &[1, 2, 31, 32, 33, 64, 65, 90, 180, 191, 200, 210, 220, 254]);
    let lengths: Vec<usize> = (1..=70).collect();
    // Encoders with local attention, with biases by distance, with rotary positions, with a projection; decoders
    // with full attention, with sliding windows and with positions that are learned.
    for name in ["modernbert", "mpnet", "nomic-bert", "colbert", "llama", "mistral-sliding", "gemma3", "gpt2"]
    {
        let out = TempDir::new().unwrap();
        let options = ExportOptions { name: name.into(), ..ExportOptions::default() };
        export(&in_checkout("models/tiny").join(name), out.path(), &options, &|_, _| {}).unwrap();
        check(name, out.path(), &lengths);
    }
}

/// With f16 weights, attention is one operator, whose masked positions have a finite bias.
#[test]
fn padding_in_a_batch_does_not_change_the_keys_of_a_window_in_f16() {
    let lengths: Vec<usize> = (1..=70).collect();
    for name in ["bert-gelu", "modernbert", "mpnet", "nomic-bert", "colbert"] {
        let out = TempDir::new().unwrap();
        let options = ExportOptions { name: name.into(), weights: Weights::F16, ..ExportOptions::default() };
        export(&in_checkout("models/tiny").join(name), out.path(), &options, &|_, _| {}).unwrap();
        let [expect, found] = alone_and_padded(name, out.path(), &lengths);
        let off = expect.iter().zip(&found).map(|(a, b)| worst(a, b)).fold(0.0, f32::max);
        println!("{name}: off by at most {off:.1e}");
        assert!(off < 2e-3, "{name}: off by {off}");
    }
}

/// A GPU runs all layers in one session where they fit. The CPU can do the same.
#[test]
fn all_layers_in_one_session_compute_what_stages_compute() {
    for name in ["llama", "mistral-sliding", "gemma3", "gpt2", "gpt-neox", "qwen3"] {
        let out = TempDir::new().unwrap();
        let options = ExportOptions { name: name.into(), ..ExportOptions::default() };
        export(&in_checkout("models/tiny").join(name), out.path(), &options, &|_, _| {}).unwrap();
        let [staged, whole] = [StageSize::Layers(1), StageSize::Whole].map(|stages| {
            let settings = OrtSettings { stages: Some(stages), ..ort_settings(out.path(), 2) };
            LoadedModel::load(&settings).expect("it loads").runtime()
        });
        let depth = whole.info().decoder.as_ref().unwrap().depth;
        assert!(depth > 1, "{name} has one layer, which is one stage in any case");
        let vocab_size = Contract::load(out.path()).unwrap().tokenizer.vocab_size;
        let windows = windows_of_lengths([4, 3, 5, 3].into_iter(), vocab_size);
        let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        let (expect, found) = (planes(&*staged, &windows), planes(&*whole, &windows));
        let off = expect.iter().zip(&found).map(|(a, b)| worst(a, b)).fold(0.0, f32::max);
        println!("{name}, {depth} layers: windows off by {off:.1e}");
        assert!(off < 1e-5, "{name}: windows off by {off}");
        // More tokens than one tile of a layer has.
        let question = windows_of_lengths([34].into_iter(), vocab_size).remove(0);
        let ask = |model: &dyn ModelRuntime| {
            model.encode_question_in_all_heads(&question, &Windows::new(&expect)).unwrap().vectors
        };
        let off = worst(&ask(&*staged), &ask(&*whole));
        assert!(off < 1e-4, "{name}: a question is off by {off}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn an_encoder_on_a_gpu_stays_close_to_the_cpu() {
    let [here, there] = [DeviceChoice::Cpu, gpu()].map(|device| load(&model_dir(), device));
    let windows: [&[u32]; 2] = [&[2023, 2003, 1037, 6251], &[1996, 10401]];
    for (expect, found) in planes(&*here, &windows).iter().zip(&planes(&*there, &windows)) {
        let off = worst(expect, found);
        assert!(off < 2e-3, "off by {off}");
    }
}

/// The largest distance of unit keys in f16, on a GPU, from those in f32.
const SHORT_TOLERANCE: f32 = 5e-2;

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn encoders_in_f16_on_a_gpu_stay_close_to_the_cpu() {
    for name in ["bert-gelu", "modernbert", "mpnet", "nomic-bert", "colbert"] {
        let [exact, halves] = [Weights::F32, Weights::F16].map(|weights| {
            let out = TempDir::new().unwrap();
            let options = ExportOptions { name: name.into(), weights, ..ExportOptions::default() };
            export(&in_checkout("models/tiny").join(name), out.path(), &options, &|_, _| {}).unwrap();
            out
        });
        let expect = load(exact.path(), DeviceChoice::Cpu);
        let vocab_size = Contract::load(exact.path()).unwrap().tokenizer.vocab_size;
        let windows =
            windows_of_lengths((1..=expect.info().window_tokens_max.min(70)).step_by(3), vocab_size);
        let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        let (expect, found) = (planes(&*expect, &windows), planes(&*load(halves.path(), gpu()), &windows));
        let off = expect.iter().zip(&found).map(|(a, b)| distance(a, b)).fold(0.0, f32::max);
        println!("{name} in f16: off by at most {off:.1e}");
        assert!(off < SHORT_TOLERANCE, "{name}: off by {off}");
    }
}

/// With a small memory limit, the layers are several stages, which give memory back after each run.
#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn stages_on_a_gpu_compute_what_one_session_computes() {
    let out = exported(Weights::F32);
    let [staged, whole] = [StageSize::Layers(2), StageSize::Whole].map(|stages| {
        let (stages, device_memory_bytes_max) = (Some(stages), 2 << 30);
        let settings =
            OrtSettings { device: gpu(), stages, device_memory_bytes_max, ..ort_settings(out.path(), 2) };
        LoadedModel::load(&settings).expect("it loads").runtime()
    });
    let (expect, found) = (planes(&*staged, &WINDOWS), planes(&*whole, &WINDOWS));
    for (expect, found) in expect.iter().zip(&found) {
        let off = worst(expect, found) / largest(expect);
        assert!(off < GPU_BATCH_TOLERANCE, "off by {off}");
    }
}

#[test]
fn a_gpu_that_does_not_exist_is_an_error_and_auto_falls_back_to_the_cpu() {
    let settings = |device| OrtSettings { device, ..ort_settings(&model_dir(), 1) };
    let Err(error) = LoadedModel::load(&settings(DeviceChoice::Cuda(99))) else {
        panic!("no machine has a hundred GPUs")
    };
    assert!(matches!(&error, ModelError::Device { device, .. } if device == "cuda:99"), "{error}");
    assert!(error.to_string().contains("thresher init --gpu"), "{error}");
    let auto = load(&model_dir(), DeviceChoice::Auto);
    let device = &auto.info().device;
    println!("auto is {device}");
    assert_eq!(device.name == "cpu", device.gpu_unavailable_reason.is_some(), "{device:?}");
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn a_model_beyond_the_memory_limit_of_a_gpu_is_refused() {
    let out = exported(Weights::F32);
    let settings =
        OrtSettings { device: gpu(), device_memory_bytes_max: 1 << 16, ..ort_settings(out.path(), 1) };
    let Err(error) = LoadedModel::load(&settings) else {
        panic!("even this small model needs more than 65 kB")
    };
    println!("{error}");
}
