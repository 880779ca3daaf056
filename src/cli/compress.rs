//! `thresher compress`: the request and the answer of `POST /v1/compress`, without a daemon.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::api::{self, CompressAnswer, CompressBody, ErrorAnswer, ErrorBody};
use crate::app;
use crate::config::Config;
use crate::domain::OnError;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::{self, PipelineError};

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
    let body = read(args)?;
    let parsed = api::parse::<CompressBody>(&body).and_then(|body| body.into_domain(None));
    let (request, options) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => {
            return refuse(args, ErrorBody { code: e.code, message: e.message, param: e.param });
        }
    };
    let pipeline = app::pipeline(config)?;
    let started = Instant::now();
    let deadline = options.deadline_ms.map(|ms| started + Duration::from_millis(ms));
    let compressed = match pipeline.compress(&request, &Cancel::at(deadline)) {
        Ok(compressed) => compressed,
        Err(PipelineError::Invalid(e)) => {
            let param = Some(e.param());
            return refuse(args, ErrorBody { code: e.code(), message: e.to_string(), param });
        }
        Err(e) if options.on_error == OnError::Passthrough => {
            pipeline::passthrough(&request, e.code(), e.to_string(), started.elapsed())
        }
        Err(e) => {
            return refuse(args, ErrorBody { code: e.code(), message: e.to_string(), param: None });
        }
    };
    let answer = CompressAnswer::new(&request, compressed, options.offsets, Some(&pipeline));
    match args.context {
        true => super::print(answer.context()),
        false => super::print(serde_json::to_string_pretty(&answer)?),
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &Args) -> anyhow::Result<Vec<u8>> {
    match args.request.as_deref().filter(|path| path.as_os_str() != "-") {
        Some(path) => std::fs::read(path).with_context(|| format!("cannot read {}", path.display())),
        None => {
            let mut body = Vec::new();
            std::io::stdin().read_to_end(&mut body).context("cannot read standard input")?;
            Ok(body)
        }
    }
}

/// The same error that HTTP would answer, on standard output where a program reads it; not where it expects a context.
fn refuse(args: &Args, error: ErrorBody) -> anyhow::Result<ExitCode> {
    eprintln!("error: {}: {}", error.code, error.message);
    if !args.context {
        super::print(serde_json::to_string_pretty(&ErrorAnswer { error })?);
    }
    Ok(ExitCode::FAILURE)
}
