//! `GET /openapi.json`: the OpenAPI 3.1 document of the public listener. Its schemas are derived from the types that read requests and write
//! responses.

mod schemas;

use std::sync::LazyLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::{Map, Value, json};

use self::schemas::{ANY, BODY, CHANGE, ErrorFormat, Schemas, WORK, errors, in_json, parameter};
use super::registry::{DELETE, PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX};
use crate::api::{
    AttributeAnswer, AttributeBody, ChangesAnswer, CompressAnswer, CompressBody, DeleteBody, HealthAnswer,
    HighlightAnswer, HighlightBody, MessagesAnswer, MessagesBody, MiddlewareBody, ModelsAnswer,
    OriginalAnswer, PageAnswer, ProgressAnswer, RegisterBody, RegisteredAnswer, RerankBody, Reranked,
    SearchAnswer, SearchBody, TeiRerankBody, TeiResult,
};
use crate::savings::report::SavingsReport;

pub const PATH: &str = "/openapi.json";

/// The document is the same for all callers, and serialized once.
static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| serde_json::to_vec(&document()).expect("the document is JSON").into());

/// Handles `GET /openapi.json`.
pub async fn handle() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

pub fn document() -> Value {
    let mut schemas = Schemas::default();
    let mut paths: Map<String, Value> = Map::new();
    for (path, method, operation) in operations(&mut schemas) {
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
            {"name": "context", "description": "Compress context, and attribute answers to it."},
            {"name": "headroom", "description": "Conversations, in the format that gateways speak."},
            {"name": "registry", "description": "Registered chunks."},
            {"name": "rerank", "description": "Reranking, in the formats of other rerankers."},
            {"name": "middleware", "description": "The proxy in front of language models."},
            {"name": "daemon", "description": "The daemon itself."},
        ],
        "paths": paths,
        // A daemon without keys needs none.
        "security": [{}, {"bearer": []}, {"header": []}],
        "components": {
            "schemas": schemas.finish(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key from `access.keys_file`."},
                "header": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-thresher-key",
                    "description": "A key from `access.keys_file`, if `Authorization` is for the upstream of the middleware.",
                },
            },
        },
    })
}

/// Path, method and operation.
type Entry = (String, &'static str, Value);

const FORWARDED: &str = "The answer of the upstream, unchanged or with citations in the format of the API.";

/// All operations. Each path of [`paths`](super::paths) has one.
fn operations(schemas: &mut Schemas) -> Vec<Entry> {
    let mut all = context(schemas);
    all.extend(headroom(schemas));
    all.extend(registry(schemas));
    all.extend(rerank(schemas));
    all.extend(middleware(schemas));
    all.extend(daemon(schemas));
    all
}

struct Operation {
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    more: Map<String, Value>,
    responses: Map<String, Value>,
}

impl Operation {
    fn new(tag: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self { id, tag, summary, more: Map::new(), responses: Map::new() }
    }

    fn body(mut self, content: Value) -> Self {
        self.more.insert("requestBody".to_owned(), json!({"required": true, "content": content}));
        self
    }

    /// Adds examples of the body: JSON texts by their names.
    fn examples(mut self, examples: &[(&str, &str)]) -> Self {
        let example = |(name, json): &(&str, &str)| {
            let value: Value = serde_json::from_str(json).expect("an example is JSON");
            ((*name).to_owned(), json!({"value": value}))
        };
        let examples: Map<String, Value> = examples.iter().map(example).collect();
        self.more["requestBody"]["content"]["application/json"]["examples"] = examples.into();
        self
    }

    fn parameters(mut self, parameters: Vec<Value>) -> Self {
        self.more.insert("parameters".to_owned(), parameters.into());
        self
    }

    fn response(mut self, description: &str, content: Value) -> Self {
        self.responses.insert("200".to_owned(), json!({"description": description, "content": content}));
        self
    }

    fn partial(mut self, description: &str, content: Value) -> Self {
        self.responses.insert("206".to_owned(), json!({"description": description, "content": content}));
        self
    }

    fn errors(mut self, errors: Map<String, Value>) -> Self {
        self.responses.extend(errors);
        self
    }

    fn at(self, path: &str, method: &'static str) -> Entry {
        let Self { id, tag, summary, more, responses } = self;
        let mut all = Map::new();
        all.insert("operationId".to_owned(), id.into());
        all.insert("tags".to_owned(), json!([tag]));
        all.insert("summary".to_owned(), summary.into());
        all.extend(more);
        all.insert("responses".to_owned(), responses.into());
        (path.to_owned(), method, all.into())
    }
}

/// What gateways speak: the format of Headroom.
fn headroom(schemas: &mut Schemas) -> Vec<Entry> {
    let (compress, compressed) = (schemas.request::<MessagesBody>(), schemas.response::<MessagesAnswer>());
    vec![
        Operation::new(
            "headroom",
            "compressConversation",
            "Keep the parts of a conversation that its questions need.",
        )
        .body(in_json(compress))
        .examples(&[(
            "conversation",
            r#"{"messages": [{"role": "user", "content": "When is high water?"}]}"#,
        )])
        .response("The messages.", in_json(compressed))
        .errors(errors(schemas, ErrorFormat::Native, &[ANY, BODY, WORK]))
        .at("/headroom/v1/compress", "post"),
        retrieve(schemas, "headroom", "retrieveOriginal", "/headroom/v1/retrieve/{hash}"),
    ]
}

fn retrieve(schemas: &mut Schemas, tag: &'static str, id: &'static str, path: &str) -> Entry {
    Operation::new(tag, id, "Fetch the original of a text that was shortened in a conversation.")
        .parameters(vec![
            parameter(
                "path",
                "hash",
                json!({"type": "string", "pattern": "^[0-9a-fA-F]{24}$"}),
                "The hash of the text.",
            ),
            parameter(
                "query",
                "query",
                json!({"type": "string"}),
                "A question, to which the answer names the relevant sentences of the text.",
            ),
        ])
        .response("The text.", in_json(schemas.response::<OriginalAnswer>()))
        .errors(errors(schemas, ErrorFormat::Native, &[ANY, WORK, &[400, 404, 422]]))
        .at(path, "get")
}

fn context(schemas: &mut Schemas) -> Vec<Entry> {
    let (compress, compressed) = (schemas.request::<CompressBody>(), schemas.response::<CompressAnswer>());
    let (attribute, attributed) = (schemas.request::<AttributeBody>(), schemas.response::<AttributeAnswer>());
    let mut with_errors = |more: &[u16]| errors(schemas, ErrorFormat::Native, &[ANY, BODY, WORK, more]);
    vec![
        Operation::new("context", "compress", "Keep the parts of chunks that a question needs.")
            .body(in_json(compress))
            .examples(&[
                ("tides", include_str!("../../docs/examples/request.json")),
                ("facts", include_str!("../../docs/examples/facts.json")),
            ])
            .response("What was kept.", in_json(compressed))
            .errors(with_errors(&[]))
            .at("/v1/compress", "post"),
        Operation::new("context", "attribute", "Find the chunk that each part of an answer came from.")
            .body(in_json(attribute))
            .examples(&[("lighthouse", include_str!("../../docs/examples/attribute.json"))])
            .response("The sources of each part, and the words that no chunk supports.", in_json(attributed))
            .errors(with_errors(&[404]))
            .at("/v1/attribute", "post"),
        retrieve(schemas, "context", "retrieve", "/v1/retrieve/{hash}"),
        Operation::new("middleware", "savings", "What the middleware saved for the tenant: docs/savings.md.")
            .response("The counts, money and comparison.", in_json(schemas.response::<SavingsReport>()))
            .errors(errors(schemas, ErrorFormat::Native, &[ANY, &[400]]))
            .at("/v1/savings", "get"),
        Operation::new(
            "context",
            "kv",
            "Fetch the keys and values of kept chunks, for a language model to continue from.",
        )
        .parameters(vec![
            parameter(
                "path",
                "handle",
                json!({"type": "string", "minLength": 1}),
                "`kv.handle` of the compression.",
            ),
            parameter(
                "query",
                "fingerprint",
                json!({"type": "string"}),
                "The fingerprint of the model that will use them; another model's is refused.",
            ),
            parameter(
                "header",
                "Range",
                json!({"type": "string"}),
                "A range of bytes, as in `bytes=0-1023`; several ranges are ignored.",
            ),
        ])
        .response("A safetensors file: docs/kv-export.md.", json!({"application/octet-stream": {}}))
        .partial("The bytes that `Range` names.", json!({"application/octet-stream": {}}))
        .errors(errors(schemas, ErrorFormat::Native, &[ANY, &[400, 404, 409, 416]]))
        .at("/v1/kv/{handle}", "get"),
    ]
}

fn registry(schemas: &mut Schemas) -> Vec<Entry> {
    let changes = schemas.response::<ChangesAnswer>();
    let chunk = schemas.response::<RegisteredAnswer>();
    let id = || parameter("path", "id", json!({"type": "string", "minLength": 1}), "The id of the chunk.");
    let limit =
        json!({"type": "integer", "minimum": 1, "maximum": PAGE_COUNT_MAX, "default": PAGE_COUNT_DEFAULT});
    vec![
        Operation::new(
            "registry",
            "registerChunks",
            "Register chunks, which the model then reads ahead of requests.",
        )
        .body(in_json(schemas.request::<RegisterBody>()))
        .examples(&[(
            "tides",
            r#"{"chunks": [{"id": "tides", "text": "Tides are caused by the moon."}], "wait": true}"#,
        )])
        .response(
            "The outcome of each chunk. The others are registered even if one is invalid.",
            in_json(changes.clone()),
        )
        .errors(errors(schemas, ErrorFormat::Native, &[ANY, BODY, WORK, CHANGE]))
        .at("/v1/chunks", "post"),
        Operation::new(
            "registry",
            "listChunks",
            "A page of the registered chunks, in the order of their ids.",
        )
        .parameters(vec![
            parameter("query", "limit", limit, "The most chunks on the page."),
            parameter("query", "after", json!({"type": "string"}), "`next` of the page before."),
        ])
        .response("The page.", in_json(schemas.response::<PageAnswer>()))
        .errors(errors(schemas, ErrorFormat::Native, &[ANY, WORK, &[400, 422]]))
        .at("/v1/chunks", "get"),
        Operation::new("registry", "getChunk", "A registered chunk.")
            .parameters(vec![id()])
            .response("The chunk.", in_json(chunk.clone()))
            .errors(errors(schemas, ErrorFormat::Native, &[ANY, &[404, 422]]))
            .at("/v1/chunks/{id}", "get"),
        Operation::new("registry", "deleteChunk", "Delete a registered chunk.")
            .parameters(vec![id()])
            .response("The outcome.", in_json(changes.clone()))
            .errors(errors(schemas, ErrorFormat::Native, &[ANY, WORK, CHANGE, &[404, 422]]))
            .at("/v1/chunks/{id}", "delete"),
        Operation::new("registry", "deleteChunks", "Delete several registered chunks.")
            .body(in_json(schemas.request::<DeleteBody>()))
            .examples(&[("two", r#"{"ids": ["tides", "gezeiten"]}"#)])
            .response(
                "The outcome of each id. An id that is not registered is not an error.",
                in_json(changes.clone()),
            )
            .errors(errors(schemas, ErrorFormat::Native, &[ANY, BODY, WORK, CHANGE]))
            .at(DELETE, "post"),
        Operation::new("registry", "getChunkCalledDelete", "The chunk whose id is `delete`.")
            .response("The chunk.", in_json(chunk))
            .errors(errors(schemas, ErrorFormat::Native, &[ANY, &[404]]))
            .at(DELETE, "get"),
        Operation::new("registry", "deleteChunkCalledDelete", "Delete the chunk whose id is `delete`.")
            .response("The outcome.", in_json(changes))
            .errors(errors(schemas, ErrorFormat::Native, &[ANY, WORK, CHANGE, &[404]]))
            .at(DELETE, "delete"),
        Operation::new(
            "registry",
            "registryProgress",
            "The number of registered chunks, and of those that the model has read.",
        )
        .response("The numbers.", in_json(schemas.response::<ProgressAnswer>()))
        .errors(errors(schemas, ErrorFormat::Native, &[ANY]))
        .at("/v1/registry", "get"),
        Operation::new(
            "registry",
            "search",
            "Search registered chunks by words and metadata, ranked by the model.",
        )
        .body(in_json(schemas.request::<SearchBody>()))
        .examples(&[("tides", r#"{"query": "What makes the tides?", "limit": 2}"#)])
        .response("The best chunks.", in_json(schemas.response::<SearchAnswer>()))
        .errors(errors(schemas, ErrorFormat::Native, &[ANY, BODY, WORK]))
        .at("/v1/search", "post"),
    ]
}

fn rerank(schemas: &mut Schemas) -> Vec<Entry> {
    const EXAMPLE: &str = r#"{"model": "any", "query": "Who discovered penicillin?", "documents": ["It is a mould.", "Fleming did."]}"#;
    const TEI: &str =
        r#"{"query": "Who discovered penicillin?", "texts": ["It is a mould.", "Fleming did."]}"#;
    let headers = json!({"x-thresher-related": {
        "description": "Whether any document is related to the question. Left out by models that do not tell (decoders).",
        "schema": {"type": "string", "enum": ["true", "false"]},
    }, "x-thresher-answerable": {
        "description": "Whether the documents answer the question, and the probability, such as `false;p=0.031`. Left out where it was not measured: docs/verdicts.md.",
        "schema": {"type": "string"},
    }, "x-thresher-relevance": {
        "description": "`unmeasured` if the scores are by RC, so that they compare within this response only.",
        "schema": {"type": "string"},
    }});
    struct Format {
        body: Value,
        answer: Value,
        example: (&'static str, &'static str),
        errors: ErrorFormat,
    }
    let documents = ("documents", EXAMPLE);
    let cohere = Format {
        body: in_json(schemas.request::<RerankBody>()),
        answer: in_json(schemas.response::<Reranked>()),
        example: documents,
        errors: ErrorFormat::Rerank,
    };
    let tei = Format {
        body: in_json(schemas.request::<TeiRerankBody>()),
        answer: in_json(schemas.response::<Vec<TeiResult>>()),
        example: ("texts", TEI),
        errors: ErrorFormat::Tei,
    };
    const OF_COHERE: &str = "Rank documents, in the format of Cohere's v1 and Jina.";
    const OF_COHERE_2: &str = "Rank documents, in the format of Cohere's v2.";
    const OF_TEI: &str = "Rank documents, in the format of Text Embeddings Inference.";
    let mut all = Vec::new();
    for (id, path, summary, format) in [
        ("rerankV1", "/v1/rerank", OF_COHERE, &cohere),
        ("rerankV2", "/v2/rerank", OF_COHERE_2, &cohere),
        ("rerankTei", "/rerank", OF_TEI, &tei),
    ] {
        let (_, _, mut operation) = Operation::new("rerank", id, summary)
            .body(format.body.clone())
            .examples(&[format.example])
            .response("The documents, best first.", format.answer.clone())
            .errors(errors(schemas, format.errors, &[ANY, BODY, WORK]))
            .at(path, "post");
        operation["responses"]["200"]["headers"] = headers.clone();
        all.push((path.to_owned(), "post", operation));
    }
    let (body, answer) = (schemas.request::<HighlightBody>(), schemas.response::<HighlightAnswer>());
    let highlight = Operation::new(
        "rerank",
        "highlight",
        "Find the sentences of documents that answer a question, in the format of OpenSearch's semantic highlighter.",
    );
    all.push(
        highlight
            .body(in_json(body))
            .examples(&[("inputs", include_str!("../../docs/examples/highlight.json"))])
            .response("The sentences of each document.", in_json(answer))
            .errors(errors(schemas, ErrorFormat::Native, &[ANY, BODY, WORK]))
            .at("/v1/highlight", "post"),
    );
    all
}

fn middleware(schemas: &mut Schemas) -> Vec<Entry> {
    // A body that is not an object is refused by the upstream.
    let options = schemas.request::<MiddlewareBody>();
    let body = json!({
        "properties": {
            "model": {"description": "The model, which chooses the upstream. Default: the first upstream that has any model."},
            "thresher": options,
        },
        "description": "A body of the API. All fields except `thresher` are passed on.",
    });
    let body = schemas.named("ForwardedBody", body);
    let words = json!({"type": "string", "enum": ["true", "1", "yes", "on", "false", "0", "no", "off"]});
    let boolean = |name, text| parameter("header", name, words.clone(), text);
    let header = |text: &str| json!({"description": text, "schema": {"type": "string"}});
    let headers = json!({
        "x-thresher": header("`compressed`, `uncompressed` or `shadow`."),
        "x-thresher-reason": header("Why the request was passed on whole although it was to be compressed."),
        "x-thresher-tokens-before": header("Tokens (`o200k_base`) of the texts that were compressed, before."),
        "x-thresher-tokens-after": header("The same, after."),
        "x-thresher-related": header("`false` if no text that was to be compressed is related to the question; then nothing of it is sent."),
        "x-thresher-answerable": header("Whether the texts that were to be compressed answer the question, and the probability, such as `false;p=0.031`."),
        "x-thresher-cited": header("`true` if citations may have been added to the answer."),
    });
    let mut forwards = |id, summary, path, format| {
        let (_, _, mut operation) = Operation::new("middleware", id, summary)
            .parameters(vec![
                boolean("x-thresher-compress", "Whether to compress this request."),
                boolean(
                    "x-thresher-shadow",
                    "Whether to send this request whole and only compute what would have been kept.",
                ),
                boolean("x-thresher-cite", "Whether to add citations to its answer."),
            ])
            .body(in_json(body.clone()))
            .response(
                FORWARDED,
                json!({"application/json": {"schema": {}}, "text/event-stream": {"schema": {}}}),
            )
            .errors(errors(schemas, format, &[ANY, BODY, WORK, &[404, 502]]))
            .at(path, "post");
        operation["responses"]["200"]["headers"] = headers.clone();
        operation["responses"]["default"] =
            json!({"description": FORWARDED, "headers": headers, "content": {"*/*": {"schema": {}}}});
        (path.to_owned(), "post", operation)
    };
    vec![
        forwards(
            "chatCompletions",
            "OpenAI's Chat Completions.",
            "/v1/chat/completions",
            ErrorFormat::OpenAi,
        ),
        forwards("responses", "OpenAI's Responses.", "/v1/responses", ErrorFormat::OpenAi),
        forwards("messages", "Anthropic's Messages.", "/v1/messages", ErrorFormat::Anthropic),
    ]
}

fn mcp(schemas: &mut Schemas) -> Entry {
    let message = json!({
        "type": "object",
        "required": ["jsonrpc"],
        "properties": {"jsonrpc": {"const": "2.0"}, "method": {"type": "string"}},
        "description": "A message of the Model Context Protocol.",
    });
    let mut operation = Operation::new(
        "context",
        "mcp",
        "The tools `compress`, `attribute`, `retrieve` and `search` of the Model Context Protocol: its streamable HTTP transport, without sessions.",
    )
    .body(in_json(message))
    .response(
        "The answer to the message.",
        json!({"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {}}}),
    )
    .errors(errors(schemas, ErrorFormat::Native, &[ANY, BODY]))
    .at(crate::http::mcp::PATH, "post");
    let refusal = json!({"description": "A JSON-RPC error: the body is not a message of the protocol, or comes from a web page that is not allowed.", "content": {"application/json": {"schema": {}}}});
    for status in ["202", "400", "403", "415", "422", "default"] {
        operation.2["responses"][status] = refusal.clone();
    }
    operation.2["responses"]["202"] = json!({"description": "A notification was received."});
    operation
}

fn daemon(schemas: &mut Schemas) -> Vec<Entry> {
    let document = json!({"type": "object", "required": ["openapi", "info", "paths"]});
    let mut described = Operation::new("daemon", "openapi", "This document. It needs no key.")
        .response("The document.", in_json(document))
        .errors(errors(schemas, ErrorFormat::Native, &[&[500]]))
        .at(PATH, "get");
    described.2["security"] = json!([]);
    let health = in_json(schemas.response::<HealthAnswer>());
    let mut probe =
        Operation::new("daemon", "health", "Whether the daemon answers requests. It needs no key.")
            .response("It does.", health.clone())
            .errors(errors(schemas, ErrorFormat::Native, &[&[500]]))
            .at(super::health::PATH, "get");
    probe.2["security"] = json!([]);
    probe.2["responses"]["503"] = json!({"description": "The model is being loaded, or the daemon is shutting down.", "content": health});
    vec![
        mcp(schemas),
        Operation::new("daemon", "models", "The models of the upstreams, and the model that is loaded.")
            .response("The models.", in_json(schemas.response::<ModelsAnswer>()))
            .errors(errors(schemas, ErrorFormat::Native, &[ANY]))
            .at("/v1/models", "get"),
        described,
        probe,
    ]
}
