//! Places over HTTP: the pages and lines that chunks bring, in citations of contexts and answers and in the registry.

use serde_json::{Value, json};

use crate::support::wire::{get, post};
use crate::{Daemon, check, check_error, daemon, scripted, with};

/// Page 8 begins in front of the second heading, behind 30 characters and 31 bytes.
const HANDBOOK: &str = "# Harbour\n\nÖls are kept here.\n## Tides\n\nThe harbour tide is high at noon.\n";

fn handbook() -> Value {
    let pages = json!([{"start": 0, "page": 7}, {"start": 30, "page": 8}]);
    json!({"id": "a", "kind": "markdown", "text": HANDBOOK, "pages": pages, "line": 120})
}

async fn answer(daemon: &Daemon, path: &str, body: Value) -> Value {
    let response = post(daemon.http, path, body.to_string()).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn place(citation: &Value) -> Value {
    json!([citation["page"], citation["line"], citation["heading"]])
}

#[tokio::test(flavor = "multi_thread")]
async fn citations_name_the_page_the_line_and_the_headings() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let chunks = json!([handbook(), {"id": "b", "text": "Rain fell."}]);
    let body = json!({"query": "When is the tide?", "chunks": chunks, "keep": ["a", "b"]});
    let compressed = answer(&daemon, "/v1/compress", body).await;
    let citations = compressed["citations"].as_array().expect("citations");
    assert_eq!(place(&citations[0]), json!([7, 120, ["Harbour"]]), "{compressed}");
    let of_rain = citations.iter().find(|citation| citation["chunk"] == "b").expect("a citation");
    assert_eq!(place(of_rain), json!([null, null, null]), "{compressed}");
    assert!(of_rain.get("page").is_none() && of_rain.get("heading").is_none(), "{compressed}");

    let body = json!({"answer": "The harbour tide is high at noon.", "chunks": chunks});
    let attributed = answer(&daemon, "/v1/attribute", body).await;
    let source = &attributed["parts"][0]["sources"][0];
    assert_eq!(place(source), json!([8, 125, ["Harbour", "Tides"]]), "{attributed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_chunks_keep_their_places() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let wrong = json!({"id": "w", "text": "x", "pages": [{"start": 0, "page": 0}]});
    let registered = answer(&daemon, "/v1/chunks", json!({"chunks": [handbook(), wrong]})).await;
    assert_eq!(registered["chunks"][1]["error"]["param"], "chunks[1].pages[0].page", "{registered}");
    let found = get(daemon.http, "/v1/chunks/a").await.json();
    assert_eq!((&found["pages"], &found["line"]), (&handbook()["pages"], &json!(120)), "{found}");
    let body = json!({"query": "When is the tide?", "chunk_ids": ["a"], "keep": ["a"]});
    let compressed = answer(&daemon, "/v1/compress", body).await;
    assert_eq!(place(&compressed["citations"][0]), json!([7, 120, ["Harbour"]]), "{compressed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_lines_that_do_not_fit_the_text_are_refused() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let page = |start: usize, page: usize| json!({"start": start, "page": page});
    let placed = |offsets: &str, pages: Vec<Value>, line: usize| {
        let chunk = json!({"text": "The tide. ä", "pages": pages, "line": line});
        with(json!({"offsets": offsets, "chunks": [chunk]})).to_string()
    };
    let table = [
        ("page 0", placed("codepoint", vec![page(0, 0)], 1), "pages[0].page", "numbered from 1"),
        ("line 0", placed("codepoint", vec![], 0), "line", "numbered from 1"),
        (
            "order of the text",
            placed("codepoint", vec![page(4, 1), page(0, 2)], 1),
            "pages[1].start",
            "order",
        ),
        (
            "order of the pages",
            placed("codepoint", vec![page(0, 2), page(4, 1)], 1),
            "pages[1].page",
            "order",
        ),
        ("past the end", placed("codepoint", vec![page(12, 1)], 1), "pages[0].start", "past the end"),
        ("inside a character", placed("byte", vec![page(11, 1)], 1), "pages[0].start", "inside a character"),
    ];
    for (case, body, param, message) in table {
        check(&daemon, case, body, &format!("422 out_of_range chunks[0].{param}"), message).await;
    }
    let body = with(json!({"chunks": [{"text": "x", "pages": [{"start": 0, "page": 1, "end": 2}]}]}));
    let response = post(daemon.http, "/v1/compress", body.to_string()).await;
    check_error("an unknown field", &response, "400 unknown_field chunks[0].pages[0].end", "`end`");
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_one_source_of_a_part() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let said = "The harbour tide is high at noon.";
    let count = async |name: &str, chunks: Value, expect: usize| {
        let attributed = answer(&daemon, "/v1/attribute", json!({"answer": said, "chunks": chunks})).await;
        assert_eq!(attributed["parts"][0]["sources_independent"], expect, "{name}: {attributed}");
    };
    let other = "Gulls are loud. High at noon is the harbour tide.";
    count("none", json!(["Gulls are loud."]), 0).await;
    count("one", json!([said, "Gulls are loud."]), 1).await;
    count("two", json!([said, other]), 2).await;
    count("copies", json!([said, other, other, said]), 2).await;
    let titled = |text: &str| json!({"title": "Tides", "text": text});
    count("one document", json!([titled(said), titled(other), "Rain fell."]), 1).await;
    count("windows", json!([format!("Gulls are loud. {said}"), format!("{said} Rain fell."), "Ropes."]), 1)
        .await;
    count("a denial", json!([said, "The harbour tide is never high at noon.", "Ropes."]), 1).await;
}
