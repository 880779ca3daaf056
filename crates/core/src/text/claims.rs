//! Claims: which sentences of an answer, and which clauses of them, say something that a source could say, too.

use thresher_text::lexicon::{self, Class};

use super::abstentions::{Extent, finds_nothing};
use crate::domain::ByteRange;

const GREETING_WORDS_MAX: usize = 3;

const HEADING_WORDS_MAX: usize = 8;

const LABEL_WORDS_MAX: usize = 4;

/// What stands between two clauses of a sentence.
const BETWEEN_CLAUSES: [&str; 6] = ["; however, ", ", however, ", ", but ", ", and ", " but ", "; "];

/// Returns the bytes of a sentence of an answer that say something a source could say, too: all of it, or what is left without a clause
/// at its beginning or end that finds no answer. `None` if the sentence needs no evidence.
pub fn claim(sentence: &str) -> Option<ByteRange> {
    let reply = reply_bytes(sentence);
    if reply > 0 {
        let rest = sentence[reply..].trim();
        return if rest.is_empty() {
            None
        } else {
            claim(&sentence[reply..]).map(|claim| claim.shifted(reply))
        };
    }
    if needs_no_evidence(sentence) {
        return None;
    }
    let clauses = clauses(sentence);
    if let [clause] = clauses[..] {
        return Some(without_concession(sentence, clause));
    }
    let says = |clause: &&ByteRange| !finds_nothing(clause.slice(sentence), Extent::Clause);
    let claims: Vec<&ByteRange> = clauses.iter().filter(says).collect();
    let (first, last) = (clauses.iter().position(|clause| says(&clause))?, claims.last()?);
    let is_in_one = clauses[first..].iter().take(claims.len()).all(|clause| says(&clause));
    Some(if is_in_one {
        ByteRange::new(clauses[first].start, last.end)
    } else {
        ByteRange::new(0, sentence.len())
    })
}

/// Returns the bytes of a "Yes" or "No" at the start of a sentence, with the punctuation and the spaces behind it: what it affirms stands in the
/// question. `0` if there is none.
fn reply_bytes(sentence: &str) -> usize {
    let start = sentence.len() - sentence.trim_start_matches(['*', '_', ' ', '\n']).len();
    let rest = &sentence[start..];
    let word = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
    if !lexicon::is(Class::Reply, &rest[..word]) {
        return 0;
    }
    const COMMAS: [char; 5] = [',', ':', ';', '–', '—'];
    let behind = rest[word..].trim_start_matches(['*', '_']);
    let bare = behind.trim_start_matches(['.', '!', '*', '_', ' ', '\n']);
    if bare.is_empty() {
        sentence.len()
    } else if behind.starts_with(COMMAS) {
        sentence.len() - behind.trim_start_matches(COMMAS).trim_start().len()
    } else {
        0
    }
}

/// Returns the clauses of a sentence. Quotations are not divided.
fn clauses(sentence: &str) -> Vec<ByteRange> {
    let (mut clauses, mut start, mut at, mut is_quoted) = (Vec::new(), 0, 0, false);
    while let Some(c) = sentence[at..].chars().next() {
        match c {
            '"' => is_quoted = !is_quoted,
            '“' | '„' | '«' => is_quoted = true,
            '”' | '»' => is_quoted = false,
            _ => {}
        }
        let between =
            BETWEEN_CLAUSES.iter().find(|between| !is_quoted && sentence[at..].starts_with(**between));
        let Some(between) = between else {
            at += c.len_utf8();
            continue;
        };
        clauses.push(ByteRange::new(start, at));
        at += between.len();
        start = at;
    }
    clauses.push(ByteRange::new(start, sentence.len()));
    clauses
}

/// Returns the range without a clause at its beginning that concedes to have found nothing.
fn without_concession(sentence: &str, clause: ByteRange) -> ByteRange {
    let Some(comma) = sentence.find(", ") else { return clause };
    let lead = sentence[..comma].to_lowercase();
    let conceded = lexicon::strip(Class::Concedes, &lead).and_then(|rest| rest.strip_prefix(' '));
    if conceded.is_some_and(|conceded| finds_nothing(conceded, Extent::Clause)) {
        ByteRange::new(comma + 2, clause.end)
    } else {
        clause
    }
}

/// Returns whether a sentence of an answer says nothing that needs evidence: a greeting, a question, a heading or the
/// header of a table, or that the sources have no answer. Knows English, questions and headings of any language, and how some languages
/// say that they do not know.
fn needs_no_evidence(sentence: &str) -> bool {
    let text = sentence.trim();
    is_question(text)
        || is_heading(text)
        || is_table_head(text)
        || is_courtesy(text)
        || finds_nothing(text, Extent::Sentence)
}

/// Returns whether a text asks something. A question mark in a quotation at its end, such as a title, asks nothing.
fn is_question(text: &str) -> bool {
    let bare = text.trim_matches(['*', '_', ' ']);
    let quotes = ['"', '“', '„', '«', '\''];
    let inside =
        if bare.starts_with(quotes) { bare.trim_end_matches(['"', '”', '“', '»', '\'']) } else { bare };
    inside.trim_end_matches([')', ' ']).ends_with(['?', '？', '؟'])
}

/// Returns whether a text ends with the rule below the header of a table of Markdown.
fn is_table_head(text: &str) -> bool {
    let last = text.lines().next_back().unwrap_or_default();
    last.contains("--") && last.contains('|') && last.chars().all(|c| "|-: ".contains(c))
}

/// Returns whether a text is a heading of Markdown, or a label such as `Opening hours:` or `**Fees**`.
fn is_heading(text: &str) -> bool {
    let is_within = |text: &str, words: usize| text.split_whitespace().nth(words).is_none();
    let heading = text.trim_start_matches('#');
    let is_marked =
        heading.len() < text.len() && heading.starts_with(' ') && is_within(heading, HEADING_WORDS_MAX);
    let strong = text.trim_end_matches(':').strip_prefix("**").and_then(|text| text.strip_suffix("**"));
    let label = strong.or_else(|| text.strip_suffix(':')).map(|text| text.trim_matches(['*', ':']));
    let is_label = |label: &str| {
        let says = label.contains(['.', ',', '!']) || label.contains(|c: char| c.is_ascii_digit());
        !label.contains("**") && !says && is_within(label, LABEL_WORDS_MAX)
    };
    let is_lead =
        text.to_lowercase().starts_with("here ") && text.ends_with(':') && is_within(text, HEADING_WORDS_MAX);
    is_marked || is_lead || label.is_some_and(is_label)
}

fn is_courtesy(text: &str) -> bool {
    let lower = text.to_lowercase();
    let is_greeting = || {
        let rest = lexicon::strip(Class::Pleasantry, &lower);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['!', ',', '.']))
    };
    // "Thanks for asking, the fee is 12 euros." says something.
    let rest = lower.split_once([',', ':']).map_or("", |(_, rest)| rest.trim_start());
    let says = lower.contains(|c: char| c.is_ascii_digit())
        || !rest.is_empty() && lexicon::strip(Class::CourtesyRequest, rest).is_none();
    let is_short = lower.split_whitespace().count() <= GREETING_WORDS_MAX;
    is_short && is_greeting() || !says && lexicon::strip(Class::Courtesy, &lower).is_some()
}

#[cfg(test)]
mod tests {
    use super::{ByteRange, claim, needs_no_evidence};

    #[test]
    fn clauses_that_find_nothing_claim_nothing() {
        for (sentence, expect) in [
            ("The mill burned in 1890, but the context does not say why.", "The mill burned in 1890"),
            ("I don't know, but it burned in 1890.", "it burned in 1890."),
            ("The mill burned; the documents do not mention a victim.", "The mill burned"),
            ("Although I am not certain, the mill burned in 1890.", "the mill burned in 1890."),
            ("While the text does not say when, the mill burned.", "the mill burned."),
            ("Yes, the mill burned.", "the mill burned."),
            ("**No**, nobody was hurt.", "nobody was hurt."),
            ("The mill burned, and we could not find the year in the text.", "The mill burned"),
            ("The mill is old; I could not find its age.", "The mill is old"),
            ("The mill burned in 1890, but the text does not say why [1].", "The mill burned in 1890"),
            ("The text does not say when, and the owner was hurt.", "the owner was hurt."),
            ("The text does not say why; it was set on fire by Karl.", "it was set on fire by Karl."),
            ("I do not know why; the owner was Karl, but he died.", "the owner was Karl, but he died."),
            ("The mill burned, but nobody was hurt.", "The mill burned, but nobody was hurt."),
            ("Although it rained, the mill burned.", "Although it rained, the mill burned."),
        ] {
            assert_eq!(claim(sentence).map(|bytes| bytes.slice(sentence)), Some(expect));
        }
        // What else stands in a clause is a claim, and so is what somebody is quoted with.
        for sentence in [
            "The mill burned, but the text does not say why, which led to a trial.",
            "The mill burned, and the text does not mention victims because all had left.",
            "The mill burned, but the document does not mention that it was Karl.",
            "The witness said, \"I saw a car, but I do not know who drove it.\"",
            "They reached the hut, but we could not find any food in it.",
            "The form must be signed, but the document does not contain a signature field.",
            "While the text does not mention Karl killing three people, the mill burned.",
            "There is no mention of victims because all had left.",
            "There is no mention of Karl in the Bible.",
            "There is no information desk at the mill.",
            "It is unclear from the documents who won, since Ann was first.",
            "The lamp must be off, but the document does not include a warning.",
            "There is not enough information technology staff.",
            "It is not found where winters are cold.",
        ] {
            assert_eq!(claim(sentence), Some(ByteRange::new(0, sentence.len())), "{sentence}");
        }
        for sentence in
            ["I do not know.", "I do not know why, and the text does not say when.", "Yes.", "No!", "**Yes**"]
        {
            assert_eq!(claim(sentence), None, "{sentence}");
        }
    }

    #[test]
    fn sentences_that_say_nothing_of_the_sources_need_no_evidence() {
        for text in [
            "Hello!",
            "Thanks for your question.",
            "How can I help you?",
            "I could not find the price in the documents.",
            "The provided context does not mention a refund.",
            "## Opening hours",
            "**Fees:**",
            "Summary:",
            "Was kostet der Eintritt?",
            "Sure!",
            "| city | year |\n|---|:--|",
            "Let me know if you need more.",
            "If you have any questions, just ask!",
            "Here is what the report says:",
            "I do not know.",
            "I don't know when the bridge was built.",
            "Sorry, I can’t tell from these documents.",
            "The passages don't say who built it.",
            "The answer is not in the context.",
            "The answer is not stated in the provided documents.",
            "I’m not sure which bridge is older.",
            "I'm unable to find the date.",
            "It's unclear from the documents who won.",
            "It is unclear from the documents whether dogs are allowed.",
            "I am not sure.",
            "N/A",
            "Unknown.",
            "Not mentioned.",
            "Not mentioned in the context.",
            "Not provided in the documents.",
            "This information is not available in the provided context.",
            "It is not specified when the mill burned.",
            "No information is available.",
            "None of the provided documents mentions a fee.",
            "None of the passages say who won.",
            "There is no mention of a fee.",
            "Ich weiß es nicht.",
            "Keine Angabe",
        ] {
            assert!(needs_no_evidence(text), "{text}");
        }
        for text in [
            "The list does not contain nuts.",
            "Hello Kitty is a cat.",
            "Sure, it opens at nine.",
            "The fee is 5 euros:",
            "He asked whether it was open.",
            "**Note:** the pool is closed.",
            "Welcome drinks are free.",
            "I never charge the document fee.",
            "I could not find the date, but the bridge was built in May.",
            "If you have any kidney disease, do not take ibuprofen.",
            "The source code does not contain telemetry.",
            "Unfortunately, the warranty does not contain water damage.",
            "**No, smoking is not allowed.**",
            "He wrote \"Who Moved My Cheese?\"",
            "The capital of Australia is Sydney:",
            "Thanks for asking, dogs are welcome.",
            "If you have any questions, call 0800 123.",
            "The answer is not a number.",
            "The answer is not a source of revenue.",
            "The answer is not Rome, according to the documents.",
            "I am not sure the capital is Rome.",
            "It is unclear who won.",
            "It is unknown who won.",
            "Not available.",
            "Unknown Pleasures is an album.",
            "None of the trains run on Sundays.",
            "There is no fee.",
        ] {
            assert!(!needs_no_evidence(text), "{text}");
        }
    }
}
