//! Mentions: which texts name the titles of which others. A question of several parts is often answered by a
//! passage that the passage for its first part names by title.

use std::collections::{BTreeSet, HashMap};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::grams::{by_characters, script_of};
use crate::range::ByteRange;

/// The shortest title that is looked for, in bytes. Shorter ones are too often words of another meaning.
const TITLE_BYTES_MIN: usize = 4;

/// The longest title that is looked for, in bytes. It bounds the memory of the automaton.
const TITLE_BYTES_MAX: usize = 128;

/// Which texts name the titles of which others.
#[derive(Debug, Clone, Default)]
pub struct Mentions {
    /// `[title]`: the texts that have the title, ascending. At least one.
    texts_of: Vec<Vec<usize>>,
    /// `[text]`: the titles that the text names, without its own, ascending.
    named_in: Vec<Vec<usize>>,
}

impl Mentions {
    /// Finds in each text the titles of all others that stand there as whole words in the same spelling.
    /// `texts` are pairs of a title and a text. A note in parentheses at the end of a title, such as "(film)",
    /// is not part of the name. The time is linear in the length of all texts, whatever the number of titles.
    pub fn find<'a>(texts: impl Iterator<Item = (Option<&'a str>, &'a str)> + Clone) -> Self {
        let mut number_of = HashMap::new();
        let (mut names, mut texts_of) = (Vec::new(), Vec::new());
        let mut title_of = Vec::new();
        for (text, (title, _)) in texts.clone().enumerate() {
            let name =
                title.map(name).filter(|name| (TITLE_BYTES_MIN..=TITLE_BYTES_MAX).contains(&name.len()));
            title_of.push(name.map(|name| {
                let number = *number_of.entry(name).or_insert(names.len());
                if number == names.len() {
                    names.push(name);
                    texts_of.push(Vec::new());
                }
                texts_of[number].push(text);
                number
            }));
        }
        if names.is_empty() {
            return Self::default();
        }
        let titles = AhoCorasick::builder()
            // The longest name wins: "New York City" does not name "New York". It also keeps the search
            // linear when titles contain each other.
            .match_kind(MatchKind::LeftmostLongest)
            // Built in less time and memory than a DFA.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&names)
            .expect("far fewer states than the automaton can number");
        let named = |((_, text), own): ((_, &str), &Option<usize>)| {
            let found = titles.find_iter(text);
            let whole = found.filter(|found| is_whole(text, ByteRange::new(found.start(), found.end())));
            let others = whole.map(|found| found.pattern().as_usize()).filter(|title| *own != Some(*title));
            others.collect::<BTreeSet<usize>>().into_iter().collect()
        };
        Self { named_in: texts.zip(&title_of).map(named).collect(), texts_of }
    }

    /// Returns whether no text names the title of another.
    pub fn is_empty(&self) -> bool {
        self.named_in.iter().all(Vec::is_empty)
    }

    /// Returns for each title that a text names the texts that have the title, ascending.
    pub fn named_by(&self, text: usize) -> impl Iterator<Item = &[usize]> {
        self.named_in[text].iter().map(|&title| &*self.texts_of[title])
    }
}

/// Returns a title without a note in parentheses at its end.
fn name(title: &str) -> &str {
    let title = title.trim();
    let bare = title.strip_suffix(')').and_then(|before| before.rsplit_once('('));
    bare.map_or(title, |(name, _)| name.trim_end())
}

/// Returns whether a range of `text` begins and ends where words do.
fn is_whole(text: &str, bytes: ByteRange) -> bool {
    let is_one_word = |before: Option<char>, after: Option<char>| {
        before.zip(after).is_some_and(|(before, after)| {
            let continues = |c: char| c.is_alphanumeric() && !by_characters(script_of(c));
            continues(before) && continues(after)
        })
    };
    let found = bytes.slice(text);
    let starts_inside = is_one_word(text[..bytes.start].chars().next_back(), found.chars().next());
    let ends_inside = is_one_word(found.chars().next_back(), text[bytes.end..].chars().next());
    !starts_inside && !ends_inside
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the texts whose titles `text` names. It stands behind one text for each title.
    fn named(titles: &[&str], text: &str) -> Vec<usize> {
        let titled = titles.iter().map(|title| (Some(*title), ""));
        let mentions = Mentions::find(titled.chain([(None, text)]));
        if mentions.is_empty() {
            Vec::new()
        } else {
            mentions.named_by(titles.len()).flatten().copied().collect()
        }
    }

    #[track_caller]
    fn check(name: &str, titles: &[&str], text: &str, expect: &[usize]) {
        assert_eq!(named(titles, text), expect, "{name}");
    }

    #[test]
    fn titles_are_found_as_whole_words() {
        check("no title", &[], "Skerryvore is a lighthouse.", &[]);
        check("a title", &["Dhu Heartach", "Skerryvore"], "Skerryvore is a lighthouse.", &[1]);
        check("a part of a word", &["Wick"], "The Wicklow hills.", &[]);
        check("the end of a word", &["land"], "An island", &[]);
        check("before punctuation", &["Wick"], "He was born in Wick.", &[0]);
        check("possessive", &["Wick"], "Wick's harbour", &[0]);
        check("another case", &["Turkey"], "They ate turkey.", &[]);
        check("a note in parentheses", &["Wick (town)"], "The road to Wick.", &[0]);
        check("only a note", &["(untitled)"], "(untitled)", &[]);
        check("a short title", &["Up"], "Up the hill", &[]);
        check("a long title", &[&"a".repeat(129)], &"a".repeat(129), &[]);
        check("the longer of two titles", &["New York", "New York City"], "In New York City.", &[1]);
        check("several texts of one title", &["Wick", "Tiree", "Wick"], "Wick and Wick", &[0, 2]);
        check("a script without spaces", &["東京タワー", "ロンドン"], "私は東京タワーを見た。", &[0]);
        check("accents", &["Élan Valley"], "dans l'Élan Valley", &[0]);
    }

    #[test]
    fn a_text_does_not_name_its_own_title() {
        let text = "Wick lies north of Tiree.";
        let mentions = Mentions::find(["Wick", "Tiree", "Wick"].into_iter().map(|title| (Some(title), text)));
        assert_eq!(mentions.named_by(0).collect::<Vec<_>>(), [[1]]);
        assert_eq!(mentions.named_by(1).collect::<Vec<_>>(), [[0, 2]]);
    }

    #[test]
    fn titles_that_contain_each_other_are_searched_in_linear_time() {
        let nested: Vec<String> = (4..=128).map(|length| "a".repeat(length)).collect();
        let titles: Vec<&str> = nested.iter().map(String::as_str).collect();
        // It takes some milliseconds; a search at every position for every title would take minutes.
        assert!(named(&titles, &"a".repeat(1 << 20)).is_empty());
    }
}
