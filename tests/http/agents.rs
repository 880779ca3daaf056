//! What agents rely on: results of tools that are left alone, marks that lead to the original, and the cap on the input.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::Request;
use axum::{Json, Router};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use thresher::middleware::settings::{MiddlewareSettings, UpstreamSettings};
use thresher::middleware::untouched::TextKind;
use tokio::net::TcpListener;

use crate::middleware::{in_front, settings};
use crate::support::wire::{Response, get, post};
use crate::{Daemon, daemon, scripted};

const DOCUMENT: &str = "Water is wet.\nThe tide is at noon.\nThe moon is far.\nShips are slow.\nGulls are loud.\nRopes are long.\n";

/// An upstream that keeps the bodies of its requests.
async fn upstream() -> (String, Arc<Mutex<Vec<Value>>>) {
    let bodies = Arc::<Mutex<Vec<Value>>>::default();
    let recording = Arc::clone(&bodies);
    let handle = async move |request: Request| {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        recording.lock().expect("no panic").push(serde_json::from_slice(&body).expect("JSON"));
        Json(json!({"choices": []}))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address: SocketAddr = listener.local_addr().expect("bound");
    tokio::spawn(axum::serve(listener, Router::new().fallback(handle)).into_future());
    (format!("http://{address}"), bodies)
}

/// A question, a call of the tool `name`, and its result.
fn called(name: &str, result: &str) -> Vec<Value> {
    let call = json!([{"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}]);
    vec![
        json!({"role": "user", "content": "When is the tide?"}),
        json!({"role": "assistant", "content": null, "tool_calls": call}),
        json!({"role": "tool", "tool_call_id": "c1", "content": result}),
    ]
}

async fn send(daemon: &Daemon, messages: &[Value]) -> Response {
    let body = json!({"model": "m-1", "messages": messages});
    post(daemon.http, "/v1/chat/completions", body.to_string()).await
}

fn with_tools(url: String, tools: &[&str]) -> MiddlewareSettings {
    let tools = tools.iter().map(|&tool| tool.to_owned()).collect();
    MiddlewareSettings { tools, ..settings(url) }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_an_agent_needs_whole_are_left_alone() {
    let (url, bodies) = upstream().await;
    let prose = DOCUMENT.repeat(5);
    let numbered: String = (1..40).map(|at| format!("{at:6}\tThe tide is at noon on day {at}.\n")).collect();
    let diff = format!("--- a/tide.txt\n+++ b/tide.txt\n@@ -1,6 +1,6 @@\n{}", DOCUMENT.repeat(4));
    let matches: String = (1..40).map(|at| format!("docs/tide.md:{at}: the tide is at noon\n")).collect();
    let listing: String = (1..60).map(|at| format!("src/tide/part{at}.rs\n")).collect();
    let all = in_front(&with_tools(url.clone(), &["*"]), true, 1).await;
    let check = async |daemon: &Daemon, name: &str, result: &str, is_whole: bool| {
        let messages = called(name, result);
        let response = send(daemon, &messages).await;
        let sent = bodies.lock().expect("no panic").pop().expect("a request");
        assert_eq!(sent["messages"] == json!(messages), is_whole, "{name} {result}");
        let expect = if is_whole { "whole" } else { "compressed" };
        assert_eq!(response.header("x-thresher"), Some(expect), "{name}");
    };
    for name in ["search", "retrieve", "file_search"] {
        check(&all, name, &prose, false).await;
    }
    for name in [
        "read_file",
        "Read",
        "mcp__fs__read_text_file",
        "Grep",
        "headroom_retrieve",
        "mcp__thresher__retrieve",
    ] {
        check(&all, name, &prose, true).await;
    }
    for result in [&numbered, &diff, &matches, &listing] {
        check(&all, "bash", result, true).await;
    }
    // Strings inside JSON are known by their text, too.
    check(&all, "bash", &json!({"exit_code": 0, "stdout": matches}).to_string(), true).await;
    check(&all, "bash", &json!({"exit_code": 0, "stdout": prose}).to_string(), false).await;
    // A tool that is named is compressed, except for kinds of text; settings may allow these, too.
    let named = in_front(&with_tools(url.clone(), &["read_file"]), true, 1).await;
    check(&named, "read_file", &prose, false).await;
    check(&named, "read_file", &numbered, true).await;
    check(&named, "search", &prose, true).await;
    let diffs = MiddlewareSettings { kinds_untouched: vec![TextKind::Diff], ..with_tools(url, &["*"]) };
    let diffs = in_front(&diffs, true, 1).await;
    check(&diffs, "bash", &diff, true).await;
    check(&diffs, "bash", &numbered, false).await;
    // The same holds for conversations of gateways.
    let gateway = daemon(Some(scripted()), 1, 1).await;
    let compress = async |messages: Vec<Value>| {
        let body = json!({"messages": messages}).to_string();
        post(gateway.http, "/v1/compress", body).await.json()["messages"] != json!(messages)
    };
    assert!(compress(called("search", &prose)).await);
    assert!(!compress(called("read_file", &prose)).await);
    assert!(!compress(called("bash", &matches)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_says_what_is_missing_and_leads_to_the_original() {
    let (url, bodies) = upstream().await;
    let settings = MiddlewareSettings { retrievable: true, ..with_tools(url, &["search"]) };
    let daemon = in_front(&settings, true, 2).await;
    let original = DOCUMENT.repeat(5);
    let mut messages = called("search", &original);
    assert_eq!(send(&daemon, &messages).await.header("x-thresher"), Some("compressed"));
    let sent = bodies.lock().expect("no panic").pop().expect("a request");
    let text = sent["messages"][2]["content"].as_str().expect("text").to_owned();
    let (_, mark) = text.rsplit_once("\n[shortened: left out lines ").expect("a mark");
    let (lines, hash) = mark.split_once(" of 30; hash=").expect("lines and a hash");
    let hash = hash.strip_suffix(']').expect("the end of the mark");
    // The lines that the mark names are those that are not in the text.
    let named: Vec<usize> = lines
        .split(", ")
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let line = |number: &str| number.parse::<usize>().expect("a number");
            line(first)..=line(last)
        })
        .collect();
    let kept = original.lines().count() - named.len();
    assert_eq!(text.lines().filter(|line| DOCUMENT.contains(line)).count(), kept, "{text}");
    let retrieved = get(daemon.http, &format!("/v1/retrieve/{hash}")).await;
    assert_eq!(retrieved.json()["original_content"], original);
    // The tool of the Model Context Protocol gives the same.
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "retrieve", "arguments": {"hash": hash}}});
    let headers = ["content-type: application/json", "accept: application/json, text/event-stream"];
    let called =
        crate::support::wire::ask_with(daemon.http, ("POST", "/mcp"), &headers, call.to_string()).await;
    assert_eq!(called.json()["result"]["content"][0]["text"], original, "{}", called.body);
    // A later turn begins with the same bytes.
    messages.extend([
        json!({"role": "assistant", "content": "At noon."}),
        json!({"role": "user", "content": "Thanks."}),
    ]);
    send(&daemon, &messages).await;
    let later = bodies.lock().expect("no panic").pop().expect("a request");
    assert_eq!(later["messages"][2], sent["messages"][2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_the_cap_is_compressed_further_or_refused() {
    let (url, bodies) = upstream().await;
    let with_cap =
        |max: usize| MiddlewareSettings { input_tokens_max: max, ..with_tools(url.clone(), &["search"]) };
    let long = called("search", &DOCUMENT.repeat(5));
    let first = send(&in_front(&with_cap(0), true, 1).await, &long).await;
    assert_eq!((first.status, first.header("x-thresher")), (200, Some("compressed")));
    let free = bodies.lock().expect("no panic").pop().expect("a request").to_string().len();
    // Nothing fits: the request is refused, and the error says how many tokens there are.
    let refused = send(&in_front(&with_cap(6), true, 1).await, &long).await;
    let error = &refused.json()["error"];
    let found = (refused.status, &error["code"], &error["param"]);
    assert_eq!(found, (422, &json!("input_too_long"), &json!("messages")), "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("middleware.input_tokens_max"), "{message}");
    let tokens: usize = message.split(' ').find_map(|word| word.parse().ok()).expect("a number");
    assert!(bodies.lock().expect("no panic").is_empty(), "nothing was sent");
    // A little less than the request has: the turn is compressed further.
    let capped = send(&in_front(&with_cap(tokens - 2), true, 1).await, &long).await;
    assert_eq!(capped.status, 200, "{}", capped.body);
    let sent = bodies.lock().expect("no panic").pop().expect("a request").to_string().len();
    assert!(sent < free, "{sent} {free}");
    let count = bodies.lock().expect("no panic").len();
    assert_eq!(send(&in_front(&with_cap(6), true, 1).await, &long).await.status, 422);
    assert_eq!(bodies.lock().expect("no panic").len(), count, "nothing was sent");
    // An upstream may have a cap of its own, and what is not compressed counts as well.
    let mut own = with_cap(0);
    own.upstreams[0] = UpstreamSettings { input_tokens_max: Some(20), ..own.upstreams[0].clone() };
    let plain = [json!({"role": "user", "content": "word ".repeat(30)})];
    assert_eq!(send(&in_front(&own, true, 1).await, &plain).await.json()["error"]["code"], "input_too_long");
    let tools = json!({"model": "m-1", "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "a", "description": "word ".repeat(30)}}]});
    let daemon = in_front(&own, true, 1).await;
    let response = post(daemon.http, "/v1/chat/completions", tools.to_string()).await;
    assert_eq!(response.json()["error"]["code"], "input_too_long");
    // A daemon whose model is being loaded cannot count, and forwards.
    assert_eq!(send(&in_front(&own, false, 1).await, &plain).await.status, 200);
}
