//! `thresher bench`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use crate::app;
use crate::bench::flops::Flops;
use crate::bench::peer::{Peer, PeerSettings};
use crate::bench::workload::Workload;
use crate::bench::{self, Effort, Subject};
use crate::config::Config;
use crate::kv::store::KvStore;
use crate::model::ort::BatchedGraph;

#[derive(clap::Args)]
pub struct Args {
    /// Chunks of a request.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = positive)]
    chunks: usize,
    /// Tokens of a chunk.
    #[arg(long, default_value_t = 200, value_name = "T", value_parser = positive)]
    tokens: usize,
    /// Draw each chunk's length from 10 to twice --tokens, as retrievers return them.
    #[arg(long)]
    mixed: bool,
    /// Tokens of the question.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = positive)]
    query_tokens: usize,
    /// Rounds of throughput; five times as many requests are sent over HTTP.
    #[arg(long, default_value_t = 20, value_name = "R", value_parser = positive)]
    rounds: usize,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Let sentence-transformers read the same chunks, with this Python (benches/peers/README.md).
    #[arg(long, value_name = "PYTHON")]
    peer: Option<PathBuf>,
    /// The Hugging Face folder that the peer reads.
    #[arg(long, value_name = "DIR", default_value = "models/.cache/all-MiniLM-L6-v2", requires = "peer")]
    peer_model: PathBuf,
    /// Texts of the peer's batches.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive, requires = "peer")]
    peer_batch: usize,
}

/// Requests over HTTP for each round.
const REQUESTS_PER_ROUND: usize = 5;
/// Clients that send at the same time.
const CLIENTS: usize = 8;

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let workload = Workload {
        chunks: args.chunks,
        tokens: args.tokens,
        query_tokens: args.query_tokens,
        mixed: args.mixed,
    };
    let effort = Effort { rounds: args.rounds, requests: REQUESTS_PER_ROUND * args.rounds, clients: CLIENTS };
    let bar = ProgressBar::new(0).with_style(style()).with_message("loading");
    let progress = |what: &str, done: usize, all: usize| {
        bar.set_message(what.to_owned());
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    progress("loading", 0, 1);
    let report = bench::run(subject(config, args)?, &workload, effort, &progress)?;
    bar.finish_and_clear();
    super::print(bench::table(&report));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(report.json())? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn subject(config: &Config, args: &Args) -> anyhow::Result<Subject> {
    let (runtime, tokenizer) = app::model(config)?;
    let service = app::service(config);
    let pipeline =
        app::wire(config, Arc::clone(&runtime), Arc::clone(&tokenizer), Arc::new(KvStore::without_tiers()));
    let _ = service.pipeline.set(pipeline);
    let peer = args.peer.clone().map(|python| PeerSettings {
        python,
        model: args.peer_model.clone(),
        threads: runtime.workers(),
        batch: args.peer_batch,
    });
    Ok(Subject {
        batched: BatchedGraph::load(&app::ort_settings(config))?,
        flops: Flops::of_model(&config.model.dir)?,
        peer: peer.map(Peer::start).transpose()?,
        runtime,
        tokenizer,
        service,
    })
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(e) => Err(format!("{e}")),
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}, {eta} left")
        .expect("the template is constant")
}
