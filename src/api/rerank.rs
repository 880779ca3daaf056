//! Requests and answers of `rerank` in the formats of Cohere (v1 and v2), Jina and Text Embeddings Inference. Fields that have no
//! meaning here, such as a model's name or a place to truncate at, are ignored; nothing is truncated.

mod documents;

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use thresher_core::domain::{Chunk, Granularity};
use thresher_core::pipeline::Ranked;
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use self::documents::DocumentReader;
use super::limits::{Body, BodyLimits, ListLimit};
use super::wire::or_default;
use crate::error::{ApiError, ErrorCode};

/// The RC at which a relevance is one half.
const RC_AT_HALF: f32 = 0.1;

/// The default threshold of relevant spans, which is Cohere's.
const SPAN_THRESHOLD: f64 = 0.1;

/// Returns the relevance of a chunk, which compares between requests. Where that was not measured, returns its score as a number from 0 to
/// 1, which compares within a request only.
fn relevance(ranked: &Ranked, chunk: usize) -> f64 {
    match &ranked.chunk_relevances {
        Some(relevances) => f64::from(relevances[chunk]),
        None => share_of_one(ranked, ranked.chunks[chunk]),
    }
}

/// Returns a score of `ranked` as a number from 0 to 1 with the same order: a probability as it is, and RC as `rc / (rc + 0.1)`.
fn share_of_one(ranked: &Ranked, score: f32) -> f64 {
    f64::from(if ranked.are_probabilities { score } else { score / (score + RC_AT_HALF) })
}

/// Body of `rerank` as Cohere and Jina have it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(transform = texts_in_objects)]
pub struct RerankBody {
    /// The question; not blank.
    query: String,
    /// The documents to rank: strings, or objects with a field `text`.
    #[schemars(with = "Vec<DocumentBody>", length(min = 1))]
    documents: Vec<Box<RawValue>>,
    /// The most results; 0 or null: all.
    #[serde(default)]
    top_n: Option<usize>,
    /// The fields of object documents that are read instead of `text`; each once.
    #[serde(default)]
    #[schemars(length(max = 64), extend("uniqueItems" = true))]
    rank_fields: Option<Vec<String>>,
    /// Whether each result has its document. Default: true for version 1, false for version 2.
    #[serde(default)]
    return_documents: Option<bool>,
    /// Whether results name the relevant sentences of their documents.
    #[serde(default)]
    relevant_spans: Option<SpansBody>,
    /// The least `relevance_score` of a result, from 0 to 1. Documents below it are left out, also all of them. Default: none is. Without
    /// effect where relevance was not measured (header `x-thresher-relevance: unmeasured`).
    #[serde(default)]
    #[schemars(extend("minimum" = 0, "maximum" = 1))]
    threshold: Option<f64>,
}

/// Body of `rerank` as Text Embeddings Inference has it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct TeiRerankBody {
    /// The question; not blank.
    query: String,
    /// The texts to rank.
    #[schemars(length(min = 1))]
    texts: Vec<String>,
    /// Whether scores are the RC itself instead of a number from 0 to 1.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    raw_scores: bool,
    /// Whether each result has its text.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    return_text: bool,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "RelevantSpansOptions")]
/// Which sentences of a document are named.
struct SpansBody {
    /// `enabled`: sentences are named; any other value: none are.
    mode: String,
    /// The score from which on a sentence is named. Default: 0.1.
    #[serde(default)]
    threshold: Option<f64>,
    /// The most sentences of one document.
    #[serde(default)]
    max_spans: Option<usize>,
}

/// The schema of a document. `rank_fields` decides which of its fields are read.
#[derive(JsonSchema)]
#[schemars(rename = "Document", untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum DocumentBody {
    /// A document that is its text.
    Text(String),
    /// A document with fields.
    Fields(Map<String, Value>),
}

/// Without `rank_fields`, an object has to have a text.
fn texts_in_objects(schema: &mut Schema) {
    schema.insert("if".to_owned(), json!({"properties": {"rank_fields": {"type": "null"}}}));
    let texts = json!({"properties": {"documents": {"items": {"if": {"type": "object"}, "then": {
        "required": ["text"], "properties": {"text": {"type": "string"}},
    }}}}});
    schema.insert("then".to_owned(), texts);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerankDialect {
    /// That of Cohere's `/v1/rerank`, which Jina shares.
    V1,
    /// That of Cohere's `/v2/rerank`.
    V2,
    /// That of Text Embeddings Inference.
    Tei,
}

impl RerankDialect {
    /// The field of the texts that are ranked.
    pub fn field(self) -> &'static str {
        if self == Self::Tei { "texts" } else { "documents" }
    }
}

/// The documents to rank, and the options of the answer.
#[derive(Debug, Clone)]
pub struct RerankRequest {
    pub query: String,
    /// One chunk for each document, in the order of the request.
    pub chunks: Vec<Arc<Chunk>>,
    pub dialect: RerankDialect,
    returned: Returned,
    /// The most results; none: all.
    pub top_n: Option<usize>,
    spans: Option<SpanOptions>,
    raw_scores: bool,
    /// The least relevance of a result; none: all.
    threshold: Option<f64>,
}

/// What each result repeats of its document.
#[derive(Debug, Clone)]
enum Returned {
    Nothing,
    /// The text that was ranked.
    Texts,
    /// The document, as it was sent.
    Documents(Vec<Box<RawValue>>),
}

#[derive(Debug, Clone, Copy)]
struct SpanOptions {
    threshold: f64,
    max: usize,
}

impl Body for RerankBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("documents"), limits.rank_fields()]
    }
}

impl Body for TeiRerankBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("texts")]
    }
}

impl RerankBody {
    /// The request in the format of Cohere's version 1, which is that of Jina.
    ///
    /// # Errors
    /// Fails if there are no documents, if one has no text or too much, and if `rank_fields` is empty or names a field twice.
    pub fn into_v1(self, limits: &BodyLimits) -> Result<RerankRequest, ApiError> {
        self.into_domain(RerankDialect::V1, true, limits)
    }

    /// The request in the format of Cohere's version 2.
    ///
    /// # Errors
    /// As [`Self::into_v1`].
    pub fn into_v2(self, limits: &BodyLimits) -> Result<RerankRequest, ApiError> {
        self.into_domain(RerankDialect::V2, false, limits)
    }

    fn into_domain(
        self,
        dialect: RerankDialect,
        returns_documents: bool,
        limits: &BodyLimits,
    ) -> Result<RerankRequest, ApiError> {
        let reader = DocumentReader::new(self.rank_fields.as_deref(), limits.requests.chunk_bytes_max)?;
        let texts = self.documents.iter().enumerate().map(|(index, document)| reader.text(index, document));
        let texts = texts.collect::<Result<Vec<String>, _>>()?;
        let request = RerankRequest::new(self.query, texts, dialect)?;
        if let Some(threshold) = self.threshold.filter(|threshold| !(0.0..=1.0).contains(threshold)) {
            let message = format!("threshold is {threshold}; it must be from 0 to 1");
            return Err(ApiError::with_param(ErrorCode::OutOfRange, message, "threshold"));
        }
        let spans = self.relevant_spans.filter(|spans| spans.mode == "enabled").map(|spans| SpanOptions {
            threshold: spans.threshold.unwrap_or(SPAN_THRESHOLD),
            max: spans.max_spans.unwrap_or(usize::MAX),
        });
        let returned = if self.return_documents.unwrap_or(returns_documents) {
            Returned::Documents(self.documents)
        } else {
            Returned::Nothing
        };
        // 0 is how some clients ask for all.
        let top_n = self.top_n.filter(|&n| n > 0);
        Ok(RerankRequest { top_n, spans, returned, threshold: self.threshold, ..request })
    }
}

impl TeiRerankBody {
    /// The request.
    ///
    /// # Errors
    /// Fails if there are no texts.
    pub fn into_domain(self, _: &BodyLimits) -> Result<RerankRequest, ApiError> {
        let request = RerankRequest::new(self.query, self.texts, RerankDialect::Tei)?;
        let returned = if self.return_text { Returned::Texts } else { Returned::Nothing };
        Ok(RerankRequest { raw_scores: self.raw_scores, returned, ..request })
    }
}

/// Texts as chunks, with their indexes as ids.
fn chunks(texts: Vec<String>) -> Vec<Arc<Chunk>> {
    let chunk = |(index, text): (usize, String)| Arc::new(Chunk::new(index.to_string(), text));
    texts.into_iter().enumerate().map(chunk).collect()
}

/// A document as it was sent; a string as the `text` of an object.
fn as_object(document: &RawValue) -> Box<RawValue> {
    if document.get().starts_with('"') {
        RawValue::from_string(format!("{{\"text\":{}}}", document.get())).expect("a string is JSON")
    } else {
        document.to_owned()
    }
}

impl RerankRequest {
    /// The request for all results of these texts, without their documents.
    fn new(query: String, texts: Vec<String>, dialect: RerankDialect) -> Result<Self, ApiError> {
        if texts.is_empty() {
            let field = dialect.field();
            let message = format!("{field} is empty: send at least one");
            return Err(ApiError::with_param(ErrorCode::FieldEmpty, message, field));
        }
        let (chunks, returned) = (chunks(texts), Returned::Nothing);
        Ok(Self {
            query,
            chunks,
            dialect,
            returned,
            top_n: None,
            spans: None,
            raw_scores: false,
            threshold: None,
        })
    }

    /// Sentences if the request asks for relevant spans, else whole documents.
    pub fn granularity(&self) -> Granularity {
        if self.spans.is_some() { Granularity::Sentence } else { Granularity::Chunk }
    }

    /// The answer, best first. `id` is the id of the answer, `model` the name of the model.
    pub fn answer(&self, ranked: &Ranked, id: String, model: &str) -> RerankAnswer {
        let mut order: Vec<usize> = (0..self.chunks.len()).collect();
        order.sort_by(|&a, &b| ranked.chunks[b].total_cmp(&ranked.chunks[a]));
        // A number that compares within the request only says nothing about a threshold for all requests.
        if let (Some(least), Some(relevances)) = (self.threshold, &ranked.chunk_relevances) {
            order.retain(|&index| f64::from(relevances[index]) >= least);
        }
        order.truncate(self.top_n.unwrap_or(usize::MAX));
        let score = |index: usize| {
            if self.raw_scores { f64::from(ranked.chunks[index]) } else { relevance(ranked, index) }
        };
        let document = |index: usize| match &self.returned {
            Returned::Documents(documents) => Some(as_object(&documents[index])),
            Returned::Texts | Returned::Nothing => None,
        };
        let text = |index: usize| match &self.returned {
            Returned::Texts => Some(self.chunks[index].text.clone()),
            Returned::Documents(_) | Returned::Nothing => None,
        };
        let spans = |index: usize| self.spans.map(|options| self.spans_of(index, ranked, options));
        let version = match self.dialect {
            RerankDialect::Tei => {
                let result = |index: usize| TeiResult { index, score: score(index), text: text(index) };
                return RerankAnswer::Tei(order.into_iter().map(result).collect());
            }
            RerankDialect::V1 => "1",
            RerankDialect::V2 => "2",
        };
        let result = |index: usize| RerankResult {
            index,
            relevance_score: score(index),
            document: document(index),
            relevant_spans: spans(index),
        };
        RerankAnswer::Common(Reranked {
            id,
            model: model.to_owned(),
            results: order.into_iter().map(result).collect(),
            usage: RerankUsage::new(ranked.tokens),
            // Thresher bills nothing.
            meta: RerankMeta {
                api_version: ApiVersion { version, is_experimental: false },
                billed_units: BilledUnits { search_units: 0 },
            },
        })
    }

    /// The relevant sentences of a document, best first.
    fn spans_of(&self, document: usize, ranked: &Ranked, options: SpanOptions) -> Vec<SpanAnswer> {
        let map = OffsetMap::new(&self.chunks[document].text, OffsetUnit::Codepoint);
        // `sentences` is in the order of the chunks.
        let from = ranked.sentences.partition_point(|sentence| sentence.chunk < document);
        let of_document = ranked.sentences[from..].iter().take_while(|sentence| sentence.chunk == document);
        let mut spans: Vec<SpanAnswer> = of_document
            .map(|sentence| {
                let range = map.from_bytes(sentence.bytes);
                SpanAnswer { start: range.start, end: range.end, score: share_of_one(ranked, sentence.rc) }
            })
            .filter(|span| span.score > options.threshold)
            .collect();
        spans.sort_by(|a, b| b.score.total_cmp(&a.score));
        spans.truncate(options.max);
        spans
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum RerankAnswer {
    /// In the format of Cohere and Jina.
    Common(Reranked),
    Tei(Vec<TeiResult>),
}

/// The documents, best first.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Reranked {
    /// The id of this answer.
    id: String,
    /// The name of the model.
    model: String,
    /// The results, best first.
    results: Vec<RerankResult>,
    usage: RerankUsage,
    meta: RerankMeta,
}

/// The rank of a document.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct RerankResult {
    /// The index of the document in the request.
    index: usize,
    /// The probability that the document contains something that the question asks (docs/verdicts.md). Results are in the order of RC, which
    /// also looks at the other documents, so a result can have a higher number than the one before it.
    relevance_score: f64,
    /// The document, as it was sent; a string as the `text` of an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    document: Option<Box<RawValue>>,
    /// The relevant sentences of the document, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevant_spans: Option<Vec<SpanAnswer>>,
}

/// The rank of a text.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TeiResult {
    /// The index of the document in the request.
    index: usize,
    /// The relevance, from 0 to 1, or the RC itself.
    score: f64,
    /// The text, as it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// The model's tokens of the question and the documents.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct RerankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Fields that Cohere's clients expect.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct RerankMeta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct ApiVersion {
    version: &'static str,
    is_experimental: bool,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct BilledUnits {
    search_units: usize,
}

impl RerankUsage {
    fn new(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// A relevant sentence of a document. Offsets are code points.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "RelevantSpan")]
struct SpanAnswer {
    start: usize,
    end: usize,
    score: f64,
}
