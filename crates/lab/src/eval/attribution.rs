//! Which chunk did each labelled span of an answer come from, and does a span that no chunk says look like one?

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use ndarray::s;
use thresher_core::domain::{
    AttributeRequest, ByteRange, Chunk, CompressRequest, Granularity, Parts, TokenSpan,
};
use thresher_core::kv::codec::Codec;
use thresher_core::model::RawLogits;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::attribute::{Candidates, ESTIMATOR, PartOutcome};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::score::{self, Scoring};
use thresher_core::pipeline::tokenize::tokens_under;
use thresher_core::rc;
use thresher_core::text;
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::bootstrap::{SplitMix, estimate};
use super::data::{AttributionRow, LabelledChunk, LabelledSpan};
use super::methods::{self, Method, Seen};
use super::perturb::{self, Kind};
use super::report::{MethodReport, Report, SupportReport};
use super::support;

/// Every method in its way: attribution reads sentence by sentence, the others have the tokens of the span, read within the whole
/// answer, take the question's place, or its text.
pub fn evaluate(
    rows: &[AttributionRow],
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Report> {
    let methods: Vec<_> =
        methods::all(codec, pipeline.model()).into_iter().chain([Method::CommonRun]).collect();
    let mut right = vec![Vec::new(); methods.len()];
    let mut ms = vec![0.0; methods.len()];
    let mut own = Own::default();
    for (done, row) in rows.iter().enumerate() {
        let started = Instant::now();
        let reading = pipeline.read(&request(row), &Cancel::default(), &mut Clock::start())?;
        let read_ms = started.elapsed().as_secs_f64() * 1e3;
        let chunks: Vec<Arc<Chunk>> = row.chunks.iter().map(LabelledChunk::chunk).map(Arc::new).collect();
        let candidates = Candidates::new(&chunks, reading.recoded(codec).blocks, None);
        own.add(rows, done, (pipeline, &candidates), read_ms)?;
        let seen = Seen::new(reading);
        let texts: Vec<_> = row.chunks.iter().map(LabelledChunk::full_text).collect();
        for ((method, right), ms) in methods.iter().zip(&mut right).zip(&mut ms) {
            let started = Instant::now();
            for span in &row.spans {
                let Some(chunk) = span.chunk else { continue };
                let Some(scores) = scores(*method, row, span, &seen, &texts)? else { continue };
                right.push(f64::from(u8::from(best(&scores) == Some(chunk))));
            }
            *ms += started.elapsed().as_secs_f64() * 1e3 + if method.reads() { read_ms } else { 0.0 };
        }
        progress(done + 1, rows.len());
    }
    let report = |name: String, right: &[f64], ms: f64| {
        let (accuracy, ms) = (Some(estimate(right)), ms / rows.len() as f64);
        (name, MethodReport { accuracy, ms, ..MethodReport::default() })
    };
    let others = methods.iter().zip(&right).zip(&ms);
    let others = others.map(|((method, right), &ms)| report(method.to_string(), right, ms));
    let ours = report(ESTIMATOR.to_owned(), &own.right, own.ms);
    Ok(Report {
        rows: rows.len(),
        default: ESTIMATOR.to_owned(),
        methods: std::iter::once(ours).chain(others).collect(),
        support: own.support(),
        ..Report::default()
    })
}

/// What attribution itself does.
#[derive(Default)]
struct Own {
    right: Vec<f64>,
    ms: f64,
    /// Support of spans that somebody, or the label of a chunk, says are supported; of those that are said not to be.
    supported: Vec<f64>,
    unsupported: Vec<f64>,
    /// Support of spans that were perturbed.
    perturbed: Vec<(Kind, f64)>,
    /// Whether support falls more without the best chunk than without another.
    faithful: Vec<f64>,
}

impl Own {
    fn add(
        &mut self,
        rows: &[AttributionRow],
        index: usize,
        (pipeline, candidates): (&Pipeline, &Candidates),
        read_ms: f64,
    ) -> Result<()> {
        let row = &rows[index];
        let mut random = SplitMix(index as u64);
        let started = Instant::now();
        let spans =
            row.spans.iter().map(|span| Ok((*span, bytes(row, span)?))).collect::<Result<Vec<_>>>()?;
        let found = spans
            .iter()
            .map(|(_, bytes)| part(pipeline, candidates, (&row.answer, *bytes), 1))
            .collect::<Result<Vec<_>>>()?;
        self.ms += started.elapsed().as_secs_f64() * 1e3 + read_ms;
        for ((span, bytes), found) in spans.into_iter().zip(found) {
            let Some(support) = found.support.map(f64::from) else { continue };
            if let Some(chunk) = span.chunk {
                let best = found.sources.first().map(|source| source.chunk);
                self.right.push(f64::from(u8::from(best == Some(chunk))));
            }
            let words = text::terms(bytes.of(&row.answer), &[]).len();
            match (span.supported, span.chunk) {
                (Some(false), _) => self.unsupported.push(support),
                (_, Some(_)) | (Some(true), _) if words >= perturb::WORDS_MIN => self.supported.push(support),
                _ => {}
            }
            let Some(chunk) = span.chunk.filter(|_| words >= perturb::WORDS_MIN) else { continue };
            for perturbed in perturb::all(rows, index, (bytes, chunk), &mut random) {
                let found = part(pipeline, candidates, (&perturbed.answer, perturbed.span), 1)?;
                self.perturbed.extend(found.support.map(|support| (perturbed.kind, f64::from(support))));
            }
            self.removal((pipeline, candidates), (&row.answer, bytes), &found, &mut random)?;
        }
        Ok(())
    }

    /// Takes away the best chunk, and another one instead. Where another says the same as the best, nothing has to fall.
    fn removal(
        &mut self,
        (pipeline, candidates): (&Pipeline, &Candidates),
        (answer, bytes): (&str, ByteRange),
        found: &PartOutcome,
        random: &mut SplitMix,
    ) -> Result<()> {
        let Some(best) = found.sources.first() else { return Ok(()) };
        let cited = found.sources.iter().filter(|source| source.cited).count();
        if candidates.len() < 3 || cited > 1 {
            return Ok(());
        }
        let other = (best.chunk + 1 + random.below(candidates.len() - 1)) % candidates.len();
        let without = |chunk: usize| part(pipeline, &candidates.without(chunk), (answer, bytes), 1);
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
        support::report(&self.supported, &kinds, &self.faithful)
    }
}

/// What a span of an answer came from, as a request for it would be told.
pub fn part(
    pipeline: &Pipeline,
    candidates: &Candidates,
    (answer, span): (&str, ByteRange),
    sources_max: usize,
) -> Result<PartOutcome> {
    let parts = Parts::Spans(vec![span]);
    let request = AttributeRequest { parts, sources_max, ..AttributeRequest::new(answer, Vec::new()) };
    let mut parts = pipeline.parts(candidates, &request, &Cancel::default())?;
    Ok(parts.remove(0))
}

fn bytes(row: &AttributionRow, span: &LabelledSpan) -> Result<ByteRange> {
    Ok(OffsetMap::new(&row.answer, OffsetUnit::Codepoint).to_bytes(span.start..span.end)?)
}

/// One score per chunk, or none when the span holds no token.
fn scores(
    method: Method,
    row: &AttributionRow,
    span: &LabelledSpan,
    seen: &Seen,
    texts: &[String],
) -> Result<Option<Vec<f32>>> {
    let bytes = bytes(row, span)?;
    let Some(tokens) = tokens_in(seen, bytes) else {
        return Ok(None);
    };
    let logits = seen.logits(method.codec());
    let cross = logits.cross.slice(s![.., tokens.range(), ..]);
    let own = logits.self_logits.slice(s![.., tokens.range(), ..]);
    let segments = &seen.reading.blocks.spans;
    Ok(Some(match method {
        Method::Bm25 => methods::bm25(bytes.of(&row.answer), texts)?,
        Method::CommonRun => methods::common_run(bytes.of(&row.answer), texts),
        Method::Rc(scoring, _) => {
            rc_scores(RawLogits { cross: cross.to_owned(), self_logits: own.to_owned() }, segments, scoring)
        }
        Method::Coded(codec) => return scores(Method::Rc(Scoring::default(), codec), row, span, seen, texts),
        Method::MaxSim => rc::raw_maxsim(&rc::peaks(cross, segments)),
        Method::Cosine => {
            let own = own.slice(s![.., .., tokens.range()]).to_owned();
            methods::cosine(&seen.reading, &RawLogits { cross: cross.to_owned(), self_logits: own }, segments)
        }
    }))
}

/// One span asks for one source: coverage, which spreads over several, plays no part.
fn rc_scores(logits: RawLogits, segments: &[TokenSpan], scoring: Scoring) -> Vec<f32> {
    match scoring {
        Scoring::RankedCoverage => {
            rc::mean_over_queries(rc::mean_over_heads(score::ranked(&logits, segments)).view())
        }
        Scoring::Plain(estimator) => {
            rc::score(logits.cross.view(), logits.self_logits.view(), segments, estimator).scores
        }
    }
}

fn tokens_in(seen: &Seen, bytes: ByteRange) -> Option<TokenSpan> {
    Some(tokens_under(&seen.reading.tokens.offsets, 0, bytes)).filter(|tokens| !tokens.is_empty())
}

fn best(scores: &[f32]) -> Option<usize> {
    let better = |best: usize, i: usize| if scores[i] > scores[best] { i } else { best };
    (0..scores.len()).reduce(better)
}

fn request(row: &AttributionRow) -> CompressRequest {
    let chunks = row.chunks.iter().map(LabelledChunk::chunk).collect();
    let granularity = Granularity::Chunk;
    CompressRequest { granularity, ..CompressRequest::new(&row.answer, chunks) }
}
