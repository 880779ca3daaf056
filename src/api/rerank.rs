//! Reranking in the words of others: Cohere's v1 and v2, Jina's and vLLM's `rerank`, vLLM's `score`, and that of Text Embeddings
//! Inference. Their clients send fields that say nothing here (a model's name, where to truncate): these are let pass, and nothing is
//! truncated.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::request::{RequestError, or_default};
use crate::domain::{Chunk, Granularity};
use crate::pipeline::Ranked;
use crate::text::offsets::{OffsetMap, OffsetUnit};

/// The RC at which a relevance is one half.
const RC_AT_HALF: f32 = 0.1;

/// Spans below this are not told, unless a request says otherwise: Cohere's default.
const SPAN_THRESHOLD: f64 = 0.1;

/// RC as a number from 0 to 1 that ranks the same: `rc / (rc + 0.1)`.
fn relevance(rc: f32) -> f64 {
    f64::from(rc / (rc + RC_AT_HALF))
}

/// Body of every `rerank`: documents have these names in one dialect, those in another.
#[derive(Debug, Clone, Deserialize)]
pub struct RerankBody {
    query: String,
    #[serde(default)]
    documents: Option<Vec<Value>>,
    #[serde(default)]
    texts: Option<Vec<String>>,
    #[serde(default)]
    top_n: Option<usize>,
    #[serde(default)]
    rank_fields: Option<Vec<String>>,
    #[serde(default)]
    return_documents: Option<bool>,
    #[serde(default)]
    relevant_spans: Option<SpansBody>,
    #[serde(default, deserialize_with = "or_default")]
    raw_scores: bool,
    #[serde(default, deserialize_with = "or_default")]
    return_text: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct SpansBody {
    mode: String,
    #[serde(default)]
    threshold: Option<f64>,
    #[serde(default)]
    max_spans: Option<usize>,
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
    /// How the documents came, where they are told again.
    documents: Option<Vec<Value>>,
    top_n: usize,
    spans: Option<SpansAsked>,
    raw_scores: bool,
}

#[derive(Debug, Clone, Copy)]
struct SpansAsked {
    threshold: f64,
    max: usize,
}

impl RerankBody {
    /// What to rank, for the path that was asked.
    ///
    /// # Errors
    /// When there are no documents, or one that has no text.
    pub fn into_domain(self, asked: RerankDialect) -> Result<RerankRequest, RequestError> {
        let (dialect, field, documents, given) = match (self.documents, self.texts) {
            (Some(documents), None) => {
                let fields = self.rank_fields.as_deref();
                let texts = documents.iter().enumerate().map(|(at, document)| text_of(at, document, fields));
                (asked, "documents", texts.collect::<Result<Vec<String>, _>>()?, documents)
            }
            (None, Some(texts)) => (RerankDialect::Tei, "texts", texts, Vec::new()),
            (Some(_), Some(_)) => {
                let message = "send `documents` or, as to Text Embeddings Inference, `texts`, not both";
                return Err(RequestError::new("documents_ambiguous", message, "texts"));
            }
            (None, None) => {
                return Err(RequestError::new("missing_field", "missing field `documents`", "documents"));
            }
        };
        if documents.is_empty() {
            return Err(RequestError::new(
                "chunks_empty",
                format!("{field} is empty: send at least one"),
                field,
            ));
        }
        let told = match dialect {
            RerankDialect::V1 => self.return_documents.unwrap_or(true),
            RerankDialect::V2 => self.return_documents.unwrap_or(false),
            RerankDialect::Tei => self.return_text,
        };
        let told = told.then(|| match dialect {
            RerankDialect::Tei => documents.iter().map(|text| json!(text)).collect(),
            _ => given.iter().map(as_object).collect(),
        });
        let spans = match self.relevant_spans {
            Some(spans) if spans.mode == "enabled" => Some(SpansAsked {
                threshold: spans.threshold.unwrap_or(SPAN_THRESHOLD),
                max: spans.max_spans.unwrap_or(usize::MAX),
            }),
            _ => None,
        };
        Ok(RerankRequest {
            query: self.query,
            chunks: chunks(documents),
            dialect,
            documents: told,
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

/// What is read of a document: its text, or the fields that are asked for, one a line.
fn text_of(at: usize, document: &Value, fields: Option<&[String]>) -> Result<String, RequestError> {
    let object = match document {
        Value::String(text) => return Ok(text.clone()),
        Value::Object(object) => object,
        _ => {
            let message = "a document is a text, or an object with a field `text`";
            return Err(RequestError::new("wrong_type", message, format!("documents[{at}]")));
        }
    };
    let said = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let found: Vec<String> = match fields {
        Some(fields) => fields.iter().filter_map(|field| object.get(field)).map(said).collect(),
        None => object.get("text").filter(|text| text.is_string()).map(said).into_iter().collect(),
    };
    match found.is_empty() {
        true => {
            let wanted = fields.map_or_else(|| "`text`".to_owned(), |fields| format!("any of {fields:?}"));
            let message = format!("documents[{at}] has no field {wanted} to rank by");
            Err(RequestError::new("missing_field", message, format!("documents[{at}]")))
        }
        false => Ok(found.join("\n")),
    }
}

/// A document as it came, a bare text as its `text`.
fn as_object(document: &Value) -> Value {
    match document {
        Value::Object(_) => document.clone(),
        text => json!({"text": text}),
    }
}

impl RerankRequest {
    /// Whether sentences are asked about, beside documents.
    pub fn granularity(&self) -> Granularity {
        if self.spans.is_some() { Granularity::Sentence } else { Granularity::Chunk }
    }

    /// The answer, best first. `id` is its own, `model` who ranked.
    pub fn answer(&self, ranked: &Ranked, id: &str, model: &str) -> Value {
        let mut order: Vec<usize> = (0..self.chunks.len()).collect();
        order.sort_by(|&a, &b| ranked.chunks[b].total_cmp(&ranked.chunks[a]));
        order.truncate(self.top_n);
        let score = |rc: f32| if self.raw_scores { f64::from(rc) } else { relevance(rc) };
        let told = |index: usize| self.documents.as_ref().map(|documents| documents[index].clone());
        let result = |index: usize| {
            let rc = ranked.chunks[index];
            let mut result = Map::new();
            result.insert("index".to_owned(), json!(index));
            let (score_name, text_name) = match self.dialect {
                RerankDialect::Tei => ("score", "text"),
                _ => ("relevance_score", "document"),
            };
            result.insert(score_name.to_owned(), json!(score(rc)));
            result.extend(told(index).map(|document| (text_name.to_owned(), document)));
            result.extend(
                self.spans
                    .map(|asked| ("relevant_spans".to_owned(), json!(self.spans_of(index, ranked, asked)))),
            );
            Value::Object(result)
        };
        let results: Vec<Value> = order.into_iter().map(result).collect();
        let version = match self.dialect {
            RerankDialect::Tei => return Value::Array(results),
            RerankDialect::V1 => "1",
            RerankDialect::V2 => "2",
        };
        json!({
            "id": id,
            "model": model,
            "results": results,
            "usage": usage(ranked.tokens),
            // Nothing is billed.
            "meta": {"api_version": {"version": version, "is_experimental": false}, "billed_units": {"search_units": 0}},
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

/// A sentence of a document, in code points.
#[derive(Debug, Clone, Copy, Serialize)]
struct SpanAnswer {
    start: usize,
    end: usize,
    score: f64,
}

fn usage(tokens: usize) -> Value {
    json!({"prompt_tokens": tokens, "total_tokens": tokens})
}

/// Body of vLLM's `score`.
#[derive(Debug, Clone, Deserialize)]
pub struct ScoreBody {
    text_1: OneOrMany,
    text_2: OneOrMany,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// A question and the texts that are scored for it: they are each other's rivals.
pub type Scored = (String, Vec<Arc<Chunk>>);

impl ScoreBody {
    /// What to score: one question with all texts, or each text with its own.
    ///
    /// # Errors
    /// When both are lists, of different lengths; when there is nothing to score.
    pub fn into_domain(self) -> Result<Vec<Scored>, RequestError> {
        let texts = match self.text_2 {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) if texts.is_empty() => {
                return Err(RequestError::new(
                    "chunks_empty",
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
                let message = format!("text_1 has {one} texts, text_2 {other}: send one, or as many");
                Err(RequestError::new("length_mismatch", message, "text_1"))
            }
        }
    }
}

/// vLLM's answer, in the order of the request.
pub fn score_answer(ranked: &[Ranked], id: &str, model: &str, created: u64) -> Value {
    let scores = ranked.iter().flat_map(|ranked| &ranked.chunks).enumerate();
    let data: Vec<Value> = scores
        .map(|(index, &rc)| json!({"index": index, "object": "score", "score": relevance(rc)}))
        .collect();
    let tokens = ranked.iter().map(|ranked| ranked.tokens).sum();
    json!({"id": id, "object": "list", "created": created, "model": model, "data": data, "usage": usage(tokens)})
}
