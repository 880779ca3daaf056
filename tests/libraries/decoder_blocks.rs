//! A decoder that reads a question over cached blocks, through the real pipeline, against one run of the
//! whole graph: chunks that were read alone and moved to their positions, in one group or several, with
//! questions of one tile or several and layers in stages.

use std::sync::Arc;

use crate::support::{gpu, in_checkout, ort_settings, session};
use ndarray::{Array2, Array3, Array4, ArrayView3, Axis, concatenate, s};
use ort::session::{Session, SessionInputValue};
use ort::value::{Tensor, Value};
use tempfile::TempDir;
use thresher_core::domain::{Chunk, CompressRequest};
use thresher_core::kv::codec::Codec;
use thresher_core::kv::store::KvStore;
use thresher_core::model::contract::{Contract, Decoder, Family, QuestionTokens};
use thresher_core::model::device::DeviceChoice;
use thresher_core::model::ort::{DecoderRuntime, ForwardSequence, OrtSettings};
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::model::{KeyMask, ModelInfo, ModelRuntime, RawLogits};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::kv_export::KvExport;
use thresher_core::pipeline::{Pipeline, Reading, Settings};
use thresher_export::{ExportOptions, export};

/// The largest allowed difference of a raw attention logit.
const TOLERANCE: f32 = 1e-4;

const MODELS: [&str; 10] = [
    "llama",
    "llama3-tied",
    "mistral-sliding",
    "qwen2",
    "qwen3",
    "gemma3",
    "gemma3-linear",
    "gpt-neox",
    "gpt-neox-serial",
    "gpt2",
];

/// A tiny model, exported and loaded, and a session over its whole graph for comparison.
struct Model {
    contract: Contract,
    decoder: Decoder,
    runtime: Arc<DecoderRuntime>,
    tokenizer: Arc<ModelTokenizer>,
    whole: Session,
    _out: TempDir,
}

impl Model {
    fn new(name: &str, device: DeviceChoice) -> Self {
        let out = TempDir::new().unwrap();
        let options = ExportOptions { name: name.into(), ..ExportOptions::default() };
        let contract =
            export(&in_checkout("models/tiny").join(name), out.path(), &options, &|_, _| {}).unwrap();
        let Family::Decoder(decoder) = contract.family.clone() else { panic!("{name} is a decoder") };
        let runtime = Arc::new(
            DecoderRuntime::load(&OrtSettings { device, forward: true, ..ort_settings(out.path(), 2) })
                .unwrap(),
        );
        let tokenizer = Arc::new(ModelTokenizer::from_file(&out.path().join("tokenizer.json")).unwrap());
        let whole = session(&out.path().join(&decoder.graph), 1);
        Self { contract, decoder, runtime, tokenizer, whole, _out: out }
    }

    fn pipeline(&self) -> Pipeline {
        let store = Arc::new(KvStore::without_tiers());
        let settings = Settings { codec: Codec::F32, ..Settings::default() };
        Pipeline::new(
            Arc::clone(&self.runtime) as Arc<dyn ModelRuntime>,
            Arc::clone(&self.tokenizer),
            store,
            settings,
        )
    }

    fn info(&self) -> &ModelInfo {
        self.runtime.info()
    }

    fn prefix(&self) -> &[u32] {
        &self.contract.tokenizer.prefix
    }

    /// Runs the whole graph on one row of tokens, the first of which has the position `first`, over keys and
    /// values of earlier tokens.
    fn run(&mut self, (ids, first): (&[u32], i64), past: &PastKeys) -> RunOutput {
        let tokens = ids.len();
        let positions: Vec<i64> = (first..first + tokens as i64).collect();
        let key_positions = [past.positions.clone(), positions.clone()].concat();
        let row = |values: Vec<i64>| Tensor::from_array(([1, values.len()], values)).unwrap();
        let mut inputs: Vec<(String, SessionInputValue)> = vec![
            ("input_ids".into(), row(ids.iter().map(|&id| id.into()).collect()).into()),
            ("position_ids".into(), row(positions).into()),
            ("key_position_ids".into(), row(key_positions).into()),
        ];
        for (layer, past) in past.layers.iter().enumerate() {
            for (part, values) in ["key", "value"].into_iter().zip(past) {
                let (_, kv, p, d) = values.dim();
                let tensor: Value = match p {
                    0 => Tensor::<f32>::new(&ort::memory::Allocator::default(), [1, kv, 0, d])
                        .unwrap()
                        .into_dyn(),
                    _ => Tensor::from_array(values.to_owned()).unwrap().into_dyn(),
                };
                inputs.push((format!("past.{layer}.{part}"), tensor.into()));
            }
        }
        let outputs = self.whole.run(inputs).unwrap();
        let get = |name: String| outputs[name.as_str()].try_extract_array::<f32>().unwrap().to_owned();
        let four = |name: String| get(name).into_dimensionality::<ndarray::Ix4>().unwrap();
        let layers = 0..self.decoder.layers;
        let present =
            layers.clone().map(|l| ["key", "value"].map(|part| four(format!("present.{l}.{part}"))));
        let logits = layers.map(|l| four(format!("attn_logits.{l}")).index_axis_move(Axis(0), 0));
        let (present, attention) = (present.collect(), logits.collect());
        let next = get("logits".into()).index_axis_move(Axis(0), 0).into_dimensionality().unwrap();
        RunOutput { present, attention, next }
    }

    /// Keys and values of the prefix and of these windows, each read alone at its position by the whole
    /// graph.
    fn past_keys(&mut self, windows: &[(&[u32], i64)]) -> PastKeys {
        let no_past = self.no_past();
        let prefix = self.prefix().to_vec();
        let (mut seen, mut parts) =
            (PastKeys { positions: (0..prefix.len() as i64).collect(), ..self.no_past() }, Vec::new());
        if !prefix.is_empty() {
            parts.push(self.run((&prefix, 0), &no_past).present);
        }
        for (ids, position) in windows {
            // The prefix stands right before the window, as it does when the window is read at the start of a
            // sequence.
            let framed = [&prefix[..], ids].concat();
            let first = position - prefix.len() as i64;
            let made = self.run((&framed, first), &no_past).present;
            let cut = |part: Array4<f32>| part.slice_move(s![.., .., prefix.len().., ..]);
            parts.push(made.into_iter().map(|layer| layer.map(cut)).collect());
            seen.positions.extend(*position..position + ids.len() as i64);
        }
        for (layer, seen) in seen.layers.iter_mut().enumerate() {
            for (part, seen) in seen.iter_mut().enumerate() {
                let all: Vec<_> = parts.iter().map(|window| window[layer][part].view()).collect();
                if !all.is_empty() {
                    *seen = concatenate(Axis(2), &all).unwrap();
                }
            }
        }
        seen
    }

    fn no_past(&self) -> PastKeys {
        let Decoder { layers, kv_heads, head_dim, .. } = self.decoder;
        let empty = || Array4::zeros((1, kv_heads, 0, head_dim));
        PastKeys { positions: Vec::new(), layers: (0..layers).map(|_| [empty(), empty()]).collect() }
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text).unwrap().ids
    }
}

/// The outputs of the whole graph for a row of tokens.
struct RunOutput {
    /// Keys and values by layer, each `[batch, kv_head, token, head_dim]`.
    present: Vec<[Array4<f32>; 2]>,
    /// Raw attention logits by layer, each `[head, token, key]`.
    attention: Vec<Array3<f32>>,
    /// Logits of the next token, `[token, vocab]`.
    next: Array2<f32>,
}

/// Keys and values of earlier tokens: positions `[key]` and, by layer, keys and values `[1, kv_head, key,
/// head_dim]`.
struct PastKeys {
    positions: Vec<i64>,
    layers: Vec<[Array4<f32>; 2]>,
}

fn chunk(index: usize, text: &str) -> Chunk {
    Chunk::new(index.to_string(), text)
}

/// A text of words that every tiny tokenizer knows.
fn text(seed: usize, words: usize) -> String {
    let word =
        |i: usize| ["the", "sea", "tide", "a", "rose", "in", "late", "moon"][(seed * 5 + i * 3 + i * i) % 8];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

fn read(model: &Model, texts: &[String], question: &str) -> Reading {
    let chunks = texts.iter().enumerate().map(|(i, text)| chunk(i, text)).collect();
    let request = CompressRequest::new(question, chunks);
    model.pipeline().read(&request, &Cancel::default(), &mut Clock::start()).unwrap()
}

/// Raw attention logits of every head of every layer, over all cached keys and over the question's own keys.
fn logits(reading: &Reading) -> RawLogits {
    reading.logits(0..reading.question.heads())
}

/// The same logits, computed by the whole graph for one group of windows after the other.
fn logits_of_whole_graph(model: &mut Model, groups: &[Vec<Vec<u32>>], question: &[u32]) -> RawLogits {
    let mut own = None;
    let prefix = model.prefix().len() as i64;
    let is_movable = model.decoder.rotary.is_some();
    let mut columns = Vec::new();
    for group in groups {
        let longest = group.iter().map(Vec::len).max().unwrap() as i64;
        let total: i64 = group.iter().map(|ids| ids.len() as i64).sum();
        // Every window ends where the question begins.
        let first = |ids: &Vec<u32>| prefix + if is_movable { longest - ids.len() as i64 } else { 0 };
        let at = prefix + longest;
        let windows: Vec<(&[u32], i64)> = group.iter().map(|ids| (&ids[..], first(ids))).collect();
        let seen = model.past_keys(&windows);
        let logits = model.run((question, at), &seen).attention;
        let heads: Vec<ArrayView3<f32>> = logits.iter().map(|layer| layer.view()).collect();
        let all = concatenate(Axis(0), &heads).unwrap();
        let held = prefix as usize + total as usize;
        columns.push(all.slice(s![.., .., prefix as usize..held]).to_owned());
        // The question's own logits are those of the first group. A token sees itself and the tokens before
        // it.
        own.get_or_insert_with(|| {
            let mut own = all.slice(s![.., .., held..]).to_owned();
            own.indexed_iter_mut().filter(|((_, j, i), _)| i > j).for_each(|(_, logit)| *logit = f32::MIN);
            own
        });
    }
    let columns: Vec<_> = columns.iter().map(|part| part.view()).collect();
    RawLogits { cross: concatenate(Axis(2), &columns).unwrap(), self_logits: own.unwrap() }
}

/// The windows of all texts, in groups of at most `tokens_max` tokens.
fn groups(model: &Model, texts: &[String], tokens_max: usize) -> Vec<Vec<Vec<u32>>> {
    let window = model.info().window_tokens_max;
    let mut groups: Vec<Vec<Vec<u32>>> = vec![Vec::new()];
    for ids in
        texts.iter().flat_map(|text| model.ids(text).chunks(window).map(<[u32]>::to_vec).collect::<Vec<_>>())
    {
        let held: usize = groups.last().unwrap().iter().map(Vec::len).sum();
        if held + ids.len() > tokens_max {
            groups.push(Vec::new());
        }
        groups.last_mut().unwrap().push(ids);
    }
    groups
}

fn worst(a: &Array3<f32>, b: &Array3<f32>) -> f32 {
    assert_eq!(a.dim(), b.dim());
    (a - b).iter().fold(0.0, |worst: f32, error| worst.max(error.abs()))
}

/// A question over blocks that were read at the start of a sequence and moved has the logits of the whole
/// graph over keys that were read at those positions.
fn check_moved_blocks(device: DeviceChoice) {
    for name in MODELS {
        let mut model = Model::new(name, device);
        for (case, texts, question) in [
            ("one chunk", vec![text(1, 6)], text(9, 3)),
            ("three chunks", vec![text(1, 5), text(2, 2), text(3, 4)], text(9, 3)),
            ("long chunks, several groups", vec![text(1, 30), text(2, 4), text(3, 12)], text(9, 4)),
        ] {
            let ids = model.ids(&question);
            let info = model.info().decoder.clone().unwrap();
            let tokens_max = info.context_tokens_max - info.prefix_tokens() - ids.len();
            let groups = groups(&model, &texts, tokens_max);
            assert!(case != "long chunks, several groups" || groups.len() > 1, "{name}: {}", groups.len());
            let found = logits(&read(&model, &texts, &question));
            let expect = logits_of_whole_graph(&mut model, &groups, &ids);
            let off = worst(&found.cross, &expect.cross).max(worst(&found.self_logits, &expect.self_logits));
            assert!(off < TOLERANCE, "{name}, {case}: off by {off}");
        }
    }
}

#[test]
fn a_question_over_moved_blocks_has_the_logits_of_the_whole_graph_on_the_cpu() {
    check_moved_blocks(DeviceChoice::Cpu);
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn a_question_over_moved_blocks_has_the_logits_of_the_whole_graph_on_a_gpu() {
    check_moved_blocks(gpu());
}

fn check_last_token(device: DeviceChoice) {
    let model = Model::new("llama", device);
    for texts in [vec![text(1, 6)], vec![text(1, 30), text(2, 4), text(3, 12)]] {
        let mut reading = read(&model, &texts, &text(9, 4));
        let all = logits(&reading.for_ranking());
        reading.question_tokens = QuestionTokens::Last;
        let counts = reading.for_ranking();
        let last = logits(&counts);
        assert_eq!((counts.tokens.ids.len(), last.cross.dim().1), (1, 1));
        let of_last = |logits: &Array3<f32>| logits.slice(s![.., -1.., ..]).to_owned();
        let off = worst(&last.cross, &of_last(&all.cross))
            .max(worst(&last.self_logits, &of_last(&all.self_logits)));
        assert!(off < 1e-5, "{} chunks: off by {off}", texts.len());
    }
}

#[test]
fn the_last_question_token_has_the_same_logits_alone_and_with_the_others_on_the_cpu() {
    check_last_token(DeviceChoice::Cpu);
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn the_last_question_token_has_the_same_logits_alone_and_with_the_others_on_a_gpu() {
    check_last_token(gpu());
}

/// What `thresher-lab kv` and `thresher calibrate --kv` run.
fn check_forward_pass(device: DeviceChoice) {
    for name in ["llama", "mistral-sliding", "qwen2", "gemma3", "gpt-neox"] {
        let mut model = Model::new(name, device);
        let texts = [text(1, 5), text(2, 4)];
        let windows: Vec<Vec<u32>> = texts.iter().map(|text| model.ids(text)).collect();
        let prefix = model.prefix().len();
        let second = (prefix + windows[0].len()) as i64;
        let mut seen = model.past_keys(&[(&windows[0], prefix as i64), (&windows[1], second)]);
        let (ids, at) = (model.ids(&text(9, 3)), second + windows[1].len() as i64);

        let pipeline = model.pipeline();
        let chunks: Vec<_> = texts.iter().enumerate().map(|(i, text)| Arc::new(chunk(i, text))).collect();
        let cancel = Cancel::default();
        let kv_export = pipeline.kv_export(&[], &chunks, ids.len(), &cancel).unwrap();
        let past = model.runtime.forward_past(&kv_export.past(model.runtime.info(), &cancel)).unwrap();
        let forward = |kept: Option<&KeyMask>| {
            model.runtime.forward(&past, &[ForwardSequence { tokens: &ids, kept }]).unwrap().remove(0)
        };
        let all = forward(None);
        let Decoder { layers, kv_heads, .. } = model.decoder;
        let tokens = kv_export.tokens.len();
        let keeping = |is_kept: &dyn Fn(usize, usize) -> bool| {
            KeyMask::new(Array3::from_shape_fn((layers, kv_heads, tokens), |(_, head, key)| {
                is_kept(head, key)
            }))
        };
        // Keys near the end, so that sliding windows reach them.
        let left_out = [tokens - 3, tokens - 1];
        let some = keeping(&|_, key| !left_out.contains(&key));
        let of_one_head = keeping(&|head, key| head != 0 || !left_out.contains(&key));
        let (without_some, without_one) = (forward(Some(&some)), forward(Some(&of_one_head)));
        let off = |a: &Array2<f32>, b: &Array2<f32>| {
            worst(&a.clone().insert_axis(Axis(0)), &b.clone().insert_axis(Axis(0)))
        };

        assert!(off(&all, &forward(Some(&keeping(&|_, _| true)))) < 1e-5, "{name}: all keys are kept");
        assert!(off(&all, &without_one) > 1e-4, "{name}: leaving a key out of one head changes nothing");
        let expect = model.run((&ids, at), &seen).next;
        assert!(off(&all, &expect) < TOLERANCE, "{name}: off by {}", off(&all, &expect));
        // No token sees a key at position -1.
        for key in left_out {
            seen.positions[prefix + key] = -1;
        }
        let expect = model.run((&ids, at), &seen).next;
        assert!(off(&without_some, &expect) < TOLERANCE, "{name}: off by {}", off(&without_some, &expect));
        assert!(off(&all, &without_some) > 1e-3, "{name}: leaving keys out changes nothing");
    }
}

#[test]
fn a_forward_pass_over_kept_keys_is_the_whole_graph_without_the_other_keys_on_the_cpu() {
    check_forward_pass(DeviceChoice::Cpu);
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn a_forward_pass_over_kept_keys_is_the_whole_graph_without_the_other_keys_on_a_gpu() {
    check_forward_pass(gpu());
}

/// Keys and values of an export, `[plane, token, head_dim]`, without the special tokens at the beginning.
fn planes_of(model: &Model, pipeline: &Pipeline, kv_export: &KvExport) -> Array3<f32> {
    let (prefix, dim) = (model.prefix().len(), model.info().head_dim);
    let mut planes = Array3::zeros((model.info().planes, kv_export.next_position, dim));
    for (index, mut plane) in planes.outer_iter_mut().enumerate() {
        kv_export.read_plane(pipeline, index, plane.as_slice_mut().unwrap());
    }
    planes.slice_move(s![.., prefix.., ..])
}

/// Keys and values of tokens that the whole graph reads as one prompt, in the same form.
fn planes_of_prompt(model: &mut Model, ids: &[u32]) -> Array3<f32> {
    let prefix = model.prefix().to_vec();
    let no_past = model.no_past();
    let present = model.run((&[&prefix[..], ids].concat(), 0), &no_past).present;
    let layout = model.info().decoder.as_ref().unwrap().planes();
    let mut planes = Array3::zeros((model.info().planes, ids.len(), model.info().head_dim));
    for (layer, [keys, values]) in present.into_iter().enumerate() {
        for (range, part) in [(layout.keys(layer), keys), (layout.values(layer), values)] {
            planes.slice_mut(s![range, .., ..]).assign(&part.slice(s![0, .., prefix.len().., ..]));
        }
    }
    planes
}

fn check_recompute(device: DeviceChoice) {
    for name in MODELS.into_iter().filter(|name| *name != "gpt2") {
        let mut model = Model::new(name, device);
        let texts = [text(1, 4), text(2, 4), text(3, 4)];
        let chunks: Vec<_> = texts.iter().enumerate().map(|(i, text)| Arc::new(chunk(i, text))).collect();
        let (before, question) = (model.ids(&text(4, 1)), model.ids(&text(9, 1)));
        let (pipeline, cancel) = (model.pipeline(), Cancel::default());
        for before in [&before[..0], &before] {
            let made = |share: f64| {
                let mut kv_export = pipeline.kv_export(before, &chunks, question.len(), &cancel).unwrap();
                let scores = pipeline.rc_of_export(&kv_export, &question, &cancel).unwrap();
                pipeline.recompute(&mut kv_export, &scores, share, &cancel).unwrap();
                kv_export
            };
            let (none, some, all) = (made(0.0), made(0.3), made(1.0));
            let ids: Vec<u32> = all.tokens.iter().map(|token| token.id).collect();
            let expect = planes_of_prompt(&mut model, &ids);
            let off = |kv_export: &KvExport| worst(&planes_of(&model, &pipeline, kv_export), &expect);
            assert!(all.is_exact() && !some.is_exact() && !none.is_exact(), "{name}");
            assert!(off(&all) < TOLERANCE, "{name}: off by {}", off(&all));
            assert!(off(&none) > 0.01, "{name}: chunks that were read alone are as in a prompt");

            // Tokens of the first window are as in a prompt.
            let first = none.tokens.iter().filter(|token| token.window == 0).count();
            assert_eq!(first, if before.is_empty() { model.ids(&texts[0]).len() } else { before.len() });
            let of_first = |planes: Array3<f32>| planes.slice_move(s![.., ..first, ..]);
            let front = of_first(planes_of(&model, &pipeline, &none));
            assert!(worst(&front, &of_first(expect.clone())) < TOLERANCE, "{name}");

            // The others are as before, unless they were computed again.
            let later = ids.len() - first;
            assert_eq!(some.recomputed().len(), (later as f64 * 0.3).round() as usize, "{name}");
            let (some_planes, none_planes) =
                (planes_of(&model, &pipeline, &some), planes_of(&model, &pipeline, &none));
            for token in 0..ids.len() {
                let of_token = |planes: &Array3<f32>| planes.slice(s![.., token..=token, ..]).to_owned();
                let is_same = of_token(&some_planes) == of_token(&none_planes);
                assert_eq!(
                    is_same,
                    some.recomputed().binary_search(&token).is_err(),
                    "{name}, token {token}"
                );
            }
        }
    }
}

#[test]
fn tokens_that_are_computed_again_are_as_in_a_prompt_on_the_cpu() {
    check_recompute(DeviceChoice::Cpu);
}

#[test]
#[ignore = "needs a CUDA GPU: run with --ignored"]
fn tokens_that_are_computed_again_are_as_in_a_prompt_on_a_gpu() {
    check_recompute(gpu());
}
