//! `thresher eval`: measures quality on labelled data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use thresher_core::kv::codec::Codec;
use thresher_eval::methods::Methods;
use thresher_eval::reader::{self, Arm, Price, ReaderOptions, ReaderReport, Url};

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
    #[command(flatten)]
    reader: ReaderArgs,
}

/// Asks a language model the questions of the files, instead of measuring selection.
#[derive(clap::Args)]
struct ReaderArgs {
    /// Ask the language model at this OpenAI-compatible API the questions, with all chunks and with what is kept of them, and compare its
    /// answers with `answers`. Its key is read from OPENAI_API_KEY.
    #[arg(long, value_name = "URL", requires = "reader_model", value_parser = base_url)]
    reader: Option<Url>,
    /// The name of the model that answers.
    #[arg(long, value_name = "NAME", requires = "reader")]
    reader_model: Option<String>,
    /// The name of a model of the same API that judges whether answers are right.
    #[arg(long, value_name = "NAME", requires = "reader")]
    judge: Option<String>,
    /// What is compared with all chunks, separated by commas. Default: everything.
    #[arg(long, value_name = "ARM", requires = "reader", value_delimiter = ',')]
    arms: Vec<Arm>,
    /// Requests at a time.
    #[arg(long, value_name = "N", requires = "reader", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Answers that are known, one JSON object per line; new ones are added, so the command goes on where it was stopped.
    #[arg(long, value_name = "FILE", requires = "reader", default_value = "thresher-answers.jsonl")]
    answers: PathBuf,
    /// Fields of the requests as a JSON object, such as {"max_tokens": null, "max_completion_tokens": 500}; null leaves a field out.
    #[arg(long, value_name = "JSON", requires = "reader", default_value = "{}", value_parser = json_object)]
    body: Map<String, Value>,
}

fn base_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}"))?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !is_plain {
        return Err("it must be http://HOST/PATH or https://HOST/PATH, without a user, ? and #".to_owned());
    }
    if url.path().trim_end_matches('/').ends_with("/chat/completions") {
        return Err("name the base of the API, such as http://HOST/v1, without /chat/completions".to_owned());
    }
    Ok(url)
}

fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    let fields: Map<String, Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match ["model", "messages", "stream"].into_iter().find(|name| fields.contains_key(*name)) {
        Some(name) => Err(format!("{name} cannot be changed")),
        None => Ok(fields),
    }
}

impl ReaderArgs {
    /// Returns how the reader is asked; `None` if there is none.
    fn options(&self, config: &Config) -> Option<ReaderOptions> {
        let (url, model) = (self.reader.clone()?, self.reader_model.clone()?);
        let price = config.savings.price(&model).map(|price| Price {
            currency: price.currency.clone(),
            input: price.input,
            output: price.output,
        });
        if price.is_none() {
            eprintln!(
                "{model} has no price, so costs are not shown; add it to savings.prices in the settings"
            );
        }
        Some(ReaderOptions {
            url,
            model,
            judge: self.judge.clone(),
            key: std::env::var("OPENAI_API_KEY")
                .ok()
                .map(|key| key.trim().to_owned())
                .filter(|key| !key.is_empty()),
            body: self.body.clone(),
            arms: if self.arms.is_empty() { Arm::every() } else { self.arms.clone() },
            parallel: self.parallel.into(),
            answers: self.answers.clone(),
            on_wait: |wait, reason| eprintln!("{reason}: the next try is in {} s", wait.as_secs().max(1)),
            price,
        })
    }
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(options) = args.reader.options(config) {
        return ask_reader(config, args, &options);
    }
    // Blocks in full precision, which `eval` encodes as the settings say.
    let mut exact =
        Config { blocks: BlockSettings { codec: Codec::F32, ..config.blocks.clone() }, ..config.clone() };
    if let Some(dir) = &args.model {
        exact.model.dir.clone_from(dir);
    }
    let pipeline = app::pipeline(&exact)?;
    let codec = config.blocks.codec;
    let methods = Methods::of_pipeline(&pipeline, codec)?;
    let mut reports = Vec::new();
    for file in &args.files {
        let report =
            with_progress(file, |progress| thresher_eval::file(file, &pipeline, &methods, codec, progress))?;
        super::print(thresher_eval::table(&report));
        reports.push(report.json());
    }
    write_json(args, reports)?;
    Ok(ExitCode::SUCCESS)
}

/// Asks a language model the questions of the files.
fn ask_reader(config: &Config, args: &Args, options: &ReaderOptions) -> anyhow::Result<ExitCode> {
    let mut config = config.clone();
    if let Some(dir) = &args.model {
        config.model.dir.clone_from(dir);
    }
    let pipeline = app::pipeline(&config)?;
    let (mut reports, mut is_empty) = (Vec::new(), false);
    for file in &args.files {
        let report = with_progress(file, |progress| reader::evaluate(file, &pipeline, options, progress))?;
        super::print(report.table());
        is_empty |= report.is_empty();
        reports.push(report);
    }
    write_json(args, reports.iter().map(ReaderReport::json).collect())?;
    Ok(if is_empty { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write_json(args: &Args, mut reports: Vec<Value>) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        let results = if reports.len() == 1 { reports.remove(0) } else { Value::Array(reports) };
        write(path, &(serde_json::to_string_pretty(&results)? + "\n"))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

pub fn with_progress<T>(
    file: &Path,
    work: impl FnOnce(&(dyn Fn(usize, usize) + Sync)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let bar = ProgressBar::new(0).with_style(style()).with_message(file.display().to_string());
    // The first row can take long.
    bar.enable_steady_tick(Duration::from_millis(500));
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
