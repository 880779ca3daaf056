//! The field `messages` of a request to compress: the conversation before its question.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::wire::Object;
use crate::error::{ApiError, ErrorCode};

/// The roles of messages that are turns of the conversation. Others hold instructions and results of tools.
const SPEAKERS: [&str; 2] = ["user", "assistant"];

/// A message of the conversation. Other fields are ignored, so messages for a language model can be sent as they are.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "HistoryMessage")]
pub(super) struct MessageBody {
    /// Who speaks. Only messages of `user` and `assistant` are read.
    role: String,
    /// What is said: a string, or a list of parts, of which those with a `text` are read. Null and missing are the same.
    #[serde(default)]
    #[schemars(with = "Option<ContentSchema>")]
    content: Option<Box<RawValue>>,
}

#[derive(JsonSchema)]
#[schemars(untagged, rename = "HistoryContent")]
#[allow(dead_code, reason = "only its schema is used")]
enum ContentSchema {
    Text(String),
    Parts(Vec<PartBody>),
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "HistoryPart")]
struct PartBody {
    /// The text; parts without one are ignored.
    #[serde(default)]
    text: Option<String>,
}

/// Returns the texts of the turns before `query`, oldest first. The last message is left out if it is the question itself.
///
/// # Errors
/// `wrong_type`, if the content of a turn is neither a string nor a list of objects.
pub(super) fn turns(messages: Vec<Object<MessageBody>>, query: &str) -> Result<Vec<String>, ApiError> {
    let mut turns = Vec::new();
    for (index, Object(message)) in messages.into_iter().enumerate() {
        let Some(content) = message.content else { continue };
        let text = text_of(content.get()).ok_or_else(|| wrong_content(index))?;
        if SPEAKERS.contains(&&*message.role) {
            turns.push(text);
        }
    }
    if turns.last().is_some_and(|last| last.trim() == query.trim()) {
        turns.pop();
    }
    Ok(turns)
}

fn text_of(content: &str) -> Option<String> {
    if let Ok(text) = serde_json::from_str::<String>(content) {
        return Some(text);
    }
    let parts: Vec<Object<PartBody>> = serde_json::from_str(content).ok()?;
    let texts: Vec<String> = parts.into_iter().filter_map(|Object(part)| part.text).collect();
    Some(texts.join("\n"))
}

fn wrong_content(index: usize) -> ApiError {
    let param = format!("messages[{index}].content");
    let message = format!("{param} is neither a string nor a list of objects with \"text\"");
    ApiError::with_param(ErrorCode::WrongType, message, param)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, messages: &str, expect: Result<&[&str], &str>) {
        let messages = serde_json::from_str(messages).expect("messages");
        let found = turns(messages, "When was she born?").map_err(|error| error.param.expect("a place"));
        let found = found.as_ref().map(|turns| turns.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found.as_deref().map_err(|param| param.as_str()), expect, "{name}");
    }

    #[test]
    fn turns_are_the_texts_of_users_and_assistants() {
        check("none", "[]", Ok(&[]));
        let two = r#"[{"role": "user", "content": "Who found radium?"}, {"role": "assistant", "content": "Marie Curie."}]"#;
        check("two", two, Ok(&["Who found radium?", "Marie Curie."]));
        let others = r#"[{"role": "system", "content": "Be brief."}, {"role": "tool", "content": [{"type": "image"}]}, {"role": "user", "content": "Hi"}]"#;
        check("other roles", others, Ok(&["Hi"]));
        let call = r#"[{"role": "assistant", "content": null, "tool_calls": []}, {"role": "assistant"}]"#;
        check("no content", call, Ok(&[]));
        let parts = r#"[{"role": "user", "content": [{"type": "text", "text": "Who?"}, {"type": "image_url"}, {"type": "text", "text": "And when?"}]}]"#;
        check("parts", parts, Ok(&["Who?\nAnd when?"]));
        let question =
            r#"[{"role": "user", "content": "Hi"}, {"role": "user", "content": "When was she born? "}]"#;
        check("the question itself", question, Ok(&["Hi"]));
        check("a number", r#"[{"role": "user", "content": 5}]"#, Err("messages[0].content"));
        check("a number of a tool", r#"[{"role": "tool", "content": 5}]"#, Err("messages[0].content"));
        check("a list of numbers", r#"[{"role": "user", "content": [5]}]"#, Err("messages[0].content"));
    }
}
