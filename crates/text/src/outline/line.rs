//! The lines of a text. Knows line ends, indents and blank lines, and nothing about what a line says.

use crate::range::ByteRange;

/// How far a tab moves the indent, in columns.
const TAB_COLUMNS: usize = 4;

/// A line without its line end.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub start: usize,
    pub text: &'a str,
}

impl Line<'_> {
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }

    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Returns the width of the whitespace before the text, in columns.
    pub fn indent(&self) -> usize {
        let blanks = self.text.chars().take_while(|c| c.is_whitespace());
        blanks.map(|c| if c == '\t' { TAB_COLUMNS } else { 1 }).sum()
    }

    /// Returns the range of the text without the whitespace around it.
    pub fn trimmed(&self) -> ByteRange {
        trimmed(self.text, 0, self.text.len()).shifted(self.start)
    }
}

/// Returns the range from the first character of the first line to the last visible one of the last line.
pub(super) fn span(lines: &[Line]) -> ByteRange {
    let last = lines.iter().rev().find(|line| !line.is_blank()).unwrap_or(&lines[0]);
    ByteRange::new(lines[0].start, last.start + last.text.trim_end().len())
}

/// Returns the range `start..end` without the whitespace at its ends.
pub(super) fn trimmed(text: &str, start: usize, end: usize) -> ByteRange {
    let part = &text[start..end];
    let from = start + part.len() - part.trim_start().len();
    ByteRange::new(from, from + part.trim().len())
}

/// Returns the lines without their line ends (`\n`, `\r\n`, `\r`).
pub(super) fn lines(text: &str) -> Vec<Line<'_>> {
    let bytes = text.as_bytes();
    let (mut lines, mut start) = (Vec::new(), 0);
    while start < text.len() {
        let length = bytes[start..].iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let end = length.map_or(text.len(), |length| start + length);
        lines.push(Line { start, text: &text[start..end] });
        start = end + if bytes[end..].starts_with(b"\r\n") { 2 } else { 1 };
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_every_kind_of_line_end() {
        let check = |name: &str, text: &str, expect: &[&str]| {
            let found: Vec<&str> = lines(text).iter().map(|line| line.text).collect();
            assert_eq!(found, expect, "{name}");
        };
        check("nothing", "", &[]);
        check("no line end", "a", &["a"]);
        check("last line end", "a\n", &["a"]);
        check("all kinds", "a\nb\r\nc\rd", &["a", "b", "c", "d"]);
        check("blank lines", "\n\na", &["", "", "a"]);
    }

    #[test]
    fn a_span_ends_with_the_last_visible_character() {
        let all = lines("  a \n b  \n \n");
        assert_eq!(span(&all), ByteRange::new(0, 7));
        assert_eq!(span(&all[2..]), ByteRange::new(10, 10));
    }
}
