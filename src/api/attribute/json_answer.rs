//! An answer that is JSON: its values are its parts, and each is found by its JSON pointer (RFC 6901).

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};

use super::native::{PartAnswer, Words};
use crate::domain::{ByteRange, Parts, Value};
use crate::pipeline::attribute::PartOutcome;
use crate::text::offsets::OffsetUnit;

/// Objects and arrays in each other beyond this are a part as a whole: one has to stop somewhere.
const DEPTH_MAX: usize = 64;

/// The values of an answer as its parts; none when it is not JSON, or holds nothing.
pub fn parts(answer: &str) -> Option<Parts> {
    values(answer).filter(|values| !values.is_empty()).map(Parts::Values)
}

/// From pointers to verdicts; where the parts are no values, why not.
pub fn pointers(words: &Words, (asked, found): (&Parts, &[PartOutcome]), unit: OffsetUnit) -> Json {
    let Parts::Values(values) = asked else {
        let why = "the answer is no JSON object or array, holds no value, or has a key twice: its sentences were attributed";
        return json!({"pointers": {}, "fallback": why});
    };
    let answers = PartAnswer::all(words, found, unit);
    let all: Map<String, Json> =
        values.iter().zip(answers).map(|(value, answer)| (value.pointer.clone(), answer.verdict())).collect();
    json!({"pointers": all, "fallback": null})
}

/// Those that hold no others.
fn values(answer: &str) -> Option<Vec<Value>> {
    let mut found = Vec::new();
    let raw: &RawValue = serde_json::from_str(unfenced(answer.trim())).ok()?;
    // A bare text or number is an answer in prose that happens to be JSON.
    raw.get().starts_with(['{', '[']).then_some(())?;
    collect(answer, raw, Place { pointer: String::new(), key: "", depth: 0 }, &mut found)?;
    Some(found)
}

/// What stands in a fenced block that is all there is.
fn unfenced(text: &str) -> &str {
    let inside = || {
        let (_name, inside) = text.strip_prefix("```")?.split_once('\n')?;
        inside.trim_end().strip_suffix("```")
    };
    inside().unwrap_or(text)
}

/// Where a value stands.
struct Place<'a> {
    pointer: String,
    /// The nearest key above it.
    key: &'a str,
    depth: usize,
}

fn collect(answer: &str, raw: &RawValue, place: Place, found: &mut Vec<Value>) -> Option<()> {
    let text = raw.get();
    let start = text.as_ptr() as usize - answer.as_ptr() as usize;
    let Place { pointer, key, depth } = place;
    match text.as_bytes().first()? {
        b'{' | b'[' if depth < DEPTH_MAX => {
            let Members { members, named } = serde_json::from_str(text).ok()?;
            members.iter().try_for_each(|(name, raw)| {
                let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
                let key = if named { name } else { key };
                collect(answer, raw, Place { pointer, key, depth: depth + 1 }, found)
            })
        }
        b'"' => {
            let said: String = serde_json::from_str(text).ok()?;
            if !said.trim().is_empty() {
                let bytes = ByteRange::new(start + 1, start + text.len() - 1);
                found.push(Value { pointer, bytes, key: key.to_owned(), text: said });
            }
            Some(())
        }
        _ => {
            let bytes = ByteRange::new(start, start + text.len());
            found.push(Value { pointer, bytes, key: key.to_owned(), text: text.to_owned() });
            Some(())
        }
    }
}

/// The members of an object or an array, with their keys or numbers.
struct Members<'a> {
    members: Vec<(String, &'a RawValue)>,
    /// Whether it is an object.
    named: bool,
}

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
        let (mut members, mut keys) = (Vec::new(), HashSet::new());
        while let Some((key, raw)) = map.next_entry::<String, &RawValue>()? {
            if !keys.insert(key.clone()) {
                return Err(de::Error::custom("a key stands twice"));
            }
            members.push((key, raw));
        }
        Ok(Members { members, named: true })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(String, &RawValue)> = Vec::new();
        while let Some(raw) = seq.next_element::<&RawValue>()? {
            members.push((members.len().to_string(), raw));
        }
        Ok(Members { members, named: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, answer: &str, expect: Option<&[(&str, &str)]>) {
        let found = values(answer);
        let found: Option<Vec<(&str, &str)>> = found
            .as_ref()
            .map(|values| values.iter().map(|value| (&*value.pointer, value.bytes.of(answer))).collect());
        assert_eq!(found.as_deref(), expect, "{name}");
    }

    #[test]
    fn values_say_what_they_say() {
        let answer = r#"{"note": ["a\n\u00e9", 7], "b": null}"#;
        let found: Vec<(String, String)> =
            values(answer).expect("JSON").into_iter().map(|value| (value.key, value.text)).collect();
        let said = |key: &str, text: &str| (key.to_owned(), text.to_owned());
        assert_eq!(found, [said("note", "a\né"), said("note", "7"), said("b", "null")]);
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
        check("in a fence", "```json\n{\"a\": \"x\"}\n```\n", Some(&[("/a", "x")]));
        check("a key twice", r#"{"a": 1, "a": 2}"#, None);
    }
}
