//! Questions: the several things that one question asks for.

use crate::intent::Words;
use crate::lexicon::{Class, has, langs};
use crate::range::ByteRange;
use crate::sentences::{sentences, words};

/// The most questions of one text; the rest of them is not told apart.
const QUESTIONS_MAX: usize = 8;

/// Returns the questions of a text, in order: its sentences that end with a question mark, and within them the parts
/// that begin as a question does. A part without a word of its own, such as "why", is none.
///
/// ```
/// use thresher_text::questions;
///
/// let text = "When does the pool open, and what does a ticket cost?";
/// let found: Vec<&str> = questions(text).into_iter().map(|range| range.slice(text)).collect();
/// assert_eq!(found, ["When does the pool open", "what does a ticket cost?"]);
/// ```
pub fn questions(text: &str) -> Vec<ByteRange> {
    let mut found = Vec::new();
    for sentence in sentences(text).into_iter().filter(|sentence| sentence.slice(text).ends_with(['?', '？']))
    {
        let (part, mut start) = (sentence.slice(text), 0);
        let words = words(part);
        for at in 1..words.len() {
            let Some(end) = end_before(part, &words[..at], words[at]) else { continue };
            if end > start && has_content(&part[start..end]) && has_content(&part[words[at].start..]) {
                found.push(ByteRange::new(start, end).shifted(sentence.start));
                start = words[at].start;
            }
        }
        found.push(ByteRange::new(start, part.len()).shifted(sentence.start));
    }
    found.retain(|range| has_content(range.slice(text)));
    found.truncate(QUESTIONS_MAX);
    found
}

/// Returns where a question ends if `word` begins a further one: before a comma, a semicolon, or an "and" of the same language.
fn end_before(text: &str, before: &[ByteRange], word: ByteRange) -> Option<usize> {
    let word = lower(word.slice(text));
    let starts = langs(Class::Asks, &word).or(langs(Class::Modal, &word));
    let (last, above) = before.split_last()?;
    let is_joined = !langs(Class::And, &lower(last.slice(text))).and(starts).is_empty();
    let end = if is_joined { above.last()?.end } else { last.end };
    let bare = text[..end].trim_end_matches([',', ';']);
    // "the river, which flows through Paris"
    let is_relative = || text[..end].ends_with(',') && has(Class::Relative, &word);
    let is_further = is_joined || bare.len() < end && !is_relative();
    (!starts.is_empty() && is_further).then_some(bare.len())
}

fn lower(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric() && c != '&').to_lowercase()
}

/// Returns whether a text has a word besides those with which questions begin.
fn has_content(text: &str) -> bool {
    !Words::of(text).are_free_or(&[Class::Asks, Class::Modal])
}

#[cfg(test)]
mod tests {
    use super::questions;

    #[test]
    fn one_text_can_ask_for_several_things() {
        for (text, expect) in [
            ("Who built it?", &["Who built it?"][..]),
            ("What does it cost? And when is it open?", &["What does it cost?", "And when is it open?"]),
            (
                "Wann öffnet das Bad und was kostet eine Karte?",
                &["Wann öffnet das Bad", "was kostet eine Karte?"],
            ),
            ("Who wrote Emma and Persuasion?", &["Who wrote Emma and Persuasion?"]),
            (
                "What is the river, which flows through Paris?",
                &["What is the river, which flows through Paris?"],
            ),
            ("Is it open, and why?", &["Is it open, and why?"]),
            ("opening hours", &[]),
        ] {
            let found: Vec<&str> = questions(text).into_iter().map(|range| range.slice(text)).collect();
            assert_eq!(found, expect, "{text}");
        }
    }
}
