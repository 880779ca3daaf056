//! `thresher eval`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::config::{Config, Kv};
use crate::kv::codec::Codec;
use crate::{app, eval};

#[derive(clap::Args)]
pub struct Args {
    /// Labelled questions or answers, one JSON object a line (docs/evaluation.md shows the shapes).
    #[arg(value_name = "FILE.jsonl", required = true)]
    files: Vec<PathBuf>,
    /// Write the results as JSON: an object for one file, an array for several.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw answers that survive against compression.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    // Blocks as the model gives them: `eval` encodes each in every codec.
    let exact = Config { kv: Kv { codec: Codec::F32, ..config.kv.clone() }, ..config.clone() };
    let pipeline = app::pipeline(&exact)?;
    let mut reports = Vec::new();
    for file in &args.files {
        let bar = ProgressBar::new(0).with_style(style()).with_message(file.display().to_string());
        let progress = |done: usize, all: usize| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        };
        let report = eval::file(file, &pipeline, config.kv.codec, &progress)?;
        bar.finish_and_clear();
        super::print(eval::table(&report));
        reports.push(report);
    }
    if let Some(path) = &args.json {
        let mut all: Vec<Value> = reports.iter().map(eval::Report::json).collect();
        let json = if all.len() == 1 { all.remove(0) } else { Value::Array(all) };
        let text = serde_json::to_string_pretty(&json)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, eval::svg(&reports)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} rows, {eta} left")
        .expect("the template is constant")
}
