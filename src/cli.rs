//! The command line: thin callers of the library.

mod attribute;
mod bench;
mod calibrate;
mod compress;
mod doctor;
mod eval;
mod export;
mod key;
mod mcp;
mod serve;
mod verify;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::config::Config;
use crate::error::{ApiError, ErrorAnswer};
use crate::local::Local;
use crate::{app, process};

/// How long a request of the command line may take that names no deadline: in effect, as long as it takes.
const NO_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Keeps the part of retrieved context that a question needs, word for word, with a citation for every piece.
#[derive(Parser)]
#[command(name = "thresher", version)]
struct Args {
    /// Settings; without it the defaults hold. The environment wins over both: THRESHER__SECTION__NAME=value.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon.
    Serve,
    /// Compress one request: JSON in, JSON out, as POST /v1/compress.
    Compress(compress::Args),
    /// Say which chunk each part of an answer came from: JSON in, JSON out, as POST /v1/attribute.
    Attribute(attribute::Args),
    /// Serve both as tools of the Model Context Protocol, over standard input and output.
    Mcp,
    /// Check a receipt: its signature, and by replay what it says against the sources. Exits with 3 where it does not hold.
    Verify(verify::Args),
    /// Make keys for those who ask.
    Key(key::Args),
    /// Turn a Hugging Face model folder into graphs and a contract.
    Export(export::Args),
    /// Choose the heads of a decoder that RC is taken over, by your own questions.
    Calibrate(calibrate::Args),
    /// Measure selection, compression and attribution on labelled data, against other methods.
    Eval(eval::Args),
    /// Measure speed: the model alone, the whole pipeline, HTTP, and a peer in the same run.
    Bench(bench::Args),
    /// Say what is installed, what is missing and what to do.
    Doctor,
}

/// Runs what the arguments say. Errors go to stderr, in one line each.
pub fn main() -> ExitCode {
    process::prepare();
    let args = Args::parse();
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", in_one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes; one that already quotes its cause does not say it twice.
fn in_one_line(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |line, cause| {
        if line.contains(&cause) { line } else { format!("{line}: {cause}") }
    })
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    let load = || Config::load(args.config.as_deref(), environment());
    let config =
        || load().inspect(|config| config.warnings.iter().for_each(|text| eprintln!("warning: {text}")));
    match args.command {
        Command::Serve => serve::run(load()?),
        Command::Compress(args) => compress::run(&config()?, &args),
        Command::Attribute(args) => attribute::run(&config()?, &args),
        Command::Mcp => mcp::run(config()?),
        Command::Verify(args) => verify::run(&config()?, &args),
        Command::Key(args) => key::run(args),
        Command::Export(args) => export::run(&args),
        Command::Calibrate(args) => calibrate::run(&config()?, &args),
        Command::Eval(args) => eval::run(&config()?, &args),
        Command::Bench(args) => bench::run(&config()?, &args),
        Command::Doctor => doctor::run(load()),
    }
}

/// The environment's variables that are text; a setting cannot be anything else.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// A request from a file; `-` or nothing reads standard input.
fn read(request: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    match request.filter(|path| path.as_os_str() != "-") {
        Some(path) => std::fs::read(path).with_context(|| format!("cannot read {}", path.display())),
        None => {
            let mut body = Vec::new();
            std::io::stdin().read_to_end(&mut body).context("cannot read standard input")?;
            Ok(body)
        }
    }
}

/// Answers one request in this process and hands the outcome to `print`.
fn answer<T>(
    config: &Config,
    ask: impl AsyncFnOnce(&Local) -> Result<T, ApiError>,
    print: impl FnOnce(Result<T, ApiError>) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let local = app::local(config, NO_DEADLINE);
    let config = config.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let answer = runtime.block_on(local.with_model(move || app::pipeline(&config), ask(&local)))?;
    // Before the runtime is dropped, which waits for work that has not stopped yet.
    print(answer)
}

fn success(text: impl std::fmt::Display) -> anyhow::Result<ExitCode> {
    print(text);
    Ok(ExitCode::SUCCESS)
}

/// Says what is wrong for people, and for programs on standard output where one reads it.
fn refuse(error: ApiError, is_read_by_program: bool) -> anyhow::Result<ExitCode> {
    eprintln!("error: {}: {}", error.code, error.message);
    if is_read_by_program {
        print(serde_json::to_string_pretty(&ErrorAnswer { error })?);
    }
    Ok(ExitCode::FAILURE)
}

/// Prints to standard output, or ends the process where that takes no more; a reader that has seen enough, as `head` has, is
/// no error.
fn print(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write to standard output: {error}");
            std::process::exit(1)
        }
        _ => {}
    }
}
