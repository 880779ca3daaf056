//! Attribution metrics: accuracy (the share of labelled spans whose best chunk is the labelled one), AUROC of
//! `support` for unsupported spans, and faithfulness.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use thresher_core::domain::{ByteRange, Chunk, TokenSpan};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::attribute::{Candidates, ESTIMATOR, PartOutcome};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::Scoring;
use thresher_core::pipeline::tokenize::tokens_under;
use thresher_core::pipeline::{Pipeline, Reading};
use thresher_core::text;
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::Values;
use super::data::{AttributionRow, LabelledChunk, LabelledSpan, request};
use super::estimate::{SplitMix64, auroc, bootstrap_mean};
use super::judged::{Judged, attribute_span};
use super::methods::{AnswerPart, SpanMethod};
use super::perturb::{self, Kind};
use super::report::{MethodReport, Report, SupportReport};

/// Evaluates attribution and the baseline methods on rows with labelled spans.
///
/// Attribution scores the answer sentence by sentence, as `POST /v1/attribute` does. For the other methods,
/// the tokens of the span, read within the whole answer, or the text of the span take the place of the
/// question.
pub fn evaluate(
    rows: &[AttributionRow],
    pipeline: &Pipeline,
    methods: &[Box<dyn SpanMethod>],
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Report> {
    if pipeline.settings().scoring == Scoring::Probe {
        bail!(
            "rc.estimator is \"probe\", which scores no answers; set it to \"{}\" to evaluate attribution",
            Scoring::default()
        );
    }
    let mut correct = vec![Vec::new(); methods.len()];
    let mut ms = vec![0.0; methods.len()];
    let mut samples = AttributionSamples::default();
    for (done, row) in rows.iter().enumerate() {
        let started = Instant::now();
        let reading =
            pipeline.read(&request(&row.answer, &row.chunks), &Cancel::default(), &mut Clock::start())?;
        let read_ms = started.elapsed().as_secs_f64() * 1e3;
        let chunks: Vec<Arc<Chunk>> = row.chunks.iter().map(LabelledChunk::chunk).map(Arc::new).collect();
        let candidates =
            pipeline.candidates_over(&chunks, reading.recoded(codec).blocks, None, &Cancel::default())?;
        samples.add(rows, done, pipeline, &candidates, read_ms)?;
        let texts: Vec<_> = row.chunks.iter().map(LabelledChunk::full_text).collect();
        for ((method, correct), ms) in methods.iter().zip(&mut correct).zip(&mut ms) {
            let started = Instant::now();
            for span in &row.spans {
                let Some(chunk) = span.chunk else { continue };
                let bytes = bytes(row, span)?;
                let Some(tokens) = tokens_in(&reading, bytes) else { continue };
                let part = AnswerPart { answer: &row.answer, bytes, tokens };
                let scores = method.scores(part, &reading, &texts)?;
                correct.push(f64::from(u8::from(best(&scores) == Some(chunk))));
            }
            *ms += started.elapsed().as_secs_f64() * 1e3 + if method.needs_model() { read_ms } else { 0.0 };
        }
        progress(done + 1, rows.len());
    }
    let report = |name: String, correct: &[f64], ms: f64| {
        let (accuracy, ms) = (Some(bootstrap_mean(correct)), ms / rows.len() as f64);
        (name, MethodReport { accuracy, ms, ..MethodReport::default() })
    };
    let baselines = methods.iter().zip(&correct).zip(&ms);
    let baselines = baselines.map(|((method, correct), &ms)| report(method.name(), correct, ms));
    let attribution = report(ESTIMATOR.to_owned(), &samples.correct, samples.ms);
    Ok(Report {
        rows: rows.len(),
        default: ESTIMATOR.to_owned(),
        methods: std::iter::once(attribution).chain(baselines).collect(),
        support: samples.support(),
        spans: samples.judged,
        ..Report::default()
    })
}

/// Returns for each labelled span whether its best chunk is the labelled one.
pub fn default_values(
    rows: &[AttributionRow],
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Values> {
    let mut samples = AttributionSamples::default();
    for (done, row) in rows.iter().enumerate() {
        let request = request(&row.answer, &row.chunks);
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start())?;
        let chunks: Vec<Arc<Chunk>> = row.chunks.iter().map(LabelledChunk::chunk).map(Arc::new).collect();
        let candidates =
            pipeline.candidates_over(&chunks, reading.recoded(codec).blocks, None, &Cancel::default())?;
        samples.add(rows, done, pipeline, &candidates, 0.0)?;
        progress(done + 1, rows.len());
    }
    Ok(vec![("accuracy", samples.correct)])
}

/// Samples of the attribution method itself, one value per span.
#[derive(Default)]
struct AttributionSamples {
    correct: Vec<f64>,
    ms: f64,
    /// Support of spans that a label, or the label of their chunk, calls supported; and of spans labelled as
    /// unsupported.
    supported: Vec<f64>,
    unsupported: Vec<f64>,
    /// Support of perturbed spans, with the kind of perturbation.
    perturbed: Vec<(Kind, f64)>,
    /// All of them, with the evidence.
    judged: Vec<Judged>,
    /// 1 if support falls more without the best chunk than without another one, else 0.
    faithful: Vec<f64>,
}

impl AttributionSamples {
    fn add(
        &mut self,
        rows: &[AttributionRow],
        index: usize,
        pipeline: &Pipeline,
        candidates: &Candidates,
        read_ms: f64,
    ) -> Result<()> {
        let row = &rows[index];
        let mut rng = SplitMix64(index as u64);
        let started = Instant::now();
        let spans =
            row.spans.iter().map(|span| Ok((*span, bytes(row, span)?))).collect::<Result<Vec<_>>>()?;
        let outcomes = spans
            .iter()
            .map(|(_, bytes)| attribute_span(pipeline, candidates, &row.answer, *bytes, 1))
            .collect::<Result<Vec<_>>>()?;
        self.ms += started.elapsed().as_secs_f64() * 1e3 + read_ms;
        for ((span, bytes), outcome) in spans.into_iter().zip(outcomes) {
            let Some(support) = outcome.support.map(f64::from) else { continue };
            if let Some(chunk) = span.chunk {
                let best = outcome.sources.first().map(|source| source.chunk);
                self.correct.push(f64::from(u8::from(best == Some(chunk))));
            }
            let words = text::terms(bytes.slice(&row.answer), &[]).len();
            match (span.supported, span.chunk) {
                (Some(false), _) => {
                    self.unsupported.push(support);
                    self.judged.push(Judged::of_part(&outcome, false));
                }
                (_, Some(_)) | (Some(true), _) if words >= perturb::WORDS_MIN => {
                    self.supported.push(support);
                    self.judged.push(Judged::of_part(&outcome, true));
                }
                _ => {}
            }
            let Some(chunk) = span.chunk.filter(|_| words >= perturb::WORDS_MIN) else { continue };
            for perturbed in perturb::all(rows, index, bytes, chunk, &mut rng) {
                let outcome = attribute_span(pipeline, candidates, &perturbed.answer, perturbed.span, 1)?;
                self.judged.push(Judged::of_part(&outcome, false));
                self.perturbed.extend(outcome.support.map(|support| (perturbed.kind, f64::from(support))));
            }
            self.add_removal_test(pipeline, candidates, &row.answer, bytes, &outcome, &mut rng)?;
        }
        Ok(())
    }

    /// Removes the best chunk, then another chunk instead, and compares support. Spans for which several
    /// chunks are cited are left out: if another chunk says the same as the best one, support need not fall.
    fn add_removal_test(
        &mut self,
        pipeline: &Pipeline,
        candidates: &Candidates,
        answer: &str,
        bytes: ByteRange,
        outcome: &PartOutcome,
        rng: &mut SplitMix64,
    ) -> Result<()> {
        let Some(best) = outcome.sources.first() else { return Ok(()) };
        let cited = outcome.sources.iter().filter(|source| source.cited).count();
        if candidates.len() < 3 || cited > 1 {
            return Ok(());
        }
        let other = (best.chunk + 1 + rng.below(candidates.len() - 1)) % candidates.len();
        let without = |chunk: usize| {
            attribute_span(
                pipeline,
                &candidates.without(chunk, pipeline, &Cancel::default())?,
                answer,
                bytes,
                1,
            )
        };
        let (without_best, without_other) = (without(best.chunk)?.support, without(other)?.support);
        self.faithful.push(f64::from(u8::from(without_best < without_other)));
        Ok(())
    }

    fn support(&self) -> Option<SupportReport> {
        let of = |wanted: Kind| -> Vec<f64> {
            self.perturbed.iter().filter(|(kind, _)| *kind == wanted).map(|(_, support)| *support).collect()
        };
        let mut kinds: Vec<(&str, Vec<f64>)> =
            Kind::ALL.into_iter().map(|(kind, name)| (name, of(kind))).collect();
        kinds.push(("labelled", self.unsupported.clone()));
        support_report(&self.supported, &kinds, &self.faithful)
    }
}

/// Returns the bytes of a span in its answer.
fn bytes(row: &AttributionRow, span: &LabelledSpan) -> Result<ByteRange> {
    Ok(OffsetMap::new(&row.answer, OffsetUnit::Codepoint).to_bytes(span.start..span.end)?)
}

/// Returns the tokens of an answer under these bytes; `None` if there is no token.
fn tokens_in(reading: &Reading, bytes: ByteRange) -> Option<TokenSpan> {
    Some(tokens_under(&reading.tokens.offsets, 0, bytes)).filter(|tokens| !tokens.is_empty())
}

fn best(scores: &[f32]) -> Option<usize> {
    let better = |best: usize, i: usize| if scores[i] > scores[best] { i } else { best };
    (0..scores.len()).reduce(better)
}

/// Builds the support report from the support of `supported` spans and of several kinds of `others`; returns
/// `None` if either is empty.
fn support_report(supported: &[f64], others: &[(&str, Vec<f64>)], faithful: &[f64]) -> Option<SupportReport> {
    let all: Vec<f64> = others.iter().flat_map(|(_, support)| support).copied().collect();
    let auroc_of =
        |others: &[f64]| (!supported.is_empty() && !others.is_empty()).then(|| auroc(supported, others));
    Some(SupportReport {
        auroc: auroc_of(&all)?,
        kinds: others
            .iter()
            .filter_map(|(kind, support)| Some(((*kind).to_owned(), auroc_of(support)?)))
            .collect(),
        faithful: (!faithful.is_empty()).then(|| bootstrap_mean(faithful)),
    })
}
