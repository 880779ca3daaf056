//! Names: the words of a question that stand in an answer as they are, such as "Lin Wei" or "ord_7718".

use unicode_segmentation::UnicodeSegmentation;

use crate::mentions::is_whole;
use crate::range::ByteRange;

/// The names of a question: its words of at least two characters with a digit, or with a capital letter at the
/// beginning that are not the first word of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    /// Finds the names in `question`. A possessive `'s` is not part of a name.
    pub fn find(question: &'a str) -> Self {
        let is_name = |&(start, word): &(usize, &str)| {
            let before =
                question[..start].trim_end_matches(|c: char| !c.is_alphanumeric() && !".?!".contains(c));
            let begins = before.is_empty() || before.ends_with(['.', '?', '!']);
            let is_capitalized = !begins && word.starts_with(char::is_uppercase);
            word.chars().nth(1).is_some() && (is_capitalized || word.contains(|c: char| c.is_ascii_digit()))
        };
        let names = question.unicode_word_indices().filter(is_name).map(|(_, word)| word);
        Self(names.map(|word| word.strip_suffix("'s").or(word.strip_suffix("’s")).unwrap_or(word)).collect())
    }

    /// Returns whether there are names and every one stands in one of `texts` as a whole word in the same
    /// spelling.
    pub fn are_in(&self, texts: &[&str]) -> bool {
        let is_in = |name: &str, text: &str| {
            let mut found = text.match_indices(name);
            found.any(|(start, _)| is_whole(text, ByteRange::new(start, start + name.len())))
        };
        !self.0.is_empty() && self.0.iter().all(|name| texts.iter().any(|text| is_in(name, text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_digits_and_capitals_after_the_first_word_are_names() {
        let check = |question, expect: &[&str]| assert_eq!(Names::find(question).0, expect, "{question}");
        check("What is the status of Lin Wei's order?", &["Lin", "Wei"]);
        check("When does it open on Sunday?", &["Sunday"]);
        check("Who am I?", &[]);
        check("Is ord_7718 paid?", &["ord_7718"]);
        check("7718: who sent it?", &["7718"]);
        check("когда умер Тесла?", &["Тесла"]);
        check("I have a problem. What is in chapter 2?", &[]);
        check("\"Why?\" asked Ann.", &["Ann"]);
        check("", &[]);
    }

    #[test]
    fn every_name_must_stand_in_the_texts_as_a_word() {
        let check = |question, texts: &[&str], expect| {
            assert_eq!(Names::find(question).are_in(texts), expect, "{question} {texts:?}");
        };
        check("Where is Lin Wei?", &["{\"name\": \"Lin Wei\"}"], true);
        check("Where is Lin Wei?", &["Wei", "Lin came."], true);
        check("Where is Lin Wei?", &["Lin came."], false);
        check("Where is Lin?", &["Linda and Merlin"], false);
        check("Where is it?", &["It is here."], false);
    }
}
