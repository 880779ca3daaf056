//! Claims: which sentences of an answer say something that a source could say, too.

/// Greetings and agreements, which stand alone or before a name: "Hello, Anna!"
const GREETINGS: [&str; 14] = [
    "certainly",
    "good afternoon",
    "good evening",
    "good morning",
    "good question",
    "great question",
    "hello",
    "hey",
    "hi",
    "of course",
    "sure",
    "thank you",
    "thanks",
    "welcome",
];

/// The longest sentence that is a greeting, in words.
const GREETING_WORDS_MAX: usize = 3;

/// Beginnings of sentences by which an answer thanks or offers more.
const COURTESIES: [&str; 9] = [
    "feel free to",
    "i hope that helps",
    "i hope this helps",
    "if you have any",
    "let me know",
    "please let me know",
    "thank you for",
    "thanks for",
    "you're welcome",
];

/// What a sentence says of the sources if it finds nothing in them: a subject, and a denial of finding.
const SOURCES: [&str; 16] = [
    "i ",
    "i'm ",
    "i’m ",
    "we ",
    "the document",
    "the provided",
    "the context",
    "the source",
    "the text",
    "the passage",
    "the excerpt",
    "the information",
    "the chunks",
    "there is no information",
    "unfortunately",
    "based on",
];
const ABSTENTIONS: [&str; 26] = [
    "could not find",
    "couldn't find",
    "couldn’t find",
    "cannot find",
    "can't find",
    "can’t find",
    "did not find",
    "didn't find",
    "not able to find",
    "unable to find",
    "do not have enough",
    "don't have enough",
    "don’t have enough",
    "do not have information",
    "don't have information",
    "no information",
    "not mentioned",
    "does not mention",
    "do not mention",
    "does not contain",
    "do not contain",
    "does not specify",
    "do not specify",
    "cannot answer",
    "can't answer",
    "don't know",
];

/// The longest heading, in words.
const HEADING_WORDS_MAX: usize = 8;

/// Returns whether a sentence of an answer says nothing that needs evidence: a greeting, a question, a heading or the header of a
/// table, or that the sources have no answer. Knows English, and questions and headings of any language.
pub fn needs_no_evidence(sentence: &str) -> bool {
    let text = sentence.trim();
    let bare = text.trim_end_matches(|c: char| "\"'”’)*_ ".contains(c));
    let is_question = bare.ends_with(['?', '？', '؟']);
    is_question || is_heading(text) || is_table_head(text) || is_courtesy(text) || finds_nothing(text)
}

/// Returns whether a text ends with the rule below the header of a table of Markdown.
fn is_table_head(text: &str) -> bool {
    let last = text.lines().next_back().unwrap_or_default();
    last.contains("--") && last.contains('|') && last.chars().all(|c| "|-: ".contains(c))
}

/// Returns whether a text is a heading of Markdown, or a short introduction without a verb, such as `Opening hours:`.
fn is_heading(text: &str) -> bool {
    let is_short = |text: &str| text.split_whitespace().nth(HEADING_WORDS_MAX).is_none();
    let has_number = |text: &str| text.contains(|c: char| c.is_ascii_digit());
    let heading = text.trim_start_matches('#');
    let is_marked = heading.len() < text.len() && heading.starts_with(' ');
    let strong = text.trim_end_matches(':').strip_prefix("**").and_then(|text| text.strip_suffix("**"));
    let label = strong.map(|text| text.trim_end_matches(':'));
    let label = label.or_else(|| text.strip_suffix(':').map(|text| text.trim_matches('*')));
    let is_label = label.is_some_and(|label| !label.contains("**") && is_short(label) && !has_number(label));
    is_marked && is_short(heading) || is_label
}

fn is_courtesy(text: &str) -> bool {
    let lower = text.to_lowercase();
    let is_alone = |greeting: &&str| {
        lower.strip_prefix(*greeting).is_some_and(|rest| rest.is_empty() || rest.starts_with(['!', ',', '.']))
    };
    let is_short = lower.split_whitespace().count() <= GREETING_WORDS_MAX;
    is_short && GREETINGS.iter().any(|greeting| is_alone(&greeting))
        || COURTESIES.iter().any(|courtesy| lower.starts_with(courtesy))
}

/// Returns whether a sentence says that the sources do not have what was asked for.
fn finds_nothing(text: &str) -> bool {
    let lower = text.to_lowercase();
    let bare = lower.trim_start_matches(|c: char| !c.is_alphanumeric());
    SOURCES.iter().any(|source| bare.starts_with(source))
        && ABSTENTIONS.iter().any(|denial| bare.contains(denial))
}

#[cfg(test)]
mod tests {
    use super::needs_no_evidence;

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
        ] {
            assert!(!needs_no_evidence(text), "{text}");
        }
    }
}
