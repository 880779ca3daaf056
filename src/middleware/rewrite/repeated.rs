//! Results of tools whose text the model has already: a reference takes the place of the second one. An agent reads a file twice, or repeats a
//! command whose output has not changed.
//!
//! A reference holds only while the earlier result is in the conversation, with nothing left out. Clients clear old results, so every request
//! looks again, and sends the text where the earlier one has gone.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::SentTurn;
use crate::middleware::find::{ToolResult, Turn};
use crate::middleware::json::Located;

/// How a reference begins. No [encoded](thresher_codec::encode) text begins so.
const BEGINNING: &str = "[the same text as the result of ";

/// The results that the model has seen whole, by the hashes of their texts.
pub(super) struct SeenResults<'a> {
    whole: HashSet<[u8; 32]>,
    /// The hash of the last text of a tool that begins so. A reference names both, and must not be taken for another result.
    last: HashMap<(&'a str, &'a str), [u8; 32]>,
    may_refer: bool,
}

impl<'a> SeenResults<'a> {
    /// Nothing has been seen yet. There are no references if the upstream may remove earlier results by itself, or unless the conversation is
    /// `sent` to it as a whole: a gateway sends other texts in the place of earlier ones.
    pub(super) fn new(body: Located, sent: bool) -> Self {
        Self { whole: HashSet::new(), last: HashMap::new(), may_refer: sent && !upstream_forgets(body) }
    }

    /// Adds the results of the next turn. In a turn that `is_new`, those that were seen before become references, whatever else was to be done
    /// to them. In an older turn, references become texts again if their earlier result has gone.
    pub(super) fn follow(&mut self, turn: &'a Turn, sent: &mut Cow<SentTurn>, is_new: bool) {
        if !self.may_refer && sent.encoded.is_empty() {
            return;
        }
        let passages: HashMap<usize, Range<usize>> = turn
            .strings()
            .into_iter()
            .map(|string| (turn.passages[string.start].string.start, string))
            .collect();
        for (at, result) in turn.results.iter().enumerate() {
            let of_result = passages.get(&result.string.start).cloned().unwrap_or_default();
            let last = self.last.insert((&result.tool, &result.begins), result.text_hash);
            let has_seen =
                self.may_refer && last == Some(result.text_hash) && self.whole.contains(&result.text_hash);
            if has_seen && is_new && result.may_refer {
                let SentTurn { kept, encoded, .. } = sent.to_mut();
                kept[of_result.clone()].fill(None);
                encoded.resize(turn.results.len(), None);
                encoded[at] = Some(reference(result));
            }
            let is_reference = sent.encoded.get(at).and_then(Option::as_deref).is_some_and(is_reference);
            if is_reference && !has_seen {
                sent.to_mut().encoded[at] = None;
            }
            if sent.kept[of_result].iter().all(Option::is_none) {
                self.whole.insert(result.text_hash);
            }
        }
    }
}

fn reference(ToolResult { tool, begins, .. }: &ToolResult) -> String {
    format!("{BEGINNING}{tool} above that begins {begins:?}]")
}

fn is_reference(text: &str) -> bool {
    text.starts_with(BEGINNING)
}

/// Whether the upstream may remove earlier results from the request by itself.
fn upstream_forgets(body: Located) -> bool {
    body.get("context_management").is_some() || body.text_of("truncation").as_deref() == Some("auto")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::middleware::dialect::Dialect;
    use crate::middleware::find::{Policy, turns};
    use crate::middleware::untouched::TextKinds;

    /// What is sent of the result in each turn of a conversation in which `texts` were read one after another. `before` is what was sent of a
    /// turn earlier.
    fn sent(texts: &[&str], extra: Value, before: &[Option<&str>]) -> Vec<Option<String>> {
        let mut messages = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            let id = format!("c{number}");
            let function = json!({"name": "read_file", "arguments": "{}"});
            messages.push(json!({"role": "user", "content": "Go on."}));
            messages.push(json!({"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": function}]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        }
        let mut body = json!({ "messages": messages });
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let text = body.to_string();
        let body = Located::parse(&text).expect("JSON");
        let found = turns(&Dialect::Chat.conversation(body), &Policy::default(), &TextKinds::default());
        let mut seen = SeenResults::new(body, true);
        let mut all = Vec::new();
        for (at, turn) in found.turns.iter().enumerate().filter(|(_, turn)| !turn.results.is_empty()) {
            let stored = before.get(all.len()).map(|text| text.map(str::to_owned));
            let mut sent: Cow<SentTurn> = Cow::Owned(SentTurn::whole(turn));
            if let Some(stored) = stored.clone() {
                sent.to_mut().encoded = vec![stored];
            }
            seen.follow(&found.turns[at], &mut sent, stored.is_none());
            all.push(sent.encoded.first().cloned().flatten());
        }
        all
    }

    #[test]
    fn a_text_that_the_model_has_is_referred_to() {
        let (a, b) = ("\n  The rules, \"all\" of them.\nNever push.", "Another text.");
        let reference = "[the same text as the result of read_file above that begins \"The rules, \\\"all\\\" of them.\"]";
        let referred = || Some(reference.to_owned());
        let none = json!({});
        assert_eq!(sent(&[a, b, a, a], none.clone(), &[]), [None, None, referred(), referred()]);
        assert_eq!(sent(&[a, a], none.clone(), &[None, Some(reference)]), [None, referred()], "as before");
        assert_eq!(sent(&[a, a], none.clone(), &[None, None]), [None, None], "it was sent whole before");
        let cleared = sent(&["[cleared]", a, a], none.clone(), &[None, Some(reference)]);
        assert_eq!(cleared, [None, None, referred()], "the earlier result has gone");
        let c = "The rules, \"all\" of them.\nPush on Monday.";
        assert_eq!(sent(&[a, c, a], none.clone(), &[]), [None, None, None], "another text begins alike");
        for forgets in [json!({"truncation": "auto"}), json!({"context_management": {"edits": []}})] {
            assert_eq!(sent(&[a, a], forgets.clone(), &[]), [None, None], "{forgets}");
            assert_eq!(sent(&[a, a], forgets, &[None, Some(reference)]), [None, None]);
        }
    }
}
