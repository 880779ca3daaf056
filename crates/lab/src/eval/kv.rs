//! Measures what is lost when keys and values are evicted (`eval --kv`): whether a decoder still answers
//! correctly, and how far its output distribution moves.
//!
//! Chunks are read one by one and placed one after another, as the KV export places them. Each method then
//! selects the keys to keep for the question, and the model reads the question over the kept keys.

mod methods;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use ndarray::{Array2, ArrayView1, ArrayView2, s};
use serde::{Deserialize, Serialize};
use thresher_core::Engine;
use thresher_core::model::KeyMask;
use thresher_core::model::ort::DecoderRuntime;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::kv_export::KvExport;

use self::methods::{KeyScores, Method};
use super::data::{self, LabelledChunk};
use super::estimate::{bootstrap_mean, wilson_proportion};

/// Compression ratios: one key in N is kept.
const RATIOS: [u32; 4] = [2, 4, 8, 16];

/// The most tokens of an answer.
const ANSWER_TOKENS_MAX: usize = 64;

/// A question with its chunks and its correct answers.
#[derive(Debug, Clone, Deserialize)]
pub struct KvRow {
    query: String,
    chunks: Vec<LabelledChunk>,
    answers: Vec<String>,
    #[serde(default)]
    kind: Option<String>,
}

/// How well answers survive one eviction method at one ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Survival {
    /// Share of questions, from 0 to 1, for which every token of a correct answer is the most likely one. The
    /// interval is Wilson's.
    pub accuracy: f64,
    accuracy_interval: [f64; 2],
    /// Kullback–Leibler divergence from the next-token distribution with all keys to the one with the kept
    /// keys, in nats, averaged over the first answer's tokens.
    pub kl: f64,
    kl_interval: [f64; 2],
    /// Share of the keys that was kept, from 0 to 1.
    pub kept: f64,
}

/// The result of [`evaluate`].
#[derive(Debug, Clone, Serialize)]
pub struct KvReport {
    /// Name of the data file, without its extension.
    pub data: String,
    /// Name of the model.
    pub model: String,
    /// Fingerprint of the model.
    pub fingerprint: String,
    /// Number of questions.
    pub rows: usize,
    /// Mean number of chunk tokens per question.
    pub tokens: f64,
    /// Accuracy with all keys, as in [`Survival::accuracy`].
    pub full_accuracy: f64,
    full_accuracy_interval: [f64; 2],
    /// Accuracy with all keys by the rows' `kind`; empty if no row has one.
    pub full_accuracy_by_kind: BTreeMap<String, f64>,
    /// Results by ratio (`"2"`, `"4"`, ...), then by the name of the method.
    pub ratios: BTreeMap<String, BTreeMap<&'static str, Survival>>,
    /// Generated answers, one entry per row.
    pub answers: Vec<Answers>,
}

/// Generated answers to one question, decoded greedily.
#[derive(Debug, Clone, Serialize)]
pub struct Answers {
    /// The answer with all keys.
    pub full: String,
    /// The answer with the keys that RC keeps, by ratio.
    pub rc: BTreeMap<String, String>,
}

/// Samples of one method at one ratio, one value per question.
#[derive(Default)]
struct Samples {
    correct: Vec<f64>,
    kl: Vec<f64>,
    kept: Vec<f64>,
}

/// Evaluates all eviction methods on the rows of a file. `progress` is called after each row with the number
/// done and the number of all.
///
/// # Errors
/// Fails if the file cannot be read, if a row has another shape (the error names the line), or if the model
/// is not a decoder whose keys and values can be exported and that returns next-token logits.
pub fn evaluate(path: &Path, engine: &Engine, progress: &dyn Fn(usize, usize)) -> anyhow::Result<KvReport> {
    let rows: Vec<KvRow> = data::read_lines(path)?;
    let mut samples: BTreeMap<(u32, Method), Samples> = BTreeMap::new();
    let (mut full, mut by_kind) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
    let (mut answers, mut tokens) = (Vec::new(), 0);
    for (i, row) in rows.iter().enumerate() {
        let result = evaluate_row(row, i, engine, &mut samples)
            .with_context(|| format!("{}, question {}", path.display(), i + 1))?;
        let correct = result.correct;
        full.push(correct);
        if let Some(kind) = &row.kind {
            by_kind.entry(kind.clone()).or_default().push(correct);
        }
        tokens += result.tokens;
        answers.push(result.answers);
        progress(i + 1, rows.len());
    }
    let mut ratios = BTreeMap::<String, BTreeMap<&'static str, Survival>>::new();
    for ((ratio, method), samples) in &samples {
        ratios.entry(ratio.to_string()).or_default().insert(method.name(), samples.survival());
    }
    let all = wilson_proportion(&full);
    let by_kind =
        by_kind.into_iter().map(|(kind, correct)| (kind, wilson_proportion(&correct).mean)).collect();
    Ok(KvReport {
        data: path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned()),
        model: engine.pipeline().model().name.clone(),
        fingerprint: engine.pipeline().model().fingerprint.clone(),
        rows: rows.len(),
        tokens: tokens as f64 / rows.len() as f64,
        full_accuracy: all.mean,
        full_accuracy_interval: all.interval,
        full_accuracy_by_kind: by_kind,
        ratios,
        answers,
    })
}

/// The contribution of one question to the report.
struct RowResult {
    correct: f64,
    tokens: usize,
    answers: Answers,
}

fn evaluate_row(
    row: &KvRow,
    number: usize,
    engine: &Engine,
    samples: &mut BTreeMap<(u32, Method), Samples>,
) -> anyhow::Result<RowResult> {
    let encoded = EncodedRow::new(row, engine)?;
    let key_scores = KeyScores::new(&encoded.kv_export, &encoded.question, engine, number)?;
    let (full, correct) = encoded.score_answers(None)?;
    let mut answers = Answers { full: encoded.generate(None)?, rc: BTreeMap::new() };
    for ratio in RATIOS {
        for method in Method::ALL {
            let kept = method.select_keys(&key_scores, ratio)?;
            let (reduced, correct) = encoded.score_answers(Some(&kept))?;
            let into = samples.entry((ratio, method)).or_default();
            into.correct.push(correct);
            into.kl.push(kl_divergence(full.view(), reduced.view()));
            into.kept.push(kept.share());
            if method == Method::Rc {
                answers.rc.insert(ratio.to_string(), encoded.generate(Some(&kept))?);
            }
        }
    }
    Ok(RowResult { correct, tokens: encoded.kv_export.tokens.len(), answers })
}

/// Renders the report as a text table: accuracy with its 95 % interval and the KL divergence in nats.
pub fn table(report: &KvReport) -> String {
    let by_kind: Vec<String> =
        report.full_accuracy_by_kind.iter().map(|(kind, correct)| format!("{kind} {correct:.3}")).collect();
    let [low, high] = report.full_accuracy_interval;
    let mut out = format!(
        "{}: {} questions, {:.0} chunk tokens on average, {} ({})\nall keys: accuracy {:.3} [{low:.3}, {high:.3}]  {}\n\n{:<14}",
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
        let (correct, kl) = (wilson_proportion(&self.correct), bootstrap_mean(&self.kl));
        Survival {
            accuracy: correct.mean,
            accuracy_interval: correct.interval,
            kl: kl.mean,
            kl_interval: kl.interval,
            kept: bootstrap_mean(&self.kept).mean,
        }
    }
}

/// Returns the engine's model, which must be a decoder.
fn decoder_of(engine: &Engine) -> anyhow::Result<&DecoderRuntime> {
    engine.model().decoder().with_context(|| {
        let name = &engine.pipeline().model().name;
        format!("{name} is an encoder; KV eviction is evaluated on decoders")
    })
}

/// A row as token ids, with the exported keys and values of its chunks.
struct EncodedRow<'a> {
    engine: &'a Engine,
    kv_export: KvExport,
    question: Vec<u32>,
    /// Token ids of each correct answer.
    answers: Vec<Vec<u32>>,
}

impl<'a> EncodedRow<'a> {
    fn new(row: &KvRow, engine: &'a Engine) -> anyhow::Result<Self> {
        let pipeline = engine.pipeline();
        if row.answers.is_empty() {
            bail!("answers is empty; a row needs at least one correct answer");
        }
        if row.chunks.is_empty() {
            bail!("chunks is empty; a row needs at least one chunk");
        }
        let question = pipeline.tokens_of(&row.query)?;
        if question.is_empty() {
            bail!("query is empty or has no token");
        }
        let tokens_behind = |answer: &String| {
            let mut joined = pipeline.tokens_of(&format!("{} {answer}", row.query))?;
            if answer.trim().is_empty() || !joined.starts_with(&question) || joined.len() == question.len() {
                bail!(
                    "answer {answer:?} is not read as tokens of its own after the question; it must not be blank or merge with the question's last token"
                );
            }
            Ok(joined.split_off(question.len()))
        };
        let answers = row.answers.iter().map(tokens_behind).collect::<anyhow::Result<Vec<_>>>()?;
        let longest = answers.iter().map(Vec::len).max().unwrap_or(0).max(ANSWER_TOKENS_MAX);
        let chunks: Vec<_> = row.chunks.iter().map(|chunk| chunk.chunk().into()).collect();
        let kv_export = pipeline.kv_export(&chunks, question.len() + longest, &Cancel::default())?;
        if kv_export.tokens.is_empty() {
            bail!("the chunks have no tokens");
        }
        Ok(Self { engine, kv_export, question, answers })
    }

    /// Returns the log-probabilities of the next token before each token of the first answer, `[answer_token,
    /// vocab]`, and 1 if one of the correct answers would be generated greedily, else 0.
    fn score_answers(&self, kept: Option<&KeyMask>) -> anyhow::Result<(Array2<f32>, f64)> {
        let of = |answer: &Vec<u32>| self.distributions(answer, kept);
        let first = of(&self.answers[0])?;
        let mut correct = is_greedy(first.view(), &self.answers[0]);
        for answer in &self.answers[1..] {
            correct = correct || is_greedy(of(answer)?.view(), answer);
        }
        Ok((first, f64::from(u8::from(correct))))
    }

    fn distributions(&self, answer: &[u32], kept: Option<&KeyMask>) -> anyhow::Result<Array2<f32>> {
        let tokens = [&self.question, &answer[..answer.len() - 1]].concat();
        let logits = self.forward(&tokens, kept)?;
        let mut next = logits.slice(s![self.question.len() - 1.., ..]).to_owned();
        for mut row in next.rows_mut() {
            let most = row.fold(f32::MIN, |most, &logit| most.max(logit));
            let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
            let log_sum = (f64::from(most) + sum.ln()) as f32;
            row.mapv_inplace(|logit| logit - log_sum);
        }
        Ok(next)
    }

    /// Returns the logits, `[token, vocab]`.
    fn forward(&self, tokens: &[u32], kept: Option<&KeyMask>) -> anyhow::Result<Array2<f32>> {
        let cancel = Cancel::default();
        let past = self.kv_export.past(self.engine.pipeline().model(), &cancel);
        Ok(decoder_of(self.engine)?.forward(tokens, &past, kept)?.logits)
    }

    /// Generates an answer greedily, up to the last token of a correct answer or [`ANSWER_TOKENS_MAX`]
    /// tokens.
    fn generate(&self, kept: Option<&KeyMask>) -> anyhow::Result<String> {
        let mut tokens = self.question.clone();
        while tokens.len() < self.question.len() + ANSWER_TOKENS_MAX {
            let next = argmax(self.forward(&tokens, kept)?.row(tokens.len() - 1));
            tokens.push(next);
            if self.answers.iter().any(|answer| answer.last() == Some(&next)) {
                break;
            }
        }
        Ok(self.engine.pipeline().text_of(&tokens[self.question.len()..])?)
    }
}

/// Returns whether every token of the answer is the most likely one, so that greedy decoding would generate
/// the answer.
fn is_greedy(next: ArrayView2<f32>, answer: &[u32]) -> bool {
    next.outer_iter().zip(answer).all(|(row, &wanted)| argmax(row) == wanted)
}

fn argmax(row: ArrayView1<f32>) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(id, _)| id as u32)
}

/// Returns KL(full ‖ reduced) of log-probabilities in nats, averaged over rows.
fn kl_divergence(full: ArrayView2<f32>, reduced: ArrayView2<f32>) -> f64 {
    let of = |(&p, &q): (&f32, &f32)| f64::from(p).exp() * f64::from(p - q);
    let sum: f64 = full.iter().zip(reduced.iter()).map(of).sum();
    (sum / full.nrows().max(1) as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, array};

    use super::*;

    #[test]
    fn kl_divergence_matches_its_definition() {
        let logs = |p: Array2<f32>| p.mapv(f32::ln);
        let (p, q) = (logs(array![[0.5, 0.5], [0.25, 0.75]]), logs(array![[0.25, 0.75], [0.25, 0.75]]));
        let expect = (0.5 * 2.0_f64.ln() + 0.5 * (0.5_f64 / 0.75).ln()) / 2.0;
        assert!((kl_divergence(p.view(), q.view()) - expect).abs() < 1e-6);
        assert_eq!(kl_divergence(p.view(), p.view()), 0.0);
    }

    #[test]
    fn an_answer_is_correct_if_each_of_its_tokens_is_the_argmax() {
        let next = array![[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]];
        assert!(is_greedy(next.view(), &[1, 0]), "ties go to the smaller id");
        assert!(!is_greedy(next.view(), &[1, 1]));
        assert!(!is_greedy(next.view(), &[2, 0]));
    }
}
