//! Commands that compare methods on labelled rows.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde_json::Value;
use thresher::app;
use thresher::config::{BlockSettings, Config};
use thresher_core::kv::codec::Codec;
use thresher_core::model::contract::TEMPLATE_DEFAULT;
use thresher_core::pipeline::Pipeline;
use thresher_eval::kv::RowOptions;
use thresher_lab::quality::{kinds, kv, methods, paired};

use crate::{Results, progress_bar};

#[derive(Subcommand)]
pub enum Command {
    /// Compare all methods on labelled questions, answers or claims (docs/evaluation.md describes the formats).
    Eval {
        #[arg(value_name = "FILE.jsonl", required = true)]
        files: Vec<PathBuf>,
        /// Compare the model with that of another directory instead, row by row: the mean difference of each measure with its interval.
        #[arg(long, value_name = "DIR")]
        against: Option<PathBuf>,
    },
    /// Measure which needed parts of code, tables, logs and other texts are kept: the questions of all files FOLDER/*.jsonl.
    Kinds {
        #[arg(value_name = "FOLDER", default_value = "tests/kinds")]
        folder: PathBuf,
    },
    /// Measure how far the output of a decoder changes when keys and values are left out, on questions with their chunks and answers.
    Kv {
        #[arg(value_name = "FILE.jsonl")]
        file: PathBuf,
        /// Use only the first N questions.
        #[arg(long, value_name = "N")]
        rows: Option<usize>,
        /// Use only N chunks of each question: those in its "gold", and others chosen by a fixed seed.
        #[arg(long, value_name = "N")]
        chunks: Option<usize>,
        /// The text that the model reads after the chunks; {question} stands for the question, \n for a line break.
        #[arg(long, value_name = "TEXT", default_value = TEMPLATE_DEFAULT)]
        template: String,
        /// Let the model read all chunks of a question as one prompt. Default: each chunk by itself, as the daemon does.
        #[arg(long)]
        one_prompt: bool,
    },
}

pub fn run(config: &Config, command: &Command) -> anyhow::Result<Results> {
    let codec = config.blocks.codec;
    // Blocks in full precision, which are encoded in every codec.
    let exact =
        Config { blocks: BlockSettings { codec: Codec::F32, ..config.blocks.clone() }, ..config.clone() };
    let json = match command {
        Command::Eval { files, against: Some(dir) } => against(&exact, dir, files, codec)?,
        Command::Eval { files, .. } => {
            let pipeline = app::pipeline(&exact)?;
            let methods = methods::all(&pipeline, codec)?;
            let mut reports = Vec::new();
            for file in files {
                let report = with_progress(file, |progress| {
                    thresher_eval::file(file, &pipeline, &methods, codec, progress)
                })?;
                println!("{}", thresher_eval::table(&report));
                reports.push(report);
            }
            one_or_all(reports.iter().map(thresher_eval::Report::json).collect())
        }
        Command::Kinds { folder } => measure_kinds(folder, &*app::pipeline(&exact)?, codec)?,
        Command::Kv { file, rows, chunks, template, one_prompt } => {
            let engine =
                app::engine(&exact).all_layers(true).forward_pass(true).long_windows(*one_prompt).build()?;
            let options = RowOptions {
                rows_max: *rows,
                chunks_max: *chunks,
                template: template.replace("\\n", "\n"),
                one_prompt: *one_prompt,
            };
            let report = with_progress(file, |progress| kv::evaluate(file, &engine, &options, progress))?;
            println!("{}", kv::table(&report));
            serde_json::to_value(&report)?
        }
    };
    Ok(Results { json, passed: true })
}

/// Compares the model of the settings with that in `dir` on each file.
fn against(config: &Config, dir: &Path, files: &[PathBuf], codec: Codec) -> anyhow::Result<Value> {
    let mut other = config.clone();
    dir.clone_into(&mut other.model.dir);
    let pipelines = [app::pipeline(&other)?, app::pipeline(config)?];
    let names = [dir, &config.model.dir].map(|dir| dir.display().to_string());
    let mut found = Vec::new();
    for file in files {
        let comparison = with_progress(file, |progress| {
            paired::file(file, [&pipelines[0], &pipelines[1]], codec, progress)
        })?;
        println!("{}", paired::table(&comparison, [&names[0], &names[1]]));
        found.push(comparison.json());
    }
    Ok(one_or_all(found))
}

fn measure_kinds(folder: &Path, pipeline: &Pipeline, codec: Codec) -> anyhow::Result<Value> {
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
        let report = with_progress(file, |progress| kinds::evaluate(file, pipeline, codec, progress))?;
        println!("{}", kinds::table(&report, reports.is_empty()));
        reports.push(report.json());
    }
    Ok(Value::Array(reports))
}

/// Returns the results of several files as an array, and those of one file alone.
fn one_or_all(mut all: Vec<Value>) -> Value {
    if all.len() == 1 { all.remove(0) } else { Value::Array(all) }
}

fn with_progress<T>(
    file: &Path,
    work: impl FnOnce(&(dyn Fn(usize, usize) + Sync)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let bar = progress_bar("{msg} [{bar:30}] {pos}/{len} rows, {eta} left")
        .with_message(file.display().to_string());
    let found = work(&|done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    found
}
