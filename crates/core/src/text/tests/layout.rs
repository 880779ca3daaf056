//! Tables: lines, Markdown, code, and sentences that are too long.

use super::check;
use crate::text::sentences_within;

#[test]
fn layout() {
    check("paragraphs", "no stop\n\nnext\r\n\r\nlast", &["no stop", "next", "last"]);
    check("short lines", "Name: Ada\nBorn: 1815", &["Name: Ada", "Born: 1815"]);
    check(
        "wrapped, lower case",
        "It was\nvery long. So\r\nit was.",
        &["It was\nvery long.", "So\r\nit was."],
    );
    let wrapped = "The house that was built by the river for John\nSmith was sold to a family from Paris in the year\n1998. It burned.";
    check("wrapped, full lines", wrapped, &[&wrapped[..wrapped.len() - 11], "It burned."]);
    check(
        "a title above a long line",
        &format!("A title of more than forty columns, by someone\n{}", "Word and ".repeat(30).trim()),
        &["A title of more than forty columns, by someone", "Word and ".repeat(30).trim()],
    );
    check(
        "headings",
        "# One. Two\nText is. More.\n## Three\nEnd",
        &["# One. Two", "Text is.", "More.", "## Three", "End"],
    );
    check("underlined heading", "Title\n=====\nText.", &["Title\n=====", "Text."]);
    check("wiki heading", "== History ==\nIt began.", &["== History ==", "It began."]);
    check(
        "list",
        "- one\n- two. Three\n* four\n  goes on\n1. five\n2) six",
        &["- one", "- two.", "Three", "* four\n  goes on", "1. five", "2) six"],
    );
    check(
        "table",
        "| a. B | c |\n|---|---|\n| 1. 2 | 3. D |",
        &["| a. B | c |\n|---|---|", "| 1. 2 | 3. D |"],
    );
    check("bare table", "a | b. C | d\n1 | 2 | 3", &["a | b. C | d", "1 | 2 | 3"]);
    check(
        "short code",
        "See:\n```rust\nlet a = 1. ;\n\nB. C\n```\nDone.",
        &["See:", "```rust\nlet a = 1. ;\n\nB. C\n```", "Done."],
    );
    check("an open fence", "```\nOne. Two.", &["```", "One.", "Two."]);
    check("quoted lines", "> One goes\n> on. Two.", &["> One goes\n> on.", "Two."]);
    check("line separators", "One\u{2028}two\u{2029}three", &["One", "two", "three"]);
    check("old line ends", "one\r\rtwo", &["one", "two"]);
}

#[test]
fn long_code_is_cut_at_blank_lines() {
    let half = "let x = f(y). G();\n".repeat(20);
    let text = format!("```\n{half}\n{half}```");
    let expected = [format!("```\n{}", half.trim_end()), format!("{half}```")];
    check("long code", &text, &[&expected[0], &expected[1]]);
}

#[test]
fn long_sentences_are_divided() {
    let check = |case: &str, text: &str, bytes_max, expected: &[&str]| {
        let found: Vec<&str> =
            sentences_within(text, bytes_max).into_iter().map(|range| range.of(text)).collect();
        assert_eq!(found, expected, "{case}");
    };
    check("at a clause", "alpha beta, gamma delta epsilon", 16, &["alpha beta,", "gamma delta", "epsilon"]);
    check("at a space", "alpha beta gamma", 11, &["alpha beta", "gamma"]);
    check("in a word", "abcdefghij", 4, &["abcd", "efgh", "ij"]);
    check("never in a cluster", "e\u{301}e\u{301}e\u{301}", 4, &["e\u{301}", "e\u{301}", "e\u{301}"]);
    check("a cluster over the bound", "👩‍👩‍👧‍👦x", 5, &["👩‍👩‍👧‍👦", "x"]);
    check("no bound at all", "ab", 0, &["a", "b"]);
}
