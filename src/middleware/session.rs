//! Sessions of conversations that a gateway has compressed: what was returned of a conversation is returned again in every later turn, byte
//! for byte, so that the provider's prompt cache keeps hitting.
//!
//! A gateway sends the whole conversation in every turn, and forwards what it gets. A message is known by the texts up to its end, as a turn
//! is: the session goes on up to the first message that differs, and what follows is new. Several conversations may take turns in one session,
//! such as those of an agent and its helpers.

use std::collections::HashMap;

use blake3::Hasher;
use serde::{Deserialize, Serialize};

use super::dialect::{Conversation, Message, Part};
use super::find;
use super::rewrite::Shortened;

pub const SESSION_ID_CHARS_MAX: usize = 256;

/// The key of a value in the store of originals.
pub type Key = [u8; 32];

/// A value in the store of originals, and its key.
pub type Entry = (Key, Vec<u8>);

pub trait SessionStore {
    /// Returns the value with this key, if the store has it.
    fn get(&self, key: &Key) -> Option<Vec<u8>>;
}

/// Where a session keeps what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionKeys {
    /// What the keys of its messages are made of.
    messages: Key,
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
    chain: Vec<Link>,
    /// How many messages at the beginning of the conversation come back as they were returned before.
    pub returned_count: usize,
    /// The texts that come back as they were returned before, shortened.
    pub replayed: Vec<Shortened>,
}

/// A message that has text, and the hash of the conversation up to it.
#[derive(Debug)]
struct Link {
    /// The index of the message in the conversation.
    index: usize,
    /// The hash of the conversation up to the end of the message.
    hash: String,
    is_returned: bool,
}

impl SessionKeys {
    pub fn derive(id: &str) -> Self {
        Self { messages: blake3::derive_key("thresher 2026 session messages 1", id.as_bytes()) }
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
    /// Goes on with a session, or starts it if the store knows nothing of it. Every message that was returned in the same conversation comes back
    /// as it was, whatever else was returned since. A message that the store no longer knows is new.
    pub fn resume(keys: SessionKeys, conversation: &Conversation, store: &dyn SessionStore) -> Self {
        let mut session = Self { keys, chain: chain(conversation), returned_count: 0, replayed: Vec::new() };
        for link in &mut session.chain {
            let texts: Option<Vec<ReturnedText>> = read(store, &keys.message(&link.hash));
            let texts = texts.and_then(|texts| shortened(&conversation.messages[link.index], texts));
            link.is_returned = texts.is_some();
            session.replayed.extend(texts.unwrap_or_default());
        }
        // A message without text, such as a call of a tool, changes nothing.
        session.returned_count = match session.chain.iter().position(|link| !link.is_returned) {
            Some(0) => 0,
            Some(new) => session.chain[new].index,
            None if session.chain.is_empty() => 0,
            None => conversation.messages.len(),
        };
        session
    }

    /// Returns whether the message at `index` comes back as it was returned before.
    pub fn has_returned(&self, index: usize) -> bool {
        let found = self.chain.binary_search_by_key(&index, |link| link.index);
        found.map_or(index < self.returned_count, |at| self.chain[at].is_returned)
    }

    /// Returns what to store once the conversation is returned with these texts shortened, in addition to those that are replayed: the
    /// shortened texts of each message with text, none for a message that came back unchanged. Messages from `protected_from` on were not to be shortened yet: they are not remembered, so that a later turn may shorten them.
    pub fn entries(
        self,
        conversation: &Conversation,
        new: &[Shortened],
        protected_from: usize,
    ) -> Vec<Entry> {
        let new: HashMap<usize, &Shortened> = new.iter().map(|text| (text.at.start, text)).collect();
        let links = self.chain.iter().filter(|link| !link.is_returned && link.index < protected_from);
        let entry = |link: &Link| {
            let text_of = |(part, of): (usize, &Part)| {
                let Shortened { text, is_json, .. } = *new.get(&of.at.range().start)?;
                Some(ReturnedText { part, text: text.clone(), is_json: *is_json })
            };
            let parts = conversation.messages[link.index].parts.iter().enumerate();
            let texts: Vec<ReturnedText> = parts.filter_map(text_of).collect();
            (self.keys.message(&link.hash), serde_json::to_vec(&texts).expect("it is JSON"))
        };
        links.map(entry).collect()
    }
}

/// The hash of the conversation up to the end of each message with text, with the index of the message. Fields that clients change between
/// turns, such as cache marks, do not change it.
fn chain(conversation: &Conversation) -> Vec<Link> {
    let mut hasher = Hasher::new_derive_key("thresher 2026 session chain 1");
    let mut chain = Vec::new();
    for (index, message) in conversation.messages.iter().enumerate() {
        find::hash(&mut hasher, message);
        if !message.parts.is_empty() {
            let hash = hex::encode(&hasher.finalize().as_bytes()[..16]);
            chain.push(Link { index, hash, is_returned: false });
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

    impl Stored {
        fn put(&mut self, returned: Vec<Entry>) {
            for (key, value) in returned {
                self.0.entry(key).or_insert(value);
            }
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
        let session = Session::resume(SessionKeys::derive("s"), &conversation, store);
        let found = (
            session.returned_count,
            session.replayed.iter().map(|shortened| shortened.text.clone()).collect::<Vec<_>>(),
        );
        let messages = conversation.messages.iter().enumerate();
        let new = messages.filter(|(index, _)| !session.has_returned(*index));
        let new = new.flat_map(|(_, message)| &message.parts);
        let new: Vec<Shortened> = new
            .filter_map(|part| {
                let text = part.text.strip_prefix("long ")?.to_owned();
                let (at, original) = (part.at.range(), part.text.clone());
                let left_out = String::new();
                Some(Shortened { at, original, text, is_json: false, left_out, is_marked: false })
            })
            .collect();
        store.put(session.entries(&conversation, &new, usize::MAX));
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
        let both = (4, vec!["one".to_owned(), "two".to_owned()]);
        assert_eq!(turn(&mut store, &second), both, "the first one again");
        assert_eq!(turn(&mut store, &other), both, "and the other one");
    }

    #[test]
    fn a_message_whose_texts_were_dropped_is_new() {
        let mut store = Stored::default();
        let messages = [("user", "Q"), ("tool", "long one"), ("tool", "long two")];
        turn(&mut store, &messages);
        let keys = SessionKeys::derive("s");
        let body = body(&messages);
        let chain = chain(&Dialect::Chat.conversation(Located::parse(&body).expect("JSON")));
        assert!(store.0.remove(&keys.message(&chain[1].hash)).is_some());
        assert_eq!(turn(&mut store, &messages), (1, vec!["two".to_owned()]), "those after it are not");
        assert_eq!(turn(&mut store, &messages), (3, vec!["one".to_owned(), "two".to_owned()]));
        store.0.insert(keys.message(&chain[0].hash), b"not JSON".to_vec());
        let (returned_count, replayed) = turn(&mut store, &messages);
        assert_eq!((returned_count, replayed.len()), (0, 2), "a record that cannot be read");
    }

    #[test]
    fn messages_that_are_protected_for_now_may_be_shortened_later() {
        let mut store = Stored::default();
        let body = body(&[("user", "Q"), ("tool", "one")]);
        let conversation = Dialect::Chat.conversation(Located::parse(&body).expect("JSON"));
        let resume = |store: &Stored| Session::resume(SessionKeys::derive("s"), &conversation, store);
        store.put(resume(&store).entries(&conversation, &[], 1));
        let next = resume(&store);
        assert_eq!((next.returned_count, next.has_returned(0), next.has_returned(1)), (1, true, false));
        assert_eq!(next.entries(&conversation, &[], 2).len(), 1);
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
                let session = Session::resume(SessionKeys::derive("s"), &conversation, &store);
                count = session.returned_count;
                store.put(session.entries(&conversation, &[], usize::MAX));
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
