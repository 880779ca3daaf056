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
/// When it is not JSON.
pub fn arrival(data: &str) -> Result<Arrival, RequestError> {
    if data.trim() == "[DONE]" {
        return Ok(Arrival::End);
    }
    let event: Value = serde_json::from_str(data).map_err(|error| RequestError {
        code: "stream_event_invalid",
        message: format!("the data of an event is neither JSON nor [DONE]: {error}"),
        param: None,
    })?;
    let text = |text: &Value| text.as_str().map(|text| Arrival::Text(text.to_owned()));
    // Of several choices, one is the answer: the first.
    let choice = || {
        let choices = event["choices"].as_array()?;
        text(&choices.iter().find(|choice| choice["index"].as_u64().unwrap_or(0) == 0)?["delta"]["content"])
    };
    let found = match event["type"].as_str() {
        Some("error" | "response.failed" | "response.incomplete") => Some(Arrival::Failed),
        None if !event["error"].is_null() => Some(Arrival::Failed),
        None => text(&event["delta"]).or_else(choice),
        Some("response.output_text.delta") => text(&event["delta"]),
        Some("content_block_delta") => text(&event["delta"]["text"]),
        Some("message_stop" | "response.completed") => Some(Arrival::End),
        Some(_) => None,
    };
    Ok(found.unwrap_or(Arrival::Nothing))
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
