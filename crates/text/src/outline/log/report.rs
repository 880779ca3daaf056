//! Reports of test runs: pytest, Jest and its kin, `cargo test` and `go test`. A failed test has a head, such as its name, and below
//! it paragraphs: what was expected, the code, and where it is.

use std::collections::HashMap;

use super::super::Pieces;
use crate::line::{Line, span, trimmed};
use crate::range::ByteRange;

/// Returns whether a text is the report of a test run.
pub(in super::super) fn is_report(lines: &[Line]) -> bool {
    let has = |is: fn(&str) -> bool| lines.iter().any(|line| is(line.text.trim()));
    let is_jest = has(|line| line.starts_with("● "))
        && has(|line| {
            line.starts_with("FAIL ") || line.starts_with("Test Suites:") || line.starts_with("Tests:")
        });
    let is_cargo = has(|line| line.starts_with("---- ") && line.ends_with(" ----"));
    is_jest || is_cargo || has(is_rule) && has(is_underscored) || has(|line| line.starts_with("--- FAIL: "))
}

pub(super) fn outline(text: &str, lines: &[Line]) -> Pieces {
    let mut pieces = Pieces::default();
    // The head of the failed test, and its first paragraph.
    let (mut head, mut message): (Option<usize>, Option<usize>) = (None, None);
    // By the name of a test that ran: the line that says so, and what the test printed.
    let mut runs: HashMap<&str, (usize, Option<usize>)> = HashMap::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].text.trim();
        if line.is_empty() {
            at += 1;
        } else if let Some(&(run, message)) = result_of(line).and_then(|name| runs.get(name)) {
            // `go test -v` prints the result below what failed.
            let requires: Vec<usize> = [run].into_iter().chain(message).collect();
            pieces.push(lines[at].trimmed(), &requires);
            (head, at) = (None, at + 1);
        } else if begins_test(line) {
            let piece = pieces.push(lines[at].trimmed(), &[]);
            if let Some(name) = run_of(line) {
                runs.insert(name, (piece, None));
            }
            (head, message) = (Some(piece), None);
            at += 1;
        } else if ends_test(lines[at].text) || head.is_none() {
            (head, message) = (None, None);
            pieces.push(lines[at].trimmed(), &[]);
            at += 1;
        } else {
            let end = paragraph_end(lines, at);
            let ByteRange { start, end: stop } = span(&lines[at..end]);
            let requires: Vec<usize> = head.into_iter().chain(message).collect();
            let piece = pieces.push(trimmed(text, start, stop), &requires);
            message = message.or(Some(piece));
            let name = head.and_then(|head| run_of(pieces.list[head].bytes.slice(text)));
            if let Some((_, printed)) = name.and_then(|name| runs.get_mut(name)) {
                *printed = message;
            }
            at = end;
        }
    }
    // A name says nothing without what failed.
    for piece in 0..pieces.len().saturating_sub(1) {
        let first = |piece: usize| pieces.list[piece].required().next();
        if first(piece + 1) == Some(piece) && first(piece).is_none() {
            pieces.introduce(piece, piece + 1);
        }
    }
    pieces
}

/// Returns where a paragraph of a failed test ends: at a blank line, but what was expected and what was found stay together.
fn paragraph_end(lines: &[Line], start: usize) -> usize {
    let is_inside = |line: &Line| !(line.is_blank() || begins_test(line.text.trim()) || ends_test(line.text));
    let mut end = start;
    loop {
        end += lines[end..].iter().take_while(|line| is_inside(line)).count();
        let next = end + lines[end..].iter().take_while(|line| line.is_blank()).count();
        let below: Vec<&str> = lines[next..]
            .iter()
            .take_while(|line| is_inside(line))
            .map(|line| line.text.trim_start())
            .collect();
        let compares = below.iter().any(|line| line.starts_with("- ") || line.starts_with("+ "))
            || below
                .first()
                .is_some_and(|line| ["Expected", "Received"].iter().any(|word| line.starts_with(word)));
        if next == end || !compares {
            return end;
        }
        end = next;
    }
}

/// Returns whether a line is the name of a failed test, above what failed.
fn begins_test(line: &str) -> bool {
    line.starts_with("● ")
        || line.starts_with("--- FAIL: ")
        || run_of(line).is_some()
        || line.starts_with("---- ") && line.ends_with(" ----")
        || is_underscored(line)
}

/// The name in `=== RUN   TestName`, as `go test -v` writes it.
fn run_of(line: &str) -> Option<&str> {
    line.strip_prefix("=== RUN")?.split_whitespace().next()
}

/// The name in `--- FAIL: TestName (0.01s)`, also of a test that passed or was left out.
fn result_of(line: &str) -> Option<&str> {
    let results = ["--- FAIL: ", "--- PASS: ", "--- SKIP: "];
    results.iter().find_map(|result| line.strip_prefix(result))?.split_whitespace().next()
}

/// `_____ test_name _____`, as pytest writes it.
fn is_underscored(line: &str) -> bool {
    line.starts_with("___") && line.ends_with("___") && line.contains(char::is_alphanumeric)
}

/// `===== FAILURES =====`, as pytest writes it.
fn is_rule(line: &str) -> bool {
    line.starts_with("===") && line.ends_with("===") && line.contains(char::is_alphabetic)
}

/// Returns whether a line belongs to no failed test.
fn ends_test(line: &str) -> bool {
    const SUMMARIES: [&str; 12] = [
        "FAIL",
        "PASS",
        "failures:",
        "test result:",
        "Test Suites:",
        "Tests:",
        "ok  ",
        "ok\t",
        "FAILED ",
        "--- PASS: ",
        "--- SKIP: ",
        "test ",
    ];
    is_rule(line.trim()) || SUMMARIES.iter().any(|begin| line.starts_with(begin))
}
