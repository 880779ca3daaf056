//! Tables: what a text's sentences are.

mod languages;
mod layout;
mod offsets;
mod properties;
mod prose;
mod words;

use super::sentences;

#[track_caller]
fn check(case: &str, text: &str, expected: &[&str]) {
    let found: Vec<&str> = sentences(text).into_iter().map(|range| range.of(text)).collect();
    assert_eq!(found, expected, "{case}");
}
