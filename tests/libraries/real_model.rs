//! Properties of the real model that the scripted model cannot show: the keys of a window depend on its own
//! tokens alone, to the last bit, whatever other windows are in the batch and however many workers read.

use std::sync::{Arc, OnceLock};

use ndarray::{Array3, ArrayView3};
use ndarray::{Axis, concatenate};
use thresher_core::domain::{Budget, Chunk, CompressRequest, Granularity, Order, TokenizerName};
use thresher_core::kv::codec::Codec;
use thresher_core::kv::store::KvStore;
use thresher_core::model::ModelRuntime;
use thresher_core::model::ort::LateRuntime;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::{Clock, Timings};
use thresher_core::pipeline::{Compressed, Pipeline, Settings};

fn runtime(workers: usize) -> LateRuntime {
    LateRuntime::load(&crate::support::ort_settings(&crate::support::model_dir(), workers))
        .expect("the default model loads")
}

fn tokenizer() -> ModelTokenizer {
    ModelTokenizer::from_file(&crate::support::model_dir().join("tokenizer.json"))
        .expect("the tokenizer of the default model loads")
}

/// Texts from one token upwards.
const TEXTS: [&str; 5] = [
    "Tide.",
    "The tide rises twice a day on most coasts. The moon pulls the water.",
    "潮は一日に二回満ちる。 👩‍👩‍👧‍👦 e\u{301}",
    "Rain fell on the hills all week, and nobody went out. Then the sun came back.",
    "A table: | a | b |\n|---|---|\n| 1 | 2 |\n",
];

fn pipeline(workers: usize, settings: Settings) -> Pipeline {
    let store = Arc::new(KvStore::without_tiers());
    Pipeline::new(Arc::new(runtime(workers)), Arc::new(tokenizer()), store, settings)
}

/// The keys of windows, in the order of the windows.
fn keys(runtime: &LateRuntime, windows: &[&[u32]]) -> Vec<Array3<f32>> {
    let found: Vec<OnceLock<Array3<f32>>> = windows.iter().map(|_| OnceLock::new()).collect();
    let done = |i: usize, keys: ArrayView3<f32>| found[i].set(keys.to_owned()).expect("each window once");
    runtime.read(windows, &|_| true, &done).expect("keys");
    found.into_iter().map(|keys| keys.into_inner().expect("all windows")).collect()
}

#[test]
fn keys_are_the_same_alone_in_a_batch_and_with_any_number_of_workers() {
    let tokenizer = tokenizer();
    let ids = |text: &str| tokenizer.encode(text).expect("it tokenizes").ids;
    let long = ids(&TEXTS[1].repeat(40));
    let mut windows: Vec<Vec<u32>> = TEXTS.iter().map(|text| ids(text)).collect();
    let (one, four) = (runtime(1), runtime(4));
    windows.extend(long.chunks(one.info().window_tokens_max).map(<[u32]>::to_vec));
    assert!(windows.len() > TEXTS.len() + 1, "the long text has several windows");
    let windows: Vec<&[u32]> = windows.iter().map(|ids| &**ids).collect();
    let beside = keys(&one, &windows);
    assert_eq!(keys(&four, &windows), beside, "workers");
    for (window, beside) in windows.iter().zip(&beside) {
        assert_eq!(&keys(&four, &[window])[0], beside, "alone: {} tokens", window.len());
        let keys = beside;
        assert_eq!(keys.dim(), (one.info().planes, window.len(), one.info().head_dim));
    }
}

#[test]
fn a_response_is_the_same_with_any_number_of_workers_and_threads() {
    let chunk = |(i, text): (usize, &&str)| Chunk {
        title: Some("Notes".to_owned()),
        ..Chunk::new(i.to_string(), text.repeat(8))
    };
    let request = |granularity, budget| CompressRequest {
        chunks: TEXTS.iter().enumerate().map(chunk).map(Arc::new).collect(),
        budget,
        granularity,
        order: Order::Relevance,
        tokenizer: TokenizerName::O200kBase,
        explain: true,
        ..CompressRequest::new("How often does the tide rise?", Vec::new())
    };
    let answers = |workers: usize| -> Vec<Compressed> {
        let pipeline = pipeline(workers, Settings::default());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(workers).build().expect("a pool");
        let ask = |granularity, budget| {
            let answer = pipeline.compress(&request(granularity, budget), &Cancel::default());
            Compressed { timings: Timings::default(), ..answer.expect("an answer") }
        };
        let granularities = [Granularity::Chunk, Granularity::Sentence, Granularity::Word];
        let all = || granularities.map(|g| [ask(g, Budget::default()), ask(g, Budget::ratio(0.3))]).concat();
        pool.install(all)
    };
    let one = answers(1);
    assert_eq!(answers(1), one, "the same request twice");
    assert_eq!(answers(4), one, "one worker and four");
    assert!(
        one.iter().all(|answer| answer.context.contains("tide")),
        "a response keeps the text about the question"
    );
}

/// The fused scan over blocks against the query graph over the same blocks, decoded. They may differ by the
/// rounding of the question to eight bits; with exact blocks, only by the order in which products are summed.
#[test]
fn the_fused_scan_equals_the_query_graph_up_to_the_rounding_of_the_question() {
    let chunks = TEXTS.iter().enumerate().map(|(i, text)| Chunk {
        title: Some("Notes".to_owned()),
        ..Chunk::new(i.to_string(), text.repeat(12))
    });
    let request = CompressRequest::new("How often does the tide rise?", chunks.collect());
    for (codec, bound) in [(Codec::F32, 2e-6), (Codec::F16, 2e-6), (Codec::Int8, 0.01)] {
        let pipeline = pipeline(2, Settings { codec, ..Settings::default() });
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start()).expect("a reading");
        let keys: Vec<_> = reading.blocks.blocks.iter().map(|block| block.keys()).collect();
        let keys: Vec<_> = keys.iter().map(|keys| keys.view()).collect();
        let keys = concatenate(Axis(1), &keys).expect("blocks of one model");
        let by_graph = pipeline.runtime().logits(&reading.tokens.ids, keys.view()).expect("a graph").cross;
        let scanned = reading.logits(0..1).cross;
        let worst = (&by_graph - &scanned).iter().fold(0.0_f32, |worst, error| worst.max(error.abs()));
        assert!(worst <= bound, "{codec}: off by {worst}");
    }
}

/// The model does not know the misspelt word, and a question without it would be related to nothing.
#[test]
fn a_misspelt_question_finds_what_the_text_spells_right() {
    let pipeline = pipeline(1, Settings::default());
    let text = "The pump has a warranty of two years. Seals are excluded. The pump weighs 14 kg.";
    let ask = |query: &str| {
        let request = CompressRequest::new(query, vec![Chunk::new("pump", text)]);
        pipeline.compress(&request, &Cancel::default()).expect("a context").context
    };
    assert!(ask("how long is the warrenty?").contains("two years"));
    assert_eq!(ask("how long is the warrenty?"), ask("how long is the warranty?"));
}
