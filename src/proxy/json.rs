//! JSON with places: what a body says, and where it says it, so that what is not ours to change stays as it was written, to the byte.

use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeOwned, Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::shape::Key;

/// A value inside a JSON text.
#[derive(Debug, Clone, Copy)]
pub struct Located<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> Located<'a> {
    /// The value that a whole text is.
    ///
    /// # Errors
    /// When the text is no JSON.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_str(text)?;
        Ok(Self { json: text, at: 0 }.inside(raw))
    }

    /// Bytes of the whole text where it stands.
    pub fn range(self) -> Range<usize> {
        self.at..self.at + self.json.len()
    }

    /// As it is written.
    pub fn json(self) -> &'a str {
        self.json
    }

    /// Fields in the order in which they are written; none where this is no object.
    pub fn fields(self) -> Vec<(String, Self)> {
        let mut json = serde_json::Deserializer::from_str(self.json);
        let fields = json.deserialize_map(Fields).unwrap_or_default();
        fields.into_iter().map(|(name, raw)| (name, self.inside(raw))).collect()
    }

    /// The field of that name: the last one, where there are several, as readers of JSON have it.
    pub fn get(self, name: &str) -> Option<Self> {
        // One at a time: a body may have more fields than should be listed to find one.
        let mut json = serde_json::Deserializer::from_str(self.json);
        json.deserialize_map(Last(name)).ok().flatten().map(|raw| self.inside(raw))
    }

    /// What is in a list; nothing where this is none.
    pub fn items(self) -> Vec<Self> {
        let items: Vec<&RawValue> = serde_json::from_str(self.json).unwrap_or_default();
        items.into_iter().map(|raw| self.inside(raw)).collect()
    }

    /// What a string says.
    pub fn text(self) -> Option<String> {
        self.json.starts_with('"').then(|| self.read()).flatten()
    }

    /// What the string of a field says.
    pub fn text_of(self, name: &str) -> Option<String> {
        self.get(name)?.text()
    }

    /// Read as a `T`, where it is one.
    pub fn read<T: DeserializeOwned>(self) -> Option<T> {
        serde_json::from_str(self.json).ok()
    }

    /// Whether it is a list.
    pub fn is_list(self) -> bool {
        self.json.starts_with('[')
    }

    fn inside(self, raw: &'a RawValue) -> Self {
        let json = raw.get();
        // Borrowed from our own text, so the difference of their addresses is a place in it.
        let offset = json.as_ptr() as usize - self.json.as_ptr() as usize;
        Self { json, at: self.at + offset }
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

/// Finds the last field with this name.
struct Last<'a>(&'a str);

impl<'de> Visitor<'de> for Last<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut last = None;
        while let Some(name) = map.next_key_seed(Key)? {
            let value = map.next_value()?;
            last = if name == self.0 { Some(value) } else { last };
        }
        Ok(last)
    }
}

/// Changes of a text, which leave the rest of it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    /// Puts `text` in the place of a range, or, where that is empty, in front of what follows.
    pub fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.0.push((range, text.into()));
    }

    /// Takes a field out of an object.
    pub fn remove_field(&mut self, object: Located, name: &str) {
        let fields = object.fields();
        let mut at = 0;
        // Those of that name that stand together go together: their commas would otherwise be taken twice.
        for run in fields.chunk_by(|(one, _), (next, _)| (one == name) == (next == name)) {
            let from = at;
            at += run.len();
            if run[0].0 != name {
                continue;
            }
            let end = run[run.len() - 1].1.range().end;
            let gone = match (from.checked_sub(1), at < fields.len()) {
                // With the comma in front of them.
                (Some(before), _) => fields[before].1.range().end..end,
                // With the one behind them: the next field's name begins behind that.
                (None, true) => {
                    let behind = &object.json[end - object.at..];
                    object.at + 1..end + behind.find(',').map_or(0, |comma| comma + 1)
                }
                (None, false) => object.at + 1..end,
            };
            self.replace(gone, "");
        }
    }

    /// Sets a field of an object, whether it has it or not.
    pub fn set_field(&mut self, object: Located, name: &str, json: &str) {
        match object.get(name) {
            Some(value) => self.replace(value.range(), json),
            None => {
                let comma = if object.fields().is_empty() { "" } else { "," };
                let name = serde_json::Value::from(name);
                self.replace(object.at + 1..object.at + 1, format!("{name}:{json}{comma}"));
            }
        }
    }

    /// Adds to the list of a field, which may be null or absent; what is no list stays as it is.
    pub fn append(&mut self, object: Located, name: &str, items: &[serde_json::Value]) {
        let written = serde_json::Value::from(items).to_string();
        match object.get(name) {
            None => self.set_field(object, name, &written),
            Some(list) if list.json == "null" || list.is_list() && list.items().is_empty() => {
                self.replace(list.range(), written);
            }
            Some(list) if list.is_list() => {
                let end = list.range().end - 1;
                self.replace(end..end, format!(",{}", &written[1..written.len() - 1]));
            }
            Some(_) => {}
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The changed text. Changes must lie apart from each other.
    pub fn apply(mut self, text: &str) -> String {
        self.0.sort_by_key(|(range, _)| (range.start, range.end));
        let (mut out, mut at) = (String::with_capacity(text.len()), 0);
        for (range, new) in self.0 {
            debug_assert!(range.start >= at, "changes lie apart");
            if range.start < at {
                continue;
            }
            out.push_str(&text[at..range.start]);
            out.push_str(&new);
            at = range.end;
        }
        out.push_str(&text[at..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_places() {
        let text = r#" { "a" : [1, {"b":"\u00e9x"} ], "n": 1e3 } "#;
        let body = Located::parse(text).expect("JSON");
        let inner = body.get("a").expect("a").items()[1].get("b").expect("b");
        assert_eq!((inner.text().as_deref(), &text[inner.range()]), (Some("éx"), "\"\\u00e9x\""));
        assert_eq!(&text[body.get("n").expect("n").range()], "1e3");
        assert!(body.get("n").expect("n").text().is_none());
        assert!(body.get("x").is_none() && body.items().is_empty());
        assert!(Located::parse("{").is_err());
    }

    #[test]
    fn fields_are_taken_out_and_set() {
        let check = |name: &str, text: &str, expect: &str| {
            let mut edits = Edits::default();
            edits.remove_field(Located::parse(text).expect("JSON"), "x");
            assert_eq!(edits.apply(text), expect, "{name}");
        };
        check("first", r#"{"x": {"y": [1]}, "a":1}"#, r#"{ "a":1}"#);
        check("last", r#"{"a":1 , "x":2 }"#, r#"{"a":1 }"#);
        check("between", r#"{"a":1,"x":2,"b":3}"#, r#"{"a":1,"b":3}"#);
        check("alone", r#"{ "x":2 }"#, r#"{ }"#);
        check("absent", r#"{"a":{"x":1}}"#, r#"{"a":{"x":1}}"#);
        check("twice", r#"{"a":1,"x":2,"x":3}"#, r#"{"a":1}"#);
        check("alone, twice", r#"{"x":2,"x":3}"#, "{}");
        check("twice in front", r#"{"x":2,"x":3, "b":1}"#, r#"{ "b":1}"#);
        check("twice between", r#"{"a":1,"x":2,"x":3,"b":1}"#, r#"{"a":1,"b":1}"#);
        check("first twice", r#"{"x":2,"b":1,"x":3}"#, r#"{"b":1}"#);
        let set = |text: &str| {
            let mut edits = Edits::default();
            edits.set_field(Located::parse(text).expect("JSON"), "x", "[1]");
            edits.apply(text)
        };
        assert_eq!(set(r#"{"a":1}"#), r#"{"x":[1],"a":1}"#);
        assert_eq!(set(r#"{"x":null}"#), r#"{"x":[1]}"#);
        assert_eq!(set("{}"), r#"{"x":[1]}"#);
    }
}
