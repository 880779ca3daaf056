//! Verdicts on short claims without a model that reads them, row by row (`tests/fixtures/verdicts.jsonl`). A row with `today` is
//! one that only a model can judge, or that is judged wrong: `docs/verdicts.md` names these limits, and a change that mends one has to take the
//! mark away.

use std::fs;
use std::sync::Arc;

use serde::Deserialize;
use thresher_core::domain::{AttributeRequest, Chunk};
use thresher_core::kv::store::KvStore;
use thresher_core::model::ort::LateRuntime;
use thresher_core::model::tokenizer::ModelTokenizer;
use thresher_core::pipeline::attribute::{QuoteVerdict, Verdict};
use thresher_core::pipeline::calibration::Calibration;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, Settings};

use crate::support::{in_checkout, model_dir, ort_settings};

#[derive(Deserialize)]
struct Row {
    name: String,
    chunks: Vec<String>,
    claim: String,
    verdict: Verdict,
    today: Option<Verdict>,
}

fn pipeline() -> Pipeline {
    let runtime = LateRuntime::load(&ort_settings(&model_dir(), 2)).expect("the default model loads");
    let tokenizer = ModelTokenizer::from_file(&model_dir().join("tokenizer.json")).expect("it loads");
    Pipeline::new(
        Arc::new(runtime),
        Arc::new(tokenizer),
        Arc::new(KvStore::without_tiers()),
        Settings { calibration: Calibration::shipped("minilm-l6"), ..Settings::default() },
    )
}

fn request(answer: &str, chunks: &[String]) -> AttributeRequest {
    let chunk = |(i, text): (usize, &String)| Chunk::new(i.to_string(), text.clone());
    AttributeRequest::new(answer, chunks.iter().enumerate().map(chunk).collect())
}

#[test]
fn verdicts_of_short_claims() {
    let pipeline = pipeline();
    let rows = fs::read_to_string(in_checkout("tests/fixtures/verdicts.jsonl")).unwrap();
    let mut wrong = Vec::new();
    for line in rows.lines() {
        let row: Row = serde_json::from_str(line).unwrap();
        let attributed = pipeline.attribute(&request(&row.claim, &row.chunks), &Cancel::default()).unwrap();
        let [part] = &*attributed.parts else { panic!("{}: one part", row.name) };
        let expect = row.today.unwrap_or(row.verdict);
        if part.verdict != expect {
            wrong.push(format!("{}: {:?} {:?}, expected {expect:?}", row.name, part.verdict, part.support));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What a quotation came from: the verdict, the passages and the words that were altered.
type Found<'a> = (QuoteVerdict, Vec<&'a str>, Vec<&'a str>);

#[test]
fn quotations_are_checked_word_by_word() {
    let pipeline = pipeline();
    let chunks = [
        "The committee found that the dam was built on weak ground. It said that nobody had tested the ground \
         before the work began. The engineers disagreed.",
        "Residents were told to leave their homes at once. The river rose by two metres in a night.",
    ]
    .map(str::to_owned);
    let check = |answer: &str, expect: Found| {
        let attributed = pipeline.attribute(&request(answer, &chunks), &Cancel::default()).unwrap();
        let [quote] = &*attributed.quotes else { panic!("{answer}: {:?}", attributed.quotes) };
        let passages =
            quote.passages.iter().map(|passage| passage.bytes.slice(&chunks[passage.chunk])).collect();
        let altered = quote.altered.iter().map(|bytes| bytes.slice(answer)).collect();
        assert_eq!((quote.verdict, passages, altered), expect, "{answer}");
    };
    let whole = "the dam was built on weak ground";
    check("It says \"the dam was built on weak ground\".", (QuoteVerdict::Exact, vec![whole], vec![]));
    check("It says “The dam was built on weak ground.”", (QuoteVerdict::Exact, vec![whole], vec![]));
    check("Es heißt „the dam was built on weak ground“.", (QuoteVerdict::Exact, vec![whole], vec![]));
    check("It says \"the dam was built on weak ground\" [1].", (QuoteVerdict::Exact, vec![whole], vec![]));
    check(
        "It says \"the dam was built on weak ground\" [2].",
        (QuoteVerdict::Misattributed, vec![whole], vec![]),
    );
    for several in ["[2, 1]", "[2][1]", "[2], [1]"] {
        let answer = format!("It says \"the dam was built on weak ground\" {several}.");
        check(&answer, (QuoteVerdict::Exact, vec![whole], vec![]));
    }
    check(
        "It says \"the dam was built on solid ground\".",
        (QuoteVerdict::Altered, vec!["the dam was built on", "ground"], vec!["solid"]),
    );
    check(
        "It says \"nobody had inspected the ground before the work began\".",
        (QuoteVerdict::Altered, vec!["nobody had", "the ground before the work began"], vec!["inspected"]),
    );
    check(
        "It says \"the dam was built on weak ground … nobody had tested the ground\".",
        (QuoteVerdict::Stitched, vec![whole, "nobody had tested the ground"], vec![]),
    );
    check("It says \"the mayor will resign on Friday\".", (QuoteVerdict::Fabricated, vec![], vec![]));
}

#[test]
fn names_in_quotation_marks_are_no_quotations() {
    let chunks = ["The film was a success.".to_owned()];
    let answer = "The film \"Blue Hour\" was a success.";
    let attributed = pipeline().attribute(&request(answer, &chunks), &Cancel::default()).unwrap();
    assert_eq!(attributed.quotes, []);
}

#[test]
fn a_marker_belongs_to_the_quotation_before_it() {
    let chunks = ["The sky is blue today.", "The grass is very green."].map(str::to_owned);
    let answer = "He said \"the sky is blue today\" and also \"the grass is very green\" [2].";
    let attributed = pipeline().attribute(&request(answer, &chunks), &Cancel::default()).unwrap();
    let verdicts: Vec<QuoteVerdict> = attributed.quotes.iter().map(|quote| quote.verdict).collect();
    assert_eq!(verdicts, [QuoteVerdict::Exact, QuoteVerdict::Exact]);
}
