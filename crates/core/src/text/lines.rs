//! Owns the layout of a text: which lines belong together. Knows Markdown, wrapped lines and blank lines.
//! Must not know what a sentence is: it only says where a new one must start.
//!
//! - A blank line ends a piece. A heading, a table row, a list item each start one.
//! - A fenced code block is one piece up to [`CODE_BYTES_WHOLE`], and is cut at its blank lines beyond. A fence that
//!   nothing closes is an ordinary line: a chunk may begin in the middle of a block.
//! - Another newline ends a piece unless the line was wrapped: see [`wraps`].

use crate::domain::ByteRange;

/// A fenced code block up to this size stays in one piece.
const CODE_BYTES_WHOLE: usize = 600;
/// Lines narrower than this were not wrapped by a program, wider ones were not wrapped at all.
const WRAP_COLUMNS: std::ops::RangeInclusive<usize> = 40..=160;

/// Whether a piece may hold several sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Running text.
    Prose,
    /// A heading, a table row, code: one unit.
    Whole,
}

/// Lines that belong together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub range: ByteRange,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Blank,
    Heading,
    Row,
    /// Nothing but dashes, equals signs, bars and colons: under a heading or a table's header.
    Underline,
    Item,
    Text,
}

struct Line<'a> {
    start: usize,
    text: &'a str,
    shape: Shape,
}

/// The pieces of `text`, in order; every byte outside them is whitespace.
pub(super) fn pieces(text: &str) -> Vec<Piece> {
    let lines = lines(text);
    let closing = fences(&lines);
    let mut build = Builder { pieces: Vec::new(), open: None };
    let (mut i, mut run) = (0, Run { end: 0, columns: 0 });
    while i < lines.len() {
        if let Some(close) = closing[i] {
            build.flush();
            build.code(&lines[i..=close]);
            i = close + 1;
            continue;
        }
        if i >= run.end {
            run = Run::from(&lines, i);
        }
        let above = i.checked_sub(1).map(|i| &lines[i]);
        build.line(above, &lines[i], run.columns);
        i += 1;
    }
    build.flush();
    build.pieces
}

/// A run of text lines, and its widest line.
struct Run {
    end: usize,
    columns: usize,
}

impl Run {
    fn from(lines: &[Line], start: usize) -> Self {
        let len = lines[start..].iter().take_while(|l| matches!(l.shape, Shape::Text | Shape::Item)).count();
        let columns = lines[start..start + len].iter().map(|l| columns(l.text.trim_end())).max();
        Self { end: start + len, columns: columns.unwrap_or(0) }
    }
}

struct Builder {
    pieces: Vec<Piece>,
    /// The prose that the next line may still belong to, and the indent of the list item that it is, if it is one.
    open: Option<(ByteRange, Option<usize>)>,
}

impl Builder {
    fn line(&mut self, above: Option<&Line>, line: &Line, run_columns: usize) {
        let end = line.start + line.text.len();
        match (line.shape, self.open) {
            (Shape::Blank, _) => self.flush(),
            (Shape::Heading | Shape::Row, _) => {
                self.flush();
                self.pieces.push(Piece { range: ByteRange::new(line.start, end), kind: Kind::Whole });
            }
            (Shape::Underline, _) => self.underline(above, line, end),
            (Shape::Item, _) => self.start(line, end, Some(indent(line.text))),
            (Shape::Text, Some((range, item))) => {
                let nested = item.is_some_and(|columns| indent(line.text) > columns);
                let above = above.map_or("", |l| l.text);
                if nested || wraps(above, line.text, run_columns) {
                    self.open = Some((ByteRange::new(range.start, end), item));
                } else {
                    self.start(line, end, None);
                }
            }
            (Shape::Text, None) => self.start(line, end, None),
        }
    }

    fn start(&mut self, line: &Line, end: usize, item: Option<usize>) {
        self.flush();
        self.open = Some((ByteRange::new(line.start, end), item));
    }

    /// Joins what stands right above, or is a unit of its own after a blank line.
    fn underline(&mut self, above: Option<&Line>, line: &Line, end: usize) {
        if let Some((range, _)) = self.open.take() {
            self.pieces.push(Piece { range: ByteRange::new(range.start, end), kind: Kind::Prose });
            return;
        }
        let joins = above.is_some_and(|l| l.shape != Shape::Blank);
        match self.pieces.last_mut() {
            Some(last) if joins => last.range.end = end,
            _ => self.pieces.push(Piece { range: ByteRange::new(line.start, end), kind: Kind::Whole }),
        }
    }

    /// A fenced block, both fences included; they stay with the code next to them.
    fn code(&mut self, lines: &[Line]) {
        let last = &lines[lines.len() - 1];
        let (start, end) = (lines[0].start, last.start + last.text.len());
        let mut push =
            |start, end| self.pieces.push(Piece { range: ByteRange::new(start, end), kind: Kind::Whole });
        if end - start <= CODE_BYTES_WHOLE {
            return push(start, end);
        }
        let (mut from, mut filled) = (start, false);
        for pair in lines[1..lines.len() - 1].windows(2) {
            filled |= pair[0].shape != Shape::Blank;
            if pair[0].shape == Shape::Blank && pair[1].shape != Shape::Blank && filled {
                push(from, pair[0].start);
                from = pair[1].start;
                filled = false;
            }
        }
        push(from, end);
    }

    fn flush(&mut self) {
        if let Some((range, _)) = self.open.take() {
            self.pieces.push(Piece { range, kind: Kind::Prose });
        }
    }
}

/// Whether the newline after `above` only wraps a line, so that `below` goes on with its sentence: `below` starts in
/// lower case, or `above` ends with a comma, or `above` is so full that the first word of `below` had no place in the
/// paragraph's width (`run_columns`, its widest line).
fn wraps(above: &str, below: &str, run_columns: usize) -> bool {
    let below = below.trim_start_matches(|c: char| c == '>' || c.is_whitespace());
    let first = below.chars().next();
    let above = above.trim_end();
    if first.is_some_and(char::is_lowercase) || above.ends_with([',', '،', '，', '、']) {
        return true;
    }
    let width = columns(above);
    let full = width + 1 + first_word_columns(below) >= run_columns;
    full && WRAP_COLUMNS.contains(&width) && run_columns <= *WRAP_COLUMNS.end()
}

fn first_word_columns(text: &str) -> usize {
    match text.chars().next() {
        Some(c) if is_wide(c) => 2,
        _ => text.chars().take(32).take_while(|c| !c.is_whitespace()).count(),
    }
}

fn columns(text: &str) -> usize {
    text.chars().map(|c| 1 + usize::from(is_wide(c))).sum()
}

/// Whether a character of a script written without spaces takes two columns: Han, kana, and Hangul with them.
pub(super) fn is_wide(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{115F}' | '\u{2E80}'..='\u{A4CF}' | '\u{AC00}'..='\u{D7A3}' | '\u{F900}'..='\u{FAFF}'
        | '\u{FF00}'..='\u{FF60}' | '\u{20000}'..='\u{3FFFF}')
}

fn indent(line: &str) -> usize {
    line.chars().take_while(|c| c.is_whitespace()).count()
}

/// Lines without their ends (`\n`, `\r\n`, `\r`).
fn lines(text: &str) -> Vec<Line<'_>> {
    let bytes = text.as_bytes();
    let (mut lines, mut start) = (Vec::new(), 0);
    while start < text.len() {
        let len = bytes[start..].iter().position(|b| matches!(b, b'\n' | b'\r'));
        let end = len.map_or(text.len(), |len| start + len);
        let line = &text[start..end];
        lines.push(Line { start, text: line, shape: shape(line) });
        start = end + if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
    }
    lines
}

fn shape(line: &str) -> Shape {
    let line = line.trim();
    match line.as_bytes() {
        [] => Shape::Blank,
        [b'#', ..] if is_heading(line) => Shape::Heading,
        [b'=', b'=', .., b'=', b'='] if line.contains(char::is_alphanumeric) => Shape::Heading,
        [b'-' | b'=' | b'|' | b':' | b'+', ..] if is_underline(line) => Shape::Underline,
        [b'|', ..] => Shape::Row,
        _ if line.match_indices(" | ").nth(1).is_some() => Shape::Row,
        _ if is_item(line) => Shape::Item,
        _ => Shape::Text,
    }
}

fn is_heading(line: &str) -> bool {
    let level = line.bytes().take_while(|&b| b == b'#').count();
    level <= 6 && line[level..].starts_with([' ', '\t'])
}

fn is_underline(line: &str) -> bool {
    line.len() >= 3 && line.bytes().all(|b| matches!(b, b'-' | b'=' | b'|' | b':' | b'+' | b' '))
}

/// `- x`, `* x`, `• x`, `1. x`, `12) x`, `(3) x`, `a) x`.
fn is_item(line: &str) -> bool {
    let marker = line.split_whitespace().next().unwrap_or("");
    if marker.len() == line.len() || marker.len() > 6 {
        return false;
    }
    if matches!(marker, "-" | "*" | "+" | "•" | "·" | "‣" | "◦" | "▪" | "–" | "—") {
        return true;
    }
    let numbered = marker.strip_suffix(['.', ')']).map(|m| m.trim_start_matches('('));
    let lettered = marker.strip_suffix(')').map(|m| m.trim_start_matches('('));
    numbered.is_some_and(|m| matches!(m.len(), 1..=3) && m.bytes().all(|b| b.is_ascii_digit()))
        || lettered.is_some_and(|m| m.len() == 1 && m.bytes().all(|b| b.is_ascii_alphabetic()))
}

/// For each line that opens a fenced block, the line that closes it.
fn fences(lines: &[Line]) -> Vec<Option<usize>> {
    let marks: Vec<_> = lines.iter().map(|l| fence(l.text.trim())).collect();
    let mut closing = vec![None; lines.len()];
    // A shorter fence than one that nothing closed may still be closed; an equal or longer one may not.
    let mut unclosed = [usize::MAX; 2];
    let mut i = 0;
    while i < lines.len() {
        if let Some(open) = marks[i].filter(|open| open.len < unclosed[usize::from(open.tilde)]) {
            let closes =
                |m: &Option<Fence>| m.is_some_and(|m| m.bare && m.tilde == open.tilde && m.len >= open.len);
            match marks[i + 1..].iter().position(closes) {
                Some(skip) => {
                    closing[i] = Some(i + 1 + skip);
                    i += 1 + skip;
                }
                None => unclosed[usize::from(open.tilde)] = open.len,
            }
        }
        i += 1;
    }
    closing
}

#[derive(Clone, Copy)]
struct Fence {
    tilde: bool,
    len: usize,
    /// Without a language name: it may close a block.
    bare: bool,
}

fn fence(line: &str) -> Option<Fence> {
    let mark = line.bytes().next().filter(|b| matches!(b, b'`' | b'~'))?;
    let len = line.bytes().take_while(|&b| b == mark).count();
    let name = &line[len..];
    (len >= 3 && !name.contains('`')).then(|| Fence {
        tilde: mark == b'~',
        len,
        bare: name.trim().is_empty(),
    })
}
