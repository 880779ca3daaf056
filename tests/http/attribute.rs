//! Attribution over HTTP: responses and refusals, and answers to an earlier compression.

use serde_json::{Value, json};

use crate::support::wire::post;
use crate::{Daemon, check_error, daemon, scripted};

const ANSWER: &str = "The tide is at noon. The moon is far.";

fn good() -> Value {
    json!({"answer": ANSWER, "chunks": [{"id": "a", "text": "The tide is at noon."}, {"id": "b", "text": "The moon is far. Water is wet."}]})
}

fn with(fields: Value) -> String {
    let mut request = good();
    for (name, value) in fields.as_object().expect("fields") {
        request[name] = value.clone();
    }
    request.to_string()
}

async fn attributed(daemon: &Daemon, body: impl AsRef<[u8]>) -> Value {
    let response = post(daemon.http, "/v1/attribute", body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// "text <- best chunk" for every part.
fn found(parts: &Value) -> Vec<String> {
    let one = |part: &Value| {
        format!(
            "{} <- {}",
            part["text"].as_str().expect("a text"),
            part["sources"][0]["chunk"].as_str().unwrap_or("-")
        )
    };
    parts.as_array().expect("parts").iter().map(one).collect()
}

const BOTH: [&str; 2] = ["The tide is at noon. <- a", "The moon is far. <- b"];

#[tokio::test(flavor = "multi_thread")]
async fn each_part_is_attributed_to_its_chunk() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let answer = attributed(&daemon, good().to_string()).await;
    assert_eq!(found(&answer["parts"]), BOTH);
    let first = &answer["parts"][0];
    assert_eq!(
        (&first["start"], &first["end"], &first["verdict"]),
        (&json!(0), &json!(20), &json!("supported"))
    );
    let source = &first["sources"][0];
    assert_eq!(
        (&source["cited"], &source["sentence"]["text"]),
        (&json!(true), &json!("The tide is at noon."))
    );
    let spans = with(json!({"spans": [{"start": 4, "end": 8}, {"start": 25, "end": 29}]}));
    assert_eq!(found(&attributed(&daemon, spans).await["parts"]), ["tide <- a", "moon <- b"]);
    let words = attributed(&daemon, with(json!({"granularity": "word"}))).await;
    assert_eq!(words["parts"].as_array().expect("parts").len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_attribution_requests_are_refused() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let span = |start: usize, end: usize| json!({"start": start, "end": end});
    let table: Vec<(&str, String, &str, &str)> = vec![
        ("no answer", json!({"chunks": ["x"]}).to_string(), "400 missing_field answer", "`answer`"),
        ("an empty answer", with(json!({"answer": " \n"})), "422 field_empty answer", "empty"),
        (
            "too long an answer",
            with(json!({"answer": "x".repeat(1001)})),
            "422 too_long answer",
            "limit is 1000",
        ),
        ("no chunks", json!({"answer": "x"}).to_string(), "400 missing_field chunks", "chunk_ids"),
        ("an empty list", with(json!({"chunks": []})), "422 field_empty chunks", "at least one"),
        (
            "an id twice",
            with(json!({"chunks": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]})),
            "422 duplicate chunks[1].id",
            "chunks[0]",
        ),
        (
            "both kinds of chunks",
            with(json!({"compress_id": "cmp_1"})),
            "422 fields_conflict compress_id",
            "not both",
        ),
        (
            "chunk ids and a compress id",
            json!({"answer": "x", "chunk_ids": ["a"], "compress_id": "cmp_1"}).to_string(),
            "422 fields_conflict compress_id",
            "not both",
        ),
        (
            "an unknown compression",
            json!({"answer": "x", "compress_id": "cmp_1"}).to_string(),
            "404 id_unknown compress_id",
            "it expired after",
        ),
        (
            "unknown ids",
            json!({"answer": "x", "chunk_ids": ["nobody"]}).to_string(),
            "422 chunk_unknown chunk_ids[0]",
            "nobody",
        ),
        ("spans without spans", with(json!({"granularity": "span"})), "400 missing_field spans", "`spans`"),
        (
            "spans of sentences",
            with(json!({"granularity": "sentence", "spans": [span(0, 3)]})),
            "422 fields_conflict spans",
            "granularity",
        ),
        ("no span", with(json!({"spans": []})), "422 field_empty spans", "at least one"),
        ("an empty span", with(json!({"spans": [span(3, 3)]})), "422 field_empty spans[0]", "greater"),
        ("past the end", with(json!({"spans": [span(0, 99)]})), "422 out_of_range spans[0]", "past the end"),
        (
            "backwards",
            with(json!({"spans": [span(0, 1), span(5, 4)]})),
            "422 out_of_range spans[1]",
            "reversed",
        ),
        (
            "overlapping",
            with(json!({"spans": [span(0, 5), span(4, 8)]})),
            "422 out_of_range spans[1]",
            "spans[0]",
        ),
        (
            "out of order",
            with(json!({"spans": [span(9, 12), span(0, 3)]})),
            "422 out_of_range spans[1]",
            "ascend",
        ),
        (
            "too many",
            with(json!({"spans": (0..5).map(|i| span(i, i + 1)).collect::<Vec<_>>()})),
            "422 too_many spans",
            "limit is 4",
        ),
        (
            "inside a surrogate pair",
            with(json!({"answer": "a\u{1F600}b", "offsets": "utf16", "spans": [span(0, 2)]})),
            "422 out_of_range spans[0]",
            "inside a character",
        ),
        (
            "inside a character",
            with(json!({"answer": "é", "offsets": "byte", "spans": [span(0, 1)]})),
            "422 out_of_range spans[0]",
            "inside a character",
        ),
        (
            "json with spans",
            with(json!({"format": "json", "spans": [span(0, 3)]})),
            "422 fields_conflict format",
            "leave granularity",
        ),
        (
            "too many values",
            with(json!({"answer": "[1,2,3,4,5]", "format": "json"})),
            "422 too_many answer",
            "more than 4 values",
        ),
        ("too many sources", with(json!({"sources_max": 101})), "422 out_of_range sources_max", "100"),
        ("an unknown format", with(json!({"format": "bibtex"})), "400 unknown_value format", "markers"),
        (
            "an unknown granularity",
            with(json!({"granularity": "page"})),
            "400 unknown_value granularity",
            "sentence",
        ),
        ("an unknown field", with(json!({"answr": "x"})), "400 unknown_field answr", "answr"),
    ];
    for (case, body, error, message) in table {
        check_error(case, &post(daemon.http, "/v1/attribute", body).await, error, message);
        assert_eq!(
            found(&attributed(&daemon, good().to_string()).await["parts"]),
            BOTH,
            "{case}: a good request afterwards"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_compressed_context_cites_the_original_chunks() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let chunks = json!([
        {"id": "none", "text": "Nothing of this is asked about here."},
        {"id": "long", "text": "Water is wet. The tide is at noon. Rain is wet, too."},
        {"id": "tie", "text": "The tide is at noon."},
    ]);
    let body = json!({"query": "tide", "chunks": chunks, "order": "relevance", "budget": {"tokens": 40}, "tokenizer": "model"});
    let response = post(daemon.http, "/v1/compress", body.to_string()).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let compressed = response.json();
    let id = compressed["id"].as_str().expect("an id");
    let body =
        json!({"answer": "The tide is at noon. Rain is wet, too.", "compress_id": id, "format": "markers"});
    let answer = attributed(&daemon, body.to_string()).await;
    let marker_of = |chunk: &Value| {
        let citations = compressed["citations"].as_array().expect("citations").iter();
        citations.clone().find(|c| c["chunk"] == *chunk).map(|c| c["marker"].clone())
    };
    let first = &answer["parts"][0];
    for source in first["sources"].as_array().expect("sources").iter().filter(|s| s["cited"] == true) {
        // Every source was in the context. Its range refers to the caller's chunk.
        assert!(marker_of(&source["chunk"]).is_some(), "{source} was not kept: {compressed}");
        let text =
            chunks[source["index"].as_u64().expect("an index") as usize]["text"].as_str().expect("a text");
        let range = |name: &str| source["sentence"][name].as_u64().expect("an offset") as usize;
        assert_eq!(&text[range("start")..range("end")], source["sentence"]["text"]);
    }
    // Text that was not in the context is not a source, although the caller's chunk contains it.
    let kept = compressed["context"].as_str().expect("a context").contains("Rain is wet");
    assert!(!kept, "the budget is too small for this sentence: {compressed}");
    for source in answer["parts"][1]["sources"].as_array().expect("sources") {
        assert_eq!(source["sentence"]["text"], "The tide is at noon.", "{answer}");
    }
    // Markers are the markers of the context.
    for reference in answer["formatted"]["references"].as_array().expect("references") {
        assert_eq!(
            marker_of(&reference["chunk"]),
            Some(reference["marker"].clone()),
            "{answer} {compressed}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_receipts_of_a_daemon_are_signed_with_one_key() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let sign = async || attributed(&daemon, with(json!({"receipt": true}))).await["receipt"].clone();
    let (one, other) = (sign().await, sign().await);
    assert_eq!(one["payloadType"], "application/vnd.thresher.attribution+json");
    assert_eq!(one["signatures"][0]["keyid"], other["signatures"][0]["keyid"]);
    let receipt: thresher::receipt::Receipt = serde_json::from_value(one).expect("a receipt");
    receipt.statement(None).expect("a valid signature");
    assert_eq!(
        attributed(&daemon, good().to_string()).await.get("receipt"),
        None,
        "a response has a receipt only on request"
    );
}
