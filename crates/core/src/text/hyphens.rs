//! Hyphenation: words that the end of a line divides, as in `decom-⏎missioned`. They are one word where words are compared; kept text
//! stays as it is.

use std::borrow::Cow;

use crate::domain::ByteRange;
use thresher_text::lexicon::{Class, has, is};

#[derive(Debug, Clone)]
pub struct Joined<'a> {
    /// The text without the hyphens and line ends inside words.
    pub text: Cow<'a, str>,
    /// Where something was removed in `text`, ascending, and how many bytes were removed up to and including there.
    cuts: Vec<(usize, usize)>,
}

impl Joined<'_> {
    /// Returns the range of the original text for one of the joined text.
    pub fn original(&self, range: ByteRange) -> ByteRange {
        let removed = |cuts: usize| cuts.checked_sub(1).map_or(0, |last| self.cuts[last].1);
        let before_start = removed(self.cuts.partition_point(|(at, _)| *at <= range.start));
        let before_end = removed(self.cuts.partition_point(|(at, _)| *at < range.end));
        ByteRange::new(range.start + before_start, (range.end + before_end).max(range.start + before_start))
    }
}

/// Joins the words of a text that the ends of lines divide.
///
/// ```
/// use thresher_core::text::joined_words;
///
/// assert_eq!(joined_words("It was decom-\n  missioned.").text, "It was decommissioned.");
/// assert_eq!(joined_words("A well-\nknown place.").text, "A well-\nknown place.");
/// ```
pub fn joined_words(text: &str) -> Joined<'_> {
    let (mut joined, mut cuts) = (String::new(), Vec::new());
    let (mut copied, mut removed) = (0, 0);
    for (at, _) in text.match_indices('-') {
        let Some(end) = break_end(text, at) else { continue };
        joined.push_str(&text[copied..at]);
        removed += end - at;
        cuts.push((joined.len(), removed));
        copied = end;
    }
    if cuts.is_empty() {
        return Joined { text: Cow::Borrowed(text), cuts };
    }
    joined.push_str(&text[copied..]);
    Joined { text: Cow::Owned(joined), cuts }
}

/// Returns where the second half of a word begins whose first half ends with the hyphen at an offset; `None` if no word is divided
/// there.
pub(super) fn break_end(text: &str, hyphen: usize) -> Option<usize> {
    let line = text.get(hyphen..)?.strip_prefix('-')?.trim_start_matches('\r').strip_prefix('\n')?;
    let rest = line.trim_start_matches([' ', '\t']);
    let before = &text[..hyphen];
    let first = &before[before.trim_end_matches(char::is_alphabetic).len()..];
    let second = &rest[..rest.len() - rest.trim_start_matches(char::is_alphabetic).len()];
    let is_divided = first.chars().count() >= 2
        && second.chars().count() >= 2
        && first.ends_with(char::is_lowercase)
        && second.starts_with(char::is_lowercase)
        // `well-known` is no divided word, wherever its line ends, and "Ein- und Ausgang" has none.
        && !is(Class::Compound, first)
        && !has(Class::Joins, second);
    is_divided.then(|| text.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_joined_text_are_found_in_the_original() {
        let text = "a decom-\nmissioned mill, trans-\n  ported";
        let joined = joined_words(text);
        assert_eq!(joined.text, "a decommissioned mill, transported");
        let check = |part: &str, expect: &str| {
            let at = joined.text.find(part).expect("a part");
            assert_eq!(joined.original(ByteRange::new(at, at + part.len())).slice(text), expect);
        };
        check("decom", "decom");
        check("missioned", "missioned");
        check("decommissioned", "decom-\nmissioned");
        check("ported", "ported");
        check("mill", "mill");
        assert_eq!(joined_words("9-\nmonth, A-\nb, e-\nmail, -\nx").cuts, []);
    }
}
