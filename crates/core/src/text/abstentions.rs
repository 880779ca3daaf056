//! Abstentions: sentences and clauses of an answer that say that the sources have no answer. Knows English, and how some languages say that
//! they do not know.
//!
//! An abstention begins with words of a few classes: who speaks, a denial, and what sources or speakers do not do. What they do not have
//! may follow, and nothing else.

/// What is tested: a sentence, or a clause of one, which must say nothing else, since the rest of the sentence makes a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Extent {
    Sentence,
    Clause,
}

/// What an answer calls its sources.
const SOURCES: &str = "chunks context document documents excerpt excerpts information passage passages source sources text texts";

const DENIALS: &str = "cannot no none not nothing unable unclear unsure";

/// What sources or their reader do not do.
const SAYING: &str = "answer available clear contained find found given know mention mentioned mentions provided said say says \
                      specified specifies specify state stated states tell unclear";

/// The same in a sentence only: "The form must be signed, but the document does not contain a signature."
const HAVING: &str = "contain contains include includes have";

/// What is not done with an answer that is not there, whoever does not do it.
const SAID: &str = "mentioned specified stated";

const DOUBTS: &str = "certain sure unsure";

/// What there is not: "no information about fees".
const MISSING: &str = "answer information mention";

/// What else stands before what is missing.
const FRAME: &str = "a able am an any are be been by can could did do does enough for from has have i in is it of on provided retrieved \
                     that the there these this to was we were your";

/// What begins the question that has no answer.
const OPEN: &str = "about how if what when where whether which who whom why";

/// What follows "no information".
const ABOUT: &str = "about concerning of on regarding";

/// Words after which a sentence goes on with something else.
const GOES_ON: &str = "although because but however since so though whereas which while";

/// What may stand before an abstention: "Unfortunately, …".
const LEADS: [&str; 4] = ["unfortunately", "based on", "sorry", "i am sorry"];

/// The most words that a clause names as missing: "does not mention a date".
const MISSING_WORDS_MAX: usize = 3;

/// Answers that find nothing.
const BLANKS: [&str; 21] = [
    "n/a",
    "unanswerable",
    "unknown",
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

const CONTRACTIONS: [(&str, &str); 5] =
    [("can't", "cannot"), ("n't", " not"), ("i'm ", "i am "), ("we're ", "we are "), ("it's ", "it is ")];

/// The longest mark of a citation, such as `[12]`, in bytes.
const MARK_BYTES_MAX: usize = 12;

/// Returns whether a text says that the sources do not have what was asked for, and nothing else.
pub(super) fn finds_nothing(text: &str, extent: Extent) -> bool {
    let lower = plain(text);
    let lower = lower.trim_matches(|c: char| c.is_whitespace() || ".!。*\"'“”".contains(c));
    if BLANKS.contains(&lower) {
        return true;
    }
    let bare = match lower.split_once(',') {
        Some((lead, rest)) if LEADS.iter().any(|begin| lead.starts_with(begin)) => rest.trim_start(),
        _ => lower,
    };
    if bare.contains(|c: char| c.is_ascii_digit() || ",;:".contains(c)) {
        return false;
    }
    let words: Vec<&str> = bare.split_whitespace().map(|word| word.trim_matches(['.', '*', '_'])).collect();
    let Some(denial) = words.iter().position(|word| has(DENIALS, word)) else { return false };
    let may_begin = |at: usize| {
        let (word, lists) = (words[at], [SOURCES, DENIALS, SAYING, HAVING, DOUBTS, MISSING, FRAME]);
        // "Does not mention that it was Karl" says who it was.
        lists.iter().any(|list| has(list, word)) && !(word == "that" && at > denial)
    };
    let head = (0..words.len()).take_while(|&at| may_begin(at)).count();
    let (begin, rest) = words.split_at(head);
    if denial >= head || rest.iter().any(|word| has(GOES_ON, word)) && rest[0] != "which" {
        return false;
    }
    let asks = rest.first().is_none_or(|word| has(OPEN, word));
    let last = |list: &str| begin.iter().rposition(|word| has(list, word)).filter(|&at| at >= denial);
    let names_sources =
        |words: &[&str]| words.iter().any(|word| has(SOURCES, word) && *word != "information");
    if last(DOUBTS).is_some() {
        return asks && begin[0] == "i";
    }
    if let Some(missing) = last(MISSING).filter(|&at| ["no", "enough"].contains(&begin[at - 1])) {
        // In something else than the sources, that something is missing is a claim.
        let is_elsewhere =
            rest.iter().position(|word| *word == "in").is_some_and(|at| !names_sources(&rest[at..]));
        let is_about = words
            .get(missing + 1)
            .is_none_or(|next| has(ABOUT, next) || has(FRAME, next) || has(SAYING, next));
        return is_about && !is_elsewhere && (asks || has(ABOUT, words[missing + 1]));
    }
    if last(SAID).is_some() && asks {
        return true;
    }
    let is_said = last(SAYING).is_some() || extent == Extent::Sentence && last(HAVING).is_some();
    let is_nowhere = rest.is_empty()
        && names_sources(&begin[denial..])
        && begin[..denial].iter().any(|word| has(MISSING, word));
    let (speaks, is_group) = (["i", "we"].contains(&begin[0]), begin[0] == "we");
    if is_nowhere || !is_said || !(speaks || names_sources(begin)) {
        return is_nowhere;
    }
    match extent {
        _ if asks => true,
        Extent::Sentence => speaks || names_sources(&begin[..denial]) || begin[0] == "none",
        // People in a story may not find something, either.
        Extent::Clause if is_group => names_sources(rest),
        Extent::Clause => !rest.contains(&"that") && rest.len() <= MISSING_WORDS_MAX,
    }
}

fn has(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|known| known == word)
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
