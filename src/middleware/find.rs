//! What of a conversation may be compressed, and for which question.
//!
//! A turn is what stands between two answers of the model. Its pieces are compressed when it is the newest, for the last thing that the
//! user has said; from then on they are what they were then, so that a provider's cache of the prompt's beginning stays good. Instructions
//! stand for the whole conversation and are a turn of their own, which is new whenever they say something else.

use std::ops::Range;
use std::sync::Arc;

use blake3::Hasher;
use thiserror::Error;
use thresher_core::text;

use super::dialect::{Conversation, Kind, Message, PART_COUNT_MAX, Part, Role};
use super::json::Located;
use crate::error::ErrorCode;

/// Strings of a JSON text that are shorter are left alone: names, dates, addresses.
const JSON_STRING_BYTES_MIN: usize = 200;

/// Bytes of titles, sources, and names and ids of tools, counted for each text and each piece that has them: one long title may stand above
/// thousands of texts.
const NAME_BYTES_MAX: usize = 16 * 1024 * 1024;

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
    /// How much a conversation may hold.
    pub bounds: Bounds,
}

/// How much a conversation may hold. One that holds more is not compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Turns.
    pub turn_count_max: usize,
    /// Pieces.
    pub piece_count_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { turn_count_max: 2_000, piece_count_max: 20_000 }
    }
}

/// Why nothing of a conversation is compressed: it holds more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TooMany {
    /// Of messages, texts and calls.
    #[error(
        "the conversation has more than {PART_COUNT_MAX} messages, texts and calls of tools; send a shorter one"
    )]
    Parts,
    /// Of turns.
    #[error("the conversation has more than {0} turns (middleware.turn_count_max)")]
    Turns(usize),
    /// Of pieces.
    #[error("the conversation has more than {0} texts that can be compressed (middleware.piece_count_max)")]
    Pieces(usize),
    /// Of bytes of names.
    #[error(
        "titles, sources, and names and ids of tools take more than {NAME_BYTES_MAX} bytes, counted for each text that has them; shorten them"
    )]
    NameBytes,
}

impl TooMany {
    /// The code of errors about it, and of the header `x-thresher-reason`.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Parts => ErrorCode::PartTooMany,
            Self::Turns(_) => ErrorCode::TurnTooMany,
            Self::Pieces(_) => ErrorCode::PieceTooMany,
            Self::NameBytes => ErrorCode::NameTooLong,
        }
    }
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
    pub title: Option<Arc<str>>,
    /// Where it is from.
    pub source: Option<Arc<str>>,
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

/// The turns of a conversation.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    /// Instructions first, the newest last.
    pub turns: Vec<Turn>,
    /// Why there is at most one, without pieces: the last in which the user says something.
    pub too_many: Option<TooMany>,
}

/// Finds the turns of a conversation.
pub fn turns(conversation: &Conversation, policy: &Policy) -> Turns {
    match within_bounds(conversation, policy) {
        Ok(turns) => Turns { turns, too_many: None },
        Err(too_many) => {
            let asking = conversation.messages.iter().rev().find_map(|message| asking(message, policy));
            Turns { turns: asking.into_iter().collect(), too_many: Some(too_many) }
        }
    }
}

fn within_bounds(conversation: &Conversation, policy: &Policy) -> Result<Vec<Turn>, TooMany> {
    if conversation.is_cut {
        return Err(TooMany::Parts);
    }
    let mut finder = Finder { policy, piece_count: 0, name_bytes: 0 };
    let mut instructions = Turn::new(true);
    let mut turns: Vec<Turn> = Vec::new();
    let mut hasher = Hasher::new_derive_key("thresher 2026 conversation 1");
    let (mut query, mut answered) = (String::new(), true);
    let messages = &conversation.messages;
    // A name is hashed for every text that has it.
    messages.iter().flat_map(|message| &message.parts).try_for_each(|part| finder.count_names(part))?;
    let begins = messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len());
    let (instructing, messages) = messages.split_at(begins);
    let mut beginning = hasher.clone();
    instructing.iter().chain(messages.first()).for_each(|message| hash(&mut beginning, message));
    for part in instructing.iter().flat_map(|message| &message.parts) {
        finder.pieces(part, &mut instructions.pieces)?;
    }
    instructions.key = *beginning.finalize().as_bytes();
    for message in messages {
        hash(&mut hasher, message);
        if message.role == Role::Assistant {
            answered = true;
            continue;
        }
        if std::mem::take(&mut answered) {
            if turns.len() == policy.bounds.turn_count_max {
                return Err(TooMany::Turns(policy.bounds.turn_count_max));
            }
            turns.push(Turn::new(false));
        }
        let turn = turns.last_mut().expect("just put there");
        let mut said = String::new();
        for part in &message.parts {
            let rest = finder.pieces(part, &mut turn.pieces)?;
            say(message, part, &rest, &mut said);
        }
        if let Some(asked) = question(&said) {
            query = asked;
            turn.asked_at = Some(message.at.range());
        }
        turn.query.clone_from(&query);
        turn.key = *hasher.finalize().as_bytes();
    }
    instructions.query = query;
    if !instructions.pieces.is_empty() {
        turns.insert(0, instructions);
    }
    Ok(turns)
}

/// The turn of a message in which the user says something, without its pieces.
fn asking(message: &Message, policy: &Policy) -> Option<Turn> {
    let mut said = String::new();
    for part in &message.parts {
        let rest = beside_contexts(&part.text, policy, |_| Ok(())).unwrap_or_default();
        say(message, part, &rest, &mut said);
    }
    let query = question(&said)?;
    Some(Turn { query, asked_at: Some(message.at.range()), ..Turn::new(false) })
}

fn say(message: &Message, part: &Part, rest: &str, said: &mut String) {
    if message.role == Role::User && part.kind == Kind::Said {
        said.push_str(if said.is_empty() { "" } else { "\n" });
        said.push_str(rest);
    }
}

fn question(said: &str) -> Option<String> {
    let said = said.trim();
    (!said.is_empty()).then(|| tail(said))
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

/// Finds pieces, and counts them.
struct Finder<'a> {
    policy: &'a Policy,
    piece_count: usize,
    name_bytes: usize,
}

impl Finder<'_> {
    /// Finds the pieces of a part; what it says beside them.
    fn pieces(&mut self, part: &Part, found: &mut Vec<Piece>) -> Result<String, TooMany> {
        let whole = 0..part.text.len();
        match &part.kind {
            Kind::Document(..) | Kind::SearchResult(..) if self.policy.keeps_documents => {}
            Kind::Document(..) | Kind::SearchResult(..) => self.piece(part, (whole, false), found)?,
            Kind::Tool { name, .. } => {
                if self.policy.tools.iter().any(|tool| tool == "*" || **tool == **name) {
                    match structured(&part.text) {
                        Some(json) => json
                            .strings(JSON_STRING_BYTES_MIN)
                            .try_for_each(|string| self.piece(part, (string.range(), true), found))?,
                        None => self.piece(part, (whole, false), found)?,
                    }
                }
            }
            Kind::Said => {
                return beside_contexts(&part.text, self.policy, |range| {
                    self.piece(part, (range, false), found)
                });
            }
        }
        Ok(String::new())
    }

    fn piece(
        &mut self,
        part: &Part,
        (range, quoted): (Range<usize>, bool),
        found: &mut Vec<Piece>,
    ) -> Result<(), TooMany> {
        let written = &part.text[range.clone()];
        let text = match quoted {
            false => written.to_owned(),
            true => match serde_json::from_str::<String>(written) {
                Ok(text) if text.len() >= JSON_STRING_BYTES_MIN => text,
                // Shorter than it looks, or half a surrogate pair.
                _ => return Ok(()),
            },
        };
        if self.piece_count == self.policy.bounds.piece_count_max {
            return Err(TooMany::Pieces(self.piece_count));
        }
        self.piece_count += 1;
        self.count_names(part)?;
        found.push(Piece {
            at: part.at.range(),
            part: range,
            quoted,
            text,
            kind: part.kind.clone(),
            title: part.title.clone(),
            source: part.source.clone(),
        });
        Ok(())
    }

    fn count_names(&mut self, part: &Part) -> Result<(), TooMany> {
        self.name_bytes += part.name_bytes();
        if self.name_bytes > NAME_BYTES_MAX { Err(TooMany::NameBytes) } else { Ok(()) }
    }
}

/// What a text says beside its contexts, of which `found` is told every paragraph.
fn beside_contexts(
    text: &str,
    policy: &Policy,
    mut found: impl FnMut(Range<usize>) -> Result<(), TooMany>,
) -> Result<String, TooMany> {
    let Some((start, end)) = &policy.delimiters else { return Ok(text.to_owned()) };
    let (mut rest, mut at) = (String::new(), 0);
    while let Some(context) = between(text, at, (start, end)) {
        rest.push_str(&text[at..context.start - start.len()]);
        at = context.end + end.len();
        paragraphs(text, context).try_for_each(&mut found)?;
    }
    rest.push_str(&text[at..]);
    Ok(rest)
}

/// An object, a list or a string of JSON: it has to stay one.
fn structured(text: &str) -> Option<Located<'_>> {
    let begins = text.trim_start().starts_with(['{', '[', '"']);
    begins.then(|| Located::parse(text).ok()).flatten()
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

/// Stretches of text that blank lines part, without the white space around them. They are found one at a time: a long text of short lines has
/// as many as it has lines.
fn paragraphs(text: &str, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    let mut lines = text[range].split_inclusive('\n');
    std::iter::from_fn(move || {
        let mut open: Option<Range<usize>> = None;
        for line in lines.by_ref() {
            let words = line.trim();
            let start = at + (line.len() - line.trim_start().len());
            at += line.len();
            match (words.is_empty(), &mut open) {
                (true, None) => {}
                (true, Some(_)) => return open,
                (false, Some(paragraph)) => paragraph.end = start + words.len(),
                (false, None) => open = Some(start..start + words.len()),
            }
        }
        open
    })
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
    use crate::middleware::dialect::Dialect;

    fn turns_of(body: &str, policy: &Policy) -> Turns {
        turns(&Dialect::Chat.conversation(Located::parse(body).expect("JSON")), policy)
    }

    fn found(body: &str, policy: &Policy) -> Vec<Turn> {
        let Turns { turns, too_many } = turns_of(body, policy);
        assert_eq!(too_many, None);
        turns
    }

    fn chat(messages: &[(&str, &str)]) -> String {
        let message = |(role, content): &(&str, &str)| serde_json::json!({"role": role, "content": content});
        serde_json::json!({"messages": messages.iter().map(message).collect::<Vec<_>>()}).to_string()
    }

    fn policy() -> Policy {
        let delimiters = Some(("<c>".to_owned(), "</c>".to_owned()));
        Policy { tools: vec!["*".to_owned()], delimiters, ..Policy::default() }
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
        let deep = format!("{}{long:?}{}", "[".repeat(50_000), "]".repeat(50_000));
        assert_eq!(
            found(&chat(&[("tool", &deep)]), &policy())[0].pieces[0].text,
            long,
            "a string down there"
        );
        let turns = found(&chat(&[("tool", "[1] not JSON")]), &policy());
        assert_eq!(turns[0].pieces.len(), 1, "a text that looks like it");
    }

    #[test]
    fn a_conversation_within_its_bounds_is_found_and_one_beyond_them_only_asks() {
        let bounded = |turn_count_max, piece_count_max| Policy {
            bounds: Bounds { turn_count_max, piece_count_max },
            ..policy()
        };
        let context = "<c>One.\n\nTwo.</c> When?";
        let three =
            [("user", context), ("assistant", "A"), ("user", context), ("assistant", "A"), ("tool", "R")];
        let body = chat(&three);
        assert_eq!(found(&body, &bounded(3, 5)).len(), 3);
        let check = |name: &str, policy: &Policy, too_many: TooMany| {
            let found = turns_of(&body, policy);
            assert_eq!(found.too_many, Some(too_many), "{name}");
            let [turn] = &found.turns[..] else { panic!("{name}: the turn that asks") };
            assert_eq!((&*turn.query, turn.pieces.len()), ("When?", 0), "{name}");
            let asked = turn.asked_at.clone().expect(name);
            assert_eq!(body.find(&body[asked.clone()]), body.find(r#"{"role":"user""#), "{name}");
            assert!(body[..asked.start].contains("assistant"), "{name}: the last question");
        };
        check("turns", &bounded(2, 5), TooMany::Turns(2));
        check("pieces", &bounded(3, 4), TooMany::Pieces(4));
        let only_context = turns_of(&chat(&[("user", "<c>One.</c>"), ("tool", "R")]), &bounded(9, 1));
        assert_eq!((only_context.turns.len(), only_context.too_many), (0, Some(TooMany::Pieces(1))));
        let mut messages = Vec::new();
        let id = "i".repeat(NAME_BYTES_MAX / 8);
        let of_tool = serde_json::json!({"role": "tool", "tool_call_id": id, "content": "R"});
        for is_too_long in [false, true] {
            messages.extend(vec![of_tool.clone(); 4]);
            let found = turns_of(&serde_json::json!({"messages": messages}).to_string(), &policy());
            let expect = is_too_long.then_some(TooMany::NameBytes);
            assert_eq!(found.too_many, expect, "for each text, and again for its piece");
        }
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
