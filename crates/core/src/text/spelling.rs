//! Spelling: misspelt words of a question that the texts have spelt otherwise. Knows no dictionary: the texts are one.

use std::collections::BTreeSet;

use super::terms;

/// The shortest word that is looked at, and the shortest in which two letters may differ, in characters.
const WORD_CHARS_MIN: usize = 5;
const LONG_CHARS_MIN: usize = 8;

/// Returns a question with the words of `texts` in place of words that are spelt almost so and that no text has: `tourniqet` becomes
/// `tourniquet`. Returns `None` if there is no such word. Words for which `is_known` holds, names, numbers and other forms of one word
/// (`bolts` for `bolt`) stay as they are.
///
/// ```
/// use thresher_core::text::with_spelling_of;
///
/// let texts = ["Apply the tourniquet above the wound."];
/// let found = with_spelling_of("where does the tourniqet go?", &texts, |word| word != "tourniqet");
/// assert_eq!(found.as_deref(), Some("where does the tourniquet go?"));
/// ```
pub fn with_spelling_of(query: &str, texts: &[&str], is_known: impl Fn(&str) -> bool) -> Option<String> {
    let is_suspect = |word: &str| {
        word.chars().count() >= WORD_CHARS_MIN
            && word.chars().all(|c| c.is_alphabetic() && c.is_lowercase())
            && !is_known(word)
            && !texts.iter().any(|text| text.contains(word))
    };
    let suspects: Vec<_> =
        terms(query, &[]).into_iter().filter(|term| is_suspect(term.bytes.slice(query))).collect();
    if suspects.is_empty() {
        return None;
    }
    let of_texts: BTreeSet<String> = texts
        .iter()
        .flat_map(|text| text.split(|c: char| !c.is_alphabetic()))
        .filter(|word| word.chars().count() >= WORD_CHARS_MIN)
        .map(str::to_lowercase)
        .collect();
    let mut out = query.to_owned();
    let mut is_changed = false;
    for term in suspects.iter().rev() {
        let word = term.bytes.slice(query);
        // The texts can have the word with a capital.
        if of_texts.contains(word) {
            continue;
        }
        if let Some(spelt) = nearest(word, &of_texts) {
            out.replace_range(term.bytes.start..term.bytes.end, spelt);
            is_changed = true;
        }
    }
    is_changed.then_some(out)
}

/// Returns the word that differs in the fewest letters, if they are few enough to be a slip.
fn nearest<'a>(word: &str, words: &'a BTreeSet<String>) -> Option<&'a str> {
    let slips_max = if word.chars().count() >= LONG_CHARS_MIN { 2 } else { 1 };
    let is_near = |other: &&String| {
        other.len().abs_diff(word.len()) <= 2 * slips_max
            && other.chars().next() == word.chars().next()
            && !(other.starts_with(word) || word.starts_with(other.as_str()))
    };
    let distances = words.iter().filter(is_near).map(|other| (strsim::osa_distance(word, other), other));
    let (distance, other) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= slips_max).then_some(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slips_are_spelt_as_the_texts_do() {
        let check = |name: &str, query: &str, text: &str, expect: Option<&str>| {
            let found = with_spelling_of(query, &[text], |word| ["house", "which"].contains(&word));
            assert_eq!(found.as_deref(), expect, "{name}");
        };
        check(
            "a letter too few",
            "is the warrenty free?",
            "The warranty is free.",
            Some("is the warranty free?"),
        );
        check("two letters exchanged", "who recieves it?", "Ann receives it.", Some("who receives it?"));
        check("a capital in the text", "curent in ampere", "Current: 3 A", Some("current in ampere"));
        check("two words", "bleedng tourniqet", "Bleeding. The tourniquet.", Some("bleeding tourniquet"));
        check("a word that a text has", "the warrenty", "The warrenty or warranty", None);
        check("a known word", "which house?", "The hause", None);
        check("another form", "the bolts hold", "The bolt holds", None);
        check("a short word", "the tre", "The tree", None);
        check("another word", "the barrels", "The carrels", None);
        check("a name", "where is Harald?", "Harold is here", None);
        check("too far", "the sonnet", "The sunset", None);
    }
}
