//! Questions: the several things that one question asks for.

use super::{sentences, terms};
use crate::domain::ByteRange;

/// Words with which a question begins. After a comma or `and`, they begin a further one.
const STARTS: [&str; 44] = [
    "are", "can", "could", "darf", "dürfen", "did", "do", "does", "gibt", "had", "has", "have", "how", "is",
    "ist", "kann", "können", "kostet", "may", "must", "muss", "müssen", "should", "sind", "wann", "warum",
    "was", "welche", "welcher", "welches", "were", "what", "when", "where", "which", "who", "why", "wie",
    "will", "wo", "would", "wer", "woher", "wohin",
];

/// What divides questions in one sentence.
const SEPARATORS: [&str; 8] = [", and ", "; and ", ", und ", "; ", ", ", " and ", " und ", " & "];

const QUESTIONS_MAX: usize = 8;

/// Returns the questions of a text, in order: its sentences that end with a question mark, and within them the parts
/// that begin as a question does. A part without a word of its own, such as "why", is none.
///
/// ```
/// use thresher_core::text::questions;
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
        for at in 0..part.len() {
            let Some(rest) = part.get(at..).filter(|_| at > start) else { continue };
            let Some(separator) = SEPARATORS.iter().find(|separator| rest.starts_with(**separator)) else {
                continue;
            };
            let next = at + separator.len();
            let is_relative =
                separator.starts_with(", ") && separator.len() == 2 && is_relative(&part[next..]);
            if begins(&part[next..])
                && !is_relative
                && has_words(&part[start..at])
                && has_words(&part[next..])
            {
                found.push(ByteRange::new(start, at).shifted(sentence.start));
                start = next;
            }
        }
        found.push(ByteRange::new(start, part.len()).shifted(sentence.start));
    }
    found.retain(|range| has_words(range.slice(text)));
    found.truncate(QUESTIONS_MAX);
    found
}

fn begins(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default().to_lowercase();
    STARTS.contains(&&*word)
}

/// Returns whether a text after a comma begins as a relative clause does: "the river, which flows through Paris".
fn is_relative(text: &str) -> bool {
    ["which ", "who ", "where ", "was ", "when ", "wo ", "wer "].iter().any(|word| text.starts_with(word))
}

/// Returns whether a text has a word besides those with which questions begin.
fn has_words(text: &str) -> bool {
    terms(text, &[]).iter().any(|term| !term.is_function_word() && !STARTS.contains(&&*term.folded))
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
