//! Requests over HTTP, through a real listener on the loopback interface: one after the other, then many at once.
//! Knows nothing of the graph alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Effort;
use crate::bench::client::{Client, Crowd};
use crate::bench::source::Source;
use crate::bench::workload::{self, Workload};
use crate::bench::{Progress, Subject};

/// Rounds of throughput never get this far: their chunks are not these.
const ROUND_FIRST: u64 = 1 << 32;
/// Requests of each client that sends beside others.
const REQUESTS_PER_CLIENT: usize = 4;

/// What requests took.
#[derive(Debug, Clone)]
pub struct Latency {
    /// Of requests one after the other.
    pub sequential: Vec<Duration>,
    /// Of requests beside each other.
    pub concurrent: Crowd,
    /// Tokens of their chunks.
    pub concurrent_tokens: usize,
}

struct Prepared {
    body: Bytes,
    tokens: usize,
}

/// Measures both.
pub fn measure(
    subject: &Subject,
    workload: &Workload,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Latency> {
    let prepared = |count: usize, first: usize| {
        let round = |at: usize| prepare(subject, workload, ROUND_FIRST + at as u64);
        (first..first + count).map(round).collect::<anyhow::Result<Vec<_>>>()
    };
    let in_a_row = prepared(effort.requests, 0)?;
    let beside = prepared(effort.clients * REQUESTS_PER_CLIENT, effort.requests)?;
    let client = Client::new(subject.daemon.address())?;
    let mut sequential = Vec::with_capacity(in_a_row.len());
    for (index, prepared) in in_a_row.iter().enumerate() {
        progress("requests in a row", index, in_a_row.len());
        sequential.push(client.ask(prepared.body.clone())?.took);
    }
    progress("requests side by side", 0, beside.len());
    let concurrent_tokens = beside.iter().map(|prepared| prepared.tokens).sum();
    let bodies: Vec<Bytes> = beside.into_iter().map(|prepared| prepared.body).collect();
    let body = move |client: usize, n: usize| {
        (n < REQUESTS_PER_CLIENT).then(|| bodies[client * REQUESTS_PER_CLIENT + n].clone())
    };
    let concurrent = client.crowd(effort.clients, Arc::new(body))?;
    Ok(Latency { sequential, concurrent, concurrent_tokens })
}

fn prepare(subject: &Subject, workload: &Workload, round: u64) -> anyhow::Result<Prepared> {
    let request = workload.request(round, &subject.tokenizer)?;
    let tokens = workload::ids(&request, &subject.tokenizer)?.iter().map(Vec::len).sum();
    let bodies = Source::Inline.bodies(&request.chunks, subject.daemon.deadline_ms_max());
    Ok(Prepared { body: bodies.ask(&request.query), tokens })
}
