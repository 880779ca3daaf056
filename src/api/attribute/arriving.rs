//! An answer that arrives in events, in the words of whoever sends it.

use serde_json::Value;

use crate::api::request::RequestError;

/// What one event brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// More of the answer.
    Text(String),
    /// Nothing of the answer: events of other kinds are let pass.
    Nothing,
    /// No more comes.
    End,
    /// Who wrote it failed, and said so.
    Failed,
}

/// Reads an event's data: `{"delta": "..."}`, a chunk of OpenAI's Chat Completions or an event of its Responses, an event of
/// Anthropic's Messages, `[DONE]`.
///
/// # Errors
/// When it is none of these.
pub fn arrival(data: &str) -> Result<Arrival, RequestError> {
    if data.trim() == "[DONE]" {
        return Ok(Arrival::End);
    }
    let event: Value = serde_json::from_str(data).map_err(|error| RequestError {
        code: "stream_event_invalid",
        message: format!("the data of an event is neither JSON nor [DONE]: {error}"),
        param: None,
    })?;
    let text = |text: &Value| match text.as_str() {
        Some(text) if !text.is_empty() => Arrival::Text(text.to_owned()),
        _ => Arrival::Nothing,
    };
    Ok(match event["type"].as_str() {
        Some("error" | "response.failed") => Arrival::Failed,
        Some("response.output_text.delta") => text(&event["delta"]),
        Some("content_block_delta") => text(&event["delta"]["text"]),
        // What was cut off at a limit has come to its end.
        Some("message_stop" | "response.completed" | "response.incomplete") => Arrival::End,
        Some(_) => Arrival::Nothing,
        None if !event["error"].is_null() => Arrival::Failed,
        None if event["delta"].is_string() => text(&event["delta"]),
        None => match event["choices"].as_array() {
            // Of several choices, one is the answer: the first. Older completions have its text beside its number.
            Some(choices) => choices.iter().find(|choice| choice["index"].as_u64().unwrap_or(0) == 0).map_or(
                Arrival::Nothing,
                |choice| match &choice["text"] {
                    Value::Null => text(&choice["delta"]["content"]),
                    whole => text(whole),
                },
            ),
            None => {
                return Err(RequestError {
                    code: "stream_event_invalid",
                    message: "the data of an event hold no \"delta\" that is a text, and are no event of OpenAI or Anthropic".to_owned(),
                    param: None,
                });
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_arrive_in_several_dialects() {
        let check = |name: &str, data: &str, expect: Arrival| {
            assert_eq!(arrival(data).expect(name), expect, "{name}");
        };
        let text = || Arrival::Text("It".to_owned());
        check("ours", r#"{"delta": "It"}"#, text());
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
        assert_eq!(arrival("{").expect_err("cut off").code, "stream_event_invalid");
    }
}
