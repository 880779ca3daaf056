//! Divides a line into words that may vary and the texts between them.

use std::ops::Range;

/// The most words of a line that are told apart; the last one goes on to the end of the line.
const WORDS_MAX: usize = 64;

/// How a line is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// Words stand between blanks, as in lines of a log.
    Blanks,
    /// A sign divides the cells of a table; blanks around a cell do not belong to it.
    Cells(char),
    /// The values of JSON are words. Names and signs stand between them.
    Json,
}

/// The words of a line, by their ranges in bytes.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    pub text: &'a str,
    pub words: Vec<Range<u32>>,
}

impl<'a> Line<'a> {
    pub fn divide(text: &'a str, division: Division) -> Self {
        let words = match division {
            Division::Blanks => divide_at_blanks(text),
            Division::Cells(sign) => divide_cells(text, sign),
            Division::Json => divide_json(text),
        };
        Self { text, words: words.into_iter().map(|word| word.start as u32..word.end as u32).collect() }
    }

    /// Divides the line into so many of its words and the rest of the line; `None` if it has no rest.
    pub fn first_words(&self, count: usize) -> Option<Self> {
        let rest = self.words.get(count)?.start..self.text.trim_end().len() as u32;
        let words = self.words[..count].iter().cloned().chain([rest]).collect();
        Some(Self { text: self.text, words })
    }

    pub fn word(&self, at: usize) -> &'a str {
        let Range { start, end } = self.words[at].clone();
        &self.text[start as usize..end as usize]
    }

    /// The text before the word at `at`, or, after the last one, to the end of the line.
    pub fn gap(&self, at: usize) -> &'a str {
        let start = at.checked_sub(1).map_or(0, |before| self.words[before].end as usize);
        let end = self.words.get(at).map_or(self.text.len(), |word| word.start as usize);
        &self.text[start..end]
    }
}

fn divide_at_blanks(text: &str) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut at = 0;
    while words.len() < WORDS_MAX {
        let rest = &text[at..];
        let start = at + (rest.len() - rest.trim_start().len());
        if start == text.len() {
            break;
        }
        let rest = &text[start..];
        at = if words.len() + 1 == WORDS_MAX {
            start + rest.trim_end().len()
        } else {
            start + rest.find(char::is_whitespace).unwrap_or(rest.len())
        };
        words.push(start..at);
    }
    words
}

fn divide_cells(text: &str, sign: char) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut start = 0;
    for cell in text.splitn(4 * WORDS_MAX, sign) {
        let end = start + cell.len();
        // A carriage return at the end of the line is no part of a cell.
        let cell = cell.strip_suffix('\r').unwrap_or(cell);
        let trimmed = cell.trim_start_matches(' ');
        let first = start + (cell.len() - trimmed.len());
        words.push(first..first + trimmed.trim_end_matches(' ').len());
        start = end + sign.len_utf8();
    }
    words
}

fn divide_json(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut words = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'"' => {
                at = end_of_string(bytes, at);
                let rest = text[at..].trim_start_matches(' ');
                // A name at the beginning of a line differs from line to line: it is the key of a map.
                if !rest.starts_with(':') || start == 0 {
                    words.push(start..at);
                }
            }
            b'[' if let Some(end) = end_of_plain_list(bytes, at) => {
                at = end;
                words.push(start..at);
            }
            b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_in = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
                at += bytes[at..].iter().take_while(is_in).count();
                words.push(start..at);
            }
            _ => at += 1,
        }
    }
    words
}

/// The most bytes of a list that is one value.
const LIST_BYTES_MAX: usize = 400;

/// The position after a list without objects, names and other lists in it.
fn end_of_plain_list(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while at < bytes.len().min(start + LIST_BYTES_MAX) {
        match bytes[at] {
            b']' => return Some(at + 1),
            b'"' => at = end_of_string(bytes, at),
            b'[' | b'{' | b'}' | b':' => return None,
            _ => at += 1,
        }
    }
    None
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}
