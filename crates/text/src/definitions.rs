//! Definitions: which sentences use a term that another one defines, as in contracts: `"Service Hours" means 08:00 to 18:00 on Working Days.`
//! A definition is known by its form: a term in quotation marks or in bold begins the sentence, or stands in parentheses.

use std::collections::{BTreeSet, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};

use crate::grams::{by_characters, script_of};

/// The longest term, in bytes and words.
const TERM_BYTES_MAX: usize = 60;
const TERM_WORDS_MAX: usize = 5;

/// The longest definition that comes with a sentence, in bytes, and how many come with one.
const DEFINITION_BYTES_MAX: usize = 300;
const DEFINITIONS_MAX: usize = 2;

/// A term that more sentences use says who or what the whole text is about, such as "Provider".
const USERS_MAX: usize = 4;

/// The most terms of a request. They bound the memory of the automaton.
const TERMS_MAX: usize = 4096;

/// The most letters that a use of a term may have at its end in addition: "Working Days".
const ENDING_LETTERS_MAX: usize = 2;

/// The longest text between a bracket and the term that it encloses: "(the "Fee")", "(nachfolgend „Entgelt“)".
const BRACKET_BYTES_MAX: usize = 24;

const OPENING: [char; 8] = ['"', '“', '„', '«', '»', '‹', '‘', '「'];
const CLOSING: [char; 8] = ['"', '”', '“', '»', '«', '›', '’', '」'];

/// A sentence.
#[derive(Debug, Clone, Copy)]
pub struct Sentence<'a> {
    pub text: &'a str,
    /// The number of the chunk that it stands in. A term that several chunks define means what its own chunk says.
    pub chunk: usize,
}

/// Returns pairs of a sentence that uses a term and the one that defines it, by their indices, in ascending order. Terms that many sentences use
/// are left out. The time is linear in the length of all sentences.
pub fn uses(sentences: &[Sentence]) -> Vec<(usize, usize)> {
    let (mut stems, mut definitions): (Vec<&str>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    let mut number_of: HashMap<&str, usize> = HashMap::new();
    for (at, sentence) in sentences.iter().enumerate() {
        let text = sentence.text;
        let term = if text.len() <= DEFINITION_BYTES_MAX { term(text) } else { None };
        let Some(term) = term else { continue };
        let stem = term.strip_suffix('s').unwrap_or(term);
        let number = *number_of.entry(stem).or_insert(stems.len());
        if number == stems.len() {
            stems.push(stem);
            definitions.push(Vec::new());
        }
        definitions[number].push(at);
    }
    if stems.is_empty() || stems.len() > TERMS_MAX {
        return Vec::new();
    }
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(&stems)
        .expect("far fewer states than the automaton can number");
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); stems.len()];
    for (at, sentence) in sentences.iter().enumerate() {
        for found in automaton.find_iter(sentence.text) {
            let term = found.pattern().as_usize();
            if definitions[term].binary_search(&at).is_err()
                && users[term].last() != Some(&at)
                && is_whole(sentence.text, found.start(), found.end())
            {
                users[term].push(at);
            }
        }
    }
    let mut found: BTreeSet<(usize, usize)> = BTreeSet::new();
    for (users, definitions) in users.iter().zip(&definitions).filter(|(users, _)| users.len() <= USERS_MAX) {
        for &user in users {
            let is_near = |definition: &&usize| sentences[**definition].chunk == sentences[user].chunk;
            let definition = match &definitions[..] {
                [only] => Some(only),
                several => several.iter().find(is_near),
            };
            found.extend(definition.map(|&definition| (user, definition)));
        }
    }
    within_bounds(found)
}

/// Keeps the first pairs of each sentence. The definition of a term in a definition is the last one: chains of them end there.
fn within_bounds(pairs: BTreeSet<(usize, usize)>) -> Vec<(usize, usize)> {
    let users: BTreeSet<usize> = pairs.iter().map(|&(user, _)| user).collect();
    let definitions: BTreeSet<usize> = pairs.iter().map(|&(_, definition)| definition).collect();
    let mut kept: Vec<(usize, usize)> = Vec::with_capacity(pairs.len());
    for (user, definition) in pairs {
        let goes_on = definitions.contains(&user) && users.contains(&definition);
        let count = kept.iter().rev().take_while(|&&(other, _)| other == user).count();
        if !goes_on && count < DEFINITIONS_MAX {
            kept.push((user, definition));
        }
    }
    kept
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
    // What is in bold before a colon is a label, or a speaker.
    let is_sign = !text.starts_with('*') && matches!(next, ':' | '=' | '–' | '—' | '(');
    let goes_on = next.is_alphabetic() && !next.is_uppercase() || is_sign;
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
    let continues = |c: char| c.is_alphanumeric() && !by_characters(script_of(c));
    let ending = text[end..].chars().take(ENDING_LETTERS_MAX + 1).take_while(|&c| continues(c)).count();
    !text[..start].ends_with(continues)
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
        check("(b) **Fee** means the price of a month.", Some("Fee"));
        check("\"Fee\": the price of a month.", Some("Fee"));
        check("- **Price**: 12 euros", None);
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
        let uses_of = |texts: &[(&str, usize)]| {
            let sentences: Vec<Sentence> =
                texts.iter().map(|&(text, chunk)| Sentence { text, chunk }).collect();
            uses(&sentences)
        };
        let hours = ("\"Service Hours\" means 08:00 to 18:00 on Working Days.", 0);
        let day = ("\"Working Day\" means a day other than a Sunday.", 0);
        let answer = ("Priority 1: one Service Hour.", 1);
        assert_eq!(
            uses_of(&[hours, day, answer, ("Workings Dayless, Working Daylight", 1)]),
            [(0, 1), (2, 0)]
        );
        assert_eq!(uses_of(&[answer, ("Service Hours are long.", 0)]), []);
        let often: Vec<(&str, usize)> = [hours].into_iter().chain([answer; 5]).collect();
        assert_eq!(uses_of(&often), [], "a term that many sentences use");
        let long = format!("{} {}", hours.0, "It is long. ".repeat(40));
        assert_eq!(uses_of(&[(&long, 0), answer]), []);
        let (fee, other) = (("\"Fee\" means 5 euros.", 0), ("\"Fee\" means 9 euros.", 1));
        let due = |chunk| ("The Fee is due.", chunk);
        assert_eq!(uses_of(&[fee, other, due(1), due(0), due(2)]), [(2, 1), (3, 0)], "two contracts");
        let chain = [
            "\"Aaa\" means Bbb.",
            "\"Bbb\" means Ccc.",
            "\"Ccc\" means Ddd.",
            "\"Ddd\" means all.",
            "One Aaa.",
        ];
        let chain: Vec<(&str, usize)> = chain.into_iter().map(|text| (text, 0)).collect();
        assert_eq!(uses_of(&chain), [(2, 3), (4, 0)], "a chain ends");
        let chinese = [("“服务时间”是指八点到十八点。", 0), ("在服务时间内回复。", 1)];
        assert_eq!(uses_of(&chinese), [(1, 0)]);
    }
}
