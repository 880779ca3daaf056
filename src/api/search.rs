//! Searching registered chunks: body and answer.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thresher_registry::Hit;
use thresher_registry::filter::Filter;

use super::chunks::RegisteredAnswer;
use super::limits::{Body, BodyLimits, ListLimit};
use super::request::choice;
use super::response::TimingMs;
use crate::error::{ApiError, ErrorCode};

/// Results when a search names no number.
const LIMIT_DEFAULT: usize = 10;

/// Body of `POST /v1/search`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchBody {
    /// The question; not blank.
    query: String,
    /// Results.
    #[serde(default)]
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// Chunks that the model reads; at least as many as results.
    #[serde(default)]
    #[schemars(range(min = 1))]
    candidates: Option<usize>,
    /// Which chunks are searched, by their metadata.
    #[serde(default)]
    #[schemars(with = "Option<FilterBody>")]
    filter: Option<Box<RawValue>>,
    /// What the results are ordered by.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Rank>")]
    rank: Rank,
    /// Milliseconds that the caller waits, queueing included.
    #[serde(default)]
    deadline_ms: Option<u64>,
}

/// A condition on metadata as it is written. It is read with the places of mistakes, by hand: it says what that looks like.
pub struct FilterBody;

impl JsonSchema for FilterBody {
    fn schema_name() -> Cow<'static, str> {
        "Filter".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let filter = generator.subschema_for::<Self>().to_value();
        let some = |items: Value| json!({"type": "array", "minItems": 1, "items": items});
        let value = json!({"type": ["string", "number", "boolean"]});
        let end = json!({"type": ["number", "string"], "description": "A number, or a time in RFC 3339."});
        json_schema!({
            "type": "object",
            "description": "Fields by dotted path, all of which must hold: a value, or tests of it; `and`, `or`, `not` around more filters.",
            "minProperties": 1,
            "properties": {"and": some(filter.clone()), "or": some(filter.clone()), "not": filter},
            "additionalProperties": {"anyOf": [value, {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": false,
                "properties": {"in": some(value), "exists": {"type": "boolean"}, "gt": end, "gte": end, "lt": end, "lte": end},
            }]},
        })
    }
}

/// What the results are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// The model's RC over the candidates that BM25 finds.
    #[default]
    Rc,
    /// BM25 alone.
    Bm25,
}

/// A search, read.
#[derive(Debug, Clone)]
pub struct SearchRequest {
    /// The question.
    pub query: String,
    /// Results.
    pub limit: usize,
    /// Chunks that the model reads; at least as many as results.
    pub candidates: usize,
    /// Which chunks are searched.
    pub filter: Option<Filter>,
    /// What the results are ordered by.
    pub rank: Rank,
    /// Milliseconds that the caller waits.
    pub deadline_ms: Option<u64>,
}

/// Bounds of a search.
#[derive(Debug, Clone, Copy)]
pub struct SearchLimits {
    /// Candidates when a search names no number.
    pub candidate_count_default: usize,
    /// The most that it may name, and the most results.
    pub candidate_count_max: usize,
}

/// Answer of `POST /v1/search`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SearchAnswer {
    /// Best first.
    results: Vec<ResultAnswer>,
    /// What they are ordered by.
    rank: Rank,
    /// Chunks that BM25 found and the model read.
    candidates: usize,
    timing_ms: TimingMs,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "SearchResult")]
/// A chunk that was found.
struct ResultAnswer {
    /// What it is ordered by.
    score: f32,
    /// Its score by words.
    bm25: f32,
    #[serde(flatten)]
    chunk: RegisteredAnswer,
}

impl Body for SearchBody {
    /// It has none: a filter bounds itself.
    fn lists(_: &BodyLimits) -> Vec<ListLimit> {
        Vec::new()
    }
}

impl SearchBody {
    /// The search.
    ///
    /// # Errors
    /// A blank query, a number out of range, a filter that is none.
    pub fn into_domain(self, limits: &SearchLimits) -> Result<SearchRequest, ApiError> {
        if self.query.trim().is_empty() {
            return Err(ApiError::with_param(ErrorCode::QueryEmpty, "query is empty", "query"));
        }
        let max = limits.candidate_count_max;
        let within = |name: &str, count: usize| match count {
            1.. if count <= max => Ok(count),
            _ => {
                let message =
                    format!("{name} is {count}; it must be from 1 to {max} (registry.candidate_count_max)");
                Err(ApiError::with_param(ErrorCode::CountOutOfRange, message, name))
            }
        };
        let limit = within("limit", self.limit.unwrap_or(LIMIT_DEFAULT.min(max)))?;
        let default = limits.candidate_count_default.max(limit);
        let candidates = within("candidates", self.candidates.unwrap_or(default))?;
        if candidates < limit {
            let message = format!("candidates is {candidates}; it must be at least limit, which is {limit}");
            return Err(ApiError::with_param(ErrorCode::CountOutOfRange, message, "candidates"));
        }
        let filter = self.filter.map(|filter| Filter::from_json(filter.get(), "filter")).transpose()?;
        let Self { query, rank, deadline_ms, .. } = self;
        let candidates = if rank == Rank::Bm25 { limit } else { candidates };
        Ok(SearchRequest { query, limit, candidates, filter, rank, deadline_ms })
    }
}

impl SearchAnswer {
    /// The best of `hits` by `scores`, best first; equals in the order in which they were found.
    pub fn new(
        request: &SearchRequest,
        hits: Vec<Hit>,
        scores: Option<Vec<f32>>,
        timing_ms: TimingMs,
    ) -> Self {
        let candidates = hits.len();
        let scores = scores.unwrap_or_else(|| hits.iter().map(|hit| hit.bm25).collect());
        let mut scored: Vec<(f32, Hit)> = scores.into_iter().zip(hits).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        scored.truncate(request.limit);
        let result =
            |(score, hit): (f32, Hit)| ResultAnswer { score, bm25: hit.bm25, chunk: (&*hit.chunk).into() };
        Self { results: scored.into_iter().map(result).collect(), rank: request.rank, candidates, timing_ms }
    }
}
