//! Which chunk did each labelled span of an answer come from? The answer takes the question's place: its tokens ask, the
//! chunks' keys reply.

use std::time::Instant;

use anyhow::Result;
use ndarray::s;

use super::bootstrap::estimate;
use super::data::{AttributionRow, LabelledChunk, LabelledSpan};
use super::methods::{self, Method, Seen};
use super::report::{MethodReport, Report};
use crate::domain::{ByteRange, CompressRequest, Granularity, TokenSpan};
use crate::kv::codec::Codec;
use crate::model::Logits;
use crate::pipeline::Pipeline;
use crate::pipeline::cancel::Cancel;
use crate::pipeline::clock::Clock;
use crate::pipeline::score::{self, Scoring};
use crate::rc;
use crate::text::offsets::{OffsetMap, OffsetUnit};

/// All methods that rank chunks for a span, on all rows; an answer's spans weigh the same, whatever row they stand in.
pub fn evaluate(
    rows: &[AttributionRow],
    pipeline: &Pipeline,
    codec: Codec,
    progress: &dyn Fn(usize, usize),
) -> Result<Report> {
    let methods: Vec<_> = methods::all(codec, pipeline.model())
        .into_iter()
        .filter(|method| *method != Method::Cosine)
        .collect();
    let mut right = vec![Vec::new(); methods.len()];
    let mut ms = vec![0.0; methods.len()];
    for (done, row) in rows.iter().enumerate() {
        let started = Instant::now();
        let reading = pipeline.read(&request(row), &Cancel::default(), &mut Clock::start())?;
        let seen = Seen::new(reading);
        let read_ms = started.elapsed().as_secs_f64() * 1e3;
        let texts: Vec<_> = row.chunks.iter().map(LabelledChunk::full_text).collect();
        for ((method, right), ms) in methods.iter().zip(&mut right).zip(&mut ms) {
            let started = Instant::now();
            for span in &row.spans {
                let Some(scores) = scores(*method, row, span, &seen, &texts)? else {
                    continue;
                };
                right.push(f64::from(u8::from(best(&scores) == Some(span.chunk))));
            }
            *ms += started.elapsed().as_secs_f64() * 1e3 + if method.reads() { read_ms } else { 0.0 };
        }
        progress(done + 1, rows.len());
    }
    let report = |((method, right), ms): ((&Method, &Vec<f64>), &f64)| {
        let report = MethodReport {
            accuracy: Some(estimate(right)),
            ms: ms / rows.len() as f64,
            ..MethodReport::default()
        };
        (method.to_string(), report)
    };
    Ok(Report {
        data: String::new(),
        rows: rows.len(),
        default: methods[0].to_string(),
        methods: methods.iter().zip(&right).zip(&ms).map(report).collect(),
        auto: None,
        prefilter: None,
    })
}

/// One score per chunk, or none when the span holds no token.
fn scores(
    method: Method,
    row: &AttributionRow,
    span: &LabelledSpan,
    seen: &Seen,
    texts: &[String],
) -> Result<Option<Vec<f32>>> {
    let bytes = OffsetMap::new(&row.answer, OffsetUnit::Codepoint).to_bytes(span.start..span.end)?;
    let Some(tokens) = tokens_in(seen, bytes) else {
        return Ok(None);
    };
    let logits = seen.logits(method.codec());
    let cross = logits.cross.slice(s![.., tokens.range(), ..]);
    let own = logits.own.slice(s![.., tokens.range(), ..]);
    let segments = &seen.reading.blocks.spans;
    Ok(Some(match method {
        Method::Bm25 => methods::bm25(bytes.of(&row.answer), texts)?,
        Method::Rc(scoring, _) => {
            rc_scores(Logits { cross: cross.to_owned(), own: own.to_owned() }, segments, scoring)
        }
        Method::Coded(codec) => return scores(Method::Rc(Scoring::default(), codec), row, span, seen, texts),
        Method::MaxSim | Method::Cosine => rc::raw_maxsim(&rc::peaks(cross, segments)),
    }))
}

/// One span asks for one source: coverage, which spreads over several, plays no part.
fn rc_scores(logits: Logits, segments: &[TokenSpan], scoring: Scoring) -> Vec<f32> {
    match scoring {
        Scoring::RankedCoverage => {
            rc::mean_over_queries(rc::mean_over_heads(score::ranked(&logits, segments)).view())
        }
        Scoring::Plain(estimator) => {
            rc::score(logits.cross.view(), logits.own.view(), segments, estimator).scores
        }
    }
}

fn tokens_in(seen: &Seen, bytes: ByteRange) -> Option<TokenSpan> {
    let offsets = &seen.reading.tokens.offsets;
    let first = offsets.partition_point(|token| token.end <= bytes.start);
    let after = offsets.partition_point(|token| token.start < bytes.end);
    (first < after).then(|| TokenSpan::new(first, after))
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
