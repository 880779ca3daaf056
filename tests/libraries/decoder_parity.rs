//! Exported decoders in the real ONNX Runtime against `transformers`: a tiny random model of every family.
//! The reference results are committed beside the script that made them,
//! `models/tiny/make_decoder_goldens.py`.

use std::path::Path;

use crate::support::{in_checkout, session};
use ort::session::{Session, SessionInputValue};
use ort::value::{Tensor, Value};
use serde::Deserialize;
use tempfile::TempDir;
use thresher_core::model::contract::{Contract, Decoder, Family, Weights};
use thresher_export::{ExportOptions, export};

/// The largest allowed difference of a next-token logit, a key, a value or a raw attention logit.
const TOLERANCE: f64 = 1e-5;

const MODELS: [&str; 13] = [
    "llama",
    "llama3-tied",
    "mistral-sliding",
    "mistral-linear",
    "qwen2",
    "qwen2-full",
    "qwen3",
    "gemma3",
    "gemma3-linear",
    "gpt-neox",
    "gpt-neox-serial",
    "gpt2",
    "gpt2-prefixed",
];

#[derive(Deserialize)]
struct Golden {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    layers: usize,
    vocab: usize,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// The index of the case whose keys and values are this case's past.
    past: Option<usize>,
    /// `[batch][token]`
    input_ids: Vec<Vec<i64>>,
    position_ids: Vec<Vec<i64>>,
    /// `[batch][past + token]`; -1 where a key is padding.
    key_position_ids: Vec<Vec<i64>>,
    /// A flattened `[batch, token, vocab]`.
    logits: Vec<f64>,
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    /// A flattened `[batch, kv_head, past + token, head_dim]`.
    key: Vec<f64>,
    /// The shape is that of `key`.
    value: Vec<f64>,
    /// A flattened `[batch, head, token, past + token]`.
    attn_logits: Vec<f64>,
}

struct Model {
    golden: Golden,
    decoder: Decoder,
    session: Session,
    _out: TempDir,
}

/// The outputs of a run, in the order of [`outputs_of`].
type Outputs = Vec<Vec<f32>>;

impl Model {
    fn new(name: &str, weights: Weights) -> Self {
        let source = in_checkout("models/tiny").join(name);
        let out = TempDir::new().unwrap();
        let contract = exported(&source, out.path(), weights);
        let Family::Decoder(decoder) = contract.family else { panic!("{name} is a decoder") };
        let session = session(&out.path().join(&decoder.graph), 1);
        let golden = serde_json::from_slice(&std::fs::read(source.join("golden.json")).unwrap()).unwrap();
        Self { golden, decoder, session, _out: out }
    }

    /// Runs a case over the reference keys and values of its past.
    fn run(&mut self, case: usize) -> Outputs {
        let Golden { kv_heads, head_dim, layers, .. } = self.golden;
        let case = &self.golden.cases[case];
        let batch = case.input_ids.len();
        let grid =
            |rows: &[Vec<i64>]| Tensor::from_array(([rows.len(), rows[0].len()], rows.concat())).unwrap();
        let mut inputs: Vec<(String, SessionInputValue)> = vec![
            ("input_ids".into(), grid(&case.input_ids).into()),
            ("position_ids".into(), grid(&case.position_ids).into()),
            ("key_position_ids".into(), grid(&case.key_position_ids).into()),
        ];
        let past_tokens = case.key_position_ids[0].len() - case.input_ids[0].len();
        for layer in 0..layers {
            let past = case.past.map(|past| &self.golden.cases[past].layers[layer]);
            let mut add_input = |part: &str, values: Option<&Vec<f64>>| {
                let values: Vec<f32> = values.into_iter().flatten().map(|v| *v as f32).collect();
                let shape = [batch, kv_heads, past_tokens, head_dim];
                let tensor: Value = if values.is_empty() {
                    Tensor::<f32>::new(&ort::memory::Allocator::default(), shape).unwrap().into_dyn()
                } else {
                    Tensor::from_array((shape, values)).unwrap().into_dyn()
                };
                inputs.push((format!("past.{layer}.{part}"), tensor.into()));
            };
            add_input("key", past.map(|past| &past.key));
            add_input("value", past.map(|past| &past.value));
        }
        let outputs = self.session.run(inputs).unwrap();
        let names = outputs_of(layers);
        names
            .iter()
            .map(|name| outputs[name.as_str()].try_extract_tensor::<f32>().unwrap().1.to_vec())
            .collect()
    }

    /// The largest differences of logits, keys, values and raw attention logits from the reference results,
    /// without those of padding.
    fn distances(&mut self, case: usize) -> [f64; 4] {
        let found = self.run(case);
        let Golden { heads, kv_heads, head_dim, vocab, .. } = self.golden;
        let case = &self.golden.cases[case];
        let (tokens, keys) = (case.input_ids[0].len(), case.key_position_ids[0].len());
        let is_key = |b: usize, n: usize| case.key_position_ids[b][n] >= 0;
        let is_token = |b: usize, t: usize| is_key(b, keys - tokens + t);
        let mut worst = [0.0; 4];
        let mut compare = |output: usize, found: &[f32], expect: &[f64], counts: &dyn Fn(usize) -> bool| {
            assert_eq!(found.len(), expect.len(), "{}", case.name);
            for (i, (found, expect)) in found.iter().zip(expect).enumerate().filter(|(i, _)| counts(*i)) {
                let distance = (f64::from(*found) - expect).abs();
                assert!(found.is_finite(), "{}, {output}, {i}", case.name);
                worst[output] = f64::max(worst[output], distance);
            }
        };
        compare(0, &found[0], &case.logits, &|i| is_token(i / vocab / tokens, i / vocab % tokens));
        for (layer, found) in case.layers.iter().zip(found[1..].chunks(3)) {
            let counts = |i: usize| is_key(i / head_dim / keys / kv_heads, i / head_dim % keys);
            compare(1, &found[0], &layer.key, &counts);
            compare(2, &found[1], &layer.value, &counts);
            let counts = |i: usize| {
                let batch = i / keys / tokens / heads;
                is_key(batch, i % keys) && is_token(batch, i / keys % tokens)
            };
            compare(3, &found[2], &layer.attn_logits, &counts);
        }
        worst
    }
}

fn outputs_of(layers: usize) -> Vec<String> {
    let of_layer = |layer: usize| {
        [format!("present.{layer}.key"), format!("present.{layer}.value"), format!("attn_logits.{layer}")]
    };
    std::iter::once("logits".to_owned()).chain((0..layers).flat_map(of_layer)).collect()
}

fn exported(source: &Path, out: &Path, weights: Weights) -> Contract {
    export(
        source,
        out,
        &ExportOptions { weights, name: "tiny".into(), ..ExportOptions::default() },
        &|_, _| {},
    )
    .unwrap()
}

/// In f16 a weight is rounded to 11 bits. The CPU multiplies in 32 bits.
#[test]
fn weights_in_f16_stay_close_to_transformers() {
    // Only models whose checkpoints have 32 bits.
    for name in ["llama", "qwen2-full", "gemma3", "gpt-neox", "gpt2"] {
        let mut model = Model::new(name, Weights::F16);
        let [logits, keys, values, raw] = model.distances(0);
        let worst = logits.max(keys).max(values).max(raw);
        assert!(worst < 2e-2, "{name}: {logits:.1e} {keys:.1e} {values:.1e} {raw:.1e}");
        assert!(worst > 1e-5, "{name}: the weights are not rounded");
    }
}

#[test]
fn every_family_agrees_with_transformers() {
    println!("{:16} {:24} {:>9} {:>9} {:>9} {:>9}", "model", "case", "logits", "keys", "values", "raw");
    let mut far = Vec::new();
    for name in MODELS {
        let mut model = Model::new(name, Weights::F32);
        let Golden { heads, kv_heads, head_dim, layers, .. } = model.golden;
        let Decoder { heads: h, kv_heads: kv, head_dim: d, layers: l, .. } = model.decoder;
        assert_eq!((h, kv, d, l), (heads, kv_heads, head_dim, layers), "{name}");
        for case in 0..model.golden.cases.len() {
            let distances = model.distances(case);
            let [logits, keys, values, raw] = distances;
            let case = &model.golden.cases[case].name;
            println!("{name:16} {case:24} {logits:9.1e} {keys:9.1e} {values:9.1e} {raw:9.1e}");
            if distances.iter().any(|distance| *distance > TOLERANCE) {
                far.push((name, case.clone(), distances));
            }
        }
    }
    assert!(far.is_empty(), "{far:?}");
}
