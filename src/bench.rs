//! Measures speed on a workload of its own: the model's graph alone, the whole pipeline around it, HTTP around that,
//! and a peer, taking turns in one run. Every claim of speed is printed here, with its spread.
//!
//! All rounds are cold: each has chunks that no round before it had, so nothing could have been kept from one.

pub mod flops;
pub mod peer;
pub mod workload;
mod latency;
mod report;
mod statistics;
mod throughput;

use std::sync::Arc;

use self::flops::Flops;
use self::peer::Peer;
pub use self::report::{Report, table};
use self::workload::Workload;
use crate::http::Service;
use crate::model::ort::{BatchedGraph, OrtRuntime};
use crate::model::tokenizer::ModelTokenizer;

/// What is measured.
pub struct Subject {
    /// The model, whose graph is run alone.
    pub runtime: Arc<OrtRuntime>,
    /// The same graph in padded batches.
    pub batched: BatchedGraph,
    /// Counts the workload's tokens.
    pub tokenizer: Arc<ModelTokenizer>,
    /// The service, with a pipeline on the same model.
    pub service: Service,
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

/// Told what is being measured, how much of it is done, and how much there is.
pub type Progress<'a> = &'a dyn Fn(&str, usize, usize);

/// Measures everything.
///
/// # Errors
/// A failure of the model, the listener or the peer; a peer that does not read the same tokens.
pub fn run(
    mut subject: Subject,
    workload: &Workload,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Report> {
    let throughput = throughput::measure(&mut subject, workload, effort.rounds, progress)?;
    let peer = subject.peer.take().map(Peer::finish);
    let latency = latency::measure(&subject, workload, effort, progress)?;
    Ok(Report::new(&subject, workload, effort, throughput, latency, peer))
}
