//! Requests and answers of `rerank` in the formats of Cohere (v1 and v2), Jina, Voyage, vLLM and Text Embeddings Inference. Fields that have no
//! meaning here, such as a model's name or a place to truncate at, are ignored; nothing is truncated.

mod documents;

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use thresher_core::domain::{Chunk, Granularity};
use thresher_core::pipeline::Ranked;
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use self::documents::DocumentReader;
use super::fields;
use super::limits::{Body, BodyLimits, ListLimit};
use super::request::or_default;
use super::schema::require_one;
use crate::error::{ApiError, ErrorCode};

/// The RC at which a relevance is one half.
const RC_AT_HALF: f32 = 0.1;

/// The default threshold of relevant spans, which is Cohere's.
const SPAN_THRESHOLD: f64 = 0.1;

/// A score of `ranked` as a number from 0 to 1 with the same order: a probability as it is, and RC as `rc / (rc + 0.1)`.
pub(super) fn relevance(ranked: &Ranked, score: f32) -> f64 {
    f64::from(if ranked.are_probabilities { score } else { score / (score + RC_AT_HALF) })
}

/// Body of `rerank`. Clients of Text Embeddings Inference call the documents `texts`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(transform = documents_or_texts)]
pub struct RerankBody {
    /// The question; not blank.
    query: String,
    /// The documents to rank: strings, or objects with a field `text`.
    #[serde(default)]
    #[schemars(with = "Option<Vec<DocumentBody>>", length(min = 1))]
    documents: Option<Vec<Box<RawValue>>>,
    /// The texts to rank; the answer is then in the format of Text Embeddings Inference.
    #[serde(default)]
    #[schemars(length(min = 1))]
    texts: Option<Vec<String>>,
    /// The most results; 0 or null: all.
    #[serde(default)]
    top_n: Option<usize>,
    /// The most results, as Voyage calls it; 0 or null: all. A body of `/v1/rerank` with this field or with `truncation` is answered in Voyage's
    /// format, even if their values are null.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Option<usize>")]
    top_k: Option<Option<usize>>,
    /// Accepted from clients of Voyage; nothing is truncated.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Option<bool>")]
    truncation: Option<Option<bool>>,
    /// The fields of object documents that are read instead of `text`; each once.
    #[serde(default)]
    #[schemars(length(max = 64), extend("uniqueItems" = true))]
    rank_fields: Option<Vec<String>>,
    /// Whether each result has its document. Default: true for `/v1/rerank`, false for `/v2/rerank` and in Voyage's format.
    #[serde(default)]
    return_documents: Option<bool>,
    /// Whether results name the relevant sentences of their documents.
    #[serde(default)]
    relevant_spans: Option<SpansBody>,
    /// With `texts`: whether scores are the RC itself instead of a number from 0 to 1.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    raw_scores: bool,
    /// With `texts`: whether each result has its text.
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

fn documents_or_texts(schema: &mut Schema) {
    require_one(schema, &["documents", "texts"]);
    // Without `rank_fields`, an object has to have a text.
    let texts = json!({"properties": {"documents": {"items": {"if": {"type": "object"}, "then": {
        "required": ["text"], "properties": {"text": {"type": "string"}},
    }}}}});
    if let Some(then) = schema.get_mut("then").and_then(Value::as_object_mut) {
        then.insert("if".to_owned(), json!({"properties": {"rank_fields": {"type": "null"}}}));
        then.insert("then".to_owned(), texts);
    }
}

/// Reads a field for which null differs from missing.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Whether a body is that of a client of Text Embeddings Inference: it has `texts`, and no `documents`. False if it is not a JSON object.
pub fn sends_texts(body: &[u8]) -> bool {
    let Ok(body) = std::str::from_utf8(body) else { return false };
    let found = fields::pick_named(body.trim_start(), ["texts", "documents"]);
    matches!(found, Ok([Some(_), None]))
}

/// The format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerankDialect {
    /// That of Cohere's `/v1/rerank`, which Jina and vLLM share.
    V1,
    /// That of Cohere's `/v2/rerank`.
    V2,
    /// That of Voyage's `/v1/rerank`.
    Voyage,
    /// That of Text Embeddings Inference.
    Tei,
}

/// The documents to rank, and the options of the answer.
#[derive(Debug, Clone)]
pub struct RerankRequest {
    /// The question.
    pub query: String,
    /// One chunk for each document, in the order of the request.
    pub chunks: Vec<Arc<Chunk>>,
    /// The format of the answer.
    pub dialect: RerankDialect,
    /// What each result repeats of its document.
    returned: Returned,
    top_n: usize,
    spans: Option<SpanOptions>,
    raw_scores: bool,
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
        vec![limits.chunks("documents"), limits.chunks("texts"), limits.rank_fields()]
    }
}

impl RerankBody {
    /// Checks the request and reads the texts of the documents. `path_dialect` is the format that the path has for `documents`.
    ///
    /// # Errors
    /// Fails if there are no documents, if one has no text or too much, and if `rank_fields` is empty or names a field twice.
    pub fn into_domain(
        self,
        path_dialect: RerankDialect,
        limits: &BodyLimits,
    ) -> Result<RerankRequest, ApiError> {
        let (dialect, field, texts, documents) = match (self.documents, self.texts) {
            (Some(documents), None) => {
                let reader = DocumentReader::new(self.rank_fields.as_deref(), limits.chunk_bytes_max)?;
                let texts =
                    documents.iter().enumerate().map(|(index, document)| reader.text(index, document));
                let is_voyage = self.top_k.is_some() || self.truncation.is_some();
                let dialect = match path_dialect {
                    RerankDialect::V1 if is_voyage => RerankDialect::Voyage,
                    dialect => dialect,
                };
                (dialect, "documents", texts.collect::<Result<Vec<String>, _>>()?, documents)
            }
            (None, Some(texts)) => (RerankDialect::Tei, "texts", texts, Vec::new()),
            (Some(_), Some(_)) => {
                let message = "send `documents` or, as to Text Embeddings Inference, `texts`, not both";
                return Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "texts"));
            }
            (None, None) => {
                // Only clients of Text Embeddings Inference send these two.
                let field = if self.raw_scores || self.return_text { "texts" } else { "documents" };
                let message =
                    "missing field `documents` (clients of Text Embeddings Inference: missing field `texts`)";
                return Err(ApiError::with_param(ErrorCode::MissingField, message, field));
            }
        };
        if texts.is_empty() {
            return Err(ApiError::with_param(
                ErrorCode::FieldEmpty,
                format!("{field} is empty: send at least one"),
                field,
            ));
        }
        let top_k = self.top_k.flatten().filter(|_| dialect == RerankDialect::Voyage);
        let top_n = match (self.top_n, top_k) {
            (Some(_), Some(_)) => {
                let message = "top_k and top_n are two names of one field: send one of them";
                return Err(ApiError::with_param(ErrorCode::DuplicateField, message, "top_k"));
            }
            (top_n, top_k) => top_n.or(top_k),
        };
        let returned = match dialect {
            RerankDialect::Tei if self.return_text => Returned::Texts,
            RerankDialect::V1 if self.return_documents.unwrap_or(true) => Returned::Documents(documents),
            RerankDialect::V2 if self.return_documents.unwrap_or(false) => Returned::Documents(documents),
            RerankDialect::Voyage if self.return_documents.unwrap_or(false) => Returned::Texts,
            RerankDialect::Tei | RerankDialect::V1 | RerankDialect::V2 | RerankDialect::Voyage => {
                Returned::Nothing
            }
        };
        let spans = match self.relevant_spans {
            Some(spans) if spans.mode == "enabled" => Some(SpanOptions {
                threshold: spans.threshold.unwrap_or(SPAN_THRESHOLD),
                max: spans.max_spans.unwrap_or(usize::MAX),
            }),
            _ => None,
        };
        Ok(RerankRequest {
            query: self.query,
            chunks: chunks(texts),
            dialect,
            returned,
            // 0 is vLLM's way to ask for all.
            top_n: top_n.filter(|&n| n > 0).unwrap_or(usize::MAX),
            spans,
            raw_scores: self.raw_scores,
        })
    }
}

/// Texts as chunks, with their indexes as ids.
pub(super) fn chunks(texts: Vec<String>) -> Vec<Arc<Chunk>> {
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
    /// Sentences if the request asks for relevant spans, else whole documents.
    pub fn granularity(&self) -> Granularity {
        if self.spans.is_some() { Granularity::Sentence } else { Granularity::Chunk }
    }

    /// The most results; none if the request asks for all.
    pub fn result_count_max(&self) -> Option<usize> {
        Some(self.top_n).filter(|&top_n| top_n < usize::MAX)
    }

    /// The answer, best first. `id` is the id of the answer, `model` the name of the model.
    pub fn answer(&self, ranked: &Ranked, id: String, model: &str) -> RerankAnswer {
        let mut order: Vec<usize> = (0..self.chunks.len()).collect();
        order.sort_by(|&a, &b| ranked.chunks[b].total_cmp(&ranked.chunks[a]));
        order.truncate(self.top_n);
        let score = |rc: f32| if self.raw_scores { f64::from(rc) } else { relevance(ranked, rc) };
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
                let result = |index: usize| TeiResult {
                    index,
                    score: score(ranked.chunks[index]),
                    text: text(index),
                    relevant_spans: spans(index),
                };
                return RerankAnswer::Tei(order.into_iter().map(result).collect());
            }
            RerankDialect::Voyage => {
                let result = |index: usize| VoyageResult {
                    index,
                    relevance_score: score(ranked.chunks[index]),
                    document: text(index),
                    relevant_spans: spans(index),
                };
                return RerankAnswer::Voyage(VoyageRanking {
                    object: "list",
                    data: order.into_iter().map(result).collect(),
                    model: model.to_owned(),
                    usage: RerankUsage::new(ranked.tokens),
                });
            }
            RerankDialect::V1 => "1",
            RerankDialect::V2 => "2",
        };
        let result = |index: usize| RerankResult {
            index,
            relevance_score: score(ranked.chunks[index]),
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
                SpanAnswer { start: range.start, end: range.end, score: relevance(ranked, sentence.rc) }
            })
            .filter(|span| span.score > options.threshold)
            .collect();
        spans.sort_by(|a, b| b.score.total_cmp(&a.score));
        spans.truncate(options.max);
        spans
    }
}

/// Answer of `rerank`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RerankAnswer {
    /// In the format of Cohere, Jina and vLLM.
    Common(Reranked),
    /// In the format of Voyage.
    Voyage(VoyageRanking),
    /// In the format of Text Embeddings Inference.
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
    /// The score, from 0 to 1; compares within a request only.
    relevance_score: f64,
    /// The document, as it was sent; a string as the `text` of an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    document: Option<Box<RawValue>>,
    /// The relevant sentences of the document, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevant_spans: Option<Vec<SpanAnswer>>,
}

/// The documents, best first, as Voyage writes them.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct VoyageRanking {
    object: &'static str,
    /// The results, best first.
    data: Vec<VoyageResult>,
    /// The name of the model.
    model: String,
    usage: RerankUsage,
}

/// The rank of a document, as Voyage writes it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct VoyageResult {
    /// The index of the document in the request.
    index: usize,
    /// The score, from 0 to 1; compares within a request only.
    relevance_score: f64,
    /// The text of the document that was ranked.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<String>,
    /// The relevant sentences of the document, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevant_spans: Option<Vec<SpanAnswer>>,
}

/// The rank of a text.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TeiResult {
    /// The index of the document in the request.
    index: usize,
    /// The score, from 0 to 1, or the RC itself.
    score: f64,
    /// The text, as it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The relevant sentences of the document, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevant_spans: Option<Vec<SpanAnswer>>,
}

/// The model's tokens of the question and the documents.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(super) struct RerankUsage {
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
    pub(super) fn new(tokens: usize) -> Self {
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
