use super::super::words;

#[track_caller]
fn check(case: &str, text: &str, expected: &[&str]) {
    let found: Vec<&str> = words(text).into_iter().map(|range| range.of(text)).collect();
    assert_eq!(found, expected, "{case}");
}

#[test]
fn words_with_the_punctuation_that_touches_them() {
    check("empty", "", &[]);
    check("blank", " \t\r\n\u{3000}", &[]);
    check("one", "tide", &["tide"]);
    check("a sentence", "The tide, it rises!", &["The", "tide,", "it", "rises!"]);
    check("spaces of any kind and number", "a  b\u{a0}c\u{2003}d\n", &["a", "b", "c", "d"]);
    check("quotes and brackets", "\"Yes\" (he said).", &["\"Yes\"", "(he", "said)."]);
    check("contractions", "don't stop", &["don't", "stop"]);
    check("numbers", "3.14 and 1,000", &["3.14", "and", "1,000"]);
    check("punctuation alone", "... - ?!", &["...", "-", "?!"]);
    check("a URL stays whole", "see https://a.b/c?d=e", &["see", "https://a.b/c?d=e"]);
}

#[test]
fn words_of_many_scripts() {
    check("combining marks stay", "e\u{301}te\u{301} o\u{308}", &["e\u{301}te\u{301}", "o\u{308}"]);
    check("a joined emoji is one", "hi 👩‍👩‍👧‍👦 👍🏽", &["hi", "👩‍👩‍👧‍👦", "👍🏽"]);
    check("Hebrew", "שלום עולם.", &["שלום", "עולם."]);
    check("Korean has spaces", "밀물은 온다.", &["밀물은", "온다."]);
    check("Chinese by dictionary", "天气很好。", &["天气", "很好。"]);
    check("Thai by model", "ภาษาไทย", &["ภาษา", "ไทย"]);
    check("control characters are no spaces", "a\u{0}b", &["a\u{0}b"]);
}
