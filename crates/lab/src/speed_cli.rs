//! Commands that measure speed and memory use.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use serde_json::Value;
use thresher::app::{self, Limits};
use thresher::config::{Admission, Config};
use thresher_core::model::ModelRuntime as _;
use thresher_lab::flops::Flops;
use thresher_lab::middleware::ModelServer;
use thresher_lab::model_graph::BatchedGraph;
use thresher_lab::peer::{Backend, Peer, PeerSettings};
use thresher_lab::subject::Subject;
use thresher_lab::workload::{Source, Workload};
use thresher_lab::{Progress, attribution, middleware, overload, soak, targets, throughput, warm};

use crate::{Results, progress_bar};

#[derive(Subcommand)]
pub enum Command {
    /// Ask questions about cached chunks, and compare the times with the model graph alone.
    #[command(after_long_help = WARM)]
    Warm {
        #[command(flatten)]
        shape: Shape,
        /// The number of chunks of a request.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
        chunks: usize,
        /// Register the chunks and name them by their ids, instead of sending their text with each question.
        #[arg(long)]
        registered: bool,
        /// The number of rounds, each with new chunks.
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
        rounds: usize,
        /// The number of warm requests in all rounds together; fewer if they take long.
        #[arg(long, value_name = "N", default_value_t = 300, value_parser = positive)]
        requests: usize,
        /// The number of concurrent clients.
        #[arg(long, value_name = "N", default_value_t = targets::CLIENTS, value_parser = positive)]
        clients: usize,
    },
    /// Read new chunks: by the graph alone, in batches, by the pipeline, over HTTP, and by a peer.
    Throughput {
        #[command(flatten)]
        shape: Shape,
        /// The number of chunks of a request.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
        chunks: usize,
        /// The number of rounds, each with new chunks.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
        rounds: usize,
        /// The number of concurrent clients.
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = positive)]
        clients: usize,
        #[command(flatten)]
        peer: PeerArgs,
    },
    /// Attribute answers to cached chunks.
    #[command(
        after_long_help = "Each round attributes an answer of --answer-tokens tokens to the chunks over HTTP, and then runs the graph \
over the answer. In the JSON: attribute_ms, answer_encode_ms."
    )]
    Attribution {
        #[command(flatten)]
        shape: Shape,
        /// The number of chunks of a request.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
        chunks: usize,
        /// The number of answers.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
        rounds: usize,
        /// The number of tokens of an answer.
        #[arg(long, value_name = "N", default_value_t = 300, value_parser = positive)]
        answer_tokens: usize,
    },
    /// Measure the time that the middleware adds to requests: to those that go whole, and to those that are compressed.
    #[command(after_long_help = MIDDLEWARE)]
    Middleware {
        #[command(flatten)]
        shape: Shape,
        /// The number of chunks of a request.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
        chunks: usize,
        /// The number of requests of each way.
        #[arg(long, value_name = "N", default_value_t = 300, value_parser = positive)]
        requests: usize,
    },
    /// Send more new chunks than the model can read, with occasional requests about cached chunks.
    #[command(after_long_help = OVERLOAD)]
    Overload {
        /// How long the load lasts.
        #[arg(value_name = "SECONDS", value_parser = positive)]
        seconds: usize,
        #[command(flatten)]
        shape: Shape,
        /// The number of chunks of a request.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
        chunks: usize,
        /// The number of concurrent clients.
        #[arg(long, value_name = "N", default_value_t = 40, value_parser = positive)]
        clients: usize,
    },
    /// Send requests of all kinds, and fail if memory exceeds its limits or a request fails.
    #[command(after_long_help = SOAK)]
    Soak {
        /// How long clients send requests.
        #[arg(value_name = "SECONDS", value_parser = positive)]
        seconds: usize,
        /// The number of concurrent clients.
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = positive)]
        clients: usize,
        /// The number of threads of the model, the daemon and its arithmetic, as if the machine had that many cores.
        #[arg(long, value_name = "N", value_parser = positive)]
        workers: Option<usize>,
        /// MiB of blocks in memory; a quarter of it for registered chunks, and as much for recent requests.
        #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive)]
        memory_mb: usize,
    },
}

/// The shape of generated requests.
#[derive(clap::Args)]
pub struct Shape {
    /// The number of tokens of a chunk.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = positive)]
    tokens: usize,
    /// Draw the length of each chunk from 10 to twice --tokens, as retrievers return chunks of different lengths.
    #[arg(long)]
    mixed: bool,
    /// The number of tokens of the question.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positive)]
    query_tokens: usize,
    /// The number of threads of the model, the daemon and its arithmetic, as if the machine had that many cores.
    #[arg(long, value_name = "N", value_parser = positive)]
    workers: Option<usize>,
}

impl Shape {
    fn workload(&self, chunks: usize) -> Workload {
        Workload { chunks, tokens: self.tokens, query_tokens: self.query_tokens, mixed: self.mixed }
    }
}

/// Another program that reads the same chunks.
#[derive(clap::Args)]
pub struct PeerArgs {
    /// Let sentence-transformers read the same chunks with this Python (crates/lab/peers/README.md).
    #[arg(long, value_name = "PYTHON")]
    peer: Option<PathBuf>,
    /// The Hugging Face model directory of the peer.
    #[arg(long, value_name = "DIR", default_value = "models/.cache/all-MiniLM-L6-v2", requires = "peer")]
    peer_model: PathBuf,
    /// What runs the peer's model, on the device of Thresher's: "onnx" (CPU only) or "torch" [default: onnx on the CPU, torch on a GPU, there in f32 and in f16].
    #[arg(long, value_name = "NAME", requires = "peer")]
    peer_backend: Option<Backend>,
    /// The number of texts in a batch of the peer.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive, requires = "peer")]
    peer_batch: usize,
}

const WARM: &str = "\
The first line of the table names the model, the precision of its weights, the device, the execution provider and the version of ONNX Runtime. \
The JSON has them in model and machine; machine.int8_kernels says whether this CPU has VNNI, machine.gpu is the name of the GPU.

All requests go over HTTP to a daemon in this process, with the settings of this command and with cache tiers in a new \
temporary directory ($TMPDIR). Limits that a workload exceeds are raised. The time of a request is from the first byte sent \
to the last byte received, without writing the body and parsing the answer.

Fields of the JSON, in milliseconds; medians unless noted otherwise:
  question_encode_ms  the model's graph over the question alone, in one session with all worker threads; its runs alternate \
with the warm requests
  pairs_ms            the graph over question and chunk together, for every chunk, with windows in parallel on the workers: \
the cost of a cross-encoder of this size. Measured on at most 100 pairs (pairs_measured) and extrapolated for more
  cold_ms             a request about new chunks
  warm_ms             p50 and p99 of requests that each ask another question about cached chunks, after one request that is \
not counted
  bytes_per_token     bytes of the chunks' blocks divided by their tokens
  rss_mb, rss_peak_mb resident memory of this process (daemon, client and graphs), in millions of bytes; null if the \
system does not report it
  ratios              computed within each round (or request), then the median with quartiles";

const SOAK: &str = "\
Keeps at most 256 MiB of blocks on disk, or less if the settings say so, and 128 MiB that wait to be written. Exits with 1 if resident memory \
was ever above the sum of its bounds and 300 MB, or if a request failed that should not.";

const OVERLOAD: &str = "\
Each client sends a request about new chunks with the default deadline, and the next one when it is answered, or a second after a refusal. In \
the JSON: alone, one client before the others; cold, the outcomes of the requests about new chunks, per second of the whole run; warm, requests \
about cached chunks, one every 200 ms at the same time. Exits with 1 if a request was neither answered, nor refused (429), nor late (504).";

const MIDDLEWARE: &str = "\
Each question about a context of cached chunks is sent to an upstream in this process directly, and through the middleware in three ways: \
forwarded whole, on a path that the middleware does not read, and compressed to a quarter of its tokens, without citations. Beside these, the \
same question goes to /v1/compress. In the JSON: NAME_ms, the time of a request, and NAME_added_ms, the time less that of the direct request \
about the same question, at p50 and p99. At the end, a conversation with 40 results of a tool goes to the upstream turn by turn, and then new \
questions about it, with and without citations of the answer.";

/// The number of HTTP requests for each round of `throughput`.
const REQUESTS_PER_ROUND: usize = 5;

/// The limits of `soak`: so small that the disk tier, too, evicts blocks all the time.
const SOAK_DISK_BYTES_MAX: u64 = 256 << 20;
const SOAK_WRITE_QUEUE_BYTES_MAX: u64 = 128 << 20;

/// The deadline of requests, long enough for slow machines.
const DEADLINE: Duration = Duration::from_secs(3600);

pub fn run(config: &Config, command: &Command) -> anyhow::Result<Results> {
    let bar = progress_bar("{msg} [{bar:30}] {pos}/{len}, {eta} left");
    let progress = |step: &str, done: usize, all: usize| {
        bar.set_message(step.to_owned());
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    progress("loading", 0, 1);
    let (table, json, passed) = measure(config, command, &progress)?;
    bar.finish_and_clear();
    println!("{table}");
    Ok(Results { json, passed })
}

/// Returns the table and the JSON of a command, and whether no target was missed.
fn measure(config: &Config, command: &Command, progress: Progress) -> anyhow::Result<(String, Value, bool)> {
    match command {
        Command::Warm { shape, chunks, registered, rounds, requests, clients } => {
            let workload = shape.workload(*chunks);
            let config = settings(config, shape.workers);
            let subject = Subject::start(&config, &limits(&config, &workload, *clients))?;
            let batched = BatchedGraph::load(app::engine(&config).load_settings())?;
            let source = if *registered { Source::Registered } else { Source::Inline };
            let effort = warm::Effort {
                rounds: *rounds,
                requests: *requests,
                warm_time_max: Duration::from_secs(5),
                cold_rounds: 8,
                clients: *clients,
                concurrent_time: Duration::from_secs(5),
            };
            let report = warm::run(&subject, batched, &workload, source, effort, progress)?;
            Ok((warm::table(&report), report.json().clone(), true))
        }
        Command::Throughput { shape, chunks, rounds, clients, peer } => {
            let workload = shape.workload(*chunks);
            let config = settings(config, shape.workers);
            let subject = Subject::start(&config, &limits(&config, &workload, *clients))?;
            let contenders = throughput::Contenders {
                batched: BatchedGraph::load(app::engine(&config).load_settings())?,
                flops: Flops::of_model(&config.model.dir)?,
                peers: start_peers(peer, &subject)?,
            };
            let effort = throughput::Effort {
                rounds: *rounds,
                requests: REQUESTS_PER_ROUND * rounds,
                clients: *clients,
            };
            let report = throughput::run(&subject, contenders, &workload, effort, progress)?;
            Ok((throughput::table(&report), report.json().clone(), true))
        }
        Command::Attribution { shape, chunks, rounds, answer_tokens } => {
            let workload = shape.workload(*chunks);
            let config = settings(config, shape.workers);
            let subject = Subject::start(&config, &limits(&config, &workload, 1))?;
            let batched = BatchedGraph::load(app::engine(&config).load_settings())?;
            let effort = attribution::Effort { answers: *rounds, answer_tokens: *answer_tokens };
            let report = attribution::run(&subject, batched, &workload, effort, progress)?;
            Ok((attribution::table(&report).to_owned(), report.json().clone(), true))
        }
        Command::Middleware { shape, chunks, requests } => {
            let workload = shape.workload(*chunks);
            let server = ModelServer::start()?;
            let mut config = settings(config, shape.workers).with_upstream(server.url());
            config.middleware.tools = vec!["*".to_owned()];
            let subject = Subject::start(&config, &limits(&config, &workload, 1))?;
            let report = middleware::run(&subject, &server, &workload, *requests, progress)?;
            Ok((middleware::table(&report).to_owned(), report.json().clone(), report.passed()))
        }
        Command::Overload { seconds, shape, chunks, clients } => {
            let workload = shape.workload(*chunks);
            let config = settings(config, shape.workers);
            let subject = Subject::start(&config, &limits(&config, &workload, *clients))?;
            let time = Duration::from_secs(*seconds as u64);
            let report =
                overload::run(&subject, overload::Settings { time, clients: *clients, workload }, progress)?;
            Ok((overload::table(&report), report.json().clone(), report.passed()))
        }
        Command::Soak { seconds, clients, workers, memory_mb } => {
            let workload = Workload { chunks: 100, tokens: 200, query_tokens: 16, mixed: false };
            let mut config = settings(config, *workers);
            config.blocks.disk_bytes_max = config.blocks.disk_bytes_max.min(SOAK_DISK_BYTES_MAX);
            let mut limits = limits(&config, &workload, *clients);
            let memory_bytes = (*memory_mb as u64) << 20;
            limits.memory.blocks = memory_bytes;
            // So large that a peak on a busy machine loses no block.
            limits.memory.block_writes = SOAK_WRITE_QUEUE_BYTES_MAX;
            limits.memory.chunks = memory_bytes as usize / 4;
            limits.memory.recent_requests = memory_bytes / 4;
            let subject = Subject::start(&config, &limits)?;
            let soak_settings = soak::Settings {
                time: Duration::from_secs(*seconds as u64),
                clients: *clients,
                memory: limits.memory,
                disk_bytes_max: config.blocks.disk_bytes_max,
            };
            let report = soak::run(&subject, soak_settings, progress)?;
            Ok((soak::table(&report), report.json().clone(), report.passed()))
        }
    }
}

fn start_peers(args: &PeerArgs, subject: &Subject) -> anyhow::Result<Vec<Peer>> {
    let Some(python) = &args.peer else { return Ok(Vec::new()) };
    let device = &subject.runtime.info().device.name;
    let settings = PeerSettings {
        python: python.clone(),
        model: args.peer_model.clone(),
        backend: args.peer_backend.unwrap_or_else(|| Backend::of_device(device)),
        device: device.clone(),
        precision: "f32",
        threads: subject.runtime.workers(),
        batch: args.peer_batch,
    };
    settings.in_each_precision().into_iter().map(Peer::start).collect()
}

fn settings(config: &Config, workers: Option<usize>) -> Config {
    let mut config = config.clone();
    if let Some(workers) = workers {
        config.model.workers = workers;
        if config.admission.concurrency_max == 0 {
            config.admission.concurrency_max = Admission::PER_CORE * workers;
        }
        // This fails if the pool has been used already; then only the threads of the model are limited.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(workers).build_global();
    }
    config
}

/// Returns the limits of a run: those that the workload would exceed are raised.
fn limits(config: &Config, workload: &Workload, clients: usize) -> Limits {
    let mut limits = Limits::new(config, 1);
    let raise = |limit: &mut usize, to: usize| *limit = (*limit).max(to);
    let tokens_max = 2 * workload.chunks * workload.tokens;
    let requests = &mut limits.bodies.requests;
    raise(&mut requests.chunk_count_max, workload.chunks);
    raise(&mut requests.registered_chunk_count_max, workload.chunks);
    raise(&mut requests.query_tokens_max, workload.query_tokens);
    raise(&mut requests.input_tokens_max, tokens_max);
    // A token has less than 512 bytes in a block.
    raise(&mut requests.block_bytes_max, clients * 512 * tokens_max);
    raise(&mut requests.logit_count_max, tokens_max * workload.query_tokens);
    raise(&mut requests.registered_bytes_max, 12 * tokens_max);
    raise(&mut limits.prefilter.above, workload.chunks);
    // A token has about six bytes, seldom twelve.
    raise(&mut limits.body_bytes_max, 12 * tokens_max);
    raise(&mut limits.memory.bodies, 4 * clients * 12 * tokens_max);
    limits.deadline_max = limits.deadline_max.max(DEADLINE);
    limits
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(e) => Err(format!("{e}")),
    }
}
