//! Paths of the API of a model that the middleware does not read, and the list of models.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::{Json, Router};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use thresher::middleware::settings::{MiddlewareLimits, MiddlewareSettings, UpstreamSettings, When};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::middleware::{in_front, in_front_within, limits, settings, wide_limits};
use crate::support::wire::{Response, ask_with, get, parse};
use crate::{Daemon, check_error};

/// A request that an upstream has received.
#[derive(Debug, Clone, PartialEq)]
struct Received {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Received {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }
}

/// An upstream that answers every request with this status and body, and keeps the requests.
#[derive(Clone, Default)]
struct Upstream(Arc<Mutex<Vec<Received>>>);

impl Upstream {
    async fn listen(&self, status: u16, answer: Value) -> String {
        let requests = Arc::clone(&self.0);
        let handle = async move |request: Request| {
            let (head, body) = request.into_parts();
            let header = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
                (name.to_string(), value.to_str().expect("text").to_owned())
            };
            let received = Received {
                method: head.method.to_string(),
                path: head.uri.to_string(),
                headers: head.headers.iter().map(header).collect(),
                body: body.collect().await.expect("a body").to_bytes().to_vec(),
            };
            requests.lock().expect("no panic").push(received);
            let status = StatusCode::from_u16(status).expect("a status");
            (status, [("x-request-id", "r1"), ("set-cookie", "a=b")], Json(answer.clone())).into_response()
        };
        listen(Router::new().fallback(handle)).await
    }

    fn take(&self) -> Vec<Received> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

async fn listen(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(axum::serve(listener, router).into_future());
    format!("http://{address}")
}

async fn send(daemon: &Daemon, call: (&str, &str), headers: &[&str], body: &str) -> Response {
    ask_with(daemon.http, call, headers, body).await
}

async fn send_untyped(daemon: &Daemon, (method, path): (&str, &str), body: &str) -> Response {
    let (address, length) = (daemon.http, body.len());
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
    stream.write_all(request.as_bytes()).await.expect("the daemon reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    parse(&response)
}

fn named(url: &str, models: &[&str]) -> UpstreamSettings {
    let models = models.iter().map(|&model| model.to_owned()).collect();
    UpstreamSettings { url: url.to_owned(), models, compress: When::Always, ..UpstreamSettings::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_paths_go_to_the_upstream_as_they_are() {
    let upstream = Upstream::default();
    let answer = json!({"data": [{"embedding": [0.25]}]});
    let daemon = in_front(&settings(upstream.listen(201, answer.clone()).await), true, 1).await;
    let changed = async |call: (&str, &str), headers: &[&str], (body, sent): (&str, &str)| {
        let response = send(&daemon, call, headers, body).await;
        assert_eq!((response.status, response.json()), (201, answer.clone()), "{call:?}");
        let ids = (response.header("x-upstream-request-id"), response.header("x-request-id") == Some("r1"));
        assert_eq!((ids, response.header("set-cookie")), ((Some("r1"), false), None));
        assert_eq!(response.header("x-thresher"), None, "{call:?}");
        let received = upstream.take().pop().expect("a request");
        assert_eq!((&*received.method, &*received.path), call);
        assert_eq!(received.body, sent.as_bytes(), "{call:?}");
        received
    };
    let check =
        async |call: (&str, &str), headers: &[&str], body: &str| changed(call, headers, (body, body)).await;
    let json = "content-type: application/json";
    let spaced = r#"{ "model": "m-1",  "input": "The tide" }"#;
    let received = check(("POST", "/v1/embeddings"), &[json, "authorization: Bearer mine"], spaced).await;
    assert_eq!(received.header("authorization"), Some("Bearer mine"));
    assert_eq!(received.header("content-type"), Some("application/json"));
    // The field of the daemon is removed where a client may send it.
    let counted = r#"{"model": "m-1",  "messages": [], "thresher": {"compress": true}}"#;
    let sent = r#"{"model": "m-1",  "messages": []}"#;
    let keys = [json, "x-api-key: mine", "anthropic-version: 2023-06-01", "cookie: a=b"];
    let call = ("POST", "/v1/messages/count_tokens?beta=true");
    let received = changed(call, &keys, (counted, sent)).await;
    assert_eq!((received.header("x-api-key"), received.header("cookie")), (Some("mine"), None));
    changed(("POST", "/v1/responses/input_tokens"), &[json], (counted, sent)).await;
    check(("POST", "/v1/embeddings"), &[json], counted).await;
    check(("POST", "/v1/moderations"), &[json], "not JSON").await;
    check(("GET", "/v1/files/f1/content"), &[json], "").await;
    check(("DELETE", "/v1/responses/r1"), &[json], "").await;
    check(("GET", "/v1/models/m-1"), &[json], "").await;
    check(("GET", "/v1/models/m-a%2Fb"), &[json], "").await;
    check(("PUT", "/v1/anything/"), &[json], "{}").await;
    let response = send(&daemon, ("POST", "/v1/embeddings?key=thr_0123&a=b"), &[json], "{}").await;
    assert_eq!((response.status, &*upstream.take()[0].path), (201, "/v1/embeddings?a=b"));
    assert_eq!(send(&daemon, ("PROPFIND", "/v1/embeddings"), &[json], "").await.status, 405);
    // The daemon's own paths, and what looks like one of them, are never passed on.
    for path in [
        "/v1/compress/x",
        "/v1/attribute/strem",
        "/v1/kv",
        "/v1/chunks/a/b",
        "/v1/v1/compress",
        "/v1//compress",
        "/v1/./compress",
        "/v1/%63ompress",
        "/v1/../admin/keys",
        "/v1/%2e%2e/admin/keys",
        "/v1/files/..%2F..%2Fadmin",
        "/v2/embeddings",
        "/embeddings",
    ] {
        let response = send(&daemon, ("POST", path), &[json], "{}").await;
        check_error(path, &response, "404 not_found -", "");
    }
    assert_eq!(upstream.take(), []);
    let off = in_front(&MiddlewareSettings::default(), true, 1).await;
    let refused = send(&off, ("POST", "/v1/embeddings"), &[json], "{}").await;
    check_error("off", &refused, "404 not_found -", "set middleware.upstreams");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_model_goes_to_the_only_upstream_or_to_the_one_it_names() {
    let (first, second) = (Upstream::default(), Upstream::default());
    let urls = [first.listen(200, json!({})).await, second.listen(200, json!({})).await];
    let with = |upstreams: Vec<UpstreamSettings>| MiddlewareSettings { upstreams, ..settings(String::new()) };
    let json = ["content-type: application/json", "authorization: Bearer mine"];
    let two = with(vec![named(&urls[0], &["a-*"]), named(&urls[1], &["b-*"])]);
    let daemon = in_front(&two, true, 1).await;
    let response = send(&daemon, ("POST", "/v1/embeddings"), &json, r#"{"model": "b-1"}"#).await;
    assert_eq!((response.status, first.take().len(), second.take().len()), (200, 0, 1));
    let error = async |call: (&str, &str), body: &str| {
        let response = send(&daemon, call, &json, body).await;
        let error = &response.json()["error"];
        format!("{} {} {}", response.status, error["code"], error["param"]).replace('"', "")
    };
    assert_eq!(error(("POST", "/v1/embeddings"), r#"{"model": "c"}"#).await, "404 model_unknown model");
    assert_eq!(error(("GET", "/v1/models/c"), "").await, "404 model_unknown model");
    assert_eq!(error(("GET", "/v1/files"), "").await, "400 missing_field model");
    assert_eq!((first.take(), second.take()), (vec![], vec![]));
    let host = |url: &str| url.strip_prefix("http://").expect("a URL").to_owned();
    for (at, name) in [(0, host(&urls[0])), (1, host(&urls[1])), (1, urls[1].clone())] {
        let headers = [json[0], json[1], &format!("x-thresher-upstream: {name}")];
        let response = send(&daemon, ("GET", "/v1/files"), &headers, "").await;
        let received = [first.take(), second.take()];
        assert_eq!((response.status, received[at].len(), received[1 - at].len()), (200, 1, 0), "{name}");
        assert_eq!(received[at][0].header("x-thresher-upstream"), None);
    }
    let unknown = [json[0], json[1], "x-thresher-upstream: elsewhere.example"];
    let unknown = send(&daemon, ("GET", "/v1/files"), &unknown, "").await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (422, &json!("invalid_value")));
    // A file is not sent to an upstream only because that one is for any model.
    let any = with(vec![named(&urls[0], &["a-*"]), named(&urls[1], &[])]);
    let any = in_front(&any, true, 1).await;
    let form = ["content-type: multipart/form-data; boundary=x", json[1]];
    let refused = send(&any, ("POST", "/v1/files"), &form, "--x--").await;
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (400, &json!("missing_field")));
    assert!(error["message"].as_str().expect("a message").contains("x-thresher-upstream"), "{error}");
    assert_eq!((first.take(), second.take()), (vec![], vec![]));
    // An upstream for any model gets no caller's key.
    let headers = [json[0], json[1], &format!("x-thresher-upstream: {}", host(&urls[1]))];
    let response = send(&any, ("GET", "/v1/files"), &headers, "").await;
    let received = second.take();
    assert_eq!((response.status, received.len(), received[0].header("authorization")), (200, 1, None));
}

/// A file with the key `sk-operator`, and its folder.
fn operators_key() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, "sk-operator").expect("a file");
    (folder, file)
}

/// With the operator's key, a tenant must not reach what another tenant has stored at the provider.
#[tokio::test(flavor = "multi_thread")]
async fn an_operators_key_is_used_for_stateless_paths_only() {
    let upstream = Upstream::default();
    let (_folder, key_file) = operators_key();
    let with_paths = |url: String, paths: &[&str]| {
        let mut settings = settings(url);
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        settings.upstreams[0] =
            UpstreamSettings { key_file: key_file.clone(), paths, ..settings.upstreams[0].clone() };
        settings
    };
    let url = upstream.listen(200, json!({})).await;
    let json = ["content-type: application/json"];
    let check = async |daemon: &Daemon, call: (&str, &str), body: &str, is_sent: bool| {
        let response = send(daemon, call, &json, body).await;
        let received = upstream.take();
        if is_sent {
            assert_eq!((response.status, received.len()), (200, 1), "{call:?}");
            assert_eq!(received[0].header("authorization"), Some("Bearer sk-operator"), "{call:?}");
        } else {
            let error = &response.json()["error"];
            let found = (response.status, &error["code"], received.len());
            assert_eq!(found, (404, &json!("not_found"), 0), "{call:?}");
            let message = error["message"].as_str().expect("a message");
            assert!(message.contains("key_file") && message.contains("`paths`"), "{message}");
        }
    };
    let daemon = in_front(&with_paths(url.clone(), &[]), true, 1).await;
    check(&daemon, ("POST", "/v1/embeddings"), r#"{"model": "m-1"}"#, true).await;
    check(&daemon, ("POST", "/v1/moderations"), r#"{"model": "m-1"}"#, true).await;
    check(&daemon, ("GET", "/v1/models/m-1"), "", true).await;
    let stored = [
        ("GET", "/v1/files"),
        ("GET", "/v1/files/f1/content"),
        ("DELETE", "/v1/files/f1"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/responses/r1"),
        ("DELETE", "/v1/models/m-1"),
        ("POST", "/v1/%66iles"),
    ];
    for call in stored {
        check(&daemon, call, "", false).await;
    }
    let files = in_front(&with_paths(url.clone(), &["/v1/files*"]), true, 1).await;
    check(&files, ("DELETE", "/v1/files/f1"), "", true).await;
    check(&files, ("POST", "/v1/batches"), "{}", false).await;
    let all = in_front(&with_paths(url, &["*"]), true, 1).await;
    for call in stored {
        check(&all, call, "", true).await;
    }
    check(&all, ("POST", "/v1/batches"), r#"{"input_file_id": "f1"}"#, true).await;
}

/// A body in which the daemon finds no model, but a server may, must not get the operator's key past `models`.
#[tokio::test(flavor = "multi_thread")]
async fn with_an_operators_key_only_bodies_are_sent_whose_model_is_known() {
    let upstream = Upstream::default();
    let ((_folder, key_file), url) = (operators_key(), upstream.listen(200, json!({})).await);
    let keyed = UpstreamSettings { key_file, ..named(&url, &["gpt-*"]) };
    let settings = MiddlewareSettings { upstreams: vec![keyed], ..settings(url) };
    let daemon = in_front_within(&settings, wide_limits()).await;
    let check = async |path: &str, headers: &[&str], body: &[u8], expect: u16| {
        let headers = [&["authorization: Bearer caller"], headers].concat();
        let response = ask_with(daemon.http, ("POST", path), &headers, body).await;
        let text = String::from_utf8_lossy(body);
        assert_eq!(response.status, expect, "{path} {headers:?} {text} {response:?}");
        let received = upstream.take();
        assert_eq!(received.len(), usize::from(expect == 200), "{path} {headers:?} {text}");
        received.into_iter().next()
    };
    let json = "content-type: application/json";
    let of_model = |model: &str| format!(r#"{{"model":"{model}","input":"x"}}"#).into_bytes();
    let sent = check("/v1/embeddings", &[json], &of_model("gpt-5"), 200).await.expect("a request");
    assert_eq!(sent.header("authorization"), Some("Bearer sk-operator"));
    check("/v1/embeddings", &[json], &of_model("expensive"), 404).await;
    let marked = [b"\xef\xbb\xbf".to_vec(), of_model("expensive")].concat();
    let wide: Vec<u8> = r#"{"model":"expensive"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for body in [&marked[..], &wide, b"[{\"model\":\"expensive\"}]", b"{\"model\":\"gpt-5\",}"] {
        check("/v1/embeddings", &[json], body, 415).await;
    }
    for body in [&br#"{"Model":"expensive"}"#[..], br#"{"model":["expensive"]}"#, b"{}"] {
        check("/v1/embeddings", &[json], body, 400).await;
    }
    check("/v1/embeddings", &["content-type: text/plain"], &of_model("expensive"), 415).await;
    check("/v1/embeddings", &[json, "content-encoding: gzip"], &of_model("gpt-5"), 415).await;
    let form = "content-type: multipart/form-data; boundary=edge";
    let fields = |fields: &[(&str, &str)]| {
        let field = |(name, value): &(&str, &str)| {
            format!("--edge\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        format!("{}--edge--\r\n", fields.iter().map(field).collect::<String>()).into_bytes()
    };
    let image = "x".repeat(200_000);
    let whole = fields(&[("image", &image), ("model", "gpt-image")]);
    let sent = check("/v1/images/edits", &[form], &whole, 200).await.expect("a request");
    // The form is written anew, with another boundary.
    let kind = sent.header("content-type").expect("a content type");
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").expect("a boundary");
    let written = String::from_utf8(whole).expect("text").replace("edge", boundary);
    let written = written.replace("content-disposition", "Content-Disposition");
    assert_eq!(String::from_utf8(sent.body).expect("text"), written);
    check("/v1/images/edits", &[form], &fields(&[("image", &image), ("model", "expensive")]), 404).await;
    check("/v1/images/edits", &[form], &fields(&[("model", "gpt-image"), ("model", "expensive")]), 415).await;
    check("/v1/images/edits", &[form], &fields(&[("image", &image)]), 400).await;
    check("/v1/images/edits", &[form], b"--edge\r\nno form", 415).await;
    for row in include_str!("../fixtures/shared_key.jsonl").lines() {
        let row: Value = serde_json::from_str(row).expect("JSON");
        let text = |name: &str| row[name].as_str().expect("a text");
        let lines = row["headers"].as_array().expect("headers").iter();
        let lines: Vec<&str> = lines.map(|line| line.as_str().expect("a header")).collect();
        let status = row["status"].as_u64().and_then(|status| u16::try_from(status).ok()).expect("a status");
        check(text("path"), &lines, text("body").as_bytes(), status).await;
    }
    // What stands before a form, or is sent where none belongs, may be read as JSON.
    let before = [&br#"{"model":"expensive"}"#[..], b"\r\n", &fields(&[("model", "gpt-image")])].concat();
    check("/v1/images/edits", &[form], &before, 415).await;
    check("/v1/completions", &[form], &fields(&[("model", "gpt-5")]), 415).await;
    check("/v1/embeddings", &[json], br#"{"model":"gpt-5","Model":"expensive"}"#, 400).await;
    check("/v1/chat/completions", &[json], br#"{"model":"gpt-5","Model":"expensive","messages":[]}"#, 400)
        .await;
}

/// Whoever learns an id could reach what another tenant has stored with the same key.
#[tokio::test(flavor = "multi_thread")]
async fn with_an_operators_key_nothing_stored_is_read_or_written() {
    let upstream = Upstream::default();
    let ((_folder, key_file), url) = (operators_key(), upstream.listen(200, json!({})).await);
    let with = async |paths: &[&str]| {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        let upstreams =
            vec![UpstreamSettings { key_file: key_file.clone(), paths, ..named(&url, &["gpt-*"]) }];
        in_front(&MiddlewareSettings { upstreams, ..settings(url.clone()) }, true, 1).await
    };
    let (daemon, named) = (with(&[]).await, with(&["/v1/responses"]).await);
    let post = async |daemon: &Daemon, path: &str, more: Value| {
        let mut body =
            json!({"model": "gpt-5", "input": "Hello", "messages": [{"role": "user", "content": "Hello"}]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let response =
            send(daemon, ("POST", path), &["content-type: application/json"], &body.to_string()).await;
        let sent = upstream.take().pop();
        (response, sent.map(|sent| serde_json::from_slice::<Value>(&sent.body).expect("JSON")))
    };
    for (path, more, param) in [
        ("/v1/responses", json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        ("/v1/responses", json!({"conversation": "conv_1"}), "conversation"),
        ("/v1/responses", json!({"store": true, "background": true}), "background"),
        (
            "/v1/responses",
            json!({"tools": [{"type": "file_search", "vector_store_ids": ["vs"]}]}),
            "tools[0].vector_store_ids",
        ),
        ("/v1/responses/input_tokens", json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]}),
            "messages[0].content[0].source.file_id",
        ),
    ] {
        let (response, sent) = post(&daemon, path, more.clone()).await;
        assert_eq!((response.status, sent), (422, None), "{path} {more}");
        let error = response.json();
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains(param) && message.contains("`paths`"), "{message}");
    }
    let store = async |daemon: &Daemon, path: &str, more: Value| {
        post(daemon, path, more).await.1.expect("a request")["store"].clone()
    };
    assert_eq!(store(&daemon, "/v1/responses", json!({})).await, json!(false), "it is true by default");
    assert_eq!(store(&daemon, "/v1/responses", json!({"store": true})).await, json!(false));
    assert_eq!(store(&daemon, "/v1/chat/completions", json!({"store": true})).await, json!(false));
    assert_eq!(store(&daemon, "/v1/chat/completions", json!({})).await, Value::Null);
    let (response, sent) = post(&named, "/v1/responses", json!({"previous_response_id": "resp_1"})).await;
    assert_eq!((response.status, &sent.expect("a request")["previous_response_id"]), (200, &json!("resp_1")));
}

/// An upstream that answers with exactly these bytes.
async fn raw(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frame_of_an_answer_is_the_daemons_own() {
    let check = async |answer: &'static str, status: u16, length: Option<&str>, body: Option<&str>| {
        let daemon = in_front(&settings(raw(answer).await), true, 1).await;
        let response =
            send(&daemon, ("POST", "/v1/embeddings"), &["content-type: application/json"], "{}").await;
        assert_eq!(response.status, status, "{answer} {response:?}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{answer}");
        if let Some(body) = body {
            assert_eq!((response.header("content-length"), &*response.body), (length, body), "{answer}");
        }
    };
    let ok = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    let answer = |rest: &str| -> &'static str { format!("{ok}{rest}").leak() };
    check(answer("content-length: 2\r\n\r\n{}"), 200, Some("2"), Some("{}")).await;
    check(answer("content-length: 2, 2\r\n\r\n{}"), 200, Some("2"), Some("{}")).await;
    let chunked = "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    check(answer(&format!("content-length: 5\r\n{chunked}")), 200, None, None).await;
    check(answer("transfer-encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n"), 502, None, None).await;
    check("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", 502, None, None)
        .await;
    check("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", 204, None, Some("")).await;
    check("HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n", 502, None, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_an_upstream_does_not_run_in_the_daemons_origin() {
    let html = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 8\r\n\r\n<script>";
    let daemon = in_front(&settings(raw(html).await), true, 1).await;
    let response = send(&daemon, ("GET", "/v1/files/f/content"), &[], "").await;
    assert_eq!((response.status, &*response.body), (200, "<script>"));
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(response.header("content-disposition"), Some("attachment"));
    let policy = response.header("content-security-policy").expect("a policy");
    assert!(policy.contains("sandbox") && policy.contains("default-src 'none'"), "{policy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_a_page_could_send_need_a_key() {
    let upstream = Upstream::default();
    let limits = MiddlewareLimits { body_bytes_max: 1_000, ..limits() };
    let daemon = in_front_within(&settings(upstream.listen(200, json!({})).await), limits).await;
    let form = "content-type: multipart/form-data; boundary=x";
    for kind in [form, "content-type: text/plain"] {
        let response = send(&daemon, ("POST", "/v1/files"), &[kind], "--x--").await;
        assert_eq!(
            (response.status, &response.json()["error"]["code"]),
            (415, &json!("content_type_unsupported"))
        );
        let error = response.json()["error"]["message"].to_string();
        assert!(error.contains("Authorization or x-api-key"), "{error}");
    }
    // A page may also send bytes without a type.
    for call in [("POST", "/v1/files"), ("DELETE", "/v1/files/f1")] {
        assert_eq!(send_untyped(&daemon, call, "--x--").await.status, 415, "{call:?}");
    }
    assert_eq!(upstream.take(), []);
    assert_eq!(send_untyped(&daemon, ("GET", "/v1/files"), "").await.status, 200);
    assert_eq!(upstream.take().len(), 1);
    for key in ["authorization: Bearer mine", "x-api-key: mine"] {
        assert_eq!(send(&daemon, ("POST", "/v1/files"), &[form, key], "--x--").await.status, 200, "{key}");
        assert_eq!(upstream.take()[0].body, b"--x--");
    }
    let page = ["content-type: application/json", "origin: http://evil.example"];
    assert_eq!(send(&daemon, ("POST", "/v1/embeddings"), &page, "{}").await.status, 403);
    let site = ["content-type: application/json", "sec-fetch-site: cross-site"];
    assert_eq!(send(&daemon, ("GET", "/v1/files"), &site, "").await.status, 403);
    let long = "x".repeat(1_001);
    let json = ["content-type: application/json"];
    assert_eq!(send(&daemon, ("POST", "/v1/embeddings"), &json, &long).await.status, 413);
    assert_eq!(upstream.take(), []);
}

/// The upstream is a proxy that leads back to the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_back_is_refused() {
    let back: Arc<OnceLock<SocketAddr>> = Arc::default();
    let (to, count) = (Arc::clone(&back), Arc::new(Mutex::new(0)));
    let counting = Arc::clone(&count);
    let relay = async move |request: Request| {
        *counting.lock().expect("no panic") += 1;
        let (head, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let header = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
            format!("{name}: {}", value.to_str().expect("text"))
        };
        let skipped = ["host", "content-length"];
        let headers: Vec<String> =
            head.headers.iter().filter(|(name, _)| !skipped.contains(&name.as_str())).map(header).collect();
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let path = head.uri.to_string();
        let call = (head.method.as_str(), &*path);
        let response = ask_with(*to.get().expect("an address"), call, &headers, body).await;
        (StatusCode::from_u16(response.status).expect("a status"), Body::from(response.body))
    };
    let daemon = in_front(&settings(listen(Router::new().fallback(relay)).await), true, 2).await;
    back.set(daemon.http).expect("set once");
    let json = ["content-type: application/json"];
    let body = r#"{"model": "m-1", "messages": [{"role": "user", "content": "Q"}]}"#;
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"] {
        let response = send(&daemon, ("POST", path), &json, body).await;
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["code"]), (508, &json!("upstream_loop")), "{path} {error}");
        assert!(error["message"].to_string().contains("leads back here"), "{error}");
    }
    assert_eq!(*count.lock().expect("no panic"), 3, "each request went around once");
    let hops = |count: usize| format!("x-thresher-hops: {}", vec!["0123456789abcdef"; count].join(","));
    let many = send(&daemon, ("POST", "/v1/embeddings"), &[json[0], &hops(8)], body).await;
    assert_eq!((many.status, *count.lock().expect("no panic")), (508, 3));
    assert!(
        many.body.contains("went through 8 daemons") && !many.body.contains("leads back"),
        "{}",
        many.body
    );
    let listed = send(&daemon, ("GET", "/v1/models"), &json, "").await;
    assert_eq!(
        (listed.status, &listed.json()["data"]),
        (200, &json!([])),
        "a list that leads back is no list"
    );
    // Another daemon in front is no loop.
    let upstream = Upstream::default();
    let behind = in_front(&settings(upstream.listen(200, json!({})).await), true, 1).await;
    let front = in_front(&settings(format!("http://{}", behind.http)), true, 1).await;
    assert_eq!(send(&front, ("POST", "/v1/embeddings"), &json, body).await.status, 200);
    let received = upstream.take().pop().expect("a request");
    assert_eq!(received.header("x-thresher-hops").map(|hops| hops.split(',').count()), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_models_is_that_of_the_upstreams() {
    let model = |id: &str| json!({"id": id, "object": "model", "created": 1, "owned_by": "theirs"});
    let (openai, anthropic, own, broken) =
        (Upstream::default(), Upstream::default(), Upstream::default(), Upstream::default());
    let urls = [
        openai.listen(200, json!({"object": "list", "data": [model("gpt-5"), model("dall-e")]})).await,
        anthropic.listen(200, json!({"data": [model("claude-5")], "has_more": true})).await,
        own.listen(200, json!({"data": [model("llama"), model("gpt-5"), {"no": "id"}]})).await,
        broken.listen(500, json!({})).await,
    ];
    let with = |upstreams: Vec<UpstreamSettings>| MiddlewareSettings { upstreams, ..settings(String::new()) };
    let list = async |daemon: &Daemon, headers: &[&str]| {
        let response = send(daemon, ("GET", "/v1/models?limit=5"), headers, "").await;
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    };
    let ids = |answer: &Value| -> Vec<String> {
        let models = answer["data"].as_array().expect("a list").iter();
        models.map(|model| model["id"].as_str().expect("an id").to_owned()).collect()
    };
    let key = ["authorization: Bearer mine"];
    // Each model once, from the upstream that a request for it would reach.
    let one = with(vec![named(&urls[0], &["gpt-*"]), named(&urls[2], &[])]);
    let answer = list(&in_front(&one, true, 1).await, &key).await;
    assert_eq!(ids(&answer), ["gpt-5", "llama"]);
    assert_eq!((&answer["data"][0], &answer["object"]), (&model("gpt-5"), &json!("list")));
    assert_eq!(answer["thresher"][0]["window_tokens_max"].as_u64().map(|max| max > 0), Some(true));
    let received = openai.take().pop().expect("a request");
    assert_eq!((&*received.method, &*received.path), ("GET", "/v1/models?limit=5"));
    assert_eq!(received.header("authorization"), Some("Bearer mine"));
    assert_eq!(own.take()[0].header("authorization"), None);
    // Of two upstreams that take the caller's key neither gets it; their names are those of the settings.
    let two = with(vec![named(&urls[0], &["gpt-*", "o3"]), named(&urls[1], &["claude-*", "claude-6"])]);
    assert_eq!(ids(&list(&in_front(&two, true, 1).await, &key).await), ["o3", "claude-6"]);
    assert_eq!((openai.take(), anthropic.take()), (vec![], vec![]));
    // An upstream that fails is represented by its names, and pages are those of Anthropic's API.
    let failing = with(vec![
        UpstreamSettings { caller_key: Some(false), ..named(&urls[3], &["x-1", "y-*"]) },
        named("http://127.0.0.1:1", &[]),
    ]);
    assert_eq!(ids(&list(&in_front(&failing, true, 1).await, &key).await), ["x-1"]);
    let paged = with(vec![named(&urls[1], &["claude-*"])]);
    let keys = ["x-api-key: mine", "anthropic-version: 2023-06-01"];
    let answer = list(&in_front(&paged, false, 1).await, &keys).await;
    let page = ["has_more", "first_id", "last_id"].map(|name| answer[name].clone());
    assert_eq!(page, [json!(true), json!("claude-5"), json!("claude-5")]);
    assert_eq!(answer["thresher"], json!([]), "the daemon's own model is still being loaded");
    assert_eq!(anthropic.take()[0].header("x-api-key"), Some("mine"));
    // A request may ask for the daemon's own models only.
    let own_only = get(in_front(&paged, true, 1).await.http, "/v1/models?upstreams=false").await.json();
    assert_eq!((&own_only["data"], anthropic.take()), (&own_only["thresher"], vec![]));
    // Without upstreams, the daemon's own models are listed.
    let off = in_front(&MiddlewareSettings::default(), true, 1).await;
    let answer = get(off.http, "/v1/models").await.json();
    assert_eq!(answer["data"], answer["thresher"]);
    assert_eq!(answer["data"].as_array().map(Vec::len), Some(1));
}
