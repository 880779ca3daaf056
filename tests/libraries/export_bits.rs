//! The exact bits that exported graphs compute in the real ONNX Runtime. Other windows in the batch, other
//! keys and the number of threads must not change them: only then may the runtime batch as it likes.

use std::{path::Path, sync::OnceLock};

use crate::support::{int8_saturates, keys, logits, minilm_source, ort_settings, session};
use ndarray::{Array3, ArrayView3};
use tempfile::TempDir;
use thresher_core::model::ModelRuntime;
use thresher_core::model::contract::Weights;
use thresher_core::model::ort::LateRuntime;
use thresher_export::{ExportOptions, export};

const DIM: usize = 384;
const LENGTHS: [usize; 5] = [3, 17, 64, 200, 256];

/// The directory of MiniLM with these weights, which is exported once for all tests of this file.
fn minilm(weights: Weights) -> &'static Path {
    static OUT: [OnceLock<TempDir>; 2] = [OnceLock::new(), OnceLock::new()];
    let make = || {
        let out = TempDir::new().unwrap();
        let options = ExportOptions { weights, name: "bits".into(), ..ExportOptions::default() };
        export(&minilm_source(), out.path(), &options, &|_, _| {}).unwrap();
        out
    };
    OUT[usize::from(weights == Weights::Int8)].get_or_init(make).path()
}

/// Different windows of `tokens` tokens each, from a generator with a fixed seed.
fn windows(count: usize, tokens: usize) -> Vec<Vec<i64>> {
    let mut state = 7u64;
    let mut id = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        1000 + (state >> 33) as i64 % 20_000
    };
    let window = |_| [vec![101], (2..tokens).map(|_| id()).collect(), vec![102]].concat();
    (0..count).map(window).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_window_gives_the_same_bits_alone_and_in_a_batch() {
    for weights in [Weights::F32, Weights::Int8] {
        let mut passage = session(&minilm(weights).join("passage.onnx"), 1);
        for tokens in LENGTHS {
            let windows = windows(4, tokens);
            let together = keys(&mut passage, &windows);
            for (window, found) in windows.iter().zip(together.chunks(tokens * DIM)) {
                let alone = keys(&mut passage, std::slice::from_ref(window));
                assert!(
                    bits(&alone) == bits(found),
                    "{weights:?}: the keys of {tokens} tokens depend on the batch"
                );
            }
        }
    }
}

#[test]
fn one_or_two_threads_give_the_same_bits() {
    for weights in [Weights::F32, Weights::Int8] {
        let [mut one, mut two] =
            [1, 2].map(|threads| session(&minilm(weights).join("passage.onnx"), threads));
        for (tokens, count) in LENGTHS.into_iter().flat_map(|tokens| [(tokens, 1), (tokens, 3)]) {
            let windows = windows(count, tokens);
            let (found, expect) = (keys(&mut two, &windows), keys(&mut one, &windows));
            assert!(
                bits(&found) == bits(&expect),
                "{weights:?}: the keys of {count} windows of {tokens} tokens depend on the number of threads"
            );
        }
    }
}

#[test]
fn a_keys_logits_do_not_depend_on_the_other_keys_or_on_threads() {
    let mut passage = session(&minilm(Weights::F32).join("passage.onnx"), 1);
    let [mut one, mut two] = [1, 2].map(|threads| session(&minilm(Weights::F32).join("query.onnx"), threads));
    let all = keys(&mut passage, &windows(10, 200));
    let n = all.len() / DIM;
    for tokens in [3, 12, 33] {
        let question = &windows(1, tokens)[0];
        let (whole, own) = logits(&mut one, question, &all, DIM);
        assert!(
            bits(&whole) == bits(&logits(&mut two, question, &all, DIM).0),
            "logits depend on the number of threads"
        );
        // Ranges have two keys or more: for a single key ONNX Runtime uses a matrix-vector product, whose
        // last bit differs.
        for range in [0..2, 5..22, 100..300, 1998..2000, 7..1800] {
            let (part, own_again) = logits(&mut one, question, &all[range.start * DIM..range.end * DIM], DIM);
            let rows = whole.chunks(n).zip(part.chunks(range.len()));
            let same = rows.into_iter().all(|(whole, part)| bits(&whole[range.clone()]) == bits(part));
            assert!(same, "logits of {tokens} tokens over keys {range:?} depend on the other keys");
            assert!(bits(&own) == bits(&own_again), "self logits depend on the keys");
        }
    }
}

/// ONNX Runtime finds external weights by name after it has rewritten the graph, so sharing them could change
/// results.
#[test]
fn sessions_that_share_weights_give_the_bits_of_plain_ones() {
    for weights in [Weights::F32, Weights::Int8] {
        if weights == Weights::Int8 && int8_saturates() {
            continue;
        }
        let model_dir = minilm(weights);
        let mut passage = session(&model_dir.join("passage.onnx"), 1);
        let mut query = session(&model_dir.join("query.onnx"), 1);
        let shared = LateRuntime::load(&ort_settings(model_dir, 3)).unwrap();
        for tokens in LENGTHS {
            let framed = &windows(1, tokens)[0];
            let expect = keys(&mut passage, std::slice::from_ref(framed));
            let ids: Vec<u32> = framed[1..tokens - 1].iter().map(|&id| id as u32).collect();
            let inner = DIM..(tokens - 1) * DIM;
            // Nine windows, so that every worker's session takes part.
            let found = |_, found: ArrayView3<f32>| {
                let found = found.iter().copied().collect::<Vec<_>>();
                assert!(bits(&found) == bits(&expect[inner.clone()]), "{weights:?}: keys of {tokens} tokens");
            };
            shared.read(&[&*ids; 9], &|_| true, &found).unwrap();
            let (cross, own) = logits(&mut query, framed, &expect, DIM);
            let units = Array3::from_shape_vec((1, tokens, DIM), expect.clone()).unwrap();
            let found = shared.logits(&ids, units.view()).unwrap();
            let rows = tokens..(tokens - 1) * tokens;
            assert!(
                bits(found.cross.as_slice().unwrap()) == bits(&cross[rows]),
                "{weights:?}: logits of {tokens} tokens"
            );
            let inner = |row: &[f32]| row[1..tokens - 1].to_vec();
            let own: Vec<f32> = own.chunks(tokens).skip(1).take(tokens - 2).flat_map(inner).collect();
            assert!(
                bits(&found.self_logits.iter().copied().collect::<Vec<_>>()) == bits(&own),
                "{weights:?}: own"
            );
        }
    }
}
