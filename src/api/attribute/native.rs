//! Our own shape.

use std::cell::OnceCell;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk};
use thresher_core::kv::store::Sources;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::attribute::{
    Attributed, ESTIMATOR, PartOutcome, Source, UnsupportedKind, UnsupportedSpan,
};
use thresher_core::text::offsets::OffsetUnit;

use super::dialect::Dialect;
use super::{AttributeOptions, anthropic, json_answer, markers, openai};
use crate::api::TimingMs;
use crate::api::response::{Places, Range};
use crate::receipt::Receipt;

/// Answer of `POST /v1/attribute`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct AttributeAnswer {
    /// Parts of the answer, in its order.
    parts: Vec<PartAnswer>,
    /// The same in the words that `format` names.
    #[serde(skip_serializing_if = "Option::is_none")]
    formatted: Option<Value>,
    /// By which model and how.
    rc: RcAnswer,
    /// Where what the model knows of the chunks came from.
    blocks: Sources,
    timing_ms: TimingMs,
    /// A signed record, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<Receipt>,
}

/// A part of the answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Part")]
pub struct PartAnswer {
    #[serde(flatten)]
    range: Range,
    /// What stands there in the answer.
    pub(super) text: String,
    /// Whether the chunks support it; none where there is nothing to say of it.
    pub(super) supported: Option<bool>,
    /// How well, from 0 to 1.
    support: Option<f32>,
    /// What in it no chunk supports.
    pub(super) unsupported: Vec<UnsupportedAnswer>,
    /// Chunks that it came from, best first.
    pub(super) sources: Vec<SourceAnswer>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Unsupported")]
/// Words of a part that its sources do not have.
pub(super) struct UnsupportedAnswer {
    #[serde(flatten)]
    range: Range,
    /// The words.
    pub(super) text: String,
    /// What they are.
    reason: UnsupportedKind,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Source")]
/// A chunk that a part came from.
pub(super) struct SourceAnswer {
    /// Its id.
    pub(super) chunk: String,
    /// Its place in the request.
    index: usize,
    /// How strongly; compares within a part.
    #[serde(serialize_with = "digits")]
    #[schemars(with = "f64")]
    score: f32,
    /// Whether to cite it.
    pub(super) cited: bool,
    /// Whether it says the same as one before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tied: bool,
    /// The sentence that the part came from.
    pub(super) sentence: SourceText,
    /// The longest words in common.
    run: SourceText,
}

/// In as few digits as tell it from its neighbours, in trees of JSON, too, whose numbers have 64 bits.
fn digits<S: Serializer>(score: &f32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(score.to_string().parse().unwrap_or_else(|_| f64::from(*score)))
}

/// A range of a chunk's text, and what stands there.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Passage")]
pub(super) struct SourceText {
    #[serde(flatten)]
    range: Range,
    pub(super) text: String,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "AttributeRc")]
/// By which model and how.
struct RcAnswer {
    estimator: &'static str,
    model: String,
    fingerprint: String,
}

/// What chunks are called where they are not the request's own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Names<'a> {
    /// For each chunk its place in the caller's list; none: in the request.
    pub places: Option<&'a [usize]>,
    /// For each chunk the number that the answer's author knew it by; none: its place, from 1.
    pub markers: Option<&'a [Option<usize>]>,
}

/// What parts of an attribution are put into words with.
pub struct Words<'a> {
    pub(super) answer: &'a str,
    pub(super) chunks: &'a [Arc<Chunk>],
    names: Names<'a>,
    /// Characters of the chunks, for the dialects that count these.
    pub(super) characters: InChunks<'a>,
    /// Addresses of the chunks, each read from the chunk's metadata when it is first cited.
    urls: Vec<OnceCell<Option<String>>>,
}

/// Places in chunks. Most chunks are no part's source: one is counted through when it is first asked for.
pub(super) struct InChunks<'a> {
    chunks: &'a [Arc<Chunk>],
    unit: OffsetUnit,
    places: Vec<OnceCell<Places<'a>>>,
}

impl<'a> InChunks<'a> {
    fn new(chunks: &'a [Arc<Chunk>], unit: OffsetUnit) -> Self {
        Self { chunks, unit, places: chunks.iter().map(|_| OnceCell::new()).collect() }
    }

    /// A range of a chunk's text.
    pub fn range(&self, chunk: usize, bytes: ByteRange) -> Range {
        self.places[chunk].get_or_init(|| Places::new(&self.chunks[chunk].text, self.unit)).range(bytes)
    }
}

impl<'a> Words<'a> {
    /// For an answer from these chunks.
    pub fn new(answer: &'a str, chunks: &'a [Arc<Chunk>], names: Names<'a>) -> Self {
        let characters = InChunks::new(chunks, OffsetUnit::Codepoint);
        Self { answer, chunks, names, characters, urls: vec![OnceCell::new(); chunks.len()] }
    }

    pub(super) fn chunk(&self, source: &Source) -> &Chunk {
        &self.chunks[source.chunk]
    }

    /// The chunk's address, where its metadata has one.
    pub(super) fn url(&self, source: &Source) -> Option<&str> {
        self.urls[source.chunk].get_or_init(|| openai::url(self.chunk(source))).as_deref()
    }

    /// The chunk's place in the caller's list.
    pub(super) fn index(&self, source: &Source) -> usize {
        self.names.places.map_or(source.chunk, |places| places[source.chunk])
    }

    /// The number that stands for the chunk in texts.
    pub(super) fn marker(&self, source: &Source) -> usize {
        let known = self.names.markers.and_then(|markers| markers[source.chunk]);
        known.unwrap_or_else(|| self.index(source) + 1)
    }

    /// What the source says, as it stands in the chunk.
    pub(super) fn cited_text(&self, source: &Source) -> &str {
        source.sentence.of(&self.chunk(source).text)
    }
}

impl AttributeAnswer {
    /// Puts an attribution into words.
    pub fn new(
        request: &AttributeRequest,
        attributed: &Attributed,
        options: &AttributeOptions,
        by: &Pipeline,
        names: Names,
    ) -> Self {
        let words = Words::new(&request.answer, &request.chunks, names);
        let parts = PartAnswer::all(&words, &attributed.parts, options.offsets);
        let model = by.model();
        let formatted = match options.dialect {
            Dialect::Json => Some(json_answer::pointers(&request.parts, &parts, options.fallback.as_deref())),
            dialect => formatted(&words, &attributed.parts, dialect),
        };
        Self {
            parts,
            formatted,
            rc: RcAnswer {
                estimator: ESTIMATOR,
                model: model.name.clone(),
                fingerprint: model.fingerprint.clone(),
            },
            blocks: attributed.block_sources,
            timing_ms: TimingMs::from(&attributed.timings),
            receipt: None,
        }
    }

    /// Parts of the answer, in its order.
    pub(super) fn parts(&self) -> &[PartAnswer] {
        &self.parts
    }

    /// The same with a signed record of it.
    pub fn with_receipt(self, receipt: Option<Receipt>) -> Self {
        Self { receipt, ..self }
    }
}

fn formatted(words: &Words, parts: &[PartOutcome], dialect: Dialect) -> Option<Value> {
    Some(match dialect {
        // Of answers that are JSON, what is said of each part is said at its pointer.
        Dialect::Native | Dialect::Json => return None,
        Dialect::AnthropicDocument => anthropic::blocks(words, parts, anthropic::char_location),
        Dialect::AnthropicSearchResult => anthropic::blocks(words, parts, |words, source| {
            anthropic::search_result_location(words, source, 0)
        }),
        Dialect::OpenaiResponses => openai::response_item(words, parts),
        Dialect::OpenaiChat => openai::chat_message(words, parts),
        Dialect::Markers => markers::text(words, parts),
    })
}

impl PartAnswer {
    /// Whether it is supported, and what to cite for it.
    pub(super) fn verdict(&self) -> Value {
        let cited = self.sources.iter().filter(|source| source.cited);
        let cited: Value =
            cited.map(|source| serde_json::to_value(source).expect("a source is JSON")).collect();
        json!({"supported": self.supported, "citations": cited})
    }

    /// Parts of an answer that is still arriving, of which `answer` has come.
    pub fn of_stream(
        answer: &str,
        chunks: &[Arc<Chunk>],
        parts: &[PartOutcome],
        (options, names): (&AttributeOptions, Names),
    ) -> Vec<Self> {
        Self::all(&Words::new(answer, chunks, names), parts, options.offsets)
    }

    fn all(words: &Words, parts: &[PartOutcome], unit: OffsetUnit) -> Vec<Self> {
        let answer = Places::new(words.answer, unit);
        let chunks = InChunks::new(words.chunks, unit);
        parts.iter().map(|part| Self::new(words, part, &answer, &chunks)).collect()
    }

    fn new(words: &Words, part: &PartOutcome, answer: &Places, chunks: &InChunks) -> Self {
        let unsupported = |unsupported: &UnsupportedSpan| UnsupportedAnswer {
            range: answer.range(unsupported.bytes),
            text: unsupported.bytes.of(words.answer).to_owned(),
            reason: unsupported.kind,
        };
        let source = |source: &Source| {
            let chunk = words.chunk(source);
            let place = |bytes: ByteRange| SourceText {
                range: chunks.range(source.chunk, bytes),
                text: bytes.of(&chunk.text).to_owned(),
            };
            SourceAnswer {
                chunk: chunk.id.clone(),
                index: words.index(source),
                score: source.score,
                cited: source.cited,
                tied: source.tied,
                sentence: place(source.sentence),
                run: place(source.run),
            }
        };
        Self {
            range: answer.range(part.bytes),
            text: part.bytes.of(words.answer).to_owned(),
            supported: part.is_supported(),
            support: part.support,
            unsupported: part.unsupported.iter().map(unsupported).collect(),
            sources: part.sources.iter().map(source).collect(),
        }
    }
}
