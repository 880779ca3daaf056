//! The records of a tool result that is JSON: its objects, with the ids, titles and addresses by which an answer can cite them.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::json::{Located, end_of_string};

/// The most objects of one result that are records. Further objects belong to the object around them.
const RECORD_COUNT_MAX: usize = 1_000;

/// The most objects and lists inside each other that are told apart.
const DEPTH_MAX: usize = 64;

/// The names of a text in citations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    pub id: Option<Arc<str>>,
    pub title: Option<Arc<str>>,
    /// The address of the document, such as a URL.
    pub source: Option<Arc<str>>,
}

impl Names {
    pub fn bytes(&self) -> usize {
        [&self.id, &self.title, &self.source].into_iter().flatten().map(|name| name.len()).sum()
    }

    /// Returns the names at the beginning of a paragraph: `[doc-7] ...` or `<document id="7" title="...">`.
    pub fn of_paragraph(text: &str) -> Self {
        if let Some(tag) = text.strip_prefix("<document ").and_then(|rest| rest.split_once('>')) {
            let source = attribute(tag.0, "url").or_else(|| attribute(tag.0, "source"));
            return Self { id: attribute(tag.0, "id"), title: attribute(tag.0, "title"), source };
        }
        let id = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).filter(|(id, rest)| {
            let is_id = |c: char| c.is_ascii_alphanumeric() || "-_.:/#".contains(c);
            // A word without a digit is rather the level of a log entry.
            id.len() <= 64
                && id.contains(|c: char| c.is_ascii_digit())
                && id.chars().all(is_id)
                && rest.starts_with(char::is_whitespace)
        });
        Self { id: id.map(|(id, _)| Arc::from(id)), ..Self::default() }
    }
}

/// The names that the paragraphs of a context have taken. A text could take the name of another one, and would then be cited as that one.
#[derive(Debug, Default)]
pub struct Claims {
    taken: HashSet<Arc<str>>,
    /// The names of the paragraph before, unless it had none.
    last: Names,
}

impl Claims {
    /// Returns the names of the next paragraph: those that it claims, unless its id, or without one its title or address, belongs to a paragraph
    /// before the last one.
    pub fn claim(&mut self, names: Names) -> Names {
        if names == self.last || names == Names::default() {
            return names;
        }
        // Several documents may have one title, such as the parts of a book, but each has an id of its own.
        let claimed = match &names.id {
            Some(_) => [&names.id, &None],
            None => [&names.title, &names.source],
        };
        if claimed.into_iter().flatten().any(|name| self.taken.contains(name)) {
            return Names::default();
        }
        self.taken.extend([&names.id, &names.title, &names.source].into_iter().flatten().cloned());
        self.last = names.clone();
        names
    }
}

fn attribute(tag: &str, name: &str) -> Option<Arc<str>> {
    let mut rest = tag;
    while let Some((before, after)) = rest.split_once("=\"") {
        let (value, next) = after.split_once('"')?;
        if before.trim() == name && !value.is_empty() {
            let value = value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">");
            return Some(value.replace("&amp;", "&").into());
        }
        rest = next;
    }
    None
}

/// A record of a JSON text: the whole text, an object in a list, or an object with an id.
#[derive(Debug, Clone)]
pub struct Record {
    pub names: Names,
    /// The JSON of the record. `"[...]"` stands for long strings, and `{}` for the records inside it. `None`: there is nothing else.
    pub text: Option<String>,
    range: Range<usize>,
    /// The index of the record around it.
    parent: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Records(Vec<Record>);

impl Records {
    /// Finds the records of `json`, which is in `text`. Strings of at least `long_bytes_min` bytes in the JSON text are long. Takes time in
    /// proportion to the length of the text.
    pub fn find(text: &str, json: Located, long_bytes_min: usize) -> Self {
        let mut scan = Scan::new(text, json.range(), long_bytes_min);
        scan.run();
        scan.records()
    }

    pub fn into_records(self) -> Vec<Record> {
        self.0
    }

    /// Returns the names of the innermost record with a name around a position.
    pub fn names_at(&self, at: usize) -> Names {
        let mut index = self.0.partition_point(|record| record.range.start <= at).saturating_sub(1);
        while let Some(record) = self.0.get(index) {
            if record.range.contains(&at) && record.names != Names::default() {
                return record.names.clone();
            }
            if record.parent == index {
                break;
            }
            index = record.parent;
        }
        Names::default()
    }
}

/// An object of the text, or the whole text.
#[derive(Debug, Default)]
struct Object {
    range: Range<usize>,
    /// The index of the object around it.
    parent: usize,
    is_item: bool,
    names: Names,
    has_id: bool,
    /// How many short values it has that are not names.
    value_count: usize,
    has_long: bool,
}

/// A list or object that is open.
struct Level {
    is_list: bool,
    object: usize,
    /// Whether its fields may name the object.
    names_object: bool,
    /// The last name of a field.
    key: Range<usize>,
}

struct Scan<'a> {
    text: &'a str,
    json: Range<usize>,
    long_bytes_min: usize,
    objects: Vec<Object>,
    long: Vec<Range<usize>>,
    levels: Vec<Level>,
    /// How many levels beyond the limit are open.
    deeper: usize,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str, json: Range<usize>, long_bytes_min: usize) -> Self {
        let whole = Object { range: json.clone(), ..Object::default() };
        let (objects, long, levels) = (vec![whole], Vec::new(), Vec::new());
        Self { text, json, long_bytes_min, objects, long, levels, deeper: 0 }
    }

    fn run(&mut self) {
        let mut at = self.json.start;
        while at < self.json.end {
            at = match self.text.as_bytes()[at] {
                b'{' | b'[' if self.levels.len() == DEPTH_MAX => {
                    self.deeper += 1;
                    at + 1
                }
                b'}' | b']' if self.deeper > 0 => {
                    self.deeper -= 1;
                    at + 1
                }
                byte @ (b'{' | b'[') => {
                    self.open(at, byte == b'[');
                    at + 1
                }
                b'}' | b']' => {
                    if let Some(Level { is_list: false, object, .. }) = self.levels.pop() {
                        // An object that is no record of its own ends before the object around it, which sets the end again.
                        self.objects[object].range.end = self.objects[object].range.end.max(at + 1);
                    }
                    at + 1
                }
                b'"' => {
                    let end = end_of_string(self.text, at);
                    let is_key = self.text[end..self.json.end].trim_start().starts_with(':');
                    match self.levels.last_mut().filter(|_| is_key) {
                        Some(level) => level.key = at..end,
                        None => self.value(at..end),
                    }
                    end
                }
                b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                    let rest = &self.text[at..self.json.end];
                    let end = rest.find(|c: char| matches!(c, ',' | ']' | '}') || c.is_whitespace());
                    let end = end.map_or(self.json.end, |end| at + end);
                    if &self.text[at..end] != "null" {
                        self.value(at..end);
                    }
                    end
                }
                _ => at + 1,
            };
        }
    }

    fn open(&mut self, at: usize, is_list: bool) {
        let outer = self.levels.last();
        let parent = outer.map_or(0, |level| level.object);
        let is_item = outer.is_some_and(|level| level.is_list);
        let is_metadata = outer.is_some_and(|level| {
            level.names_object && !level.is_list && &self.text[level.key.clone()] == "\"metadata\""
        });
        let is_own =
            !is_list && !self.levels.is_empty() && !is_metadata && self.objects.len() < RECORD_COUNT_MAX;
        let object = if is_own { self.objects.len() } else { parent };
        if is_own {
            self.objects.push(Object { range: at..at, parent, is_item, ..Object::default() });
        }
        let names_object = !is_list && (is_own || is_metadata || self.levels.is_empty());
        self.levels.push(Level { is_list, object, names_object, key: 0..0 });
    }

    fn value(&mut self, range: Range<usize>) {
        let (object, key) = match self.levels.last() {
            Some(level) => (level.object, &self.text[level.key.clone()]),
            None => (0, ""),
        };
        let names = self.deeper == 0 && self.levels.last().is_some_and(|level| level.names_object);
        let object = &mut self.objects[object];
        let written = &self.text[range.clone()];
        if written.starts_with('"') && written.len() >= self.long_bytes_min {
            object.has_long = true;
            self.long.push(range);
            return;
        }
        let name = || -> Option<Arc<str>> {
            let text = if written.starts_with('"') {
                serde_json::from_str::<String>(written).ok()?
            } else {
                written.to_owned()
            };
            (!text.trim().is_empty()).then(|| text.into())
        };
        let is_text = written.starts_with('"');
        match key {
            "\"id\"" | "\"document_id\"" | "\"doc_id\"" if names && !object.has_id => {
                (object.names.id, object.has_id) = (name(), true);
            }
            "\"title\"" if names && is_text && object.names.title.is_none() => object.names.title = name(),
            "\"url\"" if names && is_text => object.names.source = name(),
            "\"source\"" if names && is_text => match name() {
                Some(source) if source.contains("://") => {
                    object.names.source.get_or_insert(source);
                }
                // A source that is no address, such as the name of a file, identifies the document.
                source => object.names.id = object.names.id.take().or(source),
            },
            _ => object.value_count += 1,
        }
    }

    fn records(mut self) -> Records {
        let is_record = |at: usize, object: &Object| at == 0 || object.is_item || object.has_id;
        // An object that is no record belongs to the object around it, which comes before it.
        for at in (1..self.objects.len()).rev() {
            let Object { parent, value_count, has_long, ref names, .. } = self.objects[at];
            if !is_record(at, &self.objects[at]) {
                let name_count = usize::from(*names != Names::default());
                self.objects[parent].value_count += value_count + name_count;
                self.objects[parent].has_long |= has_long;
            }
        }
        // The index of each object's record among the records.
        let (mut record_of, mut count) = (Vec::with_capacity(self.objects.len()), 0);
        for (at, object) in self.objects.iter().enumerate() {
            let own = is_record(at, object);
            record_of.push(if own { count } else { record_of[object.parent] });
            count += usize::from(own);
        }
        let mut texts = self.texts(is_record).into_iter();
        let records = self.objects.into_iter().enumerate().filter(|(at, object)| is_record(*at, object));
        let record = |(_, object): (usize, Object)| {
            let text = texts.next();
            let is_named = object.names != Names::default();
            let has_more = object.value_count > 0 || is_named && !object.has_long;
            Record {
                names: object.names,
                text: text.filter(|_| has_more),
                range: object.range,
                parent: record_of[object.parent],
            }
        };
        Records(records.map(record).collect())
    }

    /// The texts of the records. Every byte is copied at most once.
    fn texts(&self, is_record: impl Fn(usize, &Object) -> bool) -> Vec<String> {
        let records = self.objects.iter().enumerate().filter(|(at, object)| is_record(*at, object));
        let records = records.enumerate().map(|(number, (_, object))| (object.range.clone(), Some(number)));
        let mut cuts: Vec<(Range<usize>, Option<usize>)> =
            records.chain(self.long.iter().map(|range| (range.clone(), None))).collect();
        cuts.sort_by_key(|(range, number)| (range.start, number.is_none()));
        let mut texts = Vec::new();
        // Records that are open: number, position up to which they are copied, and end.
        let mut open: Vec<(usize, usize, usize)> = Vec::new();
        let close = |open: &mut Vec<(usize, usize, usize)>, texts: &mut Vec<String>, before: usize| {
            while let Some((number, copied, end)) = open.pop_if(|(_, _, end)| *end <= before) {
                texts[number].push_str(&self.text[copied..end]);
            }
        };
        for (range, number) in cuts {
            close(&mut open, &mut texts, range.start);
            if let Some((outer, copied, _)) = open.last_mut() {
                texts[*outer].push_str(&self.text[*copied..range.start]);
                texts[*outer].push_str(if number.is_some() { "{}" } else { "\"[...]\"" });
                *copied = range.end;
            }
            if let Some(number) = number {
                texts.push(String::new());
                open.push((number, range.start, range.end));
            }
        }
        close(&mut open, &mut texts, usize::MAX);
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(json: &str) -> Records {
        Records::find(json, Located::parse(json).expect("JSON"), 20)
    }

    fn named(id: &str, title: &str, source: &str) -> Names {
        let name = |name: &str| (!name.is_empty()).then(|| Arc::from(name));
        Names { id: name(id), title: name(title), source: name(source) }
    }

    #[test]
    fn records_are_the_whole_the_objects_in_lists_and_objects_with_ids() {
        let check = |name: &str, json: &str, expect: &[&str]| {
            let found: Vec<String> =
                records(json).into_records().into_iter().filter_map(|record| record.text).collect();
            assert_eq!(found, expect, "{name}");
        };
        check("flat", r#" {"flight":"BA 117", "gate":"B42"} "#, &[r#"{"flight":"BA 117", "gate":"B42"}"#]);
        check("a list", r#"[{"a":1},{"a":[2,3]}, 4]"#, &["[{},{}, 4]", r#"{"a":1}"#, r#"{"a":[2,3]}"#]);
        check(
            "wrapped",
            r#"{"hits":[{"a":"x"}],"total":1}"#,
            &[r#"{"hits":[{}],"total":1}"#, r#"{"a":"x"}"#],
        );
        check("only wrapped", r#"{"hits":[{"a":"x"}],"next":null}"#, &[r#"{"a":"x"}"#]);
        check("inside", r#"{"a":{"b":{"c":"x"}}}"#, &[r#"{"a":{"b":{"c":"x"}}}"#]);
        check("with an id", r#"{"a":{"id":7,"c":"x"},"d":2}"#, &[r#"{"a":{},"d":2}"#, r#"{"id":7,"c":"x"}"#]);
        check("a long string", r#"{"a":1,"b":"a string that is long"}"#, &[r#"{"a":1,"b":"[...]"}"#]);
        check("only a long string", r#"{"id":"1","url":"u","b":"a string that is long"}"#, &[]);
        check("only names", r#"{"id":"1","title":"T"}"#, &[r#"{"id":"1","title":"T"}"#]);
        check("a text", r#""B42""#, &[r#""B42""#]);
        check("nothing", "[]", &[]);
        check("brackets in strings", r#"{"a":"}]\"{","b:":":"}"#, &[r#"{"a":"}]\"{","b:":":"}"#]);
    }

    #[test]
    fn records_have_names() {
        let check = |json: &str, expect: Names| {
            let found = records(json);
            let at = json.find("here").expect("a position");
            assert_eq!(found.names_at(at), expect, "{json}");
        };
        check(r#"{"id":"d1","title":"T","url":"https://u","text":"here"}"#, named("d1", "T", "https://u"));
        check(
            r#"[{"doc_id":7,"text":"no"},{"document_id":8,"source":"https://s","text":"here"}]"#,
            named("8", "", "https://s"),
        );
        check(r#"{"url":"u","source":"https://s","text":"here"}"#, named("", "", "u"));
        check(r#"[{"text":"here","metadata":{"source":"a.pdf","title":"T"}}]"#, named("a.pdf", "T", ""));
        check(r#"{"id":"outer","hits":[{"text":"here"}]}"#, named("outer", "", ""));
        check(r#"{"hits":[{"id":"other"},{"text":"here"}]}"#, named("", "", ""));
        check(r#"{"user":{"id":"other"},"text":"here"}"#, named("", "", ""));
        check(r#"{"id":"d1","part":{"text":"here"}}"#, named("d1", "", ""));
        check(r#"{"id":" ","title":3,"url":null,"text":"here"}"#, named("", "", ""));
    }

    #[test]
    fn deep_and_wide_texts_are_bounded() {
        let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(records(&deep).into_records().len(), 1);
        let deep = format!("{}1{}", "{\"id\":1,\"a\":".repeat(50_000), "}".repeat(50_000));
        assert!(records(&deep).into_records().len() <= DEPTH_MAX);
        let wide = format!("[{}{{}}]", "{\"a\":1},".repeat(50_000));
        let found = records(&wide).into_records();
        assert_eq!(found.len(), RECORD_COUNT_MAX);
        assert_eq!(
            found
                .iter()
                .filter_map(|record| record.text.as_ref())
                .filter(|text| *text == "{\"a\":1}")
                .count(),
            RECORD_COUNT_MAX - 1
        );
    }

    #[test]
    fn a_name_belongs_to_the_paragraphs_that_take_it_first() {
        let mut claims = Claims::default();
        let mut check = |text: &str, expect: Names| {
            assert_eq!(claims.claim(Names::of_paragraph(text)), expect, "{text}");
        };
        check("[doc-1] A handbook.", named("doc-1", "", ""));
        check("It goes on.", Names::default());
        check("[doc-1] And on.", named("doc-1", "", ""));
        check("[doc-2] A blog.", named("doc-2", "", ""));
        check("[doc-1] Written by the blog.", Names::default());
        check("<document title=\"doc-1\">So is this.", Names::default());
        check("<document id=\"3\" title=\"Policy\">A policy.", named("3", "Policy", ""));
        check("<document id=\"4\" title=\"Policy\">Its second part.", named("4", "Policy", ""));
        check("<document title=\"Policy\">Without an id.", Names::default());
    }

    #[test]
    fn paragraphs_have_names() {
        let check = |text: &str, expect: Names| assert_eq!(Names::of_paragraph(text), expect, "{text}");
        check("[3] It is.", named("3", "", ""));
        check("[doc-7]\nIt is.", named("doc-7", "", ""));
        check(
            "<document index=\"1\" id=\"&quot;a&quot;\" title=\"5 &gt; 4\">\nIt is.",
            named("\"a\"", "5 > 4", ""),
        );
        check("<document source=\"https://s\">It is.", named("", "", "https://s"));
        for none in [
            "[INFO] It is.",
            "[1](link)",
            "[1, 2] It is.",
            "It is [3].",
            "[3",
            "<document>It is.",
            "<document id=\"a",
        ] {
            check(none, Names::default());
        }
    }
}
