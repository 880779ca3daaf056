//! Refuses what cannot be answered, naming the place and the limit.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::domain::{AttributeRequest, Budget, Chunk, CompressRequest, Parts};
use crate::plain::Quoted;
use crate::text;

/// Chunks that may be named for each part of an answer.
pub const SOURCES_MAX: usize = 100;

/// Bounds of one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestLimits {
    /// Chunks in one request.
    pub chunk_count_max: usize,
    /// Registered chunks that one request may name.
    pub registered_chunk_count_max: usize,
    /// Bytes of text of the registered chunks that one request names.
    pub registered_bytes_max: usize,
    /// Bytes of one chunk's text.
    pub chunk_bytes_max: usize,
    /// Bytes of an answer that is attributed.
    pub answer_bytes_max: usize,
    /// Parts of an answer that one request may ask about by their place.
    pub span_count_max: usize,
    /// Model tokens of the question.
    pub query_tokens_max: usize,
    /// Model tokens of all chunks together.
    pub input_tokens_max: usize,
    /// Bytes of all chunks' blocks together, which a request holds while it is scored; also of one chunk's as full numbers, while it
    /// is read.
    pub block_bytes_max: usize,
    /// Sources that are named for one answer: its parts times `sources_max`.
    pub source_count_max: usize,
    /// Tokens of the question times units that are scored, or times tokens of the chunks where each is explained.
    pub logit_count_max: usize,
    /// JSON values in a body that is read as a tree: calls of tools and conversations.
    pub json_value_count_max: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            chunk_count_max: 1_000,
            registered_chunk_count_max: 100_000,
            registered_bytes_max: 67_108_864,
            chunk_bytes_max: 1_048_576,
            answer_bytes_max: 262_144,
            span_count_max: 10_000,
            query_tokens_max: 512,
            input_tokens_max: 4_194_304,
            block_bytes_max: 2_147_483_648,
            source_count_max: 100_000,
            logit_count_max: 33_554_432,
            json_value_count_max: 262_144,
        }
    }
}

impl RequestLimits {
    /// Whether a request's chunks may have `tokens` tokens together, whose blocks have `token_bytes` each.
    ///
    /// # Errors
    /// [`InvalidRequest::InputTooLong`], [`InvalidRequest::BlocksTooLarge`].
    pub fn check_tokens(&self, tokens: usize, token_bytes: usize) -> Result<(), InvalidRequest> {
        let max = self.input_tokens_max;
        if tokens > max {
            return Err(InvalidRequest::InputTooLong { max });
        }
        let max = self.block_bytes_max;
        match tokens.saturating_mul(token_bytes) > max {
            true => {
                Err(InvalidRequest::BlocksTooLarge { max, token_bytes, tokens_max: max / token_bytes.max(1) })
            }
            false => Ok(()),
        }
    }

    /// Whether a model that reads at most `model_max` tokens of a question beside a chunk may be asked so many; none: any number.
    ///
    /// # Errors
    /// [`InvalidRequest::QueryBeyondModel`].
    pub fn check_question(&self, found: usize, model_max: Option<usize>) -> Result<(), InvalidRequest> {
        match model_max {
            Some(max) if found > max => Err(InvalidRequest::QueryBeyondModel { found, max }),
            _ => Ok(()),
        }
    }

    /// Whether a question may be held as it sees so many groups, with `values` values for each of its tokens and heads.
    ///
    /// # Errors
    /// [`InvalidRequest::GroupsTooMany`].
    pub fn check_groups(
        &self,
        groups: usize,
        (question_tokens, heads, values): (usize, usize, usize),
    ) -> Result<(), InvalidRequest> {
        let max = self.logit_count_max;
        let found = [groups, question_tokens, heads, values].into_iter().fold(1, usize::saturating_mul);
        // One group's is what any question takes.
        match groups > 1 && found > max {
            true => Err(InvalidRequest::GroupsTooMany { groups, question_tokens, heads, max }),
            false => Ok(()),
        }
    }

    /// Whether a request may hold the logits of `question_tokens` over so many `keys`, or peaks over so many segments.
    ///
    /// # Errors
    /// [`InvalidRequest::LogitTooMany`].
    pub fn check_logits(&self, question_tokens: usize, keys: usize) -> Result<(), InvalidRequest> {
        let max = self.logit_count_max;
        let found = question_tokens.saturating_mul(keys);
        if found > max { Err(InvalidRequest::LogitTooMany { question_tokens, keys, max }) } else { Ok(()) }
    }
}

impl RequestLimits {
    /// Whether sentences of `tokens` tokens may be held over so many chunks, titles and sentences.
    ///
    /// # Errors
    /// [`InvalidRequest::AnswerLogitTooMany`].
    pub fn check_answer_logits(&self, tokens: usize, segments: usize) -> Result<(), InvalidRequest> {
        let max = self.logit_count_max;
        let found = tokens.saturating_mul(segments);
        if found > max { Err(InvalidRequest::AnswerLogitTooMany { tokens, segments, max }) } else { Ok(()) }
    }

    /// Whether so many sources may be named for each of so many parts.
    ///
    /// # Errors
    /// [`InvalidRequest::SourceTooMany`].
    pub fn check_sources_named(&self, parts: usize, sources: usize) -> Result<(), InvalidRequest> {
        let max = self.source_count_max;
        match parts.saturating_mul(sources) > max {
            true => Err(InvalidRequest::SourceTooMany { parts, sources, max }),
            false => Ok(()),
        }
    }
}

/// A request that its sender has to change.
#[derive(Debug, Error, PartialEq)]
#[allow(missing_docs, reason = "each message says it")]
pub enum InvalidRequest {
    #[error("query is empty")]
    QueryEmpty,
    #[error("query has no token that the model reads")]
    QueryUnreadable,
    #[error("query has {found} tokens, the limit is {max} (limits.query_tokens_max)")]
    QueryTooLong { found: usize, max: usize },
    #[error("query has {found} tokens, the model's context has room for {max} beside a chunk")]
    QueryBeyondModel { found: usize, max: usize },
    #[error("chunks is empty: send at least one")]
    ChunksEmpty,
    #[error("{found} chunks, the limit is {max} (limits.chunk_count_max)")]
    ChunkTooMany { found: usize, max: usize },
    #[error("chunks have more than {max} tokens together (limits.input_tokens_max)")]
    InputTooLong { max: usize },
    #[error(
        "chunks take more than {max} bytes together (limits.block_bytes_max): with this model a token takes {token_bytes}, so send at \
         most {tokens_max} tokens"
    )]
    BlocksTooLarge { max: usize, token_bytes: usize, tokens_max: usize },
    #[error(
        "{groups} groups of chunks that the model's context holds, times {question_tokens} query tokens of {heads} heads, are more than \
         {max} values (limits.logit_count_max): ask shorter, of fewer chunks, or choose heads (thresher calibrate)"
    )]
    GroupsTooMany { groups: usize, question_tokens: usize, heads: usize, max: usize },
    #[error(
        "{question_tokens} query tokens times {keys} units (tokens, where all of them are explained) are more than {max} \
         (limits.logit_count_max): ask shorter, of fewer chunks, with a larger granularity or without explain"
    )]
    LogitTooMany { question_tokens: usize, keys: usize, max: usize },
    #[error("chunks[{index}].text has {found} bytes, the limit is {max} (limits.chunk_bytes_max)")]
    ChunkTooLong { index: usize, found: usize, max: usize },
    #[error("keep names {found} chunks, there are {max}")]
    KeepTooMany { found: usize, max: usize },
    #[error("chunk id {} is used by chunks[{first}] and chunks[{second}]", Quoted(id))]
    ChunkIdDuplicate { id: String, first: usize, second: usize },
    #[error("keep names {}, which is not the id of a chunk", Quoted(id))]
    KeepUnknown { id: String, position: usize },
    #[error("answer is empty")]
    AnswerEmpty,
    #[error("answer has {found} bytes, the limit is {max} (limits.answer_bytes_max)")]
    AnswerTooLong { found: usize, max: usize },
    #[error(
        "the answer's sentence at byte {at} has {found} tokens, the model's context has room for {max} beside a chunk"
    )]
    SentenceBeyondModel { at: usize, found: usize, max: usize },
    #[error(
        "{tokens} tokens of sentences that are read together times {segments} chunks, titles and sentences (these twice) are more than \
         {max} (limits.logit_count_max): send fewer chunks, or ask about shorter parts"
    )]
    AnswerLogitTooMany { tokens: usize, segments: usize, max: usize },
    #[error(
        "{parts} parts times {sources} sources are more than {max} (limits.source_count_max): name a smaller sources_max, or ask about \
         fewer parts"
    )]
    SourceTooMany { parts: usize, sources: usize, max: usize },
    #[error("the answer holds {found} values, the limit is {max} (limits.span_count_max)")]
    ValueTooMany { found: usize, max: usize },
    #[error("sources_max is {found}, the limit is {max}")]
    SourcesOutOfRange { found: usize, max: usize },
    #[error("spans is empty: name at least one, or another granularity")]
    SpansEmpty,
    #[error("{found} spans, the limit is {max} (limits.span_count_max)")]
    SpanTooMany { found: usize, max: usize },
    #[error("spans[{index}] is empty: its end must be greater than its start")]
    SpanEmpty { index: usize },
    #[error("spans[{index}] overlaps or stands before spans[{}]: spans have to ascend and be apart", index - 1)]
    SpansOverlap { index: usize },
    #[error("budget.tokens is 0: nothing could be kept")]
    BudgetZero,
    #[error("budget.ratio is {ratio}: it must be greater than 0 and at most 1")]
    RatioOutOfRange { ratio: f64 },
    #[error("a budget of {budget} tokens is too small: {reason} needs {needed} tokens; name a larger budget")]
    BudgetImpossible { budget: usize, needed: usize, reason: &'static str, is_ratio: bool },
    #[error(
        "{model} is an encoder: it has no keys and values that a language model could take over; serve a decoder to hand them over"
    )]
    KvOfEncoder { model: String },
    #[error(
        "of {model} {depth} of {layers} layers are read, up to the last that a head was chosen from; set model.layers = \"all\" to hand \
         keys and values over"
    )]
    KvLayersMissing { model: String, depth: usize, layers: usize },
    #[error(
        "the contract of {model} does not say which weights it was made of: export the model again to hand keys and values over"
    )]
    KvUnnamed { model: String },
    #[error("{model} has learned places: its keys cannot be moved to where they would be handed over")]
    KvFixed { model: String },
    #[error(
        "the kept chunks have {found} tokens, the model's context has room for {max} beside the question: keep fewer of them, or \
         split those that are long (whole chunks are handed over)"
    )]
    KvTooLong { found: usize, max: usize },
    #[error("kv.{field} is {share}: it must be greater than 0 and at most 1")]
    KvShareOutOfRange { share: f64, field: &'static str },
    #[error(
        "of {tokens} keys a head {budget} are to be kept, and every head keeps the first {first} and the last {last}: name a larger ratio, \
         or fewer sinks and recent"
    )]
    KvBudgetTooSmall { budget: usize, tokens: usize, first: usize, last: usize },
}

impl InvalidRequest {
    /// Where in the request the offending value stands.
    pub fn param(&self) -> String {
        match self {
            Self::QueryEmpty
            | Self::QueryUnreadable
            | Self::QueryTooLong { .. }
            | Self::QueryBeyondModel { .. } => "query".to_owned(),
            Self::ChunksEmpty
            | Self::ChunkTooMany { .. }
            | Self::InputTooLong { .. }
            | Self::BlocksTooLarge { .. }
            | Self::GroupsTooMany { .. }
            | Self::LogitTooMany { .. } => "chunks".to_owned(),
            Self::ChunkIdDuplicate { second, .. } => format!("chunks[{second}].id"),
            Self::ChunkTooLong { index, .. } => format!("chunks[{index}].text"),
            Self::KeepTooMany { .. } => "keep".to_owned(),
            Self::KeepUnknown { position, .. } => format!("keep[{position}]"),
            Self::AnswerEmpty
            | Self::AnswerTooLong { .. }
            | Self::ValueTooMany { .. }
            | Self::AnswerLogitTooMany { .. }
            | Self::SentenceBeyondModel { .. } => "answer".to_owned(),
            Self::SourcesOutOfRange { .. } | Self::SourceTooMany { .. } => "sources_max".to_owned(),
            Self::SpansEmpty | Self::SpanTooMany { .. } => "spans".to_owned(),
            Self::SpanEmpty { index } | Self::SpansOverlap { index } => format!("spans[{index}]"),
            Self::BudgetZero | Self::BudgetImpossible { is_ratio: false, .. } => "budget.tokens".to_owned(),
            Self::RatioOutOfRange { .. } | Self::BudgetImpossible { is_ratio: true, .. } => {
                "budget.ratio".to_owned()
            }
            Self::KvOfEncoder { .. }
            | Self::KvLayersMissing { .. }
            | Self::KvUnnamed { .. }
            | Self::KvFixed { .. }
            | Self::KvTooLong { .. } => "include".to_owned(),
            Self::KvShareOutOfRange { field, .. } => format!("kv.{field}"),
            Self::KvBudgetTooSmall { .. } => "kv.ratio".to_owned(),
        }
    }
}

/// What can be said of a request before reading a token of it.
///
/// # Errors
/// The first thing wrong, in the order in which a person reads the request.
pub fn check(request: &CompressRequest, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    if request.query.trim().is_empty() {
        return Err(InvalidRequest::QueryEmpty);
    }
    check_chunks(&request.chunks, request.registered, limits)?;
    keep_is_known(request)?;
    check_budget(request.budget)
}

/// Whether a budget can hold anything at all.
///
/// # Errors
/// [`InvalidRequest::BudgetZero`], [`InvalidRequest::RatioOutOfRange`].
pub fn check_budget(budget: Budget) -> Result<(), InvalidRequest> {
    match budget {
        Budget::Tokens(0) => Err(InvalidRequest::BudgetZero),
        Budget::Ratio(ratio) if !(ratio > 0.0 && ratio <= 1.0) => {
            Err(InvalidRequest::RatioOutOfRange { ratio })
        }
        _ => Ok(()),
    }
}

/// The same of an answer and its chunks.
///
/// # Errors
/// As [`check`].
pub fn check_attribution(request: &AttributeRequest, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    if request.answer.trim().is_empty() {
        return Err(InvalidRequest::AnswerEmpty);
    }
    check_answer_bytes(request.answer.len(), limits)?;
    check_sources(request, limits)?;
    if request.parts == Parts::Words {
        limits.check_sources_named(text::terms(&request.answer, &[]).len(), request.sources_max)?;
    }
    let spans = match &request.parts {
        Parts::Spans(spans) => spans,
        Parts::Values(values) if values.len() > limits.span_count_max => {
            let (found, max) = (values.len(), limits.span_count_max);
            return Err(InvalidRequest::ValueTooMany { found, max });
        }
        Parts::Values(_) | Parts::Sentences | Parts::Words => return Ok(()),
    };
    if spans.is_empty() {
        return Err(InvalidRequest::SpansEmpty);
    }
    let (found, max) = (spans.len(), limits.span_count_max);
    if found > max {
        return Err(InvalidRequest::SpanTooMany { found, max });
    }
    if let Some(index) = spans.iter().position(|span| span.is_empty()) {
        return Err(InvalidRequest::SpanEmpty { index });
    }
    match spans.windows(2).position(|pair| pair[1].start < pair[0].end) {
        Some(first) => Err(InvalidRequest::SpansOverlap { index: first + 1 }),
        None => Ok(()),
    }
}

/// Whether an answer may have so many bytes.
///
/// # Errors
/// [`InvalidRequest::AnswerTooLong`].
pub fn check_answer_bytes(found: usize, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    let max = limits.answer_bytes_max;
    if found > max { Err(InvalidRequest::AnswerTooLong { found, max }) } else { Ok(()) }
}

/// What an answer, that may still be to come, may have come from.
///
/// # Errors
/// As [`check`].
pub fn check_sources(request: &AttributeRequest, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    let (found, max) = (request.sources_max, SOURCES_MAX);
    if found > max {
        return Err(InvalidRequest::SourcesOutOfRange { found, max });
    }
    check_chunks(&request.chunks, request.registered, limits)
}

fn check_chunks(
    chunks: &[Arc<Chunk>],
    registered: bool,
    limits: &RequestLimits,
) -> Result<(), InvalidRequest> {
    if chunks.is_empty() {
        return Err(InvalidRequest::ChunksEmpty);
    }
    let max = if registered { limits.registered_chunk_count_max } else { limits.chunk_count_max };
    let found = chunks.len();
    if found > max {
        return Err(InvalidRequest::ChunkTooMany { found, max });
    }
    let max = limits.chunk_bytes_max;
    if let Some(index) = chunks.iter().position(|chunk| chunk.text.len() > max) {
        return Err(InvalidRequest::ChunkTooLong { index, found: chunks[index].text.len(), max });
    }
    ids_are_unique(chunks)
}

fn ids_are_unique(chunks: &[Arc<Chunk>]) -> Result<(), InvalidRequest> {
    let mut first_at = std::collections::HashMap::new();
    for (second, chunk) in chunks.iter().enumerate() {
        if let Some(first) = first_at.insert(&chunk.id, second) {
            return Err(InvalidRequest::ChunkIdDuplicate { id: chunk.id.clone(), first, second });
        }
    }
    Ok(())
}

fn keep_is_known(request: &CompressRequest) -> Result<(), InvalidRequest> {
    let (found, max) = (request.keep.len(), request.chunks.len());
    if found > max {
        return Err(InvalidRequest::KeepTooMany { found, max });
    }
    let ids: HashSet<&String> = request.chunks.iter().map(|c| &c.id).collect();
    match request.keep.iter().position(|id| !ids.contains(id)) {
        Some(position) => Err(InvalidRequest::KeepUnknown { id: request.keep[position].clone(), position }),
        None => Ok(()),
    }
}
