//! Writes a string of a conversation anew: each passage becomes what is kept of it.

use std::ops::Range;

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

#[cfg(test)]
mod tests {
    use super::*;

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
