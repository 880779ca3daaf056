//! Fits what the logits of an encoder mean, on labelled questions: from which relevance on chunks are related to a question, and how
//! probable it is that they answer it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use ndarray::{Array2, Axis};
use thresher_core::domain::{CompressRequest, Granularity};
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::answerable::best_passage;
use thresher_core::pipeline::calibration::{AnswerableCurve, Calibration, RelatedLimits, RelevanceCurve};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::Measured;
use thresher_core::rc::EMPTY;
use thresher_core::text;

use super::data::{self, AnswerableRow, LabelledChunk, Rows, SelectionRow};
use super::estimate::{auroc, cell};
use super::judged::{Judged, JudgedReport};
use super::logistic::Samples;

/// The least number of rows from which something is fitted.
pub const ROWS_MIN: usize = 50;

/// The least number of questions of a language that the result holds for.
const LANGUAGE_ROWS_MIN: usize = 10;

/// The mean relevance of texts to questions that have nothing to do with them, in the model whose cosines are the scale of similarities
/// (all-MiniLM-L6-v2, nq20, hotpot and musique).
const UNRELATED_MEAN: f32 = 0.32;

/// The share of related questions that may lie below the limit.
const RELATED_MISSED: f64 = 0.01;

/// How much lower the limit is where chunks are not prose, on the scale of similarities.
const STRUCTURED_LOWER: f32 = 0.05;

/// The shares of answerable questions for which a curve has the least probability.
const MISSED: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// A curve that tells less than this tells nothing; 0.5 is chance.
const AUROC_MIN: f64 = 0.7;

/// The penalty of the regression, which has two parameters.
const PENALTY: f64 = 1e-6;

#[derive(Default)]
pub struct Observed {
    /// The relevance of chunks to their own question, where they are prose.
    related: Vec<f32>,
    /// The relevance of chunks to the question of another row.
    unrelated: Vec<f32>,
    /// The value of the best passage, and whether the chunks answer the question.
    passages: Vec<(f32, bool)>,
    /// The value of each chunk of a question, and whether the question needs it.
    chunks: Vec<(f32, bool)>,
    /// How many questions are recognised as of each language.
    languages: BTreeMap<String, usize>,
}

/// Has the model read the questions of a file.
///
/// # Errors
/// Fails if the file cannot be read, if its rows are no questions, or if the model fails.
pub fn observe(path: &Path, pipeline: &Pipeline, progress: &dyn Fn(usize, usize)) -> Result<Observed> {
    let mut observed = Observed::default();
    let place = |at: usize| move || format!("{}, question {}", path.display(), at + 1);
    match data::read(path)? {
        Rows::Selection(rows, _) => {
            let texts: Vec<Vec<&str>> = rows.iter().map(gold_texts).collect();
            for (at, row) in rows.iter().enumerate() {
                observed.add_question(&rows, &texts, at, pipeline).with_context(place(at))?;
                observed.count_language(&row.query);
                progress(at + 1, rows.len());
            }
        }
        Rows::Answerable(rows) => {
            for (at, AnswerableRow { query, chunks, answerable }) in rows.iter().enumerate() {
                let own = Look::at(query, chunks.iter(), pipeline).with_context(place(at))?;
                observed.passages.extend(own.passage.map(|value| (value, *answerable)));
                observed.count_language(query);
                progress(at + 1, rows.len());
            }
        }
        Rows::Attribution(_) | Rows::Claims(_) => {
            bail!("{} has no questions with \"gold\" or \"answerable\" (docs/evaluation.md)", path.display())
        }
    }
    Ok(observed)
}

fn gold_texts(row: &SelectionRow) -> Vec<&str> {
    row.gold.iter().map(|&gold| row.chunks[gold].text.as_str()).collect()
}

/// What the model says of a question and chunks.
struct Look {
    relevance: Option<f32>,
    passage: Option<f32>,
    /// `[chunk]`; empty if the logits of the model have no fixed scale, or if it does not know the words of the question.
    chunks: Vec<f32>,
    is_prose: bool,
}

impl Look {
    fn at<'a>(
        query: &str,
        chunks: impl Iterator<Item = &'a LabelledChunk>,
        pipeline: &Pipeline,
    ) -> Result<Self> {
        let chunks = data::request_chunks(chunks).into_iter().map(Arc::new).collect();
        let request = CompressRequest {
            granularity: Granularity::Sentence,
            chunks,
            registered: true,
            ..CompressRequest::new(query, Vec::new())
        };
        let cancel = Cancel::default();
        let reading = pipeline.read(&request, &cancel, &mut Clock::start())?;
        let scores = pipeline.scorer()?.score(&reading, &cancel, &mut Clock::start())?;
        let passage = best_passage(&reading, &request, &scores, &cancel)?;
        Ok(Self {
            relevance: scores.relevance,
            passage: passage.map(|passage| passage.value),
            chunks: if scores.measured == Measured::Lexical { Vec::new() } else { scores.chunk_relevances },
            is_prose: reading.outlines.is_prose(),
        })
    }
}

impl Observed {
    /// Looks at a question with its chunks, at the same without the needed ones, and at the next question that needs none of these chunks.
    fn add_question(
        &mut self,
        rows: &[SelectionRow],
        texts: &[Vec<&str>],
        at: usize,
        pipeline: &Pipeline,
    ) -> Result<()> {
        let row = &rows[at];
        let own = Look::at(&row.query, row.chunks.iter(), pipeline)?;
        // Chunks without text have none.
        self.related.extend(own.relevance.filter(|relevance| own.is_prose && *relevance > 0.0));
        self.passages.extend(own.passage.map(|value| (value, true)));
        // A chunk without text matches nothing.
        let with_text = own.chunks.iter().enumerate().filter(|(_, value)| **value > EMPTY);
        self.chunks.extend(with_text.map(|(chunk, &value)| (value, row.needs(chunk))));
        let others: Vec<&LabelledChunk> = row
            .chunks
            .iter()
            .enumerate()
            .filter(|(chunk, _)| !row.needs(*chunk))
            .map(|(_, chunk)| chunk)
            .collect();
        if !others.is_empty() {
            let without = Look::at(&row.query, others.into_iter(), pipeline)?;
            self.passages.extend(without.passage.map(|value| (value, false)));
        }
        let is_here = |text: &&str| row.chunks.iter().any(|chunk| chunk.text == *text);
        let is_foreign = |other: &usize| !texts[*other].iter().any(is_here);
        if let Some(other) = (1..rows.len()).map(|step| (at + step) % rows.len()).find(is_foreign) {
            let foreign = Look::at(&rows[other].query, row.chunks.iter(), pipeline)?;
            self.unrelated.extend(foreign.relevance);
        }
        Ok(())
    }

    fn count_language(&mut self, query: &str) {
        if let Some(found) = text::likely_lang_of(query) {
            *self.languages.entry(found.lang.code().to_owned()).or_default() += 1;
        }
    }

    /// Fits how relevant chunks are; returns what was measured, as text.
    fn fit_relevance(&self, calibration: &mut Calibration) -> String {
        let needed = self.chunks.iter().filter(|(_, is_needed)| *is_needed).count();
        let others = self.chunks.len() - needed;
        if needed.min(others) < ROWS_MIN || self.languages().is_empty() {
            return format!(
                "relevance: at least {ROWS_MIN} chunks with gold and as many others are needed: it stays as it was\n"
            );
        }
        let (slope, bias) = fit_line(&self.chunks, |_| 1.0 / self.chunks.len() as f64);
        let curve = RelevanceCurve { slope, bias, languages: self.languages() };
        let judged = self.chunks.iter().map(|&(value, truth)| Judged {
            value: f64::from(curve.probability(value)),
            truth,
            evidence: None,
        });
        let report = JudgedReport::summarize("chunks", judged.collect()).expect("there are both labels");
        if !(slope > 0.0 && report.auroc.mean >= AUROC_MIN) {
            return format!(
                "relevance: AUROC {:.3}, too near to chance (less than {AUROC_MIN}): it stays as it was\n",
                report.auroc.mean
            );
        }
        calibration.relevance = Some(curve);
        format!(
            "relevance: calibration error {:.3}, AUROC {} over {} chunks, of which {needed} are needed (the same rows that it was fitted on)\n",
            report.calibration_error,
            cell(report.auroc),
            self.chunks.len()
        )
    }

    /// Fits what there are enough rows for, and writes it into a calibration; returns what was measured, as text.
    pub fn fit(&mut self, calibration: &mut Calibration) -> String {
        // A user may have changed it in a calibration that exists.
        if calibration.related.is_none() && calibration.answerable.is_none() {
            calibration.one_language = self.languages().len() > 1;
        }
        let mut out = self.fit_relevance(calibration);
        if self.related.len().min(self.unrelated.len()) >= ROWS_MIN {
            let floor = ((mean(&self.unrelated) - UNRELATED_MEAN) / (1.0 - UNRELATED_MEAN)).clamp(0.0, 0.95);
            self.related.sort_by(f32::total_cmp);
            let prose = self.related[(RELATED_MISSED * self.related.len() as f64) as usize];
            let limits = RelatedLimits { prose, structured: prose - STRUCTURED_LOWER * (1.0 - floor) };
            let below = |values: &[f32]| values.iter().filter(|value| **value < prose).count();
            let _ = writeln!(
                out,
                "related from {prose:.3} on ({:.3} where chunks are not prose): {} of {} questions are below with their own chunks, and {} of {} with those of another",
                limits.structured,
                below(&self.related),
                self.related.len(),
                below(&self.unrelated),
                self.unrelated.len()
            );
            (calibration.cosine_floor, calibration.related) = (Some(floor), Some(limits));
        } else {
            let _ = writeln!(
                out,
                "related: at least {ROWS_MIN} questions over prose with gold are needed, and others that need none of their chunks: it stays as it was"
            );
        }
        let of = |truth: bool| -> Vec<f64> {
            self.passages
                .iter()
                .filter(|(_, found)| *found == truth)
                .map(|(value, _)| f64::from(*value))
                .collect()
        };
        let (answerable, others) = (of(true), of(false));
        if answerable.len().min(others.len()) >= ROWS_MIN && !self.languages().is_empty() {
            let curve = self.curve(&answerable);
            let found = auroc(&answerable, &others);
            let least =
                curve.missed.iter().find(|(share, _)| *share == 0.05).map_or(0.0, |(_, least)| *least);
            let passes = others.iter().filter(|value| curve.probability(**value as f32) >= least).count();
            let _ = writeln!(
                out,
                "answerable: AUROC {:.3} [{:.3}, {:.3}] on {} questions with and {} without an answer; where 5 % are missed, {passes} pass without one",
                found.mean,
                found.interval[0],
                found.interval[1],
                answerable.len(),
                others.len()
            );
            if found.mean < AUROC_MIN {
                let _ = writeln!(
                    out,
                    "that is too near to chance (less than {AUROC_MIN}): answerable stays as it was"
                );
                return out;
            }
            calibration.answerable = Some(curve);
        } else {
            let _ = writeln!(
                out,
                "answerable: at least {ROWS_MIN} questions with an answer and as many without are needed: it stays as it was"
            );
        }
        out
    }

    /// The languages of enough questions.
    fn languages(&self) -> Vec<String> {
        let all: usize = self.languages.values().sum();
        self.languages
            .iter()
            // A few questions of every language are taken for another one.
            .filter(|(_, rows)| **rows >= LANGUAGE_ROWS_MIN.max(all / 10))
            .map(|(code, _)| code.clone())
            .collect()
    }

    fn curve(&self, answerable: &[f64]) -> AnswerableCurve {
        // Both labels weigh the same, whatever the file has more of.
        let (positives, all) = (answerable.len() as f64, self.passages.len() as f64);
        let weight = |label: bool| 0.5 / if label { positives } else { all - positives };
        let (slope, bias) = fit_line(&self.passages, weight);
        let mut curve = AnswerableCurve { slope, bias, languages: self.languages(), missed: Vec::new() };
        let mut sorted: Vec<f32> = answerable.iter().map(|&value| curve.probability(value as f32)).collect();
        sorted.sort_by(f32::total_cmp);
        curve.missed = MISSED.map(|share| (share, sorted[(share * sorted.len() as f64) as usize])).to_vec();
        curve
    }
}

/// Returns slope and bias of the logistic regression of labels by values.
fn fit_line(rows: &[(f32, bool)], weight: impl Fn(bool) -> f64) -> (f32, f32) {
    let values: Vec<f64> = rows.iter().map(|(value, _)| f64::from(*value)).collect();
    let labels: Vec<bool> = rows.iter().map(|(_, label)| *label).collect();
    let weights = labels.iter().map(|&label| weight(label)).collect();
    let features = Array2::from_shape_vec((values.len(), 1), values).expect("one feature per row");
    let centre = features.mean_axis(Axis(0)).expect("there are rows");
    let found = Samples::new(&(&features - &centre), &labels, weights).fit(PENALTY);
    let slope = found.weights[0];
    (slope as f32, (found.bias - slope * centre[0]) as f32)
}

fn mean(values: &[f32]) -> f32 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f32>() / values.len() as f32 }
}
