//! `thresher eval`: measures quality on labelled data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use thresher_core::kv::codec::Codec;
use thresher_core::model::contract::TEMPLATE_DEFAULT;
use thresher_core::pipeline::Pipeline;
use thresher_lab::eval;
use thresher_lab::eval::kv::RowOptions;

use crate::app;
use crate::config::{BlockSettings, Config};

#[derive(clap::Args)]
pub struct Args {
    /// Labelled questions or answers, one JSON object per line (docs/evaluation.md describes the formats).
    #[arg(value_name = "FILE.jsonl", required_unless_present_any = ["kv", "kinds"])]
    files: Vec<PathBuf>,
    /// Measure instead which needed parts of code, tables, logs and other texts are kept: the questions of all files FOLDER/*.jsonl.
    #[arg(
        long,
        value_name = "FOLDER",
        num_args = 0..=1,
        default_missing_value = "tests/kinds",
        conflicts_with_all = ["files", "kv", "plot"]
    )]
    kinds: Option<PathBuf>,
    /// Measure instead how far the output of a decoder changes when keys and values are left out, on questions with their chunks and
    /// answers.
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["files", "plot"])]
    kv: Option<PathBuf>,
    #[command(flatten)]
    rows: KvRowArgs,
    /// With --kv: the text that the model reads after the chunks; {question} stands for the question, \n for a line break. Default: the
    /// question alone.
    #[arg(long, value_name = "TEXT", requires = "kv", value_parser = template)]
    template: Option<String>,
    /// With --kv: let the model read all chunks of a question as one prompt. Default: each chunk by itself, as the daemon does.
    #[arg(long, requires = "kv")]
    one_prompt: bool,
    /// The model directory (overrides model.dir).
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Compare the model with that of another directory instead, row by row: the mean difference of each measure with its interval.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kv", "kinds", "plot"])]
    against: Option<PathBuf>,
    /// Write the results as JSON: one object, or an array for several files.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the share of answers that stay the same against compression. Not with --kv.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Reads a template from a command line, on which `\n` stands for a line break.
#[expect(clippy::unnecessary_wraps, reason = "the type of a value parser")]
pub fn template(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(text.replace("\\n", "\n"))
}

/// Which questions and chunks `eval --kv` and `calibrate --kv` use.
#[derive(clap::Args)]
pub struct KvRowArgs {
    /// With --kv: use only the first N questions.
    #[arg(long, value_name = "N", requires = "kv")]
    rows: Option<usize>,
    /// With --kv: use only N chunks of each question: those in its "gold", and others chosen by a fixed seed.
    #[arg(long, value_name = "N", requires = "kv")]
    chunks: Option<usize>,
}

impl KvRowArgs {
    /// Whether rows or chunks are limited.
    pub fn is_given(&self) -> bool {
        self.rows.is_some() || self.chunks.is_some()
    }

    /// The options of these rows, for a model that reads `template` after the chunks.
    pub fn options(&self, template: &str) -> RowOptions {
        RowOptions {
            rows_max: self.rows,
            chunks_max: self.chunks,
            template: template.to_owned(),
            one_prompt: false,
        }
    }
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    // Blocks in full precision, which `eval` encodes in every codec.
    let mut exact =
        Config { blocks: BlockSettings { codec: Codec::F32, ..config.blocks.clone() }, ..config.clone() };
    if let Some(dir) = &args.model {
        exact.model.dir.clone_from(dir);
    }
    // The device that is measured computes everything.
    exact.model.device_fallback = false;
    if let Some(file) = &args.kv {
        return kv(&exact, file, args);
    }
    // clap does not check this beside FILE.jsonl, with which --kv conflicts.
    if args.rows.is_given() || args.template.is_some() || args.one_prompt {
        bail!("--rows, --chunks, --template and --one-prompt belong to --kv");
    }
    let pipeline = app::pipeline(&exact)?;
    if let Some(folder) = &args.kinds {
        return kinds(folder, &pipeline, config.blocks.codec, args);
    }
    if let Some(dir) = &args.against {
        return against(&exact, dir, &pipeline, config.blocks.codec, args);
    }
    let mut reports = Vec::new();
    for file in &args.files {
        let report =
            with_progress(file, |progress| eval::file(file, &pipeline, config.blocks.codec, progress))?;
        super::print(eval::table(&report));
        reports.push(report);
    }
    if let Some(path) = &args.json {
        write_all(path, reports.iter().map(eval::Report::json).collect())?;
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, eval::svg(&reports)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the model of `pipeline` with that in `dir` on each file.
fn against(
    config: &Config,
    dir: &Path,
    pipeline: &Pipeline,
    codec: Codec,
    args: &Args,
) -> anyhow::Result<ExitCode> {
    let mut other = config.clone();
    dir.clone_into(&mut other.model.dir);
    let other = app::pipeline(&other)?;
    let names = [dir, &config.model.dir].map(|dir| dir.display().to_string());
    let mut found = Vec::new();
    for file in &args.files {
        let comparison =
            with_progress(file, |progress| eval::paired::file(file, [&other, pipeline], codec, progress))?;
        super::print(eval::paired::table(&comparison, [&names[0], &names[1]]));
        found.push(comparison.json());
    }
    if let Some(path) = &args.json {
        write_all(path, found)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn kinds(folder: &Path, pipeline: &Pipeline, codec: Codec, args: &Args) -> anyhow::Result<ExitCode> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    if files.is_empty() {
        bail!("{} holds no file *.jsonl", folder.display());
    }
    let mut reports = Vec::new();
    for file in &files {
        let report = with_progress(file, |progress| eval::kinds::evaluate(file, pipeline, codec, progress))?;
        super::print(eval::kinds::table(&report, reports.is_empty()));
        reports.push(report.json());
    }
    if let Some(path) = &args.json {
        write(path, &Value::Array(reports))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn kv(config: &Config, file: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let engine =
        app::engine(config).all_layers(true).forward_pass(true).long_windows(args.one_prompt).build()?;
    let options = args.rows.options(args.template.as_deref().unwrap_or(TEMPLATE_DEFAULT));
    let options = RowOptions { one_prompt: args.one_prompt, ..options };
    let report = with_progress(file, |progress| eval::kv::evaluate(file, &engine, &options, progress))?;
    super::print(eval::kv::table(&report));
    if let Some(path) = &args.json {
        write(path, &serde_json::to_value(&report)?)?;
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

/// Writes the results of several files as an array, and those of one file alone.
fn write_all(path: &Path, mut all: Vec<Value>) -> anyhow::Result<()> {
    write(path, &if all.len() == 1 { all.remove(0) } else { Value::Array(all) })
}

fn write(path: &Path, json: &Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(json)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} rows, {eta} left")
        .expect("the template is constant")
}
