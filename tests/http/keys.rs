//! Access keys: accepted and refused requests, rate limits, and changes of the file of keys while the daemon
//! runs.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use thresher::access::{Access, AccessSettings};
use thresher::app::follow_keys;
use thresher_core::kv::local::{LocalSettings, LocalTiers};
use thresher_core::kv::store::KvStore;
use thresher_core::kv::tiers::AllTiers;
use thresher_core::model::ModelRuntime;
use thresher_core::pipeline::Pipeline;
use thresher_registry::RegistrySettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::thresher;
use crate::support::wait::eventually;
use crate::support::wire::{self, Response, ask_with, get};
use crate::{
    BODY_BYTES_MAX, Daemon, SECRET, TENANT_COUNT_MAX, assert_good, check_error, good, keyed_service,
    pipeline_of, registry_settings, scripted, serve,
};

/// An entry of the file of keys, for the key `thr_NAME`, with the lines `more`.
pub fn entry(name: &str, more: &str) -> String {
    let sha256 = hex::encode(Sha256::digest(format!("thr_{name}")));
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\n{more}\n")
}

/// A daemon whose file of keys a test can change.
pub struct Keyed {
    pub daemon: Daemon,
    file: PathBuf,
    _folder: TempDir,
}

impl Keyed {
    /// Serves `model` with these keys. Blocks are cached in memory.
    pub async fn start(keys: &str, model: Arc<dyn ModelRuntime>, registry: &RegistrySettings) -> Self {
        Self::start_with(keys, caching(model), registry).await
    }

    pub async fn start_with(keys: &str, pipeline: Pipeline, registry: &RegistrySettings) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("keys.toml");
        std::fs::write(&file, keys).expect("written");
        let settings = AccessSettings { keys_file: file.clone() };
        let (access, watched) = Access::open_within(&settings, TENANT_COUNT_MAX).expect("keys");
        let made = keyed_service(Some(pipeline), (4, 4), registry, access.clone());
        tokio::spawn(follow_keys(access, watched.expect("a file"), made.1.clone()));
        Self { daemon: serve(made).await, file, _folder: folder }
    }

    fn write(&self, keys: &str) {
        let next = self.file.with_extension("next");
        std::fs::write(&next, keys).expect("written");
        std::fs::rename(next, &self.file).expect("replaced");
    }

    pub async fn get(&self, key: &str, path: &str) -> Response {
        self.ask(key, ("GET", path), "").await
    }

    pub async fn post(&self, key: &str, path: &str, body: &Value) -> Response {
        self.ask(key, ("POST", path), body.to_string()).await
    }

    /// Sends a request with the key `thr_KEY`.
    pub async fn ask(&self, key: &str, what: (&str, &str), body: impl AsRef<[u8]>) -> Response {
        let header = format!("authorization: Bearer thr_{key}");
        ask_with(self.daemon.http, what, &[&header], body).await
    }
}

pub fn caching(model: Arc<dyn ModelRuntime>) -> Pipeline {
    let settings = LocalSettings {
        memory_bytes_max: 64 << 20,
        disk_bytes_max: 0,
        write_queue_bytes_max: 1 << 20,
        dir: None,
    };
    let local = LocalTiers::open(&settings).expect("memory");
    pipeline_of(model, KvStore::new(Arc::new(AllTiers::new(local, None))))
}

/// The value of the metric that begins with `line`; 0 if there is none.
async fn metric(daemon: &Daemon, line: &str) -> f64 {
    let metrics = get(daemon.admin, "/metrics").await.body;
    let value = metrics.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    value.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_refuses_a_missing_unknown_or_revoked_key() {
    let keys = entry("good", "") + &entry("gone", "revoked = true");
    let keyed = Keyed::start(&keys, scripted(), &registry_settings()).await;
    let address = keyed.daemon.http;
    let everywhere = [
        ("POST", "/v1/compress"),
        ("POST", "/v1/attribute"),
        ("GET", "/v1/chunks"),
        ("POST", "/v1/chunks"),
        ("GET", "/v1/chunks/a"),
        ("DELETE", "/v1/chunks/a"),
        ("POST", "/v1/chunks/delete"),
        ("GET", "/v1/registry"),
        ("GET", "/v1/savings"),
        ("POST", "/v1/search"),
        ("POST", "/v1/rerank"),
        ("POST", "/v2/rerank"),
        ("POST", "/rerank"),
        ("POST", "/v1/highlight"),
        ("GET", "/v1/models"),
        ("GET", "/v1/retrieve/a"),
        ("POST", "/headroom/v1/compress"),
        ("GET", "/headroom/v1/retrieve/a"),
        ("POST", "/v1/compress/"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/files/a"),
        ("POST", "/mcp"),
        ("GET", "/no/such/path"),
        ("PATCH", "/v1/compress"),
    ];
    /// Case, headers, error, message, challenge.
    type Row<'a> = (&'a str, &'a [&'a str], &'a str, &'a str, Option<&'a str>);
    let table: [Row; 7] = [
        ("no key", &[], "401 key_missing -", "Authorization: Bearer thr_...", Some("Bearer")),
        ("another scheme", &["authorization: Basic dGhyX2dvb2Q="], "401 key_missing -", "", Some("Bearer")),
        ("the header of another program", &["x-api-key: thr_good"], "401 key_missing -", "", Some("Bearer")),
        (
            "an unknown key",
            &["authorization: Bearer thr_goof"],
            "401 key_unknown -",
            "not valid here",
            Some("Bearer error=\"invalid_token\""),
        ),
        (
            "an unknown key in the daemon's own header, which has precedence",
            &["authorization: Bearer thr_good", "x-thresher-key: thr_goof"],
            "401 key_unknown -",
            "",
            Some("Bearer error=\"invalid_token\""),
        ),
        (
            "the name of the key",
            &["authorization: Bearer good"],
            "401 key_unknown -",
            "",
            Some("Bearer error=\"invalid_token\""),
        ),
        (
            "a revoked key",
            &["x-thresher-key: thr_gone"],
            "403 key_revoked -",
            "\"gone\" has been revoked",
            None,
        ),
    ];
    for (case, headers, error, message, challenge) in table {
        for what in everywhere {
            let response = ask_with(address, what, headers, "{").await;
            let case = format!("{case}, {what:?}");
            check_error(&case, &response, error, message);
            assert_eq!(response.header("www-authenticate"), challenge, "{case}");
            // Clients of rerankers look for the message here; those of Text Embeddings Inference in `error`.
            let body = response.json();
            assert!(body["error"].is_string() || body["message"] == body["error"]["message"], "{case}");
        }
    }
    for (path, kind) in [
        ("/v1/chat/completions", "authentication_error"),
        ("/v1/responses", "authentication_error"),
        ("/v1/messages", "authentication_error"),
    ] {
        let error = ask_with(address, ("POST", path), &[], "{}").await;
        let body = &error.json()["error"];
        assert_eq!(
            (error.status, &body["type"], &body["code"]),
            (401, &json!(kind), &json!("key_missing")),
            "{path}"
        );
    }
    let error = ask_with(address, ("POST", "/v1/messages"), &["x-thresher-key: thr_gone"], "{}").await;
    assert_eq!((error.status, &error.json()["error"]["type"]), (403, &json!("permission_error")));
    for headers in [
        ["authorization: Bearer thr_good", "x-other: 1"],
        ["authorization: bearer thr_good", "x-other: 1"],
        ["x-thresher-key: thr_good", "x-other: 1"],
        ["authorization: Bearer sk-of-an-upstream", "x-thresher-key: thr_good"],
    ] {
        let response = ask_with(address, ("POST", "/v1/compress"), &headers, good().to_string()).await;
        assert_good(headers[0], &response);
        assert_eq!(ask_with(address, ("GET", "/no/such/path"), &headers, "").await.status, 404);
    }
    let metrics = get(keyed.daemon.admin, "/metrics").await;
    assert_eq!(metrics.status, 200, "the admin listener needs no key");
    for line in [
        "requests_total{endpoint=\"/v1/compress\",code=\"key_missing\"}",
        "key_requests_total{key=\"good\",code=\"ok\"}",
        "key_requests_total{key=\"gone\",code=\"key_revoked\"}",
    ] {
        assert!(metrics.body.contains(line), "{line} is missing in {}", metrics.body);
    }
    assert!(!metrics.body.contains("thr_"), "{}", metrics.body);
}

#[tokio::test]
async fn the_openapi_document_and_probes_need_no_key() {
    let keyed = Keyed::start(&entry("good", ""), scripted(), &registry_settings()).await;
    let answer = get(keyed.daemon.http, "/openapi.json").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    for probe in ["/health", "/health/"] {
        assert_eq!(get(keyed.daemon.http, probe).await.status, 200, "{probe}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_tools_use_the_data_of_the_callers_tenant() {
    let keys = entry("a", "tenant = \"a\"") + &entry("b", "tenant = \"b\"");
    let keyed = Keyed::start(&keys, scripted(), &registry_settings()).await;
    let chunk = json!({"chunks": [{"id": "mine", "text": "The tide is at noon."}]});
    assert_eq!(keyed.post("a", "/v1/chunks", &chunk).await.status, 200);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "compress", "arguments": {"query": "When is the tide?", "chunk_ids": ["mine"]},
    }});
    for (key, fails) in [("a", false), ("b", true)] {
        let headers = [
            &*format!("authorization: Bearer thr_{key}"),
            "content-type: application/json",
            "accept: application/json, text/event-stream",
        ];
        let answer = ask_with(keyed.daemon.http, ("POST", "/mcp"), &headers, call.to_string()).await;
        let result = &answer.json()["result"];
        assert_eq!(result["isError"], fails, "{key}: {result}");
        if fails {
            assert_eq!(result["structuredContent"]["error"]["code"], "chunk_unknown");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_a_request_without_a_key_is_neither_awaited_nor_checked() {
    let keyed = Keyed::start(&entry("waits", ""), scripted(), &registry_settings()).await;
    // A client that asks before it sends the body gets the refusal in place of `100 Continue`.
    let mut stream = TcpStream::connect(keyed.daemon.http).await.expect("the daemon listens");
    let head = "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\nexpect: 100-continue\r\n\
                content-length: 100\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("the daemon reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    check_error("with Expect: 100-continue", &wire::parse(&answer), "401 key_missing -", "");
    // A client that sends the body at once gets a response and not a broken pipe. The body is neither parsed
    // nor measured.
    for body in ["x".repeat(BODY_BYTES_MAX), "x".repeat(3 * BODY_BYTES_MAX)] {
        let response = ask_with(keyed.daemon.http, ("POST", "/v1/compress"), &[], body).await;
        check_error("with the body at once", &response, "401 key_missing -", "");
    }
    // The daemon does not wait for a body that never comes. With a valid key it would wait for 30 s.
    let mut stream = TcpStream::connect(keyed.daemon.http).await.expect("the daemon listens");
    stream
        .write_all(head.replace("expect: 100-continue\r\n", "").as_bytes())
        .await
        .expect("the daemon reads");
    let mut answer = String::new();
    let read = tokio::time::timeout(std::time::Duration::from_secs(10), stream.read_to_string(&mut answer));
    read.await.expect("within ten seconds").expect("an answer");
    check_error("without the body", &wire::parse(&answer), "401 key_missing -", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_the_file_of_keys_apply_while_the_daemon_runs() {
    let keyed = Keyed::start(&entry("first", ""), scripted(), &registry_settings()).await;
    let status = async |key: &str| keyed.get(key, "/v1/models").await.status;
    assert_eq!((status("first").await, status("second").await), (200, 401));
    keyed.write(&(entry("first", "revoked = true") + &entry("second", "tenant = \"new\"")));
    eventually("the first key is revoked", async || status("first").await == 403).await;
    assert_eq!(status("second").await, 200, "all changes of a file apply at the same time");
    // The registry of the new tenant is open before its first request.
    let chunks = json!({"chunks": [{"id": "a", "text": "The tide is at noon."}]});
    assert_eq!(keyed.post("second", "/v1/chunks", &chunks).await.json()["chunks"][0]["status"], "created");
    let failed = metric(&keyed.daemon, "keys_reloads_total{outcome=\"failed\"}").await;
    keyed.write("[[key]]\nname = \"first\"\nsha = \"thr_first\"");
    eventually("the daemon has tried to read the broken file", async || {
        metric(&keyed.daemon, "keys_reloads_total{outcome=\"failed\"}").await > failed
    })
    .await;
    assert_eq!(
        (status("first").await, status("second").await),
        (403, 200),
        "the keys that were read before stay valid"
    );
    keyed.write("");
    eventually("no key is valid", async || status("second").await == 401).await;
    keyed.write(&entry("second", "tenant = \"new\""));
    eventually("the key is valid again", async || status("second").await == 200).await;
    assert_eq!(keyed.get("second", "/v1/chunks/a").await.status, 200, "the tenant has its chunks again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_the_rate_limit_gets_a_time_to_retry() {
    let keys = entry("slow", "requests_per_minute = 2") + &entry("free", "");
    let keyed = Keyed::start(&keys, scripted(), &registry_settings()).await;
    // Requests count whether they succeed or not.
    assert_eq!(keyed.get("slow", "/v1/models").await.status, 200);
    assert_eq!(keyed.get("slow", "/no/such/path").await.status, 404);
    let refused = keyed.post("slow", "/v1/compress", &good()).await;
    check_error(
        "the third of two",
        &refused,
        "429 rate_limited -",
        "\"slow\" has used up its requests_per_minute",
    );
    let after: u64 = refused.header("retry-after").expect("a Retry-After header").parse().expect("seconds");
    assert!((1..=30).contains(&after), "{after}");
    assert!(refused.body.contains(&format!("repeat the request in {after} s")), "{}", refused.body);
    assert_good("another key", &keyed.post("free", "/v1/compress", &good()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_is_charged_for_its_tokens() {
    let names = ["rerank", "again", "compress", "attribute", "register", "search", "none"];
    let keys: String = names.iter().map(|name| entry(name, "tokens_per_minute = 3")).collect();
    let keyed = Keyed::start(&keys, scripted(), &registry_settings()).await;
    let charged =
        async |key: &str| metric(&keyed.daemon, &format!("key_tokens_total{{key=\"{key}\"}}")).await;
    let refused = async |key: &str| {
        let response = keyed.get(key, "/v1/models").await;
        check_error(key, &response, "429 rate_limited -", "tokens_per_minute");
    };
    let (query, text) = ("When is the tide?", "The tide is at noon.");
    let rerank = json!({"model": "m", "query": query, "documents": [text]});
    let counted = async |key: &str| {
        let answer = keyed.post(key, "/v1/rerank", &rerank).await;
        assert_eq!(answer.status, 200, "the first request may exceed the limit: {}", answer.body);
        answer.json()["usage"]["total_tokens"].as_f64().expect("tokens")
    };
    let tokens = counted("rerank").await;
    assert!(tokens > 3.0, "{tokens}");
    assert_eq!(charged("rerank").await, tokens);
    refused("rerank").await;
    // A request whose blocks are cached costs the same: keys pay for responses, whatever was cached before.
    assert_eq!(counted("again").await, tokens);
    assert_eq!(charged("again").await, tokens);
    let chunks = json!([text]);
    assert_eq!(
        keyed.post("compress", "/v1/compress", &json!({"query": query, "chunks": chunks})).await.status,
        200
    );
    assert_eq!(charged("compress").await, tokens);
    refused("compress").await;
    let answered = json!({"answer": query, "chunks": chunks});
    let attributed = keyed.post("attribute", "/v1/attribute", &answered).await;
    assert_eq!(attributed.status, 200, "{}", attributed.body);
    assert_eq!(charged("attribute").await, tokens, "the answer is as long as the question");
    let register = json!({"chunks": [{"id": "a", "text": text}]});
    assert_eq!(keyed.post("register", "/v1/chunks", &register).await.status, 200);
    assert_eq!(
        charged("register").await,
        text.len().div_ceil(4) as f64,
        "registered text is charged by its bytes"
    );
    let search = json!({"query": "tide", "rank": "rc"});
    assert_eq!(keyed.post("search", "/v1/search", &search).await.json()["results"][0]["id"], "a");
    assert!(charged("search").await > 3.0);
    refused("search").await;
    for _ in 0..3 {
        assert_eq!(keyed.get("none", "/v1/chunks").await.status, 200, "listing chunks costs nothing");
        assert_eq!(keyed.post("none", "/v1/compress", &json!({"query": 1})).await.status, 400);
    }
    assert_eq!(charged("none").await, 0.0);
}

#[test]
fn without_keys_the_daemon_listens_on_loopback_only() {
    let refused = |settings: &[(&str, &str)]| {
        let output = thresher(&["serve"]).envs(settings.iter().copied()).output().expect("the binary starts");
        assert!(!output.status.success(), "{settings:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let stderr = refused(&[("THRESHER__HTTP__LISTEN", listen)]);
        assert!(
            stderr.contains(&format!("http.listen is {listen}")) && stderr.contains("access.keys_file"),
            "{stderr}"
        );
    }
    let stderr = refused(&[("THRESHER__ACCESS__KEYS_FILE", "no/such/keys.toml")]);
    assert!(stderr.contains("cannot read no/such/keys.toml (access.keys_file)"), "{stderr}");
}

#[test]
fn the_command_line_makes_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys.toml");
    let make = |arguments: &[&str]| {
        let output = thresher(&["key", "new"]).args(arguments).output().expect("the binary starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let path = file.to_str().expect("UTF-8");
    let (made, key, stderr) =
        make(&["--name", SECRET, "--tenant", "acme", "--requests-per-minute", "60", "--file", path]);
    assert!(made && key.starts_with("thr_") && key.lines().count() == 1, "{key:?} {stderr:?}");
    let settings = AccessSettings { keys_file: file.clone() };
    let admitted = |key: &str| {
        let (access, _) = Access::open_within(&settings, 1).expect("keys");
        access.admit(Some(key.trim()), std::time::Instant::now()).ok()
    };
    assert_eq!(admitted(&key).expect("a valid key").tenant().name(), "acme");
    assert!(
        !std::fs::read_to_string(&file).expect("text").contains(key.trim()),
        "the file holds only the hash of the key"
    );
    let (made, key, stderr) = make(&["--name", SECRET, "--file", path]);
    assert!(
        !made && key.is_empty() && stderr.contains("is already the name of key[0]; nothing was added"),
        "{stderr}"
    );
    // Without a file, the entry is printed, and the user adds it.
    let (made, printed, _) = make(&["--name", "by/hand", "--middleware"]);
    let (key, entry) = printed.split_once("\n\n").expect("a key and an entry");
    assert!(made && admitted(key).is_none());
    let all = std::fs::read_to_string(&file).expect("text") + entry;
    std::fs::write(&file, all).expect("written");
    let settings = AccessSettings { keys_file: file };
    let (access, _) = Access::open_within(&settings, 2).expect("keys");
    let caller = access.admit(Some(key), std::time::Instant::now()).expect("a valid key");
    assert!(caller.compresses_by_default() && caller.tenant().is_default());
    for wrong in [
        &["--name", "a b"][..],
        &["--name", "a", "--tenant", "A"],
        &["--name", "a", "--requests-per-minute", "0"],
    ] {
        assert!(!make(wrong).0, "{wrong:?}");
    }
}
