//! The layout of a text: divides it into groups of lines that belong together. Knows Markdown, wrapped lines
//! and blank lines. Must not know what a sentence is: it only decides where a new sentence must start.
//!
//! - A blank line ends a group. A heading, a table row or a list item starts a new group.
//! - A fenced code block of up to [`CODE_BYTES_WHOLE`] bytes is one group; a longer one is cut at its blank
//!   lines. A fence that is never closed is an ordinary line, because a chunk may begin in the middle of a
//!   code block.
//! - Any other newline ends a group, unless the line was wrapped: see [`wraps`].

use crate::range::ByteRange;

/// The largest fenced code block that is one group, in bytes.
const CODE_BYTES_WHOLE: usize = 600;
/// The widths of lines that a program may have wrapped, in columns. Narrower lines were not wrapped by a
/// program; wider lines were not wrapped.
const WRAP_COLUMNS: std::ops::RangeInclusive<usize> = 40..=160;

/// Words with which no sentence and no heading ends.
const OPEN_WORDS: [&str; 30] = [
    "a", "an", "and", "at", "auf", "by", "der", "des", "die", "du", "durch", "een", "ein", "eine", "et",
    "for", "from", "im", "les", "mit", "of", "or", "the", "to", "und", "van", "von", "with", "y", "zu",
];

/// Whether a group of lines can contain several sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupKind {
    /// Running text, which can contain several sentences.
    Prose,
    /// A heading, a table row or code, which counts as one sentence.
    Whole,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LineGroup {
    pub range: ByteRange,
    pub kind: GroupKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Blank,
    Heading,
    Row,
    /// Only dashes, equals signs, bars and colons: the line below a heading or a table header.
    Underline,
    Item,
    Text,
}

struct Line<'a> {
    start: usize,
    text: &'a str,
    kind: LineKind,
}

/// Returns the groups of lines of `text` in order. Every byte outside them is whitespace.
pub(crate) fn groups(text: &str) -> Vec<LineGroup> {
    let lines = lines(text);
    let closing = fences(&lines);
    let mut build = Builder { groups: Vec::new(), open: None };
    let (mut i, mut run) = (0, TextRun { end: 0, columns: 0 });
    while i < lines.len() {
        if let Some(close) = closing[i] {
            build.flush();
            build.code(&lines[i..=close]);
            i = close + 1;
            continue;
        }
        if i >= run.end {
            run = TextRun::from(&lines, i);
        }
        let above = i.checked_sub(1).map(|i| &lines[i]);
        build.line(above, &lines[i], run.columns);
        i += 1;
    }
    build.flush();
    build.groups
}

/// A run of consecutive text lines and list items.
struct TextRun {
    /// Index one past the last line.
    end: usize,
    /// Width of the widest line.
    columns: usize,
}

impl TextRun {
    fn from(lines: &[Line], start: usize) -> Self {
        let len =
            lines[start..].iter().take_while(|l| matches!(l.kind, LineKind::Text | LineKind::Item)).count();
        let columns = lines[start..start + len].iter().map(|l| columns(l.text.trim_end())).max();
        Self { end: start + len, columns: columns.unwrap_or(0) }
    }
}

struct Builder {
    groups: Vec<LineGroup>,
    /// The group of prose that the next line may continue. If it is a list item, the second field has its
    /// indent in columns.
    open: Option<(ByteRange, Option<usize>)>,
}

impl Builder {
    fn line(&mut self, above: Option<&Line>, line: &Line, run_columns: usize) {
        let end = line.start + line.text.len();
        match (line.kind, self.open) {
            (LineKind::Blank, _) => self.flush(),
            (LineKind::Heading | LineKind::Row, _) => {
                self.flush();
                self.groups
                    .push(LineGroup { range: ByteRange::new(line.start, end), kind: GroupKind::Whole });
            }
            (LineKind::Underline, _) => self.underline(above, line, end),
            (LineKind::Item, _) => self.start(line, end, Some(indent(line.text))),
            (LineKind::Text, Some((range, item))) => {
                let nested = item.is_some_and(|columns| indent(line.text) > columns);
                let above = above.map_or("", |l| l.text);
                if nested || wraps(above, line.text, run_columns) {
                    self.open = Some((ByteRange::new(range.start, end), item));
                } else {
                    self.start(line, end, None);
                }
            }
            (LineKind::Text, None) => self.start(line, end, None),
        }
    }

    fn start(&mut self, line: &Line, end: usize, item: Option<usize>) {
        self.flush();
        self.open = Some((ByteRange::new(line.start, end), item));
    }

    /// Adds the underline to the group directly above it, or as a group of its own after a blank line.
    fn underline(&mut self, above: Option<&Line>, line: &Line, end: usize) {
        if let Some((range, _)) = self.open.take() {
            self.groups.push(LineGroup { range: ByteRange::new(range.start, end), kind: GroupKind::Prose });
            return;
        }
        let joins = above.is_some_and(|l| l.kind != LineKind::Blank);
        match self.groups.last_mut() {
            Some(last) if joins => last.range.end = end,
            _ => {
                self.groups.push(LineGroup { range: ByteRange::new(line.start, end), kind: GroupKind::Whole })
            }
        }
    }

    /// Adds a fenced code block. Each fence is in the same group as the code next to it.
    fn code(&mut self, lines: &[Line]) {
        let last = &lines[lines.len() - 1];
        let (start, end) = (lines[0].start, last.start + last.text.len());
        let mut push = |start, end| {
            self.groups.push(LineGroup { range: ByteRange::new(start, end), kind: GroupKind::Whole })
        };
        if end - start <= CODE_BYTES_WHOLE {
            return push(start, end);
        }
        let (mut from, mut has_code) = (start, false);
        for pair in lines[1..lines.len() - 1].windows(2) {
            has_code |= pair[0].kind != LineKind::Blank;
            if pair[0].kind == LineKind::Blank && pair[1].kind != LineKind::Blank && has_code {
                push(from, pair[0].start);
                from = pair[1].start;
                has_code = false;
            }
        }
        push(from, end);
    }

    fn flush(&mut self) {
        if let Some((range, _)) = self.open.take() {
            self.groups.push(LineGroup { range, kind: GroupKind::Prose });
        }
    }
}

/// Returns whether the newline after `above` only wraps the line, so that `below` continues its sentence.
/// This is the case if `below` starts in lower case, if `above` ends with a comma, or if the first word of
/// `below` would not have fitted at the end of `above`, in the width of the paragraph (`run_columns`, the
/// width of its widest line).
fn wraps(above: &str, below: &str, run_columns: usize) -> bool {
    let below = below.trim_start_matches(|c: char| c == '>' || c.is_whitespace());
    let first = below.chars().next();
    let above = above.trim_end();
    // No sentence ends with "the autumn of".
    let last = above.rsplit(' ').next().unwrap_or_default();
    if first.is_some_and(char::is_lowercase)
        || above.ends_with([',', '،', '，', '、'])
        || above.contains(' ') && OPEN_WORDS.contains(&last)
    {
        return true;
    }
    let width = columns(above);
    let is_full = width + 1 + first_word_columns(below) >= run_columns;
    is_full && WRAP_COLUMNS.contains(&width) && run_columns <= *WRAP_COLUMNS.end()
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

/// Returns whether a character is two columns wide, as those of scripts written without spaces are: Han and
/// kana, and also Hangul.
pub(crate) fn is_wide(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{115F}' | '\u{2E80}'..='\u{A4CF}' | '\u{AC00}'..='\u{D7A3}' | '\u{F900}'..='\u{FAFF}'
        | '\u{FF00}'..='\u{FF60}' | '\u{20000}'..='\u{3FFFF}')
}

fn indent(line: &str) -> usize {
    line.chars().take_while(|c| c.is_whitespace()).count()
}

/// Returns the lines without their line ends (`\n`, `\r\n`, `\r`).
fn lines(text: &str) -> Vec<Line<'_>> {
    let bytes = text.as_bytes();
    let (mut lines, mut start) = (Vec::new(), 0);
    while start < text.len() {
        let len = bytes[start..].iter().position(|b| matches!(b, b'\n' | b'\r'));
        let end = len.map_or(text.len(), |len| start + len);
        let line = &text[start..end];
        lines.push(Line { start, text: line, kind: kind_of(line) });
        start = end + if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
    }
    lines
}

fn kind_of(line: &str) -> LineKind {
    let line = line.trim();
    match line.as_bytes() {
        [] => LineKind::Blank,
        [b'#', ..] if is_heading(line) => LineKind::Heading,
        [b'=', b'=', .., b'=', b'='] if line.contains(char::is_alphanumeric) => LineKind::Heading,
        [b'-' | b'=' | b'|' | b':' | b'+', ..] if is_underline(line) => LineKind::Underline,
        [b'|', ..] => LineKind::Row,
        _ if line.match_indices(" | ").nth(1).is_some() => LineKind::Row,
        _ if has_leader(line) => LineKind::Row,
        _ if is_item(line) || is_option(line) => LineKind::Item,
        _ => LineKind::Text,
    }
}

fn is_heading(line: &str) -> bool {
    let level = line.bytes().take_while(|&b| b == b'#').count();
    level <= 6 && line[level..].starts_with([' ', '\t'])
}

/// Returns whether points lead from a name to a number at the end of the line: `Storage ........ 19`.
pub(crate) fn has_leader(line: &str) -> bool {
    line.ends_with(|c: char| c.is_ascii_digit() || c == '%')
        && (line.contains("....") || line.contains(". . . ."))
        && line.contains(char::is_alphabetic)
}

fn is_underline(line: &str) -> bool {
    line.len() >= 3 && line.bytes().all(|b| matches!(b, b'-' | b'=' | b'|' | b':' | b'+' | b' '))
}

/// Returns whether the line is a list item: `- x`, `* x`, `• x`, `1. x`, `12) x`, `(3) x`, `a) x`.
pub fn is_item(line: &str) -> bool {
    let marker = line.split_whitespace().next().unwrap_or("");
    if marker.len() == line.len() || marker.len() > 6 {
        return false;
    }
    if matches!(marker, "-" | "*" | "+" | "•" | "·" | "‣" | "◦" | "▪" | "–" | "—" | "☐" | "□")
    {
        return true;
    }
    let numbered = marker.strip_suffix(['.', ')']).map(|m| m.trim_start_matches('('));
    let lettered = marker.strip_suffix(')').map(|m| m.trim_start_matches('('));
    numbered.is_some_and(|m| matches!(m.len(), 1..=3) && m.bytes().all(|b| b.is_ascii_digit()))
        || lettered.is_some_and(|m| {
            m.len() == 1 && m.bytes().all(|b| b.is_ascii_alphabetic())
                || matches!(m.len(), 2..=4) && m.bytes().all(|b| matches!(b, b'i' | b'v' | b'x'))
        })
}

/// Returns whether a line begins with an option of a command, which what stands below it explains: `-a, --all`, `--all=WHEN`, `-name X`.
pub(crate) fn is_option(line: &str) -> bool {
    let name = line.trim_start_matches('-');
    (1..=2).contains(&(line.len() - name.len())) && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// Returns for each line that opens a fenced code block the index of the line that closes it.
fn fences(lines: &[Line]) -> Vec<Option<usize>> {
    let marks: Vec<_> = lines.iter().map(|l| fence(l.text.trim())).collect();
    let mut closing = vec![None; lines.len()];
    // The length of the shortest fence that was never closed, per kind of fence. Nothing closes a later fence
    // that is equal or longer; a shorter one may still be closed.
    let mut unclosed_len = [usize::MAX; 2];
    let mut i = 0;
    while i < lines.len() {
        if let Some(open) = marks[i].filter(|open| open.len < unclosed_len[usize::from(open.tilde)]) {
            let closes =
                |m: &Option<Fence>| m.is_some_and(|m| m.bare && m.tilde == open.tilde && m.len >= open.len);
            match marks[i + 1..].iter().position(closes) {
                Some(skip) => {
                    closing[i] = Some(i + 1 + skip);
                    i += 1 + skip;
                }
                None => unclosed_len[usize::from(open.tilde)] = open.len,
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
    /// Whether the fence has no language name, so that it can close a block.
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
