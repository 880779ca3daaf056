//! What the scripted model cannot show of the real one: a window's keys depend on its own tokens alone, whatever is read
//! beside it and by however many workers, to the last bit.

mod support;

use std::sync::{Arc, OnceLock};

use ndarray::{Array3, ArrayView3};
use thresher_core::domain::{Budget, Chunk, CompressRequest, Format, Granularity, Order, TokenizerName};
use thresher_core::kv::codec::Codec;
use thresher_core::kv::store::KvStore;
use thresher_core::model::ModelRuntime;
use thresher_core::model::ort::LateRuntime;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::{Clock, Timings};
use thresher_core::pipeline::scan::ScanBy;
use thresher_core::pipeline::{Compressed, Pipeline, Reading, Settings};

fn runtime(workers: usize) -> LateRuntime {
    LateRuntime::load(&support::ort_settings(&support::model_dir(), workers))
        .expect("the default model loads")
}

fn tokenizer() -> ModelTokenizer {
    ModelTokenizer::from_file(&support::model_dir().join("tokenizer.json")).expect("its tokenizer loads")
}

/// From one token to more than a window.
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

/// Keys of windows, in their order.
fn keys(runtime: &LateRuntime, windows: &[&[u32]]) -> Vec<Array3<f32>> {
    let found: Vec<OnceLock<Array3<f32>>> = windows.iter().map(|_| OnceLock::new()).collect();
    let done = |i: usize, keys: ArrayView3<f32>| found[i].set(keys.to_owned()).expect("each window once");
    runtime.read(windows, &|_| true, &done).expect("keys");
    found.into_iter().map(|keys| keys.into_inner().expect("all windows")).collect()
}

#[test]
fn keys_are_the_same_alone_beside_others_and_on_any_number_of_workers() {
    let tokenizer = tokenizer();
    let ids = |text: &str| tokenizer.encode(text).expect("it tokenizes").ids;
    let long = ids(&TEXTS[1].repeat(40));
    let mut windows: Vec<Vec<u32>> = TEXTS.iter().map(|text| ids(text)).collect();
    let (one, four) = (runtime(1), runtime(4));
    windows.extend(long.chunks(one.info().window_tokens_max).map(<[u32]>::to_vec));
    assert!(windows.len() > TEXTS.len() + 1, "a long text has several windows");
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
fn an_answer_is_the_same_on_any_number_of_workers_and_threads() {
    let chunk = |(i, text): (usize, &&str)| Chunk {
        id: i.to_string(),
        title: Some("Notes".to_owned()),
        text: text.repeat(8),
        metadata: None,
    };
    let request = |granularity, budget| CompressRequest {
        query: "How often does the tide rise?".to_owned(),
        chunks: TEXTS.iter().enumerate().map(chunk).map(Arc::new).collect(),
        budget,
        granularity,
        keep: Vec::new(),
        order: Order::Relevance,
        format: Format::Numbered,
        tokenizer: TokenizerName::O200kBase,
        explain: true,
        registered: false,
    };
    let answers = |workers: usize| -> Vec<Compressed> {
        let pipeline = pipeline(workers, Settings::default());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(workers).build().expect("a pool");
        let ask = |granularity, budget| {
            let answer = pipeline.compress(&request(granularity, budget), &Cancel::default());
            Compressed { timings: Timings::default(), ..answer.expect("an answer") }
        };
        let granularities = [Granularity::Chunk, Granularity::Sentence, Granularity::Token];
        let all = || granularities.map(|g| [ask(g, Budget::Auto), ask(g, Budget::Ratio(0.3))]).concat();
        pool.install(all)
    };
    let one = answers(1);
    assert_eq!(answers(1), one, "the same request twice");
    assert_eq!(answers(4), one, "one worker and four");
    assert!(one.iter().all(|answer| answer.context.contains("tide")), "and it is about the question");
}

/// The scan over blocks against the query graph itself, over the same blocks decoded: the question's rounding to eight bits
/// is all that may lie between them; exact blocks leave nothing but the order of sums.
#[test]
fn the_scan_is_the_query_graph_within_the_questions_rounding() {
    let chunks = TEXTS.iter().enumerate().map(|(i, text)| Chunk {
        id: i.to_string(),
        title: Some("Notes".to_owned()),
        text: text.repeat(12),
        metadata: None,
    });
    let request = CompressRequest::new("How often does the tide rise?", chunks.collect());
    for (codec, bound) in [(Codec::F32, 2e-6), (Codec::F16, 2e-6), (Codec::Int8, 0.01), (Codec::Int4, 0.01)] {
        let by_graph = pipeline(2, Settings { codec, scan: ScanBy::Onnx, ..Settings::default() });
        let reading = by_graph.read(&request, &Cancel::default(), &mut Clock::start()).expect("a reading");
        let by_graph = reading.graph_logits.clone().expect("it was asked for");
        let scanned = Reading { graph_logits: None, ..reading }.logits(0..1).cross;
        let worst = (&by_graph - &scanned).iter().fold(0.0_f32, |worst, error| worst.max(error.abs()));
        assert!(worst <= bound, "{codec}: off by {worst}");
    }
}
