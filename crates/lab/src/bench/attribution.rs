//! What attributing an answer to chunks that have been read before costs, over HTTP, beside the model's bare graph over the answer
//! alone. The two take turns, each answer is another; a ratio is taken within a turn.

mod arriving;

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::ensure;
use serde_json::{Value, json};
use thresher_core::domain::CompressRequest;
use thresher_core::model::ort::BatchedGraph;

use super::client::Client;
use super::json::{machine, model, round_to, spread_json};
use super::statistics::{quantile, sorted, spread};
use super::targets::{Bound, Target};
use super::workload::{self, Workload};
use super::{Progress, Subject};

/// Where the answers begin: no chunk is one of them.
const ANSWERS: u64 = 1 << 34;

/// What was measured.
pub struct Report {
    json: Value,
    table: String,
}

impl Report {
    /// For programs.
    pub fn json(&self) -> &Value {
        &self.json
    }
}

/// For people.
pub fn table(report: &Report) -> &str {
    &report.table
}

/// Milliseconds of one turn.
struct Turn {
    attribute_ms: f64,
    encode_ms: f64,
    stages: Value,
    /// One per moment in which a sentence became sure.
    sentences_ms: Vec<f64>,
}

/// `answers` answers of `answer_tokens` tokens each, to the chunks of one request.
///
/// # Errors
/// A failure of the model or the daemon; chunks that had to be read again.
pub fn run(
    subject: &Subject,
    mut batched: BatchedGraph,
    workload: &Workload,
    (answers, answer_tokens): (usize, usize),
    progress: Progress,
) -> anyhow::Result<Report> {
    let client = Client::new(subject.daemon.address())?;
    let set = workload.request(0, &subject.tokenizer)?;
    let of_answers = Workload { chunks: 1, tokens: answer_tokens, ..*workload };
    let mut turns = Vec::with_capacity(answers);
    // The first two read the chunks, and warm up.
    for n in 0..answers + 2 {
        progress("answers beside the bare graph", n, answers + 2);
        let answer = of_answers.request(ANSWERS + n as u64, &subject.tokenizer)?;
        let (mut attribute_ms, mut encode_ms, mut stages) = (0.0, 0.0, Value::Null);
        for step in 0..2 {
            if (n + step) % 2 == 0 {
                encode_ms = encode(subject, &mut batched, &answer)?;
            } else {
                (attribute_ms, stages) = attribute(&client, &set, &answer, n == 0)?;
            }
        }
        if n >= 2 {
            let sentences_ms =
                arriving::sentences_ms(subject.daemon.address(), &chunks(&set), &answer.chunks[0].text)?;
            turns.push(Turn { attribute_ms, encode_ms, stages, sentences_ms });
        }
    }
    Ok(report(subject, workload, answer_tokens, &turns))
}

/// The bare graph over the windows of an answer: by all threads at once, or side by side, whichever is faster.
fn encode(subject: &Subject, batched: &mut BatchedGraph, answer: &CompressRequest) -> anyhow::Result<f64> {
    let ids = workload::ids(answer, &subject.tokenizer)?;
    let window = subject.daemon.pipeline().model().window_tokens_max;
    let windows: Vec<&[u32]> = ids.iter().flat_map(|ids| ids.chunks(window)).collect();
    let started = Instant::now();
    batched.run(&windows, 1)?;
    let together = started.elapsed();
    let started = Instant::now();
    subject.runtime.run_passage_graph(&windows)?;
    Ok(together.min(started.elapsed()).as_secs_f64() * 1e3)
}

fn attribute(
    client: &Client,
    set: &CompressRequest,
    answer: &CompressRequest,
    is_cold: bool,
) -> anyhow::Result<(f64, Value)> {
    let body = json!({"answer": answer.chunks[0].text, "chunks": chunks(set)});
    let answer = client.attribute(body.to_string().into())?;
    let mut told: Value = serde_json::from_slice(&answer.body)?;
    let read = told["blocks"]["read"].as_u64();
    ensure!(is_cold || read == Some(0), "{read:?} chunks had to be read again");
    Ok((answer.ms(), told["timing_ms"].take()))
}

fn chunks(set: &CompressRequest) -> Vec<Value> {
    set.chunks.iter().map(|chunk| json!({"id": chunk.id, "text": chunk.text})).collect()
}

fn report(subject: &Subject, workload: &Workload, answer_tokens: usize, turns: &[Turn]) -> Report {
    let attribute = sorted(turns.iter().map(|turn| turn.attribute_ms));
    let encode = sorted(turns.iter().map(|turn| turn.encode_ms));
    let ratio = spread(turns.iter().map(|turn| turn.attribute_ms / turn.encode_ms));
    let target = Target {
        name: "attribution over encoding the answer",
        reached: ratio.median,
        bound: Bound::attribution_over_answer(workload, answer_tokens),
    };
    let stage =
        |name: &str| quantile(&sorted(turns.iter().filter_map(|turn| turn.stages[name].as_f64())), 0.5);
    let stages: Vec<(&str, f64)> = ["blocks", "terms", "answer"].map(|name| (name, stage(name))).to_vec();
    let (p50, p99) = (quantile(&attribute, 0.5), quantile(&attribute, 0.99));
    let sentences = sorted(turns.iter().flat_map(|turn| turn.sentences_ms.iter().copied()));
    let [sentence_p50, sentence_p99] = [0.5, 0.99].map(|at| quantile(&sentences, at));
    let encode = quantile(&encode, 0.5);
    let json = json!({
        "model": model(subject),
        "machine": machine(subject),
        "chunks": workload.chunks, "tokens": workload.tokens, "answer_tokens": answer_tokens, "answers": turns.len(),
        "attribute_ms": {"p50": round_to(p50, 3), "p99": round_to(p99, 3)},
        "answer_encode_ms": round_to(encode, 3),
        "arriving_sentence_ms": {"p50": round_to(sentence_p50, 3), "p99": round_to(sentence_p99, 3)},
        "stages_ms": stages.iter().map(|(name, ms)| ((*name).to_owned(), round_to(*ms, 3))).collect::<serde_json::Map<_, _>>(),
        "ratios": {"attribution_over_answer": spread_json(ratio)},
        "targets": [target.json()],
    });
    let mut table = format!(
        "an answer of {answer_tokens} tokens to {} chunks of {} tokens that have been read, {} times\n",
        workload.chunks,
        workload.tokens,
        turns.len()
    );
    let _ = writeln!(table, "  encoding the answer alone     {encode:>9.2} ms");
    let _ = writeln!(table, "  attribution over HTTP         {p50:>9.2} ms   p99 {p99:.2}");
    let of_stages: Vec<String> = stages.iter().map(|(name, ms)| format!("{name} {ms:.2}")).collect();
    let _ = writeln!(table, "  of that, ms: {}", of_stages.join(", "));
    let _ = writeln!(table, "  a sentence as it arrives      {sentence_p50:>9.2} ms   p99 {sentence_p99:.2}");
    let _ = write!(table, "  {target}");
    Report { json, table }
}
