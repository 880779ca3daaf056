//! Warm bench (`thresher-lab warm`): the time of questions about cached chunks over HTTP, compared with
//! the model graph alone over the question and over every pair of question and chunk.
//!
//! Contenders take turns within a round, so that all see the machine in the same state; each ratio is taken
//! within a round.

mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Deserialize;
use serde_json::{Map, Value};
use thresher_core::domain::CompressRequest;
use thresher_core::kv::local::LocalStats;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;

use crate::Progress;
use crate::client::{Client, ConcurrentRun};
use crate::model_graph::{BatchedGraph, run_passage_graph};
use crate::rss::{self, Rss};
use crate::subject::Subject;
use crate::workload::{self, Source, Workload};

pub use self::report::{Report, table};

/// The most pairs that are run; the time of more pairs is extrapolated.
const PAIRS_MAX: usize = 100;
/// The most chunks of the cold requests that are compared with the model graph alone.
const COLD_CHUNKS: usize = 20;
/// Workloads with more chunks are read cold once, not in every round.
const COLD_EACH_ROUND_CHUNKS_MAX: usize = 100;
/// Number of the first workload round of the cold requests; other sets have smaller numbers, so chunks
/// differ.
const COLD_SET_FIRST: u64 = 1 << 33;

#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds. A round reads a set of chunks cold, runs every pair, then sends warm requests about the set.
    pub rounds: usize,
    /// Warm requests of all rounds together.
    pub requests: usize,
    /// Time after which a round sends no more warm requests.
    pub warm_time_max: Duration,
    /// Rounds of cold requests, compared with the model graph alone, after one warm-up round.
    pub cold_rounds: usize,
    /// Clients that then send warm requests concurrently.
    pub clients: usize,
    pub concurrent_time: Duration,
}

struct Measurements {
    rounds: Vec<Round>,
    /// Cold requests, compared with the model graph alone over the same windows.
    cold: Vec<ColdRequest>,
    cold_chunks: usize,
    pairs: usize,
    concurrent: ConcurrentRun,
    tokens: usize,
    block_bytes: usize,
    tiers: LocalStats,
    rss: Option<Rss>,
}

struct Round {
    /// Time of the request that reads the whole set cold; `None` if an earlier round read the set.
    cold_ms: Option<f64>,
    /// Time of the model graph alone over all pairs that are run.
    pairs_ms: f64,
    warm_requests: Vec<WarmRequest>,
}

/// Times of one question: the warm request, and the model graph alone over the question.
struct WarmRequest {
    encode_ms: f64,
    warm_ms: f64,
    stages: Vec<(String, f64)>,
    block_counts: BlockCounts,
}

struct ColdRequest {
    request_ms: f64,
    graph_ms: f64,
}

struct WarmBench<'a> {
    subject: &'a Subject,
    client: Client,
    batched: BatchedGraph,
    workload: &'a Workload,
    source: Source,
    /// Number of questions used so far; each question is used once.
    questions_asked: AtomicUsize,
}

/// Runs the bench.
///
/// # Errors
/// Fails if the model or the daemon fails, or if the daemon has to read a chunk that should be cached.
pub fn run(
    subject: &Subject,
    batched: BatchedGraph,
    workload: &Workload,
    source: Source,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Report> {
    let client = Client::new(subject.address)?;
    let mut bench =
        WarmBench { subject, client, batched, workload, source, questions_asked: AtomicUsize::new(0) };
    let cold_chunks = workload.chunks.min(COLD_CHUNKS);
    let cold = cold_rounds(&bench, cold_chunks, effort.cold_rounds, progress)?;
    let mut rounds = Vec::with_capacity(effort.rounds);
    let mut set = bench.set(0)?;
    for index in 0..effort.rounds {
        let is_new = index == 0 || workload.chunks <= COLD_EACH_ROUND_CHUNKS_MAX;
        if is_new && index > 0 {
            set = bench.set(index as u64)?;
        }
        rounds.push(run_round(&mut bench, &set, is_new, effort, &|what, done, all| {
            progress(&format!("round {} of {}: {what}", index + 1, effort.rounds), done, all);
        })?);
    }
    progress("concurrent clients", 0, 1);
    let concurrent = run_concurrent_clients(&bench, &set, effort)?;
    let reading = subject.pipeline.read(&set, &Cancel::default(), &mut Clock::start())?;
    let blocks = &reading.blocks.blocks;
    let measurements = Measurements {
        rounds,
        cold,
        cold_chunks,
        pairs: workload.chunks.min(PAIRS_MAX),
        concurrent,
        tokens: blocks.iter().map(|block| block.tokens()).sum(),
        block_bytes: blocks.iter().map(|block| block.bytes().len()).sum(),
        tiers: subject.local.stats(),
        rss: rss::current(),
    };
    Ok(Report::new(&bench, effort, &measurements))
}

impl WarmBench<'_> {
    /// Returns the `n`-th set of chunks, as a request whose question is not used.
    fn set(&self, n: u64) -> anyhow::Result<CompressRequest> {
        Ok(self.workload.request(n, &self.subject.tokenizer)?)
    }

    fn window_tokens_max(&self) -> usize {
        self.subject.pipeline.model().window_tokens_max
    }

    fn question(&self) -> anyhow::Result<String> {
        let n = self.questions_asked.fetch_add(1, Ordering::Relaxed) as u64;
        Ok(self.workload.question(n, &self.subject.tokenizer)?)
    }
}

/// Runs clients that each send one question after another about the same chunks, for as long as `effort`
/// says.
fn run_concurrent_clients(
    bench: &WarmBench,
    set: &CompressRequest,
    effort: Effort,
) -> anyhow::Result<ConcurrentRun> {
    /// All clients share this many questions; each client starts at another one.
    const QUESTIONS: usize = 256;
    let bodies = bench.source.bodies(&set.chunks, bench.subject.deadline_ms_max);
    let questions = (0..QUESTIONS).map(|_| bench.question()).collect::<anyhow::Result<Vec<_>>>()?;
    let stride = QUESTIONS / effort.clients.clamp(1, QUESTIONS);
    let until = Instant::now() + effort.concurrent_time;
    let next = move |client: usize, n: usize| {
        let question = &questions[(client * stride + n) % QUESTIONS];
        (n == 0 || Instant::now() < until).then(|| bodies.with_query(question))
    };
    bench.client.run_concurrently(effort.clients, Arc::new(next))
}

/// The fewest warm requests of a round, however long they take.
const WARM_REQUESTS_MIN: usize = 5;

/// Sends cold requests of `chunks` chunks and runs the model graph alone over the same windows, in
/// alternating order. The first round warms up: every thread has run, and memory of every size is allocated.
fn cold_rounds(
    bench: &WarmBench,
    chunks: usize,
    rounds: usize,
    progress: Progress,
) -> anyhow::Result<Vec<ColdRequest>> {
    let workload = Workload { chunks, ..*bench.workload };
    let mut measured = Vec::with_capacity(rounds);
    for index in 0..=rounds {
        progress("cold requests and the model graph alone", index, rounds + 1);
        let set = workload.request(COLD_SET_FIRST + index as u64, &bench.subject.tokenizer)?;
        let ids = workload::ids(&set, &bench.subject.tokenizer)?;
        let windows: Vec<&[u32]> = ids.iter().flat_map(|ids| ids.chunks(bench.window_tokens_max())).collect();
        let graph = || time_ms(|| run_passage_graph(&bench.subject.runtime, &windows));
        let cold = if index % 2 == 0 {
            let graph_ms = graph()?;
            ColdRequest { request_ms: send_cold_request(bench, &set)?, graph_ms }
        } else {
            let request_ms = send_cold_request(bench, &set)?;
            ColdRequest { request_ms, graph_ms: graph()? }
        };
        if index > 0 {
            measured.push(cold);
        }
    }
    Ok(measured)
}

/// Reads a set cold if it is new, runs every pair, then sends warm requests and runs the model graph alone
/// over each question.
fn run_round(
    bench: &mut WarmBench,
    set: &CompressRequest,
    is_new: bool,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Round> {
    progress("first request (cold)", 0, 1);
    let cold_ms = if is_new { Some(send_cold_request(bench, set)?) } else { None };
    progress("question-chunk pairs", 0, 1);
    let pairs = pairs(bench, set)?;
    let windows: Vec<&[u32]> = pairs.iter().map(Vec::as_slice).collect();
    let pairs_ms = time_ms(|| run_passage_graph(&bench.subject.runtime, &windows))?;
    let bodies = bench.source.bodies(&set.chunks, bench.subject.deadline_ms_max);
    let count = effort.requests.div_ceil(effort.rounds);
    let mut warm_requests = Vec::with_capacity(count);
    // The first warm request warms up and does not count.
    let started = Instant::now();
    for index in 0..=count {
        if warm_requests.len() >= WARM_REQUESTS_MIN && started.elapsed() > effort.warm_time_max {
            break;
        }
        progress("warm requests", index, count + 1);
        let question = bench.question()?;
        let (body, ids) = (bodies.with_query(&question), bench.subject.tokenizer.encode(&question)?.ids);
        let (encode_ms, response) = if index % 2 == 0 {
            let encode_ms = encode(bench, &ids)?;
            (encode_ms, bench.client.compress(body)?)
        } else {
            let response = bench.client.compress(body)?;
            (encode(bench, &ids)?, response)
        };
        let parsed = CompressResponse::parse(&response.body)?;
        let read = parsed.block_counts.read;
        ensure!(
            read == 0,
            "the daemon read {read} of {} cached chunks again: raise memory_bytes_max or blocks.disk_bytes_max",
            set.chunks.len()
        );
        if index > 0 {
            let (stages, block_counts) = (parsed.stages(), parsed.block_counts);
            warm_requests.push(WarmRequest { encode_ms, warm_ms: response.ms(), stages, block_counts });
        }
    }
    Ok(Round { cold_ms, pairs_ms, warm_requests })
}

/// Sends a request about chunks that the daemon has not read, and returns its time in milliseconds.
fn send_cold_request(bench: &WarmBench, set: &CompressRequest) -> anyhow::Result<f64> {
    let bodies = bench.source.bodies(&set.chunks, bench.subject.deadline_ms_max);
    let body = bodies.with_query(&bench.question()?);
    for registration in bench.source.registrations(&set.chunks) {
        bench.client.register(registration)?;
    }
    let response = bench.client.compress(body)?;
    let block_counts = CompressResponse::parse(&response.body)?.block_counts;
    ensure!(
        block_counts.read == set.chunks.len(),
        "a cold request found chunks in the cache that should be new: {block_counts:?}"
    );
    Ok(response.ms())
}

/// Runs the model graph alone over a question with all threads, and returns the time in milliseconds.
fn encode(bench: &mut WarmBench, question: &[u32]) -> anyhow::Result<f64> {
    time_ms(|| bench.batched.run(&[question], 1))
}

/// Returns the windows of a model that reads question and chunk together (a cross-encoder). A chunk that does
/// not fit beside the question is split into several windows, each with the question.
fn pairs(bench: &WarmBench, set: &CompressRequest) -> anyhow::Result<Vec<Vec<u32>>> {
    let question = bench.subject.tokenizer.encode(&bench.question()?)?.ids;
    let window = bench.window_tokens_max();
    ensure!(
        question.len() < window,
        "the question has {} tokens and fills the model's window of {window}; use a smaller --query-tokens",
        question.len()
    );
    let ids = workload::ids(set, &bench.subject.tokenizer)?;
    let pieces = ids.iter().take(PAIRS_MAX).flat_map(|ids| ids.chunks(window - question.len()));
    Ok(pieces.map(|piece| [&question, piece].concat()).collect())
}

fn time_ms(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// The parts of a `POST /v1/compress` response that the bench uses.
#[derive(Debug, Deserialize)]
struct CompressResponse {
    #[serde(rename = "blocks")]
    block_counts: BlockCounts,
    timing_ms: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
struct BlockCounts {
    memory: usize,
    disk: usize,
    /// Blocks that this request read with the model.
    read: usize,
}

impl CompressResponse {
    /// Parses a response body.
    ///
    /// # Errors
    /// Fails if the body has another shape.
    fn parse(body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }

    /// Returns the name and time in milliseconds of each stage, in order.
    fn stages(&self) -> Vec<(String, f64)> {
        self.timing_ms.iter().filter_map(|(stage, ms)| Some((stage.clone(), ms.as_f64()?))).collect()
    }
}
