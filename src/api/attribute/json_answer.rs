//! An answer that is JSON: its values are its parts, and each is found by its JSON pointer (RFC 6901).

use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::native::{PartAnswer, Words};
use crate::domain::{ByteRange, Parts};
use crate::pipeline::attribute::PartOutcome;
use crate::text::offsets::OffsetUnit;

/// Objects and arrays in each other beyond this are a part as a whole: one has to stop somewhere.
const DEPTH_MAX: usize = 64;

/// A value that holds no others.
struct Leaf {
    pointer: String,
    /// Of the answer; of a text, without its quotation marks.
    bytes: ByteRange,
}

/// The values of an answer as its parts; none when it is not JSON, or holds nothing.
pub fn parts(answer: &str) -> Option<Parts> {
    let spans: Vec<ByteRange> = leaves(answer)?.into_iter().map(|leaf| leaf.bytes).collect();
    (!spans.is_empty()).then_some(Parts::Spans(spans))
}

/// From pointers to parts; when the answer is not JSON, that, and its parts are sentences.
pub fn pointers(words: &Words, parts: &[PartOutcome], unit: OffsetUnit) -> Value {
    let Some(leaves) = leaves(&words.request.answer).filter(|leaves| !leaves.is_empty()) else {
        return json!({"pointers": {}, "fallback": "the answer is not JSON that holds a value: it was read as text"});
    };
    let answers = PartAnswer::all(words, parts, unit);
    let all: Map<String, Value> = leaves
        .into_iter()
        .zip(parts.iter().zip(answers))
        .map(|(leaf, (part, answer))| (leaf.pointer, entry(part, answer)))
        .collect();
    json!({"pointers": all, "fallback": null})
}

fn entry(part: &PartOutcome, answer: PartAnswer) -> Value {
    json!({"supported": part.is_supported(), "citations": answer.cited()})
}

fn leaves(answer: &str) -> Option<Vec<Leaf>> {
    let mut found = Vec::new();
    let trimmed = answer.trim();
    let raw: &RawValue = serde_json::from_str(trimmed).ok()?;
    // A bare text or number is an answer in prose that happens to be JSON.
    raw.get().starts_with(['{', '[']).then_some(())?;
    collect(answer, raw, (String::new(), 0), &mut found)?;
    Some(found)
}

fn collect(
    answer: &str,
    raw: &RawValue,
    (pointer, depth): (String, usize),
    found: &mut Vec<Leaf>,
) -> Option<()> {
    let text = raw.get();
    let start = text.as_ptr() as usize - answer.as_ptr() as usize;
    match text.as_bytes().first()? {
        b'{' | b'[' if depth < DEPTH_MAX => {
            let Members(members) = serde_json::from_str(text).ok()?;
            members.into_iter().try_for_each(|(key, raw)| {
                let key = key.replace('~', "~0").replace('/', "~1");
                collect(answer, raw, (format!("{pointer}/{key}"), depth + 1), found)
            })
        }
        first => {
            let quotes = usize::from(*first == b'"');
            let bytes = ByteRange::new(start + quotes, start + text.len() - quotes);
            if !bytes.is_empty() {
                found.push(Leaf { pointer, bytes });
            }
            Some(())
        }
    }
}

/// The members of an object or an array, with their keys or numbers.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(String, &RawValue)> = Vec::new();
        while let Some((key, raw)) = map.next_entry::<String, &RawValue>()? {
            if members.iter().any(|(other, _)| *other == key) {
                return Err(de::Error::custom("a key stands twice"));
            }
            members.push((key, raw));
        }
        Ok(Members(members))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(raw) = seq.next_element::<&RawValue>()? {
            members.push((members.len().to_string(), raw));
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, answer: &str, expect: Option<&[(&str, &str)]>) {
        let found = leaves(answer);
        let found: Option<Vec<(&str, &str)>> = found
            .as_ref()
            .map(|leaves| leaves.iter().map(|leaf| (&*leaf.pointer, leaf.bytes.of(answer))).collect());
        assert_eq!(found.as_deref(), expect, "{name}");
    }

    #[test]
    fn values_by_their_pointers() {
        check("an object", r#" {"a": "x y", "b": 3} "#, Some(&[("/a", "x y"), ("/b", "3")]));
        check("nested", r#"{"a": [{"b": "x"}, true]}"#, Some(&[("/a/0/b", "x"), ("/a/1", "true")]));
        check("keys with marks", r#"{"a/b": {"~": "x"}}"#, Some(&[("/a~1b/~0", "x")]));
        check("escapes stay as they are written", r#"{"a": "x\n\"y\""}"#, Some(&[("/a", r#"x\n\"y\""#)]));
        check("nothing to say", r#"{"a": "", "b": {}}"#, Some(&[]));
        check("prose", "It was in 1998.", None);
        check("a number", "1998", None);
        check("a text", "\"x\"", None);
        check("cut off", r#"{"a": "x"#, None);
        check("a key twice", r#"{"a": 1, "a": 2}"#, None);
    }
}
