//! Answers: offsets in the caller's unit, every citation with its text.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thresher_core::domain::{ByteRange, Chunk, CompressRequest};
use thresher_core::pipeline::clock::Timings;
use thresher_core::pipeline::explain::{ChunkExplanation, Explanation};
use thresher_core::pipeline::score::Scoring;
use thresher_core::pipeline::{ChunkOutcome, Compressed, Pipeline, Sources, Usage};
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::kv::KvAnswer;
use crate::error::ApiError;

/// Answer of `POST /v1/compress`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CompressAnswer {
    /// What the request is remembered by: `compress_id` of an attribution.
    id: Option<String>,
    /// What to send to the language model.
    context: String,
    /// One for each chunk of the request.
    chunks: Vec<ChunkAnswer>,
    /// One for each piece of the context.
    citations: Vec<CitationAnswer>,
    /// Tokens; none where the chunks came back whole.
    usage: Option<UsageAnswer>,
    /// By which model and how.
    rc: RcAnswer,
    /// The error for which the chunks came back whole.
    degraded: Option<ApiError>,
    /// Where what the model knows of the chunks came from.
    blocks: Option<Sources>,
    timing_ms: TimingMs,
    /// Where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<ExplainAnswer>,
    /// Where more chunks were named than go to the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefilter: Option<PrefilterAnswer>,
    /// Where the kept chunks' keys and values are, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv: Option<KvAnswer>,
}

/// Which of the named chunks the lexical prefilter left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefiltered {
    /// Chunks that the request named.
    pub from: usize,
    /// Places of those that are left, ascending.
    pub places: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "Prefilter")]
/// How many of the named chunks the lexical prefilter left.
struct PrefilterAnswer {
    /// Chunks that were named.
    from: usize,
    /// Chunks that are left.
    to: usize,
}

/// Milliseconds per stage, and `total`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TimingMs(#[schemars(with = "BTreeMap<String, f64>")] Map<String, Value>);

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ChunkOutcome")]
/// What became of a chunk.
struct ChunkAnswer {
    /// Its id.
    id: String,
    /// Its place in the request.
    index: usize,
    /// Its title.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// Whether anything of it is in the context.
    kept: bool,
    /// Whether there was nothing to read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    empty: bool,
    /// Ranks within the request.
    score: Option<f32>,
    /// What of it stands in the context.
    text: String,
    /// The pieces of that.
    spans: Vec<SpanAnswer>,
    /// As it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
}

/// A half-open range in the unit that the caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Range {
    pub(super) start: usize,
    pub(super) end: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "KeptSpan")]
/// A piece of a chunk that was kept.
struct SpanAnswer {
    /// Where it begins in the chunk.
    start: usize,
    /// Where it ends.
    end: usize,
    /// Ranks within the request.
    score: Option<f32>,
    /// Where it stands in the context.
    output: Range,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Citation")]
/// A piece of the context and where it came from.
struct CitationAnswer {
    /// Number of the kept chunk, from 1.
    marker: usize,
    /// The id of the chunk.
    chunk: String,
    /// Where it stands in the chunk.
    source: Range,
    /// Where it stands in the context.
    output: Range,
    /// What stands there.
    text: String,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "CompressUsage")]
/// Tokens, counted with the tokenizer of the request.
struct UsageAnswer {
    /// Of the context with everything kept.
    tokens_in: usize,
    /// Of the context.
    tokens_out: usize,
    /// The second to the first.
    ratio: f64,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "CompressRc")]
/// By which model and how.
struct RcAnswer {
    /// The statistic.
    estimator: String,
    /// The mean best logit of the question's tokens.
    reach: Option<f32>,
    /// Whether that is enough for anything here to be about the question.
    related: Option<bool>,
    /// The model; none before it was loaded.
    model: Option<String>,
    /// Its fingerprint.
    fingerprint: Option<String>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Explanation")]
/// RC of every token.
struct ExplainAnswer {
    query: Vec<Range>,
    chunks: Vec<ExplainChunk>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ChunkExplanation")]
/// RC of a chunk's tokens.
struct ExplainChunk {
    id: String,
    tokens: Vec<ExplainToken>,
    query: Vec<ExplainQueryToken>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "TokenExplanation")]
/// RC of a token of a chunk.
struct ExplainToken {
    start: usize,
    end: usize,
    rc: f32,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "QueryTokenExplanation")]
/// RC of a token of the question, and where it found that.
struct ExplainQueryToken {
    rc: f32,
    source: Option<Range>,
}

/// A text and the unit in which places in it are told.
pub(super) struct Places<'a>(OffsetMap<'a>);

impl<'a> Places<'a> {
    pub(super) fn new(text: &'a str, unit: OffsetUnit) -> Self {
        Self(OffsetMap::new(text, unit))
    }

    pub(super) fn range(&self, bytes: ByteRange) -> Range {
        let std::ops::Range { start, end } = self.0.from_bytes(bytes);
        Range { start, end }
    }
}

impl CompressAnswer {
    /// Puts an outcome into words. It is `by` no pipeline where the answer was given before there was one.
    pub fn new(
        request: &CompressRequest,
        compressed: Compressed,
        unit: OffsetUnit,
        by: Option<&Pipeline>,
    ) -> Self {
        let model = by.map(Pipeline::model);
        let output = Places::new(&compressed.context, unit);
        let sources: Vec<_> = request.chunks.iter().map(|chunk| Places::new(&chunk.text, unit)).collect();
        let (mut chunks, mut citations, mut marker) = (Vec::new(), Vec::new(), 0);
        for outcome in &compressed.chunks {
            marker += usize::from(outcome.kept);
            let chunk = &request.chunks[outcome.index];
            let mut spans = Vec::with_capacity(outcome.spans.len());
            for span in &outcome.spans {
                let (source, out) = (sources[outcome.index].range(span.source), output.range(span.output));
                let text = span.source.of(&chunk.text).to_owned();
                spans.push(SpanAnswer {
                    start: source.start,
                    end: source.end,
                    score: span.score,
                    output: out,
                });
                citations.push(CitationAnswer { marker, chunk: chunk.id.clone(), source, output: out, text });
            }
            let text = match (outcome.spans.first(), outcome.spans.last()) {
                (Some(first), Some(last)) => &compressed.context[first.output.start..last.output.end],
                _ => "",
            };
            chunks.push(ChunkAnswer::new(chunk, outcome, text, spans));
        }
        let explain = compressed.explanation.as_ref().map(|e| ExplainAnswer::new(request, e, unit, &sources));
        let usage = compressed.usage.map(UsageAnswer::from);
        let rc = RcAnswer {
            estimator: by.map_or_else(|| Scoring::default().to_string(), Pipeline::estimator),
            reach: compressed.relevance.map(|r| r.max_sim),
            related: compressed.relevance.map(|r| r.related),
            model: model.map(|model| model.name.clone()),
            fingerprint: model.map(|model| model.fingerprint.clone()),
        };
        let timing_ms = TimingMs::from(&compressed.timings);
        let blocks = compressed.sources;
        let (context, prefilter) = (compressed.context, None);
        Self {
            id: None,
            chunks,
            citations,
            usage,
            rc,
            degraded: None,
            blocks,
            timing_ms,
            explain,
            prefilter,
            kv: None,
            context,
        }
    }

    /// The answer for the chunks that a prefilter left: it says so, and every index is the place in the request.
    pub fn prefiltered(mut self, prefiltered: &Prefiltered) -> Self {
        for chunk in &mut self.chunks {
            chunk.index = prefiltered.places[chunk.index];
        }
        self.prefilter = Some(PrefilterAnswer { from: prefiltered.from, to: prefiltered.places.len() });
        self
    }

    /// The same with the id that the request is remembered by.
    pub fn named(self, id: Option<String>) -> Self {
        Self { id, ..self }
    }

    /// The same with where keys and values are.
    pub fn with_kv(self, kv: Option<KvAnswer>) -> Self {
        Self { kv, ..self }
    }

    /// The same where the chunks came back whole, for this error.
    pub fn degraded(self, error: ApiError) -> Self {
        Self { degraded: Some(ApiError { param: None, ..error }), ..self }
    }

    /// The context alone.
    pub fn context(&self) -> &str {
        &self.context
    }
}

impl ChunkAnswer {
    fn new(chunk: &Chunk, outcome: &ChunkOutcome, text: &str, spans: Vec<SpanAnswer>) -> Self {
        Self {
            id: chunk.id.clone(),
            index: outcome.index,
            title: chunk.title.clone(),
            kept: outcome.kept,
            empty: outcome.empty,
            score: outcome.score,
            text: text.to_owned(),
            spans,
            metadata: chunk.metadata.clone().and_then(|json| RawValue::from_string(json).ok()),
        }
    }
}

impl ExplainAnswer {
    fn new(
        request: &CompressRequest,
        explanation: &Explanation,
        unit: OffsetUnit,
        sources: &[Places],
    ) -> Self {
        let question = Places::new(&request.query, unit);
        let chunk = |(index, chunk): (usize, &ChunkExplanation)| {
            let place = |bytes: ByteRange| sources[index].range(bytes);
            let token = |&(bytes, rc): &(ByteRange, f32)| {
                let Range { start, end } = place(bytes);
                ExplainToken { start, end, rc }
            };
            let asked = |&(rc, anchor): &(f32, Option<ByteRange>)| ExplainQueryToken {
                rc,
                source: anchor.map(place),
            };
            ExplainChunk {
                id: request.chunks[index].id.clone(),
                tokens: chunk.tokens.iter().map(token).collect(),
                query: chunk.question.iter().map(asked).collect(),
            }
        };
        Self {
            query: explanation.question.iter().map(|&bytes| question.range(bytes)).collect(),
            chunks: explanation.chunks.iter().enumerate().map(chunk).collect(),
        }
    }
}

impl From<Usage> for UsageAnswer {
    fn from(usage: Usage) -> Self {
        let Usage { tokens_in, tokens_out } = usage;
        let ratio = if tokens_in == 0 { 0.0 } else { tokens_out as f64 / tokens_in as f64 };
        Self { tokens_in, tokens_out, ratio: (ratio * 1e4).round() / 1e4 }
    }
}

impl From<&Timings> for TimingMs {
    fn from(timings: &Timings) -> Self {
        let ms = |time: &Duration| Value::from((time.as_secs_f64() * 1e6).round() / 1e3);
        let mut all: Map<_, _> =
            timings.stages.iter().map(|(stage, time)| ((*stage).to_owned(), ms(time))).collect();
        all.insert("total".to_owned(), ms(&timings.total));
        Self(all)
    }
}
