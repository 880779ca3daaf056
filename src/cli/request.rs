//! `thresher compress` and `thresher attribute`: the requests and answers of `POST /v1/compress` and `POST /v1/attribute`, without a daemon.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::api::CompressAnswer;
use crate::app;
use crate::config::Config;
use crate::error::ApiError;
use crate::local::Local;

/// The time of a request that names no deadline: in effect, it has none.
const NO_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(clap::Args)]
pub struct CompressArgs {
    /// The question. The files are then texts, and the kept text is printed.
    #[arg(long, short)]
    query: Option<String>,
    /// With `--query`: the most tokens to keep. Without it, as much is kept as the scores support.
    #[arg(long, requires = "query")]
    tokens: Option<usize>,
    /// Print only the context, instead of the answer as JSON.
    #[arg(long)]
    context: bool,
    /// With `--query`: print the answer as JSON, instead of the context.
    #[arg(long, requires = "query", conflicts_with = "context")]
    json: bool,
    /// The request as JSON or, with `--query`, text files. `-`, or no file, reads standard input.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(clap::Args)]
pub struct AttributeArgs {
    /// The answer to check. The files are then the texts that it was written from.
    #[arg(long, short)]
    answer: Option<String>,
    /// The request as JSON or, with `--answer`, text files. `-`, or no file, reads standard input.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub fn compress(config: &Config, args: &CompressArgs) -> anyhow::Result<ExitCode> {
    let body = match &args.query {
        Some(query) => {
            let budget = args.tokens.map_or(json!({}), |tokens| json!({"tokens": tokens}));
            json!({"query": query, "chunks": texts(&args.files)?, "budget": budget}).to_string().into_bytes()
        }
        None => request(&args.files, "--query \"...\"")?,
    };
    let prints_context = args.context || args.query.is_some() && !args.json;
    let print = |answer: Result<_, ApiError>| match answer {
        Err(error) => super::refuse(error, !prints_context),
        Ok(answer) if prints_context => {
            let context = CompressAnswer::context(&answer);
            if context.is_empty() {
                eprintln!("nothing in the texts is related to the question");
            }
            super::print_text(context);
            Ok(ExitCode::SUCCESS)
        }
        Ok(answer) => super::success(serde_json::to_string_pretty(&answer)?),
    };
    run(config, async |local| local.compress(&body).await, print)
}

pub fn attribute(config: &Config, args: &AttributeArgs) -> anyhow::Result<ExitCode> {
    let body = match &args.answer {
        Some(answer) => json!({"answer": answer, "chunks": texts(&args.files)?}).to_string().into_bytes(),
        None => request(&args.files, "--answer \"...\"")?,
    };
    let print = |answer: Result<_, ApiError>| match answer {
        Err(error) => super::refuse(error, true),
        Ok(answer) => super::success(serde_json::to_string_pretty(&answer)?),
    };
    run(config, async |local| local.attribute(&body).await, print)
}

/// Reads the request. `option` is what a text file needs instead.
fn request(files: &[PathBuf], option: &str) -> anyhow::Result<Vec<u8>> {
    let file = match files {
        [] => Path::new("-"),
        [file] => file,
        _ => anyhow::bail!("several files: a request is one JSON file; for text files, add {option}"),
    };
    let body = read(file)?;
    if !body.trim_ascii_start().starts_with(b"{") {
        anyhow::bail!("{} is no JSON request; for text files, add {option}", file.display());
    }
    Ok(body)
}

/// Reads text files as chunks with the names of the files.
fn texts(files: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    let standard_input = [PathBuf::from("-")];
    let files = if files.is_empty() { &standard_input } else { files };
    let text = |file: &PathBuf| {
        let text = String::from_utf8(read(file)?).with_context(|| {
            format!(
                "{} is not UTF-8 text; convert it first, a PDF for example with pdftotext",
                file.display()
            )
        })?;
        Ok(json!({"id": file.display().to_string(), "text": text}))
    };
    files.iter().map(text).collect()
}

/// Answers one request in this process and prints the outcome. A request that is invalid is refused before the model is loaded.
fn run<T>(
    config: &Config,
    request: impl AsyncFnOnce(&Local) -> Result<T, ApiError>,
    print: impl FnOnce(Result<T, ApiError>) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let local = app::local(config, NO_DEADLINE);
    let config = config.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let answer = runtime.block_on(local.with_model(move || app::pipeline(&config), request(&local)))?;
    // Printed before the runtime is dropped, which waits for work that has not stopped yet.
    print(answer)
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return std::fs::read(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body).context("cannot read standard input")?;
    Ok(body)
}
