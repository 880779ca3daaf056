//! Writes a string of a conversation anew: each passage becomes what is kept of it.

use std::ops::Range;

use serde_json::Value;

/// A passage of a string, and the text that replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The range of the passage in the string, in bytes.
    pub range: Range<usize>,
    /// The text that replaces it; empty: nothing is kept.
    pub text: String,
}

/// Returns `original` with its passages replaced. `pieces` ascend and do not overlap. Where nothing is kept of a passage, the white space that
/// divided it from the next one goes too, so that no run of blank lines remains.
pub fn replaced(original: &str, pieces: &[Piece]) -> String {
    let mut out = String::with_capacity(original.len());
    let mut at = 0;
    // Whether a piece of the same context has been written.
    let mut is_written = false;
    for (index, piece) in pieces.iter().enumerate() {
        let before = &original[at..piece.range.start];
        let is_divided_by_space = index > 0 && before.trim().is_empty();
        is_written &= is_divided_by_space;
        if !is_divided_by_space || is_written && !piece.text.is_empty() {
            out.push_str(before);
        }
        is_written |= !piece.text.is_empty();
        out.push_str(&piece.text);
        at = piece.range.end;
        let rest = &original[at..];
        let is_last =
            pieces.get(index + 1).is_none_or(|next| !original[at..next.range.start].trim().is_empty());
        // Nothing is left of a context: one line break between its delimiters is enough.
        if is_last && !is_written && out.ends_with('\n') && rest.starts_with(['\n', '\r']) {
            at += rest.len() - rest.trim_start_matches(['\n', '\r']).len();
        }
    }
    out.push_str(&original[at..]);
    out
}

/// The most ranges of lines that are named.
const LINE_RANGES_MAX: usize = 8;

/// Says what is missing of a text of which the ranges `dropped` were left out, in bytes: `lines 3-16, 20 of 60`, or, if no line is missing as a
/// whole, `812 of 1204 characters`. `dropped` ascends.
pub fn left_out(original: &str, dropped: &[Range<usize>]) -> String {
    let mut missing: Vec<(usize, usize)> = Vec::new();
    let (mut at, mut number, mut next) = (0, 0, 0);
    // Whether only blank lines came after the last missing line.
    let mut is_open = false;
    for line in original.split_inclusive('\n') {
        number += 1;
        let start = at + (line.len() - line.trim_start().len());
        let end = at + line.trim_end().len();
        at += line.len();
        if start >= end {
            continue;
        }
        while dropped.get(next).is_some_and(|range| range.end < end) {
            next += 1;
        }
        let is_missing = dropped.get(next).is_some_and(|range| range.start <= start && end <= range.end);
        match missing.last_mut().filter(|_| is_open && is_missing) {
            Some((_, last)) => *last = number,
            None if is_missing => missing.push((number, number)),
            None => {}
        }
        is_open = is_missing;
    }
    if missing.is_empty() {
        let count = |ranges: &mut dyn Iterator<Item = &Range<usize>>| -> usize {
            ranges.map(|range| original[range.clone()].chars().count()).sum()
        };
        return format!("{} of {} characters", count(&mut dropped.iter()), original.chars().count());
    }
    let names = missing
        .iter()
        .take(LINE_RANGES_MAX)
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    let mut names: Vec<String> = names.collect();
    if missing.len() > LINE_RANGES_MAX {
        names.push("…".to_owned());
    }
    let word = if missing.len() == 1 && missing[0].0 == missing[0].1 { "line" } else { "lines" };
    format!("{word} {} of {number}", names.join(", "))
}

/// Returns the line after a JSON text that says what was left out of it: `[… 48 of 60 items and 12 of 240 fields are left out]`.
pub fn left_out_of_json(original: &str, kept: &str) -> String {
    let count = |text: &str| serde_json::from_str(text).map(|value| JsonParts::of(&value));
    let (Ok(all), Ok(kept)) = (count(original), count(kept)) else {
        return format!("\n[… {} of {} characters are kept]", kept.chars().count(), original.chars().count());
    };
    let (items, fields) = (all.items - kept.items, all.fields - kept.fields);
    let of_fields =
        if fields > 0 { format!(" and {fields} of {} fields", all.fields) } else { String::new() };
    format!("\n[… {items} of {} items{of_fields} are left out]", all.items)
}

/// The numbers of items of all lists and of fields of all objects in a JSON value.
#[derive(Default)]
struct JsonParts {
    items: usize,
    fields: usize,
}

impl JsonParts {
    fn of(value: &Value) -> Self {
        let (own, inside): (Self, Vec<&Value>) = match value {
            Value::Array(items) => (Self { items: items.len(), fields: 0 }, items.iter().collect()),
            Value::Object(fields) => (Self { items: 0, fields: fields.len() }, fields.values().collect()),
            _ => return Self::default(),
        };
        inside
            .into_iter()
            .map(Self::of)
            .fold(own, |sum, part| Self { items: sum.items + part.items, fields: sum.fields + part.fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_of_json_is_counted() {
        let check = |original: &str, kept: &str, expect: &str| {
            assert_eq!(left_out_of_json(original, kept), format!("\n[… {expect}]"));
        };
        let rows = r#"{"total": 3, "rows": [{"id": 1, "tags": []}, {"id": 2, "tags": ["x", "y"]}, {"id": 3, "tags": []}]}"#;
        let kept = r#"{"total": 3, "rows": [{"id": 2, "tags": ["x", "y"]}]}"#;
        check(rows, kept, "2 of 5 items and 4 of 8 fields are left out");
        check("[1, 2, 3]", "[3]", "2 of 3 items are left out");
        check("[1, 2", "[1", "2 of 5 characters are kept");
    }

    #[test]
    fn missing_lines_are_named() {
        let check = |original: &str, dropped: &[&str], expect: &str| {
            let mut at = 0;
            let dropped: Vec<Range<usize>> = dropped
                .iter()
                .map(|text| {
                    let start = at + original[at..].find(text).expect("a part");
                    at = start + text.len();
                    start..at
                })
                .collect();
            assert_eq!(left_out(original, &dropped), expect, "{original:?}");
        };
        let lines = "one\ntwo\n\n  three\nfour\nfive\n";
        check(lines, &["two\n\n  three\n"], "lines 2-4 of 6");
        check(lines, &["one", "five"], "lines 1, 6 of 6");
        check(lines, &["four"], "line 5 of 6");
        check(lines, &["wo\n\n  thr"], "9 of 27 characters");
        check(lines, &["one\ntwo\n\n  three\nfour\nfive\n"], "lines 1-6 of 6");
        check("One is é. Two.", &["One is é."], "9 of 14 characters");
        check("a\r\nb\r\nc", &["b\r\n"], "line 2 of 3");
        let many: String = (0..40).map(|at| format!("l{at:02}\n")).collect();
        let every_other: Vec<String> = (0..20).map(|at| format!("l{:02}", 2 * at)).collect();
        let every_other: Vec<&str> = every_other.iter().map(String::as_str).collect();
        check(&many, &every_other, "lines 1, 3, 5, 7, 9, 11, 13, 15, … of 40");
    }

    #[test]
    fn no_blank_lines_remain_where_passages_were_left_out() {
        let check = |name: &str, original: &str, kept: &[(&str, &str)], expect: &str| {
            let mut at = 0;
            let pieces: Vec<Piece> = kept
                .iter()
                .map(|(passage, text)| {
                    let start = at + original[at..].find(passage).expect("a passage");
                    at = start + passage.len();
                    Piece { range: start..at, text: (*text).to_owned() }
                })
                .collect();
            assert_eq!(replaced(original, &pieces), expect, "{name}");
        };
        let three = "Q <c>\nOne.\n\nTwo.\n\nThree.\n</c> R";
        check("all", three, &[("One.", "One."), ("Two.", "Two."), ("Three.", "Three.")], three);
        check("first", three, &[("One.", "1"), ("Two.", ""), ("Three.", "")], "Q <c>\n1\n</c> R");
        check("last", three, &[("One.", ""), ("Two.", ""), ("Three.", "3")], "Q <c>\n3\n</c> R");
        check("middle", three, &[("One.", ""), ("Two.", "2"), ("Three.", "")], "Q <c>\n2\n</c> R");
        check("ends", three, &[("One.", "1"), ("Two.", ""), ("Three.", "3")], "Q <c>\n1\n\n3\n</c> R");
        check("none", three, &[("One.", ""), ("Two.", ""), ("Three.", "")], "Q <c>\n</c> R");
        check(
            "two contexts",
            "<c>A\n\nB</c>?<c>C\n\nD</c>",
            &[("A", ""), ("B", "b"), ("C", "c"), ("D", "")],
            "<c>b</c>?<c>c</c>",
        );
        check(
            "adjacent contexts",
            "<c>\nA\n</c>\n<c>\nB\n</c>",
            &[("A", ""), ("B", "")],
            "<c>\n</c>\n<c>\n</c>",
        );
        check("a whole text", "One. Two.", &[("One. Two.", "[...]")], "[...]");
        check(
            "strings of JSON",
            r#"{"a": "one", "b": "two"}"#,
            &[("\"one\"", "\"1\""), ("\"two\"", "\"2\"")],
            r#"{"a": "1", "b": "2"}"#,
        );
        check("one line", "<c>A</c>", &[("A", "")], "<c></c>");
        check("no passage", "Q", &[], "Q");
    }
}
