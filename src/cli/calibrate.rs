//! `thresher calibrate`: chooses what suits a decoder on the user's own questions: the attention heads over which RC is computed, or the
//! form of KV eviction.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use thresher_core::kv::codec::Codec;
use thresher_core::model::contract::{
    CalibratedEviction, ChosenHeads, Contract, Decoder, Family, HeadChoice, QuestionTokens, sha256_of,
};
use thresher_lab::eval::heads::{self, Choice, Measured};
use thresher_lab::eval::kv::RATIOS;
use thresher_lab::eval::kv::forms::{self, FormChoice};

use super::eval::{KvRowArgs, with_progress};

use crate::app;
use crate::config::{BlockSettings, Config};

#[derive(clap::Args)]
pub struct Args {
    /// Questions with their chunks, one JSON object per line: query, chunks, and optionally gold, the chunks that the answer needs.
    #[arg(value_name = "FILE.jsonl")]
    questions: PathBuf,
    /// The most heads to choose.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    heads: u16,
    /// The measure by which heads are chosen. Default: accuracy if every question has gold, else expected-rc.
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Choose instead how keys and values are evicted ("policy": "heads"); needs no labels.
    #[arg(long, conflicts_with_all = ["heads", "by"])]
    kv: bool,
    #[command(flatten)]
    rows: KvRowArgs,
    /// Show the choice without changing the contract.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum By {
    /// The highest expected RC over all questions; needs no labels.
    ExpectedRc,
    /// The most needed chunks found; needs gold.
    Accuracy,
}

impl From<By> for HeadChoice {
    fn from(by: By) -> Self {
        match by {
            By::ExpectedRc => Self::ExpectedRc,
            By::Accuracy => Self::Accuracy,
        }
    }
}

pub fn run(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let dir = &config.model.dir;
    let mut contract = Contract::load(dir)?;
    let Family::Decoder(decoder) = &mut contract.family else {
        bail!(
            "{} is not a decoder: a late-interaction model has one head, so there is nothing to choose",
            contract.name
        );
    };
    let data =
        sha256_of(&args.questions).with_context(|| format!("cannot read {}", args.questions.display()))?;
    // Keys in full precision, so that the choice does not depend on a codec.
    let exact =
        Config { blocks: BlockSettings { codec: Codec::F32, ..config.blocks.clone() }, ..config.clone() };
    if args.kv {
        decoder.eviction = Some(eviction(&exact, args, data)?);
        return save(&contract, config, args, "");
    }
    let questions = heads::read(&args.questions)?;
    let pipeline = app::engine(&exact).all_heads(true).build()?.into_pipeline();
    let bar = ProgressBar::new(questions.len() as u64);
    let bar = bar.with_style(ProgressStyle::with_template("[{bar:30}] {pos}/{len} questions, {eta} left")?);
    let seen = heads::observe(&questions, &pipeline, &|done, _| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let choice = heads::choose(&seen, args.by.map(HeadChoice::from), usize::from(args.heads))?;
    let named = layer_and_head(decoder, &choice);
    report(&choice, &named, questions.len());
    decoder.chosen = Some(ChosenHeads {
        heads: named,
        question_tokens: choice.question_tokens,
        by: choice.by,
        held_out: choice.held_out.by(choice.by),
        held_out_all: choice.held_out_all.by(choice.by),
        questions: questions.len(),
        data,
    });
    let layers = format!(
        "; {} of {} layers are run and kept. Chunks that were read with other layers are read again",
        decoder.depth(),
        decoder.layers
    );
    save(&contract, config, args, &layers)
}

/// Writes the contract, unless `--dry-run` is given, and says what follows from the change.
fn save(contract: &Contract, config: &Config, args: &Args, consequence: &str) -> anyhow::Result<ExitCode> {
    if args.dry_run {
        super::print("nothing was written (--dry-run)");
        return Ok(ExitCode::SUCCESS);
    }
    let dir = &config.model.dir;
    contract.save(dir)?;
    let file = dir.join(thresher_core::model::contract::CONTRACT_FILE);
    super::print(format_args!("written to {}{consequence}. Restart the daemon", file.display()));
    Ok(ExitCode::SUCCESS)
}

/// Chooses the form of KV eviction and reports it.
fn eviction(config: &Config, args: &Args, data: String) -> anyhow::Result<CalibratedEviction> {
    let engine = app::engine(config).all_layers(true).forward_pass(true).build()?;
    let options = args.rows.options();
    let choice = with_progress(&args.questions, |progress| {
        forms::calibrate(&args.questions, &engine, &options, progress)
    })?;
    report_forms(&choice);
    Ok(CalibratedEviction {
        questions: choice.questions,
        data,
        ratios: RATIOS.to_vec(),
        held_out_kl: choice.held_out_of_chosen(),
        form: choice.chosen,
    })
}

fn report_forms(choice: &FormChoice) {
    let ratios = FormChoice::compared_ratios().iter().map(|ratio| format!("{ratio:>7}x")).collect::<String>();
    super::print(format_args!(
        "mean KL divergence to the output with all keys, in nats, on half of {} questions:\n{ratios}",
        choice.questions
    ));
    for measured in &choice.forms {
        let losses = measured.kl.iter().map(|kl| format!("{kl:>8.3}")).collect::<String>();
        super::print(format_args!("{losses}  {}", measured.form));
    }
    super::print("on the other half, with 95 % intervals:");
    for (ratio, methods) in &choice.held_out {
        for (name, kl) in methods {
            let [low, high] = kl.interval;
            super::print(format_args!("  {ratio:>3}x  {name:<14} {:.3} [{low:.3}, {high:.3}]", kl.mean));
        }
    }
    super::print(format_args!("chosen: {}", choice.chosen));
    if choice.forms[0].form != choice.chosen {
        super::print("this is the default: no form is better with 95 % confidence on these questions");
    }
}

/// `[layer, head]` of heads that are numbered across all layers.
fn layer_and_head(decoder: &Decoder, choice: &Choice) -> Vec<(usize, usize)> {
    choice.heads.iter().map(|&head| (head / decoder.heads, head % decoder.heads)).collect()
}

fn report(choice: &Choice, named: &[(usize, usize)], questions: usize) {
    let heads: Vec<String> = named.iter().map(|(layer, head)| format!("{layer}.{head}")).collect();
    let by = match choice.by {
        HeadChoice::ExpectedRc => "expected RC",
        HeadChoice::Accuracy => "accuracy",
    };
    let tokens = match choice.question_tokens {
        QuestionTokens::All => "",
        QuestionTokens::Last => ", of the question's last token",
    };
    super::print(format_args!(
        "heads (layer.head), by {by} on half of {questions} questions: {}{tokens}",
        heads.join(" ")
    ));
    let line = |what: &str, measured: &Measured| {
        let recall =
            measured.recall_at_gold.map_or_else(String::new, |recall| format!("   R@gold {recall:.3}"));
        super::print(format_args!("  {what:<12} expected RC {:.3}{recall}", measured.expected_rc));
    };
    super::print("on the other half:");
    line("chosen heads", &choice.held_out);
    line("all heads", &choice.held_out_all);
}
