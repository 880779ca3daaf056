//! The citations of an answer, in the format of the API that the answer came from.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk};
use thresher_core::pipeline::attribute::{Candidates, PartOutcome, Source};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::{Pipeline, PipelineError};

use super::dialect::{Dialect, PartKind};
use super::rewrite::{SeenText, with_unique_ids};
use crate::api::anthropic::{self, CitedSpan};
use crate::api::{ChunkNumbers, CitationContext, PartAnswer, openai};

/// The texts that an answer may have come from, prepared once for all texts of the answer.
pub struct SeenTexts {
    sources: Vec<SeenText>,
    /// The sources with ids that name their origin in the conversation.
    named: Vec<Arc<Chunk>>,
    /// The sources with unique ids.
    numbered: Vec<Arc<Chunk>>,
    seen: Vec<Vec<ByteRange>>,
    /// The index of each source in citations.
    numbers: Vec<usize>,
    /// The sources as the pipeline reads them, once the first text is attributed.
    candidates: OnceLock<Candidates>,
}

impl SeenTexts {
    /// Prepares `sources`, and as many of the newest of `records` as there may be sources (`count_max`). Returns `None` if there are none, and
    /// so nothing to cite.
    pub fn new(mut sources: Vec<SeenText>, records: Vec<SeenText>, count_max: usize) -> Option<Self> {
        let too_many = (sources.len() + records.len()).saturating_sub(count_max);
        sources.extend(records.into_iter().skip(too_many));
        if sources.is_empty() {
            return None;
        }
        let named: Vec<Arc<Chunk>> = sources.iter().map(|source| Arc::clone(&source.chunk)).collect();
        Some(Self {
            numbered: with_unique_ids(&named),
            named,
            seen: sources.iter().map(|source| source.seen.clone()).collect(),
            numbers: source_numbers(&sources),
            candidates: OnceLock::new(),
            sources,
        })
    }

    pub fn text(&self, index: usize) -> &str {
        &self.sources[index].chunk.text
    }

    /// Attributes the sentences of a text to the sources.
    ///
    /// # Errors
    /// Fails as [`Pipeline::attribute`] does.
    pub fn parts(
        &self,
        text: &str,
        pipeline: &Pipeline,
        cancel: &Cancel,
    ) -> Result<Vec<PartOutcome>, PipelineError> {
        pipeline.check_answer_bytes(text.len())?;
        let candidates = self.candidates(pipeline, cancel)?;
        pipeline.parts(candidates, &AttributeRequest::new(text, Vec::new()), cancel)
    }

    /// Reads the sources, or returns them as they were read for an earlier text.
    fn candidates(&self, pipeline: &Pipeline, cancel: &Cancel) -> Result<&Candidates, PipelineError> {
        if let Some(candidates) = self.candidates.get() {
            return Ok(candidates);
        }
        let request = AttributeRequest {
            chunks: self.numbered.clone(),
            seen: Some(self.seen.clone()),
            ..AttributeRequest::new("", Vec::new())
        };
        pipeline.check_sources(&request)?;
        let candidates = pipeline.candidates_of_stream(&request, &mut Clock::start(), cancel)?;
        Ok(self.candidates.get_or_init(|| candidates))
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Additions {
    pub citations: bool,
    pub verdicts: bool,
}

/// What was found for a text of an answer.
pub struct Found {
    pub spans: Vec<CitedSpan>,
    /// The verdict on each sentence, as in the response of `POST /v1/attribute`; empty unless wanted.
    pub verdicts: Vec<Value>,
}

/// Attributes a text of an answer to its sources, and returns ranges that, put together, are the text, with their citations in the format of
/// the API. Annotations (OpenAI) name their range themselves, so there is one range. In Messages, each sentence is a range with the white space
/// behind it; adjacent sentences without citations are one range.
///
/// # Errors
/// Fails as [`Pipeline::attribute`] does.
pub fn attribute(
    (dialect, wanted): (Dialect, Additions),
    text: &str,
    from: &SeenTexts,
    pipeline: &Pipeline,
    cancel: &Cancel,
) -> Result<Found, PipelineError> {
    let parts = from.parts(text, pipeline, cancel)?;
    let numbers = ChunkNumbers { indexes: Some(&from.numbers), markers: None };
    let context = CitationContext::new(text, &from.named, numbers, pipeline);
    let spans = if wanted.citations { render((dialect, text), &context, from, &parts) } else { Vec::new() };
    let verdicts = if wanted.verdicts { PartAnswer::values(&context, &parts) } else { Vec::new() };
    Ok(Found { spans, verdicts })
}

fn render(
    (dialect, text): (Dialect, &str),
    context: &CitationContext,
    from: &SeenTexts,
    parts: &[PartOutcome],
) -> Vec<CitedSpan> {
    let len = text.len();
    let whole = |citations| vec![CitedSpan { bytes: ByteRange::new(0, len), citations: distinct(citations) }];
    match dialect {
        Dialect::Chat => whole(openai::annotations(context, parts, openai::nested)),
        Dialect::Responses => whole(openai::annotations(context, parts, openai::flat)),
        Dialect::Messages => {
            let location = |context: &CitationContext, source: &Source| {
                location(context, source, &from.sources[source.chunk])
            };
            let mut spans: Vec<CitedSpan> = Vec::new();
            for mut span in anthropic::spans(context, parts, location) {
                span.citations = distinct(span.citations);
                match spans.last_mut() {
                    Some(last) if last.citations.is_empty() && span.citations.is_empty() => {
                        last.bytes.end = span.bytes.end;
                    }
                    _ => spans.push(span),
                }
            }
            spans
        }
    }
}

/// Removes citations that say the same: two chunks may belong to one document.
pub fn distinct(mut citations: Vec<Value>) -> Vec<Value> {
    let mut seen = HashSet::new();
    citations.retain(|citation| seen.insert(citation.to_string()));
    citations
}

fn location(context: &CitationContext, cited: &Source, source: &SeenText) -> Value {
    match source.kind {
        Some(PartKind::Document { block: None, .. }) => anthropic::document_location(context, cited),
        Some(PartKind::Document { block: Some(block), .. }) => {
            anthropic::content_block_location(context, cited, block)
        }
        Some(PartKind::SearchResult { block, .. }) => {
            anthropic::search_result_location(context, cited, block)
        }
        // Other texts are cited like the result of a search by the retriever or the tool.
        _ => anthropic::search_result_location(context, cited, 0),
    }
}

/// For each source, its index among the documents or the search results of the conversation. Other sources are counted after the search
/// results.
fn source_numbers(sources: &[SeenText]) -> Vec<usize> {
    let results = sources.iter().filter_map(|source| match source.kind {
        Some(PartKind::SearchResult { index, .. }) => Some(index + 1),
        _ => None,
    });
    let mut next = results.max().unwrap_or(0);
    let number = |source: &SeenText| match source.kind {
        Some(PartKind::Document { index, .. } | PartKind::SearchResult { index, .. }) => index,
        _ => {
            next += 1;
            next - 1
        }
    };
    sources.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(id: &str) -> SeenText {
        let seen = vec![ByteRange::new(0, 1)];
        SeenText { chunk: Arc::new(Chunk::new(id, "x")), kind: None, seen }
    }

    #[test]
    fn the_newest_records_are_sources_as_far_as_there_is_room() {
        let check = |sources: &[&str], records: &[&str], expect: &[&str]| {
            let all = |ids: &[&str]| ids.iter().map(|id| source(id)).collect::<Vec<_>>();
            let found = SeenTexts::new(all(sources), all(records), 3);
            let ids: Vec<String> =
                found.iter().flat_map(|found| &found.named).map(|chunk| chunk.id.clone()).collect();
            assert_eq!(ids, expect);
        };
        check(&["a"], &["r", "s"], &["a", "r", "s"]);
        check(&["a"], &["r", "s", "t"], &["a", "s", "t"]);
        check(&["a", "b", "c", "d"], &["r"], &["a", "b", "c", "d"]);
        check(&[], &["r"], &["r"]);
        check(&[], &[], &[]);
    }

    #[test]
    fn a_citation_is_listed_once() {
        assert_eq!(distinct(vec![Value::from(1), Value::from(2), Value::from(1)]), [1, 2]);
    }
}
