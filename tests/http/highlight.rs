//! `POST /v1/highlight`: the format that OpenSearch sends and reads, and which sentences are highlighted.

use serde_json::{Value, json};

use crate::support::wire::post;
use crate::{Daemon, check_error, daemon, scripted};

const QUESTION: &str = "When is the tide?";

async fn highlights(daemon: &Daemon, body: &Value) -> Value {
    let response = post(daemon.http, "/v1/highlight", body.to_string()).await;
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["highlights"].clone()
}

/// The texts of ranges, which count in UTF-16 code units.
fn texts(text: &str, ranges: &Value) -> Vec<String> {
    let units: Vec<u16> = text.encode_utf16().collect();
    let offset = |range: &Value, name: &str| range[name].as_u64().expect("an offset") as usize;
    let text = |range: &Value| {
        String::from_utf16(&units[offset(range, "start")..offset(range, "end")]).expect("whole characters")
    };
    ranges.as_array().expect("ranges").iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_document_has_its_own_sentences() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let input = |context: &str| json!({"question": QUESTION, "context": context});
    let near = "🌊 Gulls are loud. 🌊 The tide is at noon. Nets are dry.";
    let unrelated = json!({"question": "zzz?", "context": near});
    let found = highlights(&daemon, &json!({"inputs": [input(near), unrelated, input("")]})).await;
    assert_eq!(texts(near, &found[0]), ["🌊 The tide is at noon."], "{found}");
    assert_eq!((&found[1], &found[2]), (&json!([]), &json!([])), "nothing answers the question");
    let others = highlights(&daemon, &json!({"inputs": [input("The tide."), input(near)]})).await;
    assert_eq!(others[1], found[0], "other documents of the request have no influence");
    let alone = json!({"question": QUESTION, "context": near, "inputs": null, "model": "any"});
    assert_eq!(highlights(&daemon, &alone).await, found[0], "the format before inputs");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_document_or_a_question_are_refused() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let check = async |name: &str, body: Value, error: &str, message: &str| {
        check_error(name, &post(daemon.http, "/v1/highlight", body.to_string()).await, error, message);
    };
    check("nothing", json!({}), "400 missing_field inputs", "`context`").await;
    check("no document", json!({"inputs": [], "question": QUESTION}), "400 missing_field inputs", "").await;
    let blank =
        json!({"inputs": [{"question": QUESTION, "context": "a"}, {"question": " ", "context": "a"}]});
    check("a blank question", blank, "422 field_empty inputs[1].question", "send a question").await;
    let one_blank = json!({"question": "", "context": "The tide is at noon."});
    check("a blank question of one document", one_blank, "422 field_empty question", "").await;
    let long = "a ".repeat(800);
    let inputs =
        json!({"inputs": [{"question": QUESTION, "context": "a"}, {"question": QUESTION, "context": long}]});
    check("a long document", inputs, "422 too_long inputs[1].context", "").await;
    let many = json!({"inputs": vec![json!({"question": QUESTION, "context": "a"}); 9]});
    check("many documents", many, "422 too_many inputs", "").await;
    check(
        "no string",
        json!({"inputs": [{"question": 1, "context": "a"}]}),
        "400 wrong_type inputs[0].question",
        "",
    )
    .await;
}
