//! The memory that a question over a long context needs: the keys, values and logits of one stage of layers,
//! not of all layers. It is measured in a child process, since it is the memory of a whole process.
#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use crate::support::child::child_process;
use crate::support::{in_checkout, ort_settings};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use tempfile::TempDir;
use thresher_core::domain::{Chunk, CompressRequest};
use thresher_core::kv::store::KvStore;
use thresher_core::model::ort::DecoderRuntime;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, Settings};
use thresher_export::{ExportOptions, export};

/// Marks the child process. Without it the child's test does nothing.
const CHILD: &str = "THRESHER_TEST_DECODER_MEMORY";

const LAYERS: usize = 32;
const HEADS: usize = 16;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const HIDDEN: usize = 32;
const CONTEXT: usize = 4096;
const QUESTION: usize = 32;

/// The checkpoint of a Llama with many layers and a long context that is small in every other way.
fn source() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::copy(in_checkout("models/tiny/llama/tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": 41,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "tie_word_embeddings": true
    });
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![41, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut tensor = |name: &str, shape: &[usize]| {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape.into()))
        };
        tensor("input_layernorm", &[HIDDEN]);
        tensor("post_attention_layernorm", &[HIDDEN]);
        tensor("self_attn.q_proj", &[HEADS * HEAD_DIM, HIDDEN]);
        tensor("self_attn.k_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        tensor("self_attn.v_proj", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        tensor("self_attn.o_proj", &[HIDDEN, HEADS * HEAD_DIM]);
        tensor("mlp.gate_proj", &[32, HIDDEN]);
        tensor("mlp.up_proj", &[32, HIDDEN]);
        tensor("mlp.down_proj", &[HIDDEN, 32]);
    }
    let value = |i: usize| ((i * 2_654_435_761) % 1_000) as f32 / 1_000.0 - 0.5;
    let bytes: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(_, shape)| (0..shape.iter().product()).flat_map(|i| value(i).to_le_bytes()).collect())
        .collect();
    let views: HashMap<&str, TensorView> = shapes
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| {
            (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        })
        .collect();
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

/// The peak and the present resident memory of this process in bytes (`VmHWM` and `VmRSS`).
fn memory() -> (usize, usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let of = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    };
    (of("VmHWM:"), of("VmRSS:"))
}

#[test]
fn a_question_over_a_long_context_needs_the_memory_of_one_stage_of_layers() {
    let output =
        child_process(module_path!(), "measure").env(CHILD, "1").output().expect("this binary starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}{errors}");
}

#[test]
#[ignore = "a child process that another test starts"]
fn measure() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let (source, out) = (source(), TempDir::new().unwrap());
    let options = ExportOptions { name: "deep".into(), ..ExportOptions::default() };
    export(source.path(), out.path(), &options, &|_, _| {}).unwrap();
    let runtime = Arc::new(DecoderRuntime::load(&ort_settings(out.path(), 1)).unwrap());
    let tokenizer = Arc::new(ModelTokenizer::from_file(&out.path().join("tokenizer.json")).unwrap());
    // No tier keeps blocks, so both requests read all chunks.
    let store = Arc::new(KvStore::without_tiers());
    let pipeline = Pipeline::new(runtime.clone(), Arc::clone(&tokenizer), store, Settings::default());
    let text = |words: usize| vec!["tide"; words].join(" ");
    let tokens = |text: &str| tokenizer.encode(text).unwrap().ids.len();
    let per_word = tokens(&text(100)) as f64 / 100.0;
    let chunk = |i: usize| Chunk::new(i.to_string(), format!("{i} {}", text((460.0 / per_word) as usize)));
    let chunks: Vec<Chunk> = (0..8).map(chunk).collect();
    let question = text((QUESTION as f64 / per_word) as usize);
    let held: usize = chunks.iter().map(|chunk| tokens(&chunk.text)).sum();
    assert!(held > 3_500 && held + tokens(&question) < CONTEXT, "the chunks are one group: {held} tokens");
    let request = CompressRequest::new(&question, chunks);
    // The first request warms the sessions up: they have now allocated what they keep.
    pipeline.compress(&request, &Cancel::default()).unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let (_, before) = memory();
    pipeline.compress(&request, &Cancel::default()).unwrap();
    let grown = memory().0.saturating_sub(before);
    let logits = HEADS * QUESTION * held * 4;
    let planes = 2 * KV_HEADS * held * HEAD_DIM * 4;
    let all_layers = LAYERS * (logits + planes);
    // The logits of a window, thrice: raw, with the mask added, and normalised. One worker reads one window
    // at a time.
    let reading = 3 * HEADS * 512 * 512 * 4;
    // The logits of the question over all keys, thrice; and the keys and values of two layers, twice, since a
    // graph concatenates old and new ones.
    let stage = 3 * logits + 2 * 2 * planes;
    // What allocators hold beyond that differs from run to run: 21 to 37 MB were seen.
    let bound = reading.max(stage) + (64 << 20);
    println!("grown by {grown}; a window {reading}, a question {stage}, all layers {all_layers}");
    assert!(grown < bound, "grown by {grown}; a window {reading}, a question {stage}");
    assert!(all_layers > 2 * bound, "the bound would not notice all layers at once: {all_layers}");
}
