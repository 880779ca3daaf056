//! Definitions: which sentences use a term that another one defines, as in contracts: `"Service Hours" means 08:00 to 18:00 on Working Days.`
//! A definition is known by its form, in any language: a term in quotation marks or in bold begins the sentence, or stands in parentheses.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};

/// The longest term, in bytes and words.
const TERM_BYTES_MAX: usize = 60;
const TERM_WORDS_MAX: usize = 5;

/// The longest definition that comes with a sentence, in bytes.
const DEFINITION_BYTES_MAX: usize = 300;

/// A term that more sentences use says who or what the whole text is about, such as "Provider".
const USERS_MAX: usize = 4;

/// The most letters that a use of a term may have at its end in addition: "Working Days".
const ENDING_LETTERS_MAX: usize = 2;

/// The longest text between a bracket and the term that it encloses: "(the "Fee")", "(nachfolgend „Entgelt“)".
const BRACKET_BYTES_MAX: usize = 24;

const OPENING: [char; 8] = ['"', '“', '„', '«', '»', '‹', '‘', '「'];
const CLOSING: [char; 8] = ['"', '”', '“', '»', '«', '›', '’', '」'];

/// Returns pairs of a text that uses a term and the text that defines it, by their indices, in ascending order. Terms that many texts use are left out.
/// The time is linear in the length of all texts.
pub fn uses(texts: &[&str]) -> Vec<(usize, usize)> {
    let (mut stems, mut defined_in): (Vec<&str>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut number_of: HashMap<&str, usize> = HashMap::new();
    for (at, text) in texts.iter().enumerate() {
        let term = if text.len() <= DEFINITION_BYTES_MAX { term(text) } else { None };
        if let Some(term) = term {
            let stem = term.strip_suffix('s').unwrap_or(term);
            number_of.entry(stem).or_insert_with(|| {
                stems.push(stem);
                defined_in.push(at);
                stems.len() - 1
            });
        }
    }
    if stems.is_empty() {
        return Vec::new();
    }
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(&stems)
        .expect("far fewer states than the automaton can number");
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); stems.len()];
    for (at, text) in texts.iter().enumerate() {
        for found in automaton.find_iter(text) {
            let term = found.pattern().as_usize();
            if defined_in[term] != at
                && users[term].last() != Some(&at)
                && is_whole(text, found.start(), found.end())
            {
                users[term].push(at);
            }
        }
    }
    let rare = users.into_iter().zip(defined_in).filter(|(users, _)| users.len() <= USERS_MAX);
    let mut pairs: Vec<(usize, usize)> =
        rare.flat_map(|(users, defined_in)| users.into_iter().map(move |user| (user, defined_in))).collect();
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// Returns the term that a text defines.
fn term(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let start = text.find(|c: char| OPENING.contains(&c) || c == '*')?;
    begun_by_term(&text[..start], &text[start..]).or_else(|| term_in_brackets(text))
}

/// `before` is what stands before the first mark of a text: at most the number of a clause.
fn begun_by_term<'a>(before: &str, text: &'a str) -> Option<&'a str> {
    let is_number = before.len() <= 8 && before.chars().filter(|c| c.is_alphabetic()).count() <= 2;
    let (term, rest) = enclosed(text).filter(|_| is_number)?;
    let next = rest.trim_start().chars().next()?;
    let goes_on = next.is_alphabetic() && !next.is_uppercase() || matches!(next, ':' | '=' | '–' | '—' | '(');
    goes_on.then_some(term)
}

fn term_in_brackets(text: &str) -> Option<&str> {
    text.match_indices('(').find_map(|(open, _)| {
        let inside = &text[open + 1..];
        let start = inside.find(|c: char| OPENING.contains(&c) || c == ')')?;
        let (term, rest) = enclosed(&inside[start..]).filter(|_| start <= BRACKET_BYTES_MAX)?;
        rest.starts_with(')').then_some(term)
    })
}

/// Returns the term in the marks that a text begins with, and what follows.
fn enclosed(text: &str) -> Option<(&str, &str)> {
    let (inside, rest) = match text.strip_prefix("**") {
        Some(text) => text.split_once("**")?,
        None => {
            let text = text.strip_prefix(OPENING)?;
            let end = text.find(CLOSING)?;
            (&text[..end], text[end..].trim_start_matches(CLOSING))
        }
    };
    let term =
        inside.trim_matches(|c: char| c.is_whitespace() || CLOSING.contains(&c) || OPENING.contains(&c));
    let is_term = (3..=TERM_BYTES_MAX).contains(&term.len())
        && term.split_whitespace().nth(TERM_WORDS_MAX).is_none()
        && term.starts_with(|c: char| c.is_alphabetic() && !c.is_lowercase())
        && term.ends_with(|c: char| c.is_alphanumeric() || c == ')');
    is_term.then_some((term, rest))
}

/// Returns whether the text from `start` to `end` begins with a word and ends with one, but for its ending.
fn is_whole(text: &str, start: usize, end: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric();
    let ending = text[end..].chars().take(ENDING_LETTERS_MAX + 1).take_while(|c| c.is_alphabetic()).count();
    !text[..start].ends_with(is_word)
        && ending <= ENDING_LETTERS_MAX
        && !text[end..].starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_known_by_their_form() {
        let check = |text: &str, expect: Option<&str>| assert_eq!(term(text), expect, "{text}");
        check("\"Service Hours\" means 08:00 to 18:00.", Some("Service Hours"));
        check("1.4 “Working Day” means a day other than a Sunday.", Some("Working Day"));
        check("(b) **Fee**: the price of a month.", Some("Fee"));
        check("„Entgelt“ ist der Preis eines Monats.", Some("Entgelt"));
        check("« Jour ouvré » désigne un jour sauf le dimanche.", Some("Jour ouvré"));
        check("“服务时间”是指八点到十八点。", Some("服务时间"));
        check("Lund pays a price each month (the \"Fee\").", Some("Fee"));
        check("Der Preis (nachfolgend „Entgelt“) ist fällig.", Some("Entgelt"));
        check("\"I will come\", said Ann.", None);
        check("\"Yes.\" said Ann.", None);
        check("\"Hello\" Ann said.", None);
        check("She read \"Service Hours\" aloud.", None);
        check("**Note** The price is net.", None);
        check("\"the fee\" is net.", None);
    }

    #[test]
    fn rare_terms_lead_to_their_definitions() {
        let hours = "\"Service Hours\" means 08:00 to 18:00 on Working Days.";
        let day = "\"Working Day\" means a day other than a Sunday.";
        let answer = "Priority 1: one Service Hour.";
        assert_eq!(uses(&[hours, day, answer, "Workings Dayless, Working Daylight"]), [(0, 1), (2, 0)]);
        assert_eq!(uses(&[answer, "Service Hours are long."]), []);
        let often: Vec<&str> = [hours].into_iter().chain([answer; 5]).collect();
        assert_eq!(uses(&often), [], "a term that many texts use");
        let long = format!("{hours} {}", "It is long. ".repeat(40));
        assert_eq!(uses(&[&long, answer]), []);
    }
}
