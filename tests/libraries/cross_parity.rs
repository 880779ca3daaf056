//! Cross-encoders, exported, in the real ONNX Runtime, against `transformers`: tiny random models with the logits that
//! `models/tiny/make_encoder_goldens.py` computed for pairs of texts. And verdicts with one of them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tempfile::TempDir;
use thresher_core::Engine;
use thresher_core::domain::{AttributeRequest, Chunk};
use thresher_core::model::ModelError;
use thresher_core::model::contract::{Contract, Family, VerdictWeights, Weights};
use thresher_core::model::cross::CrossEncoder;
use thresher_core::model::ort::{CrossRuntime, LoadedModel};
use thresher_core::pipeline::PipelineError;
use thresher_core::pipeline::attribute::{Method, PartOutcome, Verdict};
use thresher_core::pipeline::cancel::Cancel;
use thresher_export::{ExportOptions, export};

use crate::support::{in_checkout, model_dir, ort_settings, runtime_lib};

/// The largest allowed difference of a logit.
const TOLERANCE: f32 = 1e-4;

/// The same with weights in f16, which are rounded to 11 bits.
const F16_TOLERANCE: f32 = 1e-2;

#[derive(Deserialize)]
struct Golden {
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    evidence: String,
    claim: String,
    tokens: usize,
    logits: Vec<f32>,
}

fn exported(name: &str, support_label: Option<&str>, parent: &Path) -> PathBuf {
    exported_as(name, support_label, parent, Weights::F32)
}

fn exported_as(name: &str, support_label: Option<&str>, parent: &Path, weights: Weights) -> PathBuf {
    let out = parent.join(format!("{name}-{}", weights.as_str()));
    let support_label = support_label.map(str::to_owned);
    let options = ExportOptions { name: name.into(), support_label, weights, ..ExportOptions::default() };
    let contract = export(&in_checkout("models/tiny").join(name), &out, &options, &|_, _| {}).unwrap();
    assert_eq!(Contract::load(&out).unwrap(), contract, "{name}");
    out
}

fn loaded(dir: &Path) -> CrossRuntime {
    CrossRuntime::load(dir, &ort_settings(dir, 1)).unwrap()
}

#[test]
fn logits_agree_with_transformers() {
    let folder = TempDir::new().unwrap();
    for (name, support_label, support) in [
        ("cross-bert", None, 2),
        ("cross-roberta", None, 0),
        ("cross-distilbert", Some("label_1"), 1),
        ("cross-mpnet", None, 0),
    ] {
        let golden = std::fs::read(in_checkout("models/tiny").join(name).join("golden.json")).unwrap();
        let golden: Golden = serde_json::from_slice(&golden).unwrap();
        assert!(!golden.pairs.is_empty());
        for (weights, tolerance) in [(Weights::F32, TOLERANCE), (Weights::F16, F16_TOLERANCE)] {
            let dir = exported_as(name, support_label, folder.path(), weights);
            let Family::Cross(cross) = Contract::load(&dir).unwrap().family else { panic!("{name}") };
            assert_eq!(cross.support, support, "{name}: {:?}", cross.labels);
            let model = loaded(&dir);
            let mut largest = 0.0_f32;
            for Pair { evidence, claim, tokens, logits } in &golden.pairs {
                let (found, read) = model.logits(evidence, claim, &|| true).unwrap();
                assert_eq!((read, found.len()), (*tokens, logits.len()), "{name}: {claim}");
                let distance = found.iter().zip(logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(distance < tolerance, "{name}, {weights:?}: {claim}: {found:?}, not {logits:?}");
                largest = largest.max(distance);
            }
            println!("{name}, {weights:?}: off by at most {largest:.1e}");
        }
    }
}

#[test]
fn texts_that_are_too_long_are_cut_to_the_window() {
    let folder = TempDir::new().unwrap();
    // The window has 48 tokens, of which 3 are special.
    let model = loaded(&exported("cross-bert", None, folder.path()));
    let logits = |evidence: &str, claim: &str| model.logits(evidence, claim, &|| true).unwrap();
    let (long, claim) = ("the ".repeat(100), "answer ".repeat(100));
    let (found, tokens) = logits(&long, "answer");
    assert_eq!(tokens, 48);
    assert_eq!(found, logits(&"the ".repeat(44), "answer").0, "the evidence lost its end");
    let (found, tokens) = logits("the", &claim);
    assert_eq!(
        (tokens, found),
        (1 + 22 + 3, logits("the", &"answer ".repeat(22)).0),
        "the claim has half at most"
    );
}

#[test]
fn a_cancelled_request_does_not_reach_the_model() {
    let folder = TempDir::new().unwrap();
    let model = loaded(&exported("cross-bert", None, folder.path()));
    let refused = model.judge("the", "answer", &|| false);
    assert!(matches!(refused, Err(ModelError::Cancelled)), "{refused:?}");
}

#[test]
fn models_of_other_families_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let dir = exported("cross-bert", None, folder.path());
    let as_scorer = LoadedModel::load(&ort_settings(&dir, 1)).map(|_| ()).unwrap_err().to_string();
    assert!(
        as_scorer.contains("cross-bert is a cross-encoder") && as_scorer.contains("verdict.model"),
        "{as_scorer}"
    );
    let encoder = model_dir();
    let as_judge =
        CrossRuntime::load(&encoder, &ort_settings(&encoder, 1)).map(|_| ()).unwrap_err().to_string();
    assert!(as_judge.contains("is not a cross-encoder"), "{as_judge}");
}

/// Makes the folder of an export look like one that somebody else made: a graph with its weights, a tokenizer and a configuration.
fn plain(exported: &Path, parent: &Path, config: &str) -> PathBuf {
    let out = parent.join("plain");
    std::fs::create_dir_all(&out).unwrap();
    let contract = Contract::load(exported).unwrap();
    for file in contract.files.keys() {
        std::fs::copy(exported.join(file), out.join(file)).unwrap();
    }
    std::fs::write(out.join("config.json"), config).unwrap();
    out
}

#[test]
fn a_classifier_without_a_contract_is_used_as_it_is() {
    let folder = TempDir::new().unwrap();
    let exported = exported("cross-bert", None, folder.path());
    let names = r#"{"id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"}, "max_position_embeddings": 48}"#;
    let dir = plain(&exported, folder.path(), names);
    let (own, plain_model) = (loaded(&exported), loaded(&dir));
    let logits = |model: &CrossRuntime| model.logits("the answer", "the", &|| true).unwrap();
    assert_eq!(logits(&own).1, logits(&plain_model).1);
    for (one, other) in logits(&own).0.iter().zip(logits(&plain_model).0) {
        assert!((one - other).abs() < TOLERANCE);
    }
    let labels = plain_model.labels();
    assert_eq!((labels.count, labels.support, labels.conflict), (3, 2, Some(0)));
    let refused = |file: &str, content: &str| {
        let other = plain(&exported, folder.path(), names);
        std::fs::write(other.join(file), content).unwrap();
        CrossRuntime::load(&other, &ort_settings(&other, 1)).map(|_| ()).unwrap_err().to_string()
    };
    // A random model does not know the pairs.
    let unnamed = refused("config.json", r#"{"max_position_embeddings": 48}"#);
    assert!(unnamed.contains("known pairs") && unnamed.contains("id2label"), "{unnamed}");
    let small = refused("config.json", r#"{"vocab_size": 3}"#);
    assert!(small.contains("another model's"), "{small}");
    assert!(refused("tokenizer.json", "{").contains("tokenizer.json"));
    let Family::Cross(cross) = Contract::load(&exported).unwrap().family else { panic!("a cross-encoder") };
    assert!(refused(&cross.graph, "cut").contains(&cross.graph));
}

#[test]
fn a_model_judges_what_is_no_copy() {
    let folder = TempDir::new().unwrap();
    let dir = exported("cross-roberta", None, folder.path());
    let request = AttributeRequest::new(
        "The harbour bridge opened in 1931. Green is the colour of that bridge.",
        vec![
            Chunk::new("a", "The harbour bridge opened in 1931."),
            Chunk::new("b", "Paint protects the bridge; its colour is green."),
        ],
    );
    let attributed = |dir: Option<&Path>| {
        let builder = Engine::builder(model_dir(), runtime_lib()).workers(1);
        let builder = match dir {
            Some(dir) => builder.verdict_model_dir(dir),
            None => builder,
        };
        builder.build().unwrap().into_pipeline()
    };
    let (without, with) = (attributed(None), attributed(Some(&dir)));
    let plain = without.attribute(&request, &Cancel::default()).unwrap();
    let judged = with.attribute(&request, &Cancel::default()).unwrap();
    let methods = |parts: &[PartOutcome]| parts.iter().map(|part| part.method).collect::<Vec<_>>();
    assert_eq!(methods(&plain.parts), [Some(Method::Copied), None]);
    assert_eq!(methods(&judged.parts), [Some(Method::Copied), Some(Method::Model)]);
    assert_eq!(plain.parts[1].verdict, Verdict::Unjudged);
    let opinion = judged.parts[1].evidence.unwrap().second_opinion.expect("it has read the part");
    let expect = 1.0 / (1.0 + (-opinion.support).exp());
    assert!((judged.parts[1].support.unwrap() - expect).abs() < 1e-5, "{judged:?}");

    // The contract can weigh the model otherwise.
    let mut contract = Contract::load(&dir).unwrap();
    let Family::Cross(cross) = &mut contract.family else { panic!("a cross-encoder") };
    cross.verdicts = Some(VerdictWeights { bias: 0.25, own: 0.0, model: 0.5 });
    contract.save(&dir).unwrap();
    let judged = attributed(Some(&dir)).attribute(&request, &Cancel::default()).unwrap();
    let expect = 1.0 / (1.0 + (-(opinion.support / 2.0 + 0.25)).exp());
    assert!((judged.parts[1].support.unwrap() - expect).abs() < 1e-5);

    let cancel = Cancel::default();
    cancel.cancel();
    assert!(matches!(with.attribute(&request, &cancel), Err(PipelineError::Cancelled)));
}
