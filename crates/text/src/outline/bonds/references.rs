//! References: sentences that begin with a word for something before them.

use super::{CHAIN_MAX, Part, Pieces};

/// The longest first word that refers to something, in bytes.
const FIRST_WORD_BYTES_MAX: usize = 12;

/// How far back the subject of `It` is looked for, in pieces.
pub(super) const SUBJECT_REACH: usize = 4;

/// First words that refer to the sentence before, and those that refer to a subject further up.
const REFERRING: [&str; 14] = [
    "that",
    "this",
    "these",
    "those",
    "such",
    "then",
    "otherwise",
    "dann",
    "das",
    "dies",
    "diese",
    "dieser",
    "dieses",
    "sonst",
];
const REFERRING_PHRASES: [&str; 9] = [
    "after that",
    "because of that",
    "before that",
    "bis dahin",
    "for that",
    "for this",
    "in that case",
    "in this case",
    "until then",
];
const SUBJECTS: [&str; 10] = ["it", "they", "it's", "he", "she", "er", "sie", "elle", "elles", "ils"];
/// Words for the owner of a thing, who mostly stands in the sentence before.
const OWNERS: [&str; 2] = ["its", "their"];
const PERSONS: [&str; 4] = ["he", "she", "his", "her"];

/// How far back the person is looked for whom `He` means, in pieces.
const PERSON_REACH: usize = 6;

/// First words that are no name, though a capital letter begins them.
const NO_NAMES: [&str; 28] = [
    "a", "after", "all", "an", "as", "at", "before", "both", "by", "during", "each", "for", "from", "in",
    "its", "later", "many", "most", "no", "of", "on", "one", "some", "the", "there", "this", "to", "with",
];

/// Words that may begin a phrase before the subject, and how many words after them are looked at: "In 1929 she left."
const BEFORE_SUBJECT: [&str; 9] = ["after", "at", "before", "by", "during", "from", "in", "on", "until"];
const BEFORE_SUBJECT_WORDS_MAX: usize = 5;

/// Words between which and a pronoun another subject stands: "After lunch the doctor said she", "In 1903 a man who".
const OTHER_SUBJECT: [&str; 12] =
    ["and", "because", "had", "has", "is", "said", "says", "that", "thought", "told", "was", "who"];

/// The longest sentence that is kept with what it is an exception to, in bytes.
const EXCEPTION_BYTES_MAX: usize = 160;

/// First words of an exception, and words that take something back.
const EXCEPTIONS: [&str; 17] = [
    "aber",
    "allerdings",
    "ausgenommen",
    "ausnahme",
    "ausnahmen",
    "but",
    "except",
    "exception",
    "exceptions",
    "however",
    "jedoch",
    "nevertheless",
    "notwithstanding",
    "only",
    "pero",
    "toutefois",
    "unless",
];
const DENIALS: [&str; 18] = [
    "cannot",
    "except",
    "höchstens",
    "kein",
    "keine",
    "keinen",
    "never",
    "nicht",
    "nie",
    "no",
    "none",
    "not",
    "notwithstanding",
    "nur",
    "only",
    "pas",
    "sin",
    "unless",
];

/// Words that take back what the sentence before says, and how far from the beginning they stand, in words.
const CORRECTIONS: [&str; 18] = [
    "abandoned",
    "abolished",
    "cancelled",
    "canceled",
    "declined",
    "denied",
    "discontinued",
    "false",
    "incorrect",
    "obsolete",
    "refused",
    "rejected",
    "repealed",
    "retracted",
    "revoked",
    "untrue",
    "withdrawn",
    "wrong",
];
const CORRECTION_WORDS_MAX: usize = 6;

pub(super) fn first_word(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '’')).unwrap_or(text.len());
    // No word that is looked for is longer.
    if end > FIRST_WORD_BYTES_MAX { String::new() } else { text[..end].to_lowercase().replace('’', "'") }
}

/// Returns whether a sentence begins with words that refer to the sentence before it. "This agreement" at the start of a paragraph
/// does not, nor does the German article in "Das Wasser".
fn refers(text: &str, begins_paragraph: bool) -> bool {
    let word = first_word(text);
    // The words that are looked for are ASCII, so their length is that in the text.
    let next = text.get(word.len()..).unwrap_or_default().trim_start();
    let is_article = word == "das" && next.starts_with(char::is_uppercase);
    let has_noun =
        begins_paragraph && ["this", "these", "those", "such", "diese", "dieser", "dieses"].contains(&&*word);
    let begins = |phrase: &str| {
        let is_whole = !text[phrase.len()..].starts_with(char::is_alphanumeric);
        is_whole && text[..phrase.len()].eq_ignore_ascii_case(phrase)
    };
    let phrases = REFERRING_PHRASES
        .iter()
        .filter(|phrase| text.is_char_boundary(phrase.len()) && text.len() >= phrase.len());
    REFERRING.contains(&&*word) && !is_article && !has_noun
        || phrases.into_iter().any(|phrase| begins(phrase))
}

/// Returns whether the subject of a sentence stands in one before it: "She left.", "His son rebuilt it.", "In 1929 she left." A name in a
/// phrase of time may be that of the person ("After Anna died, she").
fn has_subject_before(text: &str) -> bool {
    let first = first_word(text);
    if !BEFORE_SUBJECT.contains(&&*first) {
        return [&SUBJECTS[..], &OWNERS, &PERSONS].iter().any(|words| words.contains(&&*first));
    }
    let may_name = ["after", "before", "until"].contains(&&*first);
    let mut before = "";
    for word in text.split_whitespace().skip(1).take(BEFORE_SUBJECT_WORDS_MAX) {
        // "In Paris she" and "In the Alps she" name a place, "In 1903 Marie Curie said she" the person.
        let is_name = word.starts_with(char::is_uppercase) && (may_name || !["", "the"].contains(&before));
        if is_name || OTHER_SUBJECT.contains(&word) {
            return false;
        }
        if matches!(word, "he" | "she") {
            return true;
        }
        before = word;
    }
    false
}

/// Returns whether the subject that stands before a sentence is a person.
fn has_person_before(text: &str) -> bool {
    let first = first_word(text);
    PERSONS.contains(&&*first) || BEFORE_SUBJECT.contains(&&*first) && has_subject_before(text)
}

/// Returns whether a sentence may name a person: a word within it has a capital letter, or its first word is no common one.
fn may_name_person(text: &str) -> bool {
    let is_capital = |word: &str| word.starts_with(char::is_uppercase);
    let mut words = text.split_whitespace();
    words.next().is_some_and(|first| is_capital(first) && !NO_NAMES.contains(&&*first_word(text)))
        || words.any(is_capital)
}

/// Returns whether a sentence begins with words that refer to something before it.
pub(in super::super) fn is_dependent(text: &str) -> bool {
    refers(text, false) || has_subject_before(text)
}

/// Lets a sentence that begins with `That` or `It` require the sentence that it refers to, and a sentence require the exception to it
/// that follows.
pub(super) fn references(pieces: &mut Pieces, parts: &[Part]) {
    let is_before = |at: &usize| !(parts[*at].is_frame || parts[*at].is_row);
    let is_subject = |at: usize| !has_subject_before(parts[at].bare());
    // `[part]`: how many sentences in a row refer to the one before them, and the sentence with the subject of `It`.
    let (mut chain, mut subjects) = (vec![0; parts.len()], vec![None; parts.len()]);
    for at in 1..parts.len() {
        let is_plain = !parts[at].is_frame && !parts[at].is_row && !parts[at].is_item();
        let Some(before) = Some(at - 1).filter(is_before).filter(|_| is_plain) else { continue };
        if !is_subject(at) {
            subjects[at] = if is_subject(before) { Some(before) } else { subjects[before] };
        }
        // "By 1900 the company had grown." stands between "Arthur joined." and "His glazes sold."
        let person = has_person_before(parts[at].bare()).then(|| {
            let mut sentences = (at.saturating_sub(PERSON_REACH)..at).rev().take_while(is_before);
            sentences.find(|&at| is_subject(at) && may_name_person(parts[at].bare()))
        });
        let referred = person.flatten().or(match subjects[at] {
            Some(_) if OWNERS.contains(&&*first_word(parts[at].bare())) => Some(before),
            Some(subject) => Some(subject).filter(|subject| at - subject <= SUBJECT_REACH),
            None => Some(before).filter(|_| refers(parts[at].bare(), parts[at].begins_paragraph)),
        });
        if let Some(referred) = referred.filter(|referred| chain[*referred] < CHAIN_MAX) {
            chain[at] = chain[referred] + 1;
            pieces.require(at, referred);
        }
        let is_exception = |at: usize| is_exception(parts[at].bare());
        if is_exception(at) && !is_exception(before) && chain[before] < CHAIN_MAX {
            chain[at] = chain[at].max(chain[before] + 1);
            pieces.require(at, before);
            pieces.require(before, at);
        }
    }
    named_clauses(pieces, parts);
}

/// Lets a clause require a later one that names it and takes a part of it back: "10.3 Clause 10.2 does not apply in the first year."
fn named_clauses(pieces: &mut Pieces, parts: &[Part]) {
    const REACH: usize = 12;
    let number = |part: &Part| {
        let number = part.bare().split_whitespace().next()?.trim_end_matches(['.', ')']);
        let is_number =
            number.contains('.') && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        (part.begins_line && is_number).then(|| number.to_owned())
    };
    for at in 1..parts.len() {
        if parts[at].text.len() > 2 * EXCEPTION_BYTES_MAX
            || !parts[at].begins_line
            || !denies(parts[at].text, usize::MAX)
        {
            continue;
        }
        let named =
            parts[at].text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')' | ';')).skip(1);
        let named: Vec<&str> =
            named.map(|word| word.trim_end_matches('.')).filter(|word| word.contains('.')).collect();
        let names = |other: &usize| number(&parts[*other]).is_some_and(|number| named.contains(&&*number));
        if let Some(other) = (at.saturating_sub(REACH)..at).rev().find(names).filter(|_| !named.is_empty()) {
            pieces.require(other, at);
            pieces.require(at, other);
        }
    }
}

/// Returns whether one of the first words of a text takes something back.
fn denies(text: &str, words_max: usize) -> bool {
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|word| !word.is_empty());
    let mut words = words.take(words_max).map(str::to_lowercase);
    words.any(|word| DENIALS.contains(&&*word) || word.ends_with("n't"))
}

/// Returns whether a short sentence takes back a part of what the one before it says: "However, there is no service on Mondays.", "They
/// are not due in August."
fn is_exception(text: &str) -> bool {
    const WORDS_READ: usize = 8;
    if text.len() > EXCEPTION_BYTES_MAX {
        return false;
    }
    let first = first_word(text);
    let lower = text.to_lowercase();
    if ["excepted.", "ausgenommen.", "not apply.", "gilt nicht."].iter().any(|end| lower.ends_with(end)) {
        return true;
    }
    // "This is wrong.", "The offer was withdrawn."
    if ["this", "that", "it", "they", "the"].contains(&&*first) {
        let words = lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        if words
            .take(CORRECTION_WORDS_MAX + 1)
            .enumerate()
            .any(|(at, word)| at < CORRECTION_WORDS_MAX && CORRECTIONS.contains(&word))
        {
            return true;
        }
    }
    let turns = EXCEPTIONS.contains(&&*first);
    let refers = SUBJECTS.contains(&&*first) || ["this", "that", "dies", "das"].contains(&&*first);
    let words_read = if turns { usize::MAX } else { WORDS_READ };
    (turns || refers) && denies(text, words_read)
}
