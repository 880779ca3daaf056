//! The layout of a text: divides it into groups of lines that belong together. Knows Markdown, wrapped lines
//! and blank lines. Must not know what a sentence is: it only decides where a new sentence must start.
//!
//! - A blank line ends a group. A heading, a table row or a list item starts a new group.
//! - A fenced code block of up to [`CODE_BYTES_WHOLE`] bytes is one group; a longer one is cut at its blank
//!   lines. A fence that is never closed is an ordinary line, because a chunk may begin in the middle of a
//!   code block.
//! - Any other newline ends a group, unless the line was wrapped: see [`wraps`].

use crate::lexicon::{Class, has};
use crate::line::{Line, fences, has_leader, heading_level, is_item, is_option, lines};
use crate::range::ByteRange;

/// The largest fenced code block that is one group, in bytes.
const CODE_BYTES_WHOLE: usize = 600;
/// The widths of lines that a program may have wrapped, in columns. Narrower lines were not wrapped by a
/// program; wider lines were not wrapped.
const WRAP_COLUMNS: std::ops::RangeInclusive<usize> = 40..=160;

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

/// Returns the groups of lines of `text` in order. Every byte outside them is whitespace.
pub(crate) fn groups(text: &str) -> Vec<LineGroup> {
    let lines = lines(text);
    let closing = fences(&lines);
    let kinds: Vec<LineKind> = lines.iter().map(|line| kind_of(line.text)).collect();
    let mut build = Builder { lines: &lines, kinds: &kinds, groups: Vec::new(), open: None };
    // Where the run of text and list items ends, and how wide its widest line is.
    let (mut at, mut run_end, mut run_columns) = (0, 0, 0);
    while at < lines.len() {
        if let Some(close) = closing[at] {
            build.flush();
            build.code(at, close);
            at = close + 1;
            continue;
        }
        if at >= run_end {
            let is_text = |kind: &&LineKind| matches!(kind, LineKind::Text | LineKind::Item);
            run_end = at + kinds[at..].iter().take_while(is_text).count();
            let widths = lines[at..run_end].iter().map(|line| columns(line.text.trim_end()));
            run_columns = widths.max().unwrap_or(0);
        }
        build.line(at, run_columns);
        at += 1;
    }
    build.flush();
    build.groups
}

struct Builder<'a> {
    lines: &'a [Line<'a>],
    kinds: &'a [LineKind],
    groups: Vec<LineGroup>,
    /// The group of prose that the next line may continue. If it is a list item, the second field has its
    /// indent in columns.
    open: Option<(ByteRange, Option<usize>)>,
}

impl Builder<'_> {
    fn line(&mut self, at: usize, run_columns: usize) {
        let line = self.lines[at];
        match (self.kinds[at], self.open) {
            (LineKind::Blank, _) => self.flush(),
            (LineKind::Heading | LineKind::Row, _) => {
                self.flush();
                self.whole(line.start, line.end());
            }
            (LineKind::Underline, _) => self.underline(at),
            (LineKind::Item, _) => self.start(&line, Some(line.indent())),
            (LineKind::Text, Some((range, item))) => {
                let nested = item.is_some_and(|columns| line.indent() > columns);
                let above = at.checked_sub(1).map_or("", |above| self.lines[above].text);
                if nested || wraps(above, line.text, run_columns) {
                    self.open = Some((ByteRange::new(range.start, line.end()), item));
                } else {
                    self.start(&line, None);
                }
            }
            (LineKind::Text, None) => self.start(&line, None),
        }
    }

    fn whole(&mut self, start: usize, end: usize) {
        self.groups.push(LineGroup { range: ByteRange::new(start, end), kind: GroupKind::Whole });
    }

    fn start(&mut self, line: &Line, item: Option<usize>) {
        self.flush();
        self.open = Some((ByteRange::new(line.start, line.end()), item));
    }

    /// Adds the underline to the group directly above it, or as a group of its own after a blank line.
    fn underline(&mut self, at: usize) {
        let (line, end) = (self.lines[at], self.lines[at].end());
        if let Some((range, _)) = self.open.take() {
            self.groups.push(LineGroup { range: ByteRange::new(range.start, end), kind: GroupKind::Prose });
            return;
        }
        let joins = at > 0 && self.kinds[at - 1] != LineKind::Blank;
        match self.groups.last_mut() {
            Some(last) if joins => last.range.end = end,
            _ => self.whole(line.start, end),
        }
    }

    /// Adds a fenced code block. Each fence is in the same group as the code next to it.
    fn code(&mut self, open: usize, close: usize) {
        let (start, end) = (self.lines[open].start, self.lines[close].end());
        let (mut from, mut has_code) = (start, false);
        for at in open + 1..close.saturating_sub(1) {
            let is_blank = |at: usize| self.kinds[at] == LineKind::Blank;
            has_code |= !is_blank(at);
            if end - start > CODE_BYTES_WHOLE && is_blank(at) && !is_blank(at + 1) && has_code {
                self.whole(from, self.lines[at].start);
                from = self.lines[at + 1].start;
                has_code = false;
            }
        }
        self.whole(from, end);
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
        || above.contains(' ') && has(Class::Open, last)
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

fn kind_of(line: &str) -> LineKind {
    let line = line.trim();
    match line.as_bytes() {
        [] => LineKind::Blank,
        [b'#' | b'=', ..] if heading_level(line).is_some() => LineKind::Heading,
        [b'-' | b'=' | b'|' | b':' | b'+', ..] if is_underline(line) => LineKind::Underline,
        [b'|', ..] => LineKind::Row,
        _ if line.match_indices(" | ").nth(1).is_some() => LineKind::Row,
        _ if has_leader(line) => LineKind::Row,
        _ if is_item(line) || is_option(line) => LineKind::Item,
        _ => LineKind::Text,
    }
}

fn is_underline(line: &str) -> bool {
    line.len() >= 3 && line.bytes().all(|b| matches!(b, b'-' | b'=' | b'|' | b':' | b'+' | b' '))
}
