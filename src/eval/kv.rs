//! What is lost when keys and values are left out: does the model still answer, and how far is what it would say from what it says
//! with all of them?
//!
//! Chunks are read one by one and handed over one behind the other, as the daemon hands them over. Each method then chooses keys for
//! the question, and the question is read over what is left.

mod methods;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use ndarray::{Array2, ArrayView1, ArrayView2, s};
use serde::{Deserialize, Serialize};

use self::methods::{Method, Seen};
use super::bootstrap::estimate;
use super::data::{self, LabelledChunk};
use crate::model::Kept;
use crate::pipeline::Pipeline;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::handover::Handover;

/// One key of so many is kept.
const RATIOS: [u32; 4] = [2, 4, 8, 16];

/// Tokens of an answer at most.
const ANSWER_TOKENS_MAX: usize = 64;

/// A question with its chunks and the answer that is right.
#[derive(Debug, Clone, Deserialize)]
pub struct KvRow {
    query: String,
    chunks: Vec<LabelledChunk>,
    answers: Vec<String>,
    #[serde(default)]
    kind: Option<String>,
}

/// A mean with its interval, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// 95 %, by resampling rows.
    pub interval: [f64; 2],
}

/// How well answers survive one method at one ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Survival {
    /// Share of answers of which every token is the likeliest.
    pub accuracy: f64,
    accuracy_interval: [f64; 2],
    /// Kullback–Leibler divergence of what comes next from what comes next with all keys, mean over the answer's tokens, in nats.
    pub kl: f64,
    kl_interval: [f64; 2],
    /// Share of the keys that was kept.
    pub kept: f64,
}

/// What [`evaluate`] found.
#[derive(Debug, Clone, Serialize)]
pub struct KvReport {
    /// Name of the file.
    pub data: String,
    /// The model and its fingerprint.
    pub model: String,
    /// The model's fingerprint.
    pub fingerprint: String,
    /// Questions.
    pub rows: usize,
    /// Tokens of the chunks, mean.
    pub tokens: f64,
    /// With all keys.
    pub full_accuracy: f64,
    full_accuracy_interval: [f64; 2],
    /// The same by kind of question, where rows have one.
    pub full_accuracy_by_kind: BTreeMap<String, f64>,
    /// By ratio, by method.
    pub ratios: BTreeMap<String, BTreeMap<&'static str, Survival>>,
    /// What the model says, row by row.
    pub answers: Vec<Answers>,
}

/// What the model says to one question.
#[derive(Debug, Clone, Serialize)]
pub struct Answers {
    /// With all keys.
    pub full: String,
    /// With those that RC keeps, by ratio.
    pub rc: BTreeMap<String, String>,
}

/// The methods' samples, by ratio.
#[derive(Default)]
struct Samples {
    right: Vec<f64>,
    kl: Vec<f64>,
    kept: Vec<f64>,
}

/// Measures on all rows of a file. `progress` is told after each how many are done.
///
/// # Errors
/// A file that cannot be read, rows of another shape, with the line; a model that has nothing to hand over, or cannot say what comes
/// next.
pub fn evaluate(
    path: &Path,
    pipeline: &Pipeline,
    progress: &dyn Fn(usize, usize),
) -> anyhow::Result<KvReport> {
    let rows: Vec<KvRow> = data::read_lines(path)?;
    if rows.is_empty() {
        bail!("{} holds no questions", path.display());
    }
    let mut samples: BTreeMap<(u32, Method), Samples> = BTreeMap::new();
    let (mut full, mut by_kind) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
    let (mut answers, mut tokens) = (Vec::new(), 0);
    for (i, row) in rows.iter().enumerate() {
        let asked = Asked::new(row, i, pipeline)
            .with_context(|| format!("{}, question {}", path.display(), i + 1))?;
        let whole = asked.distributions(None)?;
        let right = f64::from(u8::from(asked.is_right(whole.view())));
        full.push(right);
        if let Some(kind) = &row.kind {
            by_kind.entry(kind.clone()).or_default().push(right);
        }
        tokens += asked.handover.tokens.len();
        let mut said = Answers { full: asked.says(None)?, rc: BTreeMap::new() };
        for ratio in RATIOS {
            for method in Method::ALL {
                let kept = method.kept(&asked.seen, &asked.handover, &asked.question, ratio, pipeline)?;
                let without = asked.distributions(Some(&kept))?;
                let into = samples.entry((ratio, method)).or_default();
                into.right.push(f64::from(u8::from(asked.is_right(without.view()))));
                into.kl.push(divergence(whole.view(), without.view()));
                into.kept.push(kept.share());
                if method == Method::Rc {
                    said.rc.insert(ratio.to_string(), asked.says(Some(&kept))?);
                }
            }
        }
        answers.push(said);
        progress(i + 1, rows.len());
    }
    let mut ratios = BTreeMap::<String, BTreeMap<&'static str, Survival>>::new();
    for ((ratio, method), samples) in &samples {
        ratios.entry(ratio.to_string()).or_default().insert(method.name(), samples.survival());
    }
    let all = estimate(&full);
    let by_kind = by_kind.into_iter().map(|(kind, right)| (kind, estimate(&right).mean)).collect();
    Ok(KvReport {
        data: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        model: pipeline.model().name.clone(),
        fingerprint: pipeline.model().fingerprint.clone(),
        rows: rows.len(),
        tokens: tokens as f64 / rows.len() as f64,
        full_accuracy: all.mean,
        full_accuracy_interval: all.interval,
        full_accuracy_by_kind: by_kind,
        ratios,
        answers,
    })
}

/// The report as a table for people.
pub fn table(report: &KvReport) -> String {
    let by_kind: Vec<String> =
        report.full_accuracy_by_kind.iter().map(|(kind, right)| format!("{kind} {right:.3}")).collect();
    let [low, high] = report.full_accuracy_interval;
    let mut out = format!(
        "{}: {} questions, {:.0} tokens of chunks, {} ({})\nall keys: accuracy {:.3} [{low:.3}, {high:.3}]  {}\n\n{:<14}",
        report.data,
        report.rows,
        report.tokens,
        report.model,
        report.fingerprint,
        report.full_accuracy,
        by_kind.join(", "),
        "accuracy / KL"
    );
    for ratio in RATIOS {
        out += &format!("  {:>27}", format!("{ratio}x"));
    }
    for method in Method::ALL {
        out += &format!("\n{:<14}", method.name());
        for ratio in RATIOS {
            let Survival { accuracy, accuracy_interval: [low, high], kl, .. } =
                report.ratios[&ratio.to_string()][method.name()];
            out += &format!("  {:>27}", format!("{accuracy:.3} [{low:.3}, {high:.3}] {kl:.3}"));
        }
    }
    out
}

impl Samples {
    fn survival(&self) -> Survival {
        let (right, kl) = (estimate(&self.right), estimate(&self.kl));
        Survival {
            accuracy: right.mean,
            accuracy_interval: right.interval,
            kl: kl.mean,
            kl_interval: kl.interval,
            kept: estimate(&self.kept).mean,
        }
    }
}

/// A row as the model has it.
struct Asked<'a> {
    pipeline: &'a Pipeline,
    handover: Handover,
    question: Vec<u32>,
    answer: Vec<u32>,
    seen: Seen,
}

impl<'a> Asked<'a> {
    fn new(row: &KvRow, number: usize, pipeline: &'a Pipeline) -> anyhow::Result<Self> {
        let Some(answer) = row.answers.first().filter(|answer| !answer.is_empty()) else {
            bail!("answers is empty: how well keys are kept is measured by an answer");
        };
        let question = pipeline.tokens_of(&row.query)?;
        let mut joined = pipeline.tokens_of(&format!("{} {answer}", row.query))?;
        if question.is_empty() || !joined.starts_with(&question) || joined.len() == question.len() {
            bail!("the answer is not read as a text of its own behind the question");
        }
        let answer = joined.split_off(question.len());
        let chunks: Vec<_> = row.chunks.iter().map(|chunk| chunk.chunk().into()).collect();
        let beside = question.len() + answer.len().max(ANSWER_TOKENS_MAX);
        let handover = pipeline.handover(&chunks, beside, &Cancel::default())?;
        let seen = Seen::new(&handover, &question, pipeline, number)?;
        Ok(Self { pipeline, handover, question, answer, seen })
    }

    /// Logarithms of the probabilities of what comes next, before each token of the answer: `[answer_token, vocab]`.
    fn distributions(&self, kept: Option<&Kept>) -> anyhow::Result<Array2<f32>> {
        let told = [&self.question, &self.answer[..self.answer.len() - 1]].concat();
        let said = self.pipeline.tell(&self.handover, &told, kept)?;
        let mut next = said.logits.slice(s![self.question.len() - 1.., ..]).to_owned();
        for mut row in next.rows_mut() {
            let most = row.fold(f32::MIN, |most, &logit| most.max(logit));
            let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
            let log_sum = (f64::from(most) + sum.ln()) as f32;
            row.mapv_inplace(|logit| logit - log_sum);
        }
        Ok(next)
    }

    /// Whether every token of the answer is the likeliest: then it is what would be said, one token after the other.
    fn is_right(&self, next: ArrayView2<f32>) -> bool {
        next.outer_iter().zip(&self.answer).all(|(row, &wanted)| likeliest(row) == wanted)
    }

    /// What the model says, the likeliest token each time, as far as the right answer's last token.
    fn says(&self, kept: Option<&Kept>) -> anyhow::Result<String> {
        let mut told = self.question.clone();
        while told.len() < self.question.len() + ANSWER_TOKENS_MAX {
            let said = self.pipeline.tell(&self.handover, &told, kept)?;
            let next = likeliest(said.logits.row(told.len() - 1));
            told.push(next);
            if Some(&next) == self.answer.last() {
                break;
            }
        }
        Ok(self.pipeline.text_of(&told[self.question.len()..])?)
    }
}

fn likeliest(row: ArrayView1<f32>) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(id, _)| id as u32)
}

/// KL(whole ‖ without) of logarithms of probabilities, mean over rows, in nats.
fn divergence(whole: ArrayView2<f32>, without: ArrayView2<f32>) -> f64 {
    let of = |(&p, &q): (&f32, &f32)| f64::from(p).exp() * f64::from(p - q);
    let sum: f64 = whole.iter().zip(without.iter()).map(of).sum();
    (sum / whole.nrows().max(1) as f64).max(0.0)
}
