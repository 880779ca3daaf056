//! Abstentions: sentences and clauses of an answer that say that the sources have no answer. Knows English, and how some languages say that
//! they do not know.
//!
//! An abstention begins with words of a few classes: who speaks, a denial, and what sources or speakers do not do. What they do not have
//! may follow, and nothing else.

use thresher_text::lexicon::{self, Class, has};

/// What is tested: a sentence, or a clause of one, which must say nothing else, since the rest of the sentence makes a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Extent {
    Sentence,
    Clause,
}

/// The most words that a clause names as missing: "does not mention a date".
const MISSING_WORDS_MAX: usize = 3;

const CONTRACTIONS: [(&str, &str); 5] =
    [("can't", "cannot"), ("n't", " not"), ("i'm ", "i am "), ("we're ", "we are "), ("it's ", "it is ")];

/// The longest mark of a citation, such as `[12]`, in bytes.
const MARK_BYTES_MAX: usize = 12;

/// Returns whether a text says that the sources do not have what was asked for, and nothing else.
pub(super) fn finds_nothing(text: &str, extent: Extent) -> bool {
    let lower = plain(text);
    let lower = lower.trim_matches(|c: char| c.is_whitespace() || ".!。*\"'“”".contains(c));
    if lexicon::is_phrase(Class::Unknown, lower) {
        return true;
    }
    let bare = match lower.split_once(',') {
        Some((lead, rest)) if lexicon::strip(Class::Regrets, lead).is_some() => rest.trim_start(),
        _ => lower,
    };
    if bare.contains(|c: char| c.is_ascii_digit() || ",;:".contains(c)) {
        return false;
    }
    let words: Vec<&str> = bare.split_whitespace().map(|word| word.trim_matches(['.', '*', '_'])).collect();
    let Some(denial) = words.iter().position(|word| has(Class::Lacks, word)) else { return false };
    let may_begin = |at: usize| {
        let (word, classes) = (
            words[at],
            [
                Class::Source,
                Class::Lacks,
                Class::Says,
                Class::Has,
                Class::Doubts,
                Class::Lacked,
                Class::Abstention,
            ],
        );
        // "Does not mention that it was Karl" says who it was.
        classes.iter().any(|class| has(*class, word)) && !(word == "that" && at > denial)
    };
    let head = (0..words.len()).take_while(|&at| may_begin(at)).count();
    let (begin, rest) = words.split_at(head);
    if denial >= head || rest.iter().any(|word| has(Class::GoesOn, word)) && rest[0] != "which" {
        return false;
    }
    let asks = rest.first().is_none_or(|word| has(Class::Unanswered, word));
    let last = |class: Class| begin.iter().rposition(|word| has(class, word)).filter(|&at| at >= denial);
    let names_sources =
        |words: &[&str]| words.iter().any(|word| has(Class::Source, word) && *word != "information");
    if last(Class::Doubts).is_some() {
        return asks && begin[0] == "i";
    }
    if let Some(missing) = last(Class::Lacked).filter(|&at| ["no", "enough"].contains(&begin[at - 1])) {
        // In something else than the sources, that something is missing is a claim.
        let is_elsewhere =
            rest.iter().position(|word| *word == "in").is_some_and(|at| !names_sources(&rest[at..]));
        let is_about = words.get(missing + 1).is_none_or(|next| {
            has(Class::About, next) || has(Class::Abstention, next) || has(Class::Says, next)
        });
        return is_about && !is_elsewhere && (asks || has(Class::About, words[missing + 1]));
    }
    if last(Class::Said).is_some() && asks {
        return true;
    }
    let is_said = last(Class::Says).is_some() || extent == Extent::Sentence && last(Class::Has).is_some();
    let is_nowhere = rest.is_empty()
        && names_sources(&begin[denial..])
        && begin[..denial].iter().any(|word| has(Class::Lacked, word));
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
