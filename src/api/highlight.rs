//! Requests and answers of `POST /v1/highlight`, in the format of a remote semantic highlighter of OpenSearch: what its plugin `neural-search`
//! sends through a connector of ML Commons (`parameters.inputs`, before version 3.3 `question` and `context`), and what it reads of the response.

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thresher_core::domain::Chunk;
use thresher_core::pipeline::Ranked;
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::limits::{Body, BodyLimits, ListLimit};
use super::response::Range;
use crate::error::{ApiError, ErrorCode};

/// The least relevance of a document that is highlighted. Of documents that answer a question, 0.89 to 1.00 reach it (docs/verdicts.md).
const RELEVANCE_MIN: f32 = 0.1;

/// The least score of a highlighted sentence, as a share of the best one of its document (docs/decisions/http-and-limits.md).
const SHARE_OF_BEST_MIN: f32 = 0.5;

/// Body of `POST /v1/highlight`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(transform = inputs_or_one_document)]
pub struct HighlightBody {
    /// The documents, each with its question. Null or empty: the request has one document, in `question` and `context`.
    #[serde(default)]
    inputs: Option<Vec<HighlightInput>>,
    /// The question, if there are no `inputs`.
    #[serde(default)]
    question: Option<String>,
    /// The text of the document, if there are no `inputs`.
    #[serde(default)]
    context: Option<String>,
}

fn inputs_or_one_document(schema: &mut Schema) {
    let inputs = json!({"required": ["inputs"], "properties": {"inputs": {"type": "array", "minItems": 1}}});
    let texts = json!({"question": {"type": "string"}, "context": {"type": "string"}});
    schema.insert("if".to_owned(), inputs);
    schema.insert("else".to_owned(), json!({"required": ["question", "context"], "properties": texts}));
}

/// A document to highlight.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
struct HighlightInput {
    /// The question; not blank.
    question: String,
    /// The text of the document.
    context: String,
}

/// The documents to highlight.
#[derive(Debug, Clone)]
pub struct HighlightRequest {
    pub documents: Vec<Document>,
    /// Whether the documents were sent as `inputs`, so that the response has one list for each.
    is_batch: bool,
}

/// One document, and the question that is asked of it.
#[derive(Debug, Clone)]
pub struct Document {
    pub question: String,
    pub chunk: Arc<Chunk>,
}

impl Body for HighlightBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("inputs")]
    }
}

impl HighlightBody {
    /// The request.
    ///
    /// # Errors
    /// `missing_field`, if the body has neither `inputs` nor a `question` and a `context`; `field_empty`, if a question is blank.
    pub fn into_domain(self) -> Result<HighlightRequest, ApiError> {
        let (inputs, is_batch) = match (self.inputs, self.question, self.context) {
            (Some(inputs), ..) if !inputs.is_empty() => (inputs, true),
            (_, Some(question), Some(context)) => (vec![HighlightInput { question, context }], false),
            _ => {
                let message =
                    "missing field `inputs`: send the documents in it, or one in `question` and `context`";
                return Err(ApiError::with_param(ErrorCode::MissingField, message, "inputs"));
            }
        };
        let mut documents = Vec::with_capacity(inputs.len());
        for (index, HighlightInput { question, context }) in inputs.into_iter().enumerate() {
            if question.trim().is_empty() {
                let param =
                    if is_batch { format!("inputs[{index}].question") } else { "question".to_owned() };
                let message = format!("{param} is empty; send a question");
                return Err(ApiError::with_param(ErrorCode::FieldEmpty, message, param));
            }
            documents.push(Document { question, chunk: Arc::new(Chunk::new(index.to_string(), context)) });
        }
        Ok(HighlightRequest { documents, is_batch })
    }
}

impl HighlightRequest {
    /// The response. `ranked` are the sentences of each document, scored without the other documents, on which its highlights should not
    /// depend.
    pub fn answer(&self, ranked: &[Ranked]) -> HighlightAnswer {
        let documents = self.documents.iter().zip(ranked);
        let mut highlights: Vec<Vec<Range>> =
            documents.map(|(document, ranked)| document.highlights(ranked)).collect();
        let highlights = if self.is_batch {
            Highlights::OfDocuments(highlights)
        } else {
            Highlights::OfDocument(highlights.swap_remove(0))
        };
        HighlightAnswer { highlights }
    }

    /// The error of the document at `index`, about the field that it was sent in.
    pub fn error_at(&self, index: usize, error: ApiError) -> ApiError {
        let field = match error.param.as_deref() {
            Some("query") => "question",
            Some(param) if param.starts_with("chunks") => "context",
            _ => return error,
        };
        let param = if self.is_batch { format!("inputs[{index}].{field}") } else { field.to_owned() };
        ApiError { param: Some(param), ..error }
    }
}

impl Document {
    /// The sentences that answer the question, in the order of the text.
    fn highlights(&self, ranked: &Ranked) -> Vec<Range> {
        let is_relevant = match (&ranked.chunk_relevances, ranked.relevance) {
            (Some(relevances), _) => relevances.iter().all(|&relevance| relevance >= RELEVANCE_MIN),
            (None, Some(relevance)) => relevance.related,
            (None, None) => true,
        };
        let best = ranked.sentences.iter().map(|sentence| sentence.rc).fold(0.0, f32::max);
        if !is_relevant || best <= 0.0 {
            return Vec::new();
        }
        // OpenSearch slices Java strings, whose units are those of UTF-16.
        let map = OffsetMap::new(&self.chunk.text, OffsetUnit::Utf16);
        let mut highlights = Vec::new();
        for sentence in &ranked.sentences {
            let range = map.from_bytes(sentence.bytes);
            if sentence.rc >= SHARE_OF_BEST_MIN * best && !range.is_empty() {
                highlights.push(Range { start: range.start, end: range.end });
            }
        }
        highlights
    }
}

/// Answer of `POST /v1/highlight`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct HighlightAnswer {
    highlights: Highlights,
}

/// Ranges of a document's text in UTF-16 code units, ascending and without overlap. Empty: nothing in it answers the question.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
enum Highlights {
    /// Those of the document in `context`.
    OfDocument(Vec<Range>),
    /// One list for each of `inputs`, in their order.
    OfDocuments(Vec<Vec<Range>>),
}
