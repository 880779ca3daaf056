//! `thresher compress`: the request and the answer of `POST /v1/compress`, without a daemon.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use thresher_core::domain::OnError;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{self, PipelineError};

use crate::api::{self, BodyLimits, CompressAnswer, CompressBody};
use crate::app;
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
    let limits = BodyLimits::new(&config.limits, config.registry.batch_count_max);
    let parsed = api::parse::<CompressBody>(&body, &limits).and_then(CompressBody::into_domain_alone);
    let (request, options) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return super::refuse(error, !args.context),
    };
    let pipeline = app::pipeline(config)?;
    let started = Instant::now();
    let deadline = options.deadline_ms.map(|ms| started + Duration::from_millis(ms));
    let mut degraded = None;
    let compressed = match pipeline.compress(&request, &Cancel::at(deadline)) {
        Ok(compressed) => compressed,
        Err(error)
            if options.on_error == OnError::Passthrough && !matches!(error, PipelineError::Invalid(_)) =>
        {
            degraded = Some(error.into());
            pipeline::passthrough(&request, started.elapsed())
        }
        Err(error) => return super::refuse(error.into(), !args.context),
    };
    let answer = CompressAnswer::new(&request, compressed, options.offsets, Some(&pipeline));
    let answer = match degraded {
        Some(error) => answer.degraded(error),
        None => answer,
    };
    match args.context {
        true => super::print(answer.context()),
        false => super::print(serde_json::to_string_pretty(&answer)?),
    }
    Ok(ExitCode::SUCCESS)
}
