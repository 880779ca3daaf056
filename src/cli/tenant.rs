//! `thresher tenant`: deletes the data of a tenant.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::Subcommand;
use serde_json::Value;

use super::health;
use crate::config::Config;
use crate::http::DEFAULT_TENANT;

/// How long deleting may take: a large registry and a large store are written anew.
const ANSWER_MAX: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Delete all data of a tenant from the running daemon of these settings: registered chunks, originals, sessions, cached blocks, recent
    /// requests and counts. The tenant's keys stay.
    Delete(Delete),
}

#[derive(clap::Args)]
struct Delete {
    /// The name of the tenant.
    #[arg(required_unless_present = "default")]
    name: Option<String>,
    /// The tenant of keys without a tenant, and of a daemon without keys.
    #[arg(long, conflicts_with = "name")]
    default: bool,
}

pub fn run(config: &Config, args: Args) -> anyhow::Result<ExitCode> {
    let Command::Delete(Delete { name, .. }) = args.command;
    let (tenant, name) = match &name {
        Some(name) => (&**name, format!("the tenant {name:?}")),
        None => (DEFAULT_TENANT, "the default tenant".to_owned()),
    };
    let path = format!(
        "/admin/tenants/{}",
        percent_encoding::utf8_percent_encode(tenant, percent_encoding::NON_ALPHANUMERIC)
    );
    let mut answer = health::send(config, "DELETE", &path, ANSWER_MAX)?;
    let text = answer.body_mut().read_to_string()?;
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    if !answer.status().is_success() {
        bail!("{}", body["error"]["message"].as_str().unwrap_or(text.trim()));
    }
    let [chunks, originals, blocks] = ["chunks", "originals", "blocks"].map(|name| &body[name]);
    super::success(format_args!(
        "deleted of {name}: {chunks} registered chunks, {originals} stored texts, {blocks} cached blocks"
    ))
}
