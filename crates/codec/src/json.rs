//! JSON inside a text: its white space is described by a few letters and left out, and the elements of its lists stand on lines of their own.
//!
//! Values and names stay the text's own bytes: numbers are not read, and a name may occur twice. JSON that was cut is written up to the last
//! complete value; what follows stays as it is.

use std::fmt::Write as _;

/// The most nested containers.
const DEPTH_MAX: usize = 4_096;

/// The least elements of a list or object, lists or objects themselves, that get lines of their own.
const ELEMENTS_MIN: usize = 3;
/// The least fields of an object, outside of such lists, that all get lines.
const FIELDS_MIN: usize = 12;
/// The least elements inside a list whose elements already have lines.
const ELEMENTS_INSIDE_MIN: usize = 5;

/// A bracket, a name or a value without parts, by its range in bytes. Commas and colons follow from the structure.
#[derive(Clone, Copy)]
pub struct Token {
    start: u32,
    end: u32,
    /// Whether it is the name of a field.
    is_name: bool,
}

impl Token {
    fn of<'a>(&self, source: &'a str) -> &'a str {
        &source[self.start as usize..self.end as usize]
    }

    fn kind(&self, source: &str) -> u8 {
        source.as_bytes()[self.start as usize]
    }
}

/// The white space of a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// The indentation of one level; `None`: everything is on one line.
    indent: Option<Indent>,
    /// The depth from which on containers stay on one line.
    inline_depth: usize,
    /// Whether lists without containers stay on one line.
    inline_lists: bool,
    blank_after_colon: bool,
    /// Whether a blank follows a comma within a line.
    blank_after_comma: bool,
    /// Whether blanks are inside the braces of an object on one line.
    padded: bool,
    /// Whether the elements of the outermost list begin new lines, without indentation.
    line_per_element: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Indent {
    Blanks(usize),
    Tab,
}

impl Style {
    /// Returns the style as a word without blanks.
    pub fn word(&self) -> String {
        let mut word = match self.indent {
            None => "-".to_owned(),
            Some(Indent::Tab) => "t".to_owned(),
            Some(Indent::Blanks(count)) => count.to_string(),
        };
        let flags = [
            (self.inline_lists, 'l'),
            (self.blank_after_colon, 'c'),
            (self.blank_after_comma, 'i'),
            (self.padded, 'p'),
            (self.line_per_element, 'n'),
        ];
        word.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| letter));
        if self.indent.is_some() && self.inline_depth != usize::MAX {
            let _ = write!(word, "d{}", self.inline_depth);
        }
        word
    }

    /// Reads a style that [`Self::word`] wrote.
    pub fn parse(word: &str) -> Option<Self> {
        let digits = word.len() - word.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (indent, rest) = match word.chars().next()? {
            '-' => (None, &word[1..]),
            't' => (Some(Indent::Tab), &word[1..]),
            _ => (Some(Indent::Blanks(word[..digits].parse::<u8>().ok()?.into())), &word[digits..]),
        };
        let (flags, depth) = match rest.split_once('d') {
            Some((flags, depth)) => (flags, depth.parse().ok()?),
            None => (rest, usize::MAX),
        };
        Some(Self {
            indent,
            inline_depth: depth,
            inline_lists: flags.contains('l'),
            blank_after_colon: flags.contains('c'),
            blank_after_comma: flags.contains('i'),
            padded: flags.contains('p'),
            line_per_element: flags.contains('n'),
        })
    }
}

/// A JSON text that was found.
pub struct Found {
    pub tokens: Vec<Token>,
    /// The position after the last complete token.
    pub end: usize,
    /// The position up to which the text was read. Nothing before it has to be read again.
    pub read_to: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Expect {
    Value,
    ValueOrClose,
    Name,
    NameOrClose,
    CommaOrClose,
}

/// Reads JSON that begins at `at`, as far as it is valid: one value, or several that begin new lines.
pub fn find(source: &str, at: usize) -> Found {
    let bytes = source.as_bytes();
    let mut found = Found { tokens: Vec::new(), end: at, read_to: at };
    let mut open: Vec<u8> = Vec::new();
    let mut expect = Expect::Value;
    let mut position = at;
    // Tokens up to the last complete value.
    let mut complete = 0;
    'read: loop {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(position) {
            position += 1;
        }
        let Some(&byte) = bytes.get(position) else { break };
        let start = position;
        let mut is_complete = true;
        match (byte, expect) {
            (b'{' | b'[', Expect::Value | Expect::ValueOrClose) => {
                if open.len() == DEPTH_MAX {
                    break;
                }
                open.push(byte);
                expect = if byte == b'{' { Expect::NameOrClose } else { Expect::ValueOrClose };
                position += 1;
            }
            (b'}' | b']', Expect::CommaOrClose | Expect::ValueOrClose | Expect::NameOrClose) => {
                let opening = if byte == b'}' { b'{' } else { b'[' };
                if open.last() != Some(&opening) {
                    break;
                }
                open.pop();
                expect = Expect::CommaOrClose;
                position += 1;
            }
            (b',', Expect::CommaOrClose) => {
                expect = if open.last() == Some(&b'{') { Expect::Name } else { Expect::Value };
                position += 1;
                continue;
            }
            (b'"', Expect::Name | Expect::NameOrClose) => {
                let Some(end) = end_of_string(bytes, position) else { break };
                position = end;
                while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(position) {
                    position += 1;
                }
                if bytes.get(position) != Some(&b':') {
                    break;
                }
                found.tokens.push(Token { start: start as u32, end: end as u32, is_name: true });
                position += 1;
                (expect, is_complete) = (Expect::Value, false);
            }
            (_, Expect::Value | Expect::ValueOrClose) => {
                let Some(end) = end_of_scalar(bytes, position) else { break };
                position = end;
                expect = Expect::CommaOrClose;
            }
            _ => break,
        }
        if is_complete {
            found.tokens.push(Token { start: start as u32, end: position as u32, is_name: false });
            (complete, found.end) = (found.tokens.len(), position);
        }
        if open.is_empty() {
            // Another value may follow on the next line.
            match bytes.get(position..position + 2) {
                Some([b'\n', b'{' | b'[']) => (position, expect) = (position + 1, Expect::Value),
                _ => break 'read,
            }
        }
    }
    found.read_to = position;
    found.tokens.truncate(complete);
    found
}

/// The position after the string that begins at `at`; `None` if it does not end on its line.
fn end_of_string(bytes: &[u8], at: usize) -> Option<usize> {
    let mut position = at + 1;
    loop {
        match bytes.get(position)? {
            b'"' => return Some(position + 1),
            b'\\' if *bytes.get(position + 1)? >= b' ' => position += 2,
            0..b' ' | b'\\' => return None,
            _ => position += 1,
        }
    }
}

/// The position after a string, number or word that begins at `at`.
fn end_of_scalar(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes[at] == b'"' {
        return end_of_string(bytes, at);
    }
    let is_in = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
    let len = bytes[at..].iter().take_while(|byte| is_in(byte)).count();
    let word = &bytes[at..at + len];
    let is_number = word.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-');
    let is_word = [&b"true"[..], b"false", b"null", b"NaN", b"Infinity"].contains(&word);
    // At the end of the text, a part of it may be missing.
    ((is_number || is_word) && at + len < bytes.len()).then_some(at + len)
}

/// How many elements a container has directly inside.
#[derive(Clone, Copy, Default)]
struct Inside {
    containers: usize,
    scalars: usize,
}

/// Counts the elements of each container, in the order of their opening brackets.
fn count_elements(source: &str, tokens: &[Token]) -> Vec<Inside> {
    let mut counts: Vec<Inside> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for token in tokens.iter().filter(|token| !token.is_name) {
        match token.kind(source) {
            b'}' | b']' => drop(open.pop()),
            b'{' | b'[' => {
                if let Some(&outer) = open.last() {
                    counts[outer].containers += 1;
                }
                open.push(counts.len());
                counts.push(Inside::default());
            }
            _ => {
                if let Some(&outer) = open.last() {
                    counts[outer].scalars += 1;
                }
            }
        }
    }
    counts
}

/// A container on the way through the tokens.
struct Open {
    is_object: bool,
    count: usize,
    /// Whether all elements begin new lines.
    is_broken: bool,
    /// Whether those elements begin new lines that are containers ([`minify`]).
    has_lines: bool,
}

/// Writes the tokens in a style, up to at least `bytes_max` bytes.
pub fn write(source: &str, tokens: &[Token], style: Style, bytes_max: usize) -> String {
    let counts = count_elements(source, tokens);
    let mut out = String::with_capacity(source.len());
    let mut open: Vec<Open> = Vec::new();
    let (mut container, mut is_after_name, mut is_first) = (0, false, true);
    let new_line = |out: &mut String, depth: usize| {
        out.push('\n');
        match style.indent {
            Some(Indent::Blanks(count)) => out.extend(std::iter::repeat_n(' ', count * depth)),
            Some(Indent::Tab) => out.extend(std::iter::repeat_n('\t', depth)),
            None => {}
        }
    };
    for token in tokens {
        // Deep indentation can be much longer than the tokens.
        if out.len() > bytes_max {
            break;
        }
        let kind = token.kind(source);
        let depth = open.len();
        if matches!(kind, b'}' | b']') {
            if let Some(closed) = open.pop().filter(|closed| closed.count > 0) {
                if closed.is_broken {
                    new_line(&mut out, depth - 1);
                } else if closed.is_object && style.padded {
                    out.push(' ');
                }
            }
        } else if is_after_name {
            out.push_str(if style.blank_after_colon { ": " } else { ":" });
        } else if let Some(parent) = open.last_mut() {
            if parent.count > 0 {
                out.push(',');
            }
            if parent.is_broken {
                new_line(&mut out, depth);
            } else if parent.count > 0 && style.line_per_element && depth == 1 {
                out.push('\n');
            } else if parent.count > 0 && style.blank_after_comma
                || parent.count == 0 && parent.is_object && style.padded
            {
                out.push(' ');
            }
            parent.count += 1;
        } else if !std::mem::take(&mut is_first) {
            out.push('\n');
        }
        out.push_str(token.of(source));
        if matches!(kind, b'{' | b'[') {
            let is_plain_list = kind == b'[' && counts[container].containers == 0;
            let is_inline =
                style.indent.is_none() || depth >= style.inline_depth || style.inline_lists && is_plain_list;
            open.push(Open { is_object: kind == b'{', count: 0, is_broken: !is_inline, has_lines: false });
            container += 1;
        }
        is_after_name = token.is_name;
    }
    out
}

/// Writes the tokens without white space, and the elements of long lists and objects on lines of their own, without the commas between them.
pub fn minify(source: &str, tokens: &[Token]) -> Vec<String> {
    let counts = count_elements(source, tokens);
    let (mut lines, mut line) = (Vec::new(), String::new());
    let mut open: Vec<Open> = Vec::new();
    let (mut container, mut is_after_name, mut is_first) = (0, false, true);
    for (at, token) in tokens.iter().enumerate() {
        let kind = token.kind(source);
        let mut begins_line = false;
        if matches!(kind, b'}' | b']') {
            begins_line = open.pop().is_some_and(|closed| closed.has_lines);
        } else if is_after_name {
            line.push(':');
        } else if let Some(parent) = open.last_mut() {
            let value = tokens.get(at + usize::from(token.is_name));
            let is_container = value.is_some_and(|value| matches!(value.kind(source), b'{' | b'['));
            begins_line = parent.has_lines && (is_container || parent.is_broken);
            if parent.count > 0 && !begins_line {
                line.push(',');
            }
            parent.count += 1;
        } else {
            begins_line = !std::mem::take(&mut is_first);
        }
        if begins_line {
            lines.push(std::mem::take(&mut line));
        }
        line.push_str(token.of(source));
        if matches!(kind, b'{' | b'[') {
            // The object around everything is no collection of like elements.
            let is_record =
                |(depth, outer): (usize, &Open)| outer.has_lines && (depth > 0 || !outer.is_object);
            let is_inside = open.iter().enumerate().any(is_record);
            let least = if is_inside { ELEMENTS_INSIDE_MIN } else { ELEMENTS_MIN };
            let Inside { containers, scalars } = counts[container];
            let has_fields = kind == b'{' && !is_inside && scalars >= FIELDS_MIN;
            let has_lines = containers >= least || has_fields;
            open.push(Open { is_object: kind == b'{', count: 0, is_broken: has_fields, has_lines });
            container += 1;
        }
        is_after_name = token.is_name;
    }
    lines.push(line);
    lines
}

/// Reads text that [`minify`] wrote, with line breaks between its lines; `None` if it is damaged.
pub fn parse_minified(source: &str) -> Option<Vec<Token>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        let start = at;
        at = match byte {
            b',' | b':' | b'\n' => {
                at += 1;
                continue;
            }
            b'{' | b'[' => {
                depth += 1;
                at + 1
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at + 1
            }
            b'"' => end_of_string(bytes, at)?,
            _ => {
                let rest = &bytes[at..];
                at + rest.iter().position(|byte| b",:\n{}[]\"".contains(byte)).unwrap_or(rest.len())
            }
        };
        if depth > DEPTH_MAX {
            return None;
        }
        let is_name = *byte == b'"' && bytes.get(at) == Some(&b':');
        tokens.push(Token { start: start as u32, end: at as u32, is_name });
    }
    Some(tokens)
}

/// Returns the style in which the tokens seem to be written. Only [`write`] shows whether they are.
pub fn detect_style(source: &str, tokens: &[Token]) -> Style {
    let counts = count_elements(source, tokens);
    let mut style = Style {
        indent: None,
        inline_depth: usize::MAX,
        inline_lists: false,
        blank_after_colon: false,
        blank_after_comma: false,
        padded: false,
        line_per_element: false,
    };
    let mut open: Vec<Open> = Vec::new();
    let (mut container, mut is_after_name) = (0, false);
    let mut last_end = tokens.first().map_or(0, |token| token.start as usize);
    // The least depth of containers on one line: of lists without containers, and of others.
    let (mut lists_depth, mut others_depth) = (usize::MAX, usize::MAX);
    let (mut has_broken_list, mut knows_colon, mut knows_comma) = (false, false, false);
    for token in tokens {
        let kind = token.kind(source);
        let gap = &source[last_end..token.start as usize];
        last_end = token.end as usize;
        let depth = open.len();
        if matches!(kind, b'}' | b']') {
            open.pop();
        } else if is_after_name {
            if !std::mem::replace(&mut knows_colon, true) {
                style.blank_after_colon = gap.ends_with(' ');
            }
        } else if let Some(parent) = open.last_mut() {
            let plain_list = !parent.is_object && parent.has_lines;
            if parent.count == 0 {
                parent.is_broken = gap.contains('\n');
                if parent.is_broken {
                    has_broken_list |= plain_list;
                    if style.indent.is_none() {
                        let white = &gap[gap.rfind('\n').map_or(0, |at| at + 1)..];
                        let is_tab = white.starts_with('\t');
                        style.indent = Some(if is_tab {
                            Indent::Tab
                        } else {
                            Indent::Blanks((white.len() / depth).min(u8::MAX.into()))
                        });
                    }
                } else {
                    style.padded |= parent.is_object && gap == " ";
                    let least = if plain_list { &mut lists_depth } else { &mut others_depth };
                    *least = (*least).min(depth - 1);
                }
            } else if !parent.is_broken {
                if depth == 1 && gap.contains('\n') {
                    style.line_per_element = true;
                } else if !std::mem::replace(&mut knows_comma, true) {
                    style.blank_after_comma = gap.ends_with(' ');
                }
            }
            parent.count += 1;
        }
        if matches!(kind, b'{' | b'[') {
            // Here `has_lines` says that a list has no containers.
            let has_lines = counts[container].containers == 0;
            open.push(Open { is_object: kind == b'{', count: 0, is_broken: false, has_lines });
            container += 1;
        }
        is_after_name = token.is_name;
    }
    style.inline_lists = style.indent.is_some() && lists_depth != usize::MAX && !has_broken_list;
    let least = if style.inline_lists { others_depth } else { lists_depth.min(others_depth) };
    style.inline_depth = if style.indent.is_some() { least } else { usize::MAX };
    style
}

impl Found {
    /// Drops what is not complete before `position`.
    pub fn cut(&mut self, position: usize) {
        self.tokens.truncate(self.tokens.partition_point(|token| token.end as usize <= position));
        while self.tokens.pop_if(|last| last.is_name).is_some() {}
        self.end = self.tokens.last().map_or(0, |last| last.end as usize);
    }
}
