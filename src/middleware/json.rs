//! JSON with places: what a body says, and where it says it, so that what is not ours to change stays as it was written, to the byte.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// A value inside a JSON text.
#[derive(Debug, Clone, Copy, Default)]
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
        // The value is borrowed from the text, so the difference of the addresses is its place there.
        let at = raw.get().as_ptr() as usize - text.as_ptr() as usize;
        Ok(Self { json: raw.get(), at })
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
    pub fn fields(self) -> Fields<'a> {
        Fields(Members::of(self, '{'))
    }

    /// The field of that name: the last one, where there are several, as readers of JSON have it.
    pub fn get(self, name: &str) -> Option<Self> {
        self.fields().filter(|(found, _)| found == name).last().map(|(_, value)| value)
    }

    /// The values in a list, in order; none where this is no list.
    pub fn items(self) -> Items<'a> {
        Items(Members::of(self, '['))
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

    /// Strings in it that are values, not names of fields, and that take at least `bytes_min` bytes as they are written.
    pub fn strings(self, bytes_min: usize) -> impl Iterator<Item = Self> {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let start = at + self.json[at..].find('"')?;
                at = end_of_string(self.json, start);
                let is_name = self.json[at..].trim_start_matches(BLANKS).starts_with(':');
                if !is_name && at - start >= bytes_min {
                    return Some(Self { json: &self.json[start..at], at: self.at + start });
                }
            }
        })
    }
}

/// What may stand between the values of a JSON text.
const BLANKS: [char; 4] = [' ', '\n', '\r', '\t'];

/// One past the quote that closes the string which begins at `start` of a JSON text.
fn end_of_string(json: &str, start: usize) -> usize {
    let bytes = json.as_bytes();
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// The values of a list. They are found one at a time: a list of millions of them takes no memory.
#[derive(Debug, Clone, Default)]
pub struct Items<'a>(Members<'a>);

impl<'a> Iterator for Items<'a> {
    type Item = Located<'a>;

    fn next(&mut self) -> Option<Located<'a>> {
        self.0.next()
    }
}

/// The fields of an object. They are found one at a time.
#[derive(Debug, Clone, Default)]
pub struct Fields<'a>(Members<'a>);

impl<'a> Iterator for Fields<'a> {
    type Item = (Cow<'a, str>, Located<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let name = self.0.next()?;
        let inside = name.json.strip_prefix('"')?.strip_suffix('"')?;
        // Half a surrogate pair cannot be read; such a name is taken as it is written.
        let read = if inside.contains('\\') { name.read().map(Cow::Owned) } else { None };
        Some((read.unwrap_or(Cow::Borrowed(inside)), self.0.next()?))
    }
}

/// The values directly inside a list, or the names and values directly inside an object.
#[derive(Debug, Clone, Default)]
struct Members<'a> {
    of: Located<'a>,
    /// Where in `of` the next one is looked for.
    next: usize,
}

impl<'a> Members<'a> {
    fn of(of: Located<'a>, opening: char) -> Self {
        let next = if of.json.starts_with(opening) { 1 } else { of.json.len() };
        Self { of, next }
    }

    fn next(&mut self) -> Option<Located<'a>> {
        // The text was parsed as a whole before, so only separators and the end can stand here.
        let rest = self.of.json[self.next..].trim_start_matches(BLANKS);
        let rest = rest.strip_prefix([',', ':']).unwrap_or(rest).trim_start_matches(BLANKS);
        if rest.is_empty() || rest.starts_with([']', '}']) {
            return None;
        }
        let start = self.of.json.len() - rest.len();
        let raw = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>().next()?.ok()?;
        self.next = start + raw.get().len();
        Some(Located { json: raw.get(), at: self.of.at + start })
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
        let mut fields = object.fields().peekable();
        let mut before: Option<usize> = None;
        while let Some((found, value)) = fields.next() {
            let mut end = value.range().end;
            if found == name {
                // Fields of that name that stand together go together: their commas would otherwise be taken twice.
                while let Some((_, value)) = fields.next_if(|(found, _)| found == name) {
                    end = value.range().end;
                }
                let gone = match (before, fields.peek().is_some()) {
                    // With the comma in front of them.
                    (Some(before), _) => before..end,
                    // With the one behind them: the next field's name begins behind that.
                    (None, true) => {
                        let behind = &object.json[end - object.at..];
                        object.at + 1..end + behind.find(',').map_or(0, |comma| comma + 1)
                    }
                    (None, false) => object.at + 1..end,
                };
                self.replace(gone, "");
            }
            before = Some(end);
        }
    }

    /// Sets a field of an object, whether it has it or not.
    pub fn set_field(&mut self, object: Located, name: &str, json: &str) {
        match object.get(name) {
            Some(value) => self.replace(value.range(), json),
            None => {
                let comma = if object.fields().next().is_none() { "" } else { "," };
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
            Some(list) if list.json == "null" || list.is_list() && list.items().next().is_none() => {
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
        let inner = body.get("a").expect("a").items().nth(1).expect("two").get("b").expect("b");
        assert_eq!((inner.text().as_deref(), &text[inner.range()]), (Some("éx"), "\"\\u00e9x\""));
        assert_eq!(&text[body.get("n").expect("n").range()], "1e3");
        assert!(body.get("n").expect("n").text().is_none());
        assert!(body.get("x").is_none() && body.items().next().is_none());
        assert!(Located::parse("{").is_err());
        let values = |text: &str| -> Vec<String> {
            let items = Located::parse(text).expect("JSON").items();
            items.map(|item| item.json().to_owned()).collect()
        };
        assert_eq!(
            values(r#"[1,true , null,"a,]" ,[2,[ ]],{"x":[3]}]"#),
            ["1", "true", "null", r#""a,]""#, "[2,[ ]]", r#"{"x":[3]}"#]
        );
        assert_eq!((values(" [ ] ").len(), values("{}").len()), (0, 0));
        let twice = r#"{"\u0061":1, "b" : {"a":9} ,"a":2, "\ud800":3}"#;
        let body = Located::parse(twice).expect("JSON");
        assert_eq!(body.get("a").expect("a").json(), "2", "the last one counts");
        let names: Vec<String> = body.fields().map(|(name, _)| name.into_owned()).collect();
        assert_eq!(names, ["a", "b", "a", r"\ud800"]);
    }

    #[test]
    fn strings_are_values_and_no_names() {
        let text = r#"{"a long name" : "a \"long\" value", "b": ["short", {"c": "another: \\"}, 1]}"#;
        let found: Vec<&str> = Located::parse(text).expect("JSON").strings(9).map(Located::json).collect();
        assert_eq!(found, [r#""a \"long\" value""#, r#""another: \\""#]);
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
