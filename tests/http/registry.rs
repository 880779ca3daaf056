//! Registered chunks over HTTP: the responses and refusals of every endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use thresher_core::domain::Chunk;
use thresher_registry::RegistrySettings;
use thresher_registry::warm::{IsCurrent, ReadError, Reader, Warmer};

use crate::support::wait::eventually;
use crate::support::wire::{self, Framing, ask, get, post};
use crate::{Daemon, SECRET, check_error, daemon, double, registry_settings, scripted, serve, service};

/// Registers chunks and asserts that the response is 200.
async fn register(daemon: &Daemon, chunks: Value) -> Value {
    let response = post(daemon.http, "/v1/chunks", json!({"chunks": chunks}).to_string()).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

async fn delete(daemon: &Daemon, path: &str) -> wire::Response {
    ask(daemon.http, "DELETE", path, b"", Framing::ContentLength).await
}

/// "status id" for every chunk of a response.
fn statuses(answer: &Value) -> Vec<String> {
    let chunks = answer["chunks"].as_array().expect("chunks");
    chunks.iter().map(|c| format!("{} {}", c["status"].as_str().expect("a status"), c["id"])).collect()
}

fn tides() -> Value {
    json!([
        {"id": "a", "title": "Tides", "text": "The tide is at noon.", "metadata": {"lang": "en", "year": 2020}},
        {"id": "b", "text": "The moon is far. Water is wet.", "metadata": {"lang": "de", "year": 2021}},
        {"id": "c", "text": "The tide and the moon.", "metadata": {"lang": "en"}},
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_valid_chunks_of_a_batch_are_registered_and_the_others_refused() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let answer = register(&daemon, tides()).await;
    assert_eq!(statuses(&answer), ["created \"a\"", "created \"b\"", "created \"c\""]);
    assert_eq!(answer["warming"], json!({"registered": 3, "warm": 0, "queued": 3, "failed": 0}));
    let chunks = json!([
        {"id": "a", "title": "Tides", "text": "The tide is at noon.", "metadata": {"lang": "en", "year": 2020}},
        {"id": "b", "text": "Other."},
        "no id",
        {"text": "no id"},
        {"id": "e", "text": " \n"},
        {"id": "f", "text": "x".repeat(1501)},
        {"id": "g", "text": "x", "metadata": {"long": "x".repeat(64)}},
        {"id": "h", "text": "x", "metadata": [1]},
        {"id": "", "text": "x"},
        {"id": "tab\t", "text": "x"},
        {"id": "b", "text": "again"},
        {"id": "i", "text": "x", "body": 1},
        {"id": "j"},
        {"id": true, "text": "x"},
        7,
    ]);
    let answer = register(&daemon, chunks).await;
    let errors: Vec<String> = answer["chunks"]
        .as_array()
        .expect("chunks")
        .iter()
        .map(|chunk| {
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let (status, error) = (text(&chunk["status"]), &chunk["error"]);
            format!("{} {status} {} {}", chunk["index"], text(&error["code"]), text(&error["param"]))
        })
        .collect();
    let expect = [
        "0 unchanged - -",
        "1 updated - -",
        "2 created - -",
        "3 failed duplicate chunks[3].id",
        "4 failed field_empty chunks[4].text",
        "5 failed too_long chunks[5].text",
        "6 failed too_long chunks[6].metadata",
        "7 failed invalid_value chunks[7].metadata",
        "8 failed invalid_value chunks[8].id",
        "9 failed invalid_value chunks[9].id",
        "10 failed duplicate chunks[10].id",
        "11 failed unknown_field chunks[11].body",
        "12 failed missing_field chunks[12].text",
        "13 failed wrong_type chunks[13].id",
        "14 failed wrong_type chunks[14]",
    ];
    assert_eq!(errors, expect);
    assert_eq!(answer["chunks"][11]["id"], "i", "the id of an invalid chunk is in the response");
    assert_eq!(answer["chunks"][14]["id"], Value::Null);
    let id = answer["chunks"][2]["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        get(daemon.http, &format!("/v1/chunks/{id}")).await.json(),
        json!({"id": id, "text": "no id"})
    );
    let many: Vec<String> = (0..15).map(|n| format!("text {n}")).collect();
    register(&daemon, json!(many)).await;
    let full = register(&daemon, json!(["the last", "one too many"])).await;
    assert_eq!(full["chunks"][0]["status"], "created");
    assert_eq!(full["chunks"][1]["error"]["code"], "registry_full");
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_that_cannot_be_read_is_refused() {
    let (mut service, tenants) = service(None, 1, 0, &registry_settings());
    Arc::make_mut(&mut service.settings).limits.metadata_bytes_max = 1_000;
    let daemon = serve((service, tenants)).await;
    let deep = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    for (metadata, expect) in [
        (deep(16), Value::Null),
        (deep(17), json!("too_long")),
        ("{\"n\": 1e999}".to_owned(), json!("invalid_value")),
    ] {
        let body = format!("{{\"chunks\": [{{\"id\": \"a\", \"text\": \"x\", \"metadata\": {metadata}}}]}}");
        let answer = post(daemon.http, "/v1/chunks", body).await.json();
        assert_eq!(answer["chunks"][0]["error"]["code"], expect, "{metadata}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_directory_a_registry_refuses_changes_and_serves_its_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = RegistrySettings { dir: folder.path().join("registry"), ..registry_settings() };
    let daemon = serve(service(None, 1, 0, &settings)).await;
    register(&daemon, tides()).await;
    let away = folder.path().join("away");
    std::fs::rename(&settings.dir, &away).expect("it moves");
    for body in [json!({"chunks": ["x"]}), json!({"chunks": ["x"], "wait": true})] {
        let refused = post(daemon.http, "/v1/chunks", body.to_string()).await;
        check_error("no directory", &refused, "507 storage_full -", "registry.dir");
        assert_eq!(refused.header("retry-after"), Some("5"));
    }
    assert_eq!(get(daemon.http, "/v1/registry").await.json()["registered"], 3);
    assert_eq!(get(daemon.http, "/v1/chunks/a").await.status, 200);
    std::fs::rename(&away, &settings.dir).expect("it moves back");
    assert_eq!(statuses(&register(&daemon, json!([{"id": "x", "text": "Back."}])).await), ["created \"x\""]);
    let search = json!({"query": "back tide", "rank": "bm25"}).to_string();
    let found = post(daemon.http, "/v1/search", search).await.json();
    assert_eq!(found["results"].as_array().map(Vec::len), Some(3), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_chunks_is_no_larger_than_a_request_body() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let text = "x".repeat(1_400);
    let chunks: Vec<_> =
        (0..9).map(|n| json!({"id": n.to_string(), "text": format!("tide {text}")})).collect();
    for chunks in chunks.chunks(2) {
        register(&daemon, json!(chunks)).await;
    }
    let (mut ids, mut path) = (Vec::new(), "/v1/chunks".to_owned());
    loop {
        let page = get(daemon.http, &path).await.json();
        let listed = page["chunks"].as_array().expect("chunks");
        assert!(listed.len() <= 3, "{}", listed.len());
        ids.extend(listed.iter().map(|chunk| chunk["id"].as_str().expect("an id").to_owned()));
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/chunks?after={next}"),
            None => break,
        }
    }
    assert_eq!(ids.join(""), "012345678");
    let search = json!({"query": "tide", "rank": "bm25"}).to_string();
    let refused = post(daemon.http, "/v1/search", search).await;
    check_error("too many candidates", &refused, "422 too_long candidates", "bytes of text");
    let search = json!({"query": "tide", "rank": "bm25", "limit": 2}).to_string();
    assert_eq!(post(daemon.http, "/v1/search", search).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_registrations_register_nothing() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let table = [
        ("/v1/chunks", json!({"chunks": []}), "422 field_empty chunks", "at least one"),
        ("/v1/chunks", json!({"chunks": vec!["x"; 16]}), "422 too_many chunks", "the limit is"),
        ("/v1/chunks", json!({"chunks": "x"}), "400 wrong_type chunks", "a list"),
        ("/v1/chunks", json!({}), "400 missing_field chunks", "`chunks`"),
        ("/v1/chunks", json!({"chunks": ["x"], "now": 1}), "400 unknown_field now", "`now`"),
        ("/v1/chunks", json!(["x"]), "400 wrong_type -", "an object"),
        (
            "/v1/chunks",
            json!({"chunks": ["x"], "deadline_ms": 600_001}),
            "422 out_of_range deadline_ms",
            "the limit is 600000",
        ),
        ("/v1/chunks/delete", json!({"ids": []}), "422 field_empty ids", "at least one"),
        ("/v1/chunks/delete", json!({"ids": [true]}), "400 wrong_type ids[0]", "a string"),
        ("/v1/chunks/other", json!({"ids": ["a"]}), "405 method_not_allowed -", "Allow"),
    ];
    for (path, body, error, message) in table {
        let response = post(daemon.http, path, body.to_string()).await;
        check_error(&body.to_string(), &response, error, message);
    }
    let half = post(daemon.http, "/v1/chunks", "{\"chunks\": [\"x\"").await;
    check_error("half a body", &half, "400 invalid_json -", "EOF");
    assert_eq!(get(daemon.http, "/v1/registry").await.json()["registered"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_can_be_fetched_listed_and_deleted() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    register(&daemon, tides()).await;
    let odd = "delete /ü?#%";
    register(&daemon, json!([{"id": odd, "text": "x"}, {"id": "delete", "text": "y"}])).await;
    let a = get(daemon.http, "/v1/chunks/a").await.json();
    assert_eq!(a, tides()[0]);
    assert_eq!(get(daemon.http, "/v1/chunks/delete%20%2F%C3%BC%3F%23%25").await.json()["id"], odd);
    assert_eq!(get(daemon.http, "/v1/chunks/delete").await.json()["text"], "y");
    let missing = get(daemon.http, "/v1/chunks/none").await;
    check_error("an unknown id", &missing, "404 id_unknown -", "\"none\"");

    let page = get(daemon.http, "/v1/chunks?limit=2").await.json();
    assert_eq!((&page["chunks"][0], &page["next"]), (&tides()[0], &json!("b")));
    let page = get(daemon.http, "/v1/chunks?limit=2&after=b").await.json();
    assert_eq!((&page["chunks"][0]["id"], &page["next"]), (&json!("c"), &json!("delete")));
    for (query, error) in [
        ("limit=0", "422 out_of_range limit"),
        ("limit=1001", "422 out_of_range limit"),
        ("limit=many", "422 out_of_range limit"),
        ("page=2", "400 wrong_type page"),
        ("filter=%7B%7D", "400 wrong_type filter"),
    ] {
        check_error(query, &get(daemon.http, &format!("/v1/chunks?{query}")).await, error, "");
    }

    let gone = delete(&daemon, "/v1/chunks/a").await;
    assert_eq!((gone.status, statuses(&gone.json())), (200, vec!["deleted \"a\"".to_owned()]));
    check_error("a second deletion", &delete(&daemon, "/v1/chunks/a").await, "404 id_unknown -", "\"a\"");
    let answer =
        post(daemon.http, "/v1/chunks/delete", json!({"ids": ["b", "a", "delete"]}).to_string()).await;
    assert_eq!(statuses(&answer.json()), ["deleted \"b\"", "unknown \"a\"", "deleted \"delete\""]);
    assert_eq!(get(daemon.http, "/v1/registry").await.json()["registered"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_can_refer_to_registered_chunks() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    register(&daemon, tides()).await;
    let ask = |body: Value| {
        let address = daemon.http;
        async move { post(address, "/v1/compress", body.to_string()).await }
    };
    let named = ask(json!({"query": "When is the tide?", "chunk_ids": ["c", "a"], "keep": ["a"]})).await;
    assert_eq!(named.status, 200, "{}", named.body);
    let chunks = json!([tides()[2], tides()[0]]);
    let mut sent = ask(json!({"query": "When is the tide?", "chunks": chunks, "keep": ["a"]})).await.json();
    let mut named = named.json();
    assert_ne!(named["id"], sent["id"], "every response has an id of its own");
    for field in ["timing_ms", "id"] {
        (named[field], sent[field]) = (Value::Null, Value::Null);
    }
    assert_eq!(named, sent, "responses for registered and for sent chunks are the same");

    let names: Vec<String> = (0..13).map(|n| n.to_string()).collect();
    let table = [
        (
            json!({"chunk_ids": ["a", "x", "b", "y"]}),
            "422 chunk_unknown chunk_ids[1]",
            "not registered: \"x\", \"y\"",
        ),
        (json!({"chunk_ids": ["a", "b", "a"]}), "422 duplicate chunk_ids[2]", "chunk_ids[0]"),
        (json!({"chunk_ids": []}), "422 field_empty chunk_ids", "at least one"),
        (json!({"chunk_ids": names}), "422 too_many chunk_ids", "the limit is"),
        (json!({"chunk_ids": names[..11]}), "422 chunk_unknown chunk_ids[0]", "\"9\" and 1 more"),
        (json!({"chunk_ids": ["a"], "chunks": ["x"]}), "422 fields_conflict chunk_ids", "not both"),
        (json!({"chunk_ids": [true]}), "400 wrong_type chunk_ids[0]", "a string"),
        (json!({}), "400 missing_field chunks", "`chunk_ids`"),
        (json!({"chunk_ids": ["a"], "keep": ["b"]}), "422 chunk_unknown keep[0]", "\"b\""),
    ];
    for (mut body, error, message) in table {
        body["query"] = json!("tide");
        check_error(&body.to_string(), &ask(body.clone()).await, error, message);
    }
    let long: Vec<Value> = ["x", "y"].iter().map(|id| json!({"id": id, "text": "y".repeat(1400)})).collect();
    register(&daemon, json!(long)).await;
    let refused = ask(json!({"query": "t", "chunk_ids": ["x", "y"]})).await;
    check_error("too long together", &refused, "422 too_long chunk_ids", "tokens");
    register(&daemon, json!([{"id": "z", "text": "z".repeat(1400)}])).await;
    let refused = ask(json!({"query": "t", "chunk_ids": ["x", "y", "z"]})).await;
    check_error("too many bytes", &refused, "422 too_long chunk_ids", "bytes of text");
    let late = json!({"query": "t", "chunk_ids": ["b", "a"], "deadline_ms": 0, "on_error": "passthrough"});
    let passed = ask(late).await.json();
    assert_eq!(passed["context"], "[1] The moon is far. Water is wet.\n\n[2] Tides\nThe tide is at noon.");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_registered_chunks_are_prefiltered_and_the_response_says_so() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let mut chunks: Vec<Value> =
        (0..9).map(|n| json!({"id": n.to_string(), "text": format!("Sun {n}.")})).collect();
    chunks.extend(tides().as_array().expect("chunks").clone());
    register(&daemon, json!(chunks)).await;
    let names: Vec<&str> = chunks.iter().filter_map(|chunk| chunk["id"].as_str()).collect();
    let body = json!({"query": "tide moon", "chunk_ids": names, "keep": ["4"]});
    let answer = post(daemon.http, "/v1/compress", body.to_string()).await.json();
    assert_eq!(answer["prefilter"], json!({"from": 12, "to": 3}), "{answer}");
    let indices: Vec<_> =
        answer["chunks"].as_array().expect("chunks").iter().map(|c| (&c["id"], &c["index"])).collect();
    assert_eq!(indices[0], (&json!("4"), &json!(4)), "chunks to keep are never prefiltered");
    assert!(indices.contains(&(&json!("c"), &json!(11))), "{indices:?}");
    let few = json!({"query": "tide moon", "chunk_ids": names[..10]});
    let answer = post(daemon.http, "/v1/compress", few.to_string()).await.json();
    assert_eq!((answer.get("prefilter"), answer["chunks"].as_array().map(Vec::len)), (None, Some(10)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_ranks_by_bm25_or_by_rc() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let search = |body: Value| {
        let address = daemon.http;
        async move { post(address, "/v1/search", body.to_string()).await }
    };
    let ids = |answer: &Value| -> Vec<String> {
        let results = answer["results"].as_array().unwrap_or_else(|| panic!("{answer}"));
        results.iter().map(|result| result["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert!(ids(&search(json!({"query": "tide"})).await.json()).is_empty(), "the registry is empty");
    register(&daemon, tides()).await;
    let answer = search(json!({"query": "tide", "rank": "bm25"})).await.json();
    assert_eq!((ids(&answer), &answer["rank"]), (vec!["c".to_owned(), "a".to_owned()], &json!("bm25")));
    assert_eq!(answer["results"][0]["score"], answer["results"][0]["bm25"]);
    let answer = search(json!({"query": "tide moon"})).await.json();
    assert_eq!((ids(&answer).len(), &answer["candidates"]), (3, &json!(3)), "{answer}");
    assert_eq!(answer["related"], true);
    let result = &answer["results"][0];
    for field in ["id", "score", "bm25", "text", "metadata"] {
        assert!(result.get(field).is_some(), "{field}: {result}");
    }
    let best: Vec<f64> =
        answer["results"].as_array().expect("results").iter().filter_map(|r| r["score"].as_f64()).collect();
    assert!(best.windows(2).all(|pair| pair[0] >= pair[1]), "{best:?}");
    let one = search(json!({"query": "tide moon", "limit": 1, "candidates": 3})).await.json();
    assert_eq!((&one["results"][0], &one["candidates"]), (&answer["results"][0], &json!(3)));
    for (body, error, message) in [
        (json!({"query": " "}), "422 field_empty query", "empty"),
        (json!({"query": "x", "limit": 0}), "422 out_of_range limit", "from 1 to 10"),
        (json!({"query": "x", "limit": 11}), "422 out_of_range limit", "it must be from 1 to"),
        (json!({"query": "x", "candidates": 11}), "422 out_of_range candidates", "from 1 to 10"),
        (
            json!({"query": "x", "limit": 4, "candidates": 3}),
            "422 out_of_range candidates",
            "fewer than the 4 results",
        ),
        (json!({"query": "x", "rank": "best"}), "400 unknown_value rank", "`rc`"),
        (json!({"query": "x", "filter": {"year": 5}}), "400 unknown_field filter", "filter"),
        (json!({"query": "x", "deadline_ms": 0}), "504 deadline_exceeded -", "deadline"),
    ] {
        check_error(&body.to_string(), &search(body.clone()).await, error, message);
    }
}

/// Counts the chunks that it is told to read.
struct Counting(AtomicUsize);

impl Reader for Counting {
    fn read(&self, chunks: &[Arc<Chunk>], _: IsCurrent) -> Result<Vec<Vec<f32>>, ReadError> {
        self.0.fetch_add(chunks.len(), Ordering::SeqCst);
        Ok(Vec::new())
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn stop(&self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tool_search_returns_excerpts() {
    let daemon = daemon(Some(scripted()), 1, 1).await;
    let chunk = |at: usize| {
        let text = format!("The tide is at noon in harbour {at}. {}", "z9 q7 k4 x2. ".repeat(82));
        json!({"id": format!("c{at}"), "text": text})
    };
    for at in 0..2 {
        register(&daemon, json!([chunk(at)])).await;
    }
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "search", "arguments": {"query": "When is the tide?"}}});
    let headers = ["content-type: application/json", "accept: application/json, text/event-stream"];
    let response = wire::ask_with(daemon.http, ("POST", "/mcp"), &headers, call.to_string()).await;
    let text = response.json()["result"]["content"][0]["text"].as_str().expect("a text").to_owned();
    assert!(text.contains("The tide is at noon in harbour"), "{text}");
    // The chunks have about 1,500 tokens, and excerpts at most 1,000.
    assert!(text.len() < 1_900, "{} bytes", text.len());
    let found = post(daemon.http, "/v1/search", json!({"query": "When is the tide?"}).to_string()).await;
    assert!(found.body.len() > 2_100, "the endpoint returns whole texts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_can_wait_until_its_chunks_are_read() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let body = json!({"chunks": tides(), "wait": true, "deadline_ms": 1500}).to_string();
    let late = post(daemon.http, "/v1/chunks", &body).await;
    assert_eq!(
        (late.status, &late.json()["warming"]["queued"]),
        (200, &json!(3)),
        "the chunks are registered and not yet read"
    );
    let counting = Arc::new(Counting(AtomicUsize::new(0)));
    let tenant = daemon.tenants.default_tenant();
    let registry = tenant.registry().expect("open");
    let _warmer = Warmer::start(registry, Arc::<Counting>::clone(&counting)).expect("a thread");
    let body = json!({"chunks": ["one more"], "wait": true}).to_string();
    let answer = post(daemon.http, "/v1/chunks", body).await.json();
    assert_eq!(answer["warming"], json!({"registered": 1, "warm": 1, "queued": 0, "failed": 0}));
    eventually("all chunks are read", async || get(daemon.http, "/v1/registry").await.json()["queued"] == 0)
        .await;
    assert_eq!(counting.0.load(Ordering::SeqCst), 4);
    let metrics = get(daemon.admin, "/metrics").await.body;
    for line in [
        "registry_chunks{state=\"warm\"}",
        "registry_changes_total{outcome=\"created\"}",
        "registry_commit_seconds_bucket",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_is_deleted_during_a_request_stays_for_that_request() {
    let gate = Arc::new(crate::Gate::default());
    let waits = double({
        let gate = Arc::clone(&gate);
        move |go_on| gate.pass(go_on)
    });
    let daemon = daemon(Some(waits), 1, 0).await;
    register(&daemon, tides()).await;
    let response = tokio::spawn({
        let address = daemon.http;
        let body = json!({"query": "tide", "chunk_ids": ["a"]}).to_string();
        async move { post(address, "/v1/compress", body).await }
    });
    eventually("the model reads for the request", async || gate.arrived.load(Ordering::SeqCst) == 1).await;
    assert_eq!(delete(&daemon, "/v1/chunks/a").await.status, 200);
    gate.open.store(true, Ordering::SeqCst);
    let answer = response.await.expect("no panic");
    assert_eq!(answer.json()["context"], "[1] Tides\nThe tide is at noon.", "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_works_while_the_model_loads_and_refuses_changes_while_draining() {
    let daemon = daemon(None, 1, 0).await;
    register(&daemon, tides()).await;
    let search = json!({"query": "tide"}).to_string();
    check_error(
        "without a model",
        &post(daemon.http, "/v1/search", &search).await,
        "503 not_ready -",
        "model",
    );
    let words = json!({"query": "tide", "rank": "bm25"}).to_string();
    assert_eq!(post(daemon.http, "/v1/search", words).await.status, 200, "a search by words needs no model");
    daemon.service.admission.drain();
    let refused = post(daemon.http, "/v1/chunks", json!({"chunks": [SECRET]}).to_string()).await;
    check_error("draining", &refused, "503 draining -", "shutting down");
    check_error("draining", &delete(&daemon, "/v1/chunks/a").await, "503 draining -", "shutting down");
    assert!(!get(daemon.admin, "/metrics").await.body.contains(SECRET));
}
