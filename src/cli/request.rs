//! `thresher compress` and `thresher attribute`: the requests and answers of `POST /v1/compress` and `POST /v1/attribute`, without a daemon.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use crate::app;
use crate::config::Config;
use crate::error::ApiError;
use crate::local::Local;

/// The time of a request that names no deadline: in effect, it has none.
const NO_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

#[derive(clap::Args)]
pub struct CompressArgs {
    /// The request as JSON. `-`, or no file, reads standard input.
    #[arg(value_name = "FILE")]
    request: Option<PathBuf>,
    /// Print only the context, instead of the answer as JSON.
    #[arg(long)]
    context: bool,
}

#[derive(clap::Args)]
pub struct AttributeArgs {
    /// The request as JSON. `-`, or no file, reads standard input.
    #[arg(value_name = "FILE")]
    request: Option<PathBuf>,
}

pub fn compress(config: &Config, args: &CompressArgs) -> anyhow::Result<ExitCode> {
    let body = read(args.request.as_deref())?;
    let print = |answer: Result<_, ApiError>| match answer {
        Err(error) => super::refuse(error, !args.context),
        Ok(answer) if args.context => super::success(crate::api::CompressAnswer::context(&answer)),
        Ok(answer) => super::success(serde_json::to_string_pretty(&answer)?),
    };
    run(config, async |local| local.compress(&body).await, print)
}

pub fn attribute(config: &Config, args: &AttributeArgs) -> anyhow::Result<ExitCode> {
    let body = read(args.request.as_deref())?;
    let print = |answer: Result<_, ApiError>| match answer {
        Err(error) => super::refuse(error, true),
        Ok(answer) => super::success(serde_json::to_string_pretty(&answer)?),
    };
    run(config, async |local| local.attribute(&body).await, print)
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
