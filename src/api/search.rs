//! Requests and answers of `POST /v1/search`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thresher_core::domain::{Budget, ByteRange, CompressRequest, Format, Omissions};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::outcome::Ranked;
use thresher_core::pipeline::validate::InvalidRequest;
use thresher_core::pipeline::{Pipeline, PipelineError, assemble};
use thresher_core::text::outline::Layout;
use thresher_registry::Hit;

use super::chunks::RegisteredAnswer;
use super::limits::{Body, BodyLimits, ListLimit};
use super::response::TimingMs;
use super::wire::choice;
use crate::error::{ApiError, ErrorCode};

/// The number of results if a search names none.
const LIMIT_DEFAULT: usize = 10;

/// The number of candidates if a search names none: the model needs about 25 ms for each that is not cached.
const CANDIDATES_DEFAULT: usize = 100;

/// Body of `POST /v1/search`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchBody {
    /// The question; not blank.
    query: String,
    /// The most results.
    #[serde(default)]
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// The number of chunks that are found by words and by meaning, and that the model ranks; at least `limit`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    candidates: Option<usize>,
    /// The score by which the results are ordered.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Rank>")]
    rank: Rank,
    /// Milliseconds until the answer is due, including the time in the queue.
    #[serde(default)]
    deadline_ms: Option<u64>,
}

/// The score by which the results are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// The RC of the candidates.
    #[default]
    Rc,
    /// BM25.
    Bm25,
}

#[derive(Debug, Clone)]
pub struct SearchRequest {
    pub query: String,
    pub limit: usize,
    /// The number of chunks that BM25 finds and the model ranks; at least `limit`.
    pub candidates: usize,
    pub rank: Rank,
    pub deadline_ms: Option<u64>,
}

/// Answer of `POST /v1/search`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SearchAnswer {
    /// The results, best first.
    results: Vec<ResultAnswer>,
    /// The score by which they are ordered.
    rank: Rank,
    /// The number of chunks that were found and that the model ranked.
    candidates: usize,
    /// Whether any of the candidates has to do with the question; `null` if nothing was found, or BM25 alone ordered the results.
    related: Option<bool>,
    timing_ms: TimingMs,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "SearchResult")]
/// A chunk that was found, and its scores.
struct ResultAnswer {
    /// The score by which the results are ordered.
    score: f32,
    /// The probability that the chunk contains something that the question asks, which compares between searches; null where it was not
    /// measured, and if BM25 alone ordered the results.
    relevance: Option<f32>,
    /// The BM25 score.
    bm25: f32,
    #[serde(flatten)]
    chunk: RegisteredAnswer,
}

impl Body for SearchBody {
    fn lists(_: &BodyLimits) -> Vec<ListLimit> {
        Vec::new()
    }
}

impl SearchBody {
    /// Checks the search.
    ///
    /// # Errors
    /// Fails if the query is blank or if a number is out of range.
    pub fn into_domain(self, limits: &BodyLimits) -> Result<SearchRequest, ApiError> {
        if self.query.trim().is_empty() {
            return Err(ApiError::with_param(ErrorCode::FieldEmpty, "query is empty", "query"));
        }
        let max = limits.candidate_count_max;
        let within = |name: &str, count: usize| match count {
            1.. if count <= max => Ok(count),
            _ => {
                let message = format!("{name} is {count}; it must be from 1 to {max}");
                Err(ApiError::with_param(ErrorCode::OutOfRange, message, name))
            }
        };
        let limit = within("limit", self.limit.unwrap_or(LIMIT_DEFAULT.min(max)))?;
        let default = CANDIDATES_DEFAULT.min(max).max(limit);
        let candidates = within("candidates", self.candidates.unwrap_or(default))?;
        if candidates < limit {
            let message =
                format!("candidates is {candidates}, fewer than the {limit} results that limit asks for");
            return Err(ApiError::with_param(ErrorCode::OutOfRange, message, "candidates"));
        }
        let Self { query, rank, deadline_ms, .. } = self;
        let candidates = if rank == Rank::Bm25 { limit } else { candidates };
        Ok(SearchRequest { query, limit, candidates, rank, deadline_ms })
    }
}

impl SearchAnswer {
    /// The results as text for a model, best first.
    pub fn to_plain_text(&self) -> String {
        let results: Vec<String> = self.results.iter().map(|result| result.chunk.to_plain_text()).collect();
        let warning = match (results.is_empty(), self.related) {
            (true, _) => Some("No registered chunk was found."),
            (_, Some(false)) => {
                Some("None of the registered chunks seems to answer the question. These come closest:")
            }
            _ => None,
        };
        warning.map(str::to_owned).into_iter().chain(results).collect::<Vec<_>>().join("\n\n")
    }

    /// Keeps of the texts what the question needs, in at most `tokens_max` tokens together (`o200k_base`). Results of which nothing is needed are
    /// left out.
    ///
    /// # Errors
    /// Fails if [`Pipeline::compress`] fails.
    pub fn keep_excerpts(
        &mut self,
        query: &str,
        tokens_max: usize,
        pipeline: &Pipeline,
        cancel: &Cancel,
    ) -> Result<(), PipelineError> {
        if self.results.is_empty() {
            return Ok(());
        }
        let chunk = |result: &ResultAnswer| result.chunk.to_chunk();
        let mut request = CompressRequest {
            registered: true,
            budget: Budget::tokens(tokens_max),
            format: Format::Plain,
            titles: false,
            // The text says when nothing is related to the question.
            related_only: false,
            ..CompressRequest::new(query, self.results.iter().map(chunk).collect())
        };
        let mut compressed = pipeline.compress(&request, cancel);
        // Not even one sentence fits: the shortest excerpt is better than none.
        if let Err(PipelineError::Invalid(InvalidRequest::BudgetImpossible { needed, .. })) = compressed {
            request.budget = Budget::tokens(needed);
            compressed = pipeline.compress(&request, cancel);
        }
        let kept = compressed?.chunks;
        let excerpts = kept.iter().map(|outcome| {
            let chunk = &request.chunks[outcome.index];
            let spans: Vec<ByteRange> = outcome.spans.iter().map(|span| span.source).collect();
            let text = || {
                assemble::joined(
                    &chunk.text,
                    &spans,
                    &Layout::detect(&chunk.text, chunk.kind),
                    Omissions::Auto,
                )
            };
            (!spans.is_empty()).then(text)
        });
        let results = std::mem::take(&mut self.results).into_iter().zip(excerpts);
        for (mut result, excerpt) in results {
            if let Some(excerpt) = excerpt {
                result.chunk.set_excerpt(excerpt);
                self.results.push(result);
            }
        }
        Ok(())
    }

    /// The answer with the best of `hits`, best first: as the model `ranked` them, or without that by BM25. Hits with equal scores stay in
    /// their order.
    pub fn new(request: &SearchRequest, hits: Vec<Hit>, ranked: Option<Ranked>, timing_ms: TimingMs) -> Self {
        let candidates = hits.len();
        let relevance = ranked.as_ref().and_then(|ranked| ranked.relevance);
        let relevances = ranked.as_ref().and_then(|ranked| ranked.chunk_relevances.clone());
        let scores = match ranked {
            Some(ranked) => ranked.chunks,
            None => hits.iter().map(|hit| hit.bm25).collect(),
        };
        let result = |(at, (score, hit)): (usize, (f32, Hit))| ResultAnswer {
            score,
            relevance: relevances.as_ref().map(|relevances| relevances[at]),
            bm25: hit.bm25,
            chunk: (&*hit.chunk).into(),
        };
        let mut results: Vec<ResultAnswer> = scores.into_iter().zip(hits).enumerate().map(result).collect();
        results.sort_by(|a, b| b.score.total_cmp(&a.score));
        results.truncate(request.limit);
        let related = relevance.map(|relevance| relevance.related);
        Self { results, rank: request.rank, candidates, related, timing_ms }
    }
}

#[cfg(test)]
mod tests {
    use thresher_core::domain::Chunk;
    use thresher_core::pipeline::clock::Clock;

    use super::*;

    #[test]
    fn the_text_for_a_model_says_when_nothing_fits() {
        let chunk = Chunk::new("a", "The tide is at noon.");
        let text = |found: &[&Chunk], related| {
            let results = found
                .iter()
                .map(|&chunk| ResultAnswer { score: 0.1, relevance: None, bm25: 1.0, chunk: chunk.into() })
                .collect();
            let timing_ms = TimingMs::from(&Clock::start().finish());
            SearchAnswer { results, rank: Rank::Rc, candidates: 1, related, timing_ms }.to_plain_text()
        };
        let fits = text(&[&chunk], Some(true));
        assert_eq!(text(&[&chunk], None), fits);
        let warned = text(&[&chunk], Some(false));
        assert!(warned.starts_with("None of the registered chunks") && warned.ends_with(&fits), "{warned}");
        assert_eq!(text(&[], None), "No registered chunk was found.");
    }
}
