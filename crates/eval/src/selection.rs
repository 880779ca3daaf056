//! Selection metrics: R@gold, MRR, kept@N× (whether the answer survives compression), and the `auto` budget.
//! docs/evaluation.md defines them.

use std::time::Instant;

use anyhow::Result;
use thresher_core::domain::{Budget, ByteRange, CompressRequest, Format, TokenizerName};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::attribute::ESTIMATOR;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::Scores;
use thresher_core::pipeline::{Pipeline, PipelineError, Reading};

use super::Values;
use super::data::{self, LabelledChunk, SelectionRow};
use super::estimate::bootstrap_mean;
use super::judged::{self, Judged, JudgedReport};
use super::methods::{Configured, Method, Texts};
use super::report::{AutoReport, MethodReport, Report};

const RATIOS: [u32; 3] = [4, 8, 16];

/// Samples of one method, one value per row.
#[derive(Debug, Clone, Default)]
struct Samples {
    recall: Vec<f64>,
    reciprocal_rank: Vec<f64>,
    kept: [Vec<f64>; RATIOS.len()],
    ms: Vec<f64>,
}

/// Samples of the default method without a budget, one value per row.
#[derive(Debug, Clone, Default)]
struct AutoSamples {
    tokens_share: Vec<f64>,
    kept: Vec<f64>,
    gold_share: Vec<f64>,
}

/// One method's scores of one row, with everything needed to judge them.
#[derive(Clone, Copy)]
struct ScoredRow<'a> {
    row: &'a SelectionRow,
    request: &'a CompressRequest,
    pipeline: &'a Pipeline,
    reading: &'a Reading,
    scores: &'a Scores,
}

pub fn evaluate(
    rows: &[SelectionRow],
    pipeline: &Pipeline,
    methods: &[Box<dyn Method>],
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Report> {
    let mut samples = vec![Samples::default(); methods.len()];
    let (mut auto, mut claims) = (AutoSamples::default(), Samples::default());
    let mut relevances = Vec::new();
    for (done, row) in rows.iter().enumerate() {
        let request = request(row);
        let started = Instant::now();
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start())?;
        let read_ms = started.elapsed().as_secs_f64() * 1e3;
        let texts = texts(&row.chunks, &request, &reading);
        for (index, (method, samples)) in methods.iter().zip(&mut samples).enumerate() {
            let started = Instant::now();
            let scores = method.scores(&row.query, &reading, &texts)?;
            let scoring_ms = started.elapsed().as_secs_f64() * 1e3;
            samples.ms.push(scoring_ms + if method.needs_model() { read_ms } else { 0.0 });
            let scored = ScoredRow { row, request: &request, pipeline, reading: &reading, scores: &scores };
            samples.add(&scored)?;
            if index == 0 {
                auto.add(&scored)?;
                relevances.extend(scored.judged_relevances());
            }
        }
        if !row.has_answer() {
            claims.add_claim(row, &request, &reading.recoded(codec), pipeline)?;
        }
        progress(done + 1, rows.len());
    }
    let mut methods: Vec<_> =
        methods.iter().zip(&samples).map(|(method, samples)| (method.name(), samples.report())).collect();
    let default = methods[0].0.clone();
    if !claims.recall.is_empty() {
        methods.push((ESTIMATOR.to_owned(), claims.report()));
    }
    Ok(Report {
        data: String::new(),
        rows: rows.len(),
        unlabelled: 0,
        default,
        methods,
        auto: Some(auto.report()),
        support: None,
        spans: Vec::new(),
        judged: None,
        // Every chunk may be needed.
        relevance: JudgedReport::summarize("chunks", relevances).ok(),
    })
}

impl ScoredRow<'_> {
    /// Returns the relevance of each chunk, and whether the question needs it.
    fn judged_relevances(&self) -> Vec<Judged> {
        let relevances = self.pipeline.chunk_relevances(&self.row.query, self.reading, self.scores);
        let judged = |(chunk, value): (usize, f32)| Judged {
            value: f64::from(value),
            truth: self.row.needs(chunk),
            evidence: None,
        };
        relevances.into_iter().flatten().enumerate().map(judged).collect()
    }
}

/// Returns the values of the default method, one per row.
pub fn default_values(
    rows: &[SelectionRow],
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Values> {
    let default = Configured::new(pipeline, codec)?;
    let mut samples = Samples::default();
    for (done, row) in rows.iter().enumerate() {
        let request = request(row);
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start())?;
        let texts = texts(&row.chunks, &request, &reading);
        let scores = default.scores(&row.query, &reading, &texts)?;
        let scored = ScoredRow { row, request: &request, pipeline, reading: &reading, scores: &scores };
        samples.add(&scored)?;
        progress(done + 1, rows.len());
    }
    let Samples { recall, reciprocal_rank, kept, .. } = samples;
    let kept = ["kept@4x", "kept@8x", "kept@16x"].into_iter().zip(kept).filter(|(_, kept)| !kept.is_empty());
    Ok([("R@gold", recall), ("MRR", reciprocal_rank)].into_iter().chain(kept).collect())
}

impl Samples {
    /// Adds a row without an answer text. Its query is a claim: attribution finds the sources of the whole
    /// claim.
    fn add_claim(
        &mut self,
        row: &SelectionRow,
        request: &CompressRequest,
        reading: &Reading,
        pipeline: &Pipeline,
    ) -> Result<()> {
        let started = Instant::now();
        let candidates =
            pipeline.candidates_over(&request.chunks, reading.blocks.clone(), None, &Cancel::default())?;
        let whole_query = ByteRange::new(0, row.query.len());
        let found = judged::attribute_span(pipeline, &candidates, &row.query, whole_query, row.chunks.len())?;
        let mut ranked: Vec<usize> = found.sources.iter().map(|source| source.chunk).collect();
        let rest: Vec<usize> = (0..row.chunks.len()).filter(|chunk| !ranked.contains(chunk)).collect();
        ranked.extend(rest);
        self.ms.push(started.elapsed().as_secs_f64() * 1e3);
        self.recall.push(recall_at_gold(row, &ranked));
        self.reciprocal_rank.push(reciprocal_rank(row, &ranked));
        Ok(())
    }

    fn add(&mut self, scored: &ScoredRow) -> Result<()> {
        let ScoredRow { row, request, pipeline, reading, scores } = *scored;
        let ranked = ranked(&scores.chunks);
        self.recall.push(recall_at_gold(row, &ranked));
        self.reciprocal_rank.push(reciprocal_rank(row, &ranked));
        if row.has_answer() {
            for (ratio, kept) in RATIOS.iter().zip(&mut self.kept) {
                let request =
                    CompressRequest { budget: Budget::ratio(1.0 / f64::from(*ratio)), ..request.clone() };
                let survives = match pipeline.decide(&request, reading, scores, None, &Cancel::default()) {
                    Ok(fitted) => row.answer_in(&fitted.context),
                    Err(PipelineError::Invalid(_)) => false,
                    Err(error) => return Err(error.into()),
                };
                kept.push(f64::from(u8::from(survives)));
            }
        }
        Ok(())
    }

    fn report(&self) -> MethodReport {
        let answers = !self.kept[0].is_empty();
        MethodReport {
            recall_at_gold: Some(bootstrap_mean(&self.recall)),
            mrr: Some(bootstrap_mean(&self.reciprocal_rank)),
            kept: RATIOS
                .into_iter()
                .zip(&self.kept)
                .filter(|_| answers)
                .map(|(r, kept)| (r, bootstrap_mean(kept)))
                .collect(),
            accuracy: None,
            ms: self.ms.iter().sum::<f64>() / self.ms.len() as f64,
        }
    }
}

impl AutoSamples {
    fn add(&mut self, scored: &ScoredRow) -> Result<()> {
        let ScoredRow { row, request, pipeline, reading, scores } = *scored;
        let cancel = Cancel::default();
        let fitted = pipeline.decide(request, reading, scores, None, &cancel)?;
        self.tokens_share.push(fitted.usage.tokens_out as f64 / fitted.usage.tokens_in.max(1) as f64);
        let gold = row.gold.iter().filter(|&&gold| !fitted.spans[gold].is_empty()).count();
        self.gold_share.push(gold as f64 / row.gold.len() as f64);
        if row.has_answer() {
            self.kept.push(f64::from(u8::from(row.answer_in(&fitted.context))));
        }
        Ok(())
    }

    fn report(&self) -> AutoReport {
        AutoReport {
            tokens_share: bootstrap_mean(&self.tokens_share),
            kept: bootstrap_mean(&self.kept),
            gold_share: bootstrap_mean(&self.gold_share),
        }
    }
}

impl SelectionRow {
    fn has_answer(&self) -> bool {
        self.answers.iter().any(|answer| !answer.is_empty())
    }

    fn answer_in(&self, context: &str) -> bool {
        let context = context.to_lowercase();
        self.answers.iter().any(|answer| !answer.is_empty() && context.contains(&answer.to_lowercase()))
    }
}

/// Converts the row to a request for sentences in plain format, so that the token count covers the row's text
/// only.
fn request(row: &SelectionRow) -> CompressRequest {
    CompressRequest {
        format: Format::Plain,
        // All methods share these budgets, and the baselines count with the model's tokenizer.
        tokenizer: TokenizerName::Model,
        history: row.history.iter().map(|turn| turn.content.clone()).collect(),
        ..CompressRequest::new(&row.query, data::request_chunks(&row.chunks))
    }
}

/// Returns the texts of the chunks and units of a request that lexical methods read.
pub fn texts(chunks: &[LabelledChunk], request: &CompressRequest, reading: &Reading) -> Texts {
    let unit = |unit: &thresher_core::pipeline::units::Unit| {
        unit.bytes.slice(&request.chunks[unit.chunk].text).to_owned()
    };
    Texts {
        chunks: chunks.iter().map(LabelledChunk::full_text).collect(),
        units: reading.units.iter().map(unit).collect(),
    }
}

/// Returns chunk indices, best score first; equal scores keep the order of the request.
pub fn ranked(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

fn recall_at_gold(row: &SelectionRow, ranked: &[usize]) -> f64 {
    let sets = if row.gold_sets.is_empty() { std::slice::from_ref(&row.gold) } else { &row.gold_sets };
    sets.iter().map(|gold| recall(gold, ranked)).fold(0.0, f64::max)
}

/// Returns the share of `gold` among the `gold.len()` best-ranked chunks.
pub fn recall(gold: &[usize], ranked: &[usize]) -> f64 {
    let found = ranked.iter().take(gold.len()).filter(|chunk| gold.contains(chunk)).count();
    found as f64 / gold.len().max(1) as f64
}

fn reciprocal_rank(row: &SelectionRow, ranked: &[usize]) -> f64 {
    let first = ranked.iter().position(|chunk| row.gold.contains(chunk));
    first.map_or(0.0, |position| 1.0 / (position + 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gold: &[usize], gold_sets: &[&[usize]]) -> SelectionRow {
        SelectionRow {
            query: String::new(),
            history: Vec::new(),
            chunks: Vec::new(),
            gold: gold.to_vec(),
            gold_sets: gold_sets.iter().map(|set| set.to_vec()).collect(),
            answers: Vec::new(),
            facts: Vec::new(),
        }
    }

    #[test]
    fn recall_counts_gold_among_the_gold_len_best_chunks() {
        let check = |name, row: SelectionRow, ranked: &[usize], expect| {
            assert_eq!(recall_at_gold(&row, ranked), expect, "{name}");
        };
        check("both first", row(&[1, 2], &[]), &[2, 1, 0], 1.0);
        check("one too late", row(&[1, 2], &[]), &[2, 0, 1], 0.5);
        check("the best set counts", row(&[0, 1], &[&[0, 1], &[2]]), &[2, 0, 1], 1.0);
    }

    #[test]
    fn reciprocal_rank_uses_the_first_gold_chunk() {
        assert_eq!(reciprocal_rank(&row(&[1, 2], &[]), &[0, 2, 1]), 0.5);
    }
}
