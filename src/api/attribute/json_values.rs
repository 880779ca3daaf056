//! Finds the values of an answer that is JSON: they are its parts, and each is named by its JSON pointer (RFC 6901).

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::Deserializer as _;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;
use thresher_core::domain::{ByteRange, Parts, Value};

use crate::api::limits::BodyLimits;

const DEPTH_MAX: usize = 64;

/// The most bytes of the pointers to all values together: each pointer repeats the keys above its value.
const POINTER_BYTES_MAX: usize = 1 << 20;

/// Why the values of an answer are not its parts.
#[derive(Debug, Error)]
pub enum NoValues {
    /// The answer is not JSON with values; its sentences are attributed instead.
    #[error("{0}")]
    Unusable(String),
    #[error("the answer has more than {max} values")]
    TooMany { max: usize },
}

/// The values of an answer as its parts: strings, numbers, booleans and nulls. They are counted while they are found.
///
/// # Errors
/// `NoValues`.
pub fn json_values(answer: &str, limits: &BodyLimits) -> Result<Parts, NoValues> {
    match values(answer, limits.requests.span_count_max)? {
        values if values.is_empty() => {
            Err(NoValues::Unusable("the answer is JSON without a value".to_owned()))
        }
        values => Ok(Parts::Values(values)),
    }
}

fn values(answer: &str, count_max: usize) -> Result<Vec<Value>, NoValues> {
    let unusable = |reason: String| Err(NoValues::Unusable(reason));
    let not_json = |error: serde_json::Error| {
        NoValues::Unusable(format!("the answer is not JSON that can be used ({error})"))
    };
    let raw: &RawValue = serde_json::from_str(inside_fence(answer).trim()).map_err(not_json)?;
    // A bare string or number is an answer in prose that happens to be JSON.
    if !raw.get().starts_with(['{', '[']) {
        return unusable("the answer is not a JSON object or array".to_owned());
    }
    let mut collector = Collector { answer, count_max, values: Vec::new(), pointer_bytes: 0, stopped: None };
    let collected = collector.collect(raw, &Position { pointer: String::new(), key: "".into(), depth: 0 });
    match (collector.stopped, collected) {
        (None, Ok(())) => Ok(collector.values),
        (None, Err(error)) => Err(not_json(error)),
        (Some(Stopped::Depth), _) => {
            unusable(format!("the answer's JSON is more than {DEPTH_MAX} levels deep"))
        }
        (Some(Stopped::Pointers), _) => {
            unusable("the keys above the answer's values are too long".to_owned())
        }
        (Some(Stopped::Count), _) => Err(NoValues::TooMany { max: count_max }),
    }
}

/// The content of the text's only fenced code block; the whole text if it has none, or several.
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

struct Position {
    pointer: String,
    /// The nearest key above it.
    key: Arc<str>,
    depth: usize,
}

struct Collector<'a> {
    answer: &'a str,
    count_max: usize,
    values: Vec<Value>,
    pointer_bytes: usize,
    /// Why it stopped before the end, if the parser did not fail.
    stopped: Option<Stopped>,
}

#[derive(Clone, Copy)]
enum Stopped {
    Depth,
    Pointers,
    Count,
}

impl Collector<'_> {
    fn stop<T, E: de::Error>(&mut self, reason: Stopped) -> Result<T, E> {
        self.stopped = Some(reason);
        Err(E::custom("stopped"))
    }

    fn collect<E: de::Error>(&mut self, raw: &RawValue, position: &Position) -> Result<(), E> {
        let text = raw.get();
        let start = text.as_ptr() as usize - self.answer.as_ptr() as usize;
        if text.starts_with(['{', '[']) {
            if position.depth == DEPTH_MAX {
                return self.stop(Stopped::Depth);
            }
            return serde_json::Deserializer::from_str(text)
                .deserialize_any(Members { collector: self, position })
                .map_err(E::custom);
        }
        let (bytes, text) = if text.starts_with('"') {
            let value = serde_json::from_str(text).map_err(E::custom)?;
            (ByteRange::new(start + 1, start + text.len() - 1), value)
        } else {
            (ByteRange::new(start, start + text.len()), text.to_owned())
        };
        if text.trim().is_empty() {
            return Ok(());
        }
        if self.values.len() == self.count_max {
            return self.stop(Stopped::Count);
        }
        self.pointer_bytes += position.pointer.len();
        if self.pointer_bytes > POINTER_BYTES_MAX {
            return self.stop(Stopped::Pointers);
        }
        let (pointer, key) = (position.pointer.clone(), Arc::clone(&position.key));
        self.values.push(Value { pointer, bytes, key, text });
        Ok(())
    }
}

/// Goes through the members of an object or an array, one at a time.
struct Members<'a, 'b> {
    collector: &'a mut Collector<'b>,
    position: &'a Position,
}

impl Members<'_, '_> {
    fn member(&self, name: &str, key: Arc<str>) -> Position {
        let name = name.replace('~', "~0").replace('/', "~1");
        Position { pointer: format!("{}/{name}", self.position.pointer), key, depth: self.position.depth + 1 }
    }
}

impl<'de> Visitor<'de> for Members<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some((key, raw)) = map.next_entry::<String, &RawValue>()? {
            let position = self.member(&key, (&*key).into());
            if !keys.insert(key) {
                return Err(de::Error::custom("a key is there twice"));
            }
            self.collector.collect(raw, &position)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(raw) = seq.next_element::<&RawValue>()? {
            let position = self.member(&index.to_string(), Arc::clone(&self.position.key));
            self.collector.collect(raw, &position)?;
            index += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, answer: &str, expect: Option<&[(&str, &str)]>) {
        let found = values(answer, 4).ok();
        let found: Option<Vec<(&str, &str)>> = found
            .as_ref()
            .map(|values| values.iter().map(|value| (&*value.pointer, value.bytes.slice(answer))).collect());
        assert_eq!(found.as_deref(), expect, "{name}");
    }

    #[test]
    fn escapes_are_read_in_the_values() {
        let answer = r#"{"note": ["a\n\u00e9", 7], "b": null}"#;
        let found: Vec<(Arc<str>, String)> =
            values(answer, 4).expect("JSON").into_iter().map(|value| (value.key, value.text)).collect();
        let value = |key: &str, text: &str| (key.into(), text.to_owned());
        assert_eq!(found, [value("note", "a\né"), value("note", "7"), value("b", "null")]);
    }

    #[test]
    fn values_are_found_by_their_pointers() {
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
    fn an_answer_without_values_has_a_reason() {
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        let long = format!(r#"{{"{}": [{}1]}}"#, "k".repeat(20_000), "1,".repeat(100));
        for (answer, why) in [
            ("It was in 1998.", "not JSON that can be used"),
            ("1998", "not a JSON object or array"),
            ("{}", "without a value"),
            (r#"{"a": 1, "a": 2}"#, "a key is there twice"),
            (&*deep, "more than 64 levels"),
            (&*long, "too long"),
        ] {
            let found = values(answer, 200).map(|values| assert_eq!(values, [], "{answer}"));
            let found = found.map_or_else(|error| error.to_string(), |()| "without a value".to_owned());
            assert!(found.contains(why), "{found}");
        }
    }

    #[test]
    fn values_are_counted_while_they_are_found() {
        assert_eq!(values("[1, [2, 3], \"\", 4]", 4).expect("as many as allowed").len(), 4);
        // The rest of the answer is not even read.
        let error = values("[1, [2, 3], 4, 5]", 4).expect_err("one more");
        assert!(matches!(error, NoValues::TooMany { max: 4 }), "{error}");
    }
}
