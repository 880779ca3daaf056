//! Streaming segmentation: finds the sentences of a text that arrives in parts, and the same sentences in a
//! complete text.

use std::sync::Arc;

use super::{SENTENCE_BYTES_MAX, sentences};
use crate::domain::ByteRange;

/// The text is segmented again each time this many more bytes have arrived.
const STEP_BYTES: usize = 32;

/// How many bytes must follow a sentence before its end is final, because the rules look that far for the
/// next word.
const LOOKAHEAD_BYTES: usize = 48;

/// Divides a text into sentences while it arrives. The sentences do not depend on how the text is cut into
/// parts: each sentence is the first one in the text after the previous sentence, where at most 32 bytes (a
/// step) and 48 bytes (the lookahead) behind it are considered. Unlike [`sentences`](super::sentences), it
/// therefore never joins two lines because of how wide later lines are, and it cuts a code block at its
/// lines.
#[derive(Debug, Clone, Default)]
pub struct Arriving {
    // Shared, so that what attributes a sentence can hold the text up to it. Appending copies the text only while something does.
    text: Arc<String>,
    /// The byte offset at which the first undecided sentence begins. Whitespace before it may be included.
    decided: usize,
    /// How many steps of text after `decided` have been segmented.
    steps: usize,
}

impl Arriving {
    /// Returns all text that has arrived.
    pub fn text(&self) -> &Arc<String> {
        &self.text
    }

    /// Appends a part of the text. Returns the sentences that are now final, as byte ranges of
    /// [`Self::text`].
    pub fn push(&mut self, part: &str) -> Vec<ByteRange> {
        Arc::make_mut(&mut self.text).push_str(part);
        let mut found = Vec::new();
        while let Some(sentence) = self.next() {
            found.push(sentence);
        }
        found
    }

    /// Ends the text. Returns the remaining sentences, as byte ranges of [`Self::text`].
    pub fn finish(&mut self) -> Vec<ByteRange> {
        let rest = ByteRange::new(self.decided, self.text.len());
        self.decided = self.text.len();
        sentences(rest.slice(&self.text)).into_iter().map(|sentence| sentence.shifted(rest.start)).collect()
    }

    fn next(&mut self) -> Option<ByteRange> {
        let rest = &self.text[self.decided..];
        self.decided += rest.len() - rest.trim_start().len();
        let rest = &self.text[self.decided..];
        loop {
            let prefix_bytes = prefix_bytes(self.steps + 1);
            if rest.len() < prefix_bytes {
                return None;
            }
            self.steps += 1;
            let prefix = &rest[..rest.floor_char_boundary(prefix_bytes)];
            let first = sentences(prefix).into_iter().next();
            if let Some(first) = first.filter(|first| first.end + LOOKAHEAD_BYTES <= prefix.len()) {
                let found = first.shifted(self.decided);
                (self.decided, self.steps) = (found.end, 0);
                return Some(found);
            }
        }
    }
}

/// Returns how many bytes of the undecided text are segmented at a step. Beyond the longest sentence, the
/// number doubles with each step, so that a text with a single endless grapheme cluster is segmented ever
/// less often.
fn prefix_bytes(step: usize) -> usize {
    const STEPS: usize = SENTENCE_BYTES_MAX / STEP_BYTES;
    let doublings = u32::try_from(step.saturating_sub(STEPS)).unwrap_or(u32::MAX).min(32);
    ((step.min(STEPS) * STEP_BYTES) << doublings) + LOOKAHEAD_BYTES
}

/// Returns the sentences that [`Arriving`] finds in a complete text.
///
/// ```
/// use thresher_core::text::{Arriving, arrived};
///
/// let text = "The tide rises at noon. It falls by evening.";
/// let (mut arriving, mut found) = (Arriving::default(), Vec::new());
/// for part in text.split_inclusive(' ') {
///     found.extend(arriving.push(part));
/// }
/// found.extend(arriving.finish());
/// assert_eq!(found, arrived(text));
/// assert_eq!(found[0].slice(text), "The tide rises at noon.");
/// ```
pub fn arrived(text: &str) -> Vec<ByteRange> {
    let mut arriving = Arriving::default();
    let mut found = arriving.push(text);
    found.extend(arriving.finish());
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prose_gives_the_same_sentences_as_without_streaming() {
        let text = "Dr. Smith paid $3.5 million for it. He was born in 1998, in St. Louis. Was he? \"Yes,\" he said. It was \
                    the first of many houses that he bought, sold and forgot about.\n\n- One thing.\n- Another one, longer than \
                    the first by far.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(arrived(text), sentences(text));
    }

    #[test]
    fn a_sentence_is_returned_soon_after_its_end() {
        let mut arriving = Arriving::default();
        let text = "The first sentence ends here. ".to_owned() + &"Then more words of it. ".repeat(8);
        let when = text.char_indices().find_map(|(at, c)| {
            let found = arriving.push(c.encode_utf8(&mut [0; 4]));
            (!found.is_empty()).then_some(at + 1)
        });
        let end = "The first sentence ends here.".len();
        assert!(when.expect("the first sentence is returned") <= end + LOOKAHEAD_BYTES + STEP_BYTES);
    }

    #[test]
    fn an_endless_grapheme_cluster_takes_little_time() {
        let text = format!("a{}", "\u{301}".repeat(100_000));
        assert_eq!(arrived(&text).len(), 1);
    }

    proptest! {
        #[test]
        fn sentences_do_not_depend_on_the_parts(
            text in "([A-Za-z]{1,8}[.!?]? |\\n|- |```\n|[0-9]{1,4}\\.? |é。|“|[)\\]*]|\u{1F600}){0,120}",
            cuts in proptest::collection::vec(0..600_usize, 0..12),
        ) {
            let whole = arrived(&text);
            let mut cuts: Vec<usize> = cuts.iter().map(|&cut| text.floor_char_boundary(cut)).collect();
            cuts.sort_unstable();
            let (mut arriving, mut found, mut from) = (Arriving::default(), Vec::new(), 0);
            for cut in cuts.into_iter().chain([text.len()]) {
                found.extend(arriving.push(&text[from..cut]));
                from = cut;
            }
            found.extend(arriving.finish());
            prop_assert_eq!(&found, &whole);
            // The text between sentences is whitespace.
            let mut at = 0;
            for sentence in &whole {
                prop_assert!(text[at..sentence.start].trim().is_empty());
                prop_assert!(!sentence.is_empty());
                at = sentence.end;
            }
            prop_assert!(text[at..].trim().is_empty());
        }
    }
}
