//! References: sentences that begin with a word for something before them, and those that take back what another one says.

use super::{CHAIN_MAX, Part, Pieces};
use crate::lexicon::{Class, has, has_word};

/// How far back the subject of `It` is looked for, in pieces.
const SUBJECT_REACH: usize = 4;

/// The longest sentence that is kept with what it is an exception to, in bytes.
const EXCEPTION_BYTES_MAX: usize = 160;

/// How many words a phrase before the subject of a sentence has.
const LEADING_WORDS: usize = 5;

/// Among how many words at the beginning of a sentence it says that it takes something back.
const TAKING_BACK_WORDS: usize = 8;

/// Returns the first word of a text in lower case.
fn first_word(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '’')).unwrap_or(text.len());
    text[..end].to_lowercase().replace('’', "'")
}

/// Returns whether a sentence begins with a word that refers to the sentence before it. The German article in "Das Wasser" does not.
fn refers(text: &str) -> bool {
    let word = first_word(text);
    let next = text.split_whitespace().nth(1).unwrap_or_default();
    has(Class::Refers, &word) && !(word == "das" && next.starts_with(char::is_uppercase))
        || has(Class::Refers, &format!("{word}_{}", first_word(next)))
}

/// Returns whether the subject of a sentence, or its owner, stands in one before it: "She left.", "His son rebuilt it.", "In 1929
/// she moved."
fn has_subject_before(text: &str) -> bool {
    let word = first_word(text);
    if !has(Class::Leads, &word) {
        return has(Class::Pronoun, &word) || has(Class::Owner, &word);
    }
    // A name in the phrase may be that of the person.
    let mut words = text.split_whitespace().skip(1).take(LEADING_WORDS);
    let first = words.find(|word| word.starts_with(char::is_uppercase) || has(Class::Pronoun, word));
    first.is_some_and(|word| has(Class::Pronoun, word))
}

/// Returns whether a sentence begins with words that refer to something before it.
pub(in super::super) fn is_dependent(text: &str) -> bool {
    refers(text) || has_subject_before(text)
}

/// Lets a sentence that begins with `That` or `It` require the sentence that it refers to, and a sentence require the exception to it
/// that follows.
pub(super) fn references(pieces: &mut Pieces, parts: &[Part]) {
    let is_free = |at: usize| parts[at].is_frame || parts[at].is_row;
    // `[part]`: how many sentences in a row refer to the one before them, and the sentence with the subject of `It`.
    let (mut chain, mut subjects) = (vec![0; parts.len()], vec![None; parts.len()]);
    for at in 1..parts.len() {
        let (before, bare) = (at - 1, parts[at].bare());
        if is_free(at) || is_free(before) || parts[at].is_item() {
            continue;
        }
        let mut referred = None;
        if has_subject_before(bare) {
            subjects[at] =
                if has_subject_before(parts[before].bare()) { subjects[before] } else { Some(before) };
            referred = subjects[at].filter(|subject| at - subject <= SUBJECT_REACH);
        } else if refers(bare) && !parts[at].begins_paragraph {
            referred = Some(before);
        }
        if let Some(referred) = referred.filter(|referred| chain[*referred] < CHAIN_MAX) {
            chain[at] = chain[referred] + 1;
            pieces.need(at, referred);
        }
        if is_exception(bare) && !is_exception(parts[before].bare()) && chain[before] < CHAIN_MAX {
            chain[at] = chain[at].max(chain[before] + 1);
            pieces.need(at, before);
            pieces.need(before, at);
        }
    }
    named_clauses(pieces, parts);
}

/// Lets a clause require a later one that names it and takes a part of it back: "10.3 Clause 10.2 does not apply in the first year.",
/// "Section 3 does not apply to interns." All sentences of the clause require it.
fn named_clauses(pieces: &mut Pieces, parts: &[Part]) {
    const REACH: usize = 12;
    for at in 1..parts.len() {
        let part = &parts[at];
        let begins = part.begins_line || has(Class::Section, &first_word(part.bare()));
        if !begins || part.text.len() > 2 * EXCEPTION_BYTES_MAX || !denies(part.text) {
            continue;
        }
        let named = clauses_named(part.text);
        let names =
            |other: &usize| clause_number(&parts[*other]).is_some_and(|number| named.contains(&number));
        if let Some(other) = (at.saturating_sub(REACH)..at).rev().find(names).filter(|_| !named.is_empty()) {
            pieces.need(at, other);
            let next = (other + 1..at).find(|&next| clause_number(&parts[next]).is_some());
            for of_clause in other..next.unwrap_or(at) {
                pieces.need(of_clause, at);
            }
        }
    }
}

/// Returns the number with which a clause or a heading begins: `10.2`, `6.`, `Section 3`.
fn clause_number<'a>(part: &'a Part) -> Option<&'a str> {
    let mut words = part.bare().split_whitespace().filter(|_| part.begins_line);
    let first = words.next()?;
    let number = if labels_number(first) { words.next()? } else { first };
    let is_marked =
        labels_number(first) || number.starts_with('§') || number.contains('.') || number.ends_with(')');
    Some(bare_word(number)).filter(|number| is_marked && is_clause_number(number))
}

/// Returns the numbers of clauses that a text names: after a word such as `Clause`, or with a full stop inside. The number with which the
/// text begins is its own.
fn clauses_named(text: &str) -> Vec<&str> {
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || ",;".contains(c)).collect();
    let mut named = Vec::new();
    for (before, word) in words.iter().zip(&words[1..]) {
        let number = bare_word(word);
        let is_named = labels_number(before) || word.starts_with('§') || number.contains('.');
        if is_named && is_clause_number(number) {
            named.push(number);
        }
    }
    named
}

/// Returns whether a word stands before the number of a section.
fn labels_number(word: &str) -> bool {
    ["§", "§§"].contains(&word) || has(Class::Section, &bare_word(word).to_lowercase())
}

fn bare_word(word: &str) -> &str {
    word.trim_matches(|c: char| "().:§".contains(c))
}

fn is_clause_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Returns whether a text says that something is not so.
fn denies(text: &str) -> bool {
    has_word(Class::Denies, text) || text.contains("n't ")
}

/// Returns whether a short sentence takes back a part of what the one before it says: "However, there is no service on Mondays.", "They
/// are not due in August.", "This is wrong."
fn is_exception(text: &str) -> bool {
    if text.len() > EXCEPTION_BYTES_MAX {
        return false;
    }
    if has(Class::Exception, &first_word(text)) {
        return denies(text);
    }
    let end = text.match_indices(' ').nth(TAKING_BACK_WORDS - 1).map_or(text.len(), |(end, _)| end);
    let refers = refers(text) || has(Class::Pronoun, &first_word(text));
    refers && (denies(&text[..end]) || has_word(Class::TakesBack, &text[..end]))
}
