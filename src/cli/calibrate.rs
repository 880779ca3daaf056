//! `thresher calibrate`: chooses what suits a decoder on the user's own questions: the attention heads over which RC is computed, or the
//! form of KV eviction; or trains its probe. Or finds, for any model, the limits of budgets that promise a coverage, or how a cross-encoder
//! is weighed in verdicts.

mod probe;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use thresher_core::kv::codec::Codec;
use thresher_core::kv::local::{LocalSettings, LocalTiers};
use thresher_core::kv::store::KvStore;
use thresher_core::kv::tiers::AllTiers;
use thresher_core::model::contract::{
    CONTRACT_FILE, CalibratedEviction, ChosenHeads, Contract, Decoder, Family, HeadChoice, QuestionTokens,
    TEMPLATE_DEFAULT, sha256_of,
};
use thresher_core::pipeline::calibration::{Calibration, CalibrationError};
use thresher_core::pipeline::decide::coverage::CoverageLimits;
use thresher_core::pipeline::score::Scoring;
use thresher_core::pipeline::{Pipeline, Reading};
use thresher_eval::heads::{self, Choice, HeadScores, Measured, Question};
use thresher_eval::kv::forms::{self, FormChoice};
use thresher_eval::kv::{RATIOS, RowOptions};
use thresher_eval::verdicts;
use thresher_eval::{calibration, coverage};

use super::eval::with_progress;

use crate::app;
use crate::config::{self, BlockSettings, Config};

/// What is kept in memory of the chunks that a model has read.
const CALIBRATION_MEMORY_BYTES: u64 = 1 << 30;

#[derive(clap::Args)]
pub struct Args {
    /// Questions with their chunks, one JSON object per line: query, chunks, and gold, the chunks that the answer needs (optional for
    /// decoders). For an encoder also rows with answerable, true or false.
    #[arg(value_name = "FILE.jsonl")]
    questions: PathBuf,
    /// The most heads to choose.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    heads: u16,
    /// The measure by which heads are chosen. Default: accuracy if every question has gold, else expected-rc.
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Choose instead how keys and values are evicted ("policy": "heads"). Needs no labels, but uses the answers of questions that have
    /// them.
    #[arg(long, conflicts_with_all = ["heads", "by", "probe"])]
    kv: bool,
    /// With --kv: use only the first N questions.
    #[arg(long, value_name = "N", requires = "kv")]
    rows: Option<usize>,
    /// With --kv: use only N chunks of each question: those in its "gold", and others chosen by a fixed seed.
    #[arg(long, value_name = "N", requires = "kv")]
    chunks: Option<usize>,
    /// Train a probe, a logistic regression over the attention of all heads, for `rc.estimator = "probe"`. Questions without gold are
    /// left out; at least 20 with gold are needed.
    #[arg(long, conflicts_with = "by")]
    probe: bool,
    /// The layers, from the first, whose heads the probe uses. Fewer layers make the model read chunks faster. Default: all layers.
    #[arg(long, value_name = "N", requires = "probe", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,
    /// Find the limits of budgets that promise a coverage (docs/verdicts.md), for any model. Every question needs gold, and better also
    /// answers; or needed, the parts that the answer needs.
    #[arg(long, conflicts_with_all = ["heads", "by", "probe", "kv"])]
    coverage: bool,
    /// Find how the cross-encoder of verdict.model is weighed in verdicts (docs/verdicts.md). A row has a claim, its chunks and a label.
    #[arg(long, conflicts_with_all = ["heads", "by", "probe", "kv", "coverage"])]
    verdicts: bool,
    /// With --kv or --probe: the text that the model reads after the chunks; {question} stands for the question, \n for a line break.
    #[arg(long, value_name = "TEXT", default_value = TEMPLATE_DEFAULT, value_parser = template)]
    template: String,
    /// Show the result without changing the contract.
    #[arg(long)]
    dry_run: bool,
}

/// Reads a template from a command line, on which `\n` stands for a line break.
#[expect(clippy::unnecessary_wraps, reason = "the type of a value parser")]
fn template(text: &str) -> Result<String, std::convert::Infallible> {
    Ok(text.replace("\\n", "\n"))
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
    if args.verdicts {
        return verdicts(config, args);
    }
    let dir = &config.model.dir;
    let mut contract = Contract::load(dir)?;
    let chooses_heads = args.by.is_some() || args.kv || args.probe;
    if args.coverage || matches!(contract.family, Family::Late(_)) && !chooses_heads {
        return encoder(config, &contract, args);
    }
    let Family::Decoder(decoder) = &mut contract.family else {
        bail!(
            "{} is not a decoder, so it has no heads, probe or keys to choose; leave --by, --probe and --kv out, or name a decoder in \
             THRESHER__MODEL__DIR",
            contract.name
        );
    };
    let data = hash_of_questions(args)?;
    if args.probe && (args.rows.is_some() || args.chunks.is_some()) {
        bail!("--rows and --chunks belong to --kv");
    }
    if args.kv {
        decoder.eviction = Some(Box::new(eviction(config, args, data)?));
        return save(&contract, dir, args, "");
    }
    let questions = heads::read(&args.questions)?;
    if args.probe {
        return probe::run(config, contract, questions, data, args);
    }
    let score =
        |_: &Pipeline, reading: &Reading, question: &Question| Ok(HeadScores::of_question(reading, question));
    let seen = observe(config, &args.questions, &questions, score)?;
    let choice = heads::choose(
        &seen,
        args.by.map(HeadChoice::from),
        usize::from(args.heads),
        &[QuestionTokens::All, QuestionTokens::Last],
    )?;
    let named = layer_and_head(decoder, &choice);
    report(&choice, &named, seen.len());
    if choice.held_out.by(choice.by) < choice.held_out_all.by(choice.by) {
        super::print(
            "all heads together do better on the other half: nothing was written. Try more questions",
        );
        return Ok(ExitCode::SUCCESS);
    }
    decoder.chosen = Some(ChosenHeads {
        heads: named,
        question_tokens: choice.question_tokens,
        by: choice.by,
        held_out: choice.held_out.by(choice.by),
        held_out_all: choice.held_out_all.by(choice.by),
        questions: seen.len(),
        data,
    });
    let consequence = layers_run(decoder, config);
    save(&contract, dir, args, &consequence)
}

/// Writes the contract, unless `--dry-run` is given, and says what follows from the change.
fn save(contract: &Contract, dir: &Path, args: &Args, consequence: &str) -> anyhow::Result<ExitCode> {
    if args.dry_run {
        super::print("nothing was written (--dry-run)");
        return Ok(ExitCode::SUCCESS);
    }
    contract.save(dir)?;
    super::print(format_args!(
        "written to {}{consequence}. Restart the daemon",
        dir.join(CONTRACT_FILE).display()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Returns the SHA-256 of the file with the questions, by which a calibration names its data.
fn hash_of_questions(args: &Args) -> anyhow::Result<String> {
    sha256_of(&args.questions).with_context(|| format!("cannot read {}", args.questions.display()))
}

/// Fits what the logits of an encoder mean, or only the limits of budgets that promise a coverage, and writes it to the calibration of the
/// model.
fn encoder(config: &Config, contract: &Contract, args: &Args) -> anyhow::Result<ExitCode> {
    // What the model reads for one fit is there for the next.
    let pipeline = app::engine(config).uncalibrated().store(memory_store()?).build()?.into_pipeline();
    let calibration = match Calibration::load(&config.model.dir, contract) {
        Ok(found) => found,
        Err(error @ CalibrationError::File { .. }) => return Err(error.into()),
        // It is about to be replaced.
        Err(_) => Calibration::of_contract(contract),
    };
    let mut calibration =
        calibration.map_or_else(|| Calibration::empty(contract), |found| Calibration::clone(&found));
    if !args.coverage {
        let mut observed = with_progress(&args.questions, |progress| {
            calibration::observe(&args.questions, &pipeline, progress)
        })?;
        super::print(observed.fit(&mut calibration).trim_end());
    }
    if args.coverage || coverage::has_needs(&args.questions)? {
        calibration.coverage = Some(coverage(&pipeline, args)?);
    }
    if args.dry_run {
        super::print("nothing was written (--dry-run)");
        return Ok(ExitCode::SUCCESS);
    }
    let file = calibration.save(&config.model.dir, contract)?;
    super::print(format_args!("written to {}. Restart the daemon", file.display()));
    Ok(ExitCode::SUCCESS)
}

fn memory_store() -> anyhow::Result<Arc<KvStore>> {
    let settings = LocalSettings {
        memory_bytes_max: CALIBRATION_MEMORY_BYTES,
        disk_bytes_max: 0,
        write_queue_bytes_max: CALIBRATION_MEMORY_BYTES,
        dir: None,
    };
    Ok(Arc::new(KvStore::new(Arc::new(AllTiers::new(LocalTiers::open(&settings)?, None)))))
}

/// Finds the limits of budgets that promise a coverage.
fn coverage(pipeline: &Pipeline, args: &Args) -> anyhow::Result<CoverageLimits> {
    let rankings =
        with_progress(&args.questions, |progress| coverage::rank(&args.questions, pipeline, progress))?;
    let limits = rankings.limits(pipeline.estimator(), hash_of_questions(args)?)?;
    if rankings.without_evidence > 0 {
        super::print(format_args!(
            "rows left out, because their evidence is not in their chunks: {}",
            rankings.without_evidence
        ));
    }
    super::print(rankings.table());
    Ok(limits)
}

/// Finds how the cross-encoder is weighed, and writes it to the contract of the cross-encoder, or to a file beside a graph without one.
fn verdicts(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let dir = &config.verdict.model;
    if dir.as_os_str().is_empty() {
        bail!("no cross-encoder is set; name its directory in verdict.model (THRESHER__VERDICT__MODEL)");
    }
    let has_contract = dir.join(CONTRACT_FILE).is_file();
    let contract = has_contract.then(|| Contract::load(dir)).transpose()?;
    let pipeline = app::pipeline(&exact(config))?;
    let fit = with_progress(&args.questions, |progress| verdicts::fit(&args.questions, &pipeline, progress))?;
    super::print(fit.table());
    if !fit.helps() {
        super::print(
            "the model adds nothing here: nothing was written. Leave verdict.model empty, or try another model",
        );
        return Ok(ExitCode::SUCCESS);
    }
    let Some(mut contract) = contract else {
        if !args.dry_run {
            fit.weights.save(dir)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    if let Family::Cross(cross) = &mut contract.family {
        cross.verdicts = Some(fit.weights);
    }
    save(&contract, dir, args, "")
}

/// Chooses the form of KV eviction and reports it.
fn eviction(config: &Config, args: &Args, data: String) -> anyhow::Result<CalibratedEviction> {
    let engine = app::engine(&exact(config)).all_layers(true).forward_pass(true).build()?;
    let options = RowOptions {
        rows_max: args.rows,
        chunks_max: args.chunks,
        template: args.template.clone(),
        one_prompt: false,
    };
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
        super::print(
            "this is the default: no form is better with 95 % confidence on the first half, and on average on the other",
        );
    }
}

/// How many layers a daemon with this configuration runs, as the end of a message.
fn layers_run(decoder: &Decoder, config: &Config) -> String {
    let mut used = decoder.clone();
    used.probe = used.probe.filter(|_| config.rc.estimator == Scoring::Probe);
    format!(
        "; {} of {} layers are run and kept. Chunks that were read with other layers are read again",
        used.depth(),
        decoder.layers
    )
}

/// The configuration with keys in full precision, so that the result does not depend on a codec; and without the probe, which may not
/// exist yet.
fn exact(config: &Config) -> Config {
    Config {
        blocks: BlockSettings { codec: Codec::F32, ..config.blocks.clone() },
        rc: config::Rc::default(),
        ..config.clone()
    }
}

/// A pipeline that computes scores from all heads of the model, over keys in full precision.
fn with_all_heads(config: &Config) -> anyhow::Result<Arc<Pipeline>> {
    Ok(app::engine(&exact(config)).all_heads(true).build()?.into_pipeline())
}

/// Reads all questions, which come from `file`, with all heads of the model, and calls `score` on each reading.
fn observe<T>(
    config: &Config,
    file: &Path,
    questions: &[Question],
    score: impl Fn(&Pipeline, &Reading, &Question) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let pipeline = with_all_heads(config)?;
    let score = |reading: &Reading, question: &Question| score(&pipeline, reading, question);
    with_progress(file, |progress| heads::observe(questions, &pipeline, progress, score))
}

/// `[layer, head]` of heads that are numbered across all layers.
fn layer_and_head(decoder: &Decoder, choice: &Choice) -> Vec<(usize, usize)> {
    choice.heads.iter().map(|&head| (head / decoder.heads, head % decoder.heads)).collect()
}

fn report(choice: &Choice, named: &[(usize, usize)], question_count: usize) {
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
        "heads (layer.head), by {by} on half of {question_count} questions: {}{tokens}",
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
