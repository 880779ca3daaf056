//! The pieces of a log: its events. Knows how an event begins, and which events share an identifier. Must not
//! know what an event means.
//!
//! - In a log with points in time, an event begins with one of those, and every other line continues it: a
//!   stack trace, a query. In any other log every line is an event, and a line that is indented continues it.
//! - An event of more than [`EVENT_BYTES_MAX`] bytes is divided at spaces; its later parts require the first.
//! - A first line that names columns is a frame that every event requires.

mod related;
mod report;
mod trace;

pub(super) use report::is_report;

use super::{Pieces, stamp};
use crate::lexicon::{Class, has};
use crate::line::{Line, lines, span};
use crate::range::ByteRange;

/// The longest piece of an event, in bytes.
const EVENT_BYTES_MAX: usize = 2000;
/// The most lines of a failed test that are not indented.
const DIAGNOSTIC_LINES_MAX: usize = 6;
/// How far into a line an access log has its point in time, in bytes.
const ACCESS_BYTES: usize = 120;
/// What a line begins with that is made of keys and values, or of JSON.
const KEYED: [&str; 12] = [
    "time=",
    "ts=",
    "t=",
    "level=",
    "lvl=",
    "timestamp=",
    "{\"ts\"",
    "{\"time\"",
    "{\"timestamp\"",
    "{\"@timestamp\"",
    "{\"t\"",
    "# Time:",
];

/// Returns the pieces of a log: its events.
pub(super) fn outline(text: &str) -> Pieces {
    let lines = lines(text);
    if is_report(&lines) {
        return report::outline(text, &lines);
    }
    let starts = event_starts(&lines);
    let mut pieces = Pieces::default();
    let (mut header, mut trace) = (None, trace::Trace::default());
    for (index, &start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(lines.len());
        let range = span(&lines[start..end]);
        if index == 0 && starts.len() > 2 && is_header(lines[start].text) {
            header = Some(pieces.frame(range, &[]));
        } else if trace::has_trace(&lines[start..end]) {
            trace::event(&mut pieces, text, &lines[start..end], header, &mut trace);
        } else {
            event(&mut pieces, text, range, header);
        }
    }
    notes(&mut pieces, text);
    related::link(&mut pieces, text);
    pieces
}

fn event_starts(lines: &[Line]) -> Vec<usize> {
    let marks: Vec<bool> = lines.iter().map(|line| begins_event(line.text)).collect();
    let frames: Vec<bool> = (0..lines.len()).map(|at| trace::is_frame(lines, at)).collect();
    let visible = (0..lines.len()).filter(|&at| !lines[at].is_blank() && !frames[at]).count();
    let marked = count(&marks);
    // Markers of a build, such as the command, divide it no more than any other line does.
    let is_stamped = marked * 4 >= visible && lines.iter().any(|line| is_stamped(line.text));
    let is_whole = !is_stamped && trace::has_trace(lines);
    let mut diagnostic = None;
    let mut starts = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let begins = if is_stamped {
            marks[index]
        } else {
            !is_whole && !line.text.starts_with([' ', '\t']) && !goes_on(lines, index, diagnostic)
        };
        if is_diagnostic(line.text) {
            diagnostic = Some(index);
        } else if line.is_blank() {
            diagnostic = None;
        }
        if !line.is_blank() && (begins || starts.is_empty()) {
            starts.push(index);
        }
    }
    starts
}

/// Returns whether a line says where a compiler or a test found a fault: `src/a.c:3:1: error: …`.
fn is_diagnostic(line: &str) -> bool {
    let words = [": error", ": warning", ": note:", ": fatal error", ": Failure", " - error TS"];
    let is_placed = words.iter().any(|word| {
        line.split_once(word).is_some_and(|(place, _)| {
            !place.contains(' ')
                && place.ends_with(|c: char| c.is_ascii_digit() || c == ')')
                && place.contains([':', '('])
        })
    });
    is_placed
        || ["error[E", "Failure/Error:", "--- FAIL: "]
            .iter()
            .any(|begin| line.trim_start().starts_with(begin))
}

/// Returns which lines say that something failed, in a text that is made of those: a report of tests, a stack trace, or what a compiler
/// prints.
pub(super) fn faults(lines: &[Line]) -> Vec<bool> {
    if is_report(lines) {
        return vec![true; lines.len()];
    }
    if trace::is_trace(lines) {
        return (0..lines.len())
            .map(|at| trace::is_frame(lines, at) || trace::is_python(lines[at].text))
            .collect();
    }
    let is_followed = |at: usize| {
        let next = lines.get(at + 1).map(|next| next.text);
        next.is_some_and(|next| next.starts_with([' ', '\t', '|']) || is_diagnostic(next))
    };
    let is_fault = |at: usize| lines.len() > 2 && is_diagnostic(lines[at].text) && is_followed(at);
    (0..lines.len()).map(is_fault).collect()
}

/// Returns whether a line that is not indented goes on what a diagnostic above it, at this index, says: code with its number, or
/// what was expected.
fn goes_on(lines: &[Line], at: usize, diagnostic: Option<usize>) -> bool {
    let line = lines[at].text;
    let is_code =
        line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|') || line == "...";
    let Some(first) = diagnostic.filter(|_| !is_diagnostic(line)) else { return false };
    is_code || lines[first].text.ends_with(": Failure") && at - first <= DIAGNOSTIC_LINES_MAX
}

/// Lets notes require the error that they explain.
fn notes(pieces: &mut Pieces, text: &str) {
    let mut error = None;
    for piece in 0..pieces.len() {
        let first = pieces.list[piece].bytes.slice(text).lines().next().unwrap_or_default();
        if first.contains(": note:") {
            error.into_iter().for_each(|error| pieces.require(piece, error));
        } else if is_diagnostic(first) {
            error = Some(piece);
        }
    }
}

fn count(marks: &[bool]) -> usize {
    marks.iter().filter(|&&mark| mark).count()
}

pub(super) fn begins_event(line: &str) -> bool {
    is_stamped(line) || begins_with_level(line) || line.starts_with("$ ") || is_build_step(line)
}

/// Returns whether a line begins with a point in time, or with words that only come before one.
fn is_stamped(line: &str) -> bool {
    let first = line.bytes().next();
    let could_be =
        first.is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'[' | b'(' | b'{' | b'#' | b' '));
    could_be
        && (stamp::length(line).is_some()
            || KEYED.iter().any(|key| line.starts_with(key))
            || is_json_event(line)
            || is_access(line)
            || is_glog(line)
            || is_age(line)
            || is_tagged(line))
}

/// `{"level": "INFO", "ts": ...}`, with the point in time among the first members.
fn is_json_event(line: &str) -> bool {
    let head = &line[..line.floor_char_boundary(ACCESS_BYTES)];
    line.starts_with('{')
        && ["\"ts\"", "\"time\"", "\"timestamp\"", "\"@timestamp\""].iter().any(|k| head.contains(k))
}

/// `192.0.2.1 - - [06/May/2025:14:02:11 +0200] "GET /"`.
fn is_access(line: &str) -> bool {
    let head = &line[..line.floor_char_boundary(ACCESS_BYTES)];
    head.find('[')
        .is_some_and(|at| at > 0 && head[..at].ends_with(' ') && stamp::length(&line[at..]).is_some())
        && line.starts_with(|c: char| c.is_ascii_hexdigit())
        && head.split(' ').next().is_some_and(|host| host.contains(['.', ':']))
}

/// `I0509 12:00:00.123456 1 main.go:12]`.
fn is_glog(line: &str) -> bool {
    let bytes = line.as_bytes();
    matches!(bytes.first(), Some(b'I' | b'W' | b'E' | b'F' | b'D'))
        && bytes.get(1..5).is_some_and(|day| day.iter().all(u8::is_ascii_digit))
        && bytes.get(5) == Some(&b' ')
}

/// `58m         Normal    Scheduled`: how long ago it was.
fn is_age(line: &str) -> bool {
    let Some(end) = line.find("  ") else { return false };
    let age = &line.as_bytes()[..end];
    age.len() <= 8
        && age.first().is_some_and(u8::is_ascii_digit)
        && age.last().is_some_and(|unit| matches!(unit, b's' | b'm' | b'h' | b'd'))
        && age.iter().all(|b| b.is_ascii_digit() || matches!(b, b's' | b'm' | b'h' | b'd'))
}

/// `[e2e] 16:20:04 waiting`, `web-1 | 2025-01-01 10:00:00 GET`.
fn is_tagged(line: &str) -> bool {
    let rest = match line.strip_prefix('[') {
        Some(inner) => inner.split_once("] ").filter(|(tag, _)| tag.len() <= 40 && !tag.contains(' ')),
        None => line
            .split_once(" | ")
            .filter(|(tag, _)| tag.trim_end().len() <= 40 && !tag.trim_end().contains(' ')),
    };
    rest.is_some_and(|(_, rest)| stamp::length(rest.trim_start()).is_some())
}

fn begins_with_level(line: &str) -> bool {
    let word = line.trim_start_matches(['[', '<']);
    let end = word.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(word.len());
    let is_marked = end < word.len() || word.len() < line.len();
    is_marked && is_level(&word[..end])
}

/// Returns whether a word is a level as loggers write it, in capitals.
pub(super) fn is_level(word: &str) -> bool {
    word.len() > 1
        && word.bytes().all(|byte| byte.is_ascii_uppercase())
        && has(Class::Level, &word.to_ascii_lowercase())
}

/// `#7 1.204 npm warn`: a step of a build, with its number.
fn is_build_step(line: &str) -> bool {
    let digits = line.strip_prefix('#').map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    digits > 0 && line[1 + digits..].starts_with(' ')
}

/// Returns whether a line names the columns of a log: several words in capitals.
fn is_header(line: &str) -> bool {
    let mut names = line.split("  ").map(str::trim).filter(|name| !name.is_empty()).peekable();
    let is_name = |name: &str| name.chars().all(|c| c.is_uppercase() || c == ' ');
    line.contains("  ") && names.peek().is_some() && names.all(is_name)
}

fn event(pieces: &mut Pieces, text: &str, range: ByteRange, header: Option<usize>) {
    let first = pieces.len();
    let mut start = range.start;
    while start < range.end {
        let end = part_end(text, start, range.end);
        let requires = if start == range.start { Vec::from_iter(header) } else { vec![first] };
        pieces.push(ByteRange::new(start, end), &requires);
        start = end + text[end..].len() - text[end..].trim_start().len();
    }
}

/// Returns where the part of an event that begins at `start` ends: before a line end if it is long, or else
/// before a space, or else anywhere.
fn part_end(text: &str, start: usize, end: usize) -> usize {
    if end - start <= EVENT_BYTES_MAX {
        return end;
    }
    let limit = text.floor_char_boundary(start + EVENT_BYTES_MAX);
    let part = &text[start..limit];
    let cut = part.rfind('\n').or_else(|| part.rfind(' ')).map_or(part, |at| &part[..at]).trim_end();
    start + if cut.is_empty() { part.len() } else { cut.len() }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;

    #[test]
    fn a_long_event_is_divided() {
        let text = format!("10:00:01 {}", "word ".repeat(1000));
        let pieces = super::super::tests::pieces(&text, Kind::Log);
        assert_eq!(pieces.len(), 3);
        assert!(pieces.iter().all(|piece| piece.bytes.len() <= super::EVENT_BYTES_MAX));
        assert_eq!(pieces[2].required().collect::<Vec<_>>(), [0]);
    }
}
