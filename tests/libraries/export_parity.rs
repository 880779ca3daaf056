//! Exported graphs in the real ONNX Runtime against `transformers`: tiny random BERTs, and MiniLM. The
//! reference results are committed beside the script that made them, `models/tiny/make_goldens.py`.

use std::path::Path;

use crate::support::{
    Case, Golden, colbert_source, distance_max, golden, hidden_states, in_checkout, keys, logits,
    masked_keys, minilm_source, multilingual_source, session,
};
use ort::session::Session;
use tempfile::TempDir;
use thresher_core::model::contract::{Contract, Dim, Family, Graph, IoTensor, Late, Side, Weights, check_io};
use thresher_core::model::onnx::{self, DataLocation, StringStringEntryProto};
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::calibration::{CALIBRATION_FILE, Calibration};
use thresher_export::{ExportOptions, export};
use tokenizers::Tokenizer;

/// The largest allowed difference of a component of a unit vector, or of a logit.
const TOLERANCE: f64 = 1e-4;

fn exported(source: &Path) -> (TempDir, Contract) {
    exported_as(source, Weights::F32)
}

fn exported_as(source: &Path, weights: Weights) -> (TempDir, Contract) {
    let out = TempDir::new().unwrap();
    let options = ExportOptions { weights, name: "parity".into(), ..ExportOptions::default() };
    let contract = export(source, out.path(), &options, &|_, _| {}).unwrap();
    (out, contract)
}

fn late(contract: &Contract) -> &Late {
    let Family::Late(late) = &contract.family else { panic!("{} is late", contract.name) };
    late
}

#[test]
fn tiny_models_agree_with_transformers() {
    for (name, tolerance) in [("bert-gelu", 1e-5), ("bert-tanh-masked-lm", 1e-5), ("bert-relu-half", 1e-5)] {
        let source = in_checkout("models/tiny").join(name);
        let golden = golden(&source.join("golden.json"));
        let (out, contract) = exported(&source);
        assert_eq!(late(&contract).head_dim, golden.dim, "{name}");
        let mut passage = session(&out.path().join("passage.onnx"), 1);
        for case in &golden.cases {
            let found = keys(&mut passage, std::slice::from_ref(&case.ids));
            let distance = distance_max(&found, case.readout.as_ref().unwrap());
            assert!(distance < tolerance, "{name}, {} tokens: differs by {distance}", case.ids.len());
        }
    }
}

/// The model of the calibration that lies in the folder of an export.
fn calibrated_as(out: &TempDir, contract: &Contract) -> Option<String> {
    assert!(out.path().join(CALIBRATION_FILE).is_file());
    Calibration::load(out.path(), contract).unwrap().map(|calibration| calibration.model.clone())
}

#[test]
fn minilm_agrees_with_transformers() {
    let golden = golden(&in_checkout("models/tiny/minilm.golden.json"));
    let (out, contract) = exported(&minilm_source());
    assert_eq!((contract.window.tokens_max, late(&contract).head_dim), (256, 384));
    assert_eq!(calibrated_as(&out, &contract), Some("minilm-l6".to_owned()));
    assert_eq!((&contract.tokenizer.prefix[..], &contract.tokenizer.suffix[..]), (&[101][..], &[102][..]));
    let tokenizer = tokenizers::Tokenizer::from_file(out.path().join(&contract.tokenizer.file)).unwrap();
    let mut passage = session(&out.path().join("passage.onnx"), 1);
    for case in &golden.cases {
        let text = case.text.as_ref().unwrap();
        let ids: Vec<i64> =
            tokenizer.encode(text.as_str(), true).unwrap().get_ids().iter().map(|&id| id.into()).collect();
        assert_eq!(ids, case.ids, "{text}");

        assert_agrees(&keys(&mut passage, &[ids]), case, &golden);
    }
}

/// The reference has decoded the file on its own, and its tokens are those of SentencePiece.
#[test]
fn the_multilingual_model_agrees_with_transformers_and_sentencepiece() {
    let golden = golden(&in_checkout("models/tiny/multilingual.golden.json"));
    let (out, contract) = exported(&multilingual_source());
    assert_eq!((contract.window.tokens_max, late(&contract).head_dim), (512, 384));
    assert_eq!(contract.tokenizer.prefix_text.as_deref(), Some("passage: "));
    assert_eq!(calibrated_as(&out, &contract), Some("multilingual-e5-small".to_owned()));
    let tokenizer = ModelTokenizer::from_file(&out.path().join(&contract.tokenizer.file)).unwrap();
    let library = Tokenizer::from_file(out.path().join(&contract.tokenizer.file)).unwrap();
    let library = ModelTokenizer::new(library);
    let mut passage = session(&out.path().join("passage.onnx"), 1);
    for case in &golden.cases {
        let text = case.text.as_ref().unwrap();
        let tokens = tokenizer.encode(text).unwrap();
        // The library reads text that looks like a special token as that token.
        if !text.contains("</s>") {
            assert_eq!(tokens, library.encode(text).unwrap(), "{text}: the small model is not the library's");
        }
        let ids: Vec<i64> = tokens.ids.iter().map(|&id| id.into()).collect();
        let ids =
            [&[0][..], &ids, &contract.tokenizer.suffix.iter().map(|&id| id.into()).collect::<Vec<_>>()]
                .concat();
        assert_eq!(ids, case.ids, "{text}");

        assert_agrees(&keys(&mut passage, &[ids]), case, &golden);
    }
}

/// The cosines of the vectors that an export and the ONNX file that it was made from compute for a window's tokens.
fn cosines_to_original(original: &mut Session, passage: &mut Session, ids: &[i64], dim: usize) -> Vec<f64> {
    let (hidden, keys) = (hidden_states(original, ids), keys(passage, &[ids.to_vec()]));
    let cosine = |(a, b): (&[f32], &[f32])| {
        let [ab, aa, bb] = [(a, b), (a, a), (b, b)]
            .map(|(a, b)| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>());
        ab / (aa * bb).sqrt()
    };
    hidden.chunks(dim).zip(keys.chunks(dim)).map(cosine).collect()
}

/// The original quantises the inputs of each product with one scale for all tokens, and the export with one for each token.
#[test]
fn onnx_files_agree_with_their_own_graph() {
    let source = in_checkout("models/tiny/bert-onnx");
    let golden = golden(&in_checkout("models/tiny/bert-gelu/golden.json"));
    let mut original = session(&source.join("model.onnx"), 1);
    for weights in [Weights::F32, Weights::F16, Weights::Int8] {
        let (out, contract) = exported_as(&source, weights);
        assert_eq!((contract.window.tokens_max, late(&contract).head_dim), (40, golden.dim));
        let mut passage = session(&out.path().join("passage.onnx"), 1);
        let of_case = |case: &Case| cosines_to_original(&mut original, &mut passage, &case.ids, golden.dim);
        let least = golden.cases.iter().flat_map(of_case).fold(1.0, f64::min);
        println!("{weights:?}: least cosine {least:.5}");
        assert!(least > 0.999, "{weights:?}: {least}");
    }
}

#[test]
fn tensors_in_a_file_beside_an_onnx_file_are_read() {
    let (source, folder) = (in_checkout("models/tiny/bert-onnx"), TempDir::new().unwrap());
    let mut model = onnx::read_model(&source.join("model.onnx")).unwrap();
    let mut data = vec![0; 3];
    for tensor in &mut model.graph.as_mut().unwrap().initializer {
        let Some(raw) = tensor.raw_data.take() else { continue };
        let entries = [("location", "model.onnx_data".to_owned()), ("offset", data.len().to_string())];
        let entry = |(key, value): (&str, String)| StringStringEntryProto { key: key.into(), value };
        tensor.external_data = entries.map(entry).into();
        tensor.data_location = DataLocation::External.into();
        data.extend(raw);
    }
    std::fs::write(folder.path().join("model.onnx"), model.to_bytes()).unwrap();
    std::fs::write(folder.path().join("model.onnx_data"), data).unwrap();
    std::fs::copy(source.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let ((inside, first), (beside, second)) = (exported(&source), exported(folder.path()));
    let read = |out: &TempDir| std::fs::read(out.path().join("weights.bin")).unwrap();
    assert!(read(&inside) == read(&beside), "the weights differ");
    assert_ne!(first.source.weights, second.source.weights, "the hash covers both files");
}

/// The paragraphs of this project's documentation are the texts.
#[test]
fn colbert_agrees_with_the_graph_of_its_publisher() {
    let source = colbert_source();
    let [(exact, _), (int8, contract)] =
        [Weights::F32, Weights::Int8].map(|weights| exported_as(&source, weights));
    let tokenizer = ModelTokenizer::from_file(&exact.path().join(&contract.tokenizer.file)).unwrap();
    let pages = ["models", "evaluation", "deployment", "verdicts", "api"]
        .map(|page| in_checkout(&format!("docs/{page}.md")));
    let pages = pages.map(|page| std::fs::read_to_string(page).unwrap()).join("\n\n");
    let texts: Vec<&str> = pages.split("\n\n").filter(|text| text.len() > 40).take(200).collect();
    assert_eq!(texts.len(), 200);
    let mut original = session(&source.join("model.onnx"), 1);
    for (out, weights, mean_min, least_min) in [(exact, "f32", 0.995, 0.75), (int8, "int8", 0.994, 0.75)] {
        let mut passage = session(&out.path().join("passage.onnx"), 1);
        let mut cosines = Vec::new();
        for text in &texts {
            let ids = tokenizer.encode(text).unwrap().ids;
            let ids: Vec<i64> =
                [101].into_iter().chain(ids.into_iter().take(300).map(i64::from)).chain([102]).collect();
            cosines.extend(cosines_to_original(&mut original, &mut passage, &ids, 384));
        }
        let mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
        let least = cosines.iter().copied().fold(1.0, f64::min);
        println!(
            "{weights}: {} tokens, cosines to the original: mean {mean:.5}, least {least:.5}",
            cosines.len()
        );
        assert!(mean > mean_min && least > least_min, "{weights}: mean {mean}, least {least}");
    }
}

#[test]
fn int8_weights_stay_close_to_f32() {
    let sources =
        [(minilm_source(), "minilm", 0.9985, 0.99), (multilingual_source(), "multilingual", 0.9985, 0.98)];
    for (source, name, mean_min, least_min) in sources {
        let golden = golden(&in_checkout(&format!("models/tiny/{name}.golden.json")));
        let [(f32_out, _), (int8_out, contract)] =
            [Weights::F32, Weights::Int8].map(|weights| exported_as(&source, weights));
        assert_eq!(contract.weights.dtype, Weights::Int8);
        let [mut exact, mut rounded] =
            [&f32_out, &int8_out].map(|out| session(&out.path().join("passage.onnx"), 1));
        let mut cosines = Vec::new();
        for case in &golden.cases {
            let windows = std::slice::from_ref(&case.ids);
            let (exact, rounded) = (keys(&mut exact, windows), keys(&mut rounded, windows));
            let rows = exact.chunks(golden.dim).zip(rounded.chunks(golden.dim));
            cosines.extend(rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>()));
        }
        let mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
        let least = cosines.iter().copied().fold(1.0, f64::min);
        println!("{name}: cosines to the exact readout: mean {mean:.5}, least {least:.5}");
        assert!(mean > mean_min && least > least_min, "{name}: mean {mean}, least {least}");
    }
}

/// The CPU multiplies f16 weights in 32 bits, so only the rounding of weights and inputs is measured.
#[test]
fn f16_weights_stay_close_to_f32() {
    let golden = golden(&in_checkout("models/tiny/minilm.golden.json"));
    let [(f32_out, _), (f16_out, contract)] =
        [Weights::F32, Weights::F16].map(|weights| exported_as(&minilm_source(), weights));
    assert_eq!(contract.weights.dtype, Weights::F16);
    let [mut exact, mut rounded] =
        [&f32_out, &f16_out].map(|out| session(&out.path().join("passage.onnx"), 1));
    let mut least = 1.0_f64;
    for case in &golden.cases {
        let windows = std::slice::from_ref(&case.ids);
        let (exact, rounded) = (keys(&mut exact, windows), keys(&mut rounded, windows));
        assert_ne!(exact, rounded, "the weights are not rounded");
        let rows = exact.chunks(golden.dim).zip(rounded.chunks(golden.dim));
        let cosines = rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>());
        least = cosines.fold(least, f64::min);
    }
    println!("the least cosine to the exact readout is 1 - {:.1e}", 1.0 - least);
    assert!(least > 0.9999, "a cosine of {least} to the exact readout");
}

#[test]
fn logits_are_raw_dot_products_of_readouts() {
    let golden = golden(&in_checkout("models/tiny/bert-gelu/golden.json"));
    let (out, _) = exported(&in_checkout("models/tiny/bert-gelu"));
    let mut query = session(&out.path().join("query.onnx"), 1);
    let dim = golden.dim;
    let readout = |case: usize| golden.cases[case].readout.as_ref().unwrap();
    let key: Vec<f32> = readout(3).iter().map(|&value| value as f32).collect();
    let (cross, own) = logits(&mut query, &golden.cases[2].ids, &key, dim);
    assert!(distance_max(&cross, &dots(readout(2), readout(3), dim)) < TOLERANCE);
    assert!(distance_max(&own, &dots(readout(2), readout(2), dim)) < TOLERANCE);
}

#[test]
fn no_keys_give_no_cross_logits() {
    let (out, _) = exported(&in_checkout("models/tiny/bert-gelu"));
    let mut query = session(&out.path().join("query.onnx"), 1);
    let (cross, own) = logits(&mut query, &[2, 7, 3], &[], 32);
    assert_eq!((cross.len(), own.len()), (0, 9));
}

#[test]
fn masked_padding_does_not_change_the_keys_of_the_text() {
    let golden = golden(&in_checkout("models/tiny/bert-gelu/golden.json"));
    let (out, _) = exported(&in_checkout("models/tiny/bert-gelu"));
    let mut passage = session(&out.path().join("passage.onnx"), 1);
    let case = &golden.cases[2];
    let (tokens, padded) = (case.ids.len(), case.ids.len() + 5);
    let mut ids = case.ids.clone();
    ids.resize(padded, 0);
    let mut mask = vec![1; tokens];
    mask.resize(padded, 0);
    let found = masked_keys(&mut passage, &[ids], &[mask]);
    let distance = distance_max(&found[..tokens * golden.dim], case.readout.as_ref().unwrap());
    assert!(distance < TOLERANCE, "differs by {distance}");
}

#[test]
fn the_inputs_and_outputs_of_sessions_match_the_contract() {
    let (out, contract) = exported(&in_checkout("models/tiny/bert-gelu"));
    assert_eq!(Contract::load(out.path()).unwrap(), contract);
    contract.verify_files(out.path()).unwrap();
    for graph in [Graph::Passage, Graph::Query] {
        let session = session(&out.path().join(contract.graph_file(graph)), 1);
        let found: Vec<IoTensor> = (session.inputs().iter().map(|outlet| (Side::Input, outlet)))
            .chain(session.outputs().iter().map(|outlet| (Side::Output, outlet)))
            .map(|(side, outlet)| {
                let dtype = outlet.dtype().tensor_type().unwrap().to_string();
                IoTensor::new(side, outlet.name(), dtype, outlet.dtype().tensor_shape().unwrap())
            })
            .collect();
        check_io(&contract, graph, &found).unwrap();
        assert!(found.iter().all(|tensor| !tensor.dims.is_empty()));
        assert!(found.iter().any(|tensor| tensor.dims.contains(&Dim::Free)));
    }
}

/// Asserts that the readout of a text is the reference's.
#[track_caller]
fn assert_agrees(found: &[f32], case: &Case, golden: &Golden) {
    let text = case.text.as_ref().unwrap();
    let projected = project(found, &golden.directions, golden.dim);
    let distance = distance_max(&projected, case.projected.as_ref().unwrap());
    // A projection sums `dim` components, so this allows each component about `TOLERANCE / √dim`.
    assert!(distance < TOLERANCE, "{text}: projections differ by {distance}");
    if let Some(expect) = &case.readout {
        let distance = distance_max(found, expect);
        assert!(distance < TOLERANCE, "{text}: readout differs by {distance}");
    }
}

/// Projects `vectors`, `[token, dim]`, on `directions`, `[direction, dim]`. The result is `[token,
/// direction]`; all are flattened.
fn project(vectors: &[f32], directions: &[f64], dim: usize) -> Vec<f32> {
    let vectors: Vec<f64> = vectors.iter().map(|&value| value.into()).collect();
    dots(&vectors, directions, dim).into_iter().map(|value| value as f32).collect()
}

/// The dot products `[m, n]` of the rows of `a`, `[m, dim]`, and of `b`, `[n, dim]`; all are flattened.
fn dots(a: &[f64], b: &[f64], dim: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    a.chunks(dim).flat_map(|a| b.chunks(dim).map(move |b| dot(a, b))).collect()
}
