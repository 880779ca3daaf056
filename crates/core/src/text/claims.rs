//! Claims: which sentences of an answer, and which clauses of them, say something that a source could say, too.

use crate::domain::ByteRange;

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

const GREETING_WORDS_MAX: usize = 3;

/// Beginnings of sentences by which an answer thanks or offers more.
const COURTESIES: [&str; 12] = [
    "feel free to ask",
    "feel free to reach",
    "hope this helps",
    "i hope that helps",
    "i hope this helps",
    "if you have any other",
    "if you have any questions",
    "let me know if",
    "please let me know",
    "thank you for",
    "thanks for",
    "you're welcome",
];

/// What an answer calls its sources.
const SOURCES: [&str; 13] = [
    "chunks",
    "context",
    "document",
    "documents",
    "excerpt",
    "excerpts",
    "information",
    "passage",
    "passages",
    "source",
    "sources",
    "text",
    "texts",
];
/// What an answer says of itself or of its sources if it finds nothing, without contractions such as "don't".
const ABSTENTIONS: [&str; 31] = [
    "am not able to find",
    "am not certain",
    "am not sure",
    "am unable to find",
    "am unsure",
    "cannot answer",
    "cannot be certain",
    "cannot find",
    "cannot say",
    "cannot tell",
    "could not find",
    "did not find",
    "do not contain",
    "do not have enough",
    "do not have information",
    "do not know",
    "do not mention",
    "do not say",
    "do not specify",
    "do not state",
    "does not contain",
    "does not include",
    "does not mention",
    "does not say",
    "does not specify",
    "does not state",
    "have no information",
    "say nothing",
    "says nothing",
    "was not able to find",
    "was unable to find",
];

/// What sources do that say something.
const SAYING: [&str; 7] = ["answer", "contain", "include", "mention", "say", "specify", "state"];

const HEADING_WORDS_MAX: usize = 8;

const LABEL_WORDS_MAX: usize = 4;

/// What may follow a courtesy: "If you have any questions, just ask."
const REQUESTS: [&str; 6] =
    ["ask", "do not hesitate", "don't hesitate", "feel free", "just ask", "let me know"];

/// What stands between two clauses of a sentence of which one may say that the sources have no answer.
const BETWEEN_CLAUSES: [&str; 6] = [", but ", " but ", "; however, ", ", however, ", "; ", ", and "];

/// What a clause begins with that limits the rest of its sentence: "Although I am not certain, …".
const CONCESSIONS: [&str; 4] = ["although ", "even though ", "though ", "while "];

/// Returns the bytes of a sentence of an answer that say something a source could say, too: all of it, or what is left without a clause
/// that finds no answer. `None` if the sentence needs no evidence.
pub fn claim(sentence: &str) -> Option<ByteRange> {
    if needs_no_evidence(sentence) {
        return None;
    }
    for between in BETWEEN_CLAUSES {
        for (at, _) in sentence.match_indices(between) {
            let after = at + between.len();
            if finds_nothing(sentence[after..].trim()) {
                return Some(ByteRange::new(0, at));
            }
            if finds_nothing(sentence[..at].trim()) {
                return Some(ByteRange::new(after, sentence.len()));
            }
        }
    }
    if let Some(comma) = sentence.find(", ") {
        let lead = sentence[..comma].to_lowercase();
        let conceded = CONCESSIONS.iter().find_map(|begin| lead.strip_prefix(begin));
        if conceded.is_some_and(finds_nothing) {
            return Some(ByteRange::new(comma + 2, sentence.len()));
        }
    }
    Some(ByteRange::new(0, sentence.len()))
}

/// Returns whether a sentence of an answer says nothing that needs evidence: a greeting, a question, a heading or the
/// header of a table, or that the sources have no answer. Knows English, questions and headings of any language, and how some languages
/// say that they do not know.
fn needs_no_evidence(sentence: &str) -> bool {
    let text = sentence.trim();
    is_question(text) || is_heading(text) || is_table_head(text) || is_courtesy(text) || finds_nothing(text)
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
    let is_alone = |greeting: &str| {
        lower.strip_prefix(greeting).is_some_and(|rest| rest.is_empty() || rest.starts_with(['!', ',', '.']))
    };
    // "Thanks for asking, the fee is 12 euros." says something.
    let rest = lower.split_once([',', ':']).map_or("", |(_, rest)| rest.trim_start());
    let says = lower.contains(|c: char| c.is_ascii_digit())
        || !rest.is_empty() && !REQUESTS.iter().any(|begin| rest.starts_with(begin));
    let is_short = lower.split_whitespace().count() <= GREETING_WORDS_MAX;
    is_short && GREETINGS.iter().any(|greeting| is_alone(greeting))
        || !says && COURTESIES.iter().any(|courtesy| lower.starts_with(courtesy))
}

const CONTRACTIONS: [(&str, &str); 5] =
    [("can't", "cannot"), ("n't", " not"), ("i'm ", "i am "), ("we're ", "we are "), ("it's ", "it is ")];

/// What may follow "I am not sure" where it says nothing else.
const OPEN: [&str; 11] =
    ["about", "how", "if", "what", "when", "where", "whether", "which", "who", "whom", "why"];

/// Beginnings of sentences that find nothing, and do not say who found it.
const NOTHING: [&str; 5] = [
    "it is not clear from the",
    "it is unclear from the",
    "there is no information",
    "there is no mention of",
    "there is not enough information",
];

/// Answers without a verb that find nothing, which may be followed by where.
const BLANKS: [&str; 12] = [
    "n/a",
    "no answer",
    "no answer found",
    "no information",
    "no information available",
    "no information found",
    "no information is available",
    "no information is provided",
    "no information provided",
    "unanswerable",
    "unclear",
    "unknown",
];

/// What is not done with an answer that is not there: "Not mentioned."
const DENIED: [&str; 4] = ["not found", "not mentioned", "not specified", "not stated"];

/// As [`DENIED`], where it says in which sources. "Not available." can be an answer.
const DENIED_IN_SOURCES: [&str; 5] =
    ["not available", "not contained", "not given", "not included", "not provided"];

/// What may stand before "not mentioned".
const MISSING: [&str; 7] = [
    "it is ",
    "that information is ",
    "that is ",
    "the answer is ",
    "the information is ",
    "this information is ",
    "this is ",
];

/// How some other languages say that they do not know.
const FOREIGN: [&str; 18] = [
    "das weiß ich nicht",
    "desconocido",
    "ich weiß es nicht",
    "ich weiß nicht",
    "ik weet het niet",
    "inconnu",
    "je ne sais pas",
    "keine angabe",
    "keine angaben",
    "no lo sé",
    "no sé",
    "non lo so",
    "não sei",
    "onbekend",
    "unbekannt",
    "わかりません",
    "不知道",
    "我不知道",
];

/// Returns whether an answer of a few words finds nothing. `lower` is in small letters.
fn is_blank_answer(lower: &str) -> bool {
    let text = lower.trim_matches(|c: char| c.is_whitespace() || ".!。*\"'“”".contains(c));
    let ends = |rest: &str| rest.is_empty() || names_sources(rest);
    let is_blank = |begin: &str| text.strip_prefix(begin).is_some_and(ends);
    let denied = MISSING.iter().find_map(|begin| text.strip_prefix(begin)).unwrap_or(text);
    let is_denied = |begin: &str| {
        denied.strip_prefix(begin).is_some_and(|rest| {
            ends(rest) || OPEN.contains(&rest.split_whitespace().next().unwrap_or_default())
        })
    };
    FOREIGN.contains(&text)
        || BLANKS.iter().any(|begin| is_blank(begin))
        || DENIED.iter().any(|begin| is_denied(begin))
        || DENIED_IN_SOURCES.iter().any(|begin| denied.strip_prefix(begin).is_some_and(names_sources))
}

/// Returns whether a sentence says that the sources do not have what was asked for, and nothing else.
fn finds_nothing(text: &str) -> bool {
    let mut lower = text.to_lowercase().replace('’', "'");
    for (short, long) in CONTRACTIONS {
        lower = lower.replace(short, long);
    }
    if is_blank_answer(&lower) {
        return true;
    }
    if lower.contains(|c: char| c.is_ascii_digit())
        || [" but ", "however", ", so "].iter().any(|word| lower.contains(word))
    {
        return false;
    }
    let leads = ["unfortunately", "based on", "sorry", "i am sorry"];
    let bare = match lower.split_once(',') {
        Some((lead, rest)) if leads.iter().any(|begin| lead.starts_with(begin)) => rest.trim_start(),
        _ => &*lower,
    };
    let mut words = bare.split_inclusive(' ');
    let subject = match words.next().map(str::trim) {
        Some("i" | "we") => 1,
        Some("none") => {
            // "None of the documents mention it."
            let noun = words.skip(2).take(2).position(|word| SOURCES.contains(&word.trim()));
            let said = noun.and_then(|noun| bare.split_whitespace().nth(noun + 4)).unwrap_or_default();
            return bare.starts_with("none of the ")
                && SAYING.iter().any(|verb| said.strip_suffix('s').unwrap_or(said) == *verb);
        }
        // "The documents", "the provided context".
        Some("the") => {
            if let Some(rest) = bare.strip_prefix("the answer is not ") {
                return names_sources(rest);
            }
            let noun = words.take(2).position(|word| SOURCES.contains(&word.trim()));
            noun.map_or(0, |noun| noun + 2)
        }
        _ => return NOTHING.iter().any(|beginning| bare.starts_with(beginning)),
    };
    let said: String = bare.split_inclusive(' ').skip(subject).collect();
    // "I am not sure the capital is Rome." says something.
    let unsure =
        ["am not certain", "am not sure", "am unsure"].iter().find_map(|begin| said.strip_prefix(begin));
    let is_open = unsure.is_none_or(|rest| {
        let next = rest.trim_matches(|c: char| c == '.' || c.is_whitespace());
        let next = next.split_whitespace().next().unwrap_or_default();
        next.is_empty() || OPEN.contains(&next)
    });
    subject > 0 && is_open && ABSTENTIONS.iter().any(|denial| said.starts_with(denial))
}

/// Returns whether a text is a phrase such as "in the context." or "stated in these documents."
fn names_sources(text: &str) -> bool {
    let mut words = text.split_whitespace().map(|word| word.trim_end_matches('.')).peekable();
    words.next_if(|word| ["contained", "found", "given", "mentioned", "provided", "stated"].contains(word));
    let has_place = words.next().is_some_and(|word| ["by", "from", "in"].contains(&word));
    let is_one =
        |word: &&str| ["the", "these", "this", "your", "given", "provided", "retrieved"].contains(word);
    let mut noun = words.skip_while(is_one);
    has_place && noun.next().is_some_and(|word| SOURCES.contains(&word)) && noun.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::{claim, needs_no_evidence};

    #[test]
    fn clauses_that_find_nothing_claim_nothing() {
        for (sentence, expect) in [
            ("The mill burned in 1890, but the context does not say why.", "The mill burned in 1890"),
            ("I don't know, but it burned in 1890.", "it burned in 1890."),
            ("The mill burned; the documents do not mention a victim.", "The mill burned"),
            ("Although I am not certain, the mill burned in 1890.", "the mill burned in 1890."),
            ("While the text does not say when, the mill burned.", "the mill burned."),
            ("The mill burned, and I could not find the year.", "The mill burned"),
            ("The mill burned, but nobody was hurt.", "The mill burned, but nobody was hurt."),
            ("Although it rained, the mill burned.", "Although it rained, the mill burned."),
        ] {
            assert_eq!(claim(sentence).map(|bytes| bytes.slice(sentence)), Some(expect));
        }
        assert_eq!(claim("I do not know."), None);
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
