//! Bodies with more content than a request may have. They are refused while they are parsed, with the path of
//! the field and the limit.

use serde_json::{Value, json};

use crate::support::wire::{ask_with, post};
use crate::{check_error, daemon, good, scripted};

fn many(item: &str, count: usize) -> String {
    format!("[{}]", vec![item; count].join(","))
}

/// Each body ends in invalid JSON behind the element that exceeds the limit. That it is refused for the limit
/// shows that the rest was not parsed.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_refused_at_the_first_element_beyond_its_limit() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    for (path, head, field, item, count, error, setting) in [
        ("/v1/compress", r#""query":"q""#, "chunks", "\"a\"", 9, "too_many", "the limit is 8"),
        ("/v1/compress", r#""query":"q""#, "chunk_ids", "\"a\"", 13, "too_many", "the limit is"),
        ("/v1/compress", r#""query":"q""#, "keep", "\"a\"", 13, "too_many", "the limit is"),
        ("/v1/compress", r#""query":"q""#, "include", "\"kv\"", 17, "too_many", "16"),
        ("/v1/attribute", r#""answer":"a""#, "chunks", "\"a\"", 9, "too_many", "the limit is 8"),
        ("/v1/attribute", r#""answer":"a""#, "chunk_ids", "\"a\"", 13, "too_many", "the limit is"),
        (
            "/v1/attribute",
            r#""answer":"a""#,
            "spans",
            r#"{"start":0,"end":1}"#,
            5,
            "too_many",
            "the limit is",
        ),
        ("/v1/chunks", r#""wait":false"#, "chunks", "\"a\"", 16, "too_many", "the limit is"),
        ("/v1/rerank", r#""query":"q""#, "documents", "\"a\"", 9, "too_many", "the limit is 8"),
        ("/v2/rerank", r#""query":"q""#, "documents", "{}", 9, "too_many", "the limit is 8"),
        ("/rerank", r#""query":"q""#, "texts", "\"a\"", 9, "too_many", "the limit is 8"),
        ("/v1/rerank", r#""query":"q""#, "rank_fields", "\"a\"", 65, "too_many", "64"),
    ] {
        let list = many(item, count);
        let body = format!("{{{head},\"{field}\":{} and no more JSON", list.trim_end_matches(']'));
        let response = post(daemon.http, path, body).await;
        let error = format!("422 {error} {field}");
        check_error(&format!("{path} {field}"), &response, &error, setting);
    }
    let ids = format!("{{\"ids\":{}", many("\"a\"", 16));
    let response = post(daemon.http, "/v1/chunks/delete", ids).await;
    check_error("ids", &response, "422 too_many ids", "the limit is");
}

#[tokio::test(flavor = "multi_thread")]
async fn rank_fields_must_be_distinct_and_are_bounded_together() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let half = "y".repeat(800);
    for (case, fields, error, message) in [
        ("a field twice", json!(["a", "b", "a"]), "422 duplicate rank_fields[2]", "rank_fields[0]"),
        ("too long together", json!(["a", "b"]), "422 too_long documents[1]", "1601 bytes"),
        ("too long together", json!(["b", "a"]), "422 too_long documents[1]", "the limit is"),
    ] {
        let documents = json!([{"a": "x"}, {"a": half, "b": half}]);
        let body = json!({"query": "q", "documents": documents, "rank_fields": fields}).to_string();
        check_error(case, &post(daemon.http, "/v1/rerank", body).await, error, message);
    }
    let names: Vec<String> = (0..64).map(|at| format!("{at}{}", "n".repeat(20))).collect();
    let body = json!({"query": "q", "documents": [{"text": "x"}], "rank_fields": names}).to_string();
    let response = post(daemon.http, "/v1/rerank", body).await;
    check_error("no field", &response, "400 missing_field documents[0]", "and 61 more");
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_returned_byte_for_byte() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let document =
        r#"{"text": "The tide \u0069s at noon.", "n": 1.50, "big": 12345678901234567890123, "n": 2}"#;
    let body = format!(r#"{{"query":"tide","documents":[{document},"The \u006doon."]}}"#);
    let response = post(daemon.http, "/v1/rerank", body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    assert!(response.body.contains(&format!(r#""document":{document}"#)), "{}", response.body);
    assert!(response.body.contains(r#""document":{"text":"The \u006doon."}"#), "{}", response.body);
    let fields =
        r#"{"query":"tide","documents":[{"a":{"deep":[1]},"b":"noon"}],"rank_fields":["b","a","c"]}"#;
    let response = post(daemon.http, "/v1/rerank", fields).await;
    assert_eq!(response.status, 200, "{}", response.body);
    let broken = r#"{"query":"tide","documents":["x",{"text":"\ud800"}]}"#;
    let response = post(daemon.http, "/v1/rerank", broken).await;
    check_error("half a surrogate pair", &response, "400 invalid_json documents[1]", "come in pairs");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_quotes_only_the_beginning_of_a_long_value() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let long = "x".repeat(3_500);
    let chunk = |id: &str| json!({"id": id, "text": "The tide is at noon."});
    let shorter = "y".repeat(1_600);
    for (path, body, error) in [
        ("/v1/compress", json!({&long: 1}), "400 unknown_field".to_owned()),
        ("/v1/compress", json!({"chunks": [{&long: 1}]}), "400 unknown_field".to_owned()),
        ("/v1/compress", json!({"order": long}), "400 unknown_value order".to_owned()),
        ("/v1/compress", json!({"deadline_ms": long}), "400 wrong_type deadline_ms".to_owned()),
        (
            "/v1/compress",
            json!({"query": "q", "chunks": ["a"], "keep": [long]}),
            "422 chunk_unknown keep[0]".to_owned(),
        ),
        (
            "/v1/compress",
            json!({"query": "q", "chunks": [chunk(&shorter), chunk(&shorter)]}),
            "422 duplicate chunks[1].id".to_owned(),
        ),
        (
            "/v1/compress",
            json!({"query": "q", "chunk_ids": [long]}),
            "422 chunk_unknown chunk_ids[0]".to_owned(),
        ),
        ("/v1/rerank", json!({"query": "q", "documents": [{}], "rank_fields": [long]}), {
            "400 missing_field documents[0]".to_owned()
        }),
    ] {
        let response = post(daemon.http, path, body.to_string()).await;
        let found = response.json();
        let text = |field: &str| found["error"][field].as_str().unwrap_or("-").to_owned();
        let head = format!("{} {} {}", response.status, text("code"), text("param"));
        assert!(head.starts_with(&error), "{error}: {head}");
        assert!(response.body.len() < 1_500, "{error}: {} bytes: {}", response.body.len(), response.body);
    }
}

fn call(tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_calls_are_bounded() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let ask = async |body: String| {
        let headers = ["content-type: application/json", "accept: application/json, text/event-stream"];
        ask_with(daemon.http, ("POST", "/mcp"), &headers, body).await
    };
    let answer = ask(call("compress", good())).await;
    assert!(answer.body.contains("The tide is at noon."), "{}", answer.body);
    let answer = ask(call("compress", json!({"query": "q", "chunks": vec!["a"; 9]}))).await;
    let error = &answer.json()["result"]["structuredContent"]["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("too_many"), &json!("chunks")), "{}", answer.body);
    let answer = ask(call("compress", json!({"query": "q", "chunks": vec![0; 100]}))).await;
    check_error("too many values", &answer, "422 too_many -", "the limit is 100");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_mcp_messages_are_refused_as_json_rpc_errors() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    let good = ["content-type: application/json", "accept: application/json, text/event-stream"];
    let another_kind = ["content-type: application/vnd.api+json", good[1]];
    let another_version = [good[0], good[1], "mcp-protocol-version: 1"];
    let json_alone = [good[0], "accept: application/json"];
    /// Case, headers, body, status, code, message.
    type Row<'a> = (&'a str, &'a [&'a str], &'a str, u16, i64, &'a str);
    let table: [Row; 11] = [
        ("an empty body", &good, "", 400, -32700, "not JSON"),
        ("not JSON", &good, "tools/list", 400, -32700, "not JSON"),
        ("half a message", &good, &list[..20], 400, -32700, "not JSON"),
        ("a number", &good, "3", 400, -32600, "an object with"),
        (
            "a list",
            &good,
            r#"[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]"#,
            400,
            -32600,
            "an object with",
        ),
        (
            "another version of JSON-RPC",
            &good,
            r#"{"jsonrpc": "1.0", "id": 1}"#,
            400,
            -32600,
            "an object with",
        ),
        ("neither a request nor a response", &good, r#"{"jsonrpc": "2.0"}"#, 400, -32600, "JSON-RPC message"),
        ("no Accept", &good[..1], &list, 406, -32000, "both application/json and text/event-stream"),
        ("half of Accept", &json_alone, &list, 406, -32000, "both application/json and text/event-stream"),
        ("another media type of JSON", &another_kind, &list, 415, -32000, "must be application/json"),
        ("an unknown protocol version", &another_version, &list, 400, -32000, "MCP-Protocol-Version"),
    ];
    for (case, headers, body, status, code, message) in table {
        let answer = ask_with(daemon.http, ("POST", "/mcp"), headers, body).await;
        let body = answer.json();
        assert_eq!((answer.status, &body["error"]["code"]), (status, &json!(code)), "{case}: {body}");
        assert_eq!((&body["jsonrpc"], &body["id"]), (&json!("2.0"), &Value::Null), "{case}: {body}");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{case}");
        assert!(body["error"]["message"].to_string().contains(message), "{case}: {body}");
    }
    let answer = ask_with(daemon.http, ("POST", "/mcp"), &good, list).await;
    assert_eq!((answer.status, &answer.json()["id"]), (200, &json!(1)), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_bounded() {
    let daemon = daemon(Some(scripted()), 2, 2).await;
    let messages = json!({"messages": vec![json!({}); 100]}).to_string();
    let response = post(daemon.http, "/headroom/v1/compress", messages).await;
    check_error("messages", &response, "422 too_many messages", "too many JSON values");
}
