//! What each method of KV eviction loses at each ratio, with intervals (`thresher-lab kv`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use thresher_core::model::ModelInfo;

use anyhow::Context as _;
use thresher_core::Engine;
use thresher_core::pipeline::kv_export;
use thresher_eval::estimate::{Estimate, bootstrap_mean, wilson_proportion};
use thresher_eval::kv::reading::{Loss, ReadRow};
use thresher_eval::kv::rows::{self, KvRow};
use thresher_eval::kv::{LossByCase, Method, RATIOS, RowOptions, for_each_row, losses_of_methods};

struct Measured {
    kind: Option<String>,
    /// The number of tokens of the chunks.
    tokens: usize,
    /// The loss with all keys: what the model knows without eviction.
    full: Loss,
    evicted: LossByCase,
}

/// Evaluates all eviction methods on the rows of a file, on all cores. `progress` is called after each row with
/// the number done and the number of all.
///
/// # Errors
/// Fails if the file cannot be read, if a row has another shape (the error names the line), or if the model
/// is not a decoder whose keys and values can be exported and that returns next-token logits.
pub fn evaluate(
    path: &Path,
    engine: &Engine,
    options: &RowOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<KvReport> {
    let rows = rows::read(path, options)?;
    let measured = for_each_row(&rows, progress, |row, index| {
        measure(row, index, engine, options).with_context(|| rows::place(path, index))
    })?;
    Ok(KvReport::new(path, engine.pipeline().model(), options, &measured))
}

/// Evaluates all methods at all ratios on one row.
fn measure(row: &KvRow, index: usize, engine: &Engine, options: &RowOptions) -> anyhow::Result<Measured> {
    let read = ReadRow::new(row, engine, options)?;
    let form = kv_export::check_model(engine.pipeline().model())?.eviction;
    let (full, evicted) = losses_of_methods(&read, index, engine, &form)?;
    Ok(Measured { kind: row.kind.clone(), tokens: read.tokens(), full, evicted })
}

/// How well answers survive one eviction method at one ratio. Intervals are 95 % intervals over questions:
/// Wilson's for accuracy, bootstrap intervals for everything else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Survival {
    /// Share of questions, from 0 to 1, for which every token of a correct answer is the most likely one.
    pub accuracy: f64,
    accuracy_interval: [f64; 2],
    /// Kullback–Leibler divergence from the next-token distribution with all keys to the one with the kept
    /// keys, in nats, averaged over the first answer's tokens.
    pub kl: f64,
    kl_interval: [f64; 2],
    /// By how much the divergence of the same questions is larger than that of `rc`, in nats. If the interval
    /// is above 0, RC loses less.
    pub kl_above_rc: f64,
    kl_above_rc_interval: [f64; 2],
    /// Share of the first answer's tokens, from 0 to 1, before which the most likely token is that with all
    /// keys.
    pub agreement: f64,
    agreement_interval: [f64; 2],
    /// Negative log-likelihood of the first answer, in nats per token.
    pub nll: f64,
    nll_interval: [f64; 2],
    /// Share of the keys that was kept, from 0 to 1.
    pub kept: f64,
}

/// The result of [`evaluate`].
#[derive(Debug, Clone, Serialize)]
pub struct KvReport {
    /// Name of the data file, without its extension.
    pub data: String,
    pub model: String,
    pub fingerprint: String,
    /// The form of eviction by RC that the model's contract has, or the default.
    pub form: String,
    /// The text that the model reads after the chunks; `{question}` stands for the question.
    pub template: String,
    /// Whether the chunks of a question were read as one prompt.
    pub one_prompt: bool,
    pub rows: usize,
    /// Mean number of chunk tokens per question.
    pub tokens: f64,
    /// Accuracy with all keys, as in [`Survival::accuracy`].
    pub full_accuracy: f64,
    full_accuracy_interval: [f64; 2],
    /// Negative log-likelihood of the first answer with all keys, in nats per token.
    pub full_nll: f64,
    full_nll_interval: [f64; 2],
    /// Accuracy with all keys by the rows' `kind`; empty if no row has one.
    pub full_accuracy_by_kind: BTreeMap<String, f64>,
    /// Results by ratio (`"2"`, `"4"`, ...), then by the name of the method.
    pub ratios: BTreeMap<String, BTreeMap<&'static str, Survival>>,
    /// The same by the rows' `kind`; empty if no row has one.
    pub by_kind: BTreeMap<String, BTreeMap<String, BTreeMap<&'static str, Survival>>>,
}

impl KvReport {
    fn new(path: &Path, model: &ModelInfo, options: &RowOptions, rows: &[Measured]) -> Self {
        let correct: Vec<f64> = rows.iter().map(|row| row.full.correct).collect();
        let (accuracy, nll) = (wilson_proportion(&correct), mean_of(rows, |row| row.full.nll));
        let mut kinds = BTreeMap::<String, Vec<&Measured>>::new();
        for row in rows {
            if let Some(kind) = &row.kind {
                kinds.entry(kind.clone()).or_default().push(row);
            }
        }
        let full_of = |rows: &Vec<&Measured>| mean_of(rows.iter().copied(), |row| row.full.correct).mean;
        let form = model.decoder.as_ref().map_or_else(String::new, |decoder| decoder.eviction.to_string());
        Self {
            data: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
            model: model.name.clone(),
            fingerprint: model.fingerprint.clone(),
            form,
            template: options.template.clone(),
            one_prompt: options.one_prompt,
            rows: rows.len(),
            tokens: mean_of(rows, |row| row.tokens as f64).mean,
            full_accuracy: accuracy.mean,
            full_accuracy_interval: accuracy.interval,
            full_nll: nll.mean,
            full_nll_interval: nll.interval,
            full_accuracy_by_kind: kinds.iter().map(|(kind, rows)| (kind.clone(), full_of(rows))).collect(),
            ratios: by_ratio(&rows.iter().collect::<Vec<_>>()),
            by_kind: kinds.iter().map(|(kind, rows)| (kind.clone(), by_ratio(rows))).collect(),
        }
    }
}

fn by_ratio(rows: &[&Measured]) -> BTreeMap<String, BTreeMap<&'static str, Survival>> {
    let of_ratio = |ratio: u32| {
        Method::ALL.into_iter().map(|method| (method.name(), survival(rows, (ratio, method)))).collect()
    };
    RATIOS.into_iter().map(|ratio| (ratio.to_string(), of_ratio(ratio))).collect()
}

fn survival(rows: &[&Measured], case: (u32, Method)) -> Survival {
    let mean = |of: &dyn Fn(&Loss) -> f64| mean_of(rows.iter().copied(), |row| of(&row.evicted[&case]));
    let correct: Vec<f64> = rows.iter().map(|row| row.evicted[&case].correct).collect();
    let above_rc = |row: &Measured| row.evicted[&case].kl - row.evicted[&(case.0, Method::Rc)].kl;
    let (accuracy, kl, above) =
        (wilson_proportion(&correct), mean(&|loss| loss.kl), mean_of(rows.iter().copied(), above_rc));
    let (agreement, nll) = (mean(&|loss| loss.agreement), mean(&|loss| loss.nll));
    Survival {
        accuracy: accuracy.mean,
        accuracy_interval: accuracy.interval,
        kl: kl.mean,
        kl_interval: kl.interval,
        kl_above_rc: above.mean,
        kl_above_rc_interval: above.interval,
        agreement: agreement.mean,
        agreement_interval: agreement.interval,
        nll: nll.mean,
        nll_interval: nll.interval,
        kept: mean(&|loss| loss.kept).mean,
    }
}

fn mean_of<'a>(rows: impl IntoIterator<Item = &'a Measured>, value: impl Fn(&Measured) -> f64) -> Estimate {
    bootstrap_mean(&rows.into_iter().map(value).collect::<Vec<_>>())
}

/// Renders the report as text: for each ratio a table with one row per method.
pub fn table(report: &KvReport) -> String {
    let mut out = format!(
        "{}: {} questions, {:.0} chunk tokens on average, {} ({})\nrc: {}\nall keys: {}, NLL {}",
        report.data,
        report.rows,
        report.tokens,
        report.model,
        report.fingerprint,
        report.form,
        format_args!("accuracy {}", cell(report.full_accuracy, report.full_accuracy_interval)),
        cell(report.full_nll, report.full_nll_interval),
    );
    for (kind, accuracy) in &report.full_accuracy_by_kind {
        out += &format!("  {kind} {accuracy:.3}");
    }
    for ratio in RATIOS {
        let methods = &report.ratios[&ratio.to_string()];
        out += &format!(
            "\n\n{:<14}  {:>21}  {:>21}  {:>21}  {:>21}  {:>21}",
            format!("1 key in {ratio}"),
            "KL",
            "KL above rc",
            "agreement",
            "NLL",
            "accuracy"
        );
        for method in Method::ALL {
            let survival = &methods[method.name()];
            out += &format!(
                "\n{:<14}  {:>21}  {:>21}  {:>21}  {:>21}  {:>21}",
                method.name(),
                cell(survival.kl, survival.kl_interval),
                cell(survival.kl_above_rc, survival.kl_above_rc_interval),
                cell(survival.agreement, survival.agreement_interval),
                cell(survival.nll, survival.nll_interval),
                cell(survival.accuracy, survival.accuracy_interval),
            );
        }
    }
    out + &kinds(report)
}

/// The KL divergence and the accuracy of `rc` and `snapkv` by kind of question.
fn kinds(report: &KvReport) -> String {
    let mut out = String::new();
    for (kind, ratios) in &report.by_kind {
        for method in [Method::Rc, Method::SnapKv] {
            out += &format!("\n{kind:<14}  {:<7}", method.name());
            for ratio in RATIOS {
                let survival = &ratios[&ratio.to_string()][method.name()];
                out += &format!("  {ratio}x KL {:.3} accuracy {:.3}", survival.kl, survival.accuracy);
            }
        }
    }
    if out.is_empty() { out } else { format!("\n\nby kind{out}") }
}

fn cell(mean: f64, [low, high]: [f64; 2]) -> String {
    format!("{mean:.3} [{low:.3}, {high:.3}]")
}
