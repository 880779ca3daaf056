//! `thresher compress`: the request and the answer of `POST /v1/compress`, without a daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::Config;

#[derive(clap::Args)]
pub struct Args {
    /// The request; `-` or nothing reads standard input.
    #[arg(value_name = "FILE")]
    request: Option<PathBuf>,
    /// Print the context alone.
    #[arg(long)]
    context: bool,
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let body = super::read(args.request.as_deref())?;
    super::answer(
        config,
        async |local| local.compress(&body).await,
        |answer| match answer {
            Err(error) => super::refuse(error, !args.context),
            Ok(answer) if args.context => super::success(answer.context()),
            Ok(answer) => super::success(serde_json::to_string_pretty(&answer)?),
        },
    )
}
