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
use thresher_core::model::KeyMask;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::kv_export::KvExport;

use self::methods::{Method, Seen};
use super::bootstrap::{estimate, proportion};
use super::data::{self, LabelledChunk};

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
    /// The model's name.
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
    let mut samples: BTreeMap<(u32, Method), Samples> = BTreeMap::new();
    let (mut full, mut by_kind) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
    let (mut answers, mut tokens) = (Vec::new(), 0);
    for (i, row) in rows.iter().enumerate() {
        let told = measure(row, i, pipeline, &mut samples)
            .with_context(|| format!("{}, question {}", path.display(), i + 1))?;
        let right = told.right;
        full.push(right);
        if let Some(kind) = &row.kind {
            by_kind.entry(kind.clone()).or_default().push(right);
        }
        tokens += told.tokens;
        answers.push(told.answers);
        progress(i + 1, rows.len());
    }
    let mut ratios = BTreeMap::<String, BTreeMap<&'static str, Survival>>::new();
    for ((ratio, method), samples) in &samples {
        ratios.entry(ratio.to_string()).or_default().insert(method.name(), samples.survival());
    }
    let all = proportion(&full);
    let by_kind = by_kind.into_iter().map(|(kind, right)| (kind, proportion(&right).mean)).collect();
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

/// What one question adds.
struct Told {
    right: f64,
    tokens: usize,
    answers: Answers,
}

fn measure(
    row: &KvRow,
    number: usize,
    pipeline: &Pipeline,
    samples: &mut BTreeMap<(u32, Method), Samples>,
) -> anyhow::Result<Told> {
    let asked = Asked::new(row, pipeline)?;
    let seen = Seen::new(&asked.kv_export, &asked.question, pipeline, number)?;
    let (whole, right) = asked.told(None)?;
    let mut answers = Answers { full: asked.says(None)?, rc: BTreeMap::new() };
    for ratio in RATIOS {
        for method in Method::ALL {
            let kept = method.kept(&seen, ratio)?;
            let (without, right) = asked.told(Some(&kept))?;
            let into = samples.entry((ratio, method)).or_default();
            into.right.push(right);
            into.kl.push(divergence(whole.view(), without.view()));
            into.kept.push(kept.share());
            if method == Method::Rc {
                answers.rc.insert(ratio.to_string(), asked.says(Some(&kept))?);
            }
        }
    }
    Ok(Told { right, tokens: asked.kv_export.tokens.len(), answers })
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
        let (right, kl) = (proportion(&self.right), estimate(&self.kl));
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
    kv_export: KvExport,
    question: Vec<u32>,
    /// Each of which is right.
    answers: Vec<Vec<u32>>,
}

impl<'a> Asked<'a> {
    fn new(row: &KvRow, pipeline: &'a Pipeline) -> anyhow::Result<Self> {
        if row.answers.is_empty() {
            bail!("answers is empty: how well keys are kept is measured by an answer");
        }
        if row.chunks.is_empty() {
            bail!("chunks is empty");
        }
        let question = pipeline.tokens_of(&row.query)?;
        if question.is_empty() {
            bail!("query is empty");
        }
        let tokens_behind = |answer: &String| {
            let mut joined = pipeline.tokens_of(&format!("{} {answer}", row.query))?;
            if answer.trim().is_empty() || !joined.starts_with(&question) || joined.len() == question.len() {
                bail!("answer {answer:?} is not read as a text of its own behind the question");
            }
            Ok(joined.split_off(question.len()))
        };
        let answers = row.answers.iter().map(tokens_behind).collect::<anyhow::Result<Vec<_>>>()?;
        let longest = answers.iter().map(Vec::len).max().unwrap_or(0).max(ANSWER_TOKENS_MAX);
        let chunks: Vec<_> = row.chunks.iter().map(|chunk| chunk.chunk().into()).collect();
        let kv_export = pipeline.kv_export(&chunks, question.len() + longest, &Cancel::default())?;
        if kv_export.tokens.is_empty() {
            bail!("the chunks hold no token");
        }
        Ok(Self { pipeline, kv_export, question, answers })
    }

    /// Logarithms of the probabilities of what comes next before each token of the first answer, `[answer_token, vocab]`, and whether one
    /// of the answers is what would be said: 1, or 0.
    fn told(&self, kept: Option<&KeyMask>) -> anyhow::Result<(Array2<f32>, f64)> {
        let of = |answer: &Vec<u32>| self.distributions(answer, kept);
        let first = of(&self.answers[0])?;
        let mut right = is_right(first.view(), &self.answers[0]);
        for answer in &self.answers[1..] {
            right = right || is_right(of(answer)?.view(), answer);
        }
        Ok((first, f64::from(u8::from(right))))
    }

    fn distributions(&self, answer: &[u32], kept: Option<&KeyMask>) -> anyhow::Result<Array2<f32>> {
        let told = [&self.question, &answer[..answer.len() - 1]].concat();
        let logits = self.forward(&told, kept)?;
        let mut next = logits.slice(s![self.question.len() - 1.., ..]).to_owned();
        for mut row in next.rows_mut() {
            let most = row.fold(f32::MIN, |most, &logit| most.max(logit));
            let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
            let log_sum = (f64::from(most) + sum.ln()) as f32;
            row.mapv_inplace(|logit| logit - log_sum);
        }
        Ok(next)
    }

    /// `[token, vocab]`
    fn forward(&self, tokens: &[u32], kept: Option<&KeyMask>) -> anyhow::Result<Array2<f32>> {
        let (runtime, cancel) = (self.pipeline.runtime(), Cancel::default());
        let past = self.kv_export.past(self.pipeline.model(), &cancel);
        Ok(runtime.forward(tokens, &past, kept)?.logits)
    }

    /// What the model says, the likeliest token each time, as far as the right answer's last token.
    fn says(&self, kept: Option<&KeyMask>) -> anyhow::Result<String> {
        let mut told = self.question.clone();
        while told.len() < self.question.len() + ANSWER_TOKENS_MAX {
            let next = likeliest(self.forward(&told, kept)?.row(told.len() - 1));
            told.push(next);
            if self.answers.iter().any(|answer| answer.last() == Some(&next)) {
                break;
            }
        }
        Ok(self.pipeline.text_of(&told[self.question.len()..])?)
    }
}

/// Whether every token of the answer is the likeliest: then it is what would be said, one token after the other.
fn is_right(next: ArrayView2<f32>, answer: &[u32]) -> bool {
    next.outer_iter().zip(answer).all(|(row, &wanted)| likeliest(row) == wanted)
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

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn divergence_is_of_the_first_from_the_second() {
        let logs = |p: Array2<f32>| p.mapv(f32::ln);
        let (p, q) = (logs(array![[0.5, 0.5], [0.25, 0.75]]), logs(array![[0.25, 0.75], [0.25, 0.75]]));
        let expect = (0.5 * 2.0_f64.ln() + 0.5 * (0.5_f64 / 0.75).ln()) / 2.0;
        assert!((divergence(p.view(), q.view()) - expect).abs() < 1e-6);
        assert_eq!(divergence(p.view(), p.view()), 0.0);
    }

    #[test]
    fn an_answer_is_right_when_each_of_its_tokens_is_likeliest() {
        let next = array![[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]];
        assert!(is_right(next.view(), &[1, 0]), "the first of equals");
        assert!(!is_right(next.view(), &[1, 1]));
        assert!(!is_right(next.view(), &[2, 0]));
    }
}
