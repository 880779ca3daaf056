//! `GET /openapi.json`: what is served here, in OpenAPI 3.1. Its schemas are derived from the types that read requests and write
//! answers; `operations` says of each path what goes in and what comes out.

mod operations;
mod parts;

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::parts::Schemas;

/// Where the document is.
pub const PATH: &str = "/openapi.json";

/// It is the same for everybody, and made once.
static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| serde_json::to_vec(&document()).expect("the document is JSON").into());

/// `GET /openapi.json`.
pub async fn handle() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

/// The whole document.
pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let mut paths: Map<String, Value> = Map::new();
    for (path, method, operation) in operations::all(&mut schemas) {
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Thresher",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Keeps the part of retrieved context that a question needs, word for word, with a citation for every piece.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "context", "description": "Compressing context, and tying answers to it."},
            {"name": "registry", "description": "Registered chunks."},
            {"name": "rerank", "description": "What the clients of other rerankers call."},
            {"name": "middleware", "description": "In front of an API of language models."},
            {"name": "daemon", "description": "The daemon itself."},
        ],
        "paths": paths,
        // A daemon without keys asks for none.
        "security": [{}, {"bearer": []}, {"header": []}],
        "components": {
            "schemas": schemas.finish(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key of `access.keys_file`."},
                "header": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-thresher-key",
                    "description": "The same, where `Authorization` is for the server behind.",
                },
            },
        },
    })
}
