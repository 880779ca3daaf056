//! Endpoints that are compatible with other rerankers: their requests, responses and errors, and options that
//! the daemon ignores.

use serde_json::{Value, json};

use crate::support::wire::{self, ask_with, get, post};
use crate::{Daemon, check_error, daemon, double, scripted};

const TEXTS: [&str; 3] = ["Water is wet.", "The tide is at noon. The moon is far.", "The moon is far."];

fn request(fields: Value) -> String {
    let mut request = json!({"query": "When is the tide?", "documents": TEXTS});
    for (name, value) in fields.as_object().expect("fields") {
        request[name] = value.clone();
    }
    request.to_string()
}

async fn ask(daemon: &Daemon, path: &str, body: String) -> Value {
    let response = post(daemon.http, path, body).await;
    assert_eq!(response.status, 200, "{path}: {}", response.body);
    response.json()
}

fn order(results: &Value) -> Vec<u64> {
    results
        .as_array()
        .expect("results")
        .iter()
        .map(|result| result["index"].as_u64().expect("a number"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoints_of_cohere_and_jina_give_the_same_results() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    for path in ["/v1/rerank", "/v2/rerank"] {
        let ignored = json!({"model": "rerank-v3.5", "max_tokens_per_doc": 10, "truncate_prompt_tokens": 5, "priority": 3});
        let answer = ask(&daemon, path, request(ignored)).await;
        let results = &answer["results"];
        assert_eq!((results.as_array().map(Vec::len), order(results)[0]), (Some(3), 1), "{answer}");
        let scores: Vec<f64> =
            (0..3).map(|at| results[at]["relevance_score"].as_f64().expect("a score")).collect();
        assert!(scores.windows(2).all(|pair| pair[0] >= pair[1]), "{scores:?}");
        assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)), "{scores:?}");
        assert!(answer["usage"]["total_tokens"].as_u64() > Some(10), "{answer}");
        assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("rerank_")));
        let document = if path == "/v2/rerank" { Value::Null } else { json!({"text": TEXTS[1]}) };
        assert_eq!(results[0]["document"], document, "{path}");
    }
    let top = |n: usize| ask(&daemon, "/v1/rerank", request(json!({"top_n": n, "return_documents": false})));
    assert_eq!(order(&top(1).await["results"]), [1]);
    assert_eq!(order(&top(0).await["results"]).len(), 3, "a top_n of 0 means all");
    assert_eq!(top(1).await["results"][0]["document"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_below_the_threshold_are_left_out() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    for path in ["/v1/rerank", "/v2/rerank"] {
        let all = ask(&daemon, path, request(json!({"threshold": 0}))).await["results"].clone();
        assert_eq!(all.as_array().map(Vec::len), Some(3), "{all}");
        let second = all[1]["relevance_score"].as_f64().expect("a score");
        let two = ask(&daemon, path, request(json!({"threshold": second}))).await["results"].clone();
        assert_eq!(order(&two), order(&all)[..2], "{two}");
        let none = ask(&daemon, path, request(json!({"threshold": 1}))).await["results"].clone();
        assert_eq!(none, json!([]), "no document is that relevant");
        let refused = post(daemon.http, path, request(json!({"threshold": 1.5}))).await;
        assert_eq!(refused.status, 422, "{}", refused.body);
        assert!(refused.body.contains("threshold is 1.5"), "{}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_says_whether_any_document_is_related() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let texts = |query: &str| json!({"query": query, "texts": TEXTS}).to_string();
    for (query, related) in [("When is the tide?", "true"), ("zzz?", "false")] {
        let documents = request(json!({"query": query}));
        let bodies =
            [("/v1/rerank", documents.clone()), ("/v2/rerank", documents), ("/rerank", texts(query))];
        for (path, body) in bodies {
            let response = post(daemon.http, path, body).await;
            assert_eq!(response.status, 200, "{path}: {}", response.body);
            assert_eq!(response.header("x-thresher-related"), Some(related), "{path}: {query}");
        }
    }
    let refused = post(daemon.http, "/v1/rerank", request(json!({"query": " "}))).await;
    assert_eq!(refused.header("x-thresher-related"), None, "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_may_be_texts_or_objects() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let documents = json!([{"text": "Water is wet.", "page": 3}, {"title": "Tides", "text": "The tide is at noon."}, "The moon is far."]);
    let answer = ask(&daemon, "/v1/rerank", request(json!({"documents": documents}))).await;
    assert_eq!(answer["results"][0]["document"], documents[1], "a document is returned as it was sent");
    let by_title = request(
        json!({"documents": [{"title": "The tide", "text": "x"}, {"title": "Water", "text": "The tide"}], "rank_fields": ["title"]}),
    );
    assert_eq!(order(&ask(&daemon, "/v1/rerank", by_title).await["results"])[0], 0);
    let texts = ask(&daemon, "/v1/rerank", request(json!({"rank_fields": []}))).await;
    assert_eq!(order(&texts["results"])[0], 1, "for texts, rank_fields has no effect");
    // Fields that are not ranked may appear twice.
    let twice = r#"{"query": "When is the tide?", "documents": [{"text": "x", "page": 1, "page": 2}]}"#;
    assert_eq!(order(&ask(&daemon, "/v1/rerank", twice.to_owned()).await["results"]), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn relevant_spans_are_sentences_and_count_code_points() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let spans = |more: Value| {
        let mut spans = json!({"mode": "enabled", "threshold": 0.0});
        more.as_object().expect("fields").iter().for_each(|(name, value)| spans[name] = value.clone());
        request(
            json!({"documents": ["é. The moon is far. The tide is at noon.", "Water is wet."], "relevant_spans": spans}),
        )
    };
    let answer = ask(&daemon, "/v2/rerank", spans(json!({}))).await;
    let best = &answer["results"][0]["relevant_spans"][0];
    let text: String = "é. The moon is far. The tide is at noon."
        .chars()
        .skip(best["start"].as_u64().expect("a number") as usize)
        .take((best["end"].as_u64().expect("a number") - best["start"].as_u64().expect("a number")) as usize)
        .collect();
    assert_eq!(text, "The tide is at noon.", "{answer}");
    let one = ask(&daemon, "/v2/rerank", spans(json!({"max_spans": 1}))).await;
    assert_eq!(one["results"][0]["relevant_spans"].as_array().map(Vec::len), Some(1));
    let none = ask(&daemon, "/v2/rerank", spans(json!({"threshold": 1.0}))).await;
    assert_eq!(none["results"][0]["relevant_spans"], json!([]));
    let off = ask(&daemon, "/v2/rerank", spans(json!({"mode": "disabled"}))).await;
    assert_eq!(off["results"][0]["relevant_spans"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_of_text_embeddings_inference_is_compatible() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let tei = |more: Value| {
        let mut request = json!({"query": "When is the tide?", "texts": TEXTS, "truncate": true, "truncation_direction": "Right"});
        more.as_object().expect("fields").iter().for_each(|(name, value)| request[name] = value.clone());
        request.to_string()
    };
    let bare = ask(&daemon, "/rerank", tei(json!({}))).await;
    assert_eq!((order(&bare)[0], &bare[0]["text"]), (1, &Value::Null), "a bare list, best first: {bare}");
    let with_text = ask(&daemon, "/rerank", tei(json!({"return_text": true, "raw_scores": true}))).await;
    assert_eq!(with_text[0]["text"], json!(TEXTS[1]));
    let (score, raw) =
        (bare[0]["score"].as_f64().expect("a score"), with_text[0]["score"].as_f64().expect("RC"));
    assert!(score > raw && score <= 1.0, "a relevance, and RC: {score}, {raw}");
}

/// Its clients read `error`, a text, and `error_type`.
#[tokio::test(flavor = "multi_thread")]
async fn every_error_of_the_endpoint_of_text_embeddings_inference_has_a_type() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    for (body, status, message) in [
        (r#"{"query": " ", "texts": ["x"]}"#, 422, "query is empty"),
        (r#" {"texts": ["x"]}"#, 400, "missing field `query`"),
        (r#"{"query": "x", "documents": ["x"]}"#, 400, "missing field `texts`"),
        (r#"{"query": "x", "texts": []}"#, 422, "texts is empty"),
        (r#"{"query": "x", "texts": [5]}"#, 400, "texts[0] is the integer `5`"),
        ("x", 400, "expected value"),
    ] {
        let refused = post(daemon.http, "/rerank", body.to_owned()).await;
        let error = refused.json();
        assert_eq!((refused.status, &error["error_type"]), (status, &json!("Validation")), "{body}: {error}");
        assert!(error["error"].as_str().is_some_and(|error| error.contains(message)), "{body}: {error}");
    }
    let untyped = ask_with(daemon.http, ("POST", "/rerank"), &["content-type: text/plain"], "{}").await;
    assert_eq!(
        (untyped.status, &untyped.json()["error_type"]),
        (415, &json!("Validation")),
        "{}",
        untyped.body
    );
    let refused = get(daemon.http, "/rerank").await;
    assert_eq!((refused.status, &refused.json()["error_type"]), (405, &json!("Validation")));
    let broken = crate::daemon(Some(double(|_| panic!("a bug"))), 1, 1).await;
    let failed = post(broken.http, "/rerank", json!({"query": "x", "texts": TEXTS}).to_string()).await;
    assert_eq!((failed.status, &failed.json()["error_type"]), (500, &json!("Backend")), "{}", failed.body);
    let starting = crate::daemon(None, 1, 1).await;
    let refused = post(starting.http, "/rerank", json!({"query": "x", "texts": TEXTS}).to_string()).await;
    assert_eq!(
        (refused.status, &refused.json()["error_type"]),
        (503, &json!("Unhealthy")),
        "{}",
        refused.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_rerank_requests_are_refused() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    for (case, path, body, error, message) in [
        ("not JSON", "/v1/rerank", "x".to_owned(), "400 invalid_json -", "expected value"),
        (
            "no documents",
            "/v1/rerank",
            json!({"query": "x"}).to_string(),
            "400 missing_field documents",
            "documents",
        ),
        (
            "an empty list of documents",
            "/v2/rerank",
            request(json!({"documents": []})),
            "422 field_empty documents",
            "at least one",
        ),
        (
            "a number for a document",
            "/v1/rerank",
            request(json!({"documents": ["x", 3]})),
            "400 wrong_type documents[1]",
            "`text`",
        ),
        (
            "a document without text",
            "/v1/rerank",
            request(json!({"documents": [{"body": "x"}]})),
            "400 missing_field documents[0]",
            "`text`",
        ),
        (
            "a document without the rank field",
            "/v1/rerank",
            request(json!({"documents": [{"text": "x"}], "rank_fields": ["y"]})),
            "400 missing_field documents[0]",
            "y",
        ),
        (
            "a number for the text",
            "/v1/rerank",
            request(json!({"documents": ["x", {"text": 5}]})),
            "400 wrong_type documents[1].text",
            "documents[1].text has to be a string",
        ),
        (
            "the text twice",
            "/v1/rerank",
            r#"{"query": "x", "documents": [{"text": "a", "page": 1, "text": "b"}]}"#.to_owned(),
            "400 duplicate_field documents[0].text",
            "has the field \"text\" twice",
        ),
        (
            "the text twice, once with an escape",
            "/v2/rerank",
            r#"{"query": "x", "documents": ["y", {"text": "a", "\u0074ext": "a"}]}"#.to_owned(),
            "400 duplicate_field documents[1].text",
            "twice",
        ),
        (
            "a rank field twice in a document",
            "/v1/rerank",
            r#"{"query": "x", "documents": [{"y": 1, "z": 2, "y": 3}], "rank_fields": ["z", "y"]}"#
                .to_owned(),
            "400 duplicate_field documents[0].y",
            "has the field \"y\" twice",
        ),
        (
            "an empty list of rank fields",
            "/v1/rerank",
            request(json!({"documents": ["x", {"text": "x"}], "rank_fields": []})),
            "422 field_empty rank_fields",
            "leave rank_fields out",
        ),
        ("an empty query", "/v1/rerank", request(json!({"query": ""})), "422 field_empty query", "empty"),
        (
            "a document that is too long",
            "/v2/rerank",
            request(json!({"documents": ["x", "y".repeat(1501)]})),
            "422 too_long documents[1]",
            "1500",
        ),
    ] {
        let response: wire::Response = post(daemon.http, path, body).await;
        check_error(case, &response, error, message);
        assert_eq!(
            response.json()["message"],
            response.json()["error"]["message"],
            "{case}: Cohere's clients read the message at the top level"
        );
    }
}
