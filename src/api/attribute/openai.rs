//! OpenAI's annotations: flat in Responses, nested in Chat Completions. Places are characters of the answer.

use serde_json::{Value, json};
use thresher_core::domain::Chunk;
use thresher_core::pipeline::attribute::{PartOutcome, Source};
use thresher_core::text::offsets::{OffsetMap, OffsetUnit};

use super::native::Words;
use crate::api::fields;

/// An output item of a response.
pub fn response_item(words: &Words, parts: &[PartOutcome]) -> Value {
    let text = json!({
        "type": "output_text", "text": words.answer, "annotations": annotations(words, parts, flat), "logprobs": [],
    });
    json!({"type": "message", "id": "msg_attribution", "role": "assistant", "status": "completed", "content": [text]})
}

/// An assistant's message.
pub fn chat_message(words: &Words, parts: &[PartOutcome]) -> Value {
    let annotations = annotations(words, parts, nested);
    json!({"role": "assistant", "content": words.answer, "refusal": null, "annotations": annotations})
}

/// An annotation of a response. A chunk without an address is cited as a file.
pub fn flat(words: &Words, source: &Source, (start, end): (usize, usize)) -> Value {
    let chunk = words.chunk(source);
    match words.url(source) {
        Some(url) => json!({
            "type": "url_citation", "start_index": start, "end_index": end, "title": title(chunk), "url": url,
        }),
        None => json!({
            "type": "file_citation", "file_id": chunk.id, "filename": title(chunk), "index": end,
        }),
    }
}

/// An annotation of a chat's message. It can cite addresses only: a chunk without one is given the URN of its id.
pub fn nested(words: &Words, source: &Source, (start, end): (usize, usize)) -> Value {
    let chunk = words.chunk(source);
    let url =
        words.url(source).map_or_else(|| format!("urn:thresher:chunk:{}", escaped(&chunk.id)), str::to_owned);
    let citation = json!({"start_index": start, "end_index": end, "title": title(chunk), "url": url});
    json!({"type": "url_citation", "url_citation": citation})
}

/// What the parts of an answer cite.
pub fn annotations(
    words: &Words,
    parts: &[PartOutcome],
    annotation: fn(&Words, &Source, (usize, usize)) -> Value,
) -> Vec<Value> {
    let answer = OffsetMap::new(words.answer, OffsetUnit::Codepoint);
    let of_part = |part: &PartOutcome| {
        let range = answer.from_bytes(part.bytes);
        part.citations().map(|source| annotation(words, source, (range.start, range.end))).collect::<Vec<_>>()
    };
    parts.iter().flat_map(of_part).collect()
}

fn title(chunk: &Chunk) -> &str {
    chunk.title.as_deref().filter(|title| !title.is_empty()).unwrap_or(&chunk.id)
}

/// The address of a chunk, by its metadata: `url`, or `source` where that is one. The rest of the metadata is not built.
pub fn url(chunk: &Chunk) -> Option<String> {
    let found = fields::pick_named(chunk.metadata.as_deref()?, ["url", "source"]).ok()?;
    let [url, source] = found.map(|value| Some(fields::text(value?)?.ok()?.into_owned()));
    let is_address = |text: &String| text.contains("://");
    url.filter(|url| !url.trim().is_empty()).or_else(|| source.filter(is_address))
}

/// RFC 3986: what is not unreserved is percent-encoded.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
