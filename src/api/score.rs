//! Requests and answers of vLLM's `score`. Fields that have no meaning here, such as a model's name, are ignored.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use thresher_core::domain::Chunk;
use thresher_core::pipeline::Ranked;

use super::limits::{Body, BodyLimits, ListLimit};
use super::rerank::{RerankUsage, chunks, relevance};
use crate::error::{ApiError, ErrorCode};

/// Body of vLLM's `score`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ScoreBody {
    /// The question; or a list of as many questions as there are texts.
    text_1: OneOrMany,
    /// The text, or the texts, to score.
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

/// A question and the texts that are scored for it together.
pub type Scored = (String, Vec<Arc<Chunk>>);

impl Body for ScoreBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("text_1"), limits.chunks("text_2")]
    }
}

impl ScoreBody {
    /// What to score: one question with all texts, or each text with its own question.
    ///
    /// # Errors
    /// `fields_conflict`, if both are lists of different lengths; `field_empty`.
    pub fn into_domain(self) -> Result<Vec<Scored>, ApiError> {
        let texts = match self.text_2 {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) if texts.is_empty() => {
                return Err(ApiError::with_param(
                    ErrorCode::FieldEmpty,
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
                let (query_count, text_count) = (queries.len(), texts.len());
                let message = format!(
                    "text_1 has {query_count} texts and text_2 has {text_count}: send one text_1, or as many as text_2"
                );
                Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "text_1"))
            }
        }
    }
}

/// Answer of `score`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ScoreAnswer {
    id: String,
    object: &'static str,
    /// The time of the answer, in seconds since 1970.
    created: u64,
    /// The name of the model.
    model: String,
    /// The scores, in the order of the request.
    data: Vec<ScoreResult>,
    usage: RerankUsage,
}

/// The score of one text.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct ScoreResult {
    index: usize,
    object: &'static str,
    /// The probability that the text contains something that the question asks.
    score: f64,
}

impl ScoreAnswer {
    /// The answer with the scores of `ranked`; `created` is in seconds since 1970.
    pub fn new(ranked: &[Ranked], id: String, model: &str, created: u64) -> Self {
        let scores =
            ranked.iter().flat_map(|ranked| (0..ranked.chunks.len()).map(|chunk| relevance(ranked, chunk)));
        let result = |(index, score): (usize, f64)| ScoreResult { index, object: "score", score };
        let usage = RerankUsage::new(ranked.iter().map(|ranked| ranked.tokens).sum());
        let (object, model) = ("list", model.to_owned());
        Self { id, object, created, model, data: scores.enumerate().map(result).collect(), usage }
    }
}
