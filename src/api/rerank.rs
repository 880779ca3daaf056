//! Reranking in the words of others: Cohere's v1 and v2, Jina's and vLLM's `rerank`, vLLM's `score`, and that of Text Embeddings
//! Inference. Their clients send fields that say nothing here (a model's name, where to truncate): these are let pass, and nothing is
//! truncated.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use thresher_core::domain::{Chunk, Granularity};
use thresher_core::pipeline::Ranked;
use thresher_core::plain::{self, Quoted, Shortened};
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::fields;
use super::limits::{Body, BodyLimits, ListLimit};
use super::request::{one_of, or_default, without_position};
use crate::error::{ApiError, ErrorCode};

/// The RC at which a relevance is one half.
const RC_AT_HALF: f32 = 0.1;

/// Spans below this are not told, unless a request says otherwise: Cohere's default.
const SPAN_THRESHOLD: f64 = 0.1;

/// Names in `rank_fields` that an error message repeats.
const FIELDS_QUOTED_MAX: usize = 3;

/// RC as a number from 0 to 1 that ranks the same: `rc / (rc + 0.1)`.
fn relevance(rc: f32) -> f64 {
    f64::from(rc / (rc + RC_AT_HALF))
}

/// Body of every `rerank`: documents have these names in one dialect, those in another.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(transform = documents_or_texts)]
pub struct RerankBody {
    /// The question; not blank.
    query: String,
    /// Texts, or objects with a field `text`.
    #[serde(default)]
    #[schemars(with = "Option<Vec<DocumentBody>>", length(min = 1))]
    documents: Option<Vec<Box<RawValue>>>,
    /// The same as Text Embeddings Inference has it: the answer is then in its words.
    #[serde(default)]
    #[schemars(length(min = 1))]
    texts: Option<Vec<String>>,
    /// Results; 0 or none: all.
    #[serde(default)]
    top_n: Option<usize>,
    /// Fields of documents that are objects, which are read instead of `text`; each once.
    #[serde(default)]
    #[schemars(length(max = 64), extend("uniqueItems" = true))]
    rank_fields: Option<Vec<String>>,
    /// Whether each result tells its document; `/v1/rerank` does unless it is false, `/v2/rerank` if it is true.
    #[serde(default)]
    return_documents: Option<bool>,
    /// Whether sentences are told, too.
    #[serde(default)]
    relevant_spans: Option<SpansBody>,
    /// With `texts`: RC itself instead of a number from 0 to 1.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    raw_scores: bool,
    /// With `texts`: whether each result tells its text.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    return_text: bool,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "RelevantSpansOptions")]
/// Which sentences of a document are told.
struct SpansBody {
    /// `enabled`; at any other word none are.
    mode: String,
    /// Sentences below this are not told; 0.1 without it.
    #[serde(default)]
    threshold: Option<f64>,
    /// The most that are told of one document.
    #[serde(default)]
    max_spans: Option<usize>,
}

/// What of it is read is decided by `rank_fields`.
#[derive(JsonSchema)]
#[schemars(rename = "Document", untagged)]
#[allow(dead_code, reason = "says what it looks like")]
enum DocumentBody {
    /// Its text.
    Text(String),
    /// Its fields.
    Fields(Map<String, Value>),
}

fn documents_or_texts(schema: &mut Schema) {
    schema.insert("oneOf".to_owned(), one_of(&["documents", "texts"]));
    // Which fields are read of objects is for the request to say.
    let texts = json!({"properties": {"documents": {"items": {"if": {"type": "object"}, "then": {
        "required": ["text"], "properties": {"text": {"type": "string"}},
    }}}}});
    schema.insert("if".to_owned(), json!({"properties": {"rank_fields": {"type": "null"}}}));
    schema.insert("then".to_owned(), texts);
}

/// Who is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerankDialect {
    /// Cohere's `/v1/rerank`, which Jina and vLLM share.
    V1,
    /// Cohere's `/v2/rerank`.
    V2,
    /// Text Embeddings Inference.
    Tei,
}

/// What is ranked, and what is told of it.
#[derive(Debug, Clone)]
pub struct RerankRequest {
    /// The question.
    pub query: String,
    /// One per document, in the caller's order.
    pub chunks: Vec<Arc<Chunk>>,
    /// In whose words the answer is.
    pub dialect: RerankDialect,
    /// What an answer tells of each document.
    told: Told,
    top_n: usize,
    spans: Option<SpansAsked>,
    raw_scores: bool,
}

/// What an answer tells of each document.
#[derive(Debug, Clone)]
enum Told {
    /// Nothing but its place and score.
    Nothing,
    /// The text that was ranked.
    Texts,
    /// The document as it came.
    Documents(Vec<Box<RawValue>>),
}

#[derive(Debug, Clone, Copy)]
struct SpansAsked {
    threshold: f64,
    max: usize,
}

impl Body for RerankBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("documents"), limits.chunks("texts"), limits.rank_fields()]
    }
}

impl RerankBody {
    /// What to rank, for the path that was asked.
    ///
    /// # Errors
    /// When there are no documents, or one that has no text, two or too much of it; when a rank field is named twice, or none is for
    /// documents that are objects.
    pub fn into_domain(self, asked: RerankDialect, limits: &BodyLimits) -> Result<RerankRequest, ApiError> {
        let (dialect, field, texts, documents) = match (self.documents, self.texts) {
            (Some(documents), None) => {
                let reader = DocumentReader::new(self.rank_fields.as_deref(), limits.chunk_bytes_max)?;
                let texts = documents.iter().enumerate().map(|(at, document)| reader.text(at, document));
                (asked, "documents", texts.collect::<Result<Vec<String>, _>>()?, documents)
            }
            (None, Some(texts)) => (RerankDialect::Tei, "texts", texts, Vec::new()),
            (Some(_), Some(_)) => {
                let message = "send `documents` or, as to Text Embeddings Inference, `texts`, not both";
                return Err(ApiError::with_param(ErrorCode::DocumentsAmbiguous, message, "texts"));
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
                ErrorCode::ChunksEmpty,
                format!("{field} is empty: send at least one"),
                field,
            ));
        }
        let told = match dialect {
            RerankDialect::Tei if self.return_text => Told::Texts,
            RerankDialect::V1 if self.return_documents.unwrap_or(true) => Told::Documents(documents),
            RerankDialect::V2 if self.return_documents.unwrap_or(false) => Told::Documents(documents),
            RerankDialect::Tei | RerankDialect::V1 | RerankDialect::V2 => Told::Nothing,
        };
        let spans = match self.relevant_spans {
            Some(spans) if spans.mode == "enabled" => Some(SpansAsked {
                threshold: spans.threshold.unwrap_or(SPAN_THRESHOLD),
                max: spans.max_spans.unwrap_or(usize::MAX),
            }),
            _ => None,
        };
        Ok(RerankRequest {
            query: self.query,
            chunks: chunks(texts),
            dialect,
            told,
            // vLLM says 0 for all.
            top_n: self.top_n.filter(|&n| n > 0).unwrap_or(usize::MAX),
            spans,
            raw_scores: self.raw_scores,
        })
    }
}

/// Texts as chunks, called by their places.
fn chunks(texts: Vec<String>) -> Vec<Arc<Chunk>> {
    let chunk = |(index, text): (usize, String)| {
        Arc::new(Chunk { id: index.to_string(), title: None, text, metadata: None })
    };
    texts.into_iter().enumerate().map(chunk).collect()
}

/// Reads the text that is ranked out of documents, without building the rest of them.
struct DocumentReader<'a> {
    /// The names in `rank_fields`; none where the field `text` is read.
    fields: Option<&'a [String]>,
    /// Where each of them stands in `fields`.
    places: HashMap<&'a str, usize>,
    bytes_max: usize,
}

impl<'a> DocumentReader<'a> {
    fn new(fields: Option<&'a [String]>, bytes_max: usize) -> Result<Self, ApiError> {
        let mut places = HashMap::new();
        for (second, field) in fields.unwrap_or_default().iter().enumerate() {
            if let Some(first) = places.insert(&**field, second) {
                let message = format!(
                    "rank_fields[{first}] and rank_fields[{second}] both name {}: name each field once",
                    Quoted(field)
                );
                let param = format!("rank_fields[{second}]");
                return Err(ApiError::with_param(ErrorCode::RankFieldDuplicate, message, param));
            }
        }
        if fields.is_none() {
            places.insert("text", 0);
        }
        Ok(Self { fields, places, bytes_max })
    }

    /// The text of a document that is a string; of one that is an object the fields that are asked for, one a line.
    fn text(&self, at: usize, document: &RawValue) -> Result<String, ApiError> {
        let place = || format!("documents[{at}]");
        let unreadable = |error: serde_json::Error| {
            // Lines and columns would be those of a part of the document.
            let said = plain::message(&error.to_string());
            let message = format!("{}: {}", place(), without_position(&said));
            ApiError::with_param(ErrorCode::InvalidJson, message, place())
        };
        // Fields are distinct and borrowed where they have no escapes: together they are no longer than the document.
        let texts: Vec<Cow<str>> = if document.get().starts_with('{') {
            let (seen, twice) = (vec![Cell::new(false); self.places.len()], Cell::new(None));
            let found = fields::pick(document.get(), self.places.len(), |key| {
                let place = self.places.get(key).copied()?;
                if seen[place].replace(true) {
                    twice.set(Some(place));
                }
                Some(place)
            });
            let found = found.map_err(unreadable)?;
            if let Some(twice) = twice.get() {
                let name = self.name(twice);
                let message = format!("{} has the field {} twice", place(), Quoted(name));
                let param = format!("{}.{}", place(), Shortened(name));
                return Err(ApiError::with_param(ErrorCode::DuplicateField, message, param));
            }
            let mut texts = Vec::new();
            for value in found.into_iter().flatten() {
                let Some(text) = self.said(value) else {
                    let message = format!("{}.text has to be a string", place());
                    return Err(ApiError::with_param(
                        ErrorCode::WrongType,
                        message,
                        format!("{}.text", place()),
                    ));
                };
                texts.push(text.map_err(unreadable)?);
            }
            texts
        } else if let Some(text) = fields::text(document) {
            vec![text.map_err(unreadable)?]
        } else {
            let message = format!("{} is neither a string nor an object with a field `text`", place());
            return Err(ApiError::with_param(ErrorCode::WrongType, message, place()));
        };
        if texts.is_empty() && self.fields.is_some_and(<[String]>::is_empty) {
            let message = format!(
                "rank_fields names no field, and {} is an object: name the fields to rank by, or leave rank_fields out",
                place()
            );
            return Err(ApiError::with_param(ErrorCode::RankFieldsEmpty, message, "rank_fields"));
        }
        if texts.is_empty() {
            let message = format!("{} has no field {} to rank by", place(), self.wanted());
            return Err(ApiError::with_param(ErrorCode::MissingField, message, place()));
        }
        let bytes = texts.iter().map(|text| text.len()).sum::<usize>() + texts.len() - 1;
        let max = self.bytes_max;
        if bytes > max {
            let what = if self.fields.is_some() { "in its rank_fields together" } else { "of text" };
            let message =
                format!("{} has {bytes} bytes {what}; the limit is {max} (limits.chunk_bytes_max)", place());
            return Err(ApiError::with_param(ErrorCode::ChunkTooLong, message, place()));
        }
        Ok(texts.join("\n"))
    }

    /// What a field says. One that is asked for by its name is ranked as it is written, whatever it is; `text` has to be a string.
    fn said<'b>(&self, value: &'b RawValue) -> Option<serde_json::Result<Cow<'b, str>>> {
        fields::text(value).or_else(|| self.fields.map(|_| Ok(Cow::Borrowed(value.get()))))
    }

    /// The name of the field with this place.
    fn name(&self, place: usize) -> &str {
        self.fields.map_or("text", |fields| &*fields[place])
    }

    /// The fields that one of is missing, for a message.
    fn wanted(&self) -> String {
        let Some(fields) = self.fields else { return "`text`".to_owned() };
        let first: Vec<String> =
            fields.iter().take(FIELDS_QUOTED_MAX).map(|field| Quoted(field).to_string()).collect();
        let more = fields.len().saturating_sub(FIELDS_QUOTED_MAX);
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("that rank_fields names ({}{and})", first.join(", "))
    }
}

/// A document as it came, a bare text as its `text`.
fn as_object(document: &RawValue) -> Box<RawValue> {
    match document.get().starts_with('"') {
        true => RawValue::from_string(format!("{{\"text\":{}}}", document.get())).expect("a string is JSON"),
        false => document.to_owned(),
    }
}

impl RerankRequest {
    /// Whether sentences are asked about, beside documents.
    pub fn granularity(&self) -> Granularity {
        if self.spans.is_some() { Granularity::Sentence } else { Granularity::Chunk }
    }

    /// The answer, best first. `id` is its own, `model` who ranked.
    pub fn answer(&self, ranked: &Ranked, id: String, model: &str) -> RerankAnswer {
        let mut order: Vec<usize> = (0..self.chunks.len()).collect();
        order.sort_by(|&a, &b| ranked.chunks[b].total_cmp(&ranked.chunks[a]));
        order.truncate(self.top_n);
        let score = |rc: f32| if self.raw_scores { f64::from(rc) } else { relevance(rc) };
        let document = |index: usize| match &self.told {
            Told::Documents(documents) => Some(as_object(&documents[index])),
            Told::Texts | Told::Nothing => None,
        };
        let text = |index: usize| match &self.told {
            Told::Texts => Some(self.chunks[index].text.clone()),
            Told::Documents(_) | Told::Nothing => None,
        };
        let spans = |index: usize| self.spans.map(|asked| self.spans_of(index, ranked, asked));
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
            RerankDialect::V1 => "1",
            RerankDialect::V2 => "2",
        };
        let result = |index: usize| RerankResult {
            index,
            relevance_score: score(ranked.chunks[index]),
            document: document(index),
            relevant_spans: spans(index),
        };
        RerankAnswer::Usual(Reranked {
            id,
            model: model.to_owned(),
            results: order.into_iter().map(result).collect(),
            usage: RerankUsage::new(ranked.tokens),
            // Nothing is billed.
            meta: RerankMeta {
                api_version: ApiVersion { version, is_experimental: false },
                billed_units: BilledUnits { search_units: 0 },
            },
        })
    }

    /// Sentences of a document, best first.
    fn spans_of(&self, document: usize, ranked: &Ranked, asked: SpansAsked) -> Vec<SpanAnswer> {
        let map = OffsetMap::new(&self.chunks[document].text, OffsetUnit::Codepoint);
        // They stand in the order of the chunks.
        let from = ranked.sentences.partition_point(|sentence| sentence.chunk < document);
        let of_document = ranked.sentences[from..].iter().take_while(|sentence| sentence.chunk == document);
        let mut spans: Vec<SpanAnswer> = of_document
            .map(|sentence| {
                let range = map.from_bytes(sentence.bytes);
                SpanAnswer { start: range.start, end: range.end, score: relevance(sentence.rc) }
            })
            .filter(|span| span.score > asked.threshold)
            .collect();
        spans.sort_by(|a, b| b.score.total_cmp(&a.score));
        spans.truncate(asked.max);
        spans
    }
}

/// Answer of every `rerank`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RerankAnswer {
    /// As Cohere, Jina and vLLM have it.
    Usual(Reranked),
    /// As Text Embeddings Inference has it.
    Tei(Vec<TeiResult>),
}

/// Documents, best first.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Reranked {
    /// Of this answer.
    id: String,
    /// Who ranked.
    model: String,
    /// Best first.
    results: Vec<RerankResult>,
    usage: RerankUsage,
    meta: RerankMeta,
}

/// A document that was ranked.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct RerankResult {
    /// Its place in the request.
    index: usize,
    /// From 0 to 1; compares within a request.
    relevance_score: f64,
    /// As it came; a bare text as its `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    document: Option<Box<RawValue>>,
    /// Its sentences, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevant_spans: Option<Vec<SpanAnswer>>,
}

/// A text that was ranked.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct TeiResult {
    /// Its place in the request.
    index: usize,
    /// From 0 to 1, or RC itself.
    score: f64,
    /// As it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Its sentences, best first.
    #[serde(skip_serializing_if = "Option::is_none")]
    relevant_spans: Option<Vec<SpanAnswer>>,
}

/// The model's tokens of question and documents.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct RerankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// What Cohere's clients look for.
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

/// A sentence of a document, in code points.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "RelevantSpan")]
struct SpanAnswer {
    start: usize,
    end: usize,
    score: f64,
}

/// Body of vLLM's `score`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ScoreBody {
    /// The question; or as many as there are texts.
    text_1: OneOrMany,
    /// The texts.
    text_2: OneOrMany,
}

#[derive(Debug, Clone, JsonSchema)]
#[schemars(rename = "Texts", untagged)]
/// A text, or several.
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(OneOrManyVisitor)
    }
}

struct OneOrManyVisitor;

impl<'de> Visitor<'de> for OneOrManyVisitor {
    type Value = OneOrMany;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
        Ok(OneOrMany::One(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<OneOrMany, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(texts)).map(OneOrMany::Many)
    }
}

/// A question and the texts that are scored for it: they are each other's rivals.
pub type Scored = (String, Vec<Arc<Chunk>>);

impl Body for ScoreBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("text_1"), limits.chunks("text_2")]
    }
}

impl ScoreBody {
    /// What to score: one question with all texts, or each text with its own.
    ///
    /// # Errors
    /// When both are lists, of different lengths; when there is nothing to score.
    pub fn into_domain(self) -> Result<Vec<Scored>, ApiError> {
        let texts = match self.text_2 {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) if texts.is_empty() => {
                return Err(ApiError::with_param(
                    ErrorCode::ChunksEmpty,
                    "text_2 is empty: send at least one",
                    "text_2",
                ));
            }
            OneOrMany::Many(texts) => texts,
        };
        match self.text_1 {
            OneOrMany::One(query) => Ok(vec![(query, chunks(texts))]),
            OneOrMany::Many(mut queries) if queries.len() == 1 => {
                Ok(vec![(queries.remove(0), chunks(texts))])
            }
            OneOrMany::Many(queries) if queries.len() == texts.len() => {
                let pair = |(query, text)| (query, chunks(vec![text]));
                Ok(queries.into_iter().zip(texts).map(pair).collect())
            }
            OneOrMany::Many(queries) => {
                let (one, other) = (queries.len(), texts.len());
                let message = format!(
                    "text_1 has {one} texts and text_2 has {other}: send one text_1, or as many as text_2"
                );
                Err(ApiError::with_param(ErrorCode::LengthMismatch, message, "text_1"))
            }
        }
    }
}

/// vLLM's answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ScoreAnswer {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// Who scored.
    model: String,
    /// In the order of the request.
    data: Vec<ScoreResult>,
    usage: RerankUsage,
}

/// The score of one text.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct ScoreResult {
    index: usize,
    object: &'static str,
    /// From 0 to 1; compares within a request.
    score: f64,
}

impl ScoreAnswer {
    /// Puts scores into words; `created` are seconds since 1970.
    pub fn new(ranked: &[Ranked], id: String, model: &str, created: u64) -> Self {
        let scores = ranked.iter().flat_map(|ranked| &ranked.chunks).enumerate();
        let result =
            |(index, &rc): (usize, &f32)| ScoreResult { index, object: "score", score: relevance(rc) };
        let usage = RerankUsage::new(ranked.iter().map(|ranked| ranked.tokens).sum());
        let (object, model) = ("list", model.to_owned());
        Self { id, object, created, model, data: scores.map(result).collect(), usage }
    }
}
