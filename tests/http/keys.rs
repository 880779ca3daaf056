//! Keys over the wire: who comes in, who does not and what it is told, what a key has left, and changes of the file while the
//! daemon runs.

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
use tokio::runtime::Handle;

use crate::support::thresher;
use crate::wire::{self, Response, ask_with, get};
use crate::{
    BODY_BYTES_MAX, Daemon, SECRET, TENANT_COUNT_MAX, assert_good, check_error, good, keyed_service,
    pipeline_of, registry_settings, scripted, serve,
};

/// An entry for the key `thr_NAME`.
pub fn entry(name: &str, more: &str) -> String {
    let sha256: String =
        Sha256::digest(format!("thr_{name}")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\n{more}\n")
}

/// A daemon whose file of keys a test changes.
pub struct Keyed {
    pub daemon: Daemon,
    file: PathBuf,
    _folder: TempDir,
}

impl Keyed {
    /// Serves with these keys; with `model` over tiers in memory.
    pub async fn start(keys: &str, model: Arc<dyn ModelRuntime>, registry: &RegistrySettings) -> Self {
        Self::start_with(keys, remembering(model), registry).await
    }

    /// The same with this pipeline.
    pub async fn start_with(keys: &str, pipeline: Pipeline, registry: &RegistrySettings) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("keys.toml");
        std::fs::write(&file, keys).expect("written");
        let settings = AccessSettings { keys_file: file.clone(), tenant_count_max: TENANT_COUNT_MAX };
        let (access, watched) = Access::open(&settings).expect("keys");
        let made = keyed_service(Some(pipeline), (4, 4), registry, access.clone());
        tokio::spawn(follow_keys(access, watched.expect("a file"), made.1.clone()));
        Self { daemon: serve(made).await, file, _folder: folder }
    }

    /// Replaces the file.
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

    /// As the key `thr_KEY`.
    pub async fn ask(&self, key: &str, what: (&str, &str), body: impl AsRef<[u8]>) -> Response {
        let header = format!("authorization: Bearer thr_{key}");
        ask_with(self.daemon.http, what, &[&header], body).await
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        for _ in 0..6_000 {
            if holds().await {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("waited a minute in vain until {what}");
    }
}

/// A pipeline that keeps its blocks in memory.
pub fn remembering(model: Arc<dyn ModelRuntime>) -> Pipeline {
    let settings = LocalSettings {
        memory_bytes_max: 64 << 20,
        disk_bytes_max: 0,
        write_queue_bytes_max: 1 << 20,
        dir: None,
    };
    let local = LocalTiers::open(&settings).expect("memory");
    pipeline_of(model, KvStore::new(Arc::new(AllTiers::new(local, None, Handle::current()))))
}

/// The value of a line of metrics; 0 where there is none.
async fn metric(daemon: &Daemon, line: &str) -> f64 {
    let metrics = get(daemon.admin, "/metrics").await.body;
    let value = metrics.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    value.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_good_key_is_told_so_everywhere() {
    let keys = entry("good", "") + &entry("gone", "revoked = true");
    let keyed = Keyed::start(&keys, scripted(), &registry_settings()).await;
    let address = keyed.daemon.http;
    let everywhere = [
        ("POST", "/v1/compress"),
        ("POST", "/v1/attribute"),
        ("POST", "/v1/attribute/stream"),
        ("GET", "/v1/chunks"),
        ("POST", "/v1/chunks"),
        ("GET", "/v1/chunks/a"),
        ("DELETE", "/v1/chunks/a"),
        ("POST", "/v1/chunks/delete"),
        ("GET", "/v1/registry"),
        ("POST", "/v1/search"),
        ("POST", "/v1/rerank"),
        ("POST", "/v2/rerank"),
        ("POST", "/rerank"),
        ("POST", "/v1/score"),
        ("POST", "/score"),
        ("GET", "/v1/models"),
        ("GET", "/v1/retrieve/a"),
        ("POST", "/mcp"),
        ("GET", "/no/such/path"),
        ("PATCH", "/v1/compress"),
    ];
    /// Case, headers, error, message, challenge.
    type Row<'a> = (&'a str, &'a [&'a str], &'a str, &'a str, Option<&'a str>);
    let table: [Row; 7] = [
        ("none", &[], "401 key_missing -", "Authorization: Bearer thr_...", Some("Bearer")),
        ("another scheme", &["authorization: Basic dGhyX2dvb2Q="], "401 key_missing -", "", Some("Bearer")),
        ("somebody else's header", &["x-api-key: thr_good"], "401 key_missing -", "", Some("Bearer")),
        (
            "an unknown one",
            &["authorization: Bearer thr_goof"],
            "401 key_unknown -",
            "not known here",
            Some("Bearer error=\"invalid_token\""),
        ),
        (
            "ours wins, though wrong",
            &["authorization: Bearer thr_good", "x-thresher-key: thr_goof"],
            "401 key_unknown -",
            "",
            Some("Bearer error=\"invalid_token\""),
        ),
        (
            "the name",
            &["authorization: Bearer good"],
            "401 key_unknown -",
            "",
            Some("Bearer error=\"invalid_token\""),
        ),
        (
            "a revoked one",
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
            // Where clients of rerankers look for it.
            assert_eq!(response.json()["message"], response.json()["error"]["message"], "{case}");
        }
    }
    for (path, kind) in [
        ("/v1/chat/completions", "authentication_error"),
        ("/v1/responses", "authentication_error"),
        ("/v1/messages", "authentication_error"),
    ] {
        let error = ask_with(address, ("POST", path), &[], "{}").await;
        let told = &error.json()["error"];
        assert_eq!(
            (error.status, &told["type"], &told["code"]),
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
    assert_eq!(metrics.status, 200, "operators need no key");
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
async fn who_has_no_key_learns_how_to_bring_one() {
    let keyed = Keyed::start(&entry("good", ""), scripted(), &registry_settings()).await;
    let answer = get(keyed.daemon.http, "/openapi.json").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_see_what_their_callers_tenant_has() {
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
async fn of_who_has_no_key_no_body_is_waited_for_or_judged() {
    let keyed = Keyed::start(&entry("waits", ""), scripted(), &registry_settings()).await;
    // Who asks first is not told to send.
    let mut stream = TcpStream::connect(keyed.daemon.http).await.expect("the daemon listens");
    let head = "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\nexpect: 100-continue\r\n\
                content-length: 100\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("the daemon reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    check_error("asked first", &wire::parse(&answer), "401 key_missing -", "");
    // Who sends without asking gets its answer, not a broken pipe; what it sent is neither parsed nor measured.
    for body in ["x".repeat(BODY_BYTES_MAX), "x".repeat(3 * BODY_BYTES_MAX)] {
        let response = ask_with(keyed.daemon.http, ("POST", "/v1/compress"), &[], body).await;
        check_error("sent at once", &response, "401 key_missing -", "");
    }
    // A body that never comes is not waited for: bodies may take 30 s here.
    let mut stream = TcpStream::connect(keyed.daemon.http).await.expect("the daemon listens");
    stream
        .write_all(head.replace("expect: 100-continue\r\n", "").as_bytes())
        .await
        .expect("the daemon reads");
    let mut answer = String::new();
    let read = tokio::time::timeout(std::time::Duration::from_secs(10), stream.read_to_string(&mut answer));
    read.await.expect("within ten seconds").expect("an answer");
    check_error("never sent", &wire::parse(&answer), "401 key_missing -", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_is_taken_in_while_the_daemon_runs() {
    let keyed = Keyed::start(&entry("first", ""), scripted(), &registry_settings()).await;
    let status = async |key: &str| keyed.get(key, "/v1/models").await.status;
    assert_eq!((status("first").await, status("second").await), (200, 401));
    keyed.write(&(entry("first", "revoked = true") + &entry("second", "tenant = \"new\"")));
    keyed.until("the first is revoked", async || status("first").await == 403).await;
    assert_eq!(status("second").await, 200, "both at one moment");
    // The room of the new tenant is there before its first request.
    let chunks = json!({"chunks": [{"id": "a", "text": "The tide is at noon."}]});
    assert_eq!(keyed.post("second", "/v1/chunks", &chunks).await.json()["chunks"][0]["status"], "created");
    let failed = metric(&keyed.daemon, "keys_reloads_total{outcome=\"failed\"}").await;
    keyed.write("[[key]]\nname = \"first\"\nsha = \"thr_first\"");
    keyed
        .until("the broken file is met", async || {
            metric(&keyed.daemon, "keys_reloads_total{outcome=\"failed\"}").await > failed
        })
        .await;
    assert_eq!((status("first").await, status("second").await), (403, 200), "what was read before holds");
    keyed.write("");
    keyed.until("nobody has a key", async || status("second").await == 401).await;
    keyed.write(&entry("second", "tenant = \"new\""));
    keyed.until("it is back", async || status("second").await == 200).await;
    assert_eq!(keyed.get("second", "/v1/chunks/a").await.status, 200, "with what it had");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_a_rate_are_told_when_to_come_again() {
    let keys = entry("slow", "requests_per_minute = 2") + &entry("free", "");
    let keyed = Keyed::start(&keys, scripted(), &registry_settings()).await;
    // Requests count, not their success.
    assert_eq!(keyed.get("slow", "/v1/models").await.status, 200);
    assert_eq!(keyed.get("slow", "/no/such/path").await.status, 404);
    let refused = keyed.post("slow", "/v1/compress", &good()).await;
    check_error(
        "the third of two",
        &refused,
        "429 rate_limited -",
        "\"slow\" has used up its requests_per_minute",
    );
    let after: u64 = refused.header("retry-after").expect("when").parse().expect("seconds");
    assert!((1..=30).contains(&after), "{after}");
    assert!(refused.body.contains(&format!("again in {after} s")), "{}", refused.body);
    assert_good("another key", &keyed.post("free", "/v1/compress", &good()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_charged_for_all_that_was_looked_at() {
    let names = ["rerank", "again", "compress", "attribute", "stream", "register", "search", "none"];
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
        assert_eq!(answer.status, 200, "the first may go into debt: {}", answer.body);
        answer.json()["usage"]["total_tokens"].as_f64().expect("tokens")
    };
    let tokens = counted("rerank").await;
    assert!(tokens > 3.0, "{tokens}");
    assert_eq!(charged("rerank").await, tokens);
    refused("rerank").await;
    // What is there already costs the same: a key pays for answers, not for what others have asked.
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
    assert_eq!(charged("attribute").await, tokens, "an answer as long as the question");
    let events = format!("data: {}\n\ndata: {}\n\n", json!({"chunks": chunks}), json!({"delta": query}));
    let told = keyed.ask("stream", ("POST", "/v1/attribute/stream"), events).await;
    assert!(told.body.contains("event: done"), "{}", told.body);
    assert_eq!(charged("stream").await, tokens, "the same while it arrives");
    let register = json!({"chunks": [{"id": "a", "text": text}]});
    assert_eq!(keyed.post("register", "/v1/chunks", &register).await.status, 200);
    assert_eq!(charged("register").await, text.len().div_ceil(4) as f64, "by its bytes, before it is read");
    let search = json!({"query": "tide", "rank": "rc"});
    assert_eq!(keyed.post("search", "/v1/search", &search).await.json()["results"][0]["id"], "a");
    assert!(charged("search").await > 3.0);
    refused("search").await;
    for _ in 0..3 {
        assert_eq!(keyed.get("none", "/v1/chunks").await.status, 200, "looking costs nothing");
        assert_eq!(keyed.post("none", "/v1/compress", &json!({"query": 1})).await.status, 400);
    }
    assert_eq!(charged("none").await, 0.0);
}

#[test]
fn without_keys_nothing_but_loopback_is_listened_on() {
    let refused = |settings: &[(&str, &str)]| {
        let output = thresher(&["serve"]).envs(settings.iter().copied()).output().expect("the binary starts");
        assert!(!output.status.success(), "{settings:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let said = refused(&[("THRESHER__HTTP__LISTEN", listen)]);
        assert!(
            said.contains(&format!("http.listen is {listen}")) && said.contains("access.keys_file"),
            "{said}"
        );
    }
    let said = refused(&[("THRESHER__ACCESS__KEYS_FILE", "no/such/keys.toml")]);
    assert!(said.contains("cannot read no/such/keys.toml (access.keys_file)"), "{said}");
}

#[test]
fn keys_are_made_by_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys.toml");
    let make = |arguments: &[&str]| {
        let output = thresher(&["key", "new"]).args(arguments).output().expect("the binary starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let path = file.to_str().expect("a path");
    let (made, key, said) =
        make(&["--name", SECRET, "--tenant", "acme", "--requests-per-minute", "60", "--file", path]);
    assert!(made && key.starts_with("thr_") && key.lines().count() == 1, "{key:?} {said:?}");
    let settings = AccessSettings { keys_file: file.clone(), tenant_count_max: 1 };
    let admitted = |key: &str| {
        let (access, _) = Access::open(&settings).expect("keys");
        access.admit(Some(key.trim()), std::time::Instant::now()).ok()
    };
    assert_eq!(admitted(&key).expect("it is good").tenant().name(), "acme");
    assert!(!std::fs::read_to_string(&file).expect("text").contains(key.trim()), "only its hash is kept");
    let (made, key, said) = make(&["--name", SECRET, "--file", path]);
    assert!(
        !made && key.is_empty() && said.contains("is the name of key[0] already; nothing was added"),
        "{said}"
    );
    // Printed, to be added by hand.
    let (made, printed, _) = make(&["--name", "by/hand", "--middleware"]);
    let (key, entry) = printed.split_once("\n\n").expect("a key and an entry");
    assert!(made && admitted(key).is_none());
    let all = std::fs::read_to_string(&file).expect("text") + entry;
    std::fs::write(&file, all).expect("written");
    let settings = AccessSettings { keys_file: file, tenant_count_max: 2 };
    let (access, _) = Access::open(&settings).expect("keys");
    let caller = access.admit(Some(key), std::time::Instant::now()).expect("it is good");
    assert!(caller.is_compressed_unasked() && caller.tenant().is_default());
    for wrong in [
        &["--name", "a b"][..],
        &["--name", "a", "--tenant", "A"],
        &["--name", "a", "--requests-per-minute", "0"],
    ] {
        assert!(!make(wrong).0, "{wrong:?}");
    }
}
