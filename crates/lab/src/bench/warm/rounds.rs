//! The rounds: who runs when, and what is timed.
//! Knows nothing of what becomes of the numbers.

use std::time::Instant;

use anyhow::ensure;
use thresher_core::domain::CompressRequest;

use super::answer::AnswerBody;
use super::{Asked, COLD_SETS, Cold, Effort, Means, PAIRS_MAX, Round};
use crate::bench::Progress;
use crate::bench::workload::{self, Workload};

/// Questions of a round at least, however long each takes.
const ASKED_MIN: usize = 5;

/// Cold requests of `chunks` chunks, and the bare graph over the same windows, one after the other in changing order. The
/// first round warms up: every thread has run, and memory of every size is allocated.
pub fn cold(means: &Means, chunks: usize, rounds: usize, progress: Progress) -> anyhow::Result<Vec<Cold>> {
    let workload = Workload { chunks, ..*means.workload };
    let mut measured = Vec::with_capacity(rounds);
    for index in 0..=rounds {
        progress("cold requests beside the bare graph", index, rounds + 1);
        let set = workload.request(COLD_SETS + index as u64, &means.subject.tokenizer)?;
        let ids = workload::ids(&set, &means.subject.tokenizer)?;
        let windows: Vec<&[u32]> = ids.iter().flat_map(|ids| ids.chunks(means.window_tokens_max())).collect();
        let graph = || timed(|| Ok(means.subject.runtime.run_passage_graph(&windows)?));
        let cold = if index % 2 == 0 {
            let graph_ms = graph()?;
            Cold { request_ms: fill(means, &set)?, graph_ms }
        } else {
            let request_ms = fill(means, &set)?;
            Cold { request_ms, graph_ms: graph()? }
        };
        if index > 0 {
            measured.push(cold);
        }
    }
    Ok(measured)
}

/// Reads a set if it is new, runs every pair, then asks questions beside the bare graph over each.
pub fn round(
    means: &mut Means,
    set: &CompressRequest,
    is_new: bool,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Round> {
    progress("chunks read for the first time", 0, 1);
    let fill_ms = if is_new { Some(fill(means, set)?) } else { None };
    progress("every pair", 0, 1);
    let pairs = pairs(means, set)?;
    let windows: Vec<&[u32]> = pairs.iter().map(Vec::as_slice).collect();
    let pairs_ms = timed(|| Ok(means.subject.runtime.run_passage_graph(&windows)?))?;
    let bodies = means.source.bodies(&set.chunks, means.subject.daemon.deadline_ms_max());
    let count = effort.requests.div_ceil(effort.rounds);
    let mut asked = Vec::with_capacity(count);
    // The first one warms up.
    let started = Instant::now();
    for index in 0..=count {
        if asked.len() >= ASKED_MIN && started.elapsed() > effort.asking_max {
            break;
        }
        progress("warm requests", index, count + 1);
        let question = means.question()?;
        let (body, ids) = (bodies.ask(&question), means.subject.tokenizer.encode(&question)?.ids);
        let (encode_ms, answer) = if index % 2 == 0 {
            let encode_ms = encode(means, &ids)?;
            (encode_ms, means.client.ask(body)?)
        } else {
            let answer = means.client.ask(body)?;
            (encode(means, &ids)?, answer)
        };
        let parsed = AnswerBody::parse(&answer.body)?;
        let read = parsed.sources.read;
        ensure!(
            read == 0,
            "{read} of {} chunks had to be read again: blocks.memory_bytes_max and blocks.disk_bytes_max hold too little",
            set.chunks.len()
        );
        if index > 0 {
            let (stages, sources) = (parsed.stages(), parsed.sources);
            asked.push(Asked { encode_ms, warm_ms: answer.ms(), stages, sources });
        }
    }
    Ok(Round { fill_ms, pairs_ms, asked })
}

/// A request about chunks that nobody has read.
fn fill(means: &Means, set: &CompressRequest) -> anyhow::Result<f64> {
    let bodies = means.source.bodies(&set.chunks, means.subject.daemon.deadline_ms_max());
    let body = bodies.ask(&means.question()?);
    for registration in means.source.registrations(&set.chunks) {
        means.client.register(registration)?;
    }
    let answer = means.client.ask(body)?;
    let sources = AnswerBody::parse(&answer.body)?.sources;
    ensure!(sources.read == set.chunks.len(), "chunks that should be new were there already: {sources:?}");
    Ok(answer.ms())
}

/// The bare graph over a question, by all threads at once.
fn encode(means: &mut Means, question: &[u32]) -> anyhow::Result<f64> {
    timed(|| Ok(means.batched.run(&[question], 1)?))
}

/// The windows that a model reads which reads question and chunk together. A chunk that does not fit beside the question is
/// read in pieces, each with the question.
fn pairs(means: &Means, set: &CompressRequest) -> anyhow::Result<Vec<Vec<u32>>> {
    let question = means.subject.tokenizer.encode(&means.question()?)?.ids;
    let window = means.window_tokens_max();
    ensure!(
        question.len() < window,
        "the question leaves no room for a chunk in a window of {window} tokens"
    );
    let ids = workload::ids(set, &means.subject.tokenizer)?;
    let pieces = ids.iter().take(PAIRS_MAX).flat_map(|ids| ids.chunks(window - question.len()));
    Ok(pieces.map(|piece| [&question, piece].concat()).collect())
}

impl Means<'_> {
    fn window_tokens_max(&self) -> usize {
        self.subject.daemon.pipeline().model().window_tokens_max
    }
}

/// Milliseconds of `work`.
fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}
