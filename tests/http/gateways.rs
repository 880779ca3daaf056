//! `POST /v1/compress` with messages, as gateways call it: sessions, frozen prefixes, and the requests of Portkey and Kong as their
//! documentation describes them. `tests/litellm` tests LiteLLM with its own code.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::wire::{Response, ask_with, get, post};
use crate::{Daemon, check_error, daemon, scripted};

const DOCUMENT: &str =
    "Water is wet. The tide is at noon. The moon is far. Ships are slow. Gulls are loud. Ropes are long. ";

/// The messages of an answer, each as it was written.
fn messages_of(response: &Response) -> Vec<String> {
    #[derive(Deserialize)]
    struct Answer {
        messages: Vec<Box<RawValue>>,
    }
    assert_eq!(response.status, 200, "{}", response.body);
    let answer: Answer = serde_json::from_str(&response.body).expect("messages");
    answer.messages.iter().map(|message| message.get().to_owned()).collect()
}

async fn compress(daemon: &Daemon, messages: &[Value], config: Value) -> Response {
    post(daemon.http, "/headroom/v1/compress", json!({"messages": messages, "config": config}).to_string())
        .await
}

fn said(role: &str, content: impl Into<String>) -> Value {
    json!({"role": role, "content": content.into()})
}

fn asked() -> [Value; 2] {
    [said("user", "When is the tide?"), said("tool", DOCUMENT.repeat(5))]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_returns_earlier_messages_again_byte_for_byte() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let in_session = json!({"session_id": "s1"});
    let first = compress(&daemon, &asked(), in_session.clone()).await;
    let session = &first.json()["session"];
    assert_eq!(session, &json!({"id": "s1", "frozen_message_count": 0, "cached_prefix_replayed": false}));
    let first = messages_of(&first);
    assert!(first[1].len() < DOCUMENT.len() * 4, "{first:?}");
    // The turn grows: the result would be compressed for another question.
    let more = [&asked()[..], &[said("user", "Which ships are slow?")]].concat();
    let stateless = messages_of(&compress(&daemon, &more, json!({})).await);
    assert_ne!(stateless[1], first[1]);
    let second = compress(&daemon, &more, in_session.clone()).await;
    let session = &second.json()["session"];
    assert_eq!(session, &json!({"id": "s1", "frozen_message_count": 2, "cached_prefix_replayed": true}));
    assert_eq!(messages_of(&second)[..2], first);
    // What follows is compressed, and the savings are those of the whole conversation.
    let more = [&more[..], &[said("assistant", "Sea."), said("tool", DOCUMENT.repeat(4))]].concat();
    let third = compress(&daemon, &more, in_session.clone()).await;
    let (answer, third) = (third.json(), messages_of(&third));
    assert_eq!(third[..3], messages_of(&second));
    assert!(third[4].len() < DOCUMENT.len() * 3, "{third:?}");
    assert_eq!(answer["ccr_hashes"].as_array().map(Vec::len), Some(2));
    let counts = ["tokens_before", "tokens_after"].map(|name| answer[name].as_u64().expect("a count"));
    assert!(counts[1] < counts[0] / 2, "{answer}");
    // Another session, and no session, know nothing of it.
    let other = compress(&daemon, &more[..3], json!({"session_id": "s2"})).await;
    assert_eq!(other.json()["session"]["cached_prefix_replayed"], false);
    assert_eq!(messages_of(&other)[1], stateless[1]);
    // Moved cache marks are the caller's; a conversation that goes back goes on from what it has in common.
    let mut marked = more.clone();
    marked[1]["cache_control"] = json!({"type": "ephemeral"});
    let marked = messages_of(&compress(&daemon, &marked, in_session.clone()).await);
    let text = |message: &str| serde_json::from_str::<Value>(message).expect("JSON")["content"].clone();
    assert_eq!((text(&marked[1]), text(&marked[4])), (text(&third[1]), text(&third[4])));
    let back = compress(&daemon, &more[..2], in_session.clone()).await;
    assert_eq!(
        (back.json()["session"]["frozen_message_count"].as_u64(), messages_of(&back)),
        (Some(2), first)
    );
    let edited = [&[said("user", "Which ropes are long?")], &more[1..]].concat();
    let edited = compress(&daemon, &edited, in_session.clone()).await;
    assert_eq!(edited.json()["session"]["frozen_message_count"], 0);
    // Whatever other requests the session had, what it returned comes back.
    let again = compress(&daemon, &more, in_session).await;
    assert_eq!(again.json()["session"]["frozen_message_count"], 5);
    assert_eq!(messages_of(&again), third);
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_messages_come_back_as_they_were_sent() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let messages = [&asked()[..], &[said("assistant", "At noon.")], &asked()[..]].concat();
    let written: Vec<String> = messages.iter().map(Value::to_string).collect();
    let check = async |config: Value, expect: [bool; 5]| {
        let answer = messages_of(&compress(&daemon, &messages, config.clone()).await);
        let unchanged: Vec<bool> = answer.iter().zip(&written).map(|(found, sent)| found == sent).collect();
        assert_eq!(unchanged, expect, "{config}");
    };
    check(json!({}), [true, false, true, true, false]).await;
    check(json!({"frozen_message_count": 2}), [true, true, true, true, false]).await;
    check(json!({"frozen_message_count": 5}), [true; 5]).await;
    check(json!({"protect_recent": 1}), [true, false, true, true, true]).await;
    check(json!({"protect_recent": 9}), [true; 5]).await;
    check(json!({"frozen_message_count": 2, "protect_recent": 1}), [true; 5]).await;
    // In a session, a count that is lower than what was returned changes nothing, and a higher one freezes what was sent.
    check(json!({"session_id": "f", "frozen_message_count": 2}), [true, true, true, true, false]).await;
    check(json!({"session_id": "f", "frozen_message_count": 0}), [true, true, true, true, false]).await;
    check(json!({"session_id": "f"}), [true, true, true, true, false]).await;
    // Messages that are protected because they are new are shortened once they are old, and stay so.
    check(json!({"session_id": "p", "protect_recent": 4}), [true; 5]).await;
    check(json!({"session_id": "p", "protect_recent": 1}), [true, false, true, true, true]).await;
    check(json!({"session_id": "p", "protect_recent": 4}), [true, false, true, true, true]).await;
    let counts: Vec<Value> =
        [json!({"session_id": "g"}), json!({"session_id": "g", "frozen_message_count": 1})]
            .into_iter()
            .collect();
    for (config, expect) in counts.into_iter().zip([0, 5]) {
        let answer = compress(&daemon, &messages, config).await.json();
        assert_eq!(answer["session"]["frozen_message_count"], expect);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_sessions_and_counts_are_refused_with_their_place() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let check = async |config: Value, expect: &str, message: &str| {
        let response = compress(&daemon, &asked(), config.clone()).await;
        check_error(&config.to_string(), &response, expect, message);
    };
    let frozen = "config.frozen_message_count";
    check(json!({"frozen_message_count": 3}), &format!("422 out_of_range {frozen}"), "has 2 messages").await;
    check(json!({"frozen_message_count": -1}), &format!("400 wrong_type {frozen}"), "-1").await;
    check(json!({"session_id": ""}), "422 invalid_value config.session_id", "256").await;
    check(json!({"session_id": "x".repeat(257)}), "422 invalid_value config.session_id", "256").await;
    check(json!({"session_id": {}}), "400 wrong_type config.session_id", "a string").await;
    let ratio = "config.target_ratio";
    check(json!({"target_ratio": 0}), &format!("422 out_of_range {ratio}"), ratio).await;
    check(json!("ccr"), "400 wrong_type config", "an object").await;
}

/// Portkey's guardrail sends its settings as `config`, and joins the address of the proxy with the path.
#[tokio::test(flavor = "multi_thread")]
async fn the_guardrail_of_portkey() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let call = json!([{"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}]);
    let messages = [
        said("system", "Answer."),
        said("user", "When is the tide?"),
        json!({"role": "assistant", "content": null, "tool_calls": call}),
        json!({"role": "tool", "tool_call_id": "c1", "content": DOCUMENT.repeat(5)}),
    ];
    let send = async |config: Value| {
        let body =
            json!({"messages": messages, "model": "gpt-4o-mini", "token_budget": 4000, "config": config});
        let headers = ["content-type: application/json", "authorization: Bearer token"];
        ask_with(daemon.http, ("POST", "/headroom/v1/compress"), &headers, body.to_string()).await
    };
    let settings = json!({"compress_user_messages": false, "compress_system_messages": false,
        "protect_recent": 0, "protect_analysis_context": true});
    let answer = send(settings).await;
    let (body, messages) = (answer.json(), messages_of(&answer));
    assert_eq!(messages.len(), 4);
    assert!(messages[3].len() < DOCUMENT.len() * 4 && !messages[3].contains("hash="), "{messages:?}");
    for field in ["tokens_before", "tokens_after", "tokens_saved", "compression_ratio", "transforms_applied"]
    {
        assert!(!body[field].is_null(), "{field}");
    }
    let before =
        body["tokens_after"].as_f64().expect("a count") / body["tokens_before"].as_f64().expect("a count");
    assert_eq!(body["compression_ratio"].as_f64(), Some(before));
    let protected = send(json!({"protect_recent": 4})).await.json();
    assert_eq!((&protected["tokens_saved"], &protected["compression_ratio"]), (&json!(0), &json!(1.0)));
    let half = send(json!({"target_ratio": 0.9})).await.json();
    assert!(half["tokens_after"].as_u64() > body["tokens_after"].as_u64(), "{half}");
}

/// Kong's policy sends the messages of OpenAI or Anthropic, a model, and a session that it derives from the conversation.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_of_kong() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let result = json!([{"type": "tool_result", "tool_use_id": "t1", "content": [
        {"type": "text", "text": DOCUMENT.repeat(5), "cache_control": {"type": "ephemeral"}}]}]);
    let anthropic = [
        said("user", "When is the tide?"),
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "search", "input": {}}]}),
        json!({"role": "user", "content": result}),
    ];
    let session = "6f1ed002ab5595859014ebf0951522d9";
    let send = async |messages: &[Value]| {
        let body =
            json!({"model": "claude-sonnet-5", "messages": messages, "config": {"session_id": session}});
        let headers = ["content-type: application/json", "authorization: Bearer token"];
        ask_with(daemon.http, ("POST", "/headroom/v1/compress/"), &headers, body.to_string()).await
    };
    let first = messages_of(&send(&anthropic).await);
    assert!(first[2].len() < DOCUMENT.len() * 4, "{first:?}");
    assert!(first[2].contains(r#""cache_control":{"type":"ephemeral"}"#), "{first:?}");
    let next = [&anthropic[..], &[said("assistant", "At noon."), said("user", "Are ropes long?")]].concat();
    let second = send(&next).await;
    assert_eq!(messages_of(&second)[..3], first);
    assert_eq!(second.json()["session"]["frozen_message_count"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slash_may_follow_every_path_and_health_needs_no_key() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let body = json!({"messages": asked()}).to_string();
    let [with, without] = [
        post(daemon.http, "/headroom/v1/compress/", &body).await,
        post(daemon.http, "/headroom/v1/compress", &body).await,
    ];
    assert_eq!((with.status, with.json()), (200, without.json()));
    let hash = with.json()["ccr_hashes"][0].as_str().expect("a hash").to_owned();
    let original = DOCUMENT.repeat(5);
    for path in [format!("/headroom/v1/retrieve/{hash}"), format!("/headroom/v1/retrieve/{hash}/")] {
        assert_eq!(get(daemon.http, &path).await.json()["original_content"], original, "{path}");
    }
    for path in ["/health", "/health/"] {
        let health = get(daemon.http, path).await;
        assert_eq!((health.status, &health.json()["status"]), (200, &json!("ok")), "{path}");
    }
    for path in ["/v1/models/", "/openapi.json/"] {
        assert_eq!(get(daemon.http, path).await.status, 200, "{path}");
    }
    assert_eq!(get(daemon.http, "/headroom/v1/compress//").await.status, 404);
    daemon.service.admission.drain();
    let draining = get(daemon.http, "/health").await;
    assert_eq!((draining.status, &draining.json()["status"]), (503, &json!("draining")));
    let loading = crate::daemon(None, 1, 1).await;
    let health = get(loading.http, "/health").await;
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("loading")));
}
