//! Answers of `POST /v1/compress` and `GET /v1/models`. Offsets are in the unit that the request names.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use thresher_core::domain::{ByteRange, Chunk, CompressRequest, KeptSpan, Kind, Lang, TokenizerName};
use thresher_core::pipeline::clock::Timings;
use thresher_core::pipeline::decide::coverage::Shortfall;
use thresher_core::pipeline::explain::Explanation;
use thresher_core::pipeline::place::Places;
use thresher_core::pipeline::score::Scoring;
use thresher_core::pipeline::units::Unit;
use thresher_core::pipeline::{
    BlockOrigins, ChunkOutcome, Compressed, Pipeline, Relevance, Usage, Warning, kv_export,
};
use thresher_core::text::intent::{self, Wants};
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};
use thresher_core::text::outline::Layout;

use super::kv::KvAnswer;
use super::place::PlaceAnswer;
use super::source_conflict::{SourceConflictAnswer, StatementAnswer};
use crate::error::ApiError;

/// Answer of `POST /v1/compress`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CompressAnswer {
    /// The name of this compression, which `compress_id` of an attribution takes; null if the daemon does not remember it.
    id: Option<String>,
    /// The compressed context, to send to the language model.
    context: String,
    /// The tag in the markers of the context, as in `[1:TAG]` and `<document-TAG>`: a text looks like a marker without one. Left out if there
    /// is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    marker_tag: Option<String>,
    /// One citation for each piece of the context.
    citations: Vec<CitationAnswer>,
    /// Sentences in the context that contradict each other; left out if none do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    source_conflicts: Vec<SourceConflictAnswer>,
    /// Whether any chunk is related to the question; null where it was not measured.
    related: Option<bool>,
    /// The highest relevance of a chunk; null where it was not measured.
    relevance: Option<f32>,
    /// Whether the chunks answer the question; null where it was not measured (docs/verdicts.md).
    answerable: Option<AnswerableAnswer>,
    /// Tokens before and after; null if the chunks came back uncompressed.
    usage: Option<UsageAnswer>,
    /// What the caller should know about the context; left out if there is nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<WarningAnswer>,
    /// The error because of which the chunks came back uncompressed; null otherwise.
    degraded: Option<ApiError>,
    /// One outcome for each chunk of the request.
    chunks: Vec<ChunkAnswer>,
    /// The question, as it was read.
    question: QuestionAnswer,
    /// The model, and the statistic by which it scored.
    rc: RcAnswer,
    /// How many blocks (cached keys of chunks) came from which tier of the cache.
    blocks: Option<BlockOrigins>,
    timing_ms: TimingMs,
    /// The RC of every token, if the request asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<ExplainAnswer>,
    /// How many chunks the lexical prefilter left, if the request names more than the model reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefilter: Option<PrefilterAnswer>,
    /// Where the keys and values of the kept chunks can be fetched, if the request asks for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    kv: Option<KvAnswer>,
}

/// Which of the chunks that a request names the lexical prefilter left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefiltered {
    /// The number of chunks that the request names.
    pub from: usize,
    /// The indexes of the chunks that are left, ascending.
    pub indexes: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "Prefilter")]
/// How many of the chunks that a request names the lexical prefilter left.
struct PrefilterAnswer {
    /// Chunks that the request names.
    from: usize,
    /// Chunks that are left.
    to: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Warning")]
/// Something that the caller should know about the context, though it is not an error.
struct WarningAnswer {
    /// `unrelated`, `rows_left_out`, `group_cut`, `unit_cut`, `kind_unfit`, `coverage_cut`, `coverage_not_promised`, `script_unknown`, `question_shortened` or
    /// `unread`.
    code: &'static str,
    /// What it means, in words.
    message: Cow<'static, str>,
    /// The id of the chunk that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<String>,
}

impl WarningAnswer {
    fn unrelated(found: Relevance, request: &CompressRequest) -> Self {
        let message = if request.chunks.iter().all(|chunk| chunk.text.trim().is_empty()) {
            "the chunks contain no text".to_owned()
        } else {
            let advice = if request.related_only {
                "; leave `related_only` out to keep the best text anyway"
            } else {
                ""
            };
            format!(
                "no chunk comes close to the question: the mean of its largest logits is {:.3}, and the least for these texts is {:.3}{advice}",
                found.value, found.least
            )
        };
        Self { code: "unrelated", message: message.into(), chunk: None }
    }

    fn new(warning: Warning, request: &CompressRequest) -> Self {
        let (code, message, chunk) = match warning {
            Warning::RowsLeftOut { chunk } => (
                "rows_left_out",
                "the question compares all rows of a table, and some rows of this chunk are left out; name a larger budget, or \
                 the chunk in `keep`"
                    .into(),
                Some(chunk),
            ),
            Warning::GroupCut { chunk } => (
                "group_cut",
                "the budget is too small for the best text of this chunk together with what a reader needs to understand it, such as \
                 its heading, its question or the other items of its list; some of that is left out, or all of it. Name a larger budget"
                    .into(),
                Some(chunk),
            ),
            Warning::UnitCut { chunk } => (
                "unit_cut",
                "the budget is too small for the best text of this chunk; only some words of it are kept. Name a larger budget".into(),
                Some(chunk),
            ),
            Warning::CoverageCut { promised } => {
                let message = format!(
                    "the upper limit of the budget ends the context before a coverage of {promised} is reached; name a higher limit"
                );
                ("coverage_cut", message.into(), None)
            }
            Warning::KindUnfit { chunk, named } => {
                let message = format!(
                    "the text of this chunk does not have the form of {}, its `kind`; it was divided into sentences. Leave `kind` \
                     out to have it found",
                    named.name()
                );
                ("kind_unfit", message.into(), Some(chunk))
            }
            Warning::CoverageNotPromised(Shortfall { promised, covered, rows, sufficient }) => {
                let enough = sufficient.map_or_else(String::new, |coverage| {
                    format!(", and a coverage of {coverage} for {:.0} %", 100.0 * promised)
                });
                let message = format!(
                    "several chunks have similar scores, so the answer may need several of them. Of {rows} labelled questions that need \
                     several, a coverage of {promised} kept all evidence for {:.0} %{enough}. `thresher calibrate --coverage` measures \
                     questions of your own",
                    100.0 * covered
                );
                ("coverage_not_promised", message.into(), None)
            }
            Warning::ScriptUnknown => (
                "script_unknown",
                "the model does not know the script of the question, so the scores say little".into(),
                None,
            ),
            Warning::QuestionShortened { tokens, max } => {
                let message = format!(
                    "the question has {tokens} tokens, and the model reads {max}: it read the sentences that end with a question \
                     mark, and the last ones"
                );
                ("question_shortened", message.into(), None)
            }
            Warning::Unread { chunks, of } => {
                let message = format!(
                    "the deadline left no time to read {chunks} of {of} chunks, which are marked `unread`. Chunks that were read are \
                     cached, so the same request reads further ones"
                );
                ("unread", message.into(), None)
            }
        };
        Self { code, message, chunk: chunk.map(|chunk| request.chunks[chunk].id.clone()) }
    }
}

/// Milliseconds of each stage, and `total`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TimingMs(#[schemars(with = "BTreeMap<String, f64>")] Map<String, Value>);

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ChunkOutcome")]
/// What was kept of a chunk.
struct ChunkAnswer {
    /// The id of the chunk.
    id: String,
    /// The index of the chunk in the request.
    index: usize,
    /// The title of the chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// Whether anything of it is in the context.
    kept: bool,
    /// Whether the chunk has no text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    empty: bool,
    /// Whether the deadline left no time to read it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unread: bool,
    /// The kind of text by which the chunk was divided; left out if units are not sentences.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    /// The language of the text as an ISO 639-3 code; left out if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    lang: Option<Lang>,
    /// The score; compares within a request only.
    score: Option<f32>,
    /// The probability that the chunk contains something that the question asks. No other chunk enters it, so it compares between
    /// requests; null where it was not measured (docs/verdicts.md).
    relevance: Option<f32>,
    /// The text of the chunk in the context.
    text: String,
    /// The metadata, as it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
}

/// A half-open range in the unit that the request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Range {
    pub(super) start: usize,
    pub(super) end: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Citation")]
/// A piece of the context, and the chunk that it came from.
struct CitationAnswer {
    /// The number of the kept chunk, from 1.
    marker: usize,
    /// The id of the chunk.
    chunk: String,
    /// The range in the chunk.
    source: Range,
    /// The range in the context.
    output: Range,
    /// The text of the piece.
    text: String,
    /// The score; compares within a request only. Null where nothing was scored, and for a sentence that an earlier chunk has, too, and that is kept there.
    score: Option<f32>,
    /// Where the piece stands in the document of the chunk.
    #[serde(flatten)]
    place: PlaceAnswer,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "CompressUsage")]
/// Tokens of the context.
struct UsageAnswer {
    /// The tokenizer that counted them.
    tokenizer: TokenizerName,
    /// Tokens of all chunks and the markup around them.
    tokens_in: usize,
    /// Tokens of the context.
    tokens_out: usize,
    /// `tokens_out` divided by `tokens_in`.
    ratio: f64,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "Question")]
/// The question, as it was read.
struct QuestionAnswer {
    /// The language as an ISO 639-3 code; null if it is unknown.
    lang: Option<Lang>,
    /// How many turns of `messages` the question was read with; null if there are none.
    turns_read: Option<usize>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "CompressRc")]
/// The model, and the statistic by which it scored.
struct RcAnswer {
    /// The name of the statistic.
    estimator: String,
    /// The name of the model; null while it is being loaded.
    model: Option<String>,
    /// The fingerprint of the model.
    fingerprint: Option<String>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Answerable")]
/// Whether the chunks answer the question.
struct AnswerableAnswer {
    /// The probability that they do.
    probability: f32,
    /// Whether it is at least `least`.
    answerable: bool,
    /// The probability that `missed_max` asks for.
    least: f32,
    /// The id of the chunk that comes closest to an answer.
    chunk: String,
    /// Where in the chunk.
    source: Range,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Explanation")]
/// The RC of every token.
struct ExplainAnswer {
    query: Vec<Range>,
    chunks: Vec<ExplainChunk>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ChunkExplanation")]
/// The RC of a chunk's tokens.
struct ExplainChunk {
    id: String,
    tokens: Vec<ExplainToken>,
    query: Vec<ExplainQueryToken>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "TokenExplanation")]
/// The RC of a token of a chunk.
struct ExplainToken {
    start: usize,
    end: usize,
    rc: f32,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "QueryTokenExplanation")]
/// The RC of a token of the question in a chunk, and the token of the chunk that it comes from.
struct ExplainQueryToken {
    rc: f32,
    source: Option<Range>,
}

/// Converts byte offsets in a text to the unit that the request names.
pub(super) struct Offsets<'a>(OffsetMap<'a>);

impl<'a> Offsets<'a> {
    pub(super) fn new(text: &'a str, unit: OffsetUnit) -> Self {
        Self(OffsetMap::new(text, unit))
    }

    pub(super) fn range(&self, bytes: ByteRange) -> Range {
        let std::ops::Range { start, end } = self.0.from_bytes(bytes);
        Range { start, end }
    }
}

impl CompressAnswer {
    /// The answer for an outcome. `pipeline` made it; none if the chunks came back whole while the model was being loaded.
    pub fn new(
        request: &CompressRequest,
        compressed: Compressed,
        unit: OffsetUnit,
        pipeline: Option<&Pipeline>,
    ) -> Self {
        let model = pipeline.map(Pipeline::model);
        let output = Offsets::new(&compressed.context, unit);
        let sources: Vec<_> = request.chunks.iter().map(|chunk| Offsets::new(&chunk.text, unit)).collect();
        let (mut chunks, mut citations, mut marker) = (Vec::new(), Vec::new(), 0);
        for outcome in &compressed.chunks {
            marker += usize::from(outcome.kept);
            let chunk = &request.chunks[outcome.index];
            let places = OnceCell::new();
            let cite = |span: &KeptSpan, marker: usize, score: Option<f32>| CitationAnswer {
                marker,
                chunk: chunk.id.clone(),
                source: sources[outcome.index].range(span.source),
                output: output.range(span.output),
                text: span.source.slice(&chunk.text).to_owned(),
                score,
                place: places.get_or_init(|| places_of(chunk, pipeline, &compressed)).at(span.source).into(),
            };
            citations.extend(outcome.spans.iter().map(|span| cite(span, marker, span.score)));
            for repeat in &outcome.repeats {
                citations.push(cite(repeat, marker_at(&compressed.chunks, repeat.output), None));
            }
            let text = match (outcome.spans.first(), outcome.spans.last()) {
                (Some(first), Some(last)) => &compressed.context[first.output.start..last.output.end],
                _ => "",
            };
            chunks.push(ChunkAnswer::new(chunk, outcome, text));
        }
        let statement = |unit: &Unit| {
            let (chunk, Range { start, end }) =
                (&request.chunks[unit.chunk], sources[unit.chunk].range(unit.bytes));
            StatementAnswer {
                chunk: chunk.id.clone(),
                index: unit.chunk,
                start,
                end,
                text: unit.bytes.slice(&chunk.text).to_owned(),
                place: places_of(chunk, pipeline, &compressed).at(unit.bytes).into(),
            }
        };
        let source_conflicts = SourceConflictAnswer::all(&compressed.conflicts, statement);
        let answerable = compressed.answerable.map(|found| AnswerableAnswer {
            probability: found.probability,
            answerable: found.answerable,
            least: found.least,
            chunk: request.chunks[found.chunk].id.clone(),
            source: sources[found.chunk].range(found.bytes),
        });
        let explain = compressed.explanation.as_ref().map(|e| ExplainAnswer::new(request, e, unit, &sources));
        let usage = compressed.usage.map(|usage| UsageAnswer::new(usage, request.tokenizer));
        // Nothing is compared with a question that asks for the whole text.
        let is_compared = intent::wants(&request.query) != Wants::Whole;
        let unrelated = compressed.relevance.filter(|relevance| !relevance.related && is_compared);
        let unrelated = unrelated.map(|found| WarningAnswer::unrelated(found, request));
        let warnings = compressed.warnings.iter().map(|&warning| WarningAnswer::new(warning, request));
        let rc = RcAnswer {
            estimator: pipeline.map_or_else(|| Scoring::default().to_string(), Pipeline::estimator),
            model: model.map(|model| model.name.clone()),
            fingerprint: model.map(|model| model.fingerprint.clone()),
        };
        let timing_ms = TimingMs::from(&compressed.timings);
        let blocks = compressed.sources;
        let context = compressed.context;
        Self {
            marker_tag: compressed.marker_tag.map(|tag| tag.to_string()),
            id: None,
            context,
            citations,
            source_conflicts,
            related: compressed.relevance.map(|relevance| relevance.related),
            relevance: chunks.iter().filter_map(|chunk: &ChunkAnswer| chunk.relevance).reduce(f32::max),
            answerable,
            usage,
            warnings: unrelated.into_iter().chain(warnings).collect(),
            degraded: None,
            chunks,
            question: QuestionAnswer { lang: compressed.lang, turns_read: compressed.turns_read },
            rc,
            blocks,
            timing_ms,
            explain,
            prefilter: None,
            kv: None,
        }
    }

    /// The same answer for chunks that a prefilter left: indexes become those of the request.
    pub fn prefiltered(mut self, prefiltered: &Prefiltered) -> Self {
        for chunk in &mut self.chunks {
            chunk.index = prefiltered.indexes[chunk.index];
        }
        for conflict in &mut self.source_conflicts {
            for statement in [&mut conflict.a, &mut conflict.b] {
                statement.index = prefiltered.indexes[statement.index];
            }
        }
        self.prefilter = Some(PrefilterAnswer { from: prefiltered.from, to: prefiltered.indexes.len() });
        self
    }

    /// The same answer with the id by which the daemon remembers it.
    pub fn with_id(self, id: Option<String>) -> Self {
        Self { id, ..self }
    }

    /// The same answer with the place of keys and values.
    pub fn with_kv(self, kv: Option<KvAnswer>) -> Self {
        Self { kv, ..self }
    }

    /// The same answer, marked as one in which the chunks came back whole because of `error`.
    pub fn degraded(self, error: ApiError) -> Self {
        Self { degraded: Some(ApiError { param: None, ..error }), ..self }
    }

    pub fn context(&self) -> &str {
        &self.context
    }
}

/// Returns the places in a chunk. A daemon that returns the chunks unchanged has no time to look for headings.
fn places_of<'a>(chunk: &'a Chunk, pipeline: Option<&Pipeline>, compressed: &Compressed) -> Places<'a> {
    match pipeline {
        Some(pipeline) if !compressed.degraded => pipeline.places(chunk),
        _ => Places::new(chunk, Arc::new(Layout::prose())),
    }
}

/// Returns the number of the chunk that holds a range of the context.
fn marker_at(outcomes: &[ChunkOutcome], output: ByteRange) -> usize {
    let kept = outcomes.iter().filter(|outcome| outcome.kept);
    let ends_before =
        |outcome: &&ChunkOutcome| outcome.spans.last().is_some_and(|span| span.output.end <= output.start);
    1 + kept.take_while(ends_before).count()
}

impl ChunkAnswer {
    fn new(chunk: &Chunk, outcome: &ChunkOutcome, text: &str) -> Self {
        Self {
            id: chunk.id.clone(),
            index: outcome.index,
            title: chunk.title.clone(),
            kept: outcome.kept,
            empty: outcome.empty,
            unread: outcome.unread,
            kind: outcome.kind,
            lang: outcome.lang,
            score: outcome.score,
            relevance: outcome.relevance,
            text: text.to_owned(),
            metadata: chunk.metadata.clone().and_then(|json| RawValue::from_string(json).ok()),
        }
    }
}

impl ExplainAnswer {
    fn new(
        request: &CompressRequest,
        explanation: &Explanation,
        unit: OffsetUnit,
        sources: &[Offsets],
    ) -> Self {
        let question = Offsets::new(&request.query, unit);
        let mut chunks = Vec::with_capacity(explanation.chunks.len());
        for (index, chunk) in explanation.chunks.iter().enumerate() {
            let range = |bytes: ByteRange| sources[index].range(bytes);
            let token = |&(bytes, rc): &(ByteRange, f32)| {
                let Range { start, end } = range(bytes);
                ExplainToken { start, end, rc }
            };
            let query_token = |&(rc, anchor): &(f32, Option<ByteRange>)| ExplainQueryToken {
                rc,
                source: anchor.map(range),
            };
            chunks.push(ExplainChunk {
                id: request.chunks[index].id.clone(),
                tokens: chunk.tokens.iter().map(token).collect(),
                query: chunk.question.iter().map(query_token).collect(),
            });
        }
        Self { query: explanation.question.iter().map(|&bytes| question.range(bytes)).collect(), chunks }
    }
}

impl UsageAnswer {
    fn new(usage: Usage, tokenizer: TokenizerName) -> Self {
        let Usage { tokens_in, tokens_out } = usage;
        let ratio = if tokens_in == 0 { 0.0 } else { tokens_out as f64 / tokens_in as f64 };
        Self { tokenizer, tokens_in, tokens_out, ratio: (ratio * 1e4).round() / 1e4 }
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

/// Answer of `GET /health`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Health")]
pub struct HealthAnswer {
    /// `ok`, `loading` (the model) or `draining` (the daemon is shutting down).
    pub status: &'static str,
    /// The version of the daemon.
    pub version: &'static str,
}

/// Answer of `GET /v1/models`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Models")]
pub struct ModelsAnswer {
    object: &'static str,
    /// The models of the upstreams, as they describe them. Without upstreams, the same as `thresher`.
    #[schemars(with = "Vec<ListedModel>")]
    data: Vec<Value>,
    /// Whether upstreams have more models, and the first and the last one of `data`, if an upstream says so.
    #[serde(flatten)]
    #[schemars(skip)]
    page: Map<String, Value>,
    /// The models that are loaded: the one that scores chunks, then the one that only exports keys and values, if there is one.
    thresher: Vec<ModelAnswer>,
}

/// The schema of a model of an upstream, or of the daemon. Upstreams add fields of their own.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct ListedModel {
    /// The name of the model.
    id: String,
}

/// A model that is loaded.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Model")]
struct ModelAnswer {
    /// The name of the model.
    id: String,
    object: &'static str,
    /// A hash of the model and its weights.
    fingerprint: String,
    /// The most tokens that it reads in one window.
    window_tokens_max: usize,
    /// The number of heads over which RC is computed.
    heads: usize,
    /// The number of components of a key.
    head_dim: usize,
    /// The name of the statistic.
    estimator: String,
    /// The device that it runs on.
    device: String,
    /// Whether keys and values are exported from this model.
    exports_kv: bool,
}

impl ModelsAnswer {
    /// The answer about the models of this pipeline.
    pub fn new(pipeline: &Pipeline) -> Self {
        let thresher = ModelAnswer::list(pipeline);
        let data = thresher.iter().map(|model| serde_json::to_value(model).expect("it is JSON")).collect();
        Self { object: "list", data, page: Map::new(), thresher }
    }

    /// The answer about the models of upstreams. `page` has further fields of their lists, and `pipeline` is `None` while the daemon's own model
    /// is being loaded.
    pub fn of_upstreams(
        models: Vec<Value>,
        page: Option<[(&str, Value); 3]>,
        pipeline: Option<&Pipeline>,
    ) -> Self {
        let page = page.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)).collect();
        Self {
            object: "list",
            data: models,
            page,
            thresher: pipeline.map(ModelAnswer::list).unwrap_or_default(),
        }
    }
}

impl ModelAnswer {
    fn list(pipeline: &Pipeline) -> Vec<Self> {
        let describe = |of: &Pipeline| {
            let model = of.model();
            Self {
                id: model.name.clone(),
                object: "model",
                fingerprint: model.fingerprint.clone(),
                window_tokens_max: model.window_tokens_max,
                heads: model.readout.len(),
                head_dim: model.head_dim,
                estimator: of.estimator(),
                device: model.device.name.clone(),
                exports_kv: of.exporter().is_none() && kv_export::check_model(model).is_ok(),
            }
        };
        let pipelines = std::iter::once(pipeline).chain(pipeline.exporter());
        pipelines.map(describe).collect()
    }
}
