//! References: sentences that begin with a word for something before them.

use super::{CHAIN_MAX, Part, Pieces};

/// The longest first word that refers to something, in bytes.
const FIRST_WORD_BYTES_MAX: usize = 12;

/// How far back the subject of `It` is looked for, in pieces.
pub(super) const SUBJECT_REACH: usize = 4;

/// First words that refer to the sentence before, and those that refer to a subject further up.
const REFERRING: [&str; 14] = [
    "that",
    "this",
    "these",
    "those",
    "such",
    "then",
    "otherwise",
    "dann",
    "das",
    "dies",
    "diese",
    "dieser",
    "dieses",
    "sonst",
];
const REFERRING_PHRASES: [&str; 9] = [
    "after that",
    "because of that",
    "before that",
    "bis dahin",
    "for that",
    "for this",
    "in that case",
    "in this case",
    "until then",
];
const SUBJECTS: [&str; 3] = ["it", "they", "it's"];

pub(super) fn first_word(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '’')).unwrap_or(text.len());
    // No word that is looked for is longer.
    if end > FIRST_WORD_BYTES_MAX { String::new() } else { text[..end].to_lowercase().replace('’', "'") }
}

/// Returns whether a sentence begins with words that refer to the sentence before it. "This agreement" at the start of a paragraph
/// does not, nor does the German article in "Das Wasser".
fn refers(text: &str, begins_paragraph: bool) -> bool {
    let word = first_word(text);
    // The words that are looked for are ASCII, so their length is that in the text.
    let next = text.get(word.len()..).unwrap_or_default().trim_start();
    let is_article = word == "das" && next.starts_with(char::is_uppercase);
    let has_noun =
        begins_paragraph && ["this", "these", "those", "such", "diese", "dieser", "dieses"].contains(&&*word);
    let begins = |phrase: &str| {
        let is_whole = !text[phrase.len()..].starts_with(char::is_alphanumeric);
        is_whole && text[..phrase.len()].eq_ignore_ascii_case(phrase)
    };
    let phrases = REFERRING_PHRASES
        .iter()
        .filter(|phrase| text.is_char_boundary(phrase.len()) && text.len() >= phrase.len());
    REFERRING.contains(&&*word) && !is_article && !has_noun
        || phrases.into_iter().any(|phrase| begins(phrase))
}

/// Returns whether a sentence begins with words that refer to something before it.
pub(in super::super) fn is_dependent(text: &str) -> bool {
    refers(text, false) || SUBJECTS.contains(&&*first_word(text))
}

/// Lets a sentence that begins with `That` or `It` require the sentence that it refers to.
pub(super) fn references(pieces: &mut Pieces, parts: &[Part]) {
    let is_before = |at: &usize| !(parts[*at].is_frame || parts[*at].is_row);
    // `[part]`: how many sentences in a row refer to the one before them.
    let mut chain = vec![0; parts.len()];
    for at in 1..parts.len() {
        let is_plain = !parts[at].is_frame && !parts[at].is_row && !parts[at].is_item();
        let Some(before) = Some(at - 1).filter(is_before).filter(|_| is_plain) else { continue };
        if SUBJECTS.contains(&&*first_word(parts[at].bare())) {
            let subject = (at.saturating_sub(SUBJECT_REACH)..at).rev().take_while(is_before);
            let subject =
                subject.into_iter().find(|&other| !SUBJECTS.contains(&&*first_word(parts[other].bare())));
            pieces.require(at, subject.unwrap_or(before));
        } else if refers(parts[at].bare(), parts[at].begins_paragraph) && chain[before] < CHAIN_MAX {
            chain[at] = chain[before] + 1;
            pieces.require(at, before);
        }
    }
}
