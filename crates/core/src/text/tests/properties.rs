//! Properties: what holds for every text, hostile ones too.

use proptest::prelude::*;
use unicode_segmentation::UnicodeSegmentation;

use crate::text::{sentences, sentences_within};

/// Ordered, disjoint, trimmed, complete, on cluster boundaries, and none over the bound but single clusters.
fn check(text: &str, bytes_max: usize) -> Result<(), TestCaseError> {
    let clusters: std::collections::BTreeSet<usize> =
        text.grapheme_indices(true).map(|(at, _)| at).chain([text.len()]).collect();
    let whole = |at: usize| {
        clusters.contains(&at)
            || text[..at].ends_with(char::is_whitespace)
            || text[at..].starts_with(char::is_whitespace)
    };
    let mut last = 0;
    for range in sentences_within(text, bytes_max) {
        prop_assert!(range.start >= last && !range.is_empty(), "order in {:?}", text);
        let (between, inside) = (&text[last..range.start], range.of(text));
        prop_assert!(between.chars().all(char::is_whitespace), "lost {:?} of {:?}", between, text);
        prop_assert_eq!(inside, inside.trim());
        prop_assert!(whole(range.start) && whole(range.end), "{:?} cuts a cluster of {:?}", inside, text);
        prop_assert!(
            inside.len() <= bytes_max || inside.graphemes(true).count() == 1,
            "{:?} is too long",
            inside
        );
        prop_assert!(sentences(inside).iter().all(|part| part.end <= inside.len()));
        last = range.end;
    }
    prop_assert!(text[last..].chars().all(char::is_whitespace), "lost the end of {:?}", text);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text(text in any::<String>(), bytes_max in 1usize..100) {
        check(&text, bytes_max)?;
    }

    #[test]
    fn hostile_punctuation(text in "([.!?…。？।]|[ \\n\\r\u{A0}\u{2028}]|[\"'“”«»()\\[\\]「」]|[A-Ca-c1-3]|\\*|[\u{301}\u{200D}\u{600}🇩🇪]){0,60}") {
        check(&text, 2000)?;
    }

    #[test]
    fn hostile_layout(text in "(\n|\r\n| |```|~~~|\\| |- |# |1\\. |==|---|> |[a-zA-Z. ]{1,50}|漢字。|กขค ){0,40}", bytes_max in 1usize..400) {
        check(&text, bytes_max)?;
    }

    #[test]
    fn words_and_stops(text in "((Dr|U\\.S|e\\.g|No|z|B|The|is|5|1998|iPhone)(\\.|\\. |\\.\\[3\\] |! |, | )){0,30}") {
        check(&text, 2000)?;
    }
}

/// Not a measurement: a quadratic scan takes minutes on these, a linear one far less than a second.
#[test]
fn hostile_sizes_end_soon() {
    let parts = [
        ".",
        ". ",
        "a.",
        "A. ",
        ".*",
        "?*",
        "! ",
        "\u{2028}",
        ".\u{2028}",
        "[",
        ".[",
        "1. ",
        "x",
        "…",
        "🇩🇪",
        "e\u{301}",
        "(",
        "- ",
        "\n",
        "``` \n",
        "```a\n",
        "| ",
        " » ",
        "ก ",
        "。「",
        "\u{300}",
        "\u{600}",
        "!\u{300}",
        "\r",
        "-\n",
        "A\n",
        " \u{85}",
    ];
    for part in parts {
        let text = part.repeat(300_000 / part.len());
        let found = sentences(&text);
        assert!(found.iter().all(|range| range.end <= text.len()), "{part:?}");
    }
}
