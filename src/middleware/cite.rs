//! What an answer cites, in the words of the API that it came from.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use thresher_core::domain::{AttributeRequest, ByteRange, Chunk};
use thresher_core::pipeline::attribute::{self, PartOutcome};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::{Pipeline, PipelineError};

use super::dialect::{Dialect, Kind};
use super::rewrite::{Source, renamed};
use crate::api::{Names, Words, anthropic, openai};

/// What an answer may have come from, prepared once for all of its texts.
pub struct Sources {
    sources: Vec<Source>,
    /// As the conversation calls them.
    named: Vec<Arc<Chunk>>,
    /// The same texts, each with an id of its own.
    numbered: Vec<Arc<Chunk>>,
    seen: Vec<Vec<ByteRange>>,
}

impl Sources {
    /// None where there is nothing that could be cited.
    pub fn new(sources: Vec<Source>) -> Option<Self> {
        let named: Vec<Arc<Chunk>> = sources.iter().map(|source| Arc::clone(&source.chunk)).collect();
        let seen = sources.iter().map(|source| source.seen.clone()).collect();
        (!sources.is_empty()).then(|| Self { numbered: renamed(&named), named, seen, sources })
    }
}

/// The citations of a text of an answer.
///
/// # Errors
/// As [`Pipeline::attribute`].
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
    Ok(told(dialect, text, (&from.named, &from.sources), &attributed.parts))
}

fn told(
    dialect: Dialect,
    text: &str,
    (chunks, sources): (&[Arc<Chunk>], &[Source]),
    parts: &[PartOutcome],
) -> Vec<Value> {
    let places = places(sources);
    let words = Words::new(text, chunks, Names { places: Some(&places), markers: None });
    match dialect {
        Dialect::Chat => openai::annotations(&words, parts, openai::nested),
        Dialect::Responses => openai::annotations(&words, parts, openai::flat),
        Dialect::Messages => {
            let mut told = HashSet::new();
            let cited = parts.iter().flat_map(PartOutcome::citations);
            let location = |source: &attribute::Source| location(&words, source, &sources[source.chunk]);
            // They are of the whole text: what two of its sentences cite is cited once.
            cited.map(location).filter(|location| told.insert(location.to_string())).collect()
        }
    }
}

fn location(words: &Words, cited: &attribute::Source, source: &Source) -> Value {
    match source.kind {
        Some(Kind::Document(_, None)) => anthropic::char_location(words, cited),
        Some(Kind::Document(_, Some(block))) => anthropic::content_block_location(words, cited, block),
        Some(Kind::SearchResult(_, block)) => anthropic::search_result_location(words, cited, block),
        // Neither: as a result of a search that the retriever, or the tool, has made.
        _ => anthropic::search_result_location(words, cited, 0),
    }
}

/// For each source its number among those of its kind: what has none follows the search results.
fn places(sources: &[Source]) -> Vec<usize> {
    let results = sources.iter().filter_map(|source| match source.kind {
        Some(Kind::SearchResult(at, _)) => Some(at + 1),
        _ => None,
    });
    let mut next = results.max().unwrap_or(0);
    let place = |source: &Source| match source.kind {
        Some(Kind::Document(at, _) | Kind::SearchResult(at, _)) => at,
        _ => {
            next += 1;
            next - 1
        }
    };
    sources.iter().map(place).collect()
}
