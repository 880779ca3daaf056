//! The OpenAPI document describes every route and no other, all of its references resolve, and `docs/openapi.json` is this document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use thresher::error::ErrorCode;
use thresher::http;

use crate::support::wire::{Framing, ask, get};
use crate::{daemon, scripted};

/// The methods of every path in the document, in upper case.
fn described_methods(document: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let methods =
        |item: &Value| item.as_object().expect("methods").keys().map(|m| m.to_uppercase()).collect();
    let paths = document["paths"].as_object().expect("paths");
    paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

#[tokio::test]
async fn the_document_describes_exactly_the_routes_of_the_daemon() {
    let daemon = daemon(Some(scripted()), 1, 1).await;
    let document = get(daemon.http, "/openapi.json").await.json();
    let described = described_methods(&document);
    let routed: BTreeSet<String> = http::paths().into_iter().map(str::to_owned).collect();
    assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), routed);
    for (path, methods) in described {
        // A request with a method that no route has is refused with the methods that the route has.
        let refused =
            ask(daemon.http, "PROPFIND", &path.replace(['{', '}'], "0"), b"", Framing::ContentLength).await;
        assert_eq!(refused.status, 405, "{path}");
        let allowed = refused.header("allow").unwrap_or_else(|| panic!("no Allow header: {path}"));
        // Every GET route allows HEAD, too.
        let allowed: BTreeSet<String> =
            allowed.split(',').map(|m| m.trim().to_owned()).filter(|m| m != "HEAD").collect();
        assert_eq!(allowed, methods, "{path}");
    }
}

#[tokio::test]
async fn the_document_is_served_before_the_model_is_loaded() {
    let daemon = daemon(None, 1, 1).await;
    let answer = get(daemon.http, "/openapi.json").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.json()["openapi"], "3.1.0");
}

/// The types of the clients and of the page are generated from the committed file. With `THRESHER_RENEW` set, this test writes the file.
#[test]
fn the_committed_document_is_the_one_that_the_daemon_serves() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
    let served = serde_json::to_string_pretty(&http::openapi::document()).expect("JSON") + "\n";
    if std::env::var_os("THRESHER_RENEW").is_some() {
        std::fs::write(path, &served).expect("docs/openapi.json can be written");
    }
    let committed = std::fs::read_to_string(path).expect("docs/openapi.json");
    assert!(
        committed == served,
        "docs/openapi.json is not what the daemon serves; to renew it and the types that are generated from it, run \
         THRESHER_RENEW=1 cargo test --test http openapi && make types"
    );
}

#[test]
fn references_resolve_and_operation_ids_are_unique() {
    let document = http::openapi::document();
    let mut references = Vec::new();
    collect(&document, "$ref", &mut references);
    assert!(references.len() > 100, "{}", references.len());
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("a reference within the document");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let mut names = Vec::new();
    collect(&document["paths"], "operationId", &mut names);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
}

/// People and language models read these descriptions.
#[test]
fn every_field_of_a_request_has_a_description() {
    let document = http::openapi::document();
    for name in ["CompressBody", "ChunkObject", "AttributeBody", "SearchBody", "RerankBody", "RegisterBody"] {
        let schema = &document["components"]["schemas"][name];
        let properties = schema["properties"].as_object().unwrap_or_else(|| panic!("{name} has fields"));
        for (field, schema) in properties {
            assert!(schema["description"].is_string(), "{name}.{field} has no description");
        }
    }
}

/// Programs that generate types take a field with a default for one that is always there, and a choice at the top of an object for several
/// objects.
#[test]
fn objects_have_neither_defaults_nor_choices() {
    let document = http::openapi::document();
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        let Some(fields) = schema["properties"].as_object() else { continue };
        for choice in ["oneOf", "anyOf", "allOf"] {
            assert!(schema.get(choice).is_none(), "{name} has {choice}");
        }
        for (field, schema) in fields {
            assert!(schema.get("default").is_none(), "{name}.{field} has a default");
        }
    }
}

/// A field of an answer that is not always there is left out, and never null.
#[test]
fn optional_fields_of_answers_are_not_nullable() {
    let document = http::openapi::document();
    for name in ["CompressAnswer", "ChunkOutcome", "CompressRc", "AttributeAnswer", "Part", "RegisteredChunk"]
    {
        let schema = &document["components"]["schemas"][name];
        let required = schema["required"].as_array().expect("a list");
        for (field, schema) in schema["properties"].as_object().expect("fields") {
            let is_nullable = schema.to_string().contains("null\"");
            assert!(required.contains(&field.as_str().into()) || !is_nullable, "{name}.{field}: {schema}");
        }
    }
    let id = &document["components"]["schemas"]["CompressAnswer"]["properties"]["id"]["type"];
    assert_eq!(id, &serde_json::json!(["string", "null"]), "a field that is always there may be null");
}

/// A budget has two sides, which may stand beside each other.
#[test]
fn a_budget_is_one_object_of_described_limits() {
    let document = http::openapi::document();
    let schema = &document["components"]["schemas"]["Budget"];
    for side in ["tokens", "ratio", "coverage"] {
        assert!(schema["properties"][side]["description"].is_string(), "{side}: {schema}");
    }
    assert_eq!(schema["additionalProperties"], false);
    assert!(schema.get("required").is_none(), "{schema}");
}

/// Collects all strings that stand under `key`, at any depth.
fn collect(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(key).and_then(Value::as_str).map(str::to_owned));
            object.values().for_each(|value| collect(value, key, found));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, key, found)),
        _ => {}
    }
}

/// Programs that generate a client from the document get every code that an answer may have, with its status.
#[test]
fn every_error_code_is_described_with_its_status() {
    let document = http::openapi::document();
    let schema = &document["components"]["schemas"]["ErrorCode"];
    let list =
        |key: &str| schema[key].as_array().expect("a list").iter().map(|word| word.as_str().expect("a word"));
    let codes: Vec<&str> = list("enum").collect();
    let found: Vec<(&str, u64)> = codes
        .iter()
        .map(|&code| (code, schema["x-http-statuses"][code].as_u64().expect("a status")))
        .collect();
    let expect: Vec<(&str, u64)> =
        ErrorCode::ALL.iter().map(|code| (code.as_str(), u64::from(code.status().as_u16()))).collect();
    assert_eq!(found, expect);
    assert_eq!(list("x-enum-descriptions").filter(|meaning| !meaning.is_empty()).count(), codes.len());
}
