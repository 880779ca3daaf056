//! `thresher verify`: checks the signature of a receipt, and whether attributing the answer again gives the same result.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thresher_core::domain::Parts;
use thresher_core::pipeline::cancel::Cancel;

use crate::api::{self, AttributeBody};
use crate::app::{self, Limits};
use crate::config::Config;
use crate::receipt::{Difference, Receipt, SigningKey, Statement};

/// The exit code for a receipt that was checked and does not hold. If it cannot be checked, the exit code is that of other errors.
const DOES_NOT_HOLD: u8 = 3;

#[derive(clap::Args)]
pub struct Args {
    /// The receipt, or an answer that has one; of an answer, only the receipt is checked.
    #[arg(value_name = "RECEIPT.json")]
    receipt: PathBuf,
    /// The answer and all of its chunks, in the format of a request to POST /v1/attribute. Other fields, such as metadata, are not part of a
    /// receipt.
    #[arg(long, value_name = "FILE.json")]
    request: PathBuf,
    /// The public key that must have signed the receipt, in base64. Without it, the receipt can be compared with the request, but not verified:
    /// anybody can sign one with a key of their own.
    #[arg(long, value_name = "KEY")]
    public_key: Option<String>,
}

#[derive(Serialize)]
struct Report {
    verified: bool,
    signed_by: Option<String>,
    /// Whether the receipt was signed by the key that `--public-key` names.
    signer_checked: bool,
    receipt_error: Option<String>,
    /// Where the receipt differs from the attribution that was just made.
    differences: Vec<Difference>,
}

#[derive(Deserialize)]
struct Answer {
    receipt: Receipt,
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let read =
        |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let text = read(&args.receipt)?;
    let json: Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", args.receipt.display()))?;
    // Read from the text, in which a field that is there twice is an error.
    let receipt = match json.get("receipt") {
        Some(_) => serde_json::from_slice(&text).map(|Answer { receipt }| receipt),
        None => serde_json::from_slice(&text),
    };
    let receipt: Receipt = receipt.with_context(|| format!("{} holds no receipt", args.receipt.display()))?;
    let signer_checked = args.public_key.is_some();
    let unknown_signer = || {
        (!signer_checked)
            .then(|| "signed by an unknown key: name the key that you trust with --public-key".to_owned())
    };
    let signed_by = receipt.key().map(str::to_owned);
    if let Some(key) = args.public_key.as_deref().filter(|key| !SigningKey::is_public(key)) {
        bail!("{key:?} is no public key: a public key has 32 bytes, in base64");
    }
    let statement = match receipt.statement(args.public_key.as_deref()) {
        Ok(statement) => statement,
        Err(error) => {
            let receipt_error = Some(error.to_string());
            let differences = Vec::new();
            return report(&Report {
                verified: false,
                signed_by,
                signer_checked,
                receipt_error,
                differences,
            });
        }
    };
    let limits = Limits::new(config, 1).bodies;
    let body = api::parse::<AttributeBody>(&read(&args.request)?, &limits)
        .and_then(|body| body.into_domain(None, &limits));
    let (request, _) = match body {
        Ok(parsed) => parsed,
        Err(error) => return super::refuse(error, true),
    };
    let differences = statement.compare_input(&request.answer, &request.chunks);
    if !differences.is_empty() {
        let receipt_error = unknown_signer();
        return report(&Report { verified: false, signed_by, signer_checked, receipt_error, differences });
    }
    let mut config = config.clone();
    config.blocks.codec = statement.codec();
    let pipeline = app::pipeline(&config)?;
    let values =
        if statement.is_of_values() { api::json_values(&request.answer, &limits)? } else { Parts::default() };
    let request = statement.replay(request, values);
    let now = match pipeline.attribute(&request, &Cancel::default()) {
        Ok(attributed) => Statement::new(&request, &attributed, &pipeline),
        Err(error) => return super::refuse(error.into(), true),
    };
    let differences = statement.compare(&now);
    let verified = differences.is_empty() && signer_checked;
    report(&Report { verified, signed_by, signer_checked, receipt_error: unknown_signer(), differences })
}

fn report(report: &Report) -> anyhow::Result<ExitCode> {
    super::print(serde_json::to_string_pretty(report)?);
    Ok(if report.verified { ExitCode::SUCCESS } else { ExitCode::from(DOES_NOT_HOLD) })
}
