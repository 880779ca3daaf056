//! Throughput bench (`thresher-lab throughput`): how fast chunks are read for the first time by the model graph
//! alone, by the whole pipeline, over HTTP, and by a peer. The contenders take turns. No two rounds share a
//! chunk, so nothing is cached.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use thresher_core::domain::CompressRequest;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Timings;

use crate::Progress;
use crate::client::{Client, ConcurrentRun};
use crate::flops::Flops;
use crate::model_graph::{BatchedGraph, run_passage_graph};
use crate::peer::Peer;
use crate::report::{self, quantile, round_to, sorted, spread, spread_json};
use crate::subject::Subject;
use crate::workload::{self, Source, Workload};

pub struct Contenders {
    /// The passage graph in padded batches.
    pub batched: BatchedGraph,
    pub flops: Flops,
    /// Other programs that encode the same texts.
    pub peers: Vec<Peer>,
}

#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds of throughput, after one warm-up round.
    pub rounds: usize,
    /// HTTP requests, sent one after another.
    pub requests: usize,
    /// Clients that then send requests concurrently.
    pub clients: usize,
}

/// Runs the bench.
///
/// # Errors
/// Fails if the model, the listener or the peer fails, or if the peer counts other tokens.
pub fn run(
    subject: &Subject,
    mut contenders: Contenders,
    workload: &Workload,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Report> {
    let rounds = measure_rounds(subject, &mut contenders, workload, effort.rounds, progress)?;
    let peers = contenders.peers.into_iter().map(Peer::finish).collect();
    let latency = measure_latency(subject, workload, effort, progress)?;
    Ok(Report::new(subject, workload, effort, rounds, latency, peers))
}

/// Batch sizes of the batched graph.
const BATCHES: [usize; 2] = [8, 16];

/// Number of contenders: the graph, the pipeline, the graph in batches, the peers.
const CONTENDERS: usize = 4;

/// Times of one round. All contenders of a round read the same chunks.
#[derive(Debug, Clone)]
struct Round {
    /// Tokens of the chunks, without special tokens.
    tokens: usize,
    /// Floating-point operations of one pass of the graph over the chunks.
    flops: f64,
    /// Time of the graph alone, on all workers.
    graph: Duration,
    /// Time of the graph alone, in batches of [`BATCHES`].
    batched: [Duration; BATCHES.len()],
    cold: Duration,
    timings: Timings,
    peers: Vec<Duration>,
}

fn measure_rounds(
    subject: &Subject,
    contenders: &mut Contenders,
    workload: &Workload,
    rounds: usize,
    progress: Progress,
) -> anyhow::Result<Vec<Round>> {
    let mut measured = Vec::with_capacity(rounds);
    // The first round warms up: memory of every size is allocated, and every thread has run.
    for index in 0..=rounds {
        progress("throughput", index, rounds + 1);
        let request = workload.request(index as u64, &subject.tokenizer)?;
        let round = round(subject, contenders, &request, index)?;
        if index > 0 {
            measured.push(round);
        }
    }
    Ok(measured)
}

fn round(
    subject: &Subject,
    contenders: &mut Contenders,
    request: &CompressRequest,
    index: usize,
) -> anyhow::Result<Round> {
    let ids = workload::ids(request, &subject.tokenizer)?;
    let pipeline = &subject.pipeline;
    let tokens_max = pipeline.model().window_tokens_max;
    let windows: Vec<&[u32]> = ids.iter().flat_map(|ids| ids.chunks(tokens_max)).collect();
    let texts: Vec<&str> = request.chunks.iter().map(|chunk| chunk.text.as_str()).collect();
    let tokens = ids.iter().map(Vec::len).sum();
    let mut round = Round {
        tokens,
        flops: contenders.flops.of_windows(windows.iter().map(|ids| ids.len())),
        graph: Duration::ZERO,
        batched: Default::default(),
        cold: Duration::ZERO,
        timings: Timings::default(),
        peers: Vec::new(),
    };
    for contender in contender_order(index) {
        match contender {
            0 => round.graph = time_of(|| run_passage_graph(&subject.runtime, &windows))?,
            1 => (round.cold, round.timings) = cold(pipeline, request)?,
            2 => {
                for (took, batch) in round.batched.iter_mut().zip(BATCHES) {
                    *took = time_of(|| contenders.batched.run(&windows, batch))?;
                }
            }
            _ => round.peers = encode_with_peers(&mut contenders.peers, &texts, tokens, index)?,
        }
    }
    Ok(round)
}

/// Returns the order of the contenders in a round. A contender finds caches and clock rates as the one before
/// it left them, so the predecessor must vary; a rotation alone would not do that. In every 8 rounds each
/// contender has each position twice, and every second round runs backwards.
fn contender_order(round: usize) -> [usize; CONTENDERS] {
    let rotated = std::array::from_fn(|turn| (turn + round / 2) % CONTENDERS);
    match round % 2 {
        0 => rotated,
        _ => std::array::from_fn(|turn| rotated[CONTENDERS - 1 - turn]),
    }
}

/// Lets every peer encode the texts, which have `tokens` tokens together, and returns its time. The peers go in
/// their order in even rounds, and backwards in odd ones.
fn encode_with_peers(
    peers: &mut [Peer],
    texts: &[&str],
    tokens: usize,
    round: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = vec![Duration::ZERO; peers.len()];
    for turn in 0..peers.len() {
        let at = if round.is_multiple_of(2) { turn } else { peers.len() - 1 - turn };
        times[at] = peers[at].encode(texts, tokens)?;
    }
    Ok(times)
}

fn cold(pipeline: &Pipeline, request: &CompressRequest) -> anyhow::Result<(Duration, Timings)> {
    let started = Instant::now();
    let compressed = pipeline.compress(request, &Cancel::default())?;
    Ok((started.elapsed(), compressed.timings))
}

fn time_of(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// Number of the first workload round of the HTTP requests; throughput rounds have smaller numbers, so chunks
/// differ.
const LATENCY_ROUND_FIRST: u64 = 1 << 32;
const REQUESTS_PER_CLIENT: usize = 4;

#[derive(Debug, Clone)]
struct Latency {
    /// Times of requests sent one after another.
    sequential: Vec<Duration>,
    concurrent: ConcurrentRun,
    concurrent_tokens: usize,
}

struct Prepared {
    body: Bytes,
    tokens: usize,
}

/// Measures sequential and concurrent requests over HTTP, through a real listener on loopback.
fn measure_latency(
    subject: &Subject,
    workload: &Workload,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Latency> {
    let prepared = |count: usize, first: usize| {
        let round = |at: usize| prepare(subject, workload, LATENCY_ROUND_FIRST + at as u64);
        (first..first + count).map(round).collect::<anyhow::Result<Vec<_>>>()
    };
    let sequential_requests = prepared(effort.requests, 0)?;
    let concurrent_requests = prepared(effort.clients * REQUESTS_PER_CLIENT, effort.requests)?;
    let client = Client::new(subject.address)?;
    let mut sequential = Vec::with_capacity(sequential_requests.len());
    for (index, prepared) in sequential_requests.iter().enumerate() {
        progress("sequential requests", index, sequential_requests.len());
        sequential.push(client.compress(prepared.body.clone())?.time);
    }
    progress("concurrent requests", 0, concurrent_requests.len());
    let concurrent_tokens = concurrent_requests.iter().map(|prepared| prepared.tokens).sum();
    let bodies: Vec<Bytes> = concurrent_requests.into_iter().map(|prepared| prepared.body).collect();
    let body = move |client: usize, n: usize| {
        (n < REQUESTS_PER_CLIENT).then(|| bodies[client * REQUESTS_PER_CLIENT + n].clone())
    };
    let concurrent = client.run_concurrently(effort.clients, Arc::new(body))?;
    Ok(Latency { sequential, concurrent, concurrent_tokens })
}

fn prepare(subject: &Subject, workload: &Workload, round: u64) -> anyhow::Result<Prepared> {
    let request = workload.request(round, &subject.tokenizer)?;
    let tokens = workload::ids(&request, &subject.tokenizer)?.iter().map(Vec::len).sum();
    let bodies = Source::Inline.bodies(&request.chunks, subject.deadline_ms_max);
    Ok(Prepared { body: bodies.with_query(&request.query), tokens })
}

/// Results of the bench. Rates are medians over rounds, ratios are medians of each round's ratio, spreads are
/// quartiles.
#[derive(Debug, Clone)]
pub struct Report {
    json: Value,
}

impl Report {
    fn new(
        subject: &Subject,
        workload: &Workload,
        effort: Effort,
        rounds: Vec<Round>,
        latency: Latency,
        mut peers: Vec<Value>,
    ) -> Self {
        let rate = |took: &dyn Fn(&Round) -> f64| spread(rounds.iter().map(|r| r.tokens as f64 / took(r)));
        let cold = |r: &Round| r.cold.as_secs_f64();
        let graph = |r: &Round| r.graph.as_secs_f64();
        let sequential = sorted(latency.sequential.iter().map(|d| d.as_secs_f64() * 1e3));
        let concurrent = sorted(latency.concurrent.times.iter().map(|d| d.as_secs_f64() * 1e3));
        let tokens = rounds.iter().map(|r| r.tokens).sum::<usize>() as f64 / rounds.len() as f64;
        let mut json = json!({
            "cold_tokens_per_s": round_to(rate(&cold).median, 0),
            "graph_tokens_per_s": round_to(rate(&graph).median, 0),
            "cold_to_graph": spread_json(spread(rounds.iter().map(|r| graph(r) / cold(r)))),
            "graph_batched_tokens_per_s": batched(&rounds),
            "latency_ms": {
                "p50": round_to(quantile(&sequential, 0.5), 2),
                "p99": round_to(quantile(&sequential, 0.99), 2),
                "requests": sequential.len(),
            },
            "concurrent": {
                "clients": effort.clients,
                "tokens_per_s": round_to(
                    latency.concurrent_tokens as f64 / latency.concurrent.elapsed.as_secs_f64(), 0),
                "p50_ms": round_to(quantile(&concurrent, 0.5), 2),
                "p99_ms": round_to(quantile(&concurrent, 0.99), 2),
                "requests": concurrent.len(),
            },
            "stages_ms": stages(&rounds),
            "question_ms": stage(&rounds, "question"),
            "flops": {
                "per_token": round_to(rounds.iter().map(|r| r.flops / r.tokens as f64).sum::<f64>()
                    / rounds.len() as f64, 0),
                "graph_gflop_per_s": round_to(
                    spread(rounds.iter().map(|r| r.flops / graph(r) / 1e9)).median, 1),
                "cold_gflop_per_s": round_to(
                    spread(rounds.iter().map(|r| r.flops / cold(r) / 1e9)).median, 1),
            },
            "workload": {
                "chunks": workload.chunks,
                "tokens": workload.tokens,
                "query_tokens": workload.query_tokens,
                "mixed": workload.mixed,
                "tokens_per_request": round_to(tokens, 0),
                "rounds": effort.rounds,
            },
            "model": report::model(subject),
            "machine": report::machine(subject),
            "version": env!("CARGO_PKG_VERSION"),
        });
        for (at, peer) in peers.iter_mut().enumerate() {
            let took = |r: &Round| r.peers[at].as_secs_f64();
            peer["tokens_per_s"] = round_to(rate(&took).median, 0);
            peer["cold_to_peer"] = spread_json(spread(rounds.iter().map(|r| took(r) / cold(r))));
        }
        json["peers"] = peers.into();
        Self { json }
    }

    pub fn json(&self) -> &Value {
        &self.json
    }
}

fn batched(rounds: &[Round]) -> Value {
    let rate = |at: usize| spread(rounds.iter().map(|r| r.tokens as f64 / r.batched[at].as_secs_f64()));
    let rates =
        BATCHES.iter().enumerate().map(|(at, batch)| (batch.to_string(), round_to(rate(at).median, 0)));
    Value::Object(rates.collect())
}

fn stages(rounds: &[Round]) -> Value {
    let names = rounds[0].timings.stages.iter().map(|&(name, _)| name);
    Value::Object(names.map(|name| (name.to_owned(), stage(rounds, name))).collect::<Map<_, _>>())
}

/// Returns the median time of a stage in milliseconds.
fn stage(rounds: &[Round], name: &str) -> Value {
    let found = rounds.iter().flat_map(|r| r.timings.stages.iter().find(|(stage, _)| *stage == name));
    round_to(spread(found.map(|(_, took)| took.as_secs_f64() * 1e3)).median, 3)
}

pub fn table(report: &Report) -> String {
    let json = &report.json;
    let number = |path: &str| json.pointer(path).and_then(Value::as_f64);
    let shown = |path: &str, digits: usize| number(path).map_or("-".to_owned(), |n| format!("{n:.digits$}"));
    let of = |path: &str| {
        let part = |name: &str| shown(&format!("{path}/{name}"), 3);
        format!("{} [{}, {}]", part("median"), part("low"), part("high"))
    };
    let workload = &json["workload"];
    let mut out = report::headline(json);
    let _ = writeln!(
        out,
        "{} chunks of {}{} tokens, question of {}, {} rounds\n",
        workload["chunks"],
        if workload["mixed"] == json!(true) { "10 to twice " } else { "" },
        workload["tokens"],
        workload["query_tokens"],
        workload["rounds"],
    );
    let mut line = |name: &str, value: String, unit: &str, note: String| {
        let _ = writeln!(out, "  {name:<42} {value:>9} {unit:<9} {note}");
    };
    let gflops = |name: &str| format!("{} GFLOP/s", shown(&format!("/flops/{name}_gflop_per_s"), 0));
    line("model graph alone", shown("/graph_tokens_per_s", 0), "tokens/s", gflops("graph"));
    for batch in BATCHES {
        let path = format!("/graph_batched_tokens_per_s/{batch}");
        line(&format!("model graph, batches of {batch}"), shown(&path, 0), "tokens/s", String::new());
    }
    let ratio = format!("{}; {} times the graph alone", gflops("cold"), of("/cold_to_graph"));
    line("pipeline, cold", shown("/cold_tokens_per_s", 0), "tokens/s", ratio);
    for (at, peer) in json["peers"].as_array().into_iter().flatten().enumerate() {
        let ratio = format!("Thresher is {} times as fast", of(&format!("/peers/{at}/cold_to_peer")));
        let name = peer["name"].as_str().unwrap_or("peer");
        line(name, shown(&format!("/peers/{at}/tokens_per_s"), 0), "tokens/s", ratio);
    }
    for (stage, _) in json["stages_ms"].as_object().into_iter().flatten() {
        line(&format!("  stage {stage}"), shown(&format!("/stages_ms/{stage}"), 2), "ms", String::new());
    }
    let requests = format!("{} requests, each new", json["latency_ms"]["requests"]);
    line("HTTP p50", shown("/latency_ms/p50", 1), "ms", requests);
    line("HTTP p99", shown("/latency_ms/p99", 1), "ms", String::new());
    let clients = format!("HTTP, {} clients", json["concurrent"]["clients"]);
    let tail =
        format!("p50 {} ms, p99 {} ms", shown("/concurrent/p50_ms", 1), shown("/concurrent/p99_ms", 1));
    line(&clients, shown("/concurrent/tokens_per_s", 0), "tokens/s", tail);
    let flops = number("/flops/per_token").map_or("-".to_owned(), |n| format!("{:.1}", n / 1e6));
    line("arithmetic per token", flops, "MFLOP", String::new());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_contender_always_follows_the_same_other() {
        let rounds: Vec<_> = (0..2 * CONTENDERS).map(contender_order).collect();
        let follows = |first: usize, second: usize| {
            rounds.iter().flat_map(|round| round.windows(2)).filter(|pair| pair == &[first, second]).count()
        };
        for contender in 0..CONTENDERS {
            let places = (0..CONTENDERS).map(|place| rounds.iter().filter(|r| r[place] == contender).count());
            assert!(places.into_iter().all(|times| times == 2));
            let next = (contender + 1) % CONTENDERS;
            assert_eq!(follows(contender, next), follows(next, contender));
        }
    }
}
