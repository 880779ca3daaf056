//! Reads JSON, whole or cut off, into a list of values with their places. Knows quotes, brackets and
//! comments. Must not judge: a value that makes no sense is a value of its own.

use crate::line::trimmed;
use crate::range::ByteRange;

/// How many objects and arrays may stand inside each other; what is deeper is one value.
const DEPTH_MAX: usize = 128;

/// A value, with the key and the comments before it.
pub(super) struct Node {
    pub start: usize,
    pub end: usize,
    /// The key without its quotes; empty for the element of an array.
    pub key: ByteRange,
    pub form: Form,
    /// Index one past the last value inside this one.
    pub next: usize,
}

pub(super) enum Form {
    /// A string, a number, a word, or an object or array that is too deep to look into.
    Scalar,
    Container {
        /// One past the opening bracket.
        open_end: usize,
        /// Where the closing bracket stands, if there is one.
        close: Option<usize>,
        is_object: bool,
    },
    /// A closing bracket whose opening one is missing.
    StrayClose,
}

pub(super) struct Nodes {
    /// Every value, each before the values inside it.
    pub list: Vec<Node>,
    /// Whether commas divide the values that stand in no object and no array.
    pub commas_at_top: bool,
}

pub(super) fn read(text: &str) -> Nodes {
    let mut reader = Reader {
        text,
        bytes: text.as_bytes(),
        at: 0,
        nodes: Nodes { list: Vec::new(), commas_at_top: false },
        stack: Vec::new(),
        pending: None,
    };
    reader.read_all();
    reader.nodes
}

/// A key or a comment whose value has not been read yet.
#[derive(Clone, Copy)]
struct Pending {
    start: usize,
    end: usize,
    key: ByteRange,
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    nodes: Nodes,
    stack: Vec<usize>,
    pending: Option<Pending>,
}

impl Reader<'_> {
    fn read_all(&mut self) {
        while let Some(byte) = self.skip_blanks() {
            match byte {
                b',' => self.comma(),
                b'{' | b'[' => self.open(byte == b'{'),
                b'}' | b']' => self.close(),
                b'"' => self.string(),
                b'/' if matches!(self.bytes.get(self.at + 1), Some(b'/' | b'*')) => self.comment(),
                _ => self.word(),
            }
        }
        self.flush_pending();
        let end = self.text.trim_end().len();
        while let Some(index) = self.stack.pop() {
            self.end(index, end, None);
        }
    }

    /// Moves to the next visible character, and returns its first byte.
    fn skip_blanks(&mut self) -> Option<u8> {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.bytes.get(self.at).copied()
    }

    fn comma(&mut self) {
        self.flush_pending();
        self.nodes.commas_at_top |= self.stack.is_empty();
        self.at += 1;
    }

    fn open(&mut self, is_object: bool) {
        let (at, too_deep) = (self.at, self.stack.len() >= DEPTH_MAX);
        if too_deep {
            self.skip_container();
            return self.push(at, self.at, Form::Scalar);
        }
        self.at += 1;
        let form = Form::Container { open_end: self.at, close: None, is_object };
        self.stack.push(self.nodes.list.len());
        self.push(at, self.at, form);
    }

    fn close(&mut self) {
        self.flush_pending();
        let at = self.at;
        self.at += 1;
        match self.stack.pop() {
            Some(index) => self.end(index, self.at, Some(at)),
            None => self.push(at, self.at, Form::StrayClose),
        }
    }

    fn end(&mut self, index: usize, end: usize, close_at: Option<usize>) {
        let next = self.nodes.list.len();
        let node = &mut self.nodes.list[index];
        (node.end, node.next) = (end.max(node.end), next);
        if let Form::Container { close, .. } = &mut node.form {
            *close = close_at;
        }
    }

    fn string(&mut self) {
        let start = self.at;
        // A text that begins inside a string begins with the rest of it.
        let is_rest = start == 0 && self.follows_value(1);
        self.at = if is_rest { 1 } else { string_end(self.bytes, start) };
        let inner = (start + 1).min(self.at);
        let key_end = if self.bytes[self.at - 1] == b'"' { (self.at - 1).max(inner) } else { self.at };
        self.value_or_key(start, ByteRange::new(inner, key_end));
    }

    fn word(&mut self) {
        let (start, is_first) = (self.at, self.nodes.list.is_empty() && self.pending.is_none());
        let mut at = start;
        while let Some(&byte) = self.bytes.get(at) {
            match byte {
                b',' | b'{' | b'}' | b'[' | b']' | b'\n' => break,
                b'"' if is_first && self.follows_value(at + 1) => {
                    at += 1;
                    break;
                }
                b'"' => break,
                _ => at += 1,
            }
        }
        let word = trimmed(self.text, start, at);
        self.at = word.end;
        match word.slice(self.text).strip_suffix(':') {
            Some(key) if self.pending.is_none_or(|pending| pending.key.is_empty()) => {
                self.set_key(start, self.at, ByteRange::new(start, start + key.trim_end().len()));
            }
            _ => self.value_or_key(start, ByteRange::new(start, start)),
        }
    }

    /// Returns whether what stands at `at` can follow a value or a key, so that a quote before it closes one.
    fn follows_value(&self, at: usize) -> bool {
        let next = self.text[at..].trim_start().bytes().next();
        matches!(next, Some(b',' | b':' | b'}' | b']'))
    }

    /// Takes what was read from `start` as a key if a colon follows, and as a value otherwise.
    fn value_or_key(&mut self, start: usize, key: ByteRange) {
        let end = self.at;
        let has_key = self.pending.is_some_and(|pending| !pending.key.is_empty());
        if !has_key && self.skip_blanks() == Some(b':') {
            self.at += 1;
            return self.set_key(start, self.at, key);
        }
        self.at = end;
        self.push(start, end, Form::Scalar);
    }

    fn set_key(&mut self, start: usize, end: usize, key: ByteRange) {
        let start = self.pending.map_or(start, |pending| pending.start);
        self.pending = Some(Pending { start, end, key });
    }

    fn comment(&mut self) {
        let start = self.at;
        let rest = &self.text[start..];
        let length =
            if rest.starts_with("//") { rest.find('\n') } else { rest[2..].find("*/").map(|at| at + 4) };
        self.at = start + length.unwrap_or(rest.len());
        let end = start + self.text[start..self.at].trim_end().len();
        let pending = self.pending.get_or_insert(Pending { start, end, key: ByteRange::new(start, start) });
        pending.end = end;
    }

    /// Adds a value with the key before it.
    fn push(&mut self, start: usize, end: usize, form: Form) {
        let pending = self.pending.take();
        let (start, key) = pending.map_or((start, ByteRange::new(start, start)), |p| (p.start, p.key));
        let next = self.nodes.list.len() + 1;
        self.nodes.list.push(Node { start, end, key, form, next });
    }

    /// Takes a key without a value as a value.
    fn flush_pending(&mut self) {
        if let Some(pending) = self.pending {
            self.push(pending.start, pending.end, Form::Scalar);
        }
    }

    /// Moves past the object or array that begins here.
    fn skip_container(&mut self) {
        let mut depth = 0_usize;
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'"' => {
                    self.at = string_end(self.bytes, self.at);
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
        self.at = self.text.trim_end().len();
    }
}

/// Returns one past the end of the string that begins at `start`. A line end ends it, because JSON escapes
/// those: so a missing quote spoils one line only.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\n' => return at,
            b'\\' if bytes.get(at + 1).is_some_and(|&next| next != b'\n') => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}
