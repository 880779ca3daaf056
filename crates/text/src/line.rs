//! The lines of a text and what single lines are in texts of every kind: headings, items, fences. Knows marks, and nothing about what a line
//! says.

use crate::range::ByteRange;

/// How far a tab moves the indent, in columns.
const TAB_COLUMNS: usize = 4;

/// A line without its line end.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
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
pub(crate) fn span(lines: &[Line]) -> ByteRange {
    let last = lines.iter().rev().find(|line| !line.is_blank()).unwrap_or(&lines[0]);
    ByteRange::new(lines[0].start, last.start + last.text.trim_end().len())
}

/// Returns the range `start..end` without the whitespace at its ends.
pub(crate) fn trimmed(text: &str, start: usize, end: usize) -> ByteRange {
    let part = &text[start..end];
    let from = start + part.len() - part.trim_start().len();
    ByteRange::new(from, from + part.trim().len())
}

/// Returns the lines without their line ends (`\n`, `\r\n`, `\r`).
pub(crate) fn lines(text: &str) -> Vec<Line<'_>> {
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

/// Returns the level of a heading such as `## Usage` or `== Usage ==`.
pub(crate) fn heading_level(line: &str) -> Option<usize> {
    let text = line.trim();
    if line.len() - line.trim_start().len() > 3 {
        return None;
    }
    let level = text.bytes().take_while(|&b| b == b'#').count();
    let marked = (1..=6).contains(&level) && text[level..].starts_with([' ', '\t']) && text.len() > level + 1;
    let is_wiki = text.starts_with("==") && text.ends_with("==") && text.contains(char::is_alphanumeric);
    if is_wiki {
        return Some(text.bytes().take_while(|&b| b == b'=').count().min(6));
    }
    marked.then_some(level)
}

/// Returns whether points lead from a name to a number at the end of the line: `Storage ........ 19`.
pub(crate) fn has_leader(line: &str) -> bool {
    line.ends_with(|c: char| c.is_ascii_digit() || c == '%')
        && (line.contains("....") || line.contains(". . . ."))
        && line.contains(char::is_alphabetic)
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

/// Returns for each line that opens a fenced block of code the index of the line that closes it.
pub(crate) fn fences(lines: &[Line]) -> Vec<Option<usize>> {
    let marks: Vec<_> = lines.iter().map(|line| fence(line.text)).collect();
    let mut closing = vec![None; lines.len()];
    // The length of the shortest fence that was never closed, per kind of fence. Nothing closes a later fence
    // that is equal or longer; a shorter one may still be closed.
    let mut unclosed_len = [usize::MAX; 2];
    let mut at = 0;
    while at < lines.len() {
        if let Some(open) = marks[at].filter(|open| open.len < unclosed_len[usize::from(open.is_tilde)]) {
            let closes = |mark: &Option<Fence>| {
                mark.is_some_and(|mark| {
                    mark.is_bare && mark.is_tilde == open.is_tilde && mark.len >= open.len
                })
            };
            match marks[at + 1..].iter().position(closes) {
                Some(skip) => {
                    closing[at] = Some(at + 1 + skip);
                    at += 1 + skip;
                }
                None => unclosed_len[usize::from(open.is_tilde)] = open.len,
            }
        }
        at += 1;
    }
    closing
}

/// A line of backticks or tildes around code.
#[derive(Clone, Copy)]
pub(crate) struct Fence {
    is_tilde: bool,
    len: usize,
    /// Whether the fence has no language name, so that it can close a block.
    pub is_bare: bool,
}

pub(crate) fn fence(line: &str) -> Option<Fence> {
    let line = line.trim();
    let mark = line.bytes().next().filter(|b| matches!(b, b'`' | b'~'))?;
    let len = line.bytes().take_while(|&b| b == mark).count();
    let name = &line[len..];
    let is_fence = len >= 3 && !name.contains('`');
    is_fence.then(|| Fence { is_tilde: mark == b'~', len, is_bare: name.trim().is_empty() })
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
