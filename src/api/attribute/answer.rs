//! Answers of `POST /v1/attribute`: the parts of an answer and their sources, as JSON and as plain text.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use thresher_core::domain::{AttributeRequest, ByteRange, Parts};
use thresher_core::kv::store::BlockOrigins;
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::attribute::{
    Attributed, Conflict, ConflictKind, ESTIMATOR, Method, PartOutcome, QuoteOutcome, QuoteVerdict,
    QuotedSpan, Source, UnsupportedKind, UnsupportedSpan, Verdict,
};
use thresher_core::pipeline::units::Unit;
use thresher_core::text::offsets::OffsetUnit;

use super::AttributeOptions;
use super::dialects::{self, ChunkNumbers, ChunkOffsets, CitationContext, CitationFormat};
use crate::api::place::PlaceAnswer;
use crate::api::response::{Offsets, Range, TimingMs};
use crate::api::source_conflict::{SourceConflictAnswer, StatementAnswer};
use crate::receipt::Receipt;

/// Answer of `POST /v1/attribute`.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct AttributeAnswer {
    /// Parts of the answer, in its order.
    parts: Vec<PartAnswer>,
    /// What stands between quotation marks, of at least three words, in the order of the answer; with format `json`, the values of as many.
    quotes: Vec<QuoteAnswer>,
    /// Cited sentences that a sentence of another chunk contradicts; left out if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    source_conflicts: Vec<SourceConflictAnswer>,
    /// The attribution in the format that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    formatted: Option<Value>,
    /// The model, and the statistic by which it scored.
    rc: RcAnswer,
    /// How many blocks (cached keys of chunks) came from which tier of the cache.
    blocks: BlockOrigins,
    timing_ms: TimingMs,
    /// A signed record of the attribution, if the request asks for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<Receipt>,
}

/// A part of the answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Part")]
pub struct PartAnswer {
    #[serde(flatten)]
    range: Range,
    /// The text of the part.
    text: String,
    /// What the chunks say of it.
    verdict: Verdict,
    /// The probability that the chunks support it; null if nothing judged it.
    support: Option<f32>,
    /// What judged it; absent if nothing did.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<Method>,
    /// The words in it that no chunk supports.
    unsupported: Vec<UnsupportedAnswer>,
    /// What the chunks say instead, if the verdict is `contradicted`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conflicts: Vec<ConflictAnswer>,
    /// The chunks that it came from, best first.
    sources: Vec<SourceAnswer>,
    /// How many independent sources support it: copies, overlapping windows and chunks with one title count once.
    sources_independent: usize,
}

/// What a chunk says instead of a part.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Conflict")]
struct ConflictAnswer {
    #[serde(flatten)]
    range: Range,
    /// The words of the answer.
    text: String,
    /// Why the chunk excludes them.
    reason: ConflictKind,
    /// The id of the chunk.
    chunk: String,
    /// The index of the chunk in the request.
    index: usize,
    /// The word of the chunk.
    source: SourceText,
    /// Where the word stands in the document of the chunk.
    #[serde(flatten)]
    place: PlaceAnswer,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Unsupported")]
/// Words of a part that no source has.
struct UnsupportedAnswer {
    #[serde(flatten)]
    range: Range,
    /// The words.
    text: String,
    /// What kind of words they are.
    reason: UnsupportedKind,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Source")]
/// A chunk that a part came from.
struct SourceAnswer {
    /// The id of the chunk.
    chunk: String,
    /// The index of the chunk in the request.
    index: usize,
    /// How strongly the part depends on the chunk; compares sources of one part only.
    #[serde(serialize_with = "digits")]
    #[schemars(with = "f64")]
    score: f32,
    /// Whether the source is good enough to be cited.
    cited: bool,
    /// Whether it says the same as a source before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tied: bool,
    /// The sentence of the chunk that the part came from.
    sentence: SourceText,
    /// The longest run of words that the sentence has in common with the part.
    run: SourceText,
    /// Where the sentence stands in the document of the chunk.
    #[serde(flatten)]
    place: PlaceAnswer,
}

/// Writes a score with as few digits as tell it from its neighbours of 32 bits, although JSON values hold 64 bits.
fn digits<S: Serializer>(score: &f32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(score.to_string().parse().unwrap_or_else(|_| f64::from(*score)))
}

/// A range of a chunk's text, and its text.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Passage")]
struct SourceText {
    #[serde(flatten)]
    range: Range,
    text: String,
}

/// A quotation in the answer.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Quote")]
struct QuoteAnswer {
    #[serde(flatten)]
    range: Range,
    /// The text of the quotation, without its marks.
    text: String,
    /// Whether it stands in a chunk.
    verdict: QuoteVerdict,
    /// Whether a mark such as `…` says that something was left out.
    has_ellipsis: bool,
    /// The passages that it came from, in its order; none if it is fabricated.
    passages: Vec<PassageAnswer>,
    /// The words that the passages do not have.
    altered: Vec<AlteredAnswer>,
}

/// A passage of a chunk that a quotation repeats.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "QuotePassage")]
struct PassageAnswer {
    /// The id of the chunk.
    chunk: String,
    /// The index of the chunk in the request.
    index: usize,
    #[serde(flatten)]
    passage: SourceText,
    /// Where the passage stands in the document of the chunk.
    #[serde(flatten)]
    place: PlaceAnswer,
}

/// A word of a quotation that its source does not have.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "AlteredWord")]
struct AlteredAnswer {
    #[serde(flatten)]
    range: Range,
    /// The word.
    text: String,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "AttributeRc")]
/// The model, and the statistic by which it scored.
struct RcAnswer {
    estimator: &'static str,
    model: String,
    fingerprint: String,
}

impl AttributeAnswer {
    /// The answer for an attribution that `pipeline` made.
    pub fn new(
        request: &AttributeRequest,
        attributed: &Attributed,
        options: &AttributeOptions,
        pipeline: &Pipeline,
        numbers: ChunkNumbers,
    ) -> Self {
        let context = CitationContext::new(&request.answer, &request.chunks, numbers, pipeline);
        let parts = PartAnswer::all(&context, &attributed.parts, options.offsets);
        let model = pipeline.model();
        let formatted = match options.format {
            CitationFormat::Json => Some(pointers(&request.parts, &parts, options.fallback.as_deref())),
            CitationFormat::Markers => Some(dialects::markers(&context, &attributed.parts)),
            CitationFormat::Native => None,
        };
        let chunks = ChunkOffsets::new(&request.chunks, options.offsets);
        let statement = |unit: &Unit| {
            let (chunk, Range { start, end }) =
                (&request.chunks[unit.chunk], chunks.range(unit.chunk, unit.bytes));
            StatementAnswer {
                chunk: chunk.id.clone(),
                index: context.index(unit.chunk),
                start,
                end,
                text: unit.bytes.slice(&chunk.text).to_owned(),
                place: context.place(unit.chunk, unit.bytes).into(),
            }
        };
        Self {
            parts,
            quotes: QuoteAnswer::all(&context, &attributed.quotes, options.offsets),
            source_conflicts: SourceConflictAnswer::all(&attributed.conflicts, statement),
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

    pub fn with_receipt(self, receipt: Option<Receipt>) -> Self {
        Self { receipt, ..self }
    }
}

impl QuoteAnswer {
    fn all(context: &CitationContext, quotes: &[QuoteOutcome], unit: OffsetUnit) -> Vec<Self> {
        if quotes.is_empty() {
            return Vec::new();
        }
        let answer = Offsets::new(context.answer, unit);
        let chunks = ChunkOffsets::new(context.chunks, unit);
        let passage = |&QuotedSpan { chunk, bytes }: &QuotedSpan| PassageAnswer {
            chunk: context.chunks[chunk].id.clone(),
            index: context.index(chunk),
            passage: SourceText {
                range: chunks.range(chunk, bytes),
                text: bytes.slice(&context.chunks[chunk].text).to_owned(),
            },
            place: context.place(chunk, bytes).into(),
        };
        let text = |bytes: ByteRange| bytes.slice(context.answer).to_owned();
        let altered = |&bytes: &ByteRange| AlteredAnswer { range: answer.range(bytes), text: text(bytes) };
        let quote = |quote: &QuoteOutcome| Self {
            range: answer.range(quote.bytes),
            text: text(quote.bytes),
            verdict: quote.verdict,
            has_ellipsis: quote.has_ellipsis,
            passages: quote.passages.iter().map(passage).collect(),
            altered: quote.altered.iter().map(altered).collect(),
        };
        quotes.iter().map(quote).collect()
    }
}

impl PartAnswer {
    /// The verdict on the part, and the sources to cite for it.
    fn verdict(&self) -> Value {
        let cited = self.sources.iter().filter(|source| source.cited);
        let cited: Value =
            cited.map(|source| serde_json::to_value(source).expect("a source is JSON")).collect();
        json!({"verdict": self.verdict, "citations": cited})
    }

    /// Parts of an answer of the middleware, as JSON; offsets are code points of the text.
    pub fn values(context: &CitationContext, parts: &[PartOutcome]) -> Vec<Value> {
        let parts = Self::all(context, parts, OffsetUnit::Codepoint);
        parts.iter().map(|part| serde_json::to_value(part).expect("a part is JSON")).collect()
    }

    fn all(context: &CitationContext, parts: &[PartOutcome], unit: OffsetUnit) -> Vec<Self> {
        let answer = Offsets::new(context.answer, unit);
        let chunks = ChunkOffsets::new(context.chunks, unit);
        parts.iter().map(|part| Self::new(context, part, &answer, &chunks)).collect()
    }

    fn new(context: &CitationContext, part: &PartOutcome, answer: &Offsets, chunks: &ChunkOffsets) -> Self {
        let unsupported = |unsupported: &UnsupportedSpan| UnsupportedAnswer {
            range: answer.range(unsupported.bytes),
            text: unsupported.bytes.slice(context.answer).to_owned(),
            reason: unsupported.kind,
        };
        let conflict = |conflict: &Conflict| ConflictAnswer {
            range: answer.range(conflict.bytes),
            text: conflict.bytes.slice(context.answer).to_owned(),
            reason: conflict.kind,
            chunk: context.chunks[conflict.chunk].id.clone(),
            index: context.index(conflict.chunk),
            source: SourceText {
                range: chunks.range(conflict.chunk, conflict.source),
                text: conflict.source.slice(&context.chunks[conflict.chunk].text).to_owned(),
            },
            place: context.place(conflict.chunk, conflict.source).into(),
        };
        let source = |source: &Source| {
            let chunk = context.chunk(source);
            let passage = |bytes: ByteRange| SourceText {
                range: chunks.range(source.chunk, bytes),
                text: bytes.slice(&chunk.text).to_owned(),
            };
            SourceAnswer {
                chunk: chunk.id.clone(),
                index: context.index(source.chunk),
                score: source.score,
                cited: source.cited,
                tied: source.tied,
                sentence: passage(source.sentence),
                run: passage(source.run),
                place: context.place(source.chunk, source.sentence).into(),
            }
        };
        Self {
            range: answer.range(part.bytes),
            text: part.bytes.slice(context.answer).to_owned(),
            verdict: part.verdict,
            support: part.support,
            method: part.method,
            unsupported: part.unsupported.iter().map(unsupported).collect(),
            conflicts: part.conflicts.iter().map(conflict).collect(),
            sources: part.sources.iter().map(source).collect(),
            sources_independent: part.sources_independent,
        }
    }
}

/// The verdict on each value of a JSON answer, by its JSON pointer; where sentences were attributed instead, why.
fn pointers(parts: &Parts, answers: &[PartAnswer], fallback: Option<&str>) -> Value {
    let Parts::Values(values) = parts else {
        let reason = fallback.unwrap_or_default();
        return json!({"pointers": {}, "fallback": format!("{reason}: its sentences were attributed")});
    };
    let all: Map<String, Value> =
        values.iter().zip(answers).map(|(value, answer)| (value.pointer.clone(), answer.verdict())).collect();
    json!({"pointers": all, "fallback": null})
}

impl AttributeAnswer {
    /// The attribution as plain text, for people and models: a line for each part and, below it, its sources and its unsupported words.
    pub fn to_plain_text(&self) -> String {
        let mut text = String::new();
        self.parts.iter().for_each(|part| part.write_plain_text(&mut text));
        if text.is_empty() { "The answer has no part that could be attributed.".to_owned() } else { text }
    }
}

impl PartAnswer {
    fn write_plain_text(&self, to: &mut String) {
        let verdict = match self.verdict {
            Verdict::Supported => "SUPPORTED",
            Verdict::Partly => "SUPPORTED IN PART",
            Verdict::Contradicted => "CONTRADICTED",
            Verdict::Unjudged => "NOT JUDGED",
            Verdict::NotFound => "NOT FOUND",
            Verdict::NoClaim => "NOTHING TO CHECK",
        };
        // Writing to a text cannot fail.
        let _ = writeln!(to, "{verdict}: {}", self.text);
        for source in self.sources.iter().filter(|source| source.cited) {
            let _ = writeln!(to, "  from [{}]: {}", source.chunk, source.sentence.text);
        }
        for ConflictAnswer { text, chunk, source, .. } in &self.conflicts {
            let _ = writeln!(to, "  but [{chunk}] says: {} (for: {text})", source.text);
        }
        if !self.unsupported.is_empty() {
            let words: Vec<&str> = self.unsupported.iter().map(|unsupported| &*unsupported.text).collect();
            let _ = writeln!(to, "  in no chunk: {}", words.join(", "));
        }
    }
}
