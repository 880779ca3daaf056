//! `thresher eval`: measures quality on labelled data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use thresher_core::kv::codec::Codec;
use thresher_eval::methods::Methods;

use crate::app;
use crate::config::{BlockSettings, Config};

#[derive(clap::Args)]
pub struct Args {
    /// Labelled questions, answers or claims, one JSON object per line (docs/evaluation.md describes the formats).
    #[arg(value_name = "FILE.jsonl", required = true)]
    files: Vec<PathBuf>,
    /// The model directory (overrides model.dir).
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Write the results as JSON: one object, or an array for several files.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    // Blocks in full precision, which `eval` encodes as the settings say.
    let mut exact =
        Config { blocks: BlockSettings { codec: Codec::F32, ..config.blocks.clone() }, ..config.clone() };
    if let Some(dir) = &args.model {
        exact.model.dir.clone_from(dir);
    }
    // The device that is measured computes everything.
    exact.model.device_fallback = false;
    let pipeline = app::pipeline(&exact)?;
    let codec = config.blocks.codec;
    let methods = Methods::of_pipeline(&pipeline, codec);
    let mut reports = Vec::new();
    for file in &args.files {
        let report =
            with_progress(file, |progress| thresher_eval::file(file, &pipeline, &methods, codec, progress))?;
        super::print(thresher_eval::table(&report));
        reports.push(report.json());
    }
    if let Some(path) = &args.json {
        let results = if reports.len() == 1 { reports.remove(0) } else { Value::Array(reports) };
        let text = serde_json::to_string_pretty(&results)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress of `work` on a file.
pub fn with_progress<T>(
    file: &Path,
    work: impl FnOnce(&(dyn Fn(usize, usize) + Sync)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let bar = ProgressBar::new(0).with_style(style()).with_message(file.display().to_string());
    let found = work(&|done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    found
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} rows, {eta} left")
        .expect("the template is constant")
}
