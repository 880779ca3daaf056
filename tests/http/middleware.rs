//! The middleware in front of an upstream: if the daemon cannot compress a request it passes it on unchanged,
//! and errors have the shape of the API that the client uses. `tests/middleware_test.py` tests it with
//! official clients and the real model.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::{Json, Router};
use futures_util::stream;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use thresher::http::tls::Tls;
use thresher::http::{Middleware, Serving};
use thresher::middleware::dialect::Dialect;
use thresher::middleware::find;
use thresher::middleware::json::Located;
use thresher::middleware::rewrite::{self, CompressOptions, Compressor, Extent, ReadTurns, TurnPlan};
use thresher::middleware::settings::{MiddlewareLimits, MiddlewareSettings, Mode, UpstreamSettings, When};
use thresher::middleware::untouched::TextKinds;
use thresher_core::domain::{Budget, Granularity};
use thresher_core::kv::store::KvStore;
use thresher_core::pipeline::PipelineError;
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::validate::RequestLimits;
use tokio::net::TcpListener;

use crate::support::wire::{Response, ask_with, get, post};
use crate::tls::Files;
use crate::{
    Daemon, Gate, double, pipeline_of, pipeline_within, registry_settings, scripted, serve, service, serving,
};

const DOCUMENT: &str =
    "Water is wet. The tide is at noon. The moon is far. Ships are slow. Gulls are loud. Ropes are long.";

/// An upstream that gives every request the same response, and records requests.
#[derive(Clone, Default)]
struct Upstream {
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Upstream {
    async fn listen(&self, status: u16, answer: Value) -> SocketAddr {
        let requests = Arc::clone(&self.requests);
        let handle = async move |request: Request| {
            let path = request.uri().to_string();
            let body = request.into_body().collect().await.expect("a body").to_bytes();
            // A body that is nested too deeply for serde is recorded as null.
            requests
                .lock()
                .expect("no panic")
                .push((path, serde_json::from_slice(&body).unwrap_or_default()));
            (StatusCode::from_u16(status).expect("a status"), Json(answer.clone()))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(axum::serve(listener, Router::new().fallback(handle)).into_future());
        address
    }

    fn last_body(&self) -> Value {
        self.requests.lock().expect("no panic").last().expect("a request").1.clone()
    }
}

pub fn settings(url: String) -> MiddlewareSettings {
    let (models, compress) = (vec!["m-*".to_owned()], When::Always);
    let upstream = UpstreamSettings { url, models, compress, ..UpstreamSettings::default() };
    MiddlewareSettings { upstreams: vec![upstream], prompt_tokens_min: 0, ..MiddlewareSettings::default() }
}

/// The same, for an upstream whose requests are compressed only if they ask for it.
pub fn asked_settings(url: String) -> MiddlewareSettings {
    let mut settings = settings(url);
    settings.upstreams[0].compress = When::Asked;
    settings
}

pub fn limits() -> MiddlewareLimits {
    MiddlewareLimits { result_tokens_min: 0, body_bytes_max: 10_000, ..MiddlewareLimits::default() }
}

/// Limits for texts that are longer.
pub fn wide_limits() -> MiddlewareLimits {
    MiddlewareLimits { body_bytes_max: 10 << 20, ..limits() }
}

/// A daemon with these settings of the middleware. If `loaded` is false its model is still loading.
pub async fn in_front(settings: &MiddlewareSettings, loaded: bool, concurrency: usize) -> Daemon {
    let pipeline = loaded.then(|| pipeline_of(scripted(), KvStore::without_tiers()));
    let (mut service, tenants) = service(pipeline, concurrency, 0, &registry_settings());
    service.middleware = Arc::new(Middleware::new(settings, limits()).expect("an upstream"));
    serve((service, tenants)).await
}

/// A daemon with other limits. It works on one request at a time.
pub async fn in_front_within(settings: &MiddlewareSettings, limits: MiddlewareLimits) -> Daemon {
    let pipeline = pipeline_of(scripted(), KvStore::without_tiers());
    let (mut service, tenants) = service(Some(pipeline), 1, 0, &registry_settings());
    service.middleware = Arc::new(Middleware::new(settings, limits).expect("an upstream"));
    serve((service, tenants)).await
}

fn chat() -> Value {
    let content = format!("<context>{DOCUMENT}</context> When is the tide?");
    json!({"model": "m-1", "messages": [{"role": "user", "content": content}]})
}

async fn send_chat(daemon: &Daemon, body: &Value) -> Response {
    send_to(daemon, "/v1/chat/completions", &[], body.to_string()).await
}

async fn send_to(daemon: &Daemon, path: &str, headers: &[&str], body: impl AsRef<[u8]>) -> Response {
    let headers = [&["content-type: application/json"], headers].concat();
    ask_with(daemon.http, ("POST", path), &headers, body).await
}

fn answer() -> Value {
    json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "The tide is at noon."}}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_compressed_is_passed_on_unchanged() {
    let upstream = Upstream::default();
    let settings = settings(format!("http://{}", upstream.listen(200, answer()).await));
    let check = async |name: &str, daemon: &Daemon, reason: &str| {
        let response = send_chat(daemon, &chat()).await;
        assert_eq!((response.status, response.header("x-thresher")), (200, Some("uncompressed")), "{name}");
        assert_eq!(response.header("x-thresher-reason"), Some(reason), "{name}");
        assert_eq!(upstream.last_body(), chat(), "{name}");
    };
    check("loading", &in_front(&settings, false, 1).await, "not_ready").await;
    check("no permit and no queue", &in_front(&settings, true, 0).await, "overloaded").await;
    let draining = in_front(&settings, true, 1).await;
    draining.service.admission.drain();
    check("draining", &draining, "draining").await;
    let short = MiddlewareSettings { deadline_ms: 50, ..settings.clone() };
    let closed = Gate::default();
    let pipeline = pipeline_of(double(move |go_on| closed.pass(go_on)), KvStore::without_tiers());
    let (mut service, tenants) = service(Some(pipeline), 1, 0, &registry_settings());
    service.middleware = Arc::new(Middleware::new(&short, limits()).expect("an upstream"));
    check("late", &serve((service, tenants)).await, "deadline_exceeded").await;
    let good = send_chat(&in_front(&settings, true, 1).await, &chat()).await;
    assert_eq!((good.header("x-thresher"), good.header("x-thresher-reason")), (Some("compressed"), None));
    assert_ne!(upstream.last_body(), chat());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chunks_of_a_request_that_cannot_be_compressed_are_passed_on_whole() {
    let upstream = Upstream::default();
    let settings = settings(format!("http://{}", upstream.listen(200, answer()).await));
    let daemon = in_front(&settings, false, 1).await;
    let body = json!({"model": "m-1", "messages": [{"role": "user", "content": "Q"}], "thresher": {"chunks": [DOCUMENT]}});
    assert_eq!(send_chat(&daemon, &body).await.header("x-thresher"), Some("uncompressed"));
    let context = format!("<context>\n[1] {DOCUMENT}\n</context>");
    assert_eq!(
        upstream.last_body(),
        json!({"model": "m-1", "messages": [{"role": "user", "content": context}, {"role": "user", "content": "Q"}]})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_shape_of_the_clients_api() {
    let upstream = Upstream::default();
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(200, answer()).await)), true, 1).await;
    let check = async |name: &str, path: &str, header: &str, body: &str, expect: (u16, &str, &str, Value)| {
        let headers: Vec<&str> = [header].into_iter().filter(|header| !header.is_empty()).collect();
        let response = send_to(&daemon, path, &headers, body).await;
        let error = &response.json()["error"];
        let found = (response.status, &error["type"], &error["code"], &error["param"]);
        assert_eq!(
            found,
            (expect.0, &json!(expect.1), &json!(expect.2), &expect.3),
            "{name}: {}",
            response.body
        );
        assert!(!error["message"].as_str().expect(name).is_empty());
    };
    let (chat, messages) = ("/v1/chat/completions", "/v1/messages");
    let invalid = |code, param: Value, status| (status, "invalid_request_error", code, param);
    check("not JSON", chat, "", "{", invalid("invalid_json", Value::Null, 400)).await;
    check("no model", chat, "", "{}", invalid("missing_field", json!("model"), 400)).await;
    check("an unknown model", chat, "", r#"{"model": "x"}"#, invalid("model_unknown", json!("model"), 404))
        .await;
    check(
        "an unknown model, to Anthropic",
        messages,
        "",
        r#"{"model": "x"}"#,
        (404, "not_found_error", "model_unknown", json!("model")),
    )
    .await;
    let long = format!(r#"{{"model": "m-1", "x": "{}"}}"#, "x".repeat(10_000));
    check("a body that is too long", chat, "", &long, invalid("body_too_large", Value::Null, 413)).await;
    check(
        "a body that is too long, to Anthropic",
        messages,
        "",
        &long,
        (413, "request_too_large", "body_too_large", Value::Null),
    )
    .await;
    let header = "x-thresher-compress: maybe";
    check(
        "an invalid header",
        chat,
        header,
        "{}",
        invalid("invalid_value", json!("x-thresher-compress"), 422),
    )
    .await;
    let field = |field: &str| {
        format!(
            r#"{{"model": "m-1", "messages": [{{"role": "user", "content": "Q"}}], "thresher": {field}}}"#
        )
    };
    check(
        "an unknown field",
        chat,
        "",
        &field(r#"{"chunk": []}"#),
        invalid("unknown_field", json!("thresher.chunk"), 400),
    )
    .await;
    for empty in ["chunks", "chunk_ids"] {
        let body = field(&format!(r#"{{"{empty}": []}}"#));
        let param = json!(format!("thresher.{empty}"));
        check(empty, chat, "", &body, invalid("field_empty", param, 422)).await;
    }
    check(
        "a wrong type",
        chat,
        "",
        &field(r#"{"chunks": [3]}"#),
        invalid("wrong_type", json!("thresher.chunks[0]"), 400),
    )
    .await;
    check(
        "a budget with two limits",
        chat,
        "",
        &field(r#"{"budget": {"tokens": 9, "ratio": 0.5}}"#),
        invalid("fields_conflict", json!("thresher.budget"), 422),
    )
    .await;
    check(
        "a budget out of range",
        chat,
        "",
        &field(r#"{"budget": {"ratio": 2}}"#),
        invalid("out_of_range", json!("thresher.budget.ratio"), 422),
    )
    .await;
    check(
        "a promise for words",
        chat,
        "",
        &field(r#"{"budget": {"coverage": 0.9}, "granularity": "word"}"#),
        invalid("unavailable", json!("thresher.granularity"), 422),
    )
    .await;
    let nobody = r#"{"model": "m-1", "messages": [], "thresher": {"chunks": ["x"]}}"#;
    check("no question", chat, "", nobody, invalid("field_empty", json!("thresher.chunks"), 422)).await;
    assert!(upstream.requests.lock().expect("no panic").is_empty(), "an invalid request was passed on");
    let off = in_front(&MiddlewareSettings::default(), true, 1).await;
    assert_eq!(send_chat(&off, &self::chat()).await.json()["error"]["code"], "not_found");
    let gone = in_front(&settings("http://127.0.0.1:1".to_owned()), true, 1).await;
    let response = send_chat(&gone, &self::chat()).await;
    assert_eq!((response.status, response.json()["error"]["code"].as_str()), (502, Some("upstream_failed")));

    // The upstream accepts the first request and does not answer, so the second one finds the only place
    // taken.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", silent.local_addr().expect("bound"));
    let limits = MiddlewareLimits { request_count_max: 1, ..limits() };
    let one = Arc::new(in_front_within(&settings(url.clone()), limits).await);
    let first = tokio::spawn({
        let one = Arc::clone(&one);
        async move { send_chat(&one, &self::chat()).await }
    });
    let accepted = silent.accept().await.expect("the first request arrives at the upstream");
    let response = send_chat(&one, &self::chat()).await;
    assert_eq!(response.json()["error"]["code"], "overloaded");
    drop(accepted);
    assert_eq!(first.await.expect("no panic").json()["error"]["code"], "upstream_failed");
    let limits = MiddlewareLimits { silence_max: Duration::from_millis(300), ..self::limits() };
    let impatient = in_front_within(&settings(url), limits).await;
    assert_eq!(send_chat(&impatient, &self::chat()).await.json()["error"]["code"], "upstream_silent");
}

/// What asks for compression if the settings do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_asks_with_a_header_a_budget_a_question_or_chunks() {
    let upstream = Upstream::default();
    let url = format!("http://{}", upstream.listen(200, answer()).await);
    let daemon = in_front(&asked_settings(url), true, 1).await;
    let check = async |header: &str, field: Value, expect: &str| {
        let mut body = chat();
        if !field.is_null() {
            body["thresher"] = field.clone();
        }
        let headers: Vec<&str> = [header].into_iter().filter(|header| !header.is_empty()).collect();
        let response = send_to(&daemon, "/v1/chat/completions", &headers, body.to_string()).await;
        let found = (response.status, response.header("x-thresher"));
        assert_eq!(found, (200, Some(expect)), "{header} {field}: {}", response.body);
        assert_eq!(upstream.last_body() != chat(), expect == "compressed", "{header} {field}");
    };
    check("", Value::Null, "uncompressed").await;
    check("", json!({"cite": true}), "uncompressed").await;
    for word in ["true", "1", "yes", "on", "True", "YES"] {
        check(&format!("x-thresher-compress: {word}"), Value::Null, "compressed").await;
    }
    for word in ["false", "0", "no", "off"] {
        check(&format!("x-thresher-compress: {word}"), Value::Null, "uncompressed").await;
    }
    check("", json!({"budget": {"tokens": 12}}), "compressed").await;
    check("", json!({"budget": {"ratio": 0.3}}), "compressed").await;
    check("", json!({"query": "Which ships are slow?"}), "compressed").await;
    assert!(upstream.last_body().to_string().contains("Ships are slow"), "{}", upstream.last_body());
    check("", json!({"compress": false, "budget": {"tokens": 12}}), "uncompressed").await;
    check("x-thresher-compress: 0", json!({"budget": {"tokens": 12}}), "uncompressed").await;
    check("x-thresher-compress: 0", json!({"compress": true}), "compressed").await;
    let blank = json!({"model": "m-1", "messages": [], "thresher": {"query": " "}});
    let blank = send_chat(&daemon, &blank).await;
    assert_eq!(blank.json()["error"]["param"], "thresher.query", "{}", blank.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_called_compressed_only_if_something_is_shorter() {
    let upstream = Upstream::default();
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(200, answer()).await)), true, 1).await;
    let content = "<context>The tide is at noon.</context> When is the tide?";
    let body = json!({"model": "m-1", "messages": [{"role": "user", "content": content}]});
    let response = send_chat(&daemon, &body).await;
    let found = ["x-thresher", "x-thresher-reason", "x-thresher-tokens-before", "x-thresher-tokens-after"]
        .map(|name| response.header(name).unwrap_or("-").to_owned());
    assert_eq!((&*found[0], &*found[1]), ("uncompressed", "nothing_shortened"), "{found:?}");
    assert_eq!(found[2], found[3]);
    assert_eq!(upstream.last_body(), body);
    // All of an added chunk is inserted: the request is longer, and nothing of it is left out.
    let added = json!({"model": "m-1", "messages": [{"role": "user", "content": "When is the tide?"}],
        "thresher": {"chunks": ["The tide is at noon."]}});
    let response = send_chat(&daemon, &added).await;
    assert_eq!(response.header("x-thresher-reason"), Some("nothing_shortened"));
    assert!(upstream.last_body().to_string().contains("The tide is at noon."));
    let nothing = json!({"model": "m-1", "messages": [{"role": "user", "content": "Hello"}]});
    assert_eq!(send_chat(&daemon, &nothing).await.header("x-thresher-reason"), Some("nothing_to_compress"));
}

/// Tokens of the texts of a conversation before and after compression.
fn tokens(response: &Response) -> (usize, usize) {
    let number = |name| {
        response.header(name).unwrap_or_else(|| panic!("{}", response.body)).parse().expect("a number")
    };
    (number("x-thresher-tokens-before"), number("x-thresher-tokens-after"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_counts_the_same_in_every_request_of_its_conversation() {
    let upstream = Upstream::default();
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(200, answer()).await)), true, 1).await;
    let turn = |name: &str| {
        let content = format!("<context>{DOCUMENT}\n\nThe {name} tide.</context> When is the tide?");
        json!({"role": "user", "content": content})
    };
    let answer = json!({"role": "assistant", "content": "At noon."});
    let ask = async |messages: &[&Value], chunks: Value| {
        let budget = json!({"tokens": if chunks.is_null() { 14 } else { 30 }});
        let body =
            json!({"model": "m-1", "messages": messages, "thresher": {"budget": budget, "chunks": chunks}});
        tokens(&send_chat(&daemon, &body).await)
    };
    let (first, second) = (turn("first"), turn("second"));
    let of_first = ask(&[&first], Value::Null).await;
    let of_second = ask(&[&second], Value::Null).await;
    let of_both = ask(&[&first, &answer, &second], Value::Null).await;
    assert!(of_first.1 < of_first.0, "{of_first:?}");
    assert_eq!(of_both, (of_first.0 + of_second.0, of_first.1 + of_second.1));

    // The turn of the question is resent as it was, with the same chunks beside it; only the tokens of the tool's result are new.
    let chunks = json!([{"id": "a", "text": "A tide chart is on the door."}]);
    let third = turn("third");
    let of_third = ask(&[&third], chunks.clone()).await;
    let asked = |body: Value| {
        let mut messages = body["messages"].as_array().expect("messages").clone().into_iter();
        messages.find(|message| message.to_string().contains("When is the tide?"))
    };
    let sent = asked(upstream.last_body());
    let call = json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "A short result."});
    let with_result = ask(&[&third, &call, &result], chunks).await;
    assert_eq!(asked(upstream.last_body()), sent);
    assert_eq!(with_result.0 - of_third.0, with_result.1 - of_third.1, "{with_result:?} {of_third:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_blank_lines_remain_around_kept_paragraphs() {
    let upstream = Upstream::default();
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(200, answer()).await)), true, 1).await;
    let paragraphs =
        ["Ropes are long.", "Gulls are loud.", "The tide is at noon.", "Ships are slow.", "Water is wet."];
    let content = format!("<context>\n{}\n</context>\nWhen is the tide?", paragraphs.join("\n\n"));
    let body = json!({"model": "m-1", "messages": [{"role": "user", "content": content}],
        "thresher": {"budget": {"tokens": 14}}});
    let response = send_chat(&daemon, &body).await;
    assert_eq!(response.header("x-thresher"), Some("compressed"), "{:?}", response.headers);
    let sent = upstream.last_body()["messages"][0]["content"].as_str().expect("text").to_owned();
    assert!(sent.contains("The tide is at noon."), "{sent:?}");
    assert!(!sent.contains("\n\n\n") && sent.len() < content.len() - 30, "{sent:?}");
    assert!(sent.starts_with("<context>\n") && !sent.starts_with("<context>\n\n"), "{sent:?}");
    assert!(sent.ends_with(".\n</context>\nWhen is the tide?"), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_chunks_can_be_named_in_the_field_thresher() {
    let upstream = Upstream::default();
    let settings = settings(format!("http://{}", upstream.listen(200, answer()).await));
    let daemon = in_front(&settings, true, 2).await;
    let chunks = json!({"chunks": [{"id": "a", "text": DOCUMENT}, {"id": "b", "text": "Gulls are loud."}]});
    assert_eq!(post(daemon.http, "/v1/chunks", chunks.to_string()).await.status, 200);
    let ask = async |field: Value| {
        let messages = json!([{"role": "user", "content": "When is the tide?"}]);
        send_chat(&daemon, &json!({"model": "m-1", "messages": messages, "thresher": field})).await
    };
    assert_eq!(ask(json!({"chunk_ids": ["b", "a"]})).await.header("x-thresher"), Some("compressed"));
    let sent = upstream.last_body()["messages"][0]["content"].as_str().expect("text").to_owned();
    assert!(sent.contains("The tide is at noon.") && !sent.contains("Ropes"), "{sent}");
    let whole = ask(json!({"chunk_ids": ["a"], "compress": false})).await;
    assert_eq!(whole.header("x-thresher"), Some("uncompressed"));
    assert!(upstream.last_body()["messages"][0]["content"].as_str().expect("text").contains(DOCUMENT));
    let check = async |field: Value, expect: &str| {
        let response = ask(field.clone()).await;
        let error = &response.json()["error"];
        let found = format!("{} {} {}", response.status, error["code"], error["param"]).replace('"', "");
        assert_eq!(found, expect, "{field}");
    };
    check(json!({"chunk_ids": ["a", "c"]}), "422 chunk_unknown thresher.chunk_ids[1]").await;
    check(json!({"chunk_ids": ["a", "a"]}), "422 duplicate thresher.chunk_ids[1]").await;
    check(json!({"chunk_ids": []}), "422 field_empty thresher.chunk_ids").await;
    check(json!({"chunk_ids": ["a"], "chunks": ["x"]}), "422 fields_conflict thresher.chunk_ids").await;
    check(json!({"chunk_ids": "a"}), "400 wrong_type thresher.chunk_ids").await;
    let nobody = json!({"model": "m-1", "messages": [], "thresher": {"chunk_ids": ["a"]}});
    assert_eq!(send_chat(&daemon, &nobody).await.json()["error"]["code"], "field_empty");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slash_after_a_path_is_not_sent_to_the_upstream() {
    let upstream = Upstream::default();
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(200, answer()).await)), true, 1).await;
    for (path, expect) in [
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/chat/completions/?a=b", "/v1/chat/completions?a=b"),
        ("/v1/chat/completions?a=b/", "/v1/chat/completions?a=b/"),
    ] {
        let response = send_to(&daemon, path, &[], chat().to_string()).await;
        assert_eq!(response.header("x-thresher"), Some("compressed"), "{path}");
        assert_eq!(upstream.requests.lock().expect("no panic").pop().expect("a request").0, expect);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_upstream_are_passed_on_unchanged() {
    let upstream = Upstream::default();
    let error =
        json!({"error": {"message": "no"}, "choices": [{"message": {"content": "The tide is at noon."}}]});
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(418, error.clone()).await)), true, 1).await;
    let response = send_chat(&daemon, &chat()).await;
    assert_eq!((response.status, response.json(), response.header("x-thresher-cited")), (418, error, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_validated_and_their_originals_can_be_retrieved() {
    let daemon = in_front_within(&MiddlewareSettings::default(), wide_limits()).await;
    let check = async |name: &str, body: Value, expect: (u16, &str, Value)| {
        let response = post(daemon.http, "/headroom/v1/compress", body.to_string()).await;
        let error = &response.json()["error"];
        assert_eq!(
            (response.status, &error["code"], &error["param"]),
            (expect.0, &json!(expect.1), &expect.2),
            "{name}"
        );
    };
    check("no list", json!({"messages": "x"}), (400, "wrong_type", json!("messages"))).await;
    check("an empty list", json!({"messages": []}), (422, "field_empty", json!("messages"))).await;
    check("a number for a message", json!({"messages": [{}, 3]}), (400, "wrong_type", json!("messages[1]")))
        .await;
    check("chunks", json!({"query": "When?", "chunks": ["a"]}), (400, "missing_field", json!("messages")))
        .await;
    let both = json!({"messages": [{}], "query": "When?", "chunks": null});
    check("both shapes", both, (400, "unknown_field", json!("query"))).await;
    let messages = json!([{"role": "user", "content": "When is the tide?"}, {"role": "tool", "content": DOCUMENT.repeat(5)}]);
    let answer =
        post(daemon.http, "/headroom/v1/compress", json!({"messages": messages}).to_string()).await.json();
    let hash = answer["ccr_hashes"][0].as_str().expect("a hash");
    let whole = get(daemon.http, &format!("/v1/retrieve/{hash}")).await.json();
    assert_eq!(whole["original_content"], messages[1]["content"]);
    let found = get(daemon.http, &format!("/v1/retrieve/{hash}?query=the%20tide")).await.json();
    assert!(found["relevant"][0]["text"].as_str().is_some_and(|text| text.contains("tide")), "{found}");
    let blank = get(daemon.http, &format!("/v1/retrieve/{hash}?query=%20")).await;
    crate::check_error("blank", &blank, "422 field_empty query", "leave it out");
    for unknown in ["0".repeat(24), "x".to_owned(), "é".repeat(12), "%FF".to_owned()] {
        let response = get(daemon.http, &format!("/v1/retrieve/{unknown}")).await;
        assert_eq!(
            (response.status, response.json()["error"]["code"].as_str()),
            (404, Some("id_unknown")),
            "{unknown}"
        );
    }
    assert_eq!(get(daemon.http, &format!("/v1/retrieve/{hash}?q=x")).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_with_tls_is_verified_with_the_configured_authority() {
    let (files, _) = Files::new();
    let router = Router::new().fallback(async || Json(answer()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("https://localhost:{}", listener.local_addr().expect("bound").port());
    let (tls, _watched) = Tls::open(&files.cert, &files.key).expect("a certificate");
    let time = Duration::from_secs(10);
    tokio::spawn(thresher::http::serve(
        listener,
        router,
        Serving { head_max: time, ..serving() },
        Some(tls),
        std::future::pending(),
    ));
    let mut settings = settings(url);
    settings.upstreams[0].ca_file.clone_from(&files.cert);
    let response = send_chat(&in_front(&settings, true, 1).await, &chat()).await;
    assert_eq!(
        (response.status, response.header("x-thresher-cited")),
        (200, Some("true")),
        "{}",
        response.body
    );
    settings.upstreams[0].ca_file = "".into();
    let unverified = send_chat(&in_front(&settings, true, 1).await, &chat()).await;
    assert_eq!(
        (unverified.status, unverified.json()["error"]["code"].as_str()),
        (502, Some("upstream_failed"))
    );
    settings.upstreams[0].ca_file = files.cert.with_file_name("absent.pem");
    let error = Middleware::new(&settings, limits()).err().expect("a missing file").to_string();
    assert!(error.contains("absent.pem") && error.contains("https://localhost"), "{error}");
}

/// Requests that an upstream has received: the path with the query, and the headers without those that every
/// HTTP client sends.
type Received = Vec<(String, Vec<(String, String)>)>;

/// An upstream that records its requests and responds with headers of many kinds.
async fn with_headers() -> (SocketAddr, Arc<Mutex<Received>>) {
    let received = Arc::new(Mutex::new(Received::new()));
    let recording = Arc::clone(&received);
    let handle = async move |request: Request| {
        let header = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
            (name.to_string(), value.to_str().expect("text").to_owned())
        };
        let mut headers: Vec<_> = request.headers().iter().map(header).collect();
        let of_every_request = ["host", "content-length", "content-type", "x-thresher-hops"];
        headers.retain(|(name, _)| !of_every_request.contains(&&**name));
        recording.lock().expect("no panic").push((request.uri().to_string(), headers));
        let headers = [
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("alt-svc", "h3=\":443\""),
            ("anthropic-organization-id", "o"),
            ("location", "https://elsewhere"),
            ("openai-processing-ms", "7"),
            ("request-id", "r1"),
            ("retry-after", "3"),
            ("server", "somebody"),
            ("set-cookie", "session=1"),
            ("strict-transport-security", "max-age=1"),
            ("via", "1.1 proxy"),
            ("www-authenticate", "Basic"),
            ("x-ratelimit-remaining-requests", "9"),
            ("x-request-id", "r2"),
            ("x-theirs", "1"),
            ("x-thresher", "compressed"),
        ];
        (headers, Json(json!({}))).into_response()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(axum::serve(listener, Router::new().fallback(handle)).into_future());
    (address, received)
}

/// Headers that a client may send, allowed ones and others.
const SENT: [&str; 21] = [
    "accept: application/json",
    "accept-encoding: gzip",
    "anthropic-beta: b",
    "anthropic-version: 2023-06-01",
    "api-key: azure",
    "authorization: Bearer mine",
    "baggage: user=1",
    "cookie: session=1",
    "idempotency-key: i",
    "openai-organization: o",
    "openai-project: thr_0123456789",
    "origin: http://localhost:3000",
    "traceparent: 00-1-2-03",
    "user-agent: client",
    "x-api-key: mine too",
    "x-forwarded-for: 10.0.0.1",
    "x-goog-api-key: google",
    "x-mine: 1",
    "x-stainless-lang: python",
    "x-thresher-cite: false",
    // Answers to requests that are compressed or cited are read, and so are not encoded.
    "x-thresher-compress: false",
];

/// Those of [`SENT`] that are passed on by default.
const PASSED: [&str; 9] = [
    "accept: application/json",
    "accept-encoding: gzip",
    "anthropic-beta: b",
    "anthropic-version: 2023-06-01",
    "idempotency-key: i",
    "openai-organization: o",
    "traceparent: 00-1-2-03",
    "user-agent: client",
    "x-stainless-lang: python",
];

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_gets_allowed_headers_and_the_key_of_its_settings() {
    let folder = tempfile::tempdir().expect("a folder");
    let key_file = folder.path().join("key");
    std::fs::write(&key_file, "upstream-key\n").expect("written");
    let (address, received) = with_headers().await;
    let (chat, responses, messages) = ("/v1/chat/completions", "/v1/responses", "/v1/messages");
    let named = UpstreamSettings {
        url: format!("http://{address}/v1"),
        models: vec!["m-*".to_owned()],
        compress: When::Always,
        ..UpstreamSettings::default()
    };
    let of_any = UpstreamSettings { models: Vec::new(), ..named.clone() };
    let check = async |name: &str, upstream: &UpstreamSettings, path: &str, sent: &[&str], more: &[&str]| {
        let settings = MiddlewareSettings { upstreams: vec![upstream.clone()], ..settings(String::new()) };
        let daemon = in_front(&settings, true, 1).await;
        let url = format!("{path}?beta=true&key=thr_0123456789&k=%74hr_0123456789&api-version=1");
        assert_eq!(send_to(&daemon, &url, sent, r#"{"model": "m-1"}"#).await.status, 200, "{name}");
        let (url, headers) = received.lock().expect("no panic").pop().expect(name);
        assert_eq!(url, format!("{path}?beta=true&api-version=1"), "{name}");
        let mut headers: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        headers.sort_unstable();
        let mut expect: Vec<&str> = [&PASSED, more].concat();
        expect.sort_unstable();
        assert_eq!(headers, expect, "{name}, {path}");
    };
    let mine = "authorization: Bearer mine";
    for path in [chat, responses] {
        check("named models", &named, path, &SENT, &[mine]).await;
    }
    check("named models", &named, messages, &SENT, &[mine, "x-api-key: mine too"]).await;
    for path in [chat, responses, messages] {
        check("any model", &of_any, path, &SENT, &[]).await;
    }
    let explicit = UpstreamSettings { caller_key: Some(true), ..of_any.clone() };
    check("any model, with caller_key = true", &explicit, chat, &SENT, &[mine]).await;
    let forbidden = UpstreamSettings { caller_key: Some(false), ..named.clone() };
    check("named models, with caller_key = false", &forbidden, messages, &SENT, &[]).await;
    for upstream in [&named, &of_any] {
        let of_file = UpstreamSettings { key_file: key_file.clone(), ..upstream.clone() };
        for path in [chat, responses] {
            check("a key file", &of_file, path, &SENT, &["authorization: Bearer upstream-key"]).await;
        }
        check("a key file", &of_file, messages, &SENT, &["x-api-key: upstream-key"]).await;
    }
    let more = UpstreamSettings {
        request_headers: ["X-Mine", "api-key", "cookie", "openai-project"].map(str::to_owned).to_vec(),
        ..of_any.clone()
    };
    let named_too = ["api-key: azure", "cookie: session=1", "x-mine: 1"];
    check("headers that the settings add", &more, chat, &SENT, &named_too).await;
    let ours = SENT.map(|line| {
        let (name, value) = line.split_once(": ").expect("a header");
        match name {
            "authorization" => "authorization: Bearer thr_0123456789".to_owned(),
            "x-api-key" | "api-key" | "x-goog-api-key" | "x-mine" => format!("{name}: thr_0123456789"),
            "cookie" => "cookie: a=b; session=thr_0123456789".to_owned(),
            _ => format!("{name}: {value}"),
        }
    });
    let ours: Vec<&str> = ours.iter().map(|line| &**line).collect();
    let all = UpstreamSettings { caller_key: Some(true), ..more };
    for path in [chat, messages] {
        check("keys of the daemon in every header", &all, path, &ours, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_the_allowed_headers_of_a_response() {
    let (address, _) = with_headers().await;
    let check = async |response_headers: &[&str], more: &[&str]| {
        let mut settings = settings(format!("http://{address}"));
        settings.upstreams[0].response_headers =
            response_headers.iter().map(|&name| name.to_owned()).collect();
        let daemon = in_front(&settings, true, 1).await;
        let response = send_chat(&daemon, &json!({"model": "m-1", "messages": []})).await;
        let mut names: Vec<&str> = response.headers.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        let always = [
            "anthropic-organization-id",
            "connection",
            "content-length",
            "content-type",
            "date",
            "openai-processing-ms",
            "request-id",
            "retry-after",
            "x-content-type-options",
            "x-ratelimit-remaining-requests",
            "x-request-id",
            "x-thresher",
            "x-thresher-reason",
            "x-upstream-request-id",
        ];
        let mut expect = [&always[..], more].concat();
        expect.sort_unstable();
        assert_eq!(names, expect);
        assert_eq!(response.header("x-thresher"), Some("uncompressed"), "the daemon sets this header itself");
        assert_eq!(response.header("x-upstream-request-id"), Some("r2"));
    };
    check(&[], &[]).await;
    check(&["X-Theirs", "server"], &["server", "x-theirs"]).await;
}

/// A conversation whose turns each have a context.
fn conversation(turn_count: usize) -> Value {
    let turn = |_| {
        let content = format!("<context>{DOCUMENT}</context> When is the tide?");
        [json!({"role": "user", "content": content}), json!({"role": "assistant", "content": "At noon."})]
    };
    json!({"model": "m-1", "messages": (0..turn_count).flat_map(turn).collect::<Vec<_>>()})
}

#[test]
fn cancelled_work_stops_before_the_next_turn() {
    let text = conversation(100).to_string();
    let body = Located::parse(&text).expect("JSON");
    let policy = MiddlewareSettings::default().policy(&MiddlewareLimits::default(), false);
    let turns = find::turns(&Dialect::Chat.conversation(body), &policy, &TextKinds::default()).turns;
    assert_eq!(turns.len(), 100);
    let pipeline = pipeline_of(scripted(), KvStore::without_tiers());
    let (budget, granularity) = (Budget::default(), Granularity::default());
    let way = CompressOptions {
        mode: Mode::Relevant,
        budget,
        granularity,
        prompt_tokens_min: 0,
        result_tokens_min: 0,
        query: None,
        marks: false,
        related_only: false,
        off: Arc::default(),
    };
    let by = Compressor {
        options: &way,
        tokens_max: None,
        other_text_bytes: 0,
        skips_late: false,
        pipeline: &pipeline,
    };
    for extent in [Extent::NewestTurn { again: true }, Extent::AsBefore, Extent::NewestWhole] {
        for cancels_after in [0, 3] {
            let cancel = Cancel::default();
            if cancels_after == 0 {
                cancel.cancel();
            }
            let lookups = Cell::new(0);
            let before = |_: &[u8; 32]| {
                lookups.set(lookups.get() + 1);
                if lookups.get() == cancels_after {
                    cancel.cancel();
                }
                None
            };
            let outcome = rewrite::plan(&turns, extent, "", &before, &cancel);
            assert!(matches!(outcome, Err(PipelineError::Cancelled)), "{extent:?}");
            assert_eq!(lookups.get(), cancels_after, "{extent:?}: turns that were looked up");
        }
    }
    let conversation =
        rewrite::Conversation { dialect: Dialect::Chat, body, turns: &turns, added: &[], is_cited: true };
    let plans = vec![TurnPlan::Compress { is_recorded: false }; turns.len()];
    let late = Cancel::at(Some(Instant::now()));
    let outcome = rewrite::rewrite(conversation, &plans, Some(by), &mut ReadTurns::new(false), &late);
    assert!(matches!(outcome, Err(PipelineError::DeadlineExceeded)));
    assert_eq!(late.spent(), 0, "the model has read nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_beyond_its_limits_is_passed_on_whole_with_a_reason() {
    let upstream = Upstream::default();
    let url = format!("http://{}", upstream.listen(200, answer()).await);
    let settings = settings(url);
    let bounded = async |turn_count_max: usize, piece_count_max: usize| {
        let bounds = find::Bounds { turn_count_max, piece_count_max };
        in_front_within(&settings, MiddlewareLimits { bounds, ..wide_limits() }).await
    };
    let check = async |name: &str, daemon: Daemon, body: &Value, reason: Option<&str>| {
        let response = send_chat(&daemon, body).await;
        let says = (response.status, response.header("x-thresher"), response.header("x-thresher-reason"));
        let outcome = if reason.is_some() { "uncompressed" } else { "compressed" };
        assert_eq!(says, (200, Some(outcome), reason), "{name}: {}", response.body);
        if reason.is_some() {
            assert_eq!(upstream.last_body(), *body, "{name}");
        }
    };
    let mut four = conversation(4);
    four["messages"].as_array_mut().expect("messages").pop();
    check("within both", bounded(4, 4).await, &four, None).await;
    check("a turn too many", bounded(3, 4).await, &four, Some("too_many_turns")).await;
    check("a piece too many", bounded(4, 3).await, &four, Some("too_many_texts")).await;
    let many = json!({"model": "m-1", "messages": vec![json!({"role": "user", "content": "Q"}); 60_000]});
    check("messages", bounded(1_000_000, 1_000_000).await, &many, Some("too_many_parts")).await;

    let mut brings = four.clone();
    brings["thresher"] = json!({"chunks": ["The tide is at noon."]});
    let daemon = bounded(3, 4).await;
    assert_eq!(send_chat(&daemon, &brings).await.header("x-thresher-reason"), Some("too_many_turns"));
    let (body, messages) = (upstream.last_body(), four["messages"].as_array().expect("messages"));
    let sent_on = body["messages"].as_array().expect("messages");
    assert_eq!(
        sent_on[6]["content"], "<context>\n[1] The tide is at noon.\n</context>",
        "the chunks are passed on"
    );
    assert_eq!([&sent_on[..6], &sent_on[7..]].concat(), *messages);
    brings["thresher"] = json!({"chunks": ["a", "b", "c", "d", "e"]});
    let response = send_chat(&daemon, &brings).await;
    check_mistake(&response, (422, "too_many", "thresher.chunks"), "more than");

    let messages = json!({"messages": four["messages"]}).to_string();
    for daemon in [bounded(3, 4).await, bounded(4, 3).await] {
        let response = post(daemon.http, "/headroom/v1/compress", &messages).await;
        check_mistake(&response, (422, "too_many", "messages"), "the limit is");
    }
    let response = post(bounded(4, 4).await.http, "/headroom/v1/compress", &messages).await;
    assert_eq!(response.status, 200, "{}", response.body);
}

#[track_caller]
fn check_mistake(response: &Response, (status, code, param): (u16, &str, &str), message: &str) {
    let error = &response.json()["error"];
    assert_eq!((response.status, &error["code"], &error["param"]), (status, &json!(code), &json!(param)));
    assert!(error["message"].as_str().is_some_and(|text| text.contains(message)), "{error}");
}

/// An upstream whose response is these frames, one after the other, with this media type.
async fn framed(kind: &'static str, frames: Arc<Vec<Bytes>>) -> SocketAddr {
    let handle = async move |_: Request| {
        let frames = (0..frames.len()).map(move |at| Ok::<_, std::io::Error>(frames[at].clone()));
        ([("content-type", kind)], Body::from_stream(stream::iter(frames)))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(axum::serve(listener, Router::new().fallback(handle)).into_future());
    address
}

fn unchunked(body: &str) -> String {
    let (mut rest, mut out) = (body, String::new());
    loop {
        let (size, data) = rest.split_once("\r\n").expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a number");
        if size == 0 {
            return out;
        }
        out.push_str(&data[..size]);
        rest = &data[size + 2..];
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_too_long_to_cite_is_passed_on_unchanged() {
    // The limit of an answer is 1,000 bytes here. All responses but the first have megabytes.
    let delta = |text: &str| {
        let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
        Bytes::from(format!("data: {}\n\n", json!({"id": "c", "choices": [choice]})))
    };
    let end = Bytes::from_static(
        b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    );
    let cited = delta("The tide is at noon.");
    let filler = Bytes::from("x".repeat(64 * 1024));
    let many = |bytes: &Bytes, count: usize| vec![bytes.clone(); count];
    let stream = "text/event-stream";
    let check = async |name: &str, kind: &'static str, frames: Vec<Bytes>, cites: bool| {
        let expect = String::from_utf8(frames.concat()).expect("text");
        let url = format!("http://{}", framed(kind, Arc::new(frames)).await);
        let response = send_chat(&in_front(&settings(url), true, 1).await, &chat()).await;
        assert_eq!((response.status, response.header("x-thresher")), (200, Some("compressed")), "{name}");
        let body = unchunked(&response.body);
        let is_same = body == expect;
        assert_eq!((is_same, body.contains("annotations")), (!cites, cites), "{name}: {} bytes", body.len());
    };
    check("short", stream, vec![cited.clone(), end.clone()], true).await;
    let texts = [vec![cited.clone()], many(&delta(&"x".repeat(1_000)), 4_000), vec![end.clone()]];
    check("a text without end", stream, texts.concat(), false).await;
    let event = [vec![cited.clone(), Bytes::from("data: ")], many(&filler, 64), vec![end.clone()]];
    check("an event without end", stream, event.concat(), false).await;
    let json = [vec![Bytes::from("{\"choices\":[\"")], many(&filler, 64), vec![Bytes::from("\"]}")]];
    check("one JSON", "application/json", json.concat(), false).await;
    check("half of one", "application/json", json[..2].concat(), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_response_that_takes_too_long_is_passed_on_before_its_end() {
    let gate = Arc::new(Gate::default());
    let waiting = Arc::clone(&gate);
    let handle = async move |_: Request| {
        let waiting = Arc::clone(&waiting);
        let body = stream::unfold(0, move |at| {
            let waiting = Arc::clone(&waiting);
            async move {
                if at > 0 {
                    // Bytes arrive all the time: the upstream is slow, but not silent.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let is_over = waiting.open.load(Ordering::SeqCst);
                (!is_over).then(|| (Ok::<_, std::io::Error>(Bytes::from_static(b" ")), at + 1))
            }
        });
        ([("content-type", "application/json")], Body::from_stream(body))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(axum::serve(listener, Router::new().fallback(handle)).into_future());
    // Between two bytes the upstream may be silent for so long, which no busy machine is.
    let limits = MiddlewareLimits { silence_max: Duration::from_secs(3), ..limits() };
    let daemon = in_front_within(&settings(url), limits).await;
    let body = chat().to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = tokio::net::TcpStream::connect(daemon.http).await.expect("the daemon listens");
    tokio::io::AsyncWriteExt::write_all(&mut client, head.as_bytes()).await.expect("the daemon reads");
    let mut first = [0; 15];
    // The response begins although its body has no end yet.
    tokio::io::AsyncReadExt::read_exact(&mut client, &mut first).await.expect("a head");
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    gate.open.store(true, Ordering::SeqCst);
    let mut rest = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut client, &mut rest).await.expect("the end of the response");
    assert!(!String::from_utf8_lossy(&rest).contains("x-thresher-cited"));
}

/// The tokens of the contents of messages.
fn size(messages: &[Value]) -> usize {
    let tokens = tiktoken_rs::o200k_base_singleton();
    messages.iter().map(|m| tokens.encode_ordinary(m["content"].as_str().unwrap_or_default()).len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_is_filled_to_about_the_least_length_and_a_short_one_is_whole() {
    let upstream = Upstream::default();
    let settings = MiddlewareSettings {
        prompt_tokens_min: MiddlewareSettings::default().prompt_tokens_min,
        deadline_ms: 60_000,
        ..settings(format!("http://{}", upstream.listen(200, answer()).await))
    };
    let pipeline = pipeline_within(RequestLimits::default(), scripted(), KvStore::without_tiers());
    let (mut service, tenants) = service(Some(pipeline), 1, 0, &registry_settings());
    service.middleware = Arc::new(Middleware::new(&settings, wide_limits()).expect("an upstream"));
    let daemon = serve((service, tenants)).await;
    let send = async |sentence_count: usize| {
        // No filler shares a letter with the question, so all of it is far below the best sentence.
        let filler = |at: usize| format!("0{at} 8{} 3{}.", at * 7, at * 3);
        let mut sentences: Vec<String> = (0..sentence_count).map(filler).collect();
        sentences.insert(sentence_count / 2, "Tide at noon.".to_owned());
        let content = format!("<context>{}</context> Tide when?", sentences.join(" "));
        let body = json!({"model": "m-1", "messages": [{"role": "user", "content": content}]});
        let response = send_chat(&daemon, &body).await;
        let sent = upstream.last_body();
        let content = sent["messages"][0]["content"].as_str().expect("a text").to_owned();
        let header = |name| response.header(name).unwrap_or("-").to_owned();
        (header("x-thresher"), header("x-thresher-reason"), content, body == sent)
    };
    let (outcome, reason, content, _) = send(400).await;
    let tokens = size(&[json!({"content": content})]);
    assert_eq!((&*outcome, &*reason), ("compressed", "-"), "{tokens}");
    assert!((1_000..1_100).contains(&tokens), "{tokens}");
    assert!(content.contains("Tide at noon."), "{content}");
    let (outcome, reason, _, is_whole) = send(40).await;
    assert_eq!((&*outcome, &*reason, is_whole), ("uncompressed", "prompt_tokens_min", true));
}

/// What a provider charges for the requests of a conversation, in tokens at the price of input. A prefix that
/// it has cached, if it is long enough, costs a tenth; new tokens cost a quarter more than input.
fn bill(requests: &[Value]) -> f64 {
    const CACHED_TOKENS_MIN: usize = 1_024;
    let messages = |request: &Value| request["messages"].as_array().expect("messages").clone();
    let (mut total, mut last) = (0.0, Vec::new());
    for request in requests {
        let now = messages(request);
        let same = now.iter().zip(&last).take_while(|(a, b)| a == b).count();
        let read = Some(size(&now[..same])).filter(|&tokens| tokens >= CACHED_TOKENS_MIN).unwrap_or(0);
        total += 0.1 * read as f64 + 1.25 * (size(&now) - read) as f64;
        last = now;
    }
    total
}

#[tokio::test(flavor = "multi_thread")]
async fn no_conversation_costs_more_than_without_the_daemon() {
    let upstream = Upstream::default();
    let url = format!("http://{}", upstream.listen(200, answer()).await);
    let settings = MiddlewareSettings {
        prompt_tokens_min: MiddlewareSettings::default().prompt_tokens_min,
        deadline_ms: 60_000,
        tools: vec!["*".to_owned()],
        ..settings(url)
    };
    // The limits of the other tests are too small for these texts.
    let pipeline = pipeline_within(RequestLimits::default(), scripted(), KvStore::without_tiers());
    let (mut service, tenants) = service(Some(pipeline), 1, 0, &registry_settings());
    service.middleware = Arc::new(Middleware::new(&settings, wide_limits()).expect("an upstream"));
    let daemon = serve((service, tenants)).await;
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut lower = 0;
    for conversation in 0..12 {
        let (mut messages, mut own, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..8 {
            messages
                .push(json!({"role": "user", "content": format!("When is the tide? {conversation} {turn}")}));
            if random(3) > 0 {
                let found = format!("{turn}. {}", DOCUMENT.repeat(1 + random(240) as usize));
                let call = json!({"id": format!("c{turn}"), "type": "function", "function": {"name": "find", "arguments": "{}"}});
                messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
                messages.push(json!({"role": "tool", "tool_call_id": format!("c{turn}"), "content": found}));
            }
            let request = json!({"model": "m-1", "messages": messages});
            // Some requests ask not to be compressed.
            let header =
                if random(4) == 0 { "x-thresher-compress: false" } else { "x-thresher-compress: true" };
            let path = "/v1/chat/completions";
            assert_eq!(send_to(&daemon, path, &[header], request.to_string()).await.status, 200);
            own.push(request);
            sent.push(upstream.last_body());
            messages.push(json!({"role": "assistant", "content": "At noon."}));
        }
        for (before, after) in sent.iter().zip(&sent[1..]) {
            let before = before["messages"].as_array().expect("messages");
            assert_eq!(
                before[..],
                after["messages"].as_array().expect("messages")[..before.len()],
                "{conversation}"
            );
        }
        let (with, without) = (bill(&sent), bill(&own));
        let sizes = |all: &[Value]| {
            all.iter().map(|one| size(one["messages"].as_array().expect("messages"))).collect::<Vec<_>>()
        };
        assert!(
            with <= without,
            "{conversation}: {with} for {without}; {:?} {:?}",
            sizes(&sent),
            sizes(&own)
        );
        lower += usize::from(with < 0.8 * without);
    }
    assert!(lower > 3, "{lower} of 12 conversations are cheaper by a fifth");
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_stay_in_front_of_the_question_while_tools_are_called() {
    let upstream = Upstream::default();
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(200, answer()).await)), true, 1).await;
    let chunks = json!({"chunks": [DOCUMENT]});
    let call = json!({"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}});
    let mut messages = vec![json!({"role": "user", "content": "When is the tide?"})];
    let request = |messages: &[Value]| json!({"model": "m-1", "messages": messages, "thresher": chunks});
    assert_eq!(send_chat(&daemon, &request(&messages)).await.status, 200);
    let first = upstream.last_body()["messages"].as_array().expect("messages").clone();
    assert!(first[0]["content"].as_str().is_some_and(|context| context.contains("The tide is at noon.")));
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
    messages.push(json!({"role": "tool", "tool_call_id": "c1", "content": "It is ten."}));
    assert_eq!(send_chat(&daemon, &request(&messages)).await.status, 200);
    let second = upstream.last_body()["messages"].as_array().expect("messages").clone();
    assert_eq!((&second[..2], &second[2..]), (&first[..], &messages[1..]));

    let result = json!({"type": "tool_result", "tool_use_id": "c1", "content": "It is ten."});
    let text = json!({"type": "text", "text": "When is the tide?"});
    let body = json!({"model": "m-1", "messages": [{"role": "user", "content": [result, text]}], "thresher": chunks});
    assert_eq!(send_to(&daemon, "/v1/messages", &[], body.to_string()).await.status, 200);
    let blocks = upstream.last_body()["messages"][0]["content"].clone();
    assert_eq!(
        (&blocks[0], &blocks[2], &blocks[1]["type"]),
        (&result, &text, &json!("text")),
        "tool results must stand first"
    );
    let only_context = json!({"model": "m-1", "messages": [{"role": "user", "content": "<context>x</context>"}], "thresher": chunks});
    assert_eq!(send_chat(&daemon, &only_context).await.json()["error"]["code"], "field_empty");
}

#[tokio::test(flavor = "multi_thread")]
async fn later_system_messages_do_not_change_earlier_messages() {
    let upstream = Upstream::default();
    let tools = vec!["*".to_owned()];
    let settings =
        MiddlewareSettings { tools, ..settings(format!("http://{}", upstream.listen(200, answer()).await)) };
    let daemon = in_front(&settings, true, 1).await;
    let call = json!({"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}});
    let mut messages = vec![
        json!({"role": "system", "content": format!("Answer. <context>{DOCUMENT}</context>")}),
        json!({"role": "user", "content": "When is the tide?"}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "c1", "content": DOCUMENT.repeat(3)}),
    ];
    let mut before: Vec<Value> = Vec::new();
    for more in
        [json!({"role": "system", "content": "Be brief."}), json!({"role": "user", "content": "Thanks."})]
    {
        let request = json!({"model": "m-1", "messages": messages});
        assert_eq!(send_chat(&daemon, &request).await.header("x-thresher"), Some("compressed"));
        let now = upstream.last_body()["messages"].as_array().expect("messages").clone();
        assert_ne!(now[3], messages[3]);
        assert_eq!(now[..before.len()], before[..]);
        before = now;
        messages.push(json!({"role": "assistant", "content": "At noon."}));
        messages.push(more);
        messages.push(json!({"role": "user", "content": "And then?"}));
    }
    messages[0] = json!({"role": "system", "content": "Answer. <context>The moon is far.</context>"});
    assert_eq!(send_chat(&daemon, &json!({"model": "m-1", "messages": messages})).await.status, 200);
    assert_eq!(
        upstream.last_body()["messages"][3],
        before[3],
        "results stay as they were sent although the instructions changed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unusual_bodies_are_passed_on() {
    let upstream = Upstream::default();
    let tools = vec!["*".to_owned()];
    let settings =
        MiddlewareSettings { tools, ..settings(format!("http://{}", upstream.listen(200, answer()).await)) };
    let daemon = in_front_within(&settings, wide_limits()).await;
    let deep = format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000));
    let result = json!({"model": "m-1", "messages": [{"role": "user", "content": "Q"}, {"role": "tool", "content": deep}]});
    assert_eq!(send_chat(&daemon, &result).await.status, 200);
    let nested = "{\"type\":\"tool_result\",\"content\":[".repeat(5_000) + &"]}".repeat(5_000);
    let nested = format!(r#"{{"model": "m-1", "messages": [{{"role": "user", "content": [{nested}]}}]}}"#);
    assert_eq!(send_to(&daemon, "/v1/messages", &[], nested).await.status, 200);
    let twice = r#"{"thresher": {}, "thresher": {}, "model": "m-1", "messages": []}"#;
    assert_eq!(send_to(&daemon, "/v1/chat/completions", &[], twice).await.status, 200);
    assert_eq!(upstream.last_body(), json!({"model": "m-1", "messages": []}));
    let page = ask_with(
        daemon.http,
        ("POST", "/v1/chat/completions"),
        &["content-type: text/plain"],
        chat().to_string(),
    )
    .await;
    assert_eq!((page.status, page.json()["error"]["code"].as_str()), (415, Some("content_type_unsupported")));
}

#[tokio::test(flavor = "multi_thread")]
async fn citations_of_the_daemon_are_not_sent_to_the_upstream() {
    let upstream = Upstream::default();
    let daemon =
        in_front(&settings(format!("http://{}", upstream.listen(200, answer()).await)), true, 1).await;
    let ours = json!([{"type": "search_result_location", "search_result_index": 7}]);
    let others = json!([{"type": "web_search_result_location", "encrypted_index": "x"}]);
    let block = |citations: &Value| json!({"type": "text", "text": "A", "citations": citations});
    let said_before = json!({"role": "assistant", "content": [block(&ours), block(&others)]});
    let body = json!({"model": "m-1", "messages": [{"role": "user", "content": "Q"}, said_before]});
    assert_eq!(send_to(&daemon, "/v1/messages", &[], body.to_string()).await.status, 200);
    let expect = json!([{"type": "text", "text": "A"}, block(&others)]);
    assert_eq!(upstream.last_body()["messages"][1]["content"], expect);
}

/// The text of a Messages answer, of which the sources support only the first and the last sentence.
const SAID: &str =
    "The tide is at noon.  In 1874 it had 42 zebras. Kings paid 99 euros in 1990.\n\nThe moon is far.";

/// A Messages request with the document in a context.
fn messages() -> Value {
    let content = format!("<context>{DOCUMENT}</context> When is the tide, and where is the moon?");
    json!({"model": "m-1", "max_tokens": 9, "messages": [{"role": "user", "content": content}]})
}

/// The texts of blocks, each with the sentences that it cites.
fn cited_texts(blocks: &[Value]) -> Vec<(&str, Vec<&str>)> {
    fn texts(block: &Value) -> Option<(&str, Vec<&str>)> {
        let citations = block["citations"].as_array().into_iter().flatten();
        Some((
            block["text"].as_str()?,
            citations.filter_map(|citation| citation["cited_text"].as_str()).collect(),
        ))
    }
    blocks.iter().filter_map(texts).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sentence_of_a_message_has_its_own_citations() {
    let text = json!({"type": "text", "text": SAID, "cache_control": {"type": "ephemeral"}});
    let theirs = json!({"type": "text", "text": SAID, "citations": [{"type": "web_search_result_location"}]});
    let tool = json!({"type": "tool_use", "id": "t", "name": "n", "input": {}});
    let answer = json!({"id": "msg", "type": "message", "content": [tool, text, theirs, tool]});
    let upstream = Upstream::default();
    let url = format!("http://{}", upstream.listen(200, answer).await);
    let daemon = in_front(&settings(url), true, 1).await;
    let response = send_to(&daemon, "/v1/messages", &[], messages().to_string()).await;
    assert_eq!((response.status, response.header("x-thresher-cited")), (200, Some("true")));
    let body = response.json();
    let blocks = body["content"].as_array().expect("blocks");
    let expect = [
        ("The tide is at noon.  ", vec!["The tide is at noon."]),
        ("In 1874 it had 42 zebras. Kings paid 99 euros in 1990.\n\n", vec![]),
        ("The moon is far.", vec!["The moon is far."]),
    ];
    assert_eq!(cited_texts(&blocks[1..4]), expect);
    assert_eq!(
        (&blocks[0], &blocks[4..]),
        (&tool, &[theirs, tool.clone()][..]),
        "other blocks are unchanged"
    );
    assert_eq!(blocks[1]["cache_control"], json!({"type": "ephemeral"}));
}

/// The events of a Messages answer with two texts and a tool call between them.
fn message_events(parts: &[&str]) -> Vec<Bytes> {
    let event = |data: Value| {
        let name = data["type"].as_str().expect("a type").to_owned();
        Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
    };
    let start = |index: usize, block: Value| {
        event(json!({"type": "content_block_start", "index": index, "content_block": block}))
    };
    let delta = |index: usize, delta: Value| {
        event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
    };
    let stop = |index: usize| event(json!({"type": "content_block_stop", "index": index}));
    let text = |index: usize| {
        let deltas = parts.iter().map(move |text| delta(index, json!({"type": "text_delta", "text": text})));
        [start(index, json!({"type": "text", "text": ""}))].into_iter().chain(deltas).chain([stop(index)])
    };
    let tool = [
        start(1, json!({"type": "tool_use", "id": "t", "name": "n", "input": {}})),
        delta(1, json!({"type": "input_json_delta", "partial_json": "{\"a\": 1}"})),
        stop(1),
    ];
    let begin = event(json!({"type": "message_start", "message": {"id": "msg", "content": []}}));
    let end = event(json!({"type": "message_stop"}));
    [begin].into_iter().chain(text(0)).chain(tool).chain(text(2)).chain([end]).collect()
}

/// The blocks that a client accumulates from the events of a Messages answer. Fails if an index does not fit.
fn accumulated(body: &str) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    for event in body.split_inclusive("\n\n") {
        let data = event.split_once("data: ").expect("data").1;
        let data: Value = serde_json::from_str(data).expect("JSON");
        let at = data["index"].as_u64().map(|index| usize::try_from(index).expect("an index"));
        match data["type"].as_str().expect("a type") {
            "content_block_start" => {
                assert_eq!(at, Some(blocks.len()), "{event}");
                blocks.push(data["content_block"].clone());
            }
            "content_block_delta" => {
                assert_eq!(at, blocks.len().checked_sub(1), "{event}");
                let (delta, block) = (&data["delta"], blocks.last_mut().expect("a block"));
                if let Some(text) = delta["text"].as_str() {
                    block["text"] = json!(block["text"].as_str().expect("a text").to_owned() + text);
                } else if delta["type"] == "citations_delta" {
                    let mut citations = block["citations"].as_array().cloned().unwrap_or_default();
                    citations.push(delta["citation"].clone());
                    block["citations"] = json!(citations);
                }
            }
            "content_block_stop" => assert_eq!(at, blocks.len().checked_sub(1), "{event}"),
            _ => {}
        }
    }
    blocks
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sentence_of_a_streamed_message_is_a_block() {
    let words: Vec<&str> = SAID.split_inclusive(' ').collect();
    for parts in [&words[..], &[SAID]] {
        let url = format!("http://{}", framed("text/event-stream", Arc::new(message_events(parts))).await);
        let daemon = in_front(&settings(url), true, 1).await;
        let response = send_to(&daemon, "/v1/messages", &[], messages().to_string()).await;
        let body = unchunked(&response.body);
        let blocks = accumulated(&body);
        let expect = [
            ("The tide is at noon.  ", vec!["The tide is at noon."]),
            ("In 1874 it had 42 zebras. ", vec![]),
            ("Kings paid 99 euros in 1990.\n\n", vec![]),
            ("The moon is far.", vec!["The moon is far."]),
        ];
        assert_eq!(cited_texts(&blocks), [&expect[..], &expect].concat(), "{body}");
        assert_eq!((blocks.len(), &blocks[4]["type"]), (9, &json!("tool_use")));
        assert!(body.ends_with("data: {\"type\":\"message_stop\"}\n\n"), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_message_with_an_event_that_is_too_long_keeps_its_indexes() {
    // The limit of an event is 8,000 bytes here.
    let mut frames = message_events(&[SAID]);
    let long = json!({"type": "content_block_start", "index": 3, "content_block": {"type": "x", "x": "y".repeat(20_000)}});
    let end = frames.pop().expect("the end");
    frames.push(Bytes::from(format!("event: content_block_start\ndata: {long}\n\n")));
    frames.push(Bytes::from(
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":3}\n\n",
    ));
    frames.push(end);
    let bytes = frames.concat();
    for size in [bytes.len(), 1_000] {
        let frames = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        let url = format!("http://{}", framed("text/event-stream", Arc::new(frames)).await);
        let daemon = in_front(&settings(url), true, 1).await;
        let response = send_to(&daemon, "/v1/messages", &[], messages().to_string()).await;
        let blocks = accumulated(&unchunked(&response.body));
        assert_eq!((blocks.len(), &blocks[9]["type"]), (10, &json!("x")), "{size}");
        assert_eq!(blocks[9]["x"].as_str().map(str::len), Some(20_000), "{size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_values_of_json_results_are_cited_by_the_names_of_their_records() {
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}});
    let check = async |name: &str, result: Value, expect: &[&str]| {
        let upstream = Upstream::default();
        let url = format!("http://{}", upstream.listen(200, answer()).await);
        let daemon =
            in_front(&MiddlewareSettings { tools: vec!["*".to_owned()], ..settings(url) }, true, 1).await;
        let messages = json!([
            {"role": "user", "content": "When is the tide?"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result.to_string()},
        ]);
        let response = send_chat(&daemon, &json!({"model": "m-1", "messages": messages})).await;
        assert_eq!(upstream.last_body()["messages"], messages, "{name}: it is not compressed");
        let body = response.json();
        let annotations =
            body["choices"][0]["message"]["annotations"].as_array().cloned().unwrap_or_default();
        let urls: Vec<&str> =
            annotations.iter().filter_map(|annotation| annotation["url_citation"]["url"].as_str()).collect();
        assert_eq!(urls, expect, "{name}: {body}");
    };
    let tide = json!({"tide": "at noon", "gate": "B42"});
    check("an object", tide.clone(), &["urn:thresher:chunk:call_1"]).await;
    check("nothing of it", json!({"gate": "B42"}), &[]).await;
    let moon = json!({"id": "m1", "moon": "is far"});
    check("a list", json!([moon, {"id": "t1", "tide": "at noon"}]), &["urn:thresher:chunk:t1"]).await;
    let url = json!({"url": "https://x.y", "title": "T", "tide": "at noon"});
    check("an address", json!({"hits": [moon, url]}), &["https://x.y"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_message_that_takes_too_long_to_cite_is_forwarded_without_citations() {
    let closed = Gate::default();
    let pipeline = pipeline_of(double(move |go_on| closed.pass(go_on)), KvStore::without_tiers());
    let words: Vec<&str> = SAID.split_inclusive(' ').collect();
    let url = format!("http://{}", framed("text/event-stream", Arc::new(message_events(&words))).await);
    let settings = MiddlewareSettings { deadline_ms: 200, ..asked_settings(url) };
    let (mut service, tenants) = service(Some(pipeline), 1, 0, &registry_settings());
    service.middleware = Arc::new(Middleware::new(&settings, limits()).expect("an upstream"));
    let daemon = serve((service, tenants)).await;
    let response = send_to(&daemon, "/v1/messages", &["x-thresher-cite: true"], messages().to_string()).await;
    let blocks = accumulated(&unchunked(&response.body));
    let texts =
        |blocks: &[Value]| blocks.iter().filter_map(|block| block["text"].as_str()).collect::<String>();
    assert_eq!((texts(&blocks[..2]), texts(&blocks[2..])), (SAID.to_owned(), SAID.to_owned()));
    assert_eq!(
        (&blocks[2]["type"], blocks.len()),
        (&json!("tool_use"), 4),
        "split once, while citing was tried"
    );
    assert!(!response.body.contains("citations_delta"));
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_name_their_sentence() {
    let part = json!({"type": "output_text", "text": SAID, "annotations": []});
    let output = json!([{"id": "m", "type": "message", "role": "assistant", "content": [part]}]);
    let responses = Upstream::default();
    let url = format!("http://{}", responses.listen(200, json!({"id": "r", "output": output})).await);
    let body = json!({"model": "m-1", "input": messages()["messages"]});
    let daemon = in_front(&settings(url), true, 1).await;
    let response = send_to(&daemon, "/v1/responses", &[], body.to_string()).await.json();
    let annotations =
        response["output"][0]["content"][0]["annotations"].as_array().expect("annotations").clone();
    let ends: Vec<&str> = annotations
        .iter()
        .map(|annotation| {
            assert_eq!(annotation["type"], "file_citation", "{annotation}");
            let end = annotation["index"].as_u64().expect("an index");
            &SAID[..usize::try_from(end).expect("an index")]
        })
        .collect();
    assert_eq!(ends, ["The tide is at noon.", SAID]);
    let chat = Upstream::default();
    let answer = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": SAID}}]});
    let daemon = in_front(&settings(format!("http://{}", chat.listen(200, answer).await)), true, 1).await;
    let response = send_chat(&daemon, &messages()).await.json();
    let annotations =
        response["choices"][0]["message"]["annotations"].as_array().expect("annotations").clone();
    let at = |annotation: &Value, name: &str| {
        usize::try_from(annotation["url_citation"][name].as_u64().expect("an index")).expect("an index")
    };
    let ranges: Vec<&str> = annotations
        .iter()
        .map(|annotation| &SAID[at(annotation, "start_index")..at(annotation, "end_index")])
        .collect();
    assert_eq!(ranges, ["The tide is at noon.", "The moon is far."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn search_results_and_documents_are_cited_by_their_names() {
    let upstream = Upstream::default();
    let answer = json!({"id": "msg", "type": "message", "content": [{"type": "text", "text": "The tide is at noon."}]});
    let daemon = in_front(&settings(format!("http://{}", upstream.listen(200, answer).await)), true, 1).await;
    let check = async |name: &str, block: Value, expect: Value| {
        let question = json!({"type": "text", "text": "When is the tide?"});
        let body = json!({"model": "m-1", "messages": [{"role": "user", "content": [block, question]}]});
        let response = send_to(&daemon, "/v1/messages", &[], body.to_string()).await.json();
        let mut citation = response["content"][0]["citations"][0].clone();
        for (field, value) in expect.as_object().expect("fields") {
            assert_eq!(&citation[field].take(), value, "{name}: {response}");
        }
    };
    let text = json!([{"type": "text", "text": DOCUMENT}]);
    check(
        "a search result",
        json!({"type": "search_result", "source": "tides.pdf", "title": "Tides", "content": text}),
        json!({"type": "search_result_location", "source": "tides.pdf", "title": "Tides", "search_result_index": 0}),
    )
    .await;
    let source = json!({"type": "text", "media_type": "text/plain", "data": DOCUMENT});
    check(
        "a document",
        json!({"type": "document", "title": "Log", "source": source}),
        json!({"type": "char_location", "document_title": "Log", "document_index": 0}),
    )
    .await;
    let pages = format!("Gulls are loud.\n- 6 -\n\u{c}{DOCUMENT}\n- 7 -\n");
    let source = json!({"type": "text", "media_type": "text/plain", "data": pages});
    check(
        "a document with pages",
        json!({"type": "document", "title": "Log", "source": source}),
        json!({"type": "page_location", "start_page_number": 7, "end_page_number": 8}),
    )
    .await;
    let marked =
        json!({"type": "text", "text": format!("<context>\n[doc-7] {DOCUMENT}\n\nTwo.\n</context>")});
    check("a paragraph", marked, json!({"type": "search_result_location", "source": "doc-7"})).await;
}
