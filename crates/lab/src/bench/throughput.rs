//! How fast chunks are read that nobody has read before: the model's graph alone, the whole pipeline around it, HTTP around
//! that, and a peer, taking turns. Knows nothing of chunks that are kept: no two rounds share one.

mod latency;
mod report;
mod rounds;

use thresher_core::model::ort::BatchedGraph;

use super::flops::Flops;
use super::peer::Peer;
use super::workload::Workload;
use super::{Progress, Subject};

pub use self::report::{Report, table};

/// What stands beside the pipeline.
pub struct Contenders {
    /// The passage graph in padded batches.
    pub batched: BatchedGraph,
    /// Arithmetic of the graph.
    pub flops: Flops,
    /// Another program that reads the same texts.
    pub peer: Option<Peer>,
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds of throughput, after one that does not count.
    pub rounds: usize,
    /// HTTP requests in a row.
    pub requests: usize,
    /// Clients that then send at the same time.
    pub clients: usize,
}

/// Measures everything.
///
/// # Errors
/// A failure of the model, the listener or the peer; a peer that does not read the same tokens.
pub fn run(
    subject: &Subject,
    mut contenders: Contenders,
    workload: &Workload,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Report> {
    let rounds = rounds::measure(subject, &mut contenders, workload, effort.rounds, progress)?;
    let peer = contenders.peer.map(Peer::finish);
    let latency = latency::measure(subject, workload, effort, progress)?;
    Ok(Report::new(subject, workload, effort, rounds, latency, peer))
}
