//! The prompt of a conversation: its tokens, and where text was left out, which says what the text would have been billed as.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::dialect::{Conversation, Message, Part, PartKind, Role};
use super::json::Located;
use super::rewrite::{Rewritten, Shortened};

/// A place of the prompt at which text was left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Omission {
    /// The place, as a share of the prompt before it, from 0 to 1.
    pub at: f64,
    /// Bytes of the text that was left out.
    pub bytes: usize,
}

/// Bytes of the chunks that a request adds to its conversation.
#[derive(Debug, Clone, Copy, Default)]
pub struct AddedBytes {
    pub whole: usize,
    pub kept: usize,
}

/// The texts of a prompt by their places in the body: what is counted of a conversation after it has been read.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    texts: Vec<PromptText>,
    /// The index of the first text of the last message with a question; chunks are added before it.
    asked: Option<usize>,
    /// The range of the descriptions of tools, which stand first in the prompts of all providers.
    tools: Range<usize>,
}

/// The lengths of a prompt and of the definitions of tools in it, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptBytes {
    pub all: usize,
    pub tools: usize,
}

#[derive(Debug, Clone)]
struct PromptText {
    /// The range of the JSON string in the body.
    at: Range<usize>,
    /// Bytes of the decoded text.
    bytes: usize,
}

impl Prompt {
    pub fn new(conversation: &Conversation, body: Located) -> Self {
        let messages = &conversation.messages;
        let text = |part: &Part| PromptText { at: part.at.range(), bytes: part.text.len() };
        let asked = messages.iter().rposition(has_question);
        Self {
            texts: messages.iter().flat_map(|message| &message.parts).map(text).collect(),
            asked: asked.map(|at| messages[..at].iter().map(|message| message.parts.len()).sum()),
            tools: body.get("tools").map_or(0..0, Located::range),
        }
    }

    /// Returns the lengths of the whole prompt and of the definitions of tools in it. Images are not counted.
    pub fn bytes(&self) -> PromptBytes {
        let texts: usize = self.texts.iter().map(|text| text.bytes).sum();
        PromptBytes { all: texts + self.tools.len(), tools: self.tools.len() }
    }

    /// Where `rewritten` leaves out text. The prompt is that which is sent, shortened, or with `is_whole` that of the request. Places are
    /// estimated by bytes of texts and of tools; images are not counted.
    pub fn omissions(&self, rewritten: &Rewritten, added: AddedBytes, is_whole: bool) -> Vec<Omission> {
        let shortened = by_start(rewritten);
        let in_prompt = |whole: usize, kept: usize| if is_whole { whole } else { kept };
        let mut at = self.tools.len();
        let mut found: Vec<(f64, usize)> = Vec::new();
        for (index, text) in self.texts.iter().enumerate() {
            if self.asked == Some(index) && added.whole > 0 {
                let len = in_prompt(added.whole, added.kept);
                found.push((at as f64 + len as f64 / 2.0, added.whole.saturating_sub(added.kept)));
                at += len;
            }
            let Some(string) = shortened.get(&text.at.start) else {
                at += text.bytes;
                continue;
            };
            let len = in_prompt(string.original.len(), string.text.len());
            found.push((at as f64 + len as f64 / 2.0, string.original.len() - string.text.len()));
            at += len;
        }
        let all = at.max(1) as f64;
        let omission = |(at, bytes): (f64, usize)| Omission { at: at / all, bytes };
        found.into_iter().filter(|(_, bytes)| *bytes > 0).map(omission).collect()
    }

    /// The tokens of the prompt as `rewritten` sends it, of the request with this `body`.
    ///
    /// # Errors
    /// Returns the first error of `count`.
    pub fn tokens<E>(
        &self,
        body: &str,
        rewritten: &Rewritten,
        count: impl Fn(&str) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let shortened = by_start(rewritten);
        let mut tokens = count(&body[self.tools.clone()])? + count(&rewritten.added_text)?;
        for text in &self.texts {
            let json = || serde_json::from_str::<Cow<str>>(&body[text.at.clone()]).unwrap_or_default();
            let found = match shortened.get(&text.at.start) {
                Some(string) => count(&string.text)?,
                None => count(&json())?,
            };
            tokens = tokens.saturating_add(found);
        }
        Ok(tokens)
    }
}

fn by_start(rewritten: &Rewritten) -> HashMap<usize, &Shortened> {
    rewritten.shortened.iter().map(|string| (string.at.start, string)).collect()
}

fn has_question(message: &Message) -> bool {
    message.role == Role::User && message.parts.iter().any(|part| part.kind == PartKind::Message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::middleware::dialect::Dialect;

    fn shortened(body: &str, original: &str, text: &str) -> Shortened {
        let quoted = Value::from(original).to_string();
        let start = body.find(&quoted).expect("a string of the body");
        Shortened {
            at: start..start + quoted.len(),
            original: original.to_owned(),
            text: text.to_owned(),
            is_json: false,
            left_out: String::new(),
            is_marked: false,
        }
    }

    #[test]
    fn places_are_shares_of_the_prompt() {
        let (system, first, last) = ("s".repeat(100), "a".repeat(300), "b".repeat(200));
        let body = json!({"messages": [
            {"role": "system", "content": system}, {"role": "user", "content": first},
            {"role": "assistant", "content": "x".repeat(100)}, {"role": "user", "content": last},
        ]})
        .to_string();
        let located = Located::parse(&body).expect("JSON");
        let prompt = Prompt::new(&Dialect::Chat.conversation(located), located);
        let mut rewritten = Rewritten::default();
        rewritten.shortened =
            vec![shortened(&body, &first, &"a".repeat(100)), shortened(&body, &last, &"b".repeat(100))];
        let check = |name: &str, added: AddedBytes, is_whole: bool, expect: &[(f64, usize)]| {
            let found = prompt.omissions(&rewritten, added, is_whole);
            let found: Vec<(f64, usize)> = found.iter().map(|one| (one.at, one.bytes)).collect();
            assert_eq!(found, expect, "{name}");
        };
        let nothing = AddedBytes::default();
        check("as sent", nothing, false, &[(150.0 / 400.0, 200), (350.0 / 400.0, 100)]);
        check("whole", nothing, true, &[(250.0 / 700.0, 200), (600.0 / 700.0, 100)]);
        let added = AddedBytes { whole: 400, kept: 100 };
        check("added", added, false, &[(150.0 / 500.0, 200), (350.0 / 500.0, 300), (450.0 / 500.0, 100)]);
        check(
            "all of it is kept",
            AddedBytes { whole: 100, kept: 100 },
            false,
            &[(150.0 / 500.0, 200), (450.0 / 500.0, 100)],
        );
        let none = prompt.omissions(&Rewritten::default(), nothing, false);
        assert!(none.is_empty());
    }

    #[test]
    fn tokens_are_those_of_the_texts_that_are_sent() {
        let body = json!({
            "messages": [{"role": "user", "content": "\"quoted\""}, {"role": "user", "content": "long"}],
            "tools": [{"name": "t"}],
        })
        .to_string();
        let located = Located::parse(&body).expect("JSON");
        let prompt = Prompt::new(&Dialect::Chat.conversation(located), located);
        let count = |rewritten: &Rewritten| {
            prompt.tokens(&body, rewritten, |text| Ok::<_, ()>(text.len())).expect("a number")
        };
        let tools = "[{\"name\":\"t\"}]".len();
        let whole = Rewritten::default();
        let texts = "\"quoted\"".len() + "long".len();
        assert_eq!(count(&whole), tools + texts);
        assert_eq!(prompt.bytes(), PromptBytes { all: tools + texts, tools });
        let shortened = vec![shortened(&body, "long", "l")];
        let mut short = Rewritten::default();
        (short.shortened, short.added_text) = (shortened, "added".to_owned());
        assert_eq!(count(&short), tools + "\"quoted\"".len() + "l".len() + "added".len());
    }
}
