//! The citations of an answer, in the format of the API that the answer came from.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk};
use thresher_core::pipeline::attribute::{self, PartOutcome};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};

use super::dialect::{Dialect, PartKind};
use super::rewrite::{Source, with_unique_ids};
use crate::api::{ChunkNumbers, CitationContext, anthropic, openai};

/// The texts that an answer may have come from, prepared once for all texts of the answer.
pub struct Sources {
    sources: Vec<Source>,
    /// The sources with ids that name their origin in the conversation.
    named: Vec<Arc<Chunk>>,
    /// The sources with unique ids.
    numbered: Vec<Arc<Chunk>>,
    seen: Vec<Vec<ByteRange>>,
}

impl Sources {
    /// Prepares `sources`. Returns `None` if there are none, and so nothing to cite.
    pub fn new(sources: Vec<Source>) -> Option<Self> {
        let named: Vec<Arc<Chunk>> = sources.iter().map(|source| Arc::clone(&source.chunk)).collect();
        let seen = sources.iter().map(|source| source.seen.clone()).collect();
        (!sources.is_empty()).then(|| Self { numbered: with_unique_ids(&named), named, seen, sources })
    }
}

/// Attributes a text of an answer to its sources, and returns the citations in the format of the API.
///
/// # Errors
/// Fails if [`Pipeline::attribute`] fails.
pub fn citations(
    dialect: Dialect,
    text: &str,
    from: &Sources,
    (pipeline, cancel): (&Pipeline, &Cancel),
) -> Result<Vec<Value>, PipelineError> {
    let request = AttributeRequest {
        chunks: from.numbered.clone(),
        seen: Some(from.seen.clone()),
        ..AttributeRequest::new(text, Vec::new())
    };
    let attributed = pipeline.attribute(&request, cancel)?;
    Ok(render(dialect, text, (&from.named, &from.sources), &attributed.parts))
}

fn render(
    dialect: Dialect,
    text: &str,
    (chunks, sources): (&[Arc<Chunk>], &[Source]),
    parts: &[PartOutcome],
) -> Vec<Value> {
    let numbers = source_numbers(sources);
    let context = CitationContext::new(text, chunks, ChunkNumbers { indexes: Some(&numbers), markers: None });
    match dialect {
        Dialect::Chat => openai::annotations(&context, parts, openai::nested),
        Dialect::Responses => openai::annotations(&context, parts, openai::flat),
        Dialect::Messages => {
            let mut seen = HashSet::new();
            let cited = parts.iter().flat_map(PartOutcome::citations);
            let location = |source: &attribute::Source| location(&context, source, &sources[source.chunk]);
            // These citations belong to the whole text, so a source that two sentences cite is listed once.
            cited.map(location).filter(|location| seen.insert(location.to_string())).collect()
        }
    }
}

fn location(context: &CitationContext, cited: &attribute::Source, source: &Source) -> Value {
    match source.kind {
        Some(PartKind::Document { block: None, .. }) => anthropic::char_location(context, cited),
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
fn source_numbers(sources: &[Source]) -> Vec<usize> {
    let results = sources.iter().filter_map(|source| match source.kind {
        Some(PartKind::SearchResult { index, .. }) => Some(index + 1),
        _ => None,
    });
    let mut next = results.max().unwrap_or(0);
    let number = |source: &Source| match source.kind {
        Some(PartKind::Document { index, .. } | PartKind::SearchResult { index, .. }) => index,
        _ => {
            next += 1;
            next - 1
        }
    };
    sources.iter().map(number).collect()
}
