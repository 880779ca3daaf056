//! `thresher calibrate`: chooses the attention heads of a decoder over which RC is computed.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use thresher_core::kv::codec::Codec;
use thresher_core::model::contract::{
    ChosenHeads, Contract, Decoder, Family, HeadChoice, QuestionTokens, sha256_of,
};
use thresher_lab::eval::heads::{self, Choice, Measured};

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
    let questions = heads::read(&args.questions)?;
    let data =
        sha256_of(&args.questions).with_context(|| format!("cannot read {}", args.questions.display()))?;
    // Keys in full precision, so that the choice does not depend on a codec.
    let exact =
        Config { blocks: BlockSettings { codec: Codec::F32, ..config.blocks.clone() }, ..config.clone() };
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
    let layers = (decoder.depth(), decoder.layers);
    if args.dry_run {
        super::print("nothing was written (--dry-run)");
        return Ok(ExitCode::SUCCESS);
    }
    contract.save(dir)?;
    super::print(format_args!(
        "written to {}; {} of {} layers are run and kept. Restart the daemon: chunks that were read with other layers are read again",
        dir.join(thresher_core::model::contract::CONTRACT_FILE).display(),
        layers.0,
        layers.1
    ));
    Ok(ExitCode::SUCCESS)
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
