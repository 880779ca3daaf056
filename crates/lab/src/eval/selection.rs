//! Does the method find the chunks that are needed, and does the answer survive when the rest is cut?

use std::time::Instant;

use anyhow::Result;
use thresher_core::domain::{Budget, ByteRange, CompressRequest, Format};
use thresher_core::kv::codec::Codec;
use thresher_core::pipeline::attribute::{Candidates, ESTIMATOR};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::Scores;
use thresher_core::pipeline::{Pipeline, PipelineError, Reading};

use super::attribution;
use super::bootstrap::estimate;
use super::data::{LabelledChunk, SelectionRow};
use super::methods::{self, Seen, Texts};
use super::prefilter;
use super::report::{AutoReport, MethodReport, Report};

const RATIOS: [u32; 3] = [4, 8, 16];

/// What each row says of one method.
#[derive(Debug, Clone, Default)]
struct Samples {
    recall: Vec<f64>,
    reciprocal_rank: Vec<f64>,
    kept: [Vec<f64>; RATIOS.len()],
    ms: Vec<f64>,
}

/// What each row says of the default method without a budget.
#[derive(Debug, Clone, Default)]
struct AutoSamples {
    tokens_share: Vec<f64>,
    kept: Vec<f64>,
    gold_share: Vec<f64>,
}

/// One method's scores of one row, and what is needed to judge them.
#[derive(Clone, Copy)]
struct Judged<'a> {
    row: &'a SelectionRow,
    request: &'a CompressRequest,
    pipeline: &'a Pipeline,
    reading: &'a Reading,
    scores: &'a Scores,
}

/// All methods on all rows.
pub fn evaluate(
    rows: &[SelectionRow],
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Report> {
    let methods = methods::all(codec, pipeline.model());
    let mut samples = vec![Samples::default(); methods.len()];
    let (mut auto, mut claims) = (AutoSamples::default(), Samples::default());
    for (done, row) in rows.iter().enumerate() {
        let request = request(row);
        let started = Instant::now();
        let reading = pipeline.read(&request, &Cancel::default(), &mut Clock::start())?;
        let seen = Seen::new(reading);
        let read_ms = started.elapsed().as_secs_f64() * 1e3;
        let texts = texts(row, &request, &seen.reading);
        for (method, samples) in methods.iter().zip(&mut samples) {
            let started = Instant::now();
            let scores = method.scores(&row.query, &seen, &texts)?;
            let own_ms = started.elapsed().as_secs_f64() * 1e3;
            samples.ms.push(own_ms + if method.reads() { read_ms } else { 0.0 });
            let judged = Judged { row, request: &request, pipeline, reading: &seen.reading, scores: &scores };
            samples.add(&judged)?;
            if *method == methods[0] {
                auto.add(&judged)?;
            }
        }
        if !row.has_answer() {
            claims.add_claim((row, &request), &seen.reading.recoded(codec), pipeline)?;
        }
        progress(done + 1, rows.len());
    }
    let mut methods: Vec<_> = methods
        .iter()
        .zip(&samples)
        .map(|(method, samples)| (method.to_string(), samples.report()))
        .collect();
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
        prefilter: Some(prefilter::evaluate(rows)?),
    })
}

impl Samples {
    /// A question without an answer is a claim: its sources are asked for as a whole.
    fn add_claim(
        &mut self,
        (row, request): (&SelectionRow, &CompressRequest),
        reading: &Reading,
        pipeline: &Pipeline,
    ) -> Result<()> {
        let started = Instant::now();
        let candidates = Candidates::new(&request.chunks, reading.blocks.clone(), None);
        let whole = ByteRange::new(0, row.query.len());
        let found = attribution::part(pipeline, &candidates, (&row.query, whole), row.chunks.len())?;
        let mut ranked: Vec<usize> = found.sources.iter().map(|source| source.chunk).collect();
        let rest: Vec<usize> = (0..row.chunks.len()).filter(|chunk| !ranked.contains(chunk)).collect();
        ranked.extend(rest);
        self.ms.push(started.elapsed().as_secs_f64() * 1e3);
        self.recall.push(recall_at_gold(row, &ranked));
        self.reciprocal_rank.push(reciprocal_rank(row, &ranked));
        Ok(())
    }

    fn add(&mut self, judged: &Judged) -> Result<()> {
        let Judged { row, request, pipeline, reading, scores } = *judged;
        let ranked = ranked(&scores.chunks);
        self.recall.push(recall_at_gold(row, &ranked));
        self.reciprocal_rank.push(reciprocal_rank(row, &ranked));
        if row.has_answer() {
            for (ratio, kept) in RATIOS.iter().zip(&mut self.kept) {
                let request =
                    CompressRequest { budget: Budget::Ratio(1.0 / f64::from(*ratio)), ..request.clone() };
                let survives = match pipeline.fit(&request, reading, scores, &Cancel::default()) {
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
            recall_at_gold: Some(estimate(&self.recall)),
            mrr: Some(estimate(&self.reciprocal_rank)),
            kept: RATIOS
                .into_iter()
                .zip(&self.kept)
                .filter(|_| answers)
                .map(|(r, kept)| (r, estimate(kept)))
                .collect(),
            accuracy: None,
            ms: self.ms.iter().sum::<f64>() / self.ms.len() as f64,
        }
    }
}

impl AutoSamples {
    fn add(&mut self, judged: &Judged) -> Result<()> {
        let Judged { row, request, pipeline, reading, scores } = *judged;
        let fitted = pipeline.fit(request, reading, scores, &Cancel::default())?;
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
            tokens_share: estimate(&self.tokens_share),
            kept: estimate(&self.kept),
            gold_share: estimate(&self.gold_share),
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

/// The row as a request: sentences, plain text, so that what is counted is what the row holds.
fn request(row: &SelectionRow) -> CompressRequest {
    let numbered = |(index, chunk): (usize, &LabelledChunk)| {
        let mut chunk = chunk.chunk();
        chunk.id = index.to_string();
        chunk
    };
    let chunks = row.chunks.iter().enumerate().map(numbered).collect();
    CompressRequest { format: Format::Plain, ..CompressRequest::new(&row.query, chunks) }
}

fn texts(row: &SelectionRow, request: &CompressRequest, reading: &Reading) -> Texts {
    let unit = |unit: &thresher_core::pipeline::units::Unit| {
        unit.bytes.of(&request.chunks[unit.chunk].text).to_owned()
    };
    Texts {
        chunks: row.chunks.iter().map(LabelledChunk::full_text).collect(),
        units: reading.units.iter().map(unit).collect(),
    }
}

/// Chunk indices, best first; equal scores in the order of the request.
pub fn ranked(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

fn recall_at_gold(row: &SelectionRow, ranked: &[usize]) -> f64 {
    let sets = if row.gold_sets.is_empty() { std::slice::from_ref(&row.gold) } else { &row.gold_sets };
    sets.iter().map(|gold| recall(gold, ranked)).fold(0.0, f64::max)
}

/// Share of `gold` among as many of the best-ranked chunks.
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
            chunks: Vec::new(),
            gold: gold.to_vec(),
            gold_sets: gold_sets.iter().map(|set| set.to_vec()).collect(),
            answers: Vec::new(),
        }
    }

    #[test]
    fn recall_looks_at_as_many_chunks_as_there_are_gold_ones() {
        let check = |name, row: SelectionRow, ranked: &[usize], expect| {
            assert_eq!(recall_at_gold(&row, ranked), expect, "{name}");
        };
        check("both first", row(&[1, 2], &[]), &[2, 1, 0], 1.0);
        check("one too late", row(&[1, 2], &[]), &[2, 0, 1], 0.5);
        check("the best set counts", row(&[0, 1], &[&[0, 1], &[2]]), &[2, 0, 1], 1.0);
    }

    #[test]
    fn reciprocal_rank_is_of_the_first_gold_chunk() {
        assert_eq!(reciprocal_rank(&row(&[1, 2], &[]), &[0, 2, 1]), 0.5);
    }
}
