//! The answer with `[1]` behind each part, as a numbered context is cited.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use thresher_core::pipeline::attribute::PartOutcome;

use super::native::Words;

/// The text, and which chunk each number stands for. Numbers that stand in the answer are left as they are.
pub fn text(words: &Words, parts: &[PartOutcome]) -> Value {
    let answer = words.answer;
    let (mut text, mut at) = (String::with_capacity(answer.len()), 0);
    let mut references: BTreeMap<usize, Value> = BTreeMap::new();
    for part in parts {
        text.push_str(&answer[at..part.bytes.end]);
        at = part.bytes.end;
        for (first, source) in part.citations().enumerate() {
            let (marker, chunk) = (words.marker(source), words.chunk(source));
            text.push_str(if first == 0 { " [" } else { "[" });
            text.push_str(&format!("{marker}]"));
            references.entry(marker).or_insert_with(|| {
                json!({"marker": marker, "chunk": chunk.id, "index": words.index(source), "title": chunk.title})
            });
        }
    }
    text.push_str(&answer[at..]);
    json!({"text": text, "references": references.into_values().collect::<Vec<_>>()})
}
