//! Citations as Anthropic's and OpenAI's APIs write them, and as numbers in brackets.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use thresher_core::domain::{ByteRange, Chunk};
use thresher_core::pipeline::Pipeline;
use thresher_core::pipeline::attribute::{PartOutcome, Source};
use thresher_core::pipeline::place::Place;
use thresher_core::text::offsets::OffsetUnit;

use super::links;
use crate::api::place::ChunkPlaces;
use crate::api::response::{Offsets, Range};

/// The formats in which an attribution can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AttributeFormat")]
pub enum CitationFormat {
    /// Not repeated: `parts` alone.
    #[default]
    Native,
    /// The text with `[1]` behind each part.
    Markers,
    /// For an answer that is JSON: the citations of each value, by its JSON pointer.
    Json,
}

/// How citations number the chunks, where these are not the request's own list.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChunkNumbers<'a> {
    /// The index of each chunk in the caller's list; none: its index in the request.
    pub indexes: Option<&'a [usize]>,
    /// The number by which the answer's author knew each chunk; none: its index plus one.
    pub markers: Option<&'a [Option<usize>]>,
}

/// An answer and its chunks, as citations need them.
pub struct CitationContext<'a> {
    pub(super) answer: &'a str,
    pub(super) chunks: &'a [Arc<Chunk>],
    numbers: ChunkNumbers<'a>,
    /// Offsets in chunks in code points, for the formats that count these.
    characters: ChunkOffsets<'a>,
    /// The URL of each chunk, read from its metadata when it is first cited.
    urls: Vec<OnceCell<Option<String>>>,
    places: ChunkPlaces<'a>,
}

/// Offsets in chunks. Most chunks are no part's source: the text of one is counted when it is first cited.
pub(super) struct ChunkOffsets<'a> {
    chunks: &'a [Arc<Chunk>],
    unit: OffsetUnit,
    offsets: Vec<OnceCell<Offsets<'a>>>,
}

impl<'a> ChunkOffsets<'a> {
    pub fn new(chunks: &'a [Arc<Chunk>], unit: OffsetUnit) -> Self {
        Self { chunks, unit, offsets: chunks.iter().map(|_| OnceCell::new()).collect() }
    }

    /// A range of the text of the chunk with this index.
    pub fn range(&self, chunk: usize, bytes: ByteRange) -> Range {
        self.offsets[chunk].get_or_init(|| Offsets::new(&self.chunks[chunk].text, self.unit)).range(bytes)
    }
}

impl<'a> CitationContext<'a> {
    /// The context of citations of `chunks` by parts of `answer`, which `pipeline` attributed.
    pub fn new(
        answer: &'a str,
        chunks: &'a [Arc<Chunk>],
        numbers: ChunkNumbers<'a>,
        pipeline: &'a Pipeline,
    ) -> Self {
        let characters = ChunkOffsets::new(chunks, OffsetUnit::Codepoint);
        let places = ChunkPlaces::new(chunks, pipeline);
        Self { answer, chunks, numbers, characters, urls: vec![OnceCell::new(); chunks.len()], places }
    }

    /// Where a range of the text of a chunk stands in its document.
    pub(super) fn place(&self, chunk: usize, bytes: ByteRange) -> Place {
        self.places.at(chunk, bytes)
    }

    pub(super) fn chunk(&self, source: &Source) -> &Chunk {
        &self.chunks[source.chunk]
    }

    /// The URL of the cited chunk, if its metadata has one.
    fn url(&self, source: &Source) -> Option<&str> {
        self.urls[source.chunk].get_or_init(|| links::url(self.chunk(source))).as_deref()
    }

    /// The title of the cited chunk.
    fn title(&self, source: &Source) -> Option<Cow<'_, str>> {
        self.chunk(source).title.as_deref().map(links::title)
    }

    /// The index of the cited chunk in the caller's list.
    pub(super) fn index(&self, chunk: usize) -> usize {
        self.numbers.indexes.map_or(chunk, |indexes| indexes[chunk])
    }

    /// The number that stands for the cited chunk in texts.
    fn marker(&self, source: &Source) -> usize {
        let known = self.numbers.markers.and_then(|markers| markers[source.chunk]);
        known.unwrap_or_else(|| self.index(source.chunk) + 1)
    }

    /// The cited sentence, as it stands in the chunk.
    fn cited_text(&self, source: &Source) -> &str {
        source.sentence.slice(&self.chunk(source).text)
    }
}

/// The answer with the numbers of the cited chunks, such as ` [1]`, behind each part, and which chunk each number stands for. Numbers that the
/// answer has already are left as they are.
pub(super) fn markers(context: &CitationContext, parts: &[PartOutcome]) -> Value {
    let answer = context.answer;
    let (mut text, mut at) = (String::with_capacity(answer.len()), 0);
    let mut references: BTreeMap<usize, Value> = BTreeMap::new();
    for part in parts {
        // Two parts can end in one row.
        let end = marker_place(answer, part.bytes.end).max(at);
        text.push_str(&answer[at..end]);
        at = end;
        for (first, source) in part.citations().enumerate() {
            let (marker, chunk) = (context.marker(source), context.chunk(source));
            text.push_str(if first == 0 { " [" } else { "[" });
            text.push_str(&format!("{marker}]"));
            references.entry(marker).or_insert_with(|| {
                json!({"marker": marker, "chunk": chunk.id, "index": context.index(source.chunk), "title": context.title(source)})
            });
        }
    }
    text.push_str(&answer[at..]);
    json!({"text": text, "references": references.into_values().collect::<Vec<_>>()})
}

/// Returns where the markers of a part stand that ends at an offset of the answer: there, or at the end of the last cell of a row of a
/// table.
fn marker_place(answer: &str, end: usize) -> usize {
    let line = answer[..end].rfind('\n').map_or(0, |at| at + 1);
    let row = answer[line..end].trim_end();
    match row.strip_suffix('|').map(str::trim_end).filter(|_| row.starts_with('|')) {
        Some(cells) if !cells.is_empty() => line + cells.len(),
        _ => end,
    }
}

pub mod anthropic {
    use serde_json::{Value, json};
    use thresher_core::domain::ByteRange;
    use thresher_core::pipeline::attribute::{PartOutcome, Source};

    use super::{CitationContext, links};

    /// A range of an answer, with its citations.
    #[derive(Debug, Clone, PartialEq)]
    pub struct CitedSpan {
        /// The range of the answer, in bytes.
        pub bytes: ByteRange,
        /// The citations, each in the format of its API.
        pub citations: Vec<Value>,
    }

    /// A text block; its citations are null if there are none.
    pub fn block(text: &str, citations: Vec<Value>) -> Value {
        let citations = if citations.is_empty() { Value::Null } else { Value::Array(citations) };
        json!({"type": "text", "text": text, "citations": citations})
    }

    /// The answer as ranges that, put together, are the answer, each with its citations. White space between two parts belongs to the first
    /// part; other text between parts is a range without citations.
    pub fn spans(
        context: &CitationContext,
        parts: &[PartOutcome],
        citation: impl Fn(&CitationContext, &Source) -> Value,
    ) -> Vec<CitedSpan> {
        let answer = context.answer;
        let mut spans: Vec<CitedSpan> = Vec::new();
        let mut at = 0;
        for part in parts {
            let gap = ByteRange::new(at, part.bytes.start);
            let start = match spans.last_mut() {
                _ if gap.is_empty() => part.bytes.start,
                None if gap.slice(answer).trim().is_empty() => gap.start,
                Some(last) if gap.slice(answer).trim().is_empty() => {
                    last.bytes.end = gap.end;
                    part.bytes.start
                }
                _ => {
                    spans.push(CitedSpan { bytes: gap, citations: Vec::new() });
                    part.bytes.start
                }
            };
            let citations = part.citations().map(|source| citation(context, source)).collect();
            spans.push(CitedSpan { bytes: ByteRange::new(start, part.bytes.end), citations });
            at = part.bytes.end;
        }
        let rest = ByteRange::new(at, answer.len());
        match spans.last_mut() {
            Some(last) if rest.slice(answer).trim().is_empty() => last.bytes.end = rest.end,
            _ if rest.is_empty() => {}
            _ => spans.push(CitedSpan { bytes: rest, citations: Vec::new() }),
        }
        spans
    }

    /// A citation of a plain text document: by pages if its text shows them, and otherwise by characters.
    pub fn document_location(context: &CitationContext, source: &Source) -> Value {
        if let Some(pages) = context.place(source.chunk, source.sentence).pages {
            return json!({
                "type": "page_location",
                "cited_text": context.cited_text(source),
                "document_index": context.index(source.chunk),
                "document_title": context.title(source),
                "start_page_number": pages.start(),
                // The page behind the last one.
                "end_page_number": pages.end() + 1,
                "file_id": null,
            });
        }
        let range = context.characters.range(source.chunk, source.sentence);
        json!({
            "type": "char_location",
            "cited_text": context.cited_text(source),
            "document_index": context.index(source.chunk),
            "document_title": context.title(source),
            "start_char_index": range.start,
            "end_char_index": range.end,
            "file_id": null,
        })
    }

    /// A citation of a document that consists of content blocks; `block` is the index of the cited one.
    pub fn content_block_location(context: &CitationContext, source: &Source, block: usize) -> Value {
        json!({
            "type": "content_block_location",
            "cited_text": context.cited_text(source),
            "document_index": context.index(source.chunk),
            "document_title": context.title(source),
            "start_block_index": block,
            "end_block_index": block + 1,
            "file_id": null,
        })
    }

    /// A citation of a search result; `block` is the index of the cited block of its content.
    pub fn search_result_location(context: &CitationContext, source: &Source, block: usize) -> Value {
        let chunk = context.chunk(source);
        json!({
            "type": "search_result_location",
            "cited_text": context.cited_text(source),
            "search_result_index": context.index(source.chunk),
            "source": links::source(chunk),
            "title": context.title(source),
            "start_block_index": block,
            "end_block_index": block + 1,
        })
    }
}

/// OpenAI's annotations: flat in Responses, nested in Chat Completions. Offsets are code points of the answer.
pub mod openai {
    use std::borrow::Cow;

    use serde_json::{Value, json};
    use thresher_core::domain::Chunk;
    use thresher_core::pipeline::attribute::{PartOutcome, Source};
    use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

    use super::{CitationContext, links};

    /// A flat annotation, of the characters `start..end` of the answer. A chunk without a URL is cited as a file.
    pub fn flat(context: &CitationContext, source: &Source, start: usize, end: usize) -> Value {
        let chunk = context.chunk(source);
        match context.url(source) {
            Some(url) => json!({
                "type": "url_citation", "start_index": start, "end_index": end, "title": title(chunk), "url": url,
            }),
            None => json!({
                "type": "file_citation", "file_id": chunk.id, "filename": title(chunk), "index": end,
            }),
        }
    }

    /// A nested annotation, of the characters `start..end` of the answer. It can cite only URLs: a chunk without one gets the URN of its id.
    pub fn nested(context: &CitationContext, source: &Source, start: usize, end: usize) -> Value {
        let chunk = context.chunk(source);
        let url = context.url(source).map_or_else(|| links::urn(&chunk.id), str::to_owned);
        let citation = json!({"start_index": start, "end_index": end, "title": title(chunk), "url": url});
        json!({"type": "url_citation", "url_citation": citation})
    }

    /// One annotation for each citation of each part, made by `annotation` from the range of the part in code points.
    pub fn annotations(
        context: &CitationContext,
        parts: &[PartOutcome],
        annotation: fn(&CitationContext, &Source, usize, usize) -> Value,
    ) -> Vec<Value> {
        let answer = OffsetMap::new(context.answer, OffsetUnit::Codepoint);
        let of_part = |part: &PartOutcome| {
            let range = answer.from_bytes(part.bytes);
            part.citations()
                .map(|source| annotation(context, source, range.start, range.end))
                .collect::<Vec<_>>()
        };
        parts.iter().flat_map(of_part).collect()
    }

    fn title(chunk: &Chunk) -> Cow<'_, str> {
        links::title(chunk.title.as_deref().filter(|title| !title.is_empty()).unwrap_or(&chunk.id))
    }
}
