//! Sources that disagree, over HTTP: both sentences are in the context, and responses name their places.

use serde_json::{Value, json};

use crate::support::wire::post;
use crate::{Daemon, daemon, scripted};

const OLD: &str = "Gulls are loud. The tide table of the harbour lists 12 tides for each week.";
const NEW: &str = "The tide table of the harbour lists 14 tides for each week. Nets are dry.";

fn chunks(old: &str, new: &str) -> Value {
    json!([
        {"id": "old", "title": "Harbour guide", "text": old, "line": 7, "metadata": {"date": "2021-03-01"}},
        {"id": "new", "title": "Harbour guide", "text": new, "metadata": {"date": "2024-03-01"}},
    ])
}

async fn answer(daemon: &Daemon, path: &str, body: Value) -> Value {
    let response = post(daemon.http, path, body.to_string()).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn check_conflict(found: &Value) {
    let a = json!({"chunk": "old", "index": 0, "start": 16, "end": 75, "text": &OLD[16..], "line": 7});
    let b = json!({"chunk": "new", "index": 1, "start": 0, "end": 59, "text": &NEW[..59]});
    assert_eq!(found, &json!([{"a": a, "b": b, "kind": "number", "newer": "b"}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_holds_both_sentences_and_the_response_names_them() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let body = |chunks: Value| json!({"query": "What is in the tide table?", "chunks": chunks, "budget": {"tokens": 60}});
    let compressed = answer(&daemon, "/v1/compress", body(chunks(OLD, NEW))).await;
    let context = compressed["context"].as_str().expect("a context");
    assert!(context.contains("12 tides") && context.contains("14 tides"), "{context}");
    check_conflict(&compressed["source_conflicts"]);

    let same = NEW.replace("14", "twelve");
    let compressed = answer(&daemon, "/v1/compress", body(chunks(OLD, &same))).await;
    assert!(compressed.get("source_conflicts").is_none(), "{compressed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attribution_names_what_contradicts_a_cited_sentence() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let body = |text: &str| json!({"answer": text, "chunks": chunks(OLD, NEW)});
    let cited = answer(&daemon, "/v1/attribute", body(&OLD[16..])).await;
    check_conflict(&cited["source_conflicts"]);
    let other = answer(&daemon, "/v1/attribute", body("Nets are dry.")).await;
    assert!(other.get("source_conflicts").is_none(), "{other}");
}
