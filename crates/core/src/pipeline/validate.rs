//! Validation: refuses requests that exceed a limit or contradict themselves. Each error names the field, its
//! value and the limit, and says what to change.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use thiserror::Error;

use crate::domain::{AtMost, AttributeRequest, Budget, Chunk, CompressRequest, Granularity, Parts};
use crate::plain::Quoted;
use crate::text;

/// The largest `sources_max` of a request to attribute.
pub const SOURCES_MAX: usize = 100;

/// The limits on one request. The defaults are far above what a request needs; the daemon takes the limits of blocks from its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// The number of chunks that a request may send; 1,000 by default.
    pub chunk_count_max: usize,
    /// The number of registered chunks that a request may name; 100,000 by default.
    pub registered_chunk_count_max: usize,
    /// The bytes of text of all registered chunks that a request names; 64 MiB by default.
    pub registered_bytes_max: usize,
    /// The bytes of one chunk's text; 1 MiB by default.
    pub chunk_bytes_max: usize,
    /// The bytes of an answer to attribute; 256 KiB by default.
    pub answer_bytes_max: usize,
    /// The number of spans, or of JSON values, of an answer that a request may ask about; 10,000 by default.
    pub span_count_max: usize,
    /// The model's tokens in the question; 512 by default.
    pub query_tokens_max: usize,
    /// The model's tokens in all chunks together; 4 Mi by default.
    pub input_tokens_max: usize,
    /// The model's tokens in one chunk; 400,000 by default.
    pub chunk_tokens_max: usize,
    /// The bytes of the blocks of all chunks, which all requests together hold in memory while they are scored; 2 GiB by
    /// default.
    pub block_bytes_max: usize,
    /// The same for attribution of streams, which may last for minutes; 256 MiB by default.
    pub stream_block_bytes_max: usize,
    /// The number of parts of an answer times `sources_max`; 100,000 by default.
    pub source_count_max: usize,
    /// The tokens of the question times the units and chunks that are scored, or times all tokens of the
    /// chunks if each token is explained; 32 Mi by default.
    pub logit_count_max: usize,
    /// The number of JSON values in a request body that is parsed into a tree, such as tool calls and
    /// conversations; 262,144 by default.
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
            chunk_tokens_max: 400_000,
            block_bytes_max: 2_147_483_648,
            stream_block_bytes_max: 268_435_456,
            source_count_max: 100_000,
            logit_count_max: 33_554_432,
            json_value_count_max: 262_144,
        }
    }
}

impl RequestLimits {
    /// Checks the number of tokens in all chunks of a request. `token_bytes` is the size of one token in a
    /// block.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::InputTooLong`] or [`InvalidRequest::BlocksTooLarge`].
    pub fn check_tokens(&self, tokens: usize, token_bytes: usize) -> Result<(), InvalidRequest> {
        let max = self.input_tokens_max;
        if tokens > max {
            return Err(InvalidRequest::InputTooLong { max });
        }
        let max = self.block_bytes_max;
        if tokens.saturating_mul(token_bytes) > max {
            Err(InvalidRequest::BlocksTooLarge { max, token_bytes, tokens_max: max / token_bytes.max(1) })
        } else {
            Ok(())
        }
    }

    /// Checks the number of tokens of one chunk, by its index.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::ChunkTokensTooMany`].
    pub fn check_chunk_tokens(&self, index: usize, found: usize) -> Result<(), InvalidRequest> {
        let max = self.chunk_tokens_max;
        if found > max { Err(InvalidRequest::ChunkTokensTooMany { index, found, max }) } else { Ok(()) }
    }

    /// Checks that a question of `found` tokens fits into the context of the model beside a window of a
    /// chunk. `model_max` is the number of tokens that fit; `None` means that the model has no such limit.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::QueryBeyondModel`].
    pub fn check_question(&self, found: usize, model_max: Option<usize>) -> Result<(), InvalidRequest> {
        match model_max {
            Some(max) if found > max => Err(InvalidRequest::QueryBeyondModel { found, max }),
            _ => Ok(()),
        }
    }

    /// Checks the number of tokens of a question.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::QueryTooLong`].
    pub fn check_query(&self, found: usize) -> Result<(), InvalidRequest> {
        let max = self.query_tokens_max;
        if found > max { Err(InvalidRequest::QueryTooLong { found, max }) } else { Ok(()) }
    }

    /// Checks the number of tokens of a text that is read before or after exported chunks. `field` is its name in `kv`.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::KvTextEmpty`] or [`InvalidRequest::KvTextTooLong`].
    pub fn check_text_of_export(&self, field: &'static str, found: usize) -> Result<(), InvalidRequest> {
        let max = self.query_tokens_max;
        match found {
            0 => Err(InvalidRequest::KvTextEmpty { field }),
            _ if found > max => Err(InvalidRequest::KvTextTooLong { field, found, max }),
            _ => Ok(()),
        }
    }

    /// Checks the size of the question's vectors, which exist once per group of chunks: groups × question
    /// tokens × heads × values per vector. A single group is always allowed, because every question needs it.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::GroupsTooMany`].
    pub fn check_groups(
        &self,
        groups: usize,
        question_tokens: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<(), InvalidRequest> {
        let max = self.logit_count_max;
        let found = [groups, question_tokens, heads, head_dim].into_iter().fold(1, usize::saturating_mul);
        if groups > 1 && found > max {
            Err(InvalidRequest::GroupsTooMany { groups, question_tokens, heads, max })
        } else {
            Ok(())
        }
    }

    /// Checks the number of logits, or of peaks, of a request: question tokens × `columns`, where the columns
    /// are the keys or the segments.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::LogitTooMany`].
    pub fn check_logits(&self, question_tokens: usize, columns: usize) -> Result<(), InvalidRequest> {
        let max = self.logit_count_max;
        let found = question_tokens.saturating_mul(columns);
        if found > max { Err(InvalidRequest::LogitTooMany { question_tokens, columns, max }) } else { Ok(()) }
    }

    /// Checks the number of values that are held while sentences of an answer are attributed: `tokens` of
    /// these sentences × `segments`, which are the chunks, and twice the titles and sentences of chunks.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::AnswerLogitTooMany`].
    pub fn check_answer_logits(&self, tokens: usize, segments: usize) -> Result<(), InvalidRequest> {
        let max = self.logit_count_max;
        let found = tokens.saturating_mul(segments);
        if found > max { Err(InvalidRequest::AnswerLogitTooMany { tokens, segments, max }) } else { Ok(()) }
    }

    /// Checks the number of sources that a result names: `parts` of the answer × `sources` per part.
    ///
    /// # Errors
    /// Returns [`InvalidRequest::SourceTooMany`].
    pub fn check_sources_named(&self, parts: usize, sources: usize) -> Result<(), InvalidRequest> {
        let max = self.source_count_max;
        if parts.saturating_mul(sources) > max {
            Err(InvalidRequest::SourceTooMany { parts, sources, max })
        } else {
            Ok(())
        }
    }
}

/// The error of a request that its caller must change.
#[derive(Debug, Error, PartialEq)]
pub enum InvalidRequest {
    #[error("query is empty; send a question")]
    QueryEmpty,
    #[error("query has no token that the model can read; send a question in words")]
    QueryUnreadable,
    #[error("query has {found} tokens; the limit is {max}")]
    QueryTooLong { found: usize, max: usize },
    #[error(
        "kv.{field} has no token that the model can read; send the text that your model reads there, or leave it out"
    )]
    KvTextEmpty { field: &'static str },
    #[error("kv.{field} has {found} tokens; the limit is {max}")]
    KvTextTooLong { field: &'static str, found: usize, max: usize },
    #[error("query has {found} tokens; the model's context has room for {max} beside a chunk; shorten query")]
    QueryBeyondModel { found: usize, max: usize },
    #[error("chunks is empty; send at least one chunk")]
    ChunksEmpty,
    #[error("chunks has {found} entries; the limit is {max}")]
    ChunkTooMany { found: usize, max: usize },
    #[error("chunks have more than {max} tokens together; send fewer or shorter chunks")]
    InputTooLong { max: usize },
    #[error(
        "the blocks of chunks are larger than {max} bytes together; this model \
         needs {token_bytes} bytes per token, so send at most {tokens_max} tokens, or raise memory_bytes_max"
    )]
    BlocksTooLarge { max: usize, token_bytes: usize, tokens_max: usize },
    #[error(
        "the chunks fill the model's context {groups} times, and the {question_tokens} tokens of query are \
         held for each time in {heads} heads, which makes more than {max} values; \
         send a shorter query or fewer chunks, or choose heads with `thresher calibrate`"
    )]
    GroupsTooMany { groups: usize, question_tokens: usize, heads: usize, max: usize },
    #[error(
        "{question_tokens} query tokens times {columns} scored chunks and units (with explain: tokens of \
         chunks) are more than {max}; send a shorter query or fewer chunks, choose \
         a larger granularity, or leave out explain"
    )]
    LogitTooMany { question_tokens: usize, columns: usize, max: usize },
    #[error("chunks[{index}].text has {found} bytes; the limit is {max}")]
    ChunkTooLong { index: usize, found: usize, max: usize },
    #[error("chunks[{index}].text has {found} tokens; the limit is {max}. Divide it into several chunks")]
    ChunkTokensTooMany { index: usize, found: usize, max: usize },
    #[error("keep names {found} chunks; the request has {max}")]
    KeepTooMany { found: usize, max: usize },
    #[error(
        "chunk id {} is used by chunks[{first}] and chunks[{second}]; give each chunk an id of its own",
        Quoted(id)
    )]
    ChunkIdDuplicate { id: String, first: usize, second: usize },
    #[error("keep names {}, which is not the id of a chunk in the request", Quoted(id))]
    KeepUnknown { id: String, position: usize },
    #[error("answer is empty; send the text to attribute")]
    AnswerEmpty,
    #[error("answer has {found} bytes; the limit is {max}")]
    AnswerTooLong { found: usize, max: usize },
    #[error(
        "the answer's sentence at byte {at} has {found} tokens; the model's context has room for {max} \
         beside a chunk; send an answer with shorter sentences"
    )]
    SentenceBeyondModel { at: usize, found: usize, max: usize },
    #[error(
        "{tokens} tokens of answer are attributed together; times {segments} (the chunks, plus twice their \
         titles and sentences) they are more than {max}; send fewer chunks, or ask \
         about shorter parts"
    )]
    AnswerLogitTooMany { tokens: usize, segments: usize, max: usize },
    #[error(
        "{parts} parts times {sources} sources are more than {max}; send a smaller \
         sources_max, or ask about fewer parts"
    )]
    SourceTooMany { parts: usize, sources: usize, max: usize },
    #[error("answer has {found} JSON values; the limit is {max}")]
    ValueTooMany { found: usize, max: usize },
    #[error("sources_max is {found}; the limit is {max}")]
    SourcesOutOfRange { found: usize, max: usize },
    #[error("spans is empty; send at least one span, or choose another granularity")]
    SpansEmpty,
    #[error("spans has {found} entries; the limit is {max}")]
    SpanTooMany { found: usize, max: usize },
    #[error("spans[{index}] is empty; its end must be greater than its start")]
    SpanEmpty { index: usize },
    #[error(
        "spans[{index}] overlaps or precedes spans[{}]; spans must be in ascending order and must not \
         overlap",
        index - 1
    )]
    SpansOverlap { index: usize },
    #[error("budget.tokens is 0, which keeps nothing; it must be at least 1")]
    BudgetZero,
    #[error("budget.ratio is {ratio:?}; it must be greater than 0 and at most 1")]
    RatioOutOfRange { ratio: f64 },
    #[error("missed_max is {missed_max:?}; it must be from 0.01 to 0.5")]
    MissedOutOfRange { missed_max: f64 },
    #[error("budget.coverage is {coverage:?}; it must be from 0.5 to 0.99")]
    CoverageOutOfRange { coverage: f64 },
    #[error(
        "budget.coverage is {coverage}, but {rows} labelled questions promise at most {max}: {needed} are needed. \
         Send a smaller coverage, or calibrate with more questions (`thresher calibrate --coverage`)"
    )]
    CoverageTooHigh { coverage: f64, max: f64, rows: usize, needed: usize },
    #[error(
        "budget.coverage needs a calibration of this model and scoring method: run `thresher calibrate --coverage` \
         with labelled questions, and restart the daemon"
    )]
    CoverageUncalibrated,
    #[error("budget.coverage was calibrated for sentences; send granularity \"sentence\", or leave it out")]
    CoverageOfSentences,
    #[error(
        "a budget of {budget} tokens is too small: {} needs {needed} tokens; send {}{}",
        minimum.of, enough(*.needed, *.least_ratio), minimum.instead
    )]
    BudgetImpossible { budget: usize, needed: usize, minimum: Minimum, least_ratio: Option<f64> },
    #[error("{model} is an encoder, which has no keys and values to export; name a decoder in model.kv_dir")]
    KvOfEncoder { model: String },
    #[error(
        "{model} is loaded with {depth} of its {layers} layers, up to the last one with a chosen head; set \
         model.kv_dir to the same folder as model.dir to run all"
    )]
    KvLayersMissing { model: String, depth: usize, layers: usize },
    #[error(
        "the contract of {model} does not record which weights it was made from; run `thresher export` \
         again to export keys and values"
    )]
    KvWeightsUnknown { model: String },
    #[error(
        "{model} has learned positions, so its keys cannot be moved to other positions; serve a decoder with \
         rotary positions to export keys and values"
    )]
    KvPositionsLearned { model: String },
    #[error(
        "the kept chunks and kv.before have {found} tokens, and the text after them {after}; beside that text, the \
         model's context has room for {max}. Keep fewer chunks or split long ones (whole chunks are exported), or send \
         a shorter question or kv.before"
    )]
    KvTooLong { found: usize, max: usize, after: usize },
    #[error("kv.{field} is {share}; it must be greater than 0 and at most 1")]
    KvShareOutOfRange { share: f64, field: &'static str },
    #[error("kv.recompute is {share}; it must be from 0 to 1, and 0 encodes no token again")]
    KvRecomputeOutOfRange { share: f64 },
    #[error(
        "kv.ratio allows {budget} of {tokens} keys per head, but every head keeps the first {first} and the \
         last {last}; send a larger kv.ratio, or smaller kv.sinks and kv.recent"
    )]
    KvBudgetTooSmall { budget: usize, tokens: usize, first: usize, last: usize },
}

impl InvalidRequest {
    /// Returns the field of the request that must change, such as `chunks[3].text`.
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
            Self::ChunkTooLong { index, .. } | Self::ChunkTokensTooMany { index, .. } => {
                format!("chunks[{index}].text")
            }
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
            Self::BudgetZero | Self::BudgetImpossible { least_ratio: None, .. } => "budget.tokens".to_owned(),
            Self::RatioOutOfRange { .. } | Self::BudgetImpossible { least_ratio: Some(_), .. } => {
                "budget.ratio".to_owned()
            }
            Self::CoverageOfSentences => "granularity".to_owned(),
            Self::MissedOutOfRange { .. } => "missed_max".to_owned(),
            Self::CoverageOutOfRange { .. } | Self::CoverageTooHigh { .. } | Self::CoverageUncalibrated => {
                "budget.coverage".to_owned()
            }
            Self::KvTextEmpty { field } | Self::KvTextTooLong { field, .. } => format!("kv.{field}"),
            Self::KvOfEncoder { .. }
            | Self::KvLayersMissing { .. }
            | Self::KvWeightsUnknown { .. }
            | Self::KvPositionsLearned { .. } => "include".to_owned(),
            Self::KvTooLong { .. } => "kv".to_owned(),
            Self::KvShareOutOfRange { field, .. } => format!("kv.{field}"),
            Self::KvRecomputeOutOfRange { .. } => "kv.recompute".to_owned(),
            Self::KvBudgetTooSmall { .. } => "kv.ratio".to_owned(),
        }
    }
}

/// Checks everything about a request to compress that can be checked without a tokenizer.
///
/// # Errors
/// Returns the first error in the order query, chunks, keep, budget.
pub fn check(request: &CompressRequest, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    if request.query.trim().is_empty() {
        return Err(InvalidRequest::QueryEmpty);
    }
    check_chunks(&request.chunks, request.registered, limits)?;
    check_keep(request)?;
    if let Some(missed_max) = request.missed_max {
        check_missed(missed_max)?;
    }
    check_budget(request.budget, request.granularity)
}

/// The shares of answerable questions that a caller can allow to be missed: for these, the least probability is known.
pub const MISSED_MAX_RANGE: RangeInclusive<f64> = 0.01..=0.5;

/// Checks the share of answerable questions that may be missed.
///
/// # Errors
/// Returns [`InvalidRequest::MissedOutOfRange`].
pub fn check_missed(missed_max: f64) -> Result<(), InvalidRequest> {
    if MISSED_MAX_RANGE.contains(&missed_max) {
        Ok(())
    } else {
        Err(InvalidRequest::MissedOutOfRange { missed_max })
    }
}

/// Checks that a budget is not zero, that a ratio is in range, and that a coverage is promised for sentences.
///
/// # Errors
/// Returns [`InvalidRequest::BudgetZero`], [`InvalidRequest::RatioOutOfRange`], [`InvalidRequest::CoverageOutOfRange`] or
/// [`InvalidRequest::CoverageOfSentences`].
pub fn check_budget(budget: Budget, granularity: Granularity) -> Result<(), InvalidRequest> {
    match budget.at_most {
        Some(AtMost::Tokens(0)) => return Err(InvalidRequest::BudgetZero),
        Some(AtMost::Ratio(ratio)) if !(ratio > 0.0 && ratio <= 1.0) => {
            return Err(InvalidRequest::RatioOutOfRange { ratio });
        }
        _ => {}
    }
    match budget.coverage {
        Some(coverage) if !(0.5..=0.99).contains(&coverage) => {
            Err(InvalidRequest::CoverageOutOfRange { coverage })
        }
        Some(_) if granularity != Granularity::Sentence => Err(InvalidRequest::CoverageOfSentences),
        _ => Ok(()),
    }
}

/// Checks everything about a request to attribute that can be checked without a tokenizer.
///
/// # Errors
/// Returns the first error in the order answer, `sources_max`, chunks, parts.
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

/// Checks the length of an answer in bytes.
///
/// # Errors
/// Returns [`InvalidRequest::AnswerTooLong`].
pub fn check_answer_bytes(found: usize, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    let max = limits.answer_bytes_max;
    if found > max { Err(InvalidRequest::AnswerTooLong { found, max }) } else { Ok(()) }
}

/// Checks the chunks and `sources_max` of a request to attribute. The answer may still be arriving.
///
/// # Errors
/// Returns the first error in the order `sources_max`, chunks.
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
    check_ids_unique(chunks)
}

fn check_ids_unique(chunks: &[Arc<Chunk>]) -> Result<(), InvalidRequest> {
    let mut index_of = HashMap::new();
    for (second, chunk) in chunks.iter().enumerate() {
        if let Some(first) = index_of.insert(&chunk.id, second) {
            return Err(InvalidRequest::ChunkIdDuplicate { id: chunk.id.clone(), first, second });
        }
    }
    Ok(())
}

fn check_keep(request: &CompressRequest) -> Result<(), InvalidRequest> {
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

/// The smallest context of a request, for the message about a budget that is smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Minimum {
    pub of: &'static str,
    /// What the caller can do instead of naming a larger budget, after a comma; empty if nothing.
    pub instead: &'static str,
}

/// Says which budget is large enough, in the form in which the request gave it.
fn enough(needed: usize, least_ratio: Option<f64>) -> String {
    match least_ratio {
        Some(ratio) => format!("a ratio of at least {ratio}"),
        None => format!("`tokens` of at least {needed}"),
    }
}
