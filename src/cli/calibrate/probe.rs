//! `thresher calibrate --probe`: trains a probe and writes it to the contract.

use std::process::ExitCode;

use anyhow::{Context, bail};
use thresher_core::model::contract::{
    Contract, Family, HeadChoice, Probe, ProbeFeatures, QUESTION_MARK, QuestionTokens, around_question,
};
use thresher_core::pipeline::score::Scoring;
use thresher_eval::heads::{self, HeadScores, Question};
use thresher_eval::probe::{self, ProbeRow, Trained};

use super::{Args, layers_run, observe, save};
use crate::config::{self, Config};

/// Trains a probe of a decoder with `questions`, which come from a file with the SHA-256 `data`.
pub fn run(
    config: &Config,
    mut contract: Contract,
    questions: Vec<Question>,
    data: String,
    args: &Args,
) -> anyhow::Result<ExitCode> {
    let weights = contract.files.get(&contract.weights.file).cloned();
    let weights = weights.context("the contract lists no hash of the model's weights")?;
    let Family::Decoder(decoder) = &mut contract.family else {
        bail!("{} is not a decoder", contract.name);
    };
    let layers = args.layers.map_or(decoder.layers, usize::from);
    if layers > decoder.layers {
        bail!("--layers is {layers}; {} has {} layers", contract.name, decoder.layers);
    }
    let heads = layers * decoder.heads;
    let Some(around) = around_question(&args.template) else {
        bail!("--template is {:?}; it must contain {QUESTION_MARK} once", args.template);
    };
    let questions = probe::usable(questions)?;
    let seen = observe(config, &args.questions, &questions, |pipeline, reading, question| {
        let row = ProbeRow::new(question, pipeline, reading, around, heads)?;
        Ok((HeadScores::of_question(reading, question), row))
    })?;
    let (scores, rows): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    let choice = heads::choose(
        &scores,
        Some(HeadChoice::Accuracy),
        usize::from(args.heads),
        &[QuestionTokens::All, QuestionTokens::Last],
    )?;
    let trained = probe::train(&rows);
    report(&trained, &choice, questions.len());
    let all = trained.fitted.weights.iter().map(|&weight| weight as f32).collect::<Vec<_>>();
    let (mean, last) = all.split_at(heads);
    decoder.probe = Some(Box::new(Probe {
        features: ProbeFeatures::AttentionMass,
        template: args.template.clone(),
        layers,
        bias: trained.fitted.bias as f32,
        mean: mean.to_vec(),
        last: last.to_vec(),
        held_out: trained.held_out.mean,
        questions: questions.len(),
        data,
        weights,
    }));
    let uses_it = Config { rc: config::Rc { estimator: Scoring::Probe }, ..config.clone() };
    let consequence =
        layers_run(decoder, &uses_it) + "; set rc.estimator = \"probe\" to score with the probe";
    save(&contract, &config.model.dir, args, &consequence)
}

fn report(trained: &Trained, choice: &heads::Choice, questions: usize) {
    super::super::print(format_args!(
        "R@gold on half of {questions} questions; the other half trained the probe and chose the heads:"
    ));
    let line = |what: &str, recall: String| super::super::print(format_args!("  {what:<12} {recall}"));
    let estimate = |estimate: &thresher_eval::Estimate| {
        let [low, high] = estimate.interval;
        format!("{:.3} [{low:.3}, {high:.3}]", estimate.mean)
    };
    let of_heads = |measured: &heads::Measured| format!("{:.3}", measured.by(HeadChoice::Accuracy));
    line("probe", estimate(&trained.held_out));
    line("chosen heads", of_heads(&choice.held_out));
    line("all heads", of_heads(&choice.held_out_all));
    line("BM25", estimate(&trained.held_out_bm25));
}
