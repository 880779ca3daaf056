//! Stack traces in a log: the message, the frames and the causes of each. Knows how languages print them; must not know which frame
//! matters.
//!
//! - A frame requires the message that it belongs to, and a cause the first message of its trace.
//! - The first message requires the last cause, which mostly says what went wrong. In Python it is the other way round: the last
//!   message is the one that was raised in the end, and requires the first.

use std::ops::Range;

use super::super::{Pieces, Role};
use crate::line::{Line, span, trimmed};
use crate::range::ByteRange;

/// What the messages of one trace require of each other, over all events that it is printed in.
#[derive(Default)]
pub(super) struct Trace {
    head: Option<usize>,
}

/// Words of a message that a trace follows.
const RAISED: [&str; 5] = ["xception", "rror", "panic", "fail", "FAIL"];

const FRAMES_MIN: usize = 2;

pub(super) fn has_trace(lines: &[Line]) -> bool {
    let frames = (0..lines.len()).filter(|&at| is_frame(lines, at)).count();
    let is_raised = || (0..lines.len()).any(|at| !is_frame(lines, at) && raises(lines[at].text));
    frames >= FRAMES_MIN && is_raised() || frames > 0 && lines.iter().any(|line| is_python(line.text))
}

/// Returns whether a text consists mostly of stack traces.
pub(super) fn is_trace(lines: &[Line]) -> bool {
    let frames = (0..lines.len()).filter(|&at| is_frame(lines, at)).count();
    has_trace(lines) && (frames * 5 >= lines.len() || lines.iter().any(|line| is_python(line.text)))
}

pub(super) fn is_frame(lines: &[Line], at: usize) -> bool {
    let (line, text) = (lines[at].text, lines[at].text.trim());
    let is_indented = line.starts_with([' ', '\t']);
    let is_numbered = || {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        is_indented
            && (1..=4).contains(&digits)
            && text[digits..].starts_with(": ")
            && text.len() > digits + 2
    };
    is_indented && text.starts_with("at ") && has_place(text)
        || text.starts_with("File \"") && text.contains(", line ")
        || text.contains(":in ") && (text.starts_with("from ") || text.contains(".rb:"))
        || text.starts_with("... ") && text.ends_with(" more")
        || text.starts_with("--- End of ")
        || is_indented && text.contains(".go:")
        || is_numbered()
        || !is_indented
            && text.ends_with(')')
            && lines.get(at + 1).is_some_and(|next| next.text.starts_with('\t') && next.text.contains(".go:"))
}

/// Returns whether a frame says where it is: in brackets, or as the number of a line.
fn has_place(text: &str) -> bool {
    let has_number = text.rsplit(':').next().is_some_and(|end| end.starts_with(|c: char| c.is_ascii_digit()));
    text.contains('(') && text.contains(')') || text.contains(':') && has_number || text.contains(":line ")
}

fn raises(line: &str) -> bool {
    RAISED.iter().any(|word| line.contains(word)) || line.starts_with("goroutine ")
}

pub(super) fn is_python(line: &str) -> bool {
    line.trim_end().ends_with("Traceback (most recent call last):")
}

/// Returns whether a line says that what follows caused what is above, or the reverse in Python.
fn is_cause(text: &str) -> bool {
    let text = text.trim_start();
    ["Caused by", "Suppressed:", "---> ", "During handling of", "The above exception", "Verursacht durch"]
        .iter()
        .any(|begin| text.starts_with(begin))
}

/// Adds the pieces of an event that has a trace. `header` is what every event requires.
pub(super) fn event(
    pieces: &mut Pieces,
    text: &str,
    lines: &[Line],
    header: Option<usize>,
    trace: &mut Trace,
) {
    let is_reversed = lines.iter().any(|line| is_python(line.text));
    let (mut messages, mut frames): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut root = None;
    for part in parts(lines) {
        let first = lines[part.start];
        let range = span(&lines[part.clone()]);
        let range = trimmed(text, range.start, range.end);
        if range.is_empty() {
            continue;
        }
        // A message can be as long as any event.
        let piece = pieces.len();
        super::event(pieces, text, range, header);
        if is_frame(lines, part.start) || is_python(first.text) {
            // "... 34 more"
            if first.text.trim_start().starts_with("... ") && first.text.ends_with(" more") {
                pieces.list[piece].role = Role::Frame;
            }
            frames.push(piece);
            if !is_reversed && let Some(&message) = messages.last() {
                pieces.require(piece, message);
            }
            continue;
        }
        if is_reversed {
            frames.drain(..).for_each(|frame| pieces.require(frame, piece));
        }
        if is_cause(first.text) {
            root = Some(piece);
        }
        messages.push(piece);
    }
    let Some((&first, &last)) = messages.first().zip(messages.last()) else {
        // The rest of a trace whose beginning another line interrupted.
        frames.iter().for_each(|&frame| trace.head.into_iter().for_each(|head| pieces.require(frame, head)));
        return;
    };
    let is_raised = |bytes: ByteRange| raises(bytes.slice(text));
    let begins_with_cause = is_cause(pieces.list[first].bytes.slice(text));
    // An event that reports a failure has a trace of its own.
    let is_failure =
        ["ERROR", "FATAL", "SEVERE", "CRITICAL", "WARN"].iter().any(|level| lines[0].text.contains(level));
    let begins = (is_raised(pieces.list[first].bytes) || is_failure) && !begins_with_cause;
    let head = match trace.head.filter(|_| !is_reversed && !begins) {
        Some(head) => head,
        None if is_reversed => last,
        None => first,
    };
    // A line of something else may stand in the middle of a trace.
    for &message in messages.iter().filter(|&&message| message != first || begins || begins_with_cause) {
        pieces.require(message, head);
    }
    if is_reversed {
        // The event that reports it, the exception that was raised first, and the one that was raised in the end.
        messages.iter().take(2).for_each(|&message| pieces.require(head, message));
    } else if let Some(root) = root.filter(|_| begins_with_cause || messages.contains(&head)) {
        pieces.list[head].links.retain(|link| link.to <= head);
        pieces.require(head, root);
    }
    trace.head = Some(head);
}

/// Divides lines into messages and frames. A frame has the lines of code below it, and a message all lines up to the next
/// frame or cause.
fn parts(lines: &[Line]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut in_frame = false;
    for at in 0..lines.len() {
        let (line, text) = (lines[at].text, lines[at].text.trim());
        let is_frame_line = is_frame(lines, at);
        // The second line of a frame of Go, the code of a frame of Python, and the place of one of Rust.
        let continues_frame = in_frame
            && !is_cause(text)
            && (at > 0 && lines[at - 1].text.ends_with(')') && line.contains(".go:")
                || !is_frame_line && (line.starts_with("    ") || line.starts_with('\t'))
                || text.starts_with("at ")
                    && lines[at - 1].text.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        let is_new = found.is_empty()
            || !continues_frame && (is_frame_line || in_frame || is_cause(text) || is_python(line));
        match found.last_mut() {
            Some(last) if !is_new || text.is_empty() => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
        in_frame = is_frame_line || continues_frame || is_python(line) || in_frame && text.is_empty();
    }
    found
}
