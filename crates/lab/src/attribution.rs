//! Bench of attribution (`thresher-lab attribution`): the time to attribute an answer to cached chunks over HTTP,
//! compared with the model graph alone over the answer.
//!
//! The two alternate in order from round to round, each round has another answer, and each ratio is taken
//! within a round.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::ensure;
use serde_json::{Value, json};
use thresher_core::domain::CompressRequest;

use crate::Progress;
use crate::client::Client;
use crate::model_graph::{BatchedGraph, run_passage_graph};
use crate::report::{headline, machine, model, quantile, round_to, sorted, spread, spread_json};
use crate::subject::Subject;
use crate::targets::{Bound, Target};
use crate::workload::{self, Workload};

/// Number of the first answer's workload round. Chunks use other rounds, so no chunk has the text of an
/// answer.
const ANSWER_ROUND_FIRST: u64 = 1 << 34;

pub struct Report {
    json: Value,
    table: String,
}

impl Report {
    pub fn json(&self) -> &Value {
        &self.json
    }
}

pub fn table(report: &Report) -> &str {
    &report.table
}

/// Times of one round, in milliseconds.
struct Round {
    attribute_ms: f64,
    encode_ms: f64,
    stages: Value,
}

#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub answers: usize,
    pub answer_tokens: usize,
}

/// Attributes answers to the chunks of one request.
///
/// # Errors
/// Fails if the model or the daemon fails, or if the daemon has to read a cached chunk again.
pub fn run(
    subject: &Subject,
    mut batched: BatchedGraph,
    workload: &Workload,
    Effort { answers, answer_tokens }: Effort,
    progress: Progress,
) -> anyhow::Result<Report> {
    let client = Client::new(subject.address)?;
    let set = workload.request(0, &subject.tokenizer)?;
    let answer_workload = Workload { chunks: 1, tokens: answer_tokens, ..*workload };
    let mut rounds = Vec::with_capacity(answers);
    // The first two rounds fill the cache and warm up; they are not measured.
    for n in 0..answers + 2 {
        progress("attribution and the model graph alone", n, answers + 2);
        let answer = answer_workload.request(ANSWER_ROUND_FIRST + n as u64, &subject.tokenizer)?;
        let (mut attribute_ms, mut encode_ms, mut stages) = (0.0, 0.0, Value::Null);
        for step in 0..2 {
            if (n + step) % 2 == 0 {
                encode_ms = encode(subject, &mut batched, &answer)?;
            } else {
                (attribute_ms, stages) = attribute(&client, &set, &answer, n == 0)?;
            }
        }
        if n >= 2 {
            rounds.push(Round { attribute_ms, encode_ms, stages });
        }
    }
    Ok(report(subject, workload, answer_tokens, &rounds))
}

/// Runs the model graph alone over the windows of an answer, once with all threads in one run and once with
/// one window per worker, and returns the shorter time in milliseconds.
fn encode(subject: &Subject, batched: &mut BatchedGraph, answer: &CompressRequest) -> anyhow::Result<f64> {
    let ids = workload::ids(answer, &subject.tokenizer)?;
    let window = subject.pipeline.model().window_tokens_max;
    let windows: Vec<&[u32]> = ids.iter().flat_map(|ids| ids.chunks(window)).collect();
    let started = Instant::now();
    batched.run(&windows, 1)?;
    let multi_threaded = started.elapsed();
    let started = Instant::now();
    run_passage_graph(&subject.runtime, &windows)?;
    Ok(multi_threaded.min(started.elapsed()).as_secs_f64() * 1e3)
}

fn attribute(
    client: &Client,
    set: &CompressRequest,
    answer: &CompressRequest,
    is_cold: bool,
) -> anyhow::Result<(f64, Value)> {
    let body = json!({"answer": answer.chunks[0].text, "chunks": chunks(set)});
    let response = client.attribute(body.to_string().into())?;
    let mut attribution: Value = serde_json::from_slice(&response.body)?;
    let read = attribution["blocks"]["read"].as_u64();
    ensure!(
        is_cold || read == Some(0),
        "the daemon read {} cached chunks again: raise memory_bytes_max or blocks.disk_bytes_max",
        read.map_or("an unknown number of".to_owned(), |read| read.to_string())
    );
    Ok((response.ms(), attribution["timing_ms"].take()))
}

fn chunks(set: &CompressRequest) -> Vec<Value> {
    set.chunks.iter().map(|chunk| json!({"id": chunk.id, "text": chunk.text})).collect()
}

fn report(subject: &Subject, workload: &Workload, answer_tokens: usize, rounds: &[Round]) -> Report {
    let attribute = sorted(rounds.iter().map(|round| round.attribute_ms));
    let encode = sorted(rounds.iter().map(|round| round.encode_ms));
    let ratio = spread(rounds.iter().map(|round| round.attribute_ms / round.encode_ms));
    let target = Target {
        name: "attribution / answer encoding",
        reached: ratio.median,
        bound: Bound::attribution_over_answer(workload, answer_tokens),
    };
    let stage =
        |name: &str| quantile(&sorted(rounds.iter().filter_map(|round| round.stages[name].as_f64())), 0.5);
    let stages: Vec<(&str, f64)> = ["blocks", "terms", "answer"].map(|name| (name, stage(name))).to_vec();
    let (p50, p99) = (quantile(&attribute, 0.5), quantile(&attribute, 0.99));
    let encode = quantile(&encode, 0.5);
    let json = json!({
        "model": model(subject),
        "machine": machine(subject),
        "chunks": workload.chunks, "tokens": workload.tokens, "answer_tokens": answer_tokens, "answers": rounds.len(),
        "attribute_ms": {"p50": round_to(p50, 3), "p99": round_to(p99, 3)},
        "answer_encode_ms": round_to(encode, 3),
        "stages_ms": stages.iter().map(|(name, ms)| ((*name).to_owned(), round_to(*ms, 3))).collect::<serde_json::Map<_, _>>(),
        "ratios": {"attribution_over_answer": spread_json(ratio)},
        "targets": [target.json()],
    });
    let mut table = headline(&json);
    let _ = writeln!(
        table,
        "attribution of an answer of {answer_tokens} tokens to {} cached chunks of {} tokens, {} rounds",
        workload.chunks,
        workload.tokens,
        rounds.len()
    );
    let _ = writeln!(table, "  encoding the answer alone     {encode:>9.2} ms");
    let _ = writeln!(table, "  attribution over HTTP         {p50:>9.2} ms   p99 {p99:.2}");
    let stage_texts: Vec<String> = stages.iter().map(|(name, ms)| format!("{name} {ms:.2}")).collect();
    let _ = writeln!(table, "  stages, ms: {}", stage_texts.join(", "));
    let _ = write!(table, "  {target}");
    Report { json, table }
}
