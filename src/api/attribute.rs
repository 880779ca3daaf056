//! `POST /v1/attribute`: an answer and where its parts came from, in our words and in those of others.

pub mod anthropic;
mod arriving;
mod dialect;
mod json_answer;
mod markers;
mod native;
pub mod openai;
mod plain;

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Value, json};
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk, Parts, SOURCES_DEFAULT};
use thresher_core::pipeline::validate::InvalidRequest;
use thresher_core::text::offsets::{OffsetError, OffsetMap, OffsetUnit};

pub use self::arriving::{Arrival, arrival};
use self::dialect::Dialect;
use self::json_answer::NoValues;
pub use self::json_answer::parts as values;
pub use self::native::{AttributeAnswer, Names, PartAnswer, Words};
use super::limits::{Body, BodyLimits, ListLimit};
use super::request::{ChunkBody, choice, chunks_of, one_of, or_default};
use crate::error::{ApiError, ErrorCode};

/// Body of `POST /v1/attribute`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = whole_answer)]
pub struct AttributeBody {
    /// The text whose parts are tied to chunks; not blank.
    #[serde(default)]
    answer: Option<String>,
    /// May be sent, as the request that compressed had it, and changes nothing: `docs/evaluation.md`, what did not work.
    #[serde(default, rename = "query")]
    _query: Option<String>,
    /// What it may have come from.
    #[serde(default)]
    chunks: Option<Vec<ChunkBody>>,
    /// Instead of `chunks`: ids of registered ones, each once.
    #[serde(default)]
    chunk_ids: Option<Vec<String>>,
    /// Instead of `chunks`: the `id` of the compression whose context the answer was given from.
    #[serde(default)]
    compress_id: Option<String>,
    /// What is attributed.
    #[serde(default)]
    #[schemars(with = "Option<PartsBody>")]
    granularity: Option<Choice<PartsBody>>,
    /// Ranges of the answer that are asked about: ascending, apart, in the unit of `offsets`.
    #[serde(default)]
    spans: Option<Vec<SpanBody>>,
    /// Chunks that are named for each part.
    #[serde(default)]
    #[schemars(range(max = 100))]
    sources_max: Option<usize>,
    /// Unit of every offset.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<OffsetUnit>")]
    offsets: OffsetUnit,
    /// In whose words the answer is repeated.
    #[serde(default, deserialize_with = "choice")]
    #[schemars(with = "Option<Dialect>")]
    format: Dialect,
    /// Whether a signed record is wanted.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(with = "Option<bool>")]
    receipt: bool,
    /// Milliseconds that the caller waits, queueing included.
    #[serde(default)]
    deadline_ms: Option<u64>,
}

/// What is attributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AttributeGranularity")]
enum PartsBody {
    /// Words.
    Token,
    /// Sentences.
    #[default]
    Sentence,
    /// The ranges in `spans`.
    Span,
}

/// Of an answer that is there: what serde cannot say of fields that stream and whole answer share.
fn whole_answer(schema: &mut Schema) {
    schema.insert("required".to_owned(), json!(["answer"]));
    schema.insert("oneOf".to_owned(), one_of(&["chunks", "chunk_ids", "compress_id"]));
    if let Some(answer) = schema.pointer_mut("/properties/answer").and_then(Value::as_object_mut) {
        answer.insert("type".to_owned(), "string".into());
        answer.remove("default");
    }
}

/// One of several words, told apart from none.
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
/// A half-open range.
struct SpanBody {
    start: usize,
    end: usize,
}

/// How a request names chunks that it does not send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// By their ids in the registry.
    Registered(Vec<String>),
    /// By the request that compressed them.
    Compressed(String),
}

/// What a request says about its answer, apart from what it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeOptions {
    /// Unit of every offset in the answer.
    pub offsets: OffsetUnit,
    /// Whether a signed record is wanted.
    pub receipt: bool,
    /// In whose words the answer is repeated.
    dialect: Dialect,
    /// Why the parts are no values of JSON, where these were asked for.
    fallback: Option<String>,
}

impl Body for AttributeBody {
    fn lists(limits: &BodyLimits) -> Vec<ListLimit> {
        vec![limits.chunks("chunks"), limits.chunk_ids(), limits.spans()]
    }
}

impl AttributeBody {
    /// Milliseconds that the caller waits.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    /// Chunks that it names instead of sending them.
    ///
    /// # Errors
    /// When it names them in two ways, or in none.
    pub fn named(&self) -> Result<Option<Named>, ApiError> {
        match (&self.chunk_ids, &self.compress_id) {
            (None, None) => Ok(None),
            (Some(_), _) if self.chunks.is_some() => {
                let message = "send `chunks` or name registered ones in `chunk_ids`, not both";
                Err(ApiError::with_param(ErrorCode::ChunksAmbiguous, message, "chunk_ids"))
            }
            (Some(ids), None) => Ok(Some(Named::Registered(ids.clone()))),
            (None, Some(_)) if self.chunks.is_some() => {
                let message =
                    "send `chunks` or name a request that compressed them in `compress_id`, not both";
                Err(ApiError::with_param(ErrorCode::ChunksAmbiguous, message, "compress_id"))
            }
            (None, Some(id)) => Ok(Some(Named::Compressed(id.clone()))),
            (Some(_), Some(_)) => {
                let message = "name chunks in `chunk_ids` or by `compress_id`, not both";
                Err(ApiError::with_param(ErrorCode::ChunksAmbiguous, message, "compress_id"))
            }
        }
    }

    /// The answer and how to speak of it. `named` are the chunks of [`Self::named`], where there is a daemon that knows them.
    ///
    /// # Errors
    /// When the request names none or several kinds of chunks, or spans that are none of the answer's; when the answer is too long, or
    /// has too many values.
    pub fn into_domain(
        mut self,
        named: Option<Vec<Arc<Chunk>>>,
        limits: &BodyLimits,
    ) -> Result<(AttributeRequest, AttributeOptions), ApiError> {
        let Some(answer) = self.answer.take() else {
            return Err(ApiError::with_param(ErrorCode::MissingField, "missing field `answer`", "answer"));
        };
        // The answer's parts are found before the pipeline checks the request as a whole.
        let (found, max) = (answer.len(), limits.answer_bytes_max);
        if found > max {
            let wrong = InvalidRequest::AnswerTooLong { found, max };
            return Err(wrong.into());
        }
        let asked = (self.granularity.map(|granularity| granularity.0), self.spans.take());
        if self.format == Dialect::Json && (asked.0.is_some() || asked.1.is_some()) {
            let message = "with format \"json\" the values of the answer are its parts: leave granularity and spans out";
            return Err(ApiError::with_param(ErrorCode::SpansUnexpected, message, "format"));
        }
        let parts = parts(&answer, asked, self.offsets)?;
        let (parts, fallback) = match self.format {
            Dialect::Json => match json_answer::parts(&answer, limits) {
                Ok(values) => (values, None),
                Err(NoValues::Unusable(why)) => (parts, Some(why)),
                Err(too_many @ NoValues::TooMany { .. }) => {
                    return Err(ApiError::with_param(ErrorCode::SpanTooMany, too_many.to_string(), "answer"));
                }
            },
            _ => (parts, None),
        };
        self.with(answer, (parts, fallback), named)
    }

    /// The same of an answer that is still to come: its parts are sentences, or their words.
    ///
    /// # Errors
    /// As [`Self::into_domain`]; when the request says what can be said of a whole answer only.
    pub fn into_stream(
        self,
        named: Option<Vec<Arc<Chunk>>>,
        _: &BodyLimits,
    ) -> Result<(AttributeRequest, AttributeOptions), ApiError> {
        let misplaced = match () {
            () if self.answer.is_some() => {
                Some(("answer", "answer is not taken here: the answer arrives in the events that follow"))
            }
            () if self.spans.is_some() => Some((
                "spans",
                "spans is not taken here: positions in an answer that is still to come are not known",
            )),
            () if matches!(self.granularity, Some(Choice(PartsBody::Span))) => Some((
                "granularity",
                "granularity \"span\" is not taken here: an answer that is still to come has sentences and words only",
            )),
            () if self.receipt => {
                Some(("receipt", "receipt is not taken here: receipts are of whole answers"))
            }
            () if self.format != Dialect::Native => {
                Some(("format", "format is not taken here: parts are sent in the native format"))
            }
            () => None,
        };
        if let Some((field, message)) = misplaced {
            return Err(ApiError::with_param(ErrorCode::StreamOptionInvalid, message, field));
        }
        let parts = parts("", (self.granularity.map(|granularity| granularity.0), None), self.offsets)?;
        self.with(String::new(), (parts, None), named)
    }

    fn with(
        self,
        answer: String,
        (parts, fallback): (Parts, Option<String>),
        named: Option<Vec<Arc<Chunk>>>,
    ) -> Result<(AttributeRequest, AttributeOptions), ApiError> {
        if self.compress_id.is_some() && named.is_none() {
            let message = "compress_id names a compression that a daemon remembers, and this request is answered without one: send `chunks`";
            return Err(ApiError::with_param(ErrorCode::HandlesAbsent, message, "compress_id"));
        }
        let registered = self.chunk_ids.is_some() || self.compress_id.is_some();
        let chunks = chunks_of(self.chunks, registered, named)?;
        let sources_max = self.sources_max.unwrap_or(SOURCES_DEFAULT);
        let request = AttributeRequest { answer, chunks, registered, seen: None, parts, sources_max };
        let (offsets, receipt, dialect) = (self.offsets, self.receipt, self.format);
        Ok((request, AttributeOptions { offsets, receipt, dialect, fallback }))
    }
}

/// Spans are meant where they are named.
fn parts(
    answer: &str,
    (granularity, spans): (Option<PartsBody>, Option<Vec<SpanBody>>),
    unit: OffsetUnit,
) -> Result<Parts, ApiError> {
    match (granularity, spans) {
        (None | Some(PartsBody::Sentence), None) => Ok(Parts::Sentences),
        (Some(PartsBody::Token), None) => Ok(Parts::Words),
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
            Err(ApiError::with_param(ErrorCode::SpansUnexpected, message, "spans"))
        }
    }
}

fn span_error(index: usize, error: OffsetError) -> ApiError {
    let param = format!("spans[{index}]");
    ApiError::with_param((&error).into(), format!("{param}: {error}"), param)
}
