//! `thresher key`: keys for those who ask.

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
    /// Make a key. It is shown once; what is kept is its hash, in the file that access.keys_file names.
    New(New),
}

#[derive(clap::Args)]
struct New {
    /// What logs and metrics call it.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Whose data it works with; without it the data of a daemon without keys.
    #[arg(long, value_name = "TENANT", default_value = "", hide_default_value = true)]
    tenant: String,
    /// Requests that a minute brings, and that may come at once; without it as many as come.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests_per_minute: Option<u64>,
    /// Tokens of the model, likewise.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tokens_per_minute: Option<u64>,
    /// Have the middleware compress its requests without being asked.
    #[arg(long)]
    middleware: bool,
    /// Add its entry to this file, made if it is not there; without it the entry is printed behind the key.
    #[arg(long, value_name = "FILE.toml")]
    file: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::New(New { name, tenant, requests_per_minute, tokens_per_minute, middleware, file }) =
        args.command;
    let asked = NewKey { name, tenant, requests_per_minute, tokens_per_minute, middleware };
    let issued = asked.issue()?;
    match file {
        None => super::print(format_args!("{}\n\n{}", issued.key, issued.entry.trim_end())),
        Some(file) => {
            issued.add_to(&file)?;
            eprintln!("added to {}; this is the key, which is kept nowhere:", file.display());
            // Alone, for scripts.
            super::print(&issued.key);
        }
    }
    Ok(ExitCode::SUCCESS)
}
