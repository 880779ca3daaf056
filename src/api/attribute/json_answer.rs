//! An answer that is JSON: its values are its parts, and each is found by its JSON pointer (RFC 6901).

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};

use super::native::PartAnswer;
use crate::domain::{ByteRange, Parts, Value};

/// Objects and arrays in each other: one has to stop somewhere.
const DEPTH_MAX: usize = 64;

/// Bytes of the pointers to all values together: each repeats the keys above it.
const POINTER_BYTES_MAX: usize = 1 << 20;

/// The values of an answer as its parts; or why it has none.
///
/// # Errors
/// That, in a sentence.
pub fn parts(answer: &str) -> Result<Parts, String> {
    match values(answer)? {
        values if values.is_empty() => Err("the answer is JSON without a value".to_owned()),
        values => Ok(Parts::Values(values)),
    }
}

/// From pointers to verdicts; where the parts are no values, why not.
pub fn pointers(asked: &Parts, answers: &[PartAnswer], fallback: Option<&str>) -> Json {
    let Parts::Values(values) = asked else {
        let why = fallback.unwrap_or_default();
        return json!({"pointers": {}, "fallback": format!("{why}: its sentences were attributed")});
    };
    let all: Map<String, Json> =
        values.iter().zip(answers).map(|(value, answer)| (value.pointer.clone(), answer.verdict())).collect();
    json!({"pointers": all, "fallback": null})
}

/// Those that hold no others.
fn values(answer: &str) -> Result<Vec<Value>, String> {
    let no_json = |error: serde_json::Error| format!("the answer is no JSON that can be used ({error})");
    let raw: &RawValue = serde_json::from_str(inside_fence(answer).trim()).map_err(no_json)?;
    // A bare text or number is an answer in prose that happens to be JSON.
    if !raw.get().starts_with(['{', '[']) {
        return Err("the answer is no JSON object or array".to_owned());
    }
    let mut found = Found { answer, values: Vec::new(), pointer_bytes: 0 };
    found.collect(raw, Place { pointer: String::new(), key: "".into(), depth: 0 }).map_err(
        |why| match why {
            Unusable::Json(error) => no_json(error),
            Unusable::Depth => format!("the answer's JSON is more than {DEPTH_MAX} levels deep"),
            Unusable::Pointers => "the keys above the answer's values are too long".to_owned(),
        },
    )?;
    Ok(found.values)
}

/// What stands in the text's only fenced block; the whole text where there is none.
fn inside_fence(text: &str) -> &str {
    const FENCE: &str = "```";
    let inside = || {
        let (_before, block) = text.split_once(FENCE)?;
        let (_name, block) = block.split_once('\n')?;
        let (inside, behind) = block.split_once(FENCE)?;
        (!behind.contains(FENCE)).then_some(inside)
    };
    inside().unwrap_or(text)
}

/// Where a value stands.
struct Place {
    pointer: String,
    /// The nearest key above it.
    key: Arc<str>,
    depth: usize,
}

struct Found<'a> {
    answer: &'a str,
    values: Vec<Value>,
    pointer_bytes: usize,
}

enum Unusable {
    Json(serde_json::Error),
    Depth,
    Pointers,
}

impl From<serde_json::Error> for Unusable {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

impl Found<'_> {
    fn collect(&mut self, raw: &RawValue, place: Place) -> Result<(), Unusable> {
        let text = raw.get();
        let start = text.as_ptr() as usize - self.answer.as_ptr() as usize;
        let Place { pointer, key, depth } = place;
        if text.starts_with(['{', '[']) {
            if depth == DEPTH_MAX {
                return Err(Unusable::Depth);
            }
            let Members { members, named } = serde_json::from_str(text)?;
            return members.into_iter().try_for_each(|(name, raw)| {
                let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
                let key = if named { name.into() } else { Arc::clone(&key) };
                self.collect(raw, Place { pointer, key, depth: depth + 1 })
            });
        }
        let (bytes, text) = match text.starts_with('"') {
            // Where it is written, without its quotes; what it says.
            true => (ByteRange::new(start + 1, start + text.len() - 1), serde_json::from_str(text)?),
            false => (ByteRange::new(start, start + text.len()), text.to_owned()),
        };
        if text.trim().is_empty() {
            return Ok(());
        }
        self.pointer_bytes += pointer.len();
        if self.pointer_bytes > POINTER_BYTES_MAX {
            return Err(Unusable::Pointers);
        }
        self.values.push(Value { pointer, bytes, key, text });
        Ok(())
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
        let found = values(answer).ok();
        let found: Option<Vec<(&str, &str)>> = found
            .as_ref()
            .map(|values| values.iter().map(|value| (&*value.pointer, value.bytes.of(answer))).collect());
        assert_eq!(found.as_deref(), expect, "{name}");
    }

    #[test]
    fn values_say_what_they_say() {
        let answer = r#"{"note": ["a\n\u00e9", 7], "b": null}"#;
        let found: Vec<(Arc<str>, String)> =
            values(answer).expect("JSON").into_iter().map(|value| (value.key, value.text)).collect();
        let said = |key: &str, text: &str| (key.into(), text.to_owned());
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
        check("in a fence, with words around", "Here:\n```json\n[\"x\"]\n```\nDone.", Some(&[("/0", "x")]));
        check("two fences", "```\n[1]\n```\n```\n[2]\n```", None);
    }

    #[test]
    fn it_is_said_why_there_are_no_values() {
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let long = format!(r#"{{"{}": [{}1]}}"#, "k".repeat(20_000), "1,".repeat(100));
        for (answer, why) in [
            ("It was in 1998.", "no JSON that can be used"),
            ("1998", "no JSON object or array"),
            ("{}", "without a value"),
            (r#"{"a": 1, "a": 2}"#, "a key stands twice"),
            (&*deep, "more than 64 levels"),
            (&*long, "too long"),
        ] {
            let found = parts(answer).expect_err(why);
            assert!(found.contains(why), "{found}");
        }
    }
}
