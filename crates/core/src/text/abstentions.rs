//! Abstentions: sentences and clauses of an answer that say that the sources have no answer. Knows English, and how some languages say that
//! they do not know.

/// What is tested: a sentence, or a clause of one, which must say nothing else, since the rest of the sentence makes a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Extent {
    Sentence,
    Clause,
}

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
const DENIALS: [&str; 25] = [
    "am not able to find",
    "am unable to find",
    "cannot answer",
    "cannot find",
    "cannot say",
    "cannot tell",
    "could not find",
    "did not find",
    "do not have enough",
    "do not have information",
    "do not know",
    "do not mention",
    "do not say",
    "do not specify",
    "do not state",
    "does not mention",
    "does not say",
    "does not specify",
    "does not state",
    "have no information",
    "say nothing",
    "says nothing",
    "was not able to find",
    "was unable to find",
    "were unable to find",
];

/// As [`DENIALS`], for a whole sentence only. A clause with it can be about a document: "The form … does not contain a signature."
const DENIALS_OF_SENTENCES: [&str; 3] = ["do not contain", "does not contain", "does not include"];

/// What says nothing else only if a question follows. "I am not sure the capital is Rome." says something.
const DOUBTS: [&str; 4] = ["am not certain", "am not sure", "am unsure", "cannot be certain"];

/// What begins a question in a sentence.
const OPEN: [&str; 11] =
    ["about", "how", "if", "what", "when", "where", "whether", "which", "who", "whom", "why"];

/// What sources do that say something: "None of the documents mentions it."
const SAYING: [&str; 7] = ["answer", "contain", "include", "mention", "say", "specify", "state"];

/// What may follow "there is no information".
const ABOUT: [&str; 12] = [
    "about",
    "available",
    "concerning",
    "for",
    "from",
    "given",
    "in",
    "on",
    "provided",
    "regarding",
    "that",
    "to",
];

/// Words after which a sentence goes on with something else.
const GOES_ON: [&str; 10] =
    ["although", "because", "but", "however", "since", "so", "though", "whereas", "which", "while"];

/// The most words that a clause names as missing: "does not mention a date".
const MISSING_WORDS_MAX: usize = 3;

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

/// What is not done with an answer that is not there: "Not mentioned.", "It is not stated when."
const NOT_SAID: [&str; 3] = ["not mentioned", "not specified", "not stated"];

/// As [`NOT_SAID`], where it says in which sources. "Not available." can be an answer.
const NOT_IN_SOURCES: [&str; 5] =
    ["not available", "not contained", "not given", "not included", "not provided"];

/// What may stand before "not mentioned".
const SUBJECTS: [&str; 7] = [
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

/// What may stand before an abstention: "Unfortunately, …".
const LEADS: [&str; 4] = ["unfortunately", "based on", "sorry", "i am sorry"];

const CONTRACTIONS: [(&str, &str); 5] =
    [("can't", "cannot"), ("n't", " not"), ("i'm ", "i am "), ("we're ", "we are "), ("it's ", "it is ")];

/// The longest mark of a citation, such as `[12]`, in bytes.
const MARK_BYTES_MAX: usize = 12;

/// Returns whether a text says that the sources do not have what was asked for, and nothing else.
pub(super) fn finds_nothing(text: &str, extent: Extent) -> bool {
    let lower = plain(text);
    if is_blank_answer(&lower) {
        return true;
    }
    if lower.contains(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let bare = match lower.split_once(',') {
        Some((lead, rest)) if LEADS.iter().any(|begin| lead.starts_with(begin)) => rest.trim_start(),
        _ => &*lower,
    };
    names_nothing(bare)
        || bare.strip_prefix("the answer is not ").is_some_and(names_sources)
        || none_of_sources(bare, extent)
        || denies(bare, extent)
}

/// Returns a text in small letters, without marks of citations and contractions.
fn plain(text: &str) -> String {
    let mut lower = text.to_lowercase().replace('’', "'");
    while let Some(start) = lower.find('[') {
        let Some(length) = lower[start..].find(']').filter(|length| *length < MARK_BYTES_MAX) else { break };
        lower.replace_range(start..=start + length, "");
    }
    for (short, long) in CONTRACTIONS {
        lower = lower.replace(short, long);
    }
    lower
}

/// Returns whether an answer of a few words finds nothing. `lower` is in small letters.
fn is_blank_answer(lower: &str) -> bool {
    let text = lower.trim_matches(|c: char| c.is_whitespace() || ".!。*\"'“”".contains(c));
    let ends = |rest: &str| rest.is_empty() || names_sources(rest);
    let predicate = SUBJECTS.iter().find_map(|begin| text.strip_prefix(begin)).unwrap_or(text);
    let is_not_said = |begin: &str| {
        predicate
            .strip_prefix(begin)
            .is_some_and(|rest| ends(rest) || OPEN.contains(&first_word(rest)) && !goes_on(rest))
    };
    FOREIGN.contains(&text)
        || BLANKS.iter().any(|begin| text.strip_prefix(begin).is_some_and(ends))
        || predicate.strip_prefix("not found").is_some_and(ends)
        || NOT_SAID.iter().any(|begin| is_not_said(begin))
        || NOT_IN_SOURCES.iter().any(|begin| predicate.strip_prefix(begin).is_some_and(names_sources))
}

/// Returns whether a text says that there is nothing, and not who looked: "There is no information about fees."
fn names_nothing(text: &str) -> bool {
    let is_information = |rest: &str| {
        let next = first_word(rest);
        next.is_empty() || ABOUT.contains(&next) || OPEN.contains(&next)
    };
    // In something else than the sources, that something is missing is a claim.
    let is_mention =
        |rest: &str| rest.rsplit_once(" in ").is_none_or(|(_, place)| after_source(place).is_some());
    let is_unclear = |rest: &str| after_source(rest).is_some();
    let ends = |begin: &str, is: &dyn Fn(&str) -> bool| {
        text.strip_prefix(begin).is_some_and(|rest| is(rest) && !goes_on(rest))
    };
    ends("there is no information", &is_information)
        || ends("there is not enough information", &is_information)
        || ends("there is no mention of ", &is_mention)
        || ends("it is not clear from the ", &is_unclear)
        || ends("it is unclear from the ", &is_unclear)
}

/// Returns whether a text begins as "None of the documents mentions".
fn none_of_sources(text: &str, extent: Extent) -> bool {
    let Some(rest) = text.strip_prefix("none of the ").and_then(after_source) else { return false };
    let verb = first_word(rest);
    let says = SAYING.contains(&verb.strip_suffix('s').unwrap_or(verb));
    says && says_nothing_else(&rest[rest.find(verb).map_or(0, |at| at + verb.len())..], false, extent)
}

/// Returns whether a text begins as "I could not find" or "The documents do not say".
fn denies(text: &str, extent: Extent) -> bool {
    let group = text.strip_prefix("we ");
    let said = group.or_else(|| text.strip_prefix("i "));
    let Some(said) = said.or_else(|| text.strip_prefix("the ").and_then(after_source)) else {
        return false;
    };
    let rest_of = |denial: &str| {
        let rest = said.strip_prefix(denial)?;
        (!rest.starts_with(char::is_alphanumeric)).then_some(rest)
    };
    if let Some(rest) = DOUBTS.iter().find_map(|doubt| rest_of(doubt)) {
        let next = first_word(rest);
        return (next.is_empty() || OPEN.contains(&next)) && !goes_on(rest);
    }
    let of_sentences = DENIALS_OF_SENTENCES.iter().filter(|_| extent == Extent::Sentence);
    let mut denials = DENIALS.iter().chain(of_sentences);
    denials.any(|denial| rest_of(denial).is_some_and(|rest| says_nothing_else(rest, group.is_some(), extent)))
}

/// Returns whether what follows a denial only names what is missing. In a clause that is a question, or a few words. `may_tell`: after "we",
/// which may be people in a story, the few words must name the sources.
fn says_nothing_else(rest: &str, may_tell: bool, extent: Extent) -> bool {
    let rest = rest.trim_matches(|c: char| c.is_whitespace() || ".!*".contains(c));
    if goes_on(rest) {
        return false;
    }
    if extent == Extent::Sentence || rest.is_empty() || OPEN.contains(&first_word(rest)) {
        return true;
    }
    let mut words = rest.split_whitespace();
    if may_tell {
        return words.any(|word| SOURCES.contains(&word));
    }
    !words.clone().any(|word| word == "that") && words.nth(MISSING_WORDS_MAX).is_none()
}

/// Returns whether a text goes on with something else: it has a comma, or a word such as "because".
fn goes_on(text: &str) -> bool {
    text.contains([',', ';', ':'])
        || text.split_whitespace().any(|word| GOES_ON.contains(&word)) && first_word(text) != "which"
}

/// Returns the rest of a text that begins with a name of the sources: "provided documents do not say".
fn after_source(text: &str) -> Option<&str> {
    let mut at = 0;
    text.split_inclusive(' ').take(2).find_map(|word| {
        at += word.len();
        SOURCES.contains(&word.trim_end_matches(['.', ' '])).then(|| &text[at..])
    })
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| c.is_whitespace() || ".!,;:".contains(c))
        .find(|word| !word.is_empty())
        .unwrap_or_default()
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
