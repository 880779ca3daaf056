//! `thresher key`: creates API keys.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use crate::access::NewKey;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a key. The key is shown once; the file of access.keys_file stores its hash.
    New(New),
}

#[derive(clap::Args)]
struct New {
    /// The name of the key in logs and metrics.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// The tenant of the key. Default: the tenant of a daemon without keys.
    #[arg(long, value_name = "TENANT", default_value = "", hide_default_value = true)]
    tenant: String,
    /// The most requests per minute, which may also arrive at once. Default: no limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests_per_minute: Option<u64>,
    /// The most tokens of the model per minute. Default: no limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tokens_per_minute: Option<u64>,
    /// Compress requests with this key in the middleware by default.
    #[arg(long)]
    middleware: bool,
    /// Add the entry to this file, which is created if necessary. Default: the entry is printed after the key.
    #[arg(long, value_name = "FILE.toml")]
    file: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::New(New { name, tenant, requests_per_minute, tokens_per_minute, middleware, file }) =
        args.command;
    let request = NewKey { name, tenant, requests_per_minute, tokens_per_minute, middleware };
    let issued = request.issue()?;
    match file {
        None => super::print(format_args!("{}\n\n{}", issued.key, issued.entry.trim_end())),
        Some(file) => {
            issued.add_to(&file)?;
            eprintln!("added to {}; this is the key, which is not stored anywhere:", file.display());
            // Only the key goes to standard output, for scripts.
            super::print(&issued.key);
        }
    }
    Ok(ExitCode::SUCCESS)
}
