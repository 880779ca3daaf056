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
const ABSTENTIONS: [&str; 28] = [
    "am not able to find",
    "am not sure",
    "am unable to find",
    "cannot answer",
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

const HEADING_WORDS_MAX: usize = 8;

const LABEL_WORDS_MAX: usize = 4;

/// What may follow a courtesy: "If you have any questions, just ask."
const REQUESTS: [&str; 6] =
    ["ask", "do not hesitate", "don't hesitate", "feel free", "just ask", "let me know"];

/// Returns whether a sentence of an answer says nothing that needs evidence: a greeting, a question, a heading or the
/// header of a table, or that the sources have no answer. Knows English, and questions and headings of any language.
pub fn needs_no_evidence(sentence: &str) -> bool {
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
const NOTHING: [&str; 3] = ["it is not clear from the", "it is unclear from the", "there is no information"];

/// Returns whether a sentence says that the sources do not have what was asked for, and nothing else.
fn finds_nothing(text: &str) -> bool {
    let mut lower = text.to_lowercase().replace('’', "'");
    for (short, long) in CONTRACTIONS {
        lower = lower.replace(short, long);
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
    let is_open = said.strip_prefix("am not sure").is_none_or(|rest| {
        let next = rest.split_whitespace().next().unwrap_or_default();
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
        ] {
            assert!(!needs_no_evidence(text), "{text}");
        }
    }
}
