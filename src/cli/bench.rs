//! `thresher bench`: measures speed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use thresher_core::kv::local::LocalTiers;
use thresher_core::kv::store::KvStore;
use thresher_core::kv::tiers::AllTiers;
use thresher_core::model::ModelRuntime;
use thresher_core::model::ort::LoadedModel;
use thresher_lab::bench::daemon::{Daemon, Parts};
use thresher_lab::bench::flops::Flops;
use thresher_lab::bench::hostile::{self, Row};
use thresher_lab::bench::middleware::{self, ModelServer};
use thresher_lab::bench::model_graph::BatchedGraph;
use thresher_lab::bench::peer::{Backend, Peer, PeerSettings};
use thresher_lab::bench::report::ModelOnDevice;
use thresher_lab::bench::workload::{Source, Workload};
use thresher_lab::bench::{Progress, Subject, attribution, overload, soak, targets, throughput, warm};
use tokio::signal::unix::{SignalKind, signal};

use crate::access::Access;
use crate::app;
use crate::config::{Admission, Config};
use crate::{http, process, telemetry};

#[derive(clap::Args)]
#[command(after_long_help = DEFINITIONS)]
pub struct Args {
    /// The number of chunks of a request [default: 100; 20 with --throughput, --overload, --attribution or --middleware].
    #[arg(long, value_name = "N", value_parser = positive)]
    chunks: Option<usize>,
    /// The number of tokens of a chunk.
    #[arg(long, default_value_t = 200, value_name = "T", value_parser = positive)]
    tokens: usize,
    /// Draw the length of each chunk from 10 to twice --tokens, as retrievers return chunks of different lengths.
    #[arg(long)]
    mixed: bool,
    /// The number of tokens of the question.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = positive)]
    query_tokens: usize,
    /// Register the chunks and name them by their ids, instead of sending their text with each question.
    #[arg(long, conflicts_with_all = ["throughput", "peer", "soak"])]
    registered: bool,
    /// The number of rounds, each with new chunks or a new answer [default: 3; 20 with --throughput; 100 with --attribution].
    #[arg(long, value_name = "R", value_parser = positive)]
    rounds: Option<usize>,
    /// The number of warm requests in all rounds together; fewer if they take long.
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = positive)]
    requests: usize,
    /// The number of concurrent clients [default: 32; 8 with --throughput or --soak; 40 with --overload].
    #[arg(long, value_name = "N", value_parser = positive)]
    clients: Option<usize>,
    /// The number of threads of the model, the daemon and its arithmetic, as if the machine had that many cores.
    #[arg(long, value_name = "N", value_parser = positive)]
    workers: Option<usize>,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure how fast new chunks are read instead: by the graph alone, in batches, by the pipeline, and over HTTP.
    #[arg(long)]
    throughput: bool,
    /// As --throughput, and let sentence-transformers read the same chunks with this Python (crates/lab/peers/README.md).
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
    /// Send requests of all kinds for this time instead, and fail if memory exceeds its limits or a request fails.
    #[arg(long, value_name = "SECONDS", value_parser = positive, conflicts_with_all = ["throughput", "peer", "chunks", "tokens", "query_tokens", "mixed", "rounds", "requests"])]
    soak: Option<usize>,
    /// Send more new chunks than the model can read for this time instead, with occasional requests about cached chunks.
    #[arg(long, value_name = "SECONDS", value_parser = positive, conflicts_with_all = ["throughput", "peer", "soak", "mixed", "registered", "rounds", "requests"])]
    overload: Option<usize>,
    /// Attribute answers to cached chunks instead.
    #[arg(long, conflicts_with_all = ["throughput", "peer", "soak", "overload", "registered", "clients"])]
    attribution: bool,
    /// The number of tokens of an answer.
    #[arg(long, default_value_t = 300, value_name = "N", value_parser = positive, requires = "attribution")]
    answer_tokens: usize,
    /// Measure the time that the middleware adds to requests instead: to those that go whole, and to those that are compressed.
    #[arg(long, conflicts_with_all = ["throughput", "peer", "soak", "overload", "attribution", "registered", "clients", "rounds", "hostile"])]
    middleware: bool,
    /// Attack a daemon with default settings in another process instead, and fail if it misses a target; takes about ten minutes.
    #[arg(long, conflicts_with_all = ["throughput", "peer", "soak", "overload", "attribution", "registered", "clients", "chunks", "tokens", "query_tokens", "mixed", "rounds", "requests"])]
    hostile: bool,
    /// The rows of --hostile to run, separated by commas [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "hostile")]
    rows: Vec<Row>,
    /// Another build of this program for --hostile to attack, to compare the two [default: this program].
    #[arg(long, value_name = "FILE", requires = "hostile")]
    binary: Option<PathBuf>,
}

const DEFINITIONS: &str = "\
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
  ratios              computed within each round (or request), then the median with quartiles

--soak keeps at most 64 MiB of blocks in memory, 256 MiB on disk, 16 MiB of registered chunks in memory and 16 MiB of recent requests, or less if the \
settings say so. It exits with 1 if resident memory was ever above blocks.memory_bytes_max + blocks.write_queue_bytes_max + \
registry.cache_bytes_max + handles.bytes_max + 300 MB, or if a request failed that should not.

--overload: each client sends a request about new chunks with the default deadline, and the next one when it is answered, or a second after a refusal. In the JSON: alone, one client before the others; cold, the outcomes of the requests about new chunks, per second of the whole run; warm, requests about cached chunks, one every 200 ms at the same time. Exits with 1 if a request was neither answered, nor refused (429), nor late (504).

--middleware: each question about a context of cached chunks is sent to an upstream in this process directly, and through the \
middleware in three ways: forwarded whole, on a path that the middleware does not read, and compressed to a quarter of its tokens, without \
citations. Beside these, the same question goes to /v1/compress. In the JSON: NAME_ms, the time of a request, and NAME_added_ms, the time \
less that of the direct request about the same question, at p50 and p99.

--hostile: the daemon is this program in another process, with default settings except for its addresses and directory, and for \
what a row names. Of the settings of this command, only the model directory, the runtime and --workers apply. Each row starts a new daemon, \
attacks it over loopback for a limited time, and compares measurements with targets. Resident memory and processor time are those of the daemon. \
A daemon that takes gigabytes more than at its start is killed, and has missed its target. In the JSON: rows, each with its name, attack, aim, \
at_least or at_most, reached, held (null: the row cannot run here; the note says why). Exits with 1 if a target was missed.

--attribution: each round attributes an answer of --answer-tokens tokens to the chunks over HTTP, and then runs the graph over the answer. \
In the JSON: attribute_ms, answer_encode_ms.";

/// The default number of answers that are attributed.
const ANSWER_COUNT_DEFAULT: usize = 100;

/// The number of HTTP requests for each round of --throughput.
const REQUESTS_PER_ROUND: usize = 5;

/// The limits of --soak: so small that both tiers evict blocks all the time.
const SOAK_MEMORY_BYTES_MAX: u64 = 64 << 20;
const SOAK_DISK_BYTES_MAX: u64 = 256 << 20;
const SOAK_HANDLE_BYTES_MAX: u64 = 16 << 20;
const SOAK_REGISTRY_BYTES_MAX: usize = 16 << 20;

/// The deadline of requests, long enough for slow machines.
const DEADLINE: Duration = Duration::from_secs(3600);

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let is_throughput = args.throughput || args.peer.is_some();
    let workload = Workload {
        chunks: args.chunks.unwrap_or(
            if is_throughput || args.overload.is_some() || args.attribution || args.middleware {
                20
            } else {
                100
            },
        ),
        tokens: args.tokens,
        query_tokens: args.query_tokens,
        mixed: args.mixed,
    };
    // Created first, so that an error shows before a long run.
    if let Some(path) = &args.json {
        create(path)?;
    }
    let config = settings(config, args, &workload);
    let bar = ProgressBar::new(0).with_style(style());
    let progress = |step: &str, done: usize, all: usize| {
        bar.set_message(step.to_owned());
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    progress("loading", 0, 1);
    if args.hostile {
        return attack(&config, args, &bar, &progress);
    }
    let server = args.middleware.then(ModelServer::start).transpose()?;
    let config = match &server {
        Some(server) => config.with_upstream(server.url()),
        None => config,
    };
    let subject = subject(&config)?;
    let (table, json, passed) = if let Some(server) = &server {
        let report = middleware::run(&subject, server, &workload, args.requests, &progress)?;
        (middleware::table(&report).to_owned(), report.json().clone(), report.passed())
    } else if args.soak.is_some() {
        let report = soak::run(&subject, soak_settings(&config, args), &progress)?;
        (soak::table(&report), report.json().clone(), report.passed())
    } else if let Some(seconds) = args.overload {
        let (time, clients) = (Duration::from_secs(seconds as u64), clients(args));
        let report = overload::run(&subject, overload::Settings { time, clients, workload }, &progress)?;
        (overload::table(&report), report.json().clone(), report.passed())
    } else if args.attribution {
        let batched = BatchedGraph::load(app::engine(&config).load_settings())?;
        let effort = (args.rounds.unwrap_or(ANSWER_COUNT_DEFAULT), args.answer_tokens);
        let report = attribution::run(&subject, batched, &workload, effort, &progress)?;
        (attribution::table(&report).to_owned(), report.json().clone(), true)
    } else if is_throughput {
        let report = throughput(&subject, &config, args, &workload, &progress)?;
        (throughput::table(&report), report.json().clone(), true)
    } else {
        let batched = BatchedGraph::load(app::engine(&config).load_settings())?;
        let source = if args.registered { Source::Registered } else { Source::Inline };
        let report = warm::run(&subject, batched, &workload, source, effort(args), &progress)?;
        (warm::table(&report), report.json().clone(), true)
    };
    bar.finish_and_clear();
    super::print(table);
    if let Some(path) = &args.json {
        write(path, &json)?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the rows of --hostile; 130 if interrupted.
fn attack(config: &Config, args: &Args, bar: &ProgressBar, progress: Progress) -> anyhow::Result<ExitCode> {
    let absolute = |path: &Path| {
        std::path::absolute(path).with_context(|| format!("{} cannot be made absolute", path.display()))
    };
    let setup = hostile::Setup {
        binary: match &args.binary {
            Some(binary) => absolute(binary)?,
            None => std::env::current_exe().context("the program's own file is not known")?,
        },
        model_dir: absolute(&config.model.dir)?,
        runtime_lib: absolute(&config.model.runtime_lib())?,
        workers: args.workers,
        defaults: serde_json::to_value(Config::default())?,
    };
    let rows = if args.rows.is_empty() { Row::all() } else { args.rows.clone() };
    let report = hostile::run(&setup, &rows, progress)?;
    bar.finish_and_clear();
    let Some(report) = report else {
        eprintln!("error: interrupted");
        return Ok(ExitCode::from(130));
    };
    super::print(hostile::table(&report));
    if let Some(path) = &args.json {
        write(path, &report.json())?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn throughput(
    subject: &Subject,
    config: &Config,
    args: &Args,
    workload: &Workload,
    progress: Progress,
) -> anyhow::Result<throughput::Report> {
    let device = &subject.runtime.info().device.name;
    let peers = args.peer.clone().map(|python| PeerSettings {
        python,
        model: args.peer_model.clone(),
        backend: args.peer_backend.unwrap_or_else(|| Backend::of_device(device)),
        device: device.clone(),
        precision: "f32",
        threads: subject.runtime.workers(),
        batch: args.peer_batch,
    });
    let peers = peers.into_iter().flat_map(PeerSettings::in_each_precision);
    let contenders = throughput::Contenders {
        batched: BatchedGraph::load(app::engine(config).load_settings())?,
        flops: Flops::of_model(&config.model.dir)?,
        peers: peers.map(Peer::start).collect::<anyhow::Result<_>>()?,
    };
    let rounds = args.rounds.unwrap_or(20);
    let (requests, clients) = (REQUESTS_PER_ROUND * rounds, clients(args));
    let effort = throughput::Effort { rounds, requests, clients };
    throughput::run(subject, contenders, workload, effort, progress)
}

/// The number of concurrent clients.
fn clients(args: &Args) -> usize {
    args.clients.unwrap_or(match args {
        Args { overload: Some(_), .. } => 40,
        Args { soak: Some(_), .. } | Args { throughput: true, .. } | Args { peer: Some(_), .. } => 8,
        _ => targets::CLIENTS,
    })
}

fn effort(args: &Args) -> warm::Effort {
    warm::Effort {
        rounds: args.rounds.unwrap_or(3),
        requests: args.requests,
        warm_time_max: Duration::from_secs(5),
        cold_rounds: 8,
        clients: clients(args),
        concurrent_time: Duration::from_secs(5),
    }
}

fn soak_settings(config: &Config, args: &Args) -> soak::Settings {
    soak::Settings {
        time: Duration::from_secs(args.soak.unwrap_or_default() as u64),
        clients: clients(args),
        memory_bytes_max: config.blocks.memory_bytes_max,
        write_queue_bytes_max: config.blocks.write_queue_bytes_max,
        registry_bytes_max: config.registry.cache_bytes_max as u64,
        handle_bytes_max: config.handles.bytes_max,
        disk_bytes_max: config.blocks.disk_bytes_max,
    }
}

/// The settings of the benchmark: limits that the workload would exceed are raised. The device that is measured computes everything.
fn settings(config: &Config, args: &Args, workload: &Workload) -> Config {
    let mut config = config.clone();
    config.model.device_fallback = false;
    if let Some(workers) = args.workers {
        config.model.workers = workers;
        if config.admission.concurrency_max == 0 {
            config.admission.concurrency_max = Admission::PER_CORE * workers;
        }
        // This fails if the pool has been used already; then only the threads of the model are limited.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(workers).build_global();
    }
    let raise = |limit: &mut usize, to: usize| *limit = (*limit).max(to);
    let tokens_max = 2 * workload.chunks * workload.tokens;
    raise(&mut config.limits.chunk_count_max, workload.chunks);
    raise(&mut config.limits.registered_chunk_count_max, workload.chunks);
    raise(&mut config.registry.prefilter_above, workload.chunks);
    raise(&mut config.limits.query_tokens_max, workload.query_tokens);
    raise(&mut config.limits.input_tokens_max, tokens_max);
    raise(&mut config.limits.logit_count_max, tokens_max * workload.query_tokens);
    // A token has about six bytes, seldom twelve.
    raise(&mut config.http.body_bytes_max, 12 * tokens_max);
    raise(&mut config.http.bodies_bytes_max, 4 * clients(args) * 12 * tokens_max);
    raise(&mut config.limits.registered_bytes_max, 12 * tokens_max);
    raise(&mut config.admission.queue_max, clients(args));
    let deadline_ms_max = &mut config.admission.deadline_ms_max;
    *deadline_ms_max = (*deadline_ms_max).max(DEADLINE.as_millis() as u64);
    if args.soak.is_some() {
        let blocks = &mut config.blocks;
        blocks.memory_bytes_max = blocks.memory_bytes_max.min(SOAK_MEMORY_BYTES_MAX);
        blocks.disk_bytes_max = blocks.disk_bytes_max.min(SOAK_DISK_BYTES_MAX);
        let registry = &mut config.registry;
        registry.cache_bytes_max = registry.cache_bytes_max.min(SOAK_REGISTRY_BYTES_MAX);
        config.handles.bytes_max = config.handles.bytes_max.min(SOAK_HANDLE_BYTES_MAX);
    }
    config
}

/// The daemon as `serve` wires it, except for its directories, and without a shared tier and reading ahead.
fn subject(config: &Config) -> anyhow::Result<Subject> {
    let mut config = config.clone();
    let dir =
        tempfile::Builder::new().prefix("thresher-bench-").tempdir().context("no temporary directory")?;
    if config.blocks.disk() {
        config.blocks.dir = dir.path().join("kv");
    }
    config.registry.dir = dir.path().join("registry");
    config.originals.dir = dir.path().join("originals");
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(config.model.workers()).enable_all().build()?;
    let metrics = telemetry::install_metrics()?;
    runtime.spawn(app::upkeep(metrics));
    let local = LocalTiers::open(&app::local_settings(&config))?;
    let store = Arc::new(KvStore::new(Arc::new(AllTiers::new(local.clone(), None))));
    let engine = app::engine(&config).store(store).build()?;
    let LoadedModel::Late(late) = engine.model() else {
        anyhow::bail!("bench measures late-interaction models, and this model is a decoder")
    };
    let (late, tokenizer) = (Arc::clone(late), Arc::clone(engine.tokenizer()));
    let tenants = app::tenants(&config, None);
    let service = app::service(&config, Access::open_to_all(), tenants.clone())?;
    tenants.open_default()?;
    app::warm_up(engine.pipeline())?;
    tenants.set_pipeline(engine.into_pipeline());
    let pipeline = tenants.default_tenant().pipeline().map(Arc::clone).context("it was set")?;
    let deadline_max = service.limits.deadline_max;
    let serve = |listener| {
        let router = http::router(service);
        http::serve(listener, router, (app::serving(&config), None), std::future::pending())
    };
    let daemon = Daemon::start(Parts { runtime, deadline_max, pipeline, local, dir }, serve)?;
    let dir = daemon.dir().to_owned();
    daemon.spawn(async move {
        // An interrupted run leaves no files.
        let Ok(mut term) = signal(SignalKind::terminate()) else { return };
        let code = tokio::select! {
            _ = tokio::signal::ctrl_c() => 130,
            _ = term.recv() => 143,
        };
        let _ = std::fs::remove_dir_all(dir);
        process::leave(code)
    });
    let on = ModelOnDevice::new(&config.model.dir, &config.model.runtime_lib(), &late.info().device)?;
    Ok(Subject { runtime: late, tokenizer, on, daemon })
}

fn create(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

fn write(path: &Path, json: &Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(json)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
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
