//! `thresher attribute`: the request and the answer of `POST /v1/attribute`, without a daemon.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use thresher_core::pipeline::cancel::Cancel;

use crate::api::{self, AttributeAnswer, AttributeBody, BodyLimits, Names};
use crate::app;
use crate::config::Config;
use crate::receipt::{Receipt, SigningKey};

#[derive(clap::Args)]
pub struct Args {
    /// The request; `-` or nothing reads standard input.
    #[arg(value_name = "FILE")]
    request: Option<PathBuf>,
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let body = super::read(args.request.as_deref())?;
    let limits = BodyLimits::new(&config.limits, config.registry.batch_count_max);
    let parsed = api::parse::<AttributeBody>(&body, &limits)
        .and_then(|body| Ok((body.deadline_ms(), body.into_domain(None, &limits)?)));
    let (deadline_ms, (request, options)) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return super::refuse(error, true),
    };
    let pipeline = app::pipeline(config)?;
    let deadline = deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
    match pipeline.attribute(&request, &Cancel::at(deadline)) {
        Ok(attributed) => {
            let answer = AttributeAnswer::new(&request, &attributed, &options, &pipeline, Names::default());
            let receipt = options.receipt.then(|| {
                let key = SigningKey::at(&config.receipts.key_file)?;
                anyhow::Ok(Receipt::of(&request, &attributed, &pipeline, &key))
            });
            super::print(serde_json::to_string_pretty(&answer.with_receipt(receipt.transpose()?))?);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => super::refuse(error.into(), true),
    }
}
