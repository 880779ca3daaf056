//! Tokens per second: the graph alone, the pipeline and the peer, taking turns on the same chunks.

use std::time::{Duration, Instant};

use thresher_core::domain::CompressRequest;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Timings;

use super::Contenders;
use crate::bench::workload::{self, Workload};
use crate::bench::{Progress, Subject};

/// Batch sizes that the batched graph is tried with.
pub const BATCHES: [usize; 2] = [8, 16];

/// The graph, the pipeline, the graph in batches, the peer.
const CONTENDERS: usize = 4;

/// What one round took. All contenders of a round read the same chunks.
#[derive(Debug, Clone)]
pub struct Round {
    /// Tokens of the chunks, special ones not counted.
    pub tokens: usize,
    /// Operations of one pass of the graph over them.
    pub flops: f64,
    /// The graph alone, on all workers.
    pub graph: Duration,
    /// The graph alone, in batches of [`BATCHES`].
    pub batched: [Duration; BATCHES.len()],
    /// The pipeline.
    pub cold: Duration,
    /// Its stages.
    pub timings: Timings,
    /// The peer.
    pub peer: Option<Duration>,
}

/// Rounds, in order.
pub fn measure(
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
    let pipeline = subject.daemon.pipeline();
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
        peer: None,
    };
    for contender in turns(index) {
        match contender {
            0 => round.graph = timed(|| Ok(subject.runtime.run_passage_graph(&windows)?))?,
            1 => (round.cold, round.timings) = cold(pipeline, request)?,
            2 => {
                for (took, batch) in round.batched.iter_mut().zip(BATCHES) {
                    *took = timed(|| Ok(contenders.batched.run(&windows, batch)?))?;
                }
            }
            _ => round.peer = contenders.peer.as_mut().map(|peer| peer.encode(&texts, tokens)).transpose()?,
        }
    }
    Ok(round)
}

/// The order of one round's contenders. Caches and clocks are as the one before left them, so who that is has to change:
/// a rotation alone would not do it. In every 8 rounds each stands twice in every place, and every second round runs
/// backwards.
fn turns(round: usize) -> [usize; CONTENDERS] {
    let rotated = std::array::from_fn(|turn| (turn + round / 2) % CONTENDERS);
    match round % 2 {
        0 => rotated,
        _ => std::array::from_fn(|turn| rotated[CONTENDERS - 1 - turn]),
    }
}

fn cold(pipeline: &Pipeline, request: &CompressRequest) -> anyhow::Result<(Duration, Timings)> {
    let started = Instant::now();
    let compressed = pipeline.compress(request, &Cancel::default())?;
    Ok((started.elapsed(), compressed.timings))
}

fn timed(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_always_follows_the_same_other() {
        let rounds: Vec<_> = (0..2 * CONTENDERS).map(turns).collect();
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
