//! `thresher-lab`: measures a build of Thresher.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[path = "../../../src/allocator.rs"]
mod allocator;
mod quality_cli;
mod speed_cli;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use thresher::config::{self, Config};

/// Measures the speed and memory use of a daemon in this process, and compares methods on labelled rows.
#[derive(Parser)]
#[command(name = "thresher-lab", version)]
struct Args {
    /// The settings file, as of `thresher`.
    #[arg(long, global = true, value_name = "FILE", env = "THRESHER_CONFIG")]
    config: Option<OsString>,
    /// Write the results as JSON.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The model directory (overrides model.dir).
    #[arg(long, global = true, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Speed(speed_cli::Command),
    #[command(flatten)]
    Quality(quality_cli::Command),
}

fn main() -> ExitCode {
    thresher::process::prepare();
    run(Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { config, json, model, command } = args;
    let file = match config {
        Some(file) => Some(file).filter(|file| !file.is_empty()).map(PathBuf::from),
        None => config::settings_file(),
    };
    let mut config = Config::load(file.as_deref(), std::env::vars())?;
    if let Some(dir) = model {
        config.model.dir = dir;
    }
    // Created first, so that an error shows before a long run.
    if let Some(path) = &json {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.map(drop).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let results = match command {
        Command::Speed(command) => speed_cli::run(&config, &command)?,
        Command::Quality(command) => quality_cli::run(&config, &command)?,
    };
    if let Some(path) = &json {
        let text = serde_json::to_string_pretty(&results.json)? + "\n";
        write(path, &text)?;
    }
    Ok(if results.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a command has measured; its table is printed already.
struct Results {
    json: Value,
    /// Whether no target was missed.
    passed: bool,
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn progress_bar(template: &str) -> ProgressBar {
    ProgressBar::new(0).with_style(ProgressStyle::with_template(template).expect("the template is constant"))
}
