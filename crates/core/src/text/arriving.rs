//! Sentences of a text that is still arriving, and the same of one that is all there.

use super::{SENTENCE_BYTES_MAX, sentences};
use crate::domain::ByteRange;

/// Sentences are looked for whenever so many more bytes are there.
const STEP: usize = 32;

/// What has to follow a sentence before its end is sure: a rule looks that far for the next word.
const LOOK_AHEAD: usize = 48;

/// Divides a text into sentences as it comes. However it is cut into pieces, the sentences are the same: each is the first one of
/// what follows the one before, seen no further than a step and a look ahead beyond it. So a line is never joined with the next one
/// for how wide later lines are, and a code block is cut at its lines.
#[derive(Debug, Clone, Default)]
pub struct Arriving {
    text: String,
    /// Where the first sentence that is not decided begins; white space before it may be included.
    decided: usize,
    /// Steps behind it that were looked at.
    steps: usize,
}

impl Arriving {
    /// All that has come.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Takes a piece; the sentences that it made sure.
    pub fn push(&mut self, piece: &str) -> Vec<ByteRange> {
        self.text.push_str(piece);
        let mut found = Vec::new();
        while let Some(sentence) = self.next() {
            found.push(sentence);
        }
        found
    }

    /// No more comes; the last sentences.
    pub fn finish(&mut self) -> Vec<ByteRange> {
        let rest = ByteRange::new(self.decided, self.text.len());
        self.decided = self.text.len();
        sentences(rest.of(&self.text)).into_iter().map(|sentence| sentence.shifted(rest.start)).collect()
    }

    fn next(&mut self) -> Option<ByteRange> {
        let rest = &self.text[self.decided..];
        self.decided += rest.len() - rest.trim_start().len();
        let rest = &self.text[self.decided..];
        loop {
            let seen = seen_at(self.steps + 1);
            if rest.len() < seen {
                return None;
            }
            self.steps += 1;
            let seen = &rest[..rest.floor_char_boundary(seen)];
            let first = sentences(seen).into_iter().next();
            if let Some(first) = first.filter(|first| first.end + LOOK_AHEAD <= seen.len()) {
                let found = first.shifted(self.decided);
                (self.decided, self.steps) = (found.end, 0);
                return Some(found);
            }
        }
    }
}

/// Bytes that are seen at a step: what is longer than any sentence, as one endless character is, is looked at ever less often.
fn seen_at(step: usize) -> usize {
    const STEPS: usize = SENTENCE_BYTES_MAX / STEP;
    let doublings = u32::try_from(step.saturating_sub(STEPS)).unwrap_or(u32::MAX).min(32);
    ((step.min(STEPS) * STEP) << doublings) + LOOK_AHEAD
}

/// The sentences of a text that is all there, as they would have been found while it arrived.
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
    fn prose_is_divided_as_ever() {
        let text = "Dr. Smith paid $3.5 million for it. He was born in 1998, in St. Louis. Was he? \"Yes,\" he said. It was \
                    the first of many houses that he bought, sold and forgot about.\n\n- One thing.\n- Another one, longer than \
                    the first by far.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert_eq!(arrived(text), sentences(text));
    }

    #[test]
    fn a_sentence_comes_soon_after_its_end() {
        let mut arriving = Arriving::default();
        let text = "The first sentence ends here. ".to_owned() + &"Then more words of it. ".repeat(8);
        let when = text.char_indices().find_map(|(at, c)| {
            let found = arriving.push(c.encode_utf8(&mut [0; 4]));
            (!found.is_empty()).then_some(at + 1)
        });
        let end = "The first sentence ends here.".len();
        assert!(when.expect("it comes") <= end + LOOK_AHEAD + STEP);
    }

    #[test]
    fn an_endless_character_costs_little() {
        let text = format!("a{}", "\u{301}".repeat(100_000));
        assert_eq!(arrived(&text).len(), 1);
    }

    proptest! {
        #[test]
        fn pieces_change_nothing(
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
            // Nothing but white space is left out.
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
