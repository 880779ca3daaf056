//! Reads the events of an answer that is still arriving, in the formats of the APIs that send them.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer as _;
use serde::de::{SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::api::fields;
use crate::error::{ApiError, ErrorCode};

/// What one event says of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// The next piece of its text.
    Text(String),
    /// Nothing: events of other kinds are ignored.
    Nothing,
    /// The answer is complete.
    End,
    /// The language model failed.
    Failed,
}

/// Reads the data of an event: `{"delta": "..."}`, a chunk of OpenAI's Chat Completions or an event of its Responses, an event of
/// Anthropic's Messages, or `[DONE]`.
///
/// # Errors
/// `invalid_json`, if it is none of these.
pub fn arrival(data: &str) -> Result<Arrival, ApiError> {
    if data.trim() == "[DONE]" {
        return Ok(Arrival::End);
    }
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidJson, message);
    let not_json = |error: serde_json::Error| {
        invalid(format!("the data of an event is neither JSON nor [DONE]: {error}"))
    };
    let unknown = || {
        invalid(
            "the data of an event is neither {\"delta\": \"...\"} nor an event of OpenAI's or Anthropic's APIs"
                .to_owned(),
        )
    };
    let event: &RawValue = serde_json::from_str(data).map_err(not_json)?;
    if !event.get().starts_with('{') {
        return Err(unknown());
    }
    let names = ["type", "error", "delta", "choices"];
    let [kind, error, delta, choices] = fields::pick_named(event.get(), names).map_err(not_json)?;
    Ok(match kind.and_then(string).as_deref() {
        Some("error" | "response.failed") => Arrival::Failed,
        Some("response.output_text.delta") => text(delta),
        Some("content_block_delta") => text(delta.and_then(|delta| field(delta, "text"))),
        // An answer that was cut off at a limit is complete, too.
        Some("message_stop" | "response.completed" | "response.incomplete") => Arrival::End,
        Some(_) => Arrival::Nothing,
        None if error.is_some_and(|error| error.get() != "null") => Arrival::Failed,
        None if delta.is_some_and(|delta| delta.get().starts_with('"')) => text(delta),
        None => match choices.filter(|choices| choices.get().starts_with('[')) {
            // The first choice is the answer. Older completions have its text beside its index.
            Some(choices) => match first_choice(choices).map_err(not_json)? {
                Some([Some(whole), _]) if whole.get() != "null" => text(Some(whole)),
                Some([_, delta]) => text(delta.and_then(|delta| field(delta, "content"))),
                None => Arrival::Nothing,
            },
            None => return Err(unknown()),
        },
    })
}

/// The next piece of the answer, if the value is a string that is not empty.
fn text(value: Option<&RawValue>) -> Arrival {
    match value.and_then(string) {
        Some(text) if !text.is_empty() => Arrival::Text(text.into_owned()),
        _ => Arrival::Nothing,
    }
}

/// The value of a JSON string; none if it is not a string.
fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    fields::text(value)?.ok()
}

fn field<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let [found] = fields::pick_named(object.get(), [name]).ok()?;
    found
}

/// `text` and `delta` of the choice whose `index` is 0 or missing. The other choices are skipped, not parsed.
fn first_choice(choices: &RawValue) -> serde_json::Result<Option<[Option<&RawValue>; 2]>> {
    struct First;

    impl<'de> Visitor<'de> for First {
        type Value = Option<[Option<&'de RawValue>; 2]>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a list of choices")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut choices: A) -> Result<Self::Value, A::Error> {
            let mut first = None;
            while let Some(choice) = choices.next_element::<&RawValue>()? {
                if first.is_some() {
                    continue;
                }
                // One that is not an object has no fields.
                let fields = fields::pick_named(choice.get(), ["index", "text", "delta"]);
                let [index, text, delta] = fields.unwrap_or_default();
                let index = index.and_then(|index| index.get().parse().ok()).unwrap_or(0_u64);
                first = (index == 0).then_some([text, delta]);
            }
            Ok(first)
        }
    }

    serde_json::Deserializer::from_str(choices.get()).deserialize_seq(First)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_all_apis_are_read() {
        let check = |name: &str, data: &str, expect: Arrival| {
            assert_eq!(arrival(data).expect(name), expect, "{name}");
        };
        let text = || Arrival::Text("It".to_owned());
        check("native", r#"{"delta": "It"}"#, text());
        check(
            "chat",
            r#"{"object": "chat.completion.chunk", "choices": [{"delta": {"content": "It"}}]}"#,
            text(),
        );
        check("chat, role only", r#"{"choices": [{"delta": {"role": "assistant"}}]}"#, Arrival::Nothing);
        check("chat, usage only", r#"{"choices": []}"#, Arrival::Nothing);
        check("responses", r#"{"type": "response.output_text.delta", "delta": "It"}"#, text());
        check(
            "responses, tool",
            r#"{"type": "response.function_call_arguments.delta", "delta": "{"}"#,
            Arrival::Nothing,
        );
        check(
            "messages",
            r#"{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "It"}}"#,
            text(),
        );
        check("nothing more", r#"{"delta": ""}"#, Arrival::Nothing);
        check("completions", r#"{"choices": [{"text": "It", "index": 0}]}"#, text());
        check("responses, at a limit", r#"{"type": "response.incomplete"}"#, Arrival::End);
        check("messages, ping", r#"{"type": "ping"}"#, Arrival::Nothing);
        check("messages, end", r#"{"type": "message_stop"}"#, Arrival::End);
        check("end", "[DONE]", Arrival::End);
        check(
            "chat, another choice",
            r#"{"choices": [{"index": 1, "delta": {"content": "It"}}]}"#,
            Arrival::Nothing,
        );
        check(
            "messages, failed",
            r#"{"type": "error", "error": {"type": "overloaded_error"}}"#,
            Arrival::Failed,
        );
        check("chat, failed", r#"{"error": {"message": "x"}}"#, Arrival::Failed);
        check("escapes", r#"{"delta": "I\u0074"}"#, text());
        check("a text of null", r#"{"choices": [{"text": null, "delta": {"content": "It"}}]}"#, text());
        for none in ["{", "[]", "3", "{}", r#"{"delta": 3}"#, r#"{"choices": {}}"#] {
            assert_eq!(arrival(none).expect_err(none).code, ErrorCode::InvalidJson, "{none}");
        }
    }
}
