//! Encoders of every family but BERT, exported, in the real ONNX Runtime, against `transformers`: tiny random
//! models. The reference results are committed beside the script that made them,
//! `models/tiny/make_encoder_goldens.py`.

use std::sync::Mutex;

use crate::support::{distance_max, in_checkout, keys, logits, masked_keys, ort_settings, session};
use serde::Deserialize;
use tempfile::TempDir;
use thresher_core::model::contract::{Contract, Family, QuestionPadding, Weights};
use thresher_core::model::ort::LateRuntime;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::model::{ModelRuntime, NoPast};
use thresher_export::{ExportOptions, Prefixes, export};

/// The largest allowed difference of a component of a unit vector.
const TOLERANCE: f64 = 1e-5;

/// The reference results of one model.
#[derive(Deserialize)]
struct Golden {
    dim: usize,
    passages: Vec<Case>,
    questions: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    /// The token ids, with special tokens, prefix and padding.
    ids: Vec<i64>,
    /// The unit vectors of all tokens, a flattened `[token, dim]`.
    vectors: Vec<f64>,
}

struct Exported {
    out: TempDir,
    contract: Contract,
    golden: Golden,
}

/// The fixtures with the number of tokens of their windows.
const FIXTURES: [(&str, usize); 10] = [
    ("xlm-roberta", 128),
    ("roberta", 97),
    ("distilbert", 48),
    ("mpnet", 200),
    ("modernbert", 260),
    ("modernbert-biases", 64),
    ("nomic-bert", 60),
    ("nomic-bert-transformers", 60),
    ("colbert", 40),
    ("colbert-pylate", 60),
];

fn exported(name: &str) -> Exported {
    exported_as(name, Weights::F32, Prefixes::default())
}

fn exported_as(name: &str, weights: Weights, prefixes: Prefixes) -> Exported {
    let (source, out) = (in_checkout("models/tiny").join(name), TempDir::new().unwrap());
    let options = ExportOptions { weights, name: name.into(), prefixes, ..ExportOptions::default() };
    let contract = export(&source, out.path(), &options, &|_, _| {}).unwrap();
    assert_eq!(Contract::load(out.path()).unwrap(), contract, "{name}");
    let golden = serde_json::from_slice(&std::fs::read(source.join("golden.json")).unwrap()).unwrap();
    Exported { out, contract, golden }
}

impl Exported {
    /// The vectors of the tokens of a text, without those before and after it.
    fn of_text<'a>(&self, case: &'a Case, before: usize, tokens: usize) -> &'a [f64] {
        &case.vectors[before * self.golden.dim..][..tokens * self.golden.dim]
    }
}

/// `[dim, dim]`: the keys whose logits are the components of a question's vectors.
fn unit_keys(dim: usize) -> Vec<f32> {
    (0..dim * dim).map(|i| if i / dim == i % dim { 1.0 } else { 0.0 }).collect()
}

#[test]
fn graphs_agree_with_transformers() {
    for (name, tokens_max) in FIXTURES {
        let Exported { out, contract, golden } = exported(name);
        let Family::Late(late) = &contract.family else { panic!("{name} is an encoder") };
        assert_eq!((late.head_dim, contract.window.tokens_max), (golden.dim, tokens_max), "{name}");
        let [mut passage, mut query] =
            ["passage.onnx", "query.onnx"].map(|file| session(&out.path().join(file), 1));
        let mut largest = [0.0_f64; 2];
        for case in &golden.passages {
            let found = keys(&mut passage, std::slice::from_ref(&case.ids));
            largest[0] = largest[0].max(distance_max(&found, &case.vectors));
        }
        for case in &golden.questions {
            let (vectors, _) = logits(&mut query, &case.ids, &unit_keys(golden.dim), golden.dim);
            largest[1] = largest[1].max(distance_max(&vectors, &case.vectors));
        }
        println!("{name}: passages {:.1e}, questions {:.1e}", largest[0], largest[1]);
        assert!(largest.iter().all(|largest| *largest < TOLERANCE), "{name}: differs by {largest:?}");
    }
}

/// The runtime adds what the contract puts around texts: special tokens, markers, prefixes and padding.
#[test]
fn the_runtime_reads_texts_as_transformers_does() {
    for (name, _) in FIXTURES {
        let exported = exported(name);
        let Exported { out, contract, golden } = &exported;
        let runtime = LateRuntime::load(&ort_settings(out.path(), 1)).unwrap();
        let tokenizer = ModelTokenizer::from_file(&out.path().join("tokenizer.json")).unwrap();
        for case in &golden.passages {
            let ids = tokenizer.encode(&case.text).unwrap().ids;
            let found = Mutex::new(Vec::new());
            let keep = |_, keys: ndarray::ArrayView3<f32>| found.lock().unwrap().extend(keys.iter().copied());
            runtime.read(&[&ids], &|_| true, &keep).unwrap();
            let expect = exported.of_text(case, contract.tokenizer.prefix.len(), ids.len());
            let distance = distance_max(&found.into_inner().unwrap(), expect);
            assert!(distance < TOLERANCE, "{name}, passage {:?}: differs by {distance}", case.text);
        }
        let question = contract.tokenizer.question.as_ref();
        let before = question.map_or(&contract.tokenizer.prefix, |question| &question.prefix).len();
        for case in &golden.questions {
            let ids = tokenizer.encode(&case.text).unwrap().ids;
            let found = runtime.encode_question(&ids, &NoPast).unwrap().vectors;
            let expect = exported.of_text(case, before, ids.len());
            let distance = distance_max(found.as_slice().unwrap(), expect);
            assert!(distance < TOLERANCE, "{name}, question {:?}: differs by {distance}", case.text);
        }
    }
}

#[test]
fn masked_padding_does_not_change_the_keys_of_the_text() {
    for name in ["mpnet", "modernbert", "nomic-bert"] {
        let Exported { out, golden, .. } = exported(name);
        let mut passage = session(&out.path().join("passage.onnx"), 1);
        let case = &golden.passages[2];
        let (tokens, padded) = (case.ids.len(), case.ids.len() + 9);
        let (mut ids, mut mask) = (case.ids.clone(), vec![1; tokens]);
        ids.resize(padded, 0);
        mask.resize(padded, 0);
        let found = masked_keys(&mut passage, &[ids], &[mask]);
        assert!(found.iter().all(|value| value.is_finite()), "{name}");
        let distance = distance_max(&found[..tokens * golden.dim], &case.vectors);
        assert!(distance < TOLERANCE, "{name}: differs by {distance}");
    }
}

#[test]
fn int8_weights_stay_close_to_f32() {
    for (name, _) in FIXTURES {
        let Exported { out, golden, .. } = exported_as(name, Weights::Int8, Prefixes::default());
        let mut passage = session(&out.path().join("passage.onnx"), 1);
        for case in &golden.passages {
            let found = keys(&mut passage, std::slice::from_ref(&case.ids));
            let pairs = found.chunks(golden.dim).zip(case.vectors.chunks(golden.dim));
            let least = pairs
                .map(|(a, b)| a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum::<f64>())
                .fold(1.0, f64::min);
            assert!(least > 0.97, "{name}, {:?}: a cosine of {least} to the exact vector", case.text);
        }
    }
}

#[test]
fn f16_weights_stay_close_to_f32() {
    for (name, _) in FIXTURES {
        let Exported { out, contract, golden } = exported_as(name, Weights::F16, Prefixes::default());
        let [mut passage, mut query] =
            ["passage.onnx", "query.onnx"].map(|file| session(&out.path().join(file), 1));
        let mut least = 1.0_f64;
        let mut compare = |found: &[f32], expect: &[f64]| {
            for (found, expect) in found.chunks(golden.dim).zip(expect.chunks(golden.dim)) {
                let dot = |(a, b): (&f32, &f64)| f64::from(*a) * b;
                least = least.min(found.iter().zip(expect).map(dot).sum());
            }
        };
        for case in &golden.passages {
            compare(&keys(&mut passage, std::slice::from_ref(&case.ids)), &case.vectors);
        }
        for case in &golden.questions {
            compare(&logits(&mut query, &case.ids, &unit_keys(golden.dim), golden.dim).0, &case.vectors);
        }
        println!("{name}: the least cosine to the exact vector is 1 - {:.1e}", 1.0 - least);
        assert!(least > 0.9999, "{name}: a cosine of {least} to the exact vector");
        LateRuntime::load(&ort_settings(out.path(), 1)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(contract.weights.dtype, Weights::F16, "{name}");
    }
}

#[test]
fn the_contract_says_what_stands_around_texts() {
    let around =
        |name: &str, prefixes: Prefixes| exported_as(name, Weights::F32, prefixes).contract.tokenizer;
    let text = |text: &str| Some(text.to_owned());

    let of_folder = around("xlm-roberta", Prefixes::default());
    let question = of_folder.question.unwrap();
    assert_eq!((of_folder.prefix_text, question.prefix_text), (text("passage: "), text("query: ")));
    assert_eq!((&of_folder.prefix[..], &question.prefix[..]), (&[0, 9, 59][..], &[0, 8, 59][..]));

    let none = around("xlm-roberta", Prefixes { question: text(""), passage: text("") });
    assert_eq!((none.prefix, none.prefix_text, none.question), (vec![0], None, None));

    let chosen = around("distilbert", Prefixes { question: text("the question, "), passage: None });
    let question = chosen.question.unwrap();
    assert_eq!((chosen.prefix.len(), question.prefix.len()), (1, 4));
    assert_eq!(question.suffix, chosen.suffix);

    // A byte-level tokenizer has another token for a word after a space, so the prefix ends before the space.
    let bytes = around("modernbert", Prefixes { question: text("the question "), passage: None });
    assert_eq!(bytes.question.unwrap().prefix.len(), 3);

    let colbert = around("colbert", Prefixes::default());
    let question = colbert.question.unwrap();
    assert_eq!((&colbert.prefix[..], &question.prefix[..]), (&[4, 2][..], &[4, 1][..]));
    assert_eq!(question.padding, Some(QuestionPadding { token: 6, tokens_min: 24, attended: false }));
    let pylate = around("colbert-pylate", Prefixes::default()).question.unwrap();
    assert_eq!(pylate.padding, Some(QuestionPadding { token: 271, tokens_min: 36, attended: true }));
}

/// Citations are cut from texts by the offsets of tokens.
#[test]
fn offsets_of_a_unigram_tokenizer_are_ranges_of_the_text() {
    let Exported { out, .. } = exported("xlm-roberta");
    let tokenizer = ModelTokenizer::from_file(&out.path().join("tokenizer.json")).unwrap();
    let texts = [
        "the question",
        "  the   question\n",
        "ﬁ Ⅻ ①②",
        "東京 the 東京",
        "e\u{301}a\u{300}",
        "",
        "🚀the",
        "</s> <mask>",
    ];
    for text in texts {
        let tokens = tokenizer.encode(text).unwrap();
        let mut last = 0;
        for range in &tokens.offsets {
            assert!(text.get(range.start..range.end).is_some(), "{text:?}: {range:?}");
            assert!(range.start >= last, "{text:?}: {range:?} starts before {last}");
            last = range.start;
        }
    }
    assert!(!tokenizer.splits_at_blanks(), "a Unigram tokenizer may join blanks to a token");
}
