//! What of a conversation may be compressed, and for which question.
//!
//! A turn is what stands between two answers of the model. Its pieces are compressed when it is the newest, for the last thing that the
//! user has said; from then on they are what they were then, so that a provider's cache of the prompt's beginning stays good. Instructions
//! stand for the whole conversation and are a turn of their own, which is new whenever they say something else.

use std::ops::Range;

use blake3::Hasher;

use super::dialect::{Conversation, Kind, Message, Part, Role};
use super::json::Located;
use crate::text;

/// Strings of a JSON text that are shorter are left alone: names, dates, addresses.
const JSON_STRING_BYTES_MIN: usize = 200;

/// Lists and objects inside each other in which strings are looked for.
const JSON_DEPTH_MAX: usize = 64;

/// The end of what the user has said that is read as the question, in bytes: what is asked stands last.
const QUERY_BYTES_MAX: usize = 1_000;

/// What may be compressed, beside documents and search results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Tools whose results may; `*` for all.
    pub tools: Vec<String>,
    /// What stands around a context in a text; none where contexts are not looked for.
    pub delimiters: Option<(String, String)>,
    /// Whether the upstream tells places in documents and search results itself: then these stay as they are.
    pub keeps_documents: bool,
}

/// A text that may be compressed.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Bytes of the body where the string stands that it is written in.
    pub at: Range<usize>,
    /// Bytes of that string's text.
    pub part: Range<usize>,
    /// Whether it is written there as a string of JSON, in quotes.
    pub quoted: bool,
    /// What it says.
    pub text: String,
    /// What it is.
    pub kind: Kind,
    /// What it is called.
    pub title: Option<String>,
    /// Where it is from.
    pub source: Option<String>,
}

/// What stands between two answers.
#[derive(Debug, Clone)]
pub struct Turn {
    /// A hash of the conversation up to the end of the turn; of instructions, what they say and how the conversation begins.
    pub key: [u8; 32],
    /// Whether these are instructions.
    pub stands: bool,
    /// The end of the last thing that the user has said by then.
    pub query: String,
    /// In the order of the conversation.
    pub pieces: Vec<Piece>,
    /// Where the user's last message of the turn stands.
    pub asked_at: Option<Range<usize>>,
}

/// The turns of a conversation, instructions first, the newest last.
pub fn turns(conversation: &Conversation, policy: &Policy) -> Vec<Turn> {
    let mut instructions = Turn::new(true);
    let mut turns: Vec<Turn> = Vec::new();
    let mut hasher = Hasher::new_derive_key("thresher 2026 conversation 1");
    let (mut query, mut answered) = (String::new(), true);
    let messages = &conversation.messages;
    let begins = messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len());
    let (instructing, messages) = messages.split_at(begins);
    let mut beginning = hasher.clone();
    instructing.iter().chain(messages.first()).for_each(|message| hash(&mut beginning, message));
    for part in instructing.iter().flat_map(|message| &message.parts) {
        pieces(part, policy, &mut instructions.pieces);
    }
    instructions.key = *beginning.finalize().as_bytes();
    for message in messages {
        hash(&mut hasher, message);
        if message.role == Role::Assistant {
            answered = true;
            continue;
        }
        if std::mem::take(&mut answered) {
            turns.push(Turn::new(false));
        }
        let turn = turns.last_mut().expect("just put there");
        let mut said = String::new();
        for part in &message.parts {
            let rest = pieces(part, policy, &mut turn.pieces);
            if message.role == Role::User && part.kind == Kind::Said {
                said.push_str(if said.is_empty() { "" } else { "\n" });
                said.push_str(&rest);
            }
        }
        if !said.trim().is_empty() {
            query = tail(said.trim());
            turn.asked_at = Some(message.at.range());
        }
        turn.query.clone_from(&query);
        turn.key = *hasher.finalize().as_bytes();
    }
    instructions.query = query;
    if !instructions.pieces.is_empty() {
        turns.insert(0, instructions);
    }
    turns
}

/// Bytes of all that a conversation says beside its pieces.
pub fn said_bytes(conversation: &Conversation, turns: &[Turn]) -> usize {
    let all: usize = conversation.messages.iter().flat_map(|m| &m.parts).map(|part| part.text.len()).sum();
    let pieces: usize = turns.iter().flat_map(|turn| &turn.pieces).map(|piece| piece.text.len()).sum();
    all.saturating_sub(pieces)
}

impl Turn {
    fn new(stands: bool) -> Self {
        Self { key: [0; 32], stands, query: String::new(), pieces: Vec::new(), asked_at: None }
    }
}

/// Finds the pieces of a part; what it says beside them.
fn pieces(part: &Part, policy: &Policy, found: &mut Vec<Piece>) -> String {
    let piece = |range: Range<usize>, quoted: bool, text: String| Piece {
        at: part.at.range(),
        part: range,
        quoted,
        text,
        kind: part.kind.clone(),
        title: part.title.clone(),
        source: part.source.clone(),
    };
    match &part.kind {
        Kind::Document(..) | Kind::SearchResult(..) if policy.keeps_documents => {}
        Kind::Document(..) | Kind::SearchResult(..) => {
            found.push(piece(0..part.text.len(), false, part.text.clone()));
        }
        Kind::Tool { name, .. } => {
            if policy.tools.iter().any(|tool| tool == "*" || tool == name) {
                match structured(&part.text) {
                    Some(json) => {
                        strings(json, JSON_DEPTH_MAX, &mut |at, text| found.push(piece(at, true, text)))
                    }
                    None => found.push(piece(0..part.text.len(), false, part.text.clone())),
                }
            }
        }
        Kind::Said => {
            let Some((start, end)) = &policy.delimiters else { return part.text.clone() };
            let (mut rest, mut at) = (String::new(), 0);
            while let Some(context) = between(&part.text, at, (start, end)) {
                rest.push_str(&part.text[at..context.start - start.len()]);
                found.extend(
                    paragraphs(&part.text, context.clone())
                        .map(|range| piece(range.clone(), false, part.text[range].to_owned())),
                );
                at = context.end + end.len();
            }
            rest.push_str(&part.text[at..]);
            return rest;
        }
    }
    String::new()
}

/// An object, a list or a string of JSON: it has to stay one.
fn structured(text: &str) -> Option<Located<'_>> {
    let begins = text.trim_start().starts_with(['{', '[', '"']);
    begins.then(|| Located::parse(text).ok()).flatten()
}

/// The long strings in a JSON text, each where it stands.
fn strings(json: Located, depth: usize, found: &mut impl FnMut(Range<usize>, String)) {
    match json.text() {
        Some(text) if text.len() >= JSON_STRING_BYTES_MIN => found(json.range(), text),
        None if depth > 0 => {
            json.items().into_iter().for_each(|item| strings(item, depth - 1, found));
            json.fields().into_iter().for_each(|(_, value)| strings(value, depth - 1, found));
        }
        _ => {}
    }
}

/// The last of what a user says, from the beginning of a sentence on.
pub fn tail(query: &str) -> String {
    // Sentences of a text without end are not looked for in all of it.
    let far = query.ceil_char_boundary(query.len().saturating_sub(4 * QUERY_BYTES_MAX));
    let query = &query[far..];
    let mut from = query.len();
    for sentence in text::sentences(query).into_iter().rev() {
        if query.len() - sentence.start > QUERY_BYTES_MAX && from < query.len() {
            break;
        }
        from = sentence.start;
    }
    let last = &query[from..];
    last[last.ceil_char_boundary(last.len().saturating_sub(QUERY_BYTES_MAX))..].to_owned()
}

/// What stands between the next two delimiters from `at` on.
fn between(text: &str, at: usize, (start, end): (&str, &str)) -> Option<Range<usize>> {
    let from = at + text[at..].find(start)? + start.len();
    let to = from + text[from..].find(end)?;
    Some(from..to)
}

/// Stretches of text that blank lines part, without the white space around them.
fn paragraphs(text: &str, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (mut found, mut open): (Vec<Range<usize>>, bool) = (Vec::new(), false);
    let mut at = range.start;
    for line in text[range].split_inclusive('\n') {
        let words = line.trim();
        let start = at + (line.len() - line.trim_start().len());
        at += line.len();
        match (words.is_empty(), open) {
            (true, _) => open = false,
            (false, true) => found.last_mut().expect("one is open").end = start + words.len(),
            (false, false) => {
                found.push(start..start + words.len());
                open = true;
            }
        }
    }
    found.into_iter()
}

/// All that a message says. What clients change from turn to turn (marks for the cache, what was cited) is no part of it.
fn hash(hasher: &mut Hasher, message: &Message) {
    // Who says nothing may be left out the next time: reasoning is.
    if message.parts.is_empty() {
        return;
    }
    hasher.update(&[message.role as u8]);
    hasher.update(&(message.parts.len() as u64).to_le_bytes());
    for part in &message.parts {
        let kind = match &part.kind {
            Kind::Said => "",
            Kind::Document(..) => "document",
            Kind::SearchResult(..) => "search_result",
            Kind::Tool { id, .. } => id,
        };
        for text in [kind, part.title.as_deref().unwrap_or_default(), &part.text] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::dialect::Dialect;

    fn found(body: &str, policy: &Policy) -> Vec<Turn> {
        turns(&Dialect::Chat.conversation(Located::parse(body).expect("JSON")), policy)
    }

    fn chat(messages: &[(&str, &str)]) -> String {
        let message = |(role, content): &(&str, &str)| serde_json::json!({"role": role, "content": content});
        serde_json::json!({"messages": messages.iter().map(message).collect::<Vec<_>>()}).to_string()
    }

    fn policy() -> Policy {
        let delimiters = Some(("<c>".to_owned(), "</c>".to_owned()));
        Policy { tools: vec!["*".to_owned()], delimiters, keeps_documents: false }
    }

    #[test]
    fn contexts_are_cut_at_blank_lines_and_are_no_question() {
        let body = chat(&[("user", "Look: <c>\nOne.\nTwo.\n\n  Three. \n</c> When? <c>Four</c>")]);
        let turns = found(&body, &policy());
        let texts: Vec<&str> = turns[0].pieces.iter().map(|piece| &*piece.text).collect();
        assert_eq!(texts, ["One.\nTwo.", "Three.", "Four"]);
        assert_eq!(turns[0].query, "Look:  When?");
        assert_eq!(found(&body, &Policy::default())[0].pieces.len(), 0);
        assert_eq!(found(&chat(&[("user", "<c>open")]), &policy())[0].pieces.len(), 0, "never closed");
    }

    #[test]
    fn turns_end_with_an_answer() {
        let first = [("system", "S"), ("user", "Q1"), ("assistant", "A1")];
        let second = [&first[..], &[("tool", "R"), ("user", "Q2")]].concat();
        let turns = found(&chat(&second), &policy());
        let told: Vec<_> = turns.iter().map(|turn| (&*turn.query, turn.pieces.len())).collect();
        assert_eq!(told, [("Q1", 0), ("Q2", 1)]);
        assert_eq!(found(&chat(&first), &policy())[0].key, turns[0].key, "a turn's name stays");
        let other = [("system", "T"), ("user", "Q1")];
        assert_eq!(found(&chat(&other), &policy())[0].key, turns[0].key, "instructions are no part of it");
        let later = [&second[..], &[("assistant", "A2"), ("system", "Be brief."), ("user", "Q3")]].concat();
        let later = found(&chat(&later), &policy());
        assert_eq!((later[0].key, later[1].key), (turns[0].key, turns[1].key), "nor those that come later");
    }

    #[test]
    fn instructions_are_new_when_they_say_something_else() {
        let asked = |context: &str, more: &[(&str, &str)]| {
            let system = format!("Answer. <c>{context}</c>");
            let body = chat(&[&[("system", &*system), ("user", "Q1")], more].concat());
            let first = found(&body, &policy()).remove(0);
            assert!(first.stands);
            (first.key, first.query)
        };
        let later = [("assistant", "A1"), ("user", "Q2")];
        let ((first, query), (second, next)) = (asked("One.", &[]), asked("One.", &later));
        assert_eq!((first, &*query, &*next), (second, "Q1", "Q2"));
        assert_ne!(asked("Two.", &later).0, second);
    }

    #[test]
    fn json_stays_json() {
        let long = "A sentence of some length. ".repeat(10);
        let result = serde_json::json!({"hits": [{"id": "x", "text": long}], "n": 1}).to_string();
        let turns = found(&chat(&[("tool", &result)]), &policy());
        let [piece] = &turns[0].pieces[..] else { panic!("one long string") };
        assert!(piece.quoted);
        assert_eq!((&*piece.text, &result[piece.part.clone()]), (&*long, &*format!("{long:?}")));
        let turns = found(&chat(&[("tool", &serde_json::json!(long).to_string())]), &policy());
        assert!(turns[0].pieces[0].quoted, "a string alone");
        let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(found(&chat(&[("tool", &deep)]), &policy())[0].pieces.len(), 0, "deeper than any stack");
        let turns = found(&chat(&[("tool", "[1] not JSON")]), &policy());
        assert_eq!(turns[0].pieces.len(), 1, "a text that looks like it");
    }

    #[test]
    fn only_named_tools() {
        let call = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "find"}}]}"#;
        let body =
            format!(r#"{{"messages": [{call}, {{"role": "tool", "tool_call_id": "1", "content": "R"}}]}}"#);
        let named = |name: &str| Policy { tools: vec![name.to_owned()], ..Policy::default() };
        assert_eq!(found(&body, &named("find"))[0].pieces.len(), 1);
        assert_eq!(found(&body, &named("other"))[0].pieces.len(), 0);
    }
}
