//! What asking costs about chunks that have been read before: over HTTP, beside the model's bare graph over the question
//! alone and over every pair of question and chunk. Knows nothing of how the daemon keeps what it has read.
//!
//! Contenders take turns within a round, so that all see the machine in the same state; a ratio is taken within a round.

mod answer;
mod report;
mod rounds;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use thresher_core::domain::CompressRequest;
use thresher_core::kv::local::LocalStats;
use thresher_core::model::ort::BatchedGraph;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;

use self::answer::Sources;
use super::client::{Client, Crowd};
use super::memory::{self, Resident};
use super::source::Source;
use super::workload::Workload;
use super::{Progress, Subject};

pub use self::report::{Report, table};

/// Pairs that are run; more are reckoned from them.
const PAIRS_MAX: usize = 100;
/// Chunks that a cold request is held against the bare graph with.
const COLD_CHUNKS: usize = 20;
/// Larger workloads are read cold once, not in every round.
const FILLS_CHUNKS_MAX: usize = 100;
/// Where the sets of chunks of the cold requests begin: no other set is one of them.
const COLD_SETS: u64 = 1 << 33;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds: a set of chunks read cold, every pair, then questions about that set.
    pub rounds: usize,
    /// Questions of all rounds together.
    pub requests: usize,
    /// When a round asks no more, though questions are left.
    pub asking_max: Duration,
    /// Rounds of cold requests beside the bare graph, after one that does not count.
    pub cold_rounds: usize,
    /// Clients that then ask at the same time.
    pub clients: usize,
    /// For how long.
    pub crowd: Duration,
}

/// What was measured. All times in milliseconds.
struct Measured {
    rounds: Vec<Round>,
    /// Of cold requests, beside the bare graph over the same windows.
    cold: Vec<Cold>,
    cold_chunks: usize,
    pairs: usize,
    crowd: Crowd,
    tokens: usize,
    block_bytes: usize,
    tiers: LocalStats,
    resident: Option<Resident>,
}

/// One round.
struct Round {
    /// The whole set read for the first time; none where it was read by a round before.
    fill_ms: Option<f64>,
    /// The bare graph over all pairs that are run.
    pairs_ms: f64,
    asked: Vec<Asked>,
}

/// One question, beside the bare graph over it.
struct Asked {
    encode_ms: f64,
    warm_ms: f64,
    stages: Vec<(String, f64)>,
    sources: Sources,
}

struct Cold {
    request_ms: f64,
    graph_ms: f64,
}

/// Everything that a round needs.
struct Means<'a> {
    subject: &'a Subject,
    client: Client,
    batched: BatchedGraph,
    workload: &'a Workload,
    source: Source,
    /// Questions asked so far: each is another.
    asked: AtomicUsize,
}

/// Measures everything.
///
/// # Errors
/// A failure of the model or the daemon; an answer from chunks that should have been kept and were not.
pub fn run(
    subject: &Subject,
    batched: BatchedGraph,
    workload: &Workload,
    source: Source,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Report> {
    let client = Client::new(subject.daemon.address())?;
    let mut means = Means { subject, client, batched, workload, source, asked: AtomicUsize::new(0) };
    let cold_chunks = workload.chunks.min(COLD_CHUNKS);
    let cold = rounds::cold(&means, cold_chunks, effort.cold_rounds, progress)?;
    let mut rounds = Vec::with_capacity(effort.rounds);
    let mut set = means.set(0)?;
    for index in 0..effort.rounds {
        let is_new = index == 0 || workload.chunks <= FILLS_CHUNKS_MAX;
        if is_new && index > 0 {
            set = means.set(index as u64)?;
        }
        rounds.push(rounds::round(&mut means, &set, is_new, effort, &|what, done, all| {
            progress(&format!("round {} of {}: {what}", index + 1, effort.rounds), done, all);
        })?);
    }
    progress("clients side by side", 0, 1);
    let crowd = crowd(&means, &set, effort)?;
    let reading = subject.daemon.pipeline().read(&set, &Cancel::default(), &mut Clock::start())?;
    let blocks = &reading.blocks.blocks;
    let measured = Measured {
        rounds,
        cold,
        cold_chunks,
        pairs: workload.chunks.min(PAIRS_MAX),
        crowd,
        tokens: blocks.iter().map(|block| block.tokens()).sum(),
        block_bytes: blocks.iter().map(|block| block.bytes().len()).sum(),
        tiers: subject.daemon.stats(),
        resident: memory::resident(),
    };
    Ok(Report::new(&means, effort, &measured))
}

impl Means<'_> {
    /// The `n`-th set of chunks, with a question that is not asked.
    fn set(&self, n: u64) -> anyhow::Result<CompressRequest> {
        Ok(self.workload.request(n, &self.subject.tokenizer)?)
    }

    /// A question that has not been asked yet.
    fn question(&self) -> anyhow::Result<String> {
        let n = self.asked.fetch_add(1, Ordering::Relaxed) as u64;
        Ok(self.workload.question(n, &self.subject.tokenizer)?)
    }
}

/// Clients that each ask one question after the other, all about the same chunks, for as long as `effort` says.
fn crowd(means: &Means, set: &CompressRequest, effort: Effort) -> anyhow::Result<Crowd> {
    /// Clients share this many questions, each beginning elsewhere.
    const QUESTIONS: usize = 256;
    let bodies = means.source.bodies(&set.chunks, means.subject.daemon.deadline_ms_max());
    let questions = (0..QUESTIONS).map(|_| means.question()).collect::<anyhow::Result<Vec<_>>>()?;
    let stride = QUESTIONS / effort.clients.clamp(1, QUESTIONS);
    let until = Instant::now() + effort.crowd;
    let next = move |client: usize, n: usize| {
        let question = &questions[(client * stride + n) % QUESTIONS];
        (n == 0 || Instant::now() < until).then(|| bodies.ask(question))
    };
    means.client.crowd(effort.clients, Arc::new(next))
}
