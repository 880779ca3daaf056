//! Sessions of conversations that a gateway has compressed: what was returned of a conversation is returned again in every later turn, byte
//! for byte, so that the provider's prompt cache keeps hitting.
//!
//! A gateway sends the whole conversation in every turn, and forwards what it gets. A message is known by the texts up to its end, as a turn
//! is: the session goes on up to the first message that differs, and what follows is new.

use std::collections::HashMap;

use blake3::Hasher;
use serde::{Deserialize, Serialize};

use super::dialect::{Conversation, Message, Part};
use super::find;
use super::rewrite::Shortened;

/// The most characters of the id of a session.
pub const SESSION_ID_CHARS_MAX: usize = 256;

/// The key of a value in the store of originals.
pub type Key = [u8; 32];

/// A value in the store of originals, and its key.
pub type Entry = (Key, Vec<u8>);

/// A store of what sessions have returned.
pub trait SessionStore {
    /// Returns the value with this key, if the store has it.
    fn get(&self, key: &Key) -> Option<Vec<u8>>;
}

/// Where a session keeps what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionKeys {
    /// Which messages were returned.
    pub messages: Key,
    /// How much was compressed, and when the session was last used.
    pub usage: Key,
}

/// A message with text that was returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Returned {
    /// The hash of the conversation up to the end of the message.
    chain: String,
    /// Whether a text of it was shortened.
    is_shortened: bool,
}

/// A text of a message that was returned shortened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReturnedText {
    /// The index of the text in its message.
    part: usize,
    text: String,
    is_json: bool,
}

/// A session that goes on with a conversation.
#[derive(Debug)]
pub struct Session {
    keys: SessionKeys,
    /// For each message with text: its index in the conversation, and the hash of the conversation up to its end.
    chain: Vec<(usize, String)>,
    /// How many of these messages were returned before.
    known_count: usize,
    /// How many messages of the conversation come back as they were returned before.
    pub returned_count: usize,
    /// The texts of these messages that were returned shortened.
    pub replayed: Vec<Shortened>,
    returned: Vec<Returned>,
}

impl SessionKeys {
    /// Returns the keys of the session with this id.
    pub fn of(id: &str) -> Self {
        let key = |context: &str| blake3::derive_key(context, id.as_bytes());
        Self {
            messages: key("thresher 2026 session messages 1"),
            usage: key("thresher 2026 session usage 1"),
        }
    }

    /// Returns the key of the shortened texts of a message.
    fn message(&self, chain: &str) -> Key {
        let mut hasher = Hasher::new_derive_key("thresher 2026 session message 1");
        hasher.update(&self.messages);
        hasher.update(chain.as_bytes());
        *hasher.finalize().as_bytes()
    }
}

impl Session {
    /// Starts a session of which nothing was returned.
    pub fn start(keys: SessionKeys, conversation: &Conversation) -> Self {
        Self {
            keys,
            chain: chain(conversation),
            known_count: 0,
            returned_count: 0,
            replayed: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// Starts a session, or goes on with the one of which the store knows what was returned. A message whose shortened texts are no longer in
    /// the store is new, and so is all that follows it.
    pub fn resume(keys: SessionKeys, conversation: &Conversation, store: &dyn SessionStore) -> Self {
        let mut session = Self::start(keys, conversation);
        let before: Vec<Returned> = read(store, &keys.messages).unwrap_or_default();
        for ((index, hash), before) in session.chain.iter().zip(before) {
            let texts: Option<Vec<ReturnedText>> = match before.is_shortened {
                true => read(store, &keys.message(hash)),
                false => Some(Vec::new()),
            };
            let message = &conversation.messages[*index];
            let texts = texts.filter(|_| before.chain == *hash).and_then(|texts| shortened(message, texts));
            let Some(texts) = texts else { break };
            session.replayed.extend(texts);
            session.returned.push(before);
        }
        session.known_count = session.returned.len();
        // A message without text, such as a call of a tool, changes nothing.
        session.returned_count = match session.known_count {
            0 => 0,
            known => session.chain.get(known).map_or(conversation.messages.len(), |(index, _)| *index),
        };
        session
    }

    /// Returns the values to store once the conversation is returned with these texts shortened, in addition to those that are replayed.
    pub fn entries(mut self, conversation: &Conversation, new: &[Shortened]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let new: HashMap<usize, &Shortened> = new.iter().map(|text| (text.at.start, text)).collect();
        for (index, hash) in self.chain.drain(..).skip(self.known_count) {
            let text_of = |(part, of): (usize, &Part)| {
                let Shortened { text, is_json, .. } = *new.get(&of.at.range().start)?;
                Some(ReturnedText { part, text: text.clone(), is_json: *is_json })
            };
            let parts = conversation.messages[index].parts.iter().enumerate();
            let texts: Vec<ReturnedText> = parts.filter_map(text_of).collect();
            if !texts.is_empty() {
                entries.push((self.keys.message(&hash), written(&texts)));
            }
            self.returned.push(Returned { chain: hash, is_shortened: !texts.is_empty() });
        }
        entries.push((self.keys.messages, written(&self.returned)));
        entries
    }
}

/// The hash of the conversation up to the end of each message with text, with the index of the message. Fields that clients change between
/// turns, such as cache marks, do not change it.
fn chain(conversation: &Conversation) -> Vec<(usize, String)> {
    let mut hasher = Hasher::new_derive_key("thresher 2026 session chain 1");
    let mut chain = Vec::new();
    for (index, message) in conversation.messages.iter().enumerate() {
        find::hash(&mut hasher, message);
        if !message.parts.is_empty() {
            chain.push((index, hex::encode(&hasher.finalize().as_bytes()[..16])));
        }
    }
    chain
}

/// The texts at their places in `message`; `None` if the message has no such place.
fn shortened(message: &Message, texts: Vec<ReturnedText>) -> Option<Vec<Shortened>> {
    let shortened = |ReturnedText { part, text, is_json }| {
        let part = message.parts.get(part)?;
        let (at, original) = (part.at.range(), part.text.clone());
        Some(Shortened { at, original, text, is_json, left_out: String::new(), is_marked: false })
    };
    texts.into_iter().map(shortened).collect()
}

fn read<T: for<'de> Deserialize<'de>>(store: &dyn SessionStore, key: &Key) -> Option<T> {
    serde_json::from_slice(&store.get(key)?).ok()
}

fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("it is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::dialect::Dialect;
    use crate::middleware::json::Located;

    #[derive(Default)]
    struct Stored(HashMap<Key, Vec<u8>>);

    impl SessionStore for Stored {
        fn get(&self, key: &Key) -> Option<Vec<u8>> {
            self.0.get(key).cloned()
        }
    }

    fn body(messages: &[(&str, &str)]) -> String {
        let message = |(role, content): &(&str, &str)| serde_json::json!({"role": role, "content": content});
        serde_json::json!({"messages": messages.iter().map(message).collect::<Vec<_>>()}).to_string()
    }

    /// Sends a turn in which every text that begins with "long" is shortened to what follows the word. Returns how many messages were
    /// returned before, and the texts that are replayed.
    fn turn(store: &mut Stored, messages: &[(&str, &str)]) -> (usize, Vec<String>) {
        let body = body(messages);
        let conversation = Dialect::Chat.conversation(Located::parse(&body).expect("JSON"));
        let session = Session::resume(SessionKeys::of("s"), &conversation, store);
        let found = (
            session.returned_count,
            session.replayed.iter().map(|shortened| shortened.text.clone()).collect::<Vec<_>>(),
        );
        let new = conversation.messages[session.returned_count..].iter().flat_map(|message| &message.parts);
        let new: Vec<Shortened> = new
            .filter_map(|part| {
                let text = part.text.strip_prefix("long ")?.to_owned();
                let (at, original) = (part.at.range(), part.text.clone());
                let left_out = String::new();
                Some(Shortened { at, original, text, is_json: false, left_out, is_marked: false })
            })
            .collect();
        store.0.extend(session.entries(&conversation, &new));
        found
    }

    #[test]
    fn a_session_goes_on_up_to_the_first_message_that_differs() {
        let mut store = Stored::default();
        let first = [("user", "Q"), ("tool", "long one")];
        let second = [&first[..], &[("assistant", "A"), ("user", "long two")]].concat();
        assert_eq!(turn(&mut store, &first), (0, vec![]));
        assert_eq!(turn(&mut store, &second), (2, vec!["one".to_owned()]));
        assert_eq!(turn(&mut store, &second), (4, vec!["one".to_owned(), "two".to_owned()]));
        let other = [&first[..], &[("assistant", "B"), ("user", "long two")]].concat();
        assert_eq!(turn(&mut store, &other), (2, vec!["one".to_owned()]), "another answer");
        assert_eq!(turn(&mut store, &second), (2, vec!["one".to_owned()]), "the first one again");
        assert_eq!(turn(&mut store, &first[..1]), (1, vec![]), "the conversation goes back");
        assert_eq!(
            turn(&mut store, &[("user", "R"), ("tool", "long one")]),
            (0, vec![]),
            "another beginning"
        );
        assert_eq!(turn(&mut store, &[]), (0, vec![]));
    }

    #[test]
    fn a_message_whose_texts_were_dropped_is_new() {
        let mut store = Stored::default();
        let messages = [("user", "Q"), ("tool", "long one"), ("tool", "long two")];
        turn(&mut store, &messages);
        let keys = SessionKeys::of("s");
        let body = body(&messages);
        let chain = chain(&Dialect::Chat.conversation(Located::parse(&body).expect("JSON")));
        assert!(store.0.remove(&keys.message(&chain[1].1)).is_some());
        assert_eq!(turn(&mut store, &messages), (1, vec![]));
        assert_eq!(turn(&mut store, &messages), (3, vec!["one".to_owned(), "two".to_owned()]));
        store.0.insert(keys.messages, b"not JSON".to_vec());
        assert_eq!(turn(&mut store, &messages), (0, vec![]), "a record that cannot be read");
    }

    #[test]
    fn cache_marks_and_calls_of_tools_do_not_end_a_session() {
        let check = |messages: &str, expect: usize| {
            let mut store = Stored::default();
            let first = r#"[{"role": "user", "content": [{"type": "text", "text": "Q", "cache_control": {"type": "ephemeral"}}]}]"#;
            let mut count = 0;
            for messages in [first, messages] {
                let body = format!(r#"{{"messages": {messages}}}"#);
                let conversation = Dialect::Chat.conversation(Located::parse(&body).expect("JSON"));
                let session = Session::resume(SessionKeys::of("s"), &conversation, &store);
                count = session.returned_count;
                store.0.extend(session.entries(&conversation, &[]));
            }
            assert_eq!(count, expect, "{messages}");
        };
        let (asked, call) =
            (r#"{"role": "user", "content": "Q"}"#, r#"{"role": "assistant", "tool_calls": []}"#);
        check(&format!("[{asked}]"), 1);
        check(&format!(r#"[{asked}, {call}, {{"role": "tool", "content": "R"}}]"#), 2);
        check(&format!("[{call}, {asked}]"), 2);
        check(&format!(r#"[{call}, {{"role": "user", "content": "Q2"}}]"#), 0);
    }
}
