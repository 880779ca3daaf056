//! How well a judgement tells true from false: of claims, whether the chunks support them; of questions, whether
//! a chunk answers them. docs/evaluation.md defines the metrics.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk, Granularity, Parts};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::attribute::{Candidates, Evidence, PartOutcome};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;

use super::data::{AnswerableRow, ClaimRow, Label, LabelledChunk, request};
use super::estimate::{Estimate, auroc, bootstrap_mean, cell};

/// The share of false rows that may be accepted while the recall of true rows is measured.
const FALSE_ACCEPTED: f64 = 0.1;

/// The number of bins of a reliability diagram, each with the same number of rows.
const BINS: usize = 10;

/// A row or a span that is true or false, and what Thresher says of it.
#[derive(Debug, Clone, Copy)]
pub struct Judged {
    pub value: f64,
    pub truth: bool,
    /// What the value was computed from, if it is the support of a part.
    pub evidence: Option<Evidence>,
}

impl Judged {
    pub fn of_part(part: &PartOutcome, truth: bool) -> Self {
        Self { value: f64::from(part.support.unwrap_or(0.0)), truth, evidence: part.evidence }
    }

    pub fn json(&self) -> Value {
        json!({"value": self.value, "truth": self.truth, "evidence": self.evidence})
    }
}

/// Rows that are true or false, and what Thresher says of them.
#[derive(Debug, Clone)]
pub struct JudgedReport {
    /// What is judged: `claims`, `questions` or `chunks`.
    pub of: &'static str,
    pub positives: usize,
    /// The number of rows left out, because Thresher says nothing of their kind of text or language.
    pub unmeasured: usize,
    /// The probability that a true row has a higher value than a false one.
    pub auroc: Estimate,
    /// The share of true rows above the value that 10 % of the false rows exceed.
    pub recall: Estimate,
    /// The expected calibration error: the mean over rows of the distance between the mean value of their bin
    /// and its share of true rows.
    pub calibration_error: f64,
    /// Bins with the same number of rows each, by ascending value.
    pub bins: Vec<Bin>,
    /// The rows, in the order of the file.
    pub rows: Vec<Judged>,
}

/// A bin of a reliability diagram.
#[derive(Debug, Clone, Copy)]
pub struct Bin {
    pub value: f64,
    pub share: f64,
    pub rows: usize,
}

pub fn claims(
    rows: &[ClaimRow],
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<JudgedReport> {
    judge("claims", rows, progress, |row| {
        let reading =
            pipeline.read(&request(&row.claim, &row.chunks), &Cancel::default(), &mut Clock::start())?;
        let chunks: Vec<Arc<Chunk>> = row.chunks.iter().map(LabelledChunk::chunk).map(Arc::new).collect();
        let candidates =
            pipeline.candidates_over(&chunks, reading.recoded(codec).blocks, None, &Cancel::default())?;
        let whole = ByteRange::new(0, row.claim.len());
        let outcome = attribute_span(pipeline, &candidates, &row.claim, whole, 1)?;
        // What nothing judged has no probability.
        let is_judged = outcome.support.is_some();
        Ok(is_judged.then(|| Judged::of_part(&outcome, row.label == Label::Supports)))
    })
}

pub fn questions(
    rows: &[AnswerableRow],
    pipeline: &Pipeline,
    progress: &dyn Fn(usize, usize),
) -> Result<JudgedReport> {
    judge("questions", rows, progress, |row| {
        let chunks: Vec<Arc<Chunk>> = row.chunks.iter().map(LabelledChunk::chunk).map(Arc::new).collect();
        let ranked = pipeline.rank(&row.query, &chunks, Granularity::Chunk, &Cancel::default())?;
        Ok(ranked.answerable.map(|found| Judged {
            value: f64::from(found.probability),
            truth: row.answerable,
            evidence: None,
        }))
    })
}

fn judge<Row>(
    of: &'static str,
    rows: &[Row],
    progress: &dyn Fn(usize, usize),
    judge: impl Fn(&Row) -> Result<Option<Judged>>,
) -> Result<JudgedReport> {
    let mut judged = Vec::with_capacity(rows.len());
    for (done, row) in rows.iter().enumerate() {
        judged.extend(judge(row)?);
        progress(done + 1, rows.len());
    }
    let unmeasured = rows.len() - judged.len();
    Ok(JudgedReport { unmeasured, ..JudgedReport::summarize(of, judged)? })
}

impl JudgedReport {
    pub fn summarize(of: &'static str, rows: Vec<Judged>) -> Result<Self> {
        let mut judged: Vec<(f64, bool)> = rows.iter().map(|row| (row.value, row.truth)).collect();
        judged.sort_by(|a, b| a.0.total_cmp(&b.0));
        let values = |truth: bool| -> Vec<f64> {
            judged.iter().filter(|row| row.1 == truth).map(|row| row.0).collect()
        };
        let (positives, negatives) = (values(true), values(false));
        if positives.is_empty() || negatives.is_empty() {
            bail!("all {of} have the same label; both true and false ones are needed");
        }
        // Ascending, so that the values from `least` on are the highest tenth, without more of equal ones.
        let accepted = (negatives.len() as f64 * FALSE_ACCEPTED) as usize;
        let least = negatives[negatives.len() - 1 - accepted];
        let found: Vec<f64> = positives.iter().map(|&value| f64::from(u8::from(value > least))).collect();
        let bins: Vec<Bin> = (0..BINS)
            .map(|bin| &judged[bin * judged.len() / BINS..(bin + 1) * judged.len() / BINS])
            .filter(|rows| !rows.is_empty())
            .map(|rows| {
                let mean =
                    |of: &dyn Fn(&(f64, bool)) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
                let (value, share) = (mean(&|row| row.0), mean(&|row| f64::from(u8::from(row.1))));
                Bin { value, share, rows: rows.len() }
            })
            .collect();
        let errors = bins.iter().map(|bin| (bin.value - bin.share).abs() * bin.rows as f64);
        let calibration_error = errors.sum::<f64>() / judged.len() as f64;
        Ok(Self {
            of,
            positives: positives.len(),
            unmeasured: 0,
            auroc: auroc(&positives, &negatives),
            recall: bootstrap_mean(&found),
            calibration_error,
            bins,
            rows,
        })
    }

    pub fn json(&self) -> Value {
        let bins: Vec<Value> = self
            .bins
            .iter()
            .map(|bin| json!({"value": bin.value, "share": bin.share, "rows": bin.rows}))
            .collect();
        json!({
            "of": self.of,
            "positives": self.positives,
            "unmeasured": self.unmeasured,
            "auroc": self.auroc.mean,
            "recall_at_false_accepted": {"0.1": self.recall.mean},
            "calibration_error": self.calibration_error,
            "bins": bins,
            "rows": self.rows.iter().map(Judged::json).collect::<Vec<Value>>(),
            "ci95": {"auroc": self.auroc.interval, "recall_at_false_accepted": {"0.1": self.recall.interval}},
        })
    }

    pub fn table(&self) -> String {
        let mut out = format!(
            "  {} true of the {}: AUROC {}; recall at 10 % false acceptance {}; expected calibration error {:.3}\n",
            self.positives,
            self.of,
            cell(self.auroc),
            cell(self.recall),
            self.calibration_error
        );
        let bins: Vec<String> =
            self.bins.iter().map(|bin| format!("{:.2}:{:.2}", bin.value, bin.share)).collect();
        if self.unmeasured > 0 {
            let _ = writeln!(
                out,
                "  {} rows left out: nothing is said of their kind of text or language",
                self.unmeasured
            );
        }
        let _ = writeln!(out, "  mean value:share of true rows, by tenths: {}", bins.join(" "));
        out
    }
}

/// Attributes one span of an answer with the code that serves `POST /v1/attribute`.
pub fn attribute_span(
    pipeline: &Pipeline,
    candidates: &Candidates,
    answer: &str,
    span: ByteRange,
    sources_max: usize,
) -> Result<PartOutcome> {
    let parts = Parts::Spans(vec![span]);
    let request = AttributeRequest { parts, sources_max, ..AttributeRequest::new(answer, Vec::new()) };
    let mut parts = pipeline.parts(candidates, &request, &Cancel::default())?;
    Ok(parts.remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged((value, truth): (f64, bool)) -> Judged {
        Judged { value, truth, evidence: None }
    }

    #[test]
    fn calibrated_values_have_no_error_and_shifted_ones_have_theirs() {
        // Of 100 rows with the value p, the share p is true.
        let rows = |shift: f64| -> Vec<Judged> {
            // True and false rows alternate, because a bin may begin within the rows of one value.
            let rows =
                (1..10).flat_map(|p| (0..100).map(move |row| (f64::from(p) / 10.0 + shift, row % 10 < p)));
            rows.map(judged).collect()
        };
        let report = JudgedReport::summarize("claims", rows(0.0)).expect("both labels");
        assert!(report.calibration_error < 0.03, "{report:?}");
        let shifted = JudgedReport::summarize("claims", rows(0.2)).expect("both labels");
        assert!((shifted.calibration_error - 0.2).abs() < 0.03, "{shifted:?}");
        assert_eq!((report.auroc.mean, report.recall.mean), (shifted.auroc.mean, shifted.recall.mean));
        assert_eq!(report.bins.iter().map(|bin| bin.rows).sum::<usize>(), 900);
    }

    #[test]
    fn recall_is_that_of_the_threshold_which_a_tenth_of_the_false_rows_exceed() {
        let mut rows: Vec<(f64, bool)> = (0..10).map(|row| (f64::from(row), false)).collect();
        rows.extend((0..4).map(|row| (f64::from(row) + 6.5, true)));
        let rows = rows.into_iter().map(judged).collect();
        // One of ten false rows may be above the threshold: it is 8.
        let report = JudgedReport::summarize("claims", rows).expect("both labels");
        assert_eq!(report.recall.mean, 0.5);
    }

    #[test]
    fn rows_of_one_label_cannot_be_judged() {
        let error =
            JudgedReport::summarize("claims", vec![judged((0.5, true))]).expect_err("one label").to_string();
        assert!(error.contains("both true and false"), "{error}");
    }
}
