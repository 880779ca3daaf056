//! JSON values with their byte positions in the body, and edits at these positions: the rest of the body does not change by a single byte.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// A value in a JSON text, with its position.
#[derive(Debug, Clone, Copy, Default)]
pub struct Located<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> Located<'a> {
    /// Parses `text`, which is one JSON value.
    ///
    /// # Errors
    /// Fails if the text is not JSON.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_str(text)?;
        // The value is borrowed from the text, so the difference of their addresses is the position of the value.
        let at = raw.get().as_ptr() as usize - text.as_ptr() as usize;
        Ok(Self { json: raw.get(), at })
    }

    /// Returns the value of a text that [`Self::parse`] has accepted, without reading it again.
    pub fn parsed(text: &'a str) -> Self {
        let json = text.trim_start_matches(WHITESPACE);
        Self { json: json.trim_end_matches(WHITESPACE), at: text.len() - json.len() }
    }

    /// Returns the range of the value in the whole text, in bytes.
    pub fn range(self) -> Range<usize> {
        self.at..self.at + self.json.len()
    }

    pub fn json(self) -> &'a str {
        self.json
    }

    /// Returns the fields of an object in the order of the text; none if the value is not an object.
    pub fn fields(self) -> Fields<'a> {
        Fields(Members::new(self, '{'))
    }

    /// Returns the field with this name: the last one if there are several, as JSON parsers do.
    pub fn get(self, name: &str) -> Option<Self> {
        self.fields().filter(|(found, _)| found == name).last().map(|(_, value)| value)
    }

    /// Returns the values of a list in order; none if the value is not a list.
    pub fn items(self) -> Items<'a> {
        Items(Members::new(self, '['))
    }

    /// Returns the decoded text of a string, or `None` if the value is not a string.
    pub fn text(self) -> Option<String> {
        self.json.starts_with('"').then(|| self.read()).flatten()
    }

    /// Returns the decoded text of the field with this name, or `None` if it is missing or not a string.
    pub fn text_of(self, name: &str) -> Option<String> {
        self.get(name)?.text()
    }

    /// Deserializes the value, or returns `None` if it is not a `T`.
    pub fn read<T: DeserializeOwned>(self) -> Option<T> {
        serde_json::from_str(self.json).ok()
    }

    pub fn is_list(self) -> bool {
        self.json.starts_with('[')
    }

    /// Returns the strings inside the value, at any depth, that are values and not names of fields, and that have at least `bytes_min` bytes
    /// in the JSON text.
    pub fn strings(self, bytes_min: usize) -> impl Iterator<Item = Self> {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let start = at + self.json[at..].find('"')?;
                at = end_of_string(self.json, start);
                let is_name = self.json[at..].trim_start_matches(WHITESPACE).starts_with(':');
                if !is_name && at - start >= bytes_min {
                    return Some(Self { json: &self.json[start..at], at: self.at + start });
                }
            }
        })
    }
}

/// White space between the values of a JSON text.
const WHITESPACE: [char; 4] = [' ', '\n', '\r', '\t'];

/// The position after the closing quote of the string that begins at `start` of a JSON text.
pub(super) fn end_of_string(json: &str, start: usize) -> usize {
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

/// Returns the range of the number in a field of an object of which only the beginning is known. The object may follow other text.
pub fn number_in_beginning(json: &str, name: &str) -> Option<Range<usize>> {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = json.as_bytes().get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = end_of_string(json, at);
                let is_name = depth == 1 && json.get(at + 1..end - 1) == Some(name);
                let value = json.get(end..).map(|rest| rest.trim_start_matches(WHITESPACE));
                if let Some(value) = value.and_then(|rest| rest.strip_prefix(':')).filter(|_| is_name) {
                    let start = json.len() - value.trim_start_matches(WHITESPACE).len();
                    let digits = json[start..].bytes().take_while(u8::is_ascii_digit).count();
                    // At the very end, digits may be missing.
                    return (digits > 0 && start + digits < json.len()).then_some(start..start + digits);
                }
                at = end - 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Iterator over the values of a list. It finds them one at a time, so a list of millions of values takes no memory.
#[derive(Debug, Clone, Default)]
pub struct Items<'a>(Members<'a>);

impl<'a> Iterator for Items<'a> {
    type Item = Located<'a>;

    fn next(&mut self) -> Option<Located<'a>> {
        self.0.next()
    }
}

/// Iterator over the fields of an object. It finds them one at a time.
#[derive(Debug, Clone, Default)]
pub struct Fields<'a>(Members<'a>);

impl<'a> Iterator for Fields<'a> {
    type Item = (Cow<'a, str>, Located<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let name = self.0.next()?;
        let inside = name.json.strip_prefix('"')?.strip_suffix('"')?;
        // A name with half a surrogate pair cannot be decoded and is used in its encoded form.
        let decoded = if inside.contains('\\') { name.read().map(Cow::Owned) } else { None };
        Some((decoded.unwrap_or(Cow::Borrowed(inside)), self.0.next()?))
    }
}

/// The values directly inside a list, or the names and values directly inside an object.
#[derive(Debug, Clone, Default)]
struct Members<'a> {
    of: Located<'a>,
    /// The position in `of` after the last value that was found.
    next: usize,
}

impl<'a> Members<'a> {
    fn new(of: Located<'a>, opening: char) -> Self {
        let next = if of.json.starts_with(opening) { 1 } else { of.json.len() };
        Self { of, next }
    }

    fn next(&mut self) -> Option<Located<'a>> {
        // The whole text was parsed before, so only a separator or the end can follow.
        let rest = self.of.json[self.next..].trim_start_matches(WHITESPACE);
        let rest = rest.strip_prefix([',', ':']).unwrap_or(rest).trim_start_matches(WHITESPACE);
        if rest.is_empty() || rest.starts_with([']', '}']) {
            return None;
        }
        let start = self.of.json.len() - rest.len();
        let raw = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>().next()?.ok()?;
        self.next = start + raw.get().len();
        Some(Located { json: raw.get(), at: self.of.at + start })
    }
}

/// Replacements in a text. They must not overlap; the rest of the text does not change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits(Vec<(Range<usize>, String)>);

impl Edits {
    /// Replaces a range, in bytes, with `text`. An empty range inserts the text.
    pub fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.0.push((range, text.into()));
    }

    pub fn remove_field(&mut self, object: Located, name: &str) {
        let mut fields = object.fields().peekable();
        let mut before: Option<usize> = None;
        while let Some((found, value)) = fields.next() {
            let mut end = value.range().end;
            if found == name {
                // Adjacent fields with the name are removed together, so that no comma is removed twice.
                while let Some((_, value)) = fields.next_if(|(found, _)| found == name) {
                    end = value.range().end;
                }
                let range = match (before, fields.peek().is_some()) {
                    // With the comma before them.
                    (Some(before), _) => before..end,
                    // With the comma after them, which the name of the next field follows.
                    (None, true) => {
                        let rest = &object.json[end - object.at..];
                        object.at + 1..end + rest.find(',').map_or(0, |comma| comma + 1)
                    }
                    (None, false) => object.at + 1..end,
                };
                self.replace(range, "");
            }
            before = Some(end);
        }
    }

    /// Sets a field of an object to the value `json`. Inserts the field if the object does not have it.
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

    /// Appends `items` to the list in a field of an object. Creates the list if the field is null or missing; changes nothing if the field is
    /// another value.
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

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `text` with the replacements. They must not overlap.
    pub fn apply(mut self, text: &str) -> String {
        self.0.sort_by_key(|(range, _)| (range.start, range.end));
        let (mut out, mut at) = (String::with_capacity(text.len()), 0);
        for (range, new) in self.0 {
            debug_assert!(range.start >= at, "replacements do not overlap");
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
    fn values_have_their_positions() {
        let text = r#" { "a" : [1, {"b":"\u00e9x"} ], "n": 1e3 } "#;
        let body = Located::parse(text).expect("JSON");
        let inner = body.get("a").expect("a").items().nth(1).expect("two").get("b").expect("b");
        assert_eq!((inner.text().as_deref(), &text[inner.range()]), (Some("éx"), "\"\\u00e9x\""));
        assert_eq!(&text[body.get("n").expect("n").range()], "1e3");
        assert!(body.get("n").expect("n").text().is_none());
        assert!(body.get("x").is_none() && body.items().next().is_none());
        assert!(Located::parse("{").is_err());
        let (parsed, again) = (Located::parse(" {} \n").expect("JSON"), Located::parsed(" {} \n"));
        assert_eq!((parsed.json(), parsed.range()), (again.json(), again.range()));
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
    fn strings_are_values_and_not_names() {
        let text = r#"{"a long name" : "a \"long\" value", "b": ["short", {"c": "another: \\"}, 1]}"#;
        let found: Vec<&str> = Located::parse(text).expect("JSON").strings(9).map(Located::json).collect();
        assert_eq!(found, [r#""a \"long\" value""#, r#""another: \\""#]);
    }

    #[test]
    fn a_number_is_found_in_the_beginning_of_an_object() {
        let check = |json: &str, expect: Option<&str>| {
            let found = number_in_beginning(json, "index").map(|range| &json[range]);
            assert_eq!(found, expect, "{json}");
        };
        check(r#"data: {"type":"a","index" : 12 ,"b":["#, Some("12"));
        check(r#"{"b":{"index":1},"c":"\"index\":2","index":3,"d"#, Some("3"));
        check(r#"{"b":"index","index":"4","#, None);
        check(r#"{"index":5"#, None);
        check(r#"{"a":"inde"#, None);
        check("{\"index", None);
        check("{\"é", None);
    }

    #[test]
    fn fields_are_removed_and_set() {
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
