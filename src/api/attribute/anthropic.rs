//! Anthropic's citations: text blocks that, put together, are the answer, each with what it cites.

use serde_json::{Value, json};
use thresher_core::domain::ByteRange;
use thresher_core::pipeline::attribute::{PartOutcome, Source};

use super::native::Words;

/// The answer in blocks. White space between two parts belongs to the first, other text is a block without citations.
pub fn blocks(words: &Words, parts: &[PartOutcome], citation: fn(&Words, &Source) -> Value) -> Value {
    let answer = words.answer;
    let mut blocks: Vec<(ByteRange, Vec<Value>)> = Vec::new();
    let mut at = 0;
    for part in parts {
        let gap = ByteRange::new(at, part.bytes.start);
        let start = match blocks.last_mut() {
            _ if gap.is_empty() => part.bytes.start,
            None if gap.of(answer).trim().is_empty() => gap.start,
            Some((last, _)) if gap.of(answer).trim().is_empty() => {
                last.end = gap.end;
                part.bytes.start
            }
            _ => {
                blocks.push((gap, Vec::new()));
                part.bytes.start
            }
        };
        let citations = part.citations().map(|source| citation(words, source)).collect();
        blocks.push((ByteRange::new(start, part.bytes.end), citations));
        at = part.bytes.end;
    }
    let rest = ByteRange::new(at, answer.len());
    match blocks.last_mut() {
        Some((last, _)) if rest.of(answer).trim().is_empty() => last.end = rest.end,
        _ if rest.is_empty() => {}
        _ => blocks.push((rest, Vec::new())),
    }
    let block = |(bytes, citations): (ByteRange, Vec<Value>)| {
        let citations = if citations.is_empty() { Value::Null } else { Value::Array(citations) };
        json!({"type": "text", "text": bytes.of(answer), "citations": citations})
    };
    blocks.into_iter().map(block).collect()
}

/// The chunk as a plain text document: characters from, and up to.
pub fn char_location(words: &Words, source: &Source) -> Value {
    let chunk = words.chunk(source);
    let range = words.characters.range(source.chunk, source.sentence);
    json!({
        "type": "char_location",
        "cited_text": words.cited_text(source),
        "document_index": words.index(source),
        "document_title": chunk.title,
        "start_char_index": range.start,
        "end_char_index": range.end,
        "file_id": null,
    })
}

/// The chunk as a block of a document that consists of such.
pub fn content_block_location(words: &Words, source: &Source, block: usize) -> Value {
    json!({
        "type": "content_block_location",
        "cited_text": words.cited_text(source),
        "document_index": words.index(source),
        "document_title": words.chunk(source).title,
        "start_block_index": block,
        "end_block_index": block + 1,
        "file_id": null,
    })
}

/// The chunk as a block of a search result's content.
pub fn search_result_location(words: &Words, source: &Source, block: usize) -> Value {
    let chunk = words.chunk(source);
    json!({
        "type": "search_result_location",
        "cited_text": words.cited_text(source),
        "search_result_index": words.index(source),
        "source": words.url(source).unwrap_or(&chunk.id),
        "title": chunk.title,
        "start_block_index": block,
        "end_block_index": block + 1,
    })
}
