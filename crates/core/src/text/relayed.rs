//! Streaming segmentation for a text that is sent on while it arrives: finds the ends of sentences early, and
//! says what can be sent before the next end is known.

use super::{SENTENCE_BYTES_MAX, sentences};

/// How many bytes after a stop are read at most before it is decided whether a sentence ends there.
const LOOKAHEAD_BYTES: usize = 48;

/// How many stops inside one sentence are examined. Each takes time in proportion to the length of the
/// sentence; a sentence with more stops ends at its longest length.
const STOPS_MAX: usize = 64;

const FENCE: &str = "```";

/// The characters behind which a sentence may end.
const STOPS: [char; 20] =
    ['\n', '.', '!', '?', '…', '‼', '⁇', '⁈', '⁉', '。', '｡', '．', '！', '？', '؟', '۔', '।', '॥', '።', '။'];

/// Divides a text that is sent on while it arrives. Text is held back only from a stop, such as a full stop or
/// a line break, until the next word is complete: then it is known whether a sentence ends at the stop.
///
/// The sentences are those of [`arrived`](super::arrived), except where that looks further ahead than the next
/// word. A fenced code block is not held back and not divided while it arrives.
///
/// ```
/// use thresher_core::text::{Relayed, RelayedPiece};
///
/// let mut relayed = Relayed::default();
/// let text = |text: &str| RelayedPiece::Text(text.to_owned());
/// assert_eq!(relayed.push("The tide is at noon. The"), [text("The tide is at noon.")]);
/// let end = RelayedPiece::End { sentence: "The tide is at noon.".to_owned(), is_exact: true };
/// assert_eq!(relayed.push(" moon is"), [end, text(" "), text("The moon is")]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Relayed {
    /// The open sentence, and the text after it.
    text: String,
    /// How many bytes of `text` have been returned.
    returned: usize,
    /// No sentence ends at a stop before this offset of `text`.
    examined: usize,
    /// How many stops of the open sentence have been examined.
    stop_count: usize,
    /// Whether the open sentence begins inside a fenced code block.
    is_in_code: bool,
}

/// A piece of a text that is sent on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayedPiece {
    /// The next text. White space between two sentences is a piece of its own.
    Text(String),
    End {
        /// The sentence, without white space around it.
        sentence: String,
        /// Whether nothing of the next sentence has been returned yet.
        is_exact: bool,
    },
}

impl Relayed {
    /// Returns the bytes that have arrived and belong to a sentence that has not ended, or have not been
    /// returned.
    pub fn held_bytes(&self) -> usize {
        self.text.len()
    }

    /// Appends a part of the text. Returns the pieces that can be sent now.
    pub fn push(&mut self, part: &str) -> Vec<RelayedPiece> {
        self.text.push_str(part);
        let (mut pieces, mut start) = (Vec::new(), 0);
        let held_from = loop {
            start = self.skip_space(start, &mut pieces);
            match self.next_end(start) {
                Ok(end) => start = self.end(start, end, &mut pieces),
                Err(held_from) => break held_from,
            }
        };
        self.take(held_from, &mut pieces);
        self.text.drain(..start);
        self.returned -= start;
        self.examined = self.examined.saturating_sub(start);
        pieces
    }

    /// Marks the first `bytes` bytes of what was passed to [`Self::push`] last as sent already: they are not
    /// returned. Must be called before [`Self::push`].
    pub fn skip(&mut self, bytes: usize) {
        self.returned += bytes;
    }

    /// Ends the text. Returns the remaining pieces.
    pub fn finish(&mut self) -> Vec<RelayedPiece> {
        let mut pieces = Vec::new();
        let text_bytes = self.text.len();
        let mut at = 0;
        for sentence in sentences(&self.text) {
            at = self.skip_space(at, &mut pieces);
            at = self.end(at, sentence.end, &mut pieces);
        }
        self.take(text_bytes, &mut pieces);
        *self = Self::default();
        pieces
    }

    /// Returns the text that was held back, if there is any. The next sentence may then begin in the same text.
    pub fn flush(&mut self) -> Option<String> {
        let rest = self.text.get(self.returned..).filter(|rest| !rest.is_empty())?.to_owned();
        self.returned = self.text.len();
        Some(rest)
    }

    fn take(&mut self, to: usize, pieces: &mut Vec<RelayedPiece>) {
        if self.returned < to {
            pieces.push(RelayedPiece::Text(self.text[self.returned..to].to_owned()));
            self.returned = to;
        }
    }

    /// Returns where the next sentence begins, after the white space at `start`.
    fn skip_space(&mut self, start: usize, pieces: &mut Vec<RelayedPiece>) -> usize {
        let rest = &self.text[start..];
        let begins = start + (rest.len() - rest.trim_start().len());
        self.take(begins, pieces);
        begins
    }

    fn end(&mut self, start: usize, end: usize, pieces: &mut Vec<RelayedPiece>) -> usize {
        self.take(end, pieces);
        let is_exact = self.text[end..self.returned.max(end)].trim().is_empty();
        pieces.push(RelayedPiece::End { sentence: self.text[start..end].to_owned(), is_exact });
        let fences = self.text[start..end].lines().filter(|line| is_fence(line)).count();
        self.is_in_code ^= fences % 2 == 1;
        (self.examined, self.stop_count) = (end, 0);
        end
    }

    /// Returns where the sentence that begins at `start` ends, or the offset from which text has to be held
    /// back until more has arrived.
    fn next_end(&mut self, start: usize) -> Result<usize, usize> {
        let rest = &self.text[start..];
        let first_end = |to: usize| {
            let prefix = rest[..rest.floor_char_boundary(to)].trim_end();
            let first = sentences(prefix).first().map(|sentence| sentence.end);
            first.filter(|&end| end < prefix.len())
        };
        loop {
            let from = self.examined.saturating_sub(start);
            let near = &rest[..rest.floor_char_boundary(SENTENCE_BYTES_MAX)];
            let stop =
                if self.stop_count < STOPS_MAX { next_stop(near, from, self.is_in_code) } else { None };
            let Some(stop) = stop else {
                let longest = SENTENCE_BYTES_MAX + LOOKAHEAD_BYTES;
                let end = if rest.len() < longest { None } else { first_end(longest) };
                return end.map(|end| start + end).ok_or(self.text.len());
            };
            let Some((word, word_end)) = next_word(rest, stop) else { return Err(start + stop) };
            if let Some(end) = first_end(word_end) {
                return Ok(start + end);
            }
            self.examined = start + stop.max(word);
            self.stop_count += 1;
        }
    }
}

/// Returns the offset behind the next stop after `from` at which a sentence may end. `is_in_code` says whether
/// the text begins inside a fenced code block.
fn next_stop(text: &str, from: usize, mut is_in_code: bool) -> Option<usize> {
    let (mut chars, mut begins_line) = (text.char_indices().peekable(), true);
    while let Some((at, c)) = chars.next() {
        is_in_code ^= begins_line && is_fence(&text[at..]);
        begins_line = c == '\n';
        let end = at + c.len_utf8();
        // Inside a word, such as a number or an address.
        let is_in_word = c != '\n' && chars.peek().is_some_and(|(_, next)| next.is_ascii_alphanumeric());
        if end > from && STOPS.contains(&c) && !is_in_word && !is_in_code {
            return Some(end);
        }
    }
    None
}

fn is_fence(line: &str) -> bool {
    line.trim_start_matches([' ', '\t']).starts_with(FENCE)
}

/// Returns where the next word with a letter or a digit at or after `from` begins and ends; `None`: it may not
/// be complete yet.
fn next_word(text: &str, from: usize) -> Option<(usize, usize)> {
    let far = text.floor_char_boundary(from + LOOKAHEAD_BYTES);
    let near = &text[from..far];
    let word = near.find(char::is_alphanumeric).map(|at| from + at);
    let end = word.and_then(|word| Some(word + text[word..far].find(char::is_whitespace)?));
    match (word, end) {
        (Some(word), Some(end)) => Some((word, end)),
        _ => (text.len() >= from + LOOKAHEAD_BYTES).then_some((from, far)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::arrived;

    /// What is returned of a text that arrives in these parts: the text, the sentences, and for each whether its
    /// end is exact.
    fn relayed<'a>(parts: impl IntoIterator<Item = &'a str>) -> (String, Vec<String>, Vec<bool>) {
        let (mut relayed, mut pieces) = (Relayed::default(), Vec::new());
        for part in parts {
            pieces.extend(relayed.push(part));
        }
        pieces.extend(relayed.finish());
        let (mut text, mut ends, mut exact) = (String::new(), Vec::new(), Vec::new());
        for piece in pieces {
            match piece {
                RelayedPiece::Text(more) => text.push_str(&more),
                RelayedPiece::End { sentence, is_exact } => {
                    assert!(!is_exact || text.trim_end().ends_with(&*sentence), "{text:?}, {sentence:?}");
                    ends.push(sentence);
                    exact.push(is_exact);
                }
            }
        }
        (text, ends, exact)
    }

    fn chars(text: &str) -> Vec<&str> {
        text.split("").collect()
    }

    const PROSE: &str = "Dr. Smith paid $3.5 million for it. He was born in 1998, in St. Louis. Was he? \"Yes,\" he said. See \
        example.com or [1]. It was the first of many.\n\n1. One thing.\n2. Another one, longer than the first by far. 😀 So \
        it’s done!\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n水は冷たい。月は遠い。";

    #[test]
    fn prose_gives_the_same_sentences_as_a_whole_text() {
        let expect: Vec<&str> = arrived(PROSE).map(|sentence| sentence.slice(PROSE)).collect();
        for parts in [chars(PROSE), PROSE.split_inclusive(' ').collect(), vec![PROSE]] {
            let (text, ends, exact) = relayed(parts);
            assert_eq!((&*text, &ends), (PROSE, &expect.iter().map(|&end| end.to_owned()).collect()));
            assert!(exact.iter().all(|&exact| exact), "{exact:?}");
        }
    }

    #[test]
    fn only_the_next_word_is_held_back() {
        let (mut relayed, mut arrived, mut sent) = (Relayed::default(), 0, 0);
        for part in
            "The tide is at noon today. Everybody waits for it, as always. It is late.".split_inclusive(' ')
        {
            arrived += part.len();
            for piece in relayed.push(part) {
                sent += if let RelayedPiece::Text(text) = piece { text.len() } else { 0 };
            }
            assert!(arrived - sent <= " Everybody ".len(), "{arrived}, {sent}");
        }
    }

    #[test]
    fn a_code_block_is_not_divided_while_it_arrives() {
        let code = "Do this:\n\n```sh\nls .\ncd /tmp.\n\nls.\n```\n\nThen go on. It works.";
        let (mut relayed, mut returned) = (Relayed::default(), Vec::new());
        for part in code.split_inclusive('\n') {
            returned.push(relayed.push(part));
        }
        let ends = |pieces: &[RelayedPiece]| {
            pieces.iter().filter(|piece| matches!(piece, RelayedPiece::End { .. })).count()
        };
        assert!(returned[3..7].iter().all(|pieces| ends(pieces) == 0), "{returned:?}");
        let (text, ends, _) = self::relayed(chars(code));
        assert_eq!((&*text, &*ends[ends.len() - 2]), (code, "Then go on."));
    }

    #[test]
    fn a_text_without_stops_is_divided_at_the_longest_length() {
        let text = "word ".repeat(2_000);
        let (all, ends, _) = relayed(text.split_inclusive(' '));
        assert_eq!(all, text);
        assert!(ends.len() >= text.len() / SENTENCE_BYTES_MAX, "{}", ends.len());
        assert!(ends.iter().all(|end| end.len() <= SENTENCE_BYTES_MAX));
        let mut relayed = Relayed::default();
        for part in text.split_inclusive(' ') {
            relayed.push(part);
            assert!(relayed.held_bytes() <= SENTENCE_BYTES_MAX + LOOKAHEAD_BYTES + part.len());
        }
    }

    #[test]
    fn text_that_is_flushed_is_returned_once() {
        let mut relayed = Relayed::default();
        assert_eq!(relayed.push("It is. Wa").len(), 1);
        assert_eq!(relayed.flush().as_deref(), Some(" Wa"));
        assert_eq!(relayed.flush(), None);
        let end = |sentence: &str, is_exact| RelayedPiece::End { sentence: sentence.to_owned(), is_exact };
        let text = |text: &str| RelayedPiece::Text(text.to_owned());
        assert_eq!(relayed.push("s it. "), [end("It is.", false), text("s it.")]);
        assert_eq!(relayed.finish(), [end("Was it.", true), text(" ")]);
    }

    #[test]
    fn text_that_was_sent_before_is_not_returned() {
        let mut relayed = Relayed::default();
        relayed.skip("It is. So".len());
        let expect = RelayedPiece::End { sentence: "It is.".to_owned(), is_exact: false };
        assert_eq!(relayed.push("It is. So"), []);
        assert_eq!(relayed.push(" it"), [expect, RelayedPiece::Text(" it".to_owned())]);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(
            text in "([A-Za-z]{1,8}[.!?]? |\\n|- |```\n|[0-9]{1,4}\\.? |é。|“|[)\\]*]|\u{1F600}|\u{301}){0,120}",
            cuts in proptest::collection::vec(0..600_usize, 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|&cut| text.floor_char_boundary(cut)).collect();
            cuts.sort_unstable();
            let mut from = 0;
            let parts: Vec<&str> = cuts.into_iter().chain([text.len()]).map(|cut| &text[std::mem::replace(&mut from, cut)..cut]).collect();
            let (found, ends, _) = relayed(parts);
            prop_assert_eq!(&found, &text);
            let words = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(words(&ends.concat()), words(&text));
        }
    }
}
