//! The sentences of a complete text, found as in a text that arrives in parts.

use super::{SENTENCE_BYTES_MAX, sentences};
use crate::domain::ByteRange;

/// How much further the text is segmented at each step.
const STEP_BYTES: usize = 32;

/// How many bytes must follow a sentence before its end is final, because the rules look that far for the
/// next word.
const LOOKAHEAD_BYTES: usize = 48;

/// Divides a text into sentences, each of which is the first one in the text after the previous sentence, where
/// at most 32 bytes (a step) and 48 bytes (the lookahead) behind it are considered. Unlike
/// [`sentences`](super::sentences), it therefore never joins two lines because of how wide later lines are, and
/// it cuts a code block at its lines. These are the sentences of [`Relayed`](super::Relayed), except where that
/// looks less far. Each is found when it is asked for.
///
/// ```
/// use thresher_core::text::arrived;
///
/// let text = "The tide rises at noon. It falls by evening.";
/// let first = arrived(text).next().expect("two sentences");
/// assert_eq!(first.slice(text), "The tide rises at noon.");
/// ```
pub fn arrived(text: &str) -> impl Iterator<Item = ByteRange> {
    let mut at = 0;
    // The sentences of the end of the text, where the last ones are not certain.
    let mut last: Option<std::vec::IntoIter<ByteRange>> = None;
    std::iter::from_fn(move || {
        if last.is_none() {
            if let Some(sentence) = first_from(text, at) {
                at = sentence.end;
                return Some(sentence);
            }
            last = Some(sentences(&text[at..]).into_iter());
        }
        last.as_mut()?.next().map(|sentence| sentence.shifted(at))
    })
}

/// Returns the first sentence after `from`; `None`: the text may end before it is certain.
fn first_from(text: &str, from: usize) -> Option<ByteRange> {
    let rest = text[from..].trim_start();
    let start = text.len() - rest.len();
    for step in 1.. {
        let bytes = prefix_bytes(step);
        if rest.len() < bytes {
            break;
        }
        let prefix = &rest[..rest.floor_char_boundary(bytes)];
        let first = sentences(prefix).into_iter().next();
        if let Some(first) = first.filter(|first| first.end + LOOKAHEAD_BYTES <= prefix.len()) {
            return Some(first.shifted(start));
        }
    }
    None
}

/// Returns how many bytes of the undecided text are segmented at a step. Beyond the longest sentence, the
/// number doubles with each step, so that a text with a single endless grapheme cluster is segmented ever
/// less often.
fn prefix_bytes(step: usize) -> usize {
    const STEPS: usize = SENTENCE_BYTES_MAX / STEP_BYTES;
    let doublings = u32::try_from(step.saturating_sub(STEPS)).unwrap_or(u32::MAX).min(32);
    ((step.min(STEPS) * STEP_BYTES) << doublings) + LOOKAHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prose_gives_the_same_sentences_as_a_look_at_the_whole_text() {
        let text = "Dr. Smith paid $3.5 million for it. He was born in 1998, in St. Louis. Was he? \"Yes,\" he said. It was \
                    the first of many houses that he bought, sold and forgot about.\n\n- One thing.\n- Another one, longer than \
                    the first by far.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(arrived(text).collect::<Vec<_>>(), sentences(text));
    }

    #[test]
    fn an_endless_grapheme_cluster_takes_little_time() {
        let text = format!("a{}", "\u{301}".repeat(100_000));
        assert_eq!(arrived(&text).count(), 1);
    }

    proptest! {
        #[test]
        fn only_white_space_lies_between_sentences(
            text in "([A-Za-z]{1,8}[.!?]? |\\n|- |```\n|[0-9]{1,4}\\.? |é。|“|[)\\]*]|\u{1F600}){0,120}",
        ) {
            let mut at = 0;
            for sentence in arrived(&text) {
                prop_assert!(text[at..sentence.start].trim().is_empty());
                prop_assert!(!sentence.is_empty());
                at = sentence.end;
            }
            prop_assert!(text[at..].trim().is_empty());
        }
    }
}
