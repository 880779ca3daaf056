//! Questions that are part of a conversation: `messages` beside chunks.

use serde_json::{Value, json};

use crate::support::wire::post;
use crate::{check_error, daemon, scripted};

fn request(fields: Value) -> Value {
    let mut request =
        json!({"query": "tide", "chunks": ["Water is wet.", "The tide is at noon. The moon is far."]});
    for (name, value) in fields.as_object().expect("fields") {
        request[name] = value.clone();
    }
    request
}

fn said(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_read_with_the_turns_before_it() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let ask = async |fields: Value| {
        let response = post(daemon.http, "/v1/compress", request(fields).to_string()).await;
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let alone = ask(json!({})).await;
    assert_eq!(alone["question"]["turns_read"], Value::Null, "{alone}");
    let turns = [said("user", "wet?"), said("assistant", "Sea.")];
    let follows = ask(json!({"messages": turns, "explain": true})).await;
    assert_eq!(follows["question"]["turns_read"], 2, "{follows}");
    assert_eq!(follows["context"], alone["context"]);
    let words = follows["explain"]["query"].as_array().expect("tokens of the question");
    let ends_at = words.last().expect("a token")["end"].as_u64();
    assert_eq!(ends_at, Some("tide".len() as u64), "explained are the tokens of the question only");
    let with_question = [&turns[..], &[said("user", "tide")]].concat();
    assert_eq!(ask(json!({"messages": with_question})).await["question"]["turns_read"], 2);
    let long = [&turns[..], &[said("assistant", &"Long. ".repeat(400))]].concat();
    assert_eq!(ask(json!({"messages": long})).await["question"]["turns_read"], 2, "a turn that does not fit");
    assert_eq!(ask(json!({"messages": []})).await["question"]["turns_read"], Value::Null);
    assert_eq!(ask(json!({"messages": null})).await["question"]["turns_read"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_messages_are_refused() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let check = async |fields: Value, expect: &str| {
        let response = post(daemon.http, "/v1/compress", request(fields).to_string()).await;
        check_error(expect, &response, expect, "");
    };
    check(json!({"messages": "hi"}), "400 wrong_type messages").await;
    check(json!({"messages": ["hi"]}), "400 wrong_type messages[0]").await;
    check(json!({"messages": [{"content": "hi"}]}), "400 missing_field messages[0].role").await;
    check(json!({"messages": [{"role": "user", "content": 5}]}), "400 wrong_type messages[0].content").await;
    let mut without_chunks = request(json!({"messages": [said("user", "hi")]}));
    without_chunks.as_object_mut().expect("an object").remove("chunks");
    let response = post(daemon.http, "/v1/compress", without_chunks.to_string()).await;
    check_error("no chunks", &response, "400 missing_field chunks", "/headroom/v1/compress");
}
