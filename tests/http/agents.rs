//! What agents rely on: results of tools that are left alone, marks that lead to the original, and the cap on the input.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::Request;
use axum::{Json, Router};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use thresher::http::Middleware;
use thresher::middleware::settings::{MiddlewareLimits, MiddlewareSettings, Mode};
use thresher::originals::OriginalSettings;
use thresher_core::kv::store::KvStore;
use tokio::net::TcpListener;

use crate::keys::caching;
use crate::middleware::{in_front, in_front_within, limits, settings};
use crate::support::wire::{Response, get, post};
use crate::{
    Daemon, daemon, double, eventually, pipeline_of, registry_settings, scripted, serve, service,
    storing_service,
};

const DOCUMENT: &str = "Water is wet.\nThe tide is at noon.\nThe moon is far.\nShips are slow.\nGulls are loud.\nRopes are long.\n";

#[derive(Clone, Default)]
struct Bodies(Arc<Mutex<Vec<String>>>);

impl Bodies {
    fn count(&self) -> usize {
        self.0.lock().expect("no panic").len()
    }

    fn pop(&self) -> String {
        self.0.lock().expect("no panic").pop().expect("a request")
    }

    fn pop_json(&self) -> Value {
        serde_json::from_str(&self.pop()).expect("JSON")
    }
}

/// An upstream that keeps the bodies of its requests, byte for byte.
async fn upstream() -> (String, Bodies) {
    let bodies = Bodies::default();
    let recording = bodies.clone();
    let handle = async move |request: Request| {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        recording.0.lock().expect("no panic").push(String::from_utf8(body.to_vec()).expect("UTF-8"));
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

fn body_of(messages: &[Value]) -> String {
    json!({"model": "m-1", "messages": messages}).to_string()
}

async fn send(daemon: &Daemon, messages: &[Value]) -> Response {
    post(daemon.http, "/v1/chat/completions", body_of(messages)).await
}

/// Sends messages of a model that can retrieve originals.
async fn send_with_retrieve(daemon: &Daemon, messages: &[Value]) -> Response {
    let parameters = json!({"type": "object", "properties": {"hash": {"type": "string"}}});
    let function = json!({"name": "mcp__thresher__retrieve", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    let body = json!({"model": "m-1", "messages": messages, "tools": tools});
    post(daemon.http, "/v1/chat/completions", body.to_string()).await
}

fn with_tools(url: String, tools: &[&str]) -> MiddlewareSettings {
    let tools = tools.iter().map(|&tool| tool.to_owned()).collect();
    MiddlewareSettings { tools, ..settings(url) }
}

/// Settings for an upstream that takes at most `max` tokens.
fn with_cap(url: String, max: usize) -> MiddlewareSettings {
    let mut settings = with_tools(url, &["search"]);
    settings.upstreams[0].input_tokens_max = max;
    settings
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
        let sent = bodies.pop_json();
        let sent = sent["messages"][2]["content"].as_str().expect("a text");
        assert_eq!(thresher_codec::decode(sent).as_deref() == Ok(result), is_whole, "{name} {result}");
        let expect = if sent == result { "uncompressed" } else { "compressed" };
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
    // A tool that is named is compressed, except for kinds of text.
    let named = in_front(&with_tools(url.clone(), &["read_file"]), true, 1).await;
    check(&named, "read_file", &prose, false).await;
    check(&named, "read_file", &numbered, true).await;
    check(&named, "search", &prose, true).await;
    // The same holds for conversations of gateways.
    let gateway = daemon(Some(scripted()), 1, 1).await;
    let compress = async |daemon: &Daemon, messages: Vec<Value>| {
        let body = json!({"messages": messages}).to_string();
        post(daemon.http, "/headroom/v1/compress", body).await.json()["messages"] != json!(messages)
    };
    assert!(compress(&gateway, called("search", &prose)).await);
    assert!(!compress(&gateway, called("read_file", &prose)).await);
    assert!(!compress(&gateway, called("bash", &diff)).await);
    // A tool that the settings name is compressed, and so are all others that need not stay whole.
    assert!(compress(&named, called("read_file", &prose)).await);
    assert!(compress(&named, called("search", &prose)).await);
    assert!(!compress(&named, called("grep", &prose)).await);
}

/// An answer with this reason, and the content of the messages as the upstream got them.
async fn sent(daemon: &Daemon, bodies: &Bodies, messages: &[Value]) -> (Option<String>, Vec<Value>) {
    let response = send(daemon, messages).await;
    let reason = response.header("x-thresher-reason").map(str::to_owned);
    let body = bodies.pop_json();
    let content = |message: &Value| message["content"].clone();
    (reason, body["messages"].as_array().expect("messages").iter().map(content).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_not_related_to_the_question_stays_whole() {
    let (url, bodies) = upstream().await;
    let daemon = in_front(&with_tools(url.clone(), &["*"]), true, 1).await;
    let result = "Gulls are loud. Ships are slow. The tide is at noon. Ropes are long. Masts are high.";
    let mut unrelated = called("bash", result);
    unrelated[0]["content"] = json!("zzz?");
    let (reason, content) = sent(&daemon, &bodies, &unrelated).await;
    assert_eq!((reason.as_deref(), &content[2]), (Some("unrelated"), &json!(result)));
    // The head and the tail of a related result stay.
    let (reason, content) = sent(&daemon, &bodies, &called("bash", result)).await;
    let shortened = content[2].as_str().expect("a text");
    assert!(
        shortened.starts_with("Gulls are loud.") && shortened.ends_with("Masts are high."),
        "{shortened}"
    );
    assert!(shortened.contains("The tide is at noon.") && !shortened.contains("Ropes"), "{shortened}");
    assert_eq!(reason, None);
    // What the model asked the tool for counts, too.
    unrelated[1]["tool_calls"][0]["function"]["arguments"] = json!(r#"{"pattern": "the tide is at noon"}"#);
    let (_, content) = sent(&daemon, &bodies, &unrelated).await;
    let shortened = content[2].as_str().expect("a text");
    assert!(shortened.contains("The tide is at noon.") && shortened.len() < result.len(), "{shortened}");
    // A short result stays whole, whatever it says.
    let limits = MiddlewareLimits { result_tokens_min: 200, ..limits() };
    let daemon = in_front_within(&with_tools(url, &["*"]), limits).await;
    let (reason, content) = sent(&daemon, &bodies, &called("bash", result)).await;
    assert_eq!((reason.as_deref(), &content[2]), (Some("nothing_shortened"), &json!(result)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_question_is_what_a_person_asks_last() {
    let (url, bodies) = upstream().await;
    let daemon = in_front(&with_tools(url, &["*"]), true, 1).await;
    let result = "Gulls are loud. Ships are slow. Nets are wet. Crabs are red. Sails are white. Planks are brown. The tide is at noon. \
        Ropes are long. Buoys are round. Anchors are heavy. Flags are small. Lamps are bright. Shells are hard. Masts are high.";
    let user = |text: &str| json!({"role": "user", "content": text});
    let tide = |content: &Value| {
        let text = content.as_str().expect("a text");
        text.contains("The tide is at noon.") && text.len() < result.len()
    };
    for reminder in [
        "<system-reminder>Gulls are loud, masts are high.</system-reminder>",
        "<environment_details>Masts</environment_details>",
    ] {
        // After the result, before the question, and behind it.
        let after = [&called("bash", result)[..], &[user(reminder)]].concat();
        let mut before = called("bash", result);
        before[0]["content"] = json!(format!("{reminder}\nWhen is the tide?"));
        let mut behind = called("bash", result);
        behind[0]["content"] = json!(format!("When is the tide?\n{reminder}"));
        for messages in [after, before, behind] {
            let (_, content) = sent(&daemon, &bodies, &messages).await;
            assert!(tide(&content[2]), "{reminder}: {content:?}");
        }
    }
    // An agreement: the question before it holds, and what the model proposed.
    for agreement in ["continue", "Yes, please.", "ok thanks!"] {
        let call = json!([{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]);
        let messages = [
            user("When is the tide?"),
            json!({"role": "assistant", "content": "Shall I look?"}),
            user(agreement),
            json!({"role": "assistant", "content": null, "tool_calls": call}),
            json!({"role": "tool", "tool_call_id": "c1", "content": result}),
        ];
        let (_, content) = sent(&daemon, &bodies, &messages).await;
        assert!(tide(&content[4]), "{agreement}: {content:?}");
    }
    // An instruction about the whole text.
    for instruction in ["Summarise this.", "Bitte übersetzen!", "What is this about?", "continue"] {
        let mut messages = called("bash", result);
        messages[0]["content"] = json!(instruction);
        let (reason, content) = sent(&daemon, &bodies, &messages).await;
        assert_eq!((reason.as_deref(), &content[2]), (Some("no_question"), &json!(result)), "{instruction}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_says_what_is_missing_and_leads_to_the_original() {
    let (url, bodies) = upstream().await;
    let settings = with_tools(url.clone(), &["search"]);
    let daemon = in_front(&settings, true, 2).await;
    let original = DOCUMENT.repeat(5);
    let mut messages = called("search", &original);
    let response = send_with_retrieve(&daemon, &messages).await;
    assert_eq!(response.header("x-thresher"), Some("compressed"));
    let sent = bodies.pop_json();
    // The mark counts.
    let tokens = |response: &Response| {
        ["x-thresher-tokens-before", "x-thresher-tokens-after"]
            .map(|name| response.header(name).and_then(|count| count.parse::<u64>().ok()).expect("a count"))
    };
    let unmarked = send(&in_front(&with_tools(url, &["search"]), true, 2).await, &messages).await;
    let (with_mark, without) = (tokens(&response), tokens(&unmarked));
    assert!(with_mark[0] == without[0] && with_mark[1] > without[1], "{with_mark:?} {without:?}");
    bodies.pop();
    // A model that cannot retrieve is not asked to.
    send(&daemon, &called("search", &original.replace("noon", "nine"))).await;
    assert!(!bodies.pop().contains("hash="));
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
    send_with_retrieve(&daemon, &messages).await;
    let later = bodies.pop_json();
    assert_eq!(later["messages"][2], sent["messages"][2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_has_a_mark_only_if_its_original_is_stored_and_it_is_shorter_with_it() {
    let (url, bodies) = upstream().await;
    let settings = with_tools(url, &["search"]);
    let with_store = async |originals: OriginalSettings| {
        let pipeline = pipeline_of(scripted(), KvStore::without_tiers());
        let made = storing_service(Some(pipeline), (2, 0), &registry_settings(), originals);
        let (mut service, tenants) = made;
        service.middleware = Arc::new(Middleware::new(&settings, limits()).expect("an upstream"));
        serve((service, tenants)).await
    };
    let in_memory =
        |bytes_max: u64| OriginalSettings { dir: "".into(), bytes_max, ..OriginalSettings::default() };
    let original = DOCUMENT.repeat(5);
    let check = async |name: &str, originals: OriginalSettings, is_marked: bool, is_remembered: bool| {
        let daemon = with_store(originals).await;
        let mut messages = called("search", &original);
        let response = send_with_retrieve(&daemon, &messages).await;
        assert_eq!((response.status, response.header("x-thresher")), (200, Some("compressed")), "{name}");
        let sent = bodies.pop_json();
        let text = sent["messages"][2]["content"].as_str().expect("text");
        assert_eq!(text.contains("hash="), is_marked, "{name}: {text}");
        messages.extend([
            json!({"role": "assistant", "content": "At noon."}),
            json!({"role": "user", "content": "Thanks."}),
        ]);
        send_with_retrieve(&daemon, &messages).await;
        let later = bodies.pop_json();
        assert_eq!(later["messages"][2] == sent["messages"][2], is_remembered, "{name}: {later}");
    };
    check("room for all", in_memory(1 << 20), true, true).await;
    check("room for what was sent, but not for the original", in_memory(original.len() as u64), false, true)
        .await;
    check("no room", in_memory(100), false, false).await;
    let no_folder = OriginalSettings { dir: "/dev/null/originals".into(), ..OriginalSettings::default() };
    check("a store that fails", no_folder, false, false).await;
    // A result that its mark would make longer stays whole, and is counted so.
    let daemon = with_store(in_memory(1 << 20)).await;
    let messages = called("search", DOCUMENT);
    let response = send_with_retrieve(&daemon, &messages).await;
    assert_eq!(bodies.pop_json()["messages"], json!(messages));
    let found = (response.header("x-thresher"), response.header("x-thresher-reason"));
    assert_eq!(found, (Some("uncompressed"), Some("nothing_shortened")));
    let tokens = ["x-thresher-tokens-before", "x-thresher-tokens-after"].map(|name| response.header(name));
    assert_eq!(tokens[0], tokens[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_of_a_result_is_sent_again_wherever_the_conversation_is_cut_or_changed() {
    let (url, bodies) = upstream().await;
    let daemon = in_front(&with_tools(url, &["search"]), true, 1).await;
    // Each turn calls the tool twice, and gets results that no other turn has.
    let turn = |number: usize| {
        let call = |id: String| json!({"id": id, "type": "function", "function": {"name": "search", "arguments": "{}"}});
        let ids = [format!("c{number}a"), format!("c{number}b")];
        let result = |id: &String| {
            let text = DOCUMENT.replace("noon", &format!("noon on day {number}")).repeat(5);
            json!({"role": "tool", "tool_call_id": id, "content": format!("{text}End of {id}.\n")})
        };
        let calls: Vec<Value> = ids.iter().cloned().map(call).collect();
        let assistant =
            json!({"role": "assistant", "content": format!("Step {number}."), "tool_calls": calls});
        [vec![assistant], ids.iter().map(result).collect()].concat()
    };
    let question = json!({"role": "user", "content": "When is the tide?"});
    let mut messages = vec![question];
    let mut sent = Vec::new();
    for number in 0..4 {
        messages.extend(turn(number));
        assert_eq!(send(&daemon, &messages).await.status, 200);
        sent = bodies.pop_json()["messages"].as_array().expect("messages").clone();
    }
    let original = messages.clone();
    let is_result = |message: &Value| message["role"] == "tool";
    assert!(
        original
            .iter()
            .zip(&sent)
            .filter(|(message, _)| is_result(message))
            .all(|(before, after)| before != after)
    );
    let check = async |name: &str, change: &dyn Fn(&mut Vec<Value>)| {
        let mut messages = original.clone();
        change(&mut messages);
        messages.push(json!({"role": "assistant", "content": "Done."}));
        messages.push(json!({"role": "user", "content": "Thanks, and the moon?"}));
        assert_eq!(send(&daemon, &messages).await.status, 200, "{name}");
        let found = bodies.pop_json()["messages"].as_array().expect("messages").clone();
        for (before, after) in messages.iter().zip(&found).filter(|(before, _)| is_result(before)) {
            let expect = original.iter().position(|message| message == before).map_or(before, |at| &sent[at]);
            assert_eq!(after, expect, "{name}");
        }
    };
    check("nothing", &|_| {}).await;
    check("the beginning is cut", &|messages| drop(messages.drain(1..4))).await;
    check("the question is cut", &|messages| drop(messages.drain(0..4))).await;
    check("an old result is cleared", &|messages| messages[2]["content"] = json!("[cleared]")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_in_tokens_holds_for_added_chunks_and_results_together() {
    let (url, bodies) = upstream().await;
    let daemon = in_front(&with_tools(url, &["search"]), true, 1).await;
    let messages = called("search", &DOCUMENT.repeat(9));
    let body = json!({"model": "m-1", "messages": messages,
        "thresher": {"chunks": [DOCUMENT.repeat(8)], "budget": {"tokens": 100}}});
    let response = post(daemon.http, "/v1/chat/completions", body.to_string()).await;
    let after: usize =
        response.header("x-thresher-tokens-after").expect("a count").parse().expect("a number");
    assert!(after <= 100, "{after}: {}", bodies.pop());
    // A sentence that cannot be halved is kept, and the rest is compressed all the same.
    let body = json!({"model": "m-1", "messages": messages,
        "thresher": {"chunks": ["The tide is at noon."], "budget": {"ratio": 0.5}}});
    let response = post(daemon.http, "/v1/chat/completions", body.to_string()).await;
    assert_eq!(response.header("x-thresher"), Some("compressed"));
    let sent = bodies.pop_json()["messages"].clone();
    assert!(sent.to_string().contains("[1] The tide is at noon."), "{sent}");
    assert_ne!(sent.as_array().expect("messages").last(), messages.last());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_stays_whole_takes_its_tokens_of_the_budget() {
    let (url, bodies) = upstream().await;
    let limits = MiddlewareLimits { result_tokens_min: 50, ..limits() };
    let daemon = in_front_within(&with_tools(url, &["search"]), limits).await;
    let mut messages = called("search", &DOCUMENT.repeat(9));
    let call = json!({"id": "c2", "type": "function", "function": {"name": "search", "arguments": "{}"}});
    messages[1]["tool_calls"].as_array_mut().expect("calls").push(call);
    messages
        .push(json!({"role": "tool", "tool_call_id": "c2", "content": "The tide is at noon. ".repeat(7)}));
    let body = json!({"model": "m-1", "messages": messages, "thresher": {"budget": {"tokens": 110}}});
    let response = post(daemon.http, "/v1/chat/completions", body.to_string()).await;
    let after: usize =
        response.header("x-thresher-tokens-after").expect("a count").parse().expect("a number");
    let sent = bodies.pop_json()["messages"].clone();
    assert_eq!(sent[3], messages[3], "it is too short to be shortened");
    assert!(sent[2] != messages[2] && after <= 110, "{after}: {sent}");
}

/// Each call of the model takes so long that only short results can be read before the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_cannot_be_read_in_time_stays_whole_without_a_wait_and_is_shortened_later() {
    let (url, bodies) = upstream().await;
    let slow = double(|_| std::thread::sleep(Duration::from_millis(400)));
    let pipeline = Some(caching(slow));
    let settings = MiddlewareSettings { deadline_ms: 2_000, ..with_tools(url, &["search"]) };
    let (mut service, tenants) = service(pipeline, 1, 0, &registry_settings());
    service.middleware = Arc::new(Middleware::new(&settings, limits()).expect("an upstream"));
    let daemon = serve((service, tenants)).await;
    let (short, long) = (DOCUMENT.repeat(2), DOCUMENT.replace('\n', " ").repeat(14));
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "search", "input": {}});
    let result = |id: &str, text: &str| json!({"type": "tool_result", "tool_use_id": id, "content": text});
    let said = |role: &str, content: Value| json!({"role": role, "content": content});
    let first = [
        said("user", json!("When is the tide?")),
        said("assistant", json!([call("a")])),
        said("user", json!([result("a", &short)])),
    ];
    let second = [
        said("assistant", json!([call("b"), call("c")])),
        said("user", json!([result("b", &short), result("c", &long)])),
    ];
    let send = async |messages: &[Value], marked: bool| {
        let mut body = json!({"model": "m-1", "max_tokens": 9, "messages": messages});
        if marked {
            body["system"] =
                json!([{"type": "text", "text": "Help.", "cache_control": {"type": "ephemeral"}}]);
        }
        let response = post(daemon.http, "/v1/messages", body.to_string()).await;
        (response, bodies.pop_json()["messages"].clone())
    };
    let (response, sent) = send(&first, false).await;
    assert_ne!(sent[2], first[2], "{:?}", response.header("x-thresher-reason"));
    let both = [&first[..], &second].concat();
    for _ in 0..2 {
        let (response, sent) = send(&both, true).await;
        assert_eq!(response.header("x-thresher-reason"), None, "a result of the turn is shortened");
        assert_eq!(sent[4]["content"][1], both[4]["content"][1], "there is no time to read it");
        assert_ne!(sent[4]["content"][0], both[4]["content"][0]);
    }
    let (_, sent) = send(&both, false).await;
    assert_eq!(sent[4]["content"][1], both[4]["content"][1], "there is no time to read it");
    let next =
        [&both[..], &[said("assistant", json!("Done.")), said("user", json!("And the moon?"))]].concat();
    let (_, sent) = send(&next, true).await;
    assert_eq!(sent[4]["content"][1], both[4]["content"][1], "the provider may have cached it");
    eventually("the result has been read in the meantime", async || {
        let (_, sent) = send(&next, false).await;
        sent[4]["content"][1] != both[4]["content"][1]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_say_what_happened_to_the_newest_turn() {
    let (url, bodies) = upstream().await;
    let daemon = in_front(&with_tools(url, &["search"]), true, 1).await;
    let mut messages = called("search", &DOCUMENT.repeat(5));
    assert_eq!(send(&daemon, &messages).await.header("x-thresher-reason"), None);
    // The answer comes back with citations, which no upstream expects.
    let annotations = json!([{"type": "url_citation", "url_citation": {"url": "urn:thresher:chunk:c1"}}]);
    messages.push(json!({"role": "assistant", "content": "At noon.", "annotations": annotations}));
    messages.push(json!({"role": "user", "content": "And the gulls?"}));
    let response = send(&daemon, &messages).await;
    assert_eq!(response.header("x-thresher"), Some("compressed"), "the first result is resent as before");
    assert_eq!(response.header("x-thresher-reason"), Some("nothing_to_compress"));
    assert_eq!(bodies.pop_json()["messages"][3], json!({"role": "assistant", "content": "At noon."}));
}

/// A failure that passes is not an error about the length of the request.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_the_cap_that_could_not_be_compressed_may_be_repeated() {
    let (url, bodies) = upstream().await;
    let settings = with_cap(url, 40);
    let long = called("search", &DOCUMENT.repeat(5));
    let check = async |name: &str, daemon: &Daemon, expect: (u16, &str)| {
        let response = send(daemon, &long).await;
        let error = &response.json()["error"];
        assert_eq!((response.status, error["code"].as_str()), (expect.0, Some(expect.1)), "{name}: {error}");
        assert!(response.header("retry-after").is_some(), "{name}");
        assert_eq!(bodies.count(), 0, "{name}");
    };
    check("no permit and no queue", &in_front(&settings, true, 0).await, (429, "overloaded")).await;
    let draining = in_front(&settings, true, 1).await;
    draining.service.admission.drain();
    check("draining", &draining, (503, "draining")).await;
    // A request that is not to be compressed is too long, and the error says nothing of compression.
    let whole = json!({"model": "m-1", "messages": long, "thresher": {"compress": false}}).to_string();
    let refused = post(draining.http, "/v1/chat/completions", whole).await;
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (422, &json!("too_long")));
    assert!(!error["message"].as_str().expect("a message").contains("after compression"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_the_cap_is_compressed_further_or_refused() {
    let (url, bodies) = upstream().await;
    let with_cap = |max: usize| with_cap(url.clone(), max);
    let long = called("search", &DOCUMENT.repeat(5));
    let first = send(&in_front(&with_cap(0), true, 1).await, &long).await;
    assert_eq!((first.status, first.header("x-thresher")), (200, Some("compressed")));
    let free = bodies.pop().len();
    // Nothing fits: the request is refused, and the error says how many tokens there are.
    let refused = send(&in_front(&with_cap(6), true, 1).await, &long).await;
    let error = &refused.json()["error"];
    let found = (refused.status, &error["code"], &error["param"]);
    assert_eq!(found, (422, &json!("too_long"), &json!("messages")), "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains("input_tokens_max of the upstream"), "{message}");
    let tokens: usize = message.split(' ').find_map(|word| word.parse().ok()).expect("a number");
    assert_eq!(bodies.count(), 0, "nothing was sent");
    // With room for what is left at least, the turn is compressed further.
    let capped = send(&in_front(&with_cap(tokens), true, 1).await, &long).await;
    assert_eq!(capped.status, 200, "{}", capped.body);
    let sent = bodies.pop().len();
    assert!(sent < free, "{sent} {free}");
    let count = bodies.count();
    assert_eq!(send(&in_front(&with_cap(6), true, 1).await, &long).await.status, 422);
    assert_eq!(bodies.count(), count, "nothing was sent");
    // The same with chunks that the request adds, sent again: with the same ones, and with longer ones.
    let daemon = in_front(&with_cap(90), true, 1).await;
    let with_chunks = |count: usize| {
        let chunks = vec![DOCUMENT.replace("wet", "cold"); count];
        json!({"model": "m-1", "messages": called("search", &DOCUMENT.repeat(9)), "thresher": {"chunks": chunks}}).to_string()
    };
    let mut forms = Vec::new();
    for count in [1, 1, 4] {
        let response = post(daemon.http, "/v1/chat/completions", with_chunks(count)).await;
        assert_eq!(response.status, 200, "{}", response.body);
        forms.push(bodies.pop_json()["messages"].as_array().expect("messages").last().cloned());
    }
    let sent = forms[0].as_ref().and_then(|last| last["content"].as_str()).expect("a result");
    assert!(sent.contains("noon") && sent.len() < DOCUMENT.len() * 9, "{sent}");
    assert_eq!(forms[0], forms[1]);
    // What was sent before of the newest turn is compressed further if the rest of the request has grown.
    let daemon = in_front(&with_cap(110), true, 1).await;
    assert_eq!(send(&daemon, &long).await.status, 200);
    let before = bodies.pop_json()["messages"].as_array().expect("messages").last().cloned();
    let system = json!({"role": "system", "content": "word ".repeat(72)});
    let grown = send(&daemon, &[&[system], &long[..]].concat()).await;
    assert_eq!(grown.status, 200, "{}", grown.body);
    assert_ne!(bodies.pop_json()["messages"].as_array().expect("messages").last().cloned(), before);
    // What is not compressed counts as well.
    let own = with_cap(20);
    let plain = [json!({"role": "user", "content": "word ".repeat(30)})];
    assert_eq!(send(&in_front(&own, true, 1).await, &plain).await.json()["error"]["code"], "too_long");
    let tools = json!({"model": "m-1", "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "a", "description": "word ".repeat(30)}}]});
    let daemon = in_front(&own, true, 1).await;
    let response = post(daemon.http, "/v1/chat/completions", tools.to_string()).await;
    assert_eq!(response.json()["error"]["code"], "too_long");
    // A daemon whose model is being loaded cannot count, and forwards.
    assert_eq!(send(&in_front(&own, false, 1).await, &plain).await.status, 200);
}

/// A log of lines that are equal but for numbers.
fn log(lines: usize) -> String {
    let line = |at: usize| {
        format!(
            "2026-11-28T09:14:{:02}Z INFO  [http] request {:08x} GET /orders/{at} status=200\n",
            at % 60,
            at * 7_919
        )
    };
    (0..lines).map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_encoded_without_loss_and_sent_again_as_they_were() {
    let (url, bodies) = upstream().await;
    let rows: Vec<Value> =
        (0..40).map(|at| json!({"id": at, "conclusion": "success", "log": null})).collect();
    let json = serde_json::to_string_pretty(&json!({"total": 40, "rows": rows})).expect("JSON");
    let lossless = MiddlewareSettings { mode: Mode::Lossless, ..settings(url.clone()) };
    let daemon = in_front(&lossless, true, 1).await;
    for result in [log(80), json] {
        let mut messages = called("bash", &result);
        let response = send(&daemon, &messages).await;
        let first = bodies.pop_json()["messages"][2]["content"].as_str().expect("a text").to_owned();
        assert_eq!(thresher_codec::decode(&first).as_deref(), Ok(&*result));
        assert!(3 * first.len() < 2 * result.len(), "{first}");
        assert_eq!(response.header("x-thresher"), Some("compressed"));
        let count = |name: &str| response.header(name).and_then(|count| count.parse().ok()).unwrap_or(0);
        let (before, after): (u64, u64) =
            (count("x-thresher-tokens-before"), count("x-thresher-tokens-after"));
        assert!(0 < after && 3 * after < 2 * before, "{before} {after}");
        // Later turns send it again, also if the beginning is cut away, or the request asks for no compression.
        messages.extend([
            json!({"role": "assistant", "content": "All is well."}),
            json!({"role": "user", "content": "And the moon?"}),
        ]);
        for messages in [&messages[..], &messages[1..]] {
            send(&daemon, messages).await;
            let sent = bodies.pop_json();
            let again =
                sent["messages"].as_array().expect("messages").iter().find(|one| one["role"] == "tool");
            assert_eq!(again.map(|result| &result["content"]), Some(&json!(first)));
        }
        let off = json!({"model": "m-1", "messages": messages, "thresher": {"compress": false}}).to_string();
        post(daemon.http, "/v1/chat/completions", off).await;
        assert_eq!(bodies.pop_json()["messages"][2]["content"], json!(first));
    }
    // A file that the agent may edit, and running text, stay in this mode.
    for (name, result) in
        [("read_file", log(80)), ("bash", DOCUMENT.repeat(20).replace("noon", "noon, they say"))]
    {
        let messages = called(name, &result);
        send(&daemon, &messages).await;
        let sent = bodies.pop_json()["messages"][2]["content"].as_str().expect("a text").to_owned();
        assert_eq!(thresher_codec::decode(&sent).as_deref(), Ok(&*result), "{name}");
        assert!(name == "bash" || sent == result, "{name}");
    }
    // Without a model, too.
    let unready = in_front(&lossless, false, 1).await;
    let messages = called("bash", &log(80));
    let response = send(&unready, &messages).await;
    assert_eq!(response.header("x-thresher"), Some("compressed"));
    let sent = bodies.pop_json()["messages"][2]["content"].as_str().expect("a text").to_owned();
    assert_eq!(thresher_codec::decode(&sent).as_deref(), Ok(&*log(80)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_the_model_has_is_not_sent_twice() {
    let (url, bodies) = upstream().await;
    let daemon = in_front(&with_tools(url, &["*"]), true, 1).await;
    let file = DOCUMENT.repeat(20);
    let answer = json!({"role": "assistant", "content": "At noon."});
    let mut messages = called("read_file", &file);
    messages.push(answer.clone());
    messages.extend(called("read_file", &file));
    let sent = async |messages: &[Value]| -> [Value; 2] {
        send(&daemon, messages).await;
        let body = bodies.pop_json();
        [2, 6].map(|at| body["messages"][at]["content"].clone())
    };
    let [first, second] = sent(&messages).await;
    assert_eq!(first, json!(file));
    assert_eq!(
        second,
        json!("[the same text as the result of read_file above that begins \"Water is wet.\"]")
    );
    messages.extend([answer, json!({"role": "user", "content": "And the moon?"})]);
    assert_eq!(sent(&messages).await, [first, second], "in later turns");
    messages[2]["content"] = json!("[cleared]");
    assert_eq!(sent(&messages).await, [json!("[cleared]"), json!(file)], "the first one has gone");
}
