//! Scores of answers, as SQuAD's evaluation script computes them (Rajpurkar et al. 2016, arXiv 1606.05250, section 6.1). Chinese and
//! Japanese are compared character by character, because they have no blanks between words.

use std::collections::HashMap;

/// How well an answer agrees with the best of its reference answers, each from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Whether it is a reference answer.
    pub exact: f64,
    /// The harmonic mean of precision and recall of its words.
    pub f1: f64,
    /// Whether it contains a reference answer.
    pub contained: f64,
}

impl Score {
    pub const ZERO: Self = Self { exact: 0.0, f1: 0.0, contained: 0.0 };
}

/// Returns a text in lower case, without punctuation and English articles, with single blanks.
pub fn normalized(text: &str) -> String {
    let is_mark = |sign: char| sign.is_ascii_punctuation() || "、。，！？：；「」『』（）".contains(sign);
    let text: String = text.to_lowercase().chars().filter(|&sign| !is_mark(sign)).collect();
    let words = text.split_whitespace().filter(|word| !["a", "an", "the"].contains(word));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns whether `text` contains one of the `answers`, as words of their own.
pub fn contains_any(text: &str, answers: &[String]) -> bool {
    let text = format!(" {} ", normalized(text));
    let is_in_text = |answer: &String| {
        let answer = normalized(answer);
        let wanted = if answer.chars().any(is_written_without_blanks) {
            answer.clone()
        } else {
            format!(" {answer} ")
        };
        !answer.is_empty() && text.contains(&wanted)
    };
    answers.iter().any(is_in_text)
}

/// Returns the scores of an answer against the best of the reference answers.
pub fn score(answer: &str, references: &[String]) -> Score {
    let own = normalized(answer);
    let (mut is_exact, mut f1) = (false, 0.0_f64);
    for reference in references.iter().map(|reference| normalized(reference)) {
        if !reference.is_empty() {
            is_exact |= own == reference;
            f1 = f1.max(word_f1(&own, &reference));
        }
    }
    let one_if = |is: bool| f64::from(u8::from(is));
    Score { exact: one_if(is_exact), f1, contained: one_if(contains_any(answer, references)) }
}

fn word_f1(own: &str, reference: &str) -> f64 {
    let (own, reference) = (words(own), words(reference));
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in &reference {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in &own {
        if let Some(count) = left.get_mut(&**word).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    if common == 0 { 0.0 } else { 2.0 * f64::from(common) / (own.len() + reference.len()) as f64 }
}

fn words(text: &str) -> Vec<String> {
    let of_word = |word: &str| {
        if word.chars().any(is_written_without_blanks) {
            word.chars().map(String::from).collect()
        } else {
            vec![word.to_owned()]
        }
    };
    text.split_whitespace().flat_map(of_word).collect()
}

fn is_written_without_blanks(sign: char) -> bool {
    matches!(sign, '\u{3040}'..='\u{30FF}' | '\u{3400}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_squad() {
        let check = |answer: &str, references: &[&str], expect: [f64; 3]| {
            let references: Vec<String> = references.iter().map(|&one| one.to_owned()).collect();
            let Score { exact, f1, contained } = score(answer, &references);
            for (found, expect) in [exact, f1, contained].into_iter().zip(expect) {
                assert!((found - expect).abs() < 1e-9, "{answer:?}: {exact} {f1} {contained}");
            }
        };
        check("The Thames.", &["Thames"], [1.0, 1.0, 1.0]);
        check("It flows into the river Thames", &["the Thames"], [0.0, 2.0 / 6.0, 1.0]);
        check("two of two", &["two two two", "of"], [0.0, 2.0 / 3.0, 1.0]);
        check("Thameside", &["Thames"], [0.0, 0.0, 0.0]);
        check("$1,234.50", &["1234.50"], [1.0, 1.0, 1.0]);
        check("他在东京出生。", &["东京"], [0.0, 0.5, 1.0]);
        check("", &["", "Thames"], [0.0, 0.0, 0.0]);
    }
}
