//! Requests of `POST /v1/attribute`: an answer, and the chunks that its parts may have come from.

mod answer;
pub mod dialects;
mod json_values;
mod links;

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk, Parts, SOURCES_DEFAULT};
use thresher_core::pipeline::validate::InvalidRequest;
use thresher_core::text::offsets::{OffsetError, OffsetMap, OffsetUnit};

pub use self::answer::{AttributeAnswer, PartAnswer};
use self::dialects::CitationFormat;
use self::json_values::NoValues;
pub use self::json_values::json_values;
use super::limits::{Body, BodyLimits, ListLimit};
use super::request::{ChunkBody, chunks_of};
use super::schema::require_one;
use super::wire::{TextOrInteger, choice, ids, or_default};
use crate::error::{ApiError, ErrorCode};

/// Body of `POST /v1/attribute`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = name_chunks_once)]
pub struct AttributeBody {
    /// The text to attribute; not blank.
    answer: String,
    /// Accepted, so that the body of a compression can be reused, and ignored: `docs/evaluation.md` says why.
    #[serde(default, rename = "query")]
    _query: Option<String>,
    /// The chunks that the answer may have come from.
    #[serde(default)]
    chunks: Option<Vec<ChunkBody>>,
    /// Instead of `chunks`: the ids of registered chunks, each once.
    #[serde(default, deserialize_with = "ids")]
    #[schemars(with = "Option<Vec<TextOrInteger>>")]
    chunk_ids: Option<Vec<String>>,
    /// Instead of `chunks`: the `id` of the compression whose context the answer was written from.
    #[serde(default)]
    compress_id: Option<String>,
    /// The parts of the answer that are attributed.
    #[serde(default)]
    #[schemars(with = "Option<PartsBody>")]
    granularity: Option<Choice<PartsBody>>,
    /// Ranges of the answer to attribute: ascending, without overlap, in the unit of `offsets`.
    #[serde(default)]
    spans: Option<Vec<SpanBody>>,
    /// The most sources that are named for each part.
    #[serde(default)]
    #[schemars(range(max = 100))]
    sources_max: Option<usize>,
    /// The unit of every offset in the request and the answer.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<OffsetUnit>")]
    offsets: OffsetUnit,
    /// In which other format the attribution is repeated.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<CitationFormat>")]
    format: CitationFormat,
    /// Whether the answer includes a signed record of the attribution.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    receipt: bool,
    /// Milliseconds until the answer is due, including the time in the queue.
    #[serde(default)]
    deadline_ms: Option<u64>,
}

/// The parts of an answer that are attributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AttributeGranularity")]
enum PartsBody {
    /// Every word.
    Word,
    /// Every sentence.
    #[default]
    Sentence,
    /// The ranges in `spans`.
    Span,
}

/// Requires one way to name the chunks.
fn name_chunks_once(schema: &mut Schema) {
    require_one(schema, &["chunks", "chunk_ids", "compress_id"]);
}

/// One of several words, where a missing field has to be told from the default.
#[derive(Debug, Clone, Copy)]
struct Choice<T>(T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Choice<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        choice(from).map(Self)
    }
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Span")]
/// A half-open range of the answer.
struct SpanBody {
    start: usize,
    end: usize,
}

/// Chunks that a request names instead of sending them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkReference {
    Registered(Vec<String>),
    /// The id of the compression that had the chunks.
    Compressed(String),
}

/// How the caller wants the attribution written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeOptions {
    pub offsets: OffsetUnit,
    pub receipt: bool,
    format: CitationFormat,
    /// Why sentences are attributed although `format` asks for the values of a JSON answer.
    fallback: Option<String>,
}

impl Body for AttributeBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("chunks"), limits.chunk_ids(), limits.spans()]
    }
}

impl AttributeBody {
    /// The deadline that the request names, in milliseconds.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    /// The chunks that the request names; none if it sends its own.
    ///
    /// # Errors
    /// `fields_conflict`, if it names chunks in two ways.
    pub fn chunk_reference(&self) -> Result<Option<ChunkReference>, ApiError> {
        match (&self.chunk_ids, &self.compress_id) {
            (None, None) => Ok(None),
            (Some(_), _) if self.chunks.is_some() => {
                let message = "send `chunks` or name registered ones in `chunk_ids`, not both";
                Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "chunk_ids"))
            }
            (Some(ids), None) => Ok(Some(ChunkReference::Registered(ids.clone()))),
            (None, Some(_)) if self.chunks.is_some() => {
                let message =
                    "send `chunks` or name a request that compressed them in `compress_id`, not both";
                Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "compress_id"))
            }
            (None, Some(id)) => Ok(Some(ChunkReference::Compressed(id.clone()))),
            (Some(_), Some(_)) => {
                let message = "name chunks in `chunk_ids` or by `compress_id`, not both";
                Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "compress_id"))
            }
        }
    }

    /// The request to the pipeline. `referenced` are the chunks of [`Self::chunk_reference`]; none if there is no daemon to look them up.
    ///
    /// # Errors
    /// Fails if the request has no chunks or two kinds of them, a span that is not a range of the answer, an answer over its limit, or a
    /// JSON answer with too many values.
    pub fn into_domain(
        mut self,
        referenced: Option<Vec<Arc<Chunk>>>,
        limits: &BodyLimits,
    ) -> Result<(AttributeRequest, AttributeOptions), ApiError> {
        let answer = std::mem::take(&mut self.answer);
        // The answer's parts are found before the pipeline checks the request as a whole.
        let (found, max) = (answer.len(), limits.requests.answer_bytes_max);
        if found > max {
            return Err(InvalidRequest::AnswerTooLong { found, max }.into());
        }
        let (granularity, spans) = (self.granularity.map(|granularity| granularity.0), self.spans.take());
        if self.format == CitationFormat::Json && (granularity.is_some() || spans.is_some()) {
            let message = "with format \"json\" the values of the answer are its parts: leave granularity and spans out";
            return Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "format"));
        }
        let parts = parts(&answer, granularity, spans, self.offsets)?;
        let (parts, fallback) = match self.format {
            CitationFormat::Json => match json_values(&answer, limits) {
                Ok(values) => (values, None),
                Err(NoValues::Unusable(why)) => (parts, Some(why)),
                Err(too_many @ NoValues::TooMany { .. }) => {
                    return Err(ApiError::with_param(ErrorCode::TooMany, too_many.to_string(), "answer"));
                }
            },
            _ => (parts, None),
        };
        if self.compress_id.is_some() && referenced.is_none() {
            let message =
                "`compress_id` works only with a daemon, which remembers compressions; send `chunks`";
            return Err(ApiError::with_param(ErrorCode::Unavailable, message, "compress_id"));
        }
        let registered = self.chunk_ids.is_some() || self.compress_id.is_some();
        let chunks = chunks_of(self.chunks, registered, referenced, self.offsets)?;
        let sources_max = self.sources_max.unwrap_or(SOURCES_DEFAULT);
        let request =
            AttributeRequest { answer, chunks, registered, seen: None, markers: None, parts, sources_max };
        let (offsets, receipt, format) = (self.offsets, self.receipt, self.format);
        Ok((request, AttributeOptions { offsets, receipt, format, fallback }))
    }
}

/// The parts of an answer that the request asks for. Where it names spans, it need not say that it means spans.
fn parts(
    answer: &str,
    granularity: Option<PartsBody>,
    spans: Option<Vec<SpanBody>>,
    unit: OffsetUnit,
) -> Result<Parts, ApiError> {
    match (granularity, spans) {
        (None | Some(PartsBody::Sentence), None) => Ok(Parts::Sentences),
        (Some(PartsBody::Word), None) => Ok(Parts::Words),
        (Some(PartsBody::Span), None) => {
            let message = "missing field `spans`: granularity \"span\" attributes the spans that it names";
            Err(ApiError::with_param(ErrorCode::MissingField, message, "spans"))
        }
        (None | Some(PartsBody::Span), Some(spans)) => {
            let map = OffsetMap::new(answer, unit);
            let bytes = |(index, span): (usize, &SpanBody)| {
                map.to_bytes(span.start..span.end).map_err(|error| span_error(index, error))
            };
            let spans: Vec<ByteRange> = spans.iter().enumerate().map(bytes).collect::<Result<_, _>>()?;
            Ok(Parts::Spans(spans))
        }
        (Some(_), Some(_)) => {
            let message = "spans needs granularity \"span\", or none";
            Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "spans"))
        }
    }
}

fn span_error(index: usize, error: OffsetError) -> ApiError {
    let param = format!("spans[{index}]");
    ApiError::with_param((&error).into(), format!("{param}: {error}"), param)
}
