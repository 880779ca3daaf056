//! Every operation: what goes in, what comes out, what can go wrong.

use serde_json::{Map, Value, json};

use super::parts::{ANY, BODY, CHANGE, Schemas, WORK, Words, errors, in_events, in_json, parameter};
use crate::api::{
    AttributeAnswer, AttributeBody, ChangesAnswer, CompressAnswer, CompressBody, DeleteBody, FilterBody,
    MessagesAnswer, MessagesBody, MiddlewareBody, ModelsAnswer, OriginalAnswer, PageAnswer, PartAnswer,
    ProgressAnswer, RegisterBody, RegisteredAnswer, RerankAnswer, RerankBody, ScoreAnswer, ScoreBody,
    SearchAnswer, SearchBody,
};
use crate::http::chunks::{DELETE, PAGE_COUNT_DEFAULT, PAGE_COUNT_MAX};

/// Path, method, operation.
type Entry = (String, &'static str, Value);

const SSE_IN: &str = "Events, each a line that begins with `data:` and a blank one. The first is the request: an `AttributeBody` without \
                      `answer`, `spans`, `receipt` and `format`. Those behind it are the answer as it arrives: `{\"text\": \"...\"}`, or what \
                      OpenAI's and Anthropic's streams send; `[DONE]` ends it.";
const SSE_OUT: &str = "Events: `part` for each sentence as soon as its end is sure, with a `Part`; at the end `done`, with `{\"parts\": N, \
                       \"ended\": true}`, or `error`, with an `Error`.";
const PASSED: &str = "The upstream's answer, as it is or with citations added where the API has them.";

/// All of them.
pub fn all(schemas: &mut Schemas) -> Vec<Entry> {
    let mut all = context(schemas);
    all.extend(registry(schemas));
    all.extend(rerank(schemas));
    all.extend(middleware(schemas));
    all.extend(daemon(schemas));
    all
}

/// An operation in the making.
struct Operation {
    id: &'static str,
    tag: &'static str,
    says: &'static str,
    more: Map<String, Value>,
    responses: Map<String, Value>,
}

impl Operation {
    fn new(tag: &'static str, id: &'static str, says: &'static str) -> Self {
        Self { id, tag, says, more: Map::new(), responses: Map::new() }
    }

    fn takes(mut self, content: Value) -> Self {
        self.more.insert("requestBody".to_owned(), json!({"required": true, "content": content}));
        self
    }

    /// With requests that the files of `docs/examples` hold, or that are written here.
    fn such_as(mut self, examples: &[(&str, &str)]) -> Self {
        let example = |(name, json): &(&str, &str)| {
            let value: Value = serde_json::from_str(json).expect("an example is JSON");
            ((*name).to_owned(), json!({"value": value}))
        };
        let examples: Map<String, Value> = examples.iter().map(example).collect();
        self.more["requestBody"]["content"]["application/json"]["examples"] = examples.into();
        self
    }

    fn with(mut self, parameters: Vec<Value>) -> Self {
        self.more.insert("parameters".to_owned(), parameters.into());
        self
    }

    fn answers(mut self, says: &str, content: Value) -> Self {
        self.responses.insert("200".to_owned(), json!({"description": says, "content": content}));
        self
    }

    fn fails(mut self, errors: Map<String, Value>) -> Self {
        self.responses.extend(errors);
        self
    }

    fn at(self, path: &str, method: &'static str) -> Entry {
        let Self { id, tag, says, more, responses } = self;
        let mut all = Map::new();
        all.insert("operationId".to_owned(), id.into());
        all.insert("tags".to_owned(), json!([tag]));
        all.insert("summary".to_owned(), says.into());
        all.extend(more);
        all.insert("responses".to_owned(), responses.into());
        (path.to_owned(), method, all.into())
    }
}

fn context(schemas: &mut Schemas) -> Vec<Entry> {
    let compress = json!({"anyOf": [schemas.asked::<CompressBody>(), schemas.asked::<MessagesBody>()]});
    let compressed =
        json!({"anyOf": [schemas.answered::<CompressAnswer>(), schemas.answered::<MessagesAnswer>()]});
    let (attribute, attributed) = (schemas.asked::<AttributeBody>(), schemas.answered::<AttributeAnswer>());
    // Named in the description of events.
    schemas.answered::<PartAnswer>();
    let mut fails = |more: &[u16]| errors(schemas, Words::Ours, &[ANY, BODY, WORK, more]);
    vec![
        Operation::new("context", "compress", "Keep what a question needs of chunks, or of a conversation.")
            .takes(in_json(compress))
            .such_as(&[
                ("tides", include_str!("../../../docs/examples/request.json")),
                ("facts", include_str!("../../../docs/examples/facts.json")),
                ("conversation", r#"{"messages": [{"role": "user", "content": "When is high water?"}]}"#),
            ])
            .answers("What was kept; of a conversation, its messages.", in_json(compressed))
            .fails(fails(&[]))
            .at("/v1/compress", "post"),
        Operation::new("context", "attribute", "Say which chunk each part of an answer came from.")
            .takes(in_json(attribute))
            .such_as(&[("lighthouse", include_str!("../../../docs/examples/attribute.json"))])
            .answers("Where each part came from, and what no chunk supports.", in_json(attributed))
            .fails(fails(&[404]))
            .at("/v1/attribute", "post"),
        Operation::new("context", "attributeStream", "The same while the answer arrives.")
            .takes(in_events(SSE_IN))
            .answers("Parts, as they are sure.", in_events(SSE_OUT))
            .fails(fails(&[404]))
            .at("/v1/attribute/stream", "post"),
        Operation::new(
            "context",
            "retrieve",
            "Give back a text that was shortened in a conversation, as it was.",
        )
        .with(vec![
            parameter(
                "path",
                "hash",
                json!({"type": "string", "pattern": "^[0-9a-fA-F]{24}$"}),
                "The text's name.",
            ),
            parameter(
                "query",
                "query",
                json!({"type": "string"}),
                "A question: which of its sentences are about that?",
            ),
        ])
        .answers("The text.", in_json(schemas.answered::<OriginalAnswer>()))
        .fails(errors(schemas, Words::Ours, &[ANY, WORK, &[400, 404, 422]]))
        .at("/v1/retrieve/{hash}", "get"),
        Operation::new(
            "context",
            "kv",
            "Give keys and values of kept chunks, for a language model to go on from.",
        )
        .with(vec![
            parameter(
                "path",
                "handle",
                json!({"type": "string", "minLength": 1}),
                "`kv.handle` of the answer.",
            ),
            parameter(
                "query",
                "fingerprint",
                json!({"type": "string"}),
                "Of the model that takes them over; another's is refused.",
            ),
        ])
        .answers("A safetensors file: docs/kv-export.md.", json!({"application/octet-stream": {}}))
        .fails(errors(schemas, Words::Ours, &[ANY, &[400, 404, 409]]))
        .at("/v1/kv/{handle}", "get"),
    ]
}

fn registry(schemas: &mut Schemas) -> Vec<Entry> {
    let filter = json!({
        "in": "query", "name": "filter", "required": false, "description": "Which chunks, by their metadata.",
        "content": in_json(schemas.asked::<FilterBody>()),
    });
    let changes = schemas.answered::<ChangesAnswer>();
    let chunk = schemas.answered::<RegisteredAnswer>();
    let id = || parameter("path", "id", json!({"type": "string", "minLength": 1}), "The chunk's id.");
    let limit =
        json!({"type": "integer", "minimum": 1, "maximum": PAGE_COUNT_MAX, "default": PAGE_COUNT_DEFAULT});
    vec![
        Operation::new("registry", "registerChunks", "Register chunks, and have the model read them ahead.")
            .takes(in_json(schemas.asked::<RegisterBody>()))
            .such_as(&[(
                "tides",
                r#"{"chunks": [{"id": "tides", "text": "Tides are caused by the moon."}], "wait": true}"#,
            )])
            .answers(
                "What became of each; one that is wrong does not spoil the others.",
                in_json(changes.clone()),
            )
            .fails(errors(schemas, Words::Ours, &[ANY, BODY, WORK, CHANGE]))
            .at("/v1/chunks", "post"),
        Operation::new(
            "registry",
            "listChunks",
            "A page of the registered chunks, in the order of their ids.",
        )
        .with(vec![
            parameter("query", "limit", limit, "Chunks on the page."),
            parameter("query", "after", json!({"type": "string"}), "The id that the page before ended with."),
            filter,
        ])
        .answers("The page.", in_json(schemas.answered::<PageAnswer>()))
        .fails(errors(schemas, Words::Ours, &[ANY, WORK, &[400, 422]]))
        .at("/v1/chunks", "get"),
        Operation::new("registry", "getChunk", "A registered chunk.")
            .with(vec![id()])
            .answers("The chunk.", in_json(chunk.clone()))
            .fails(errors(schemas, Words::Ours, &[ANY, &[404, 422]]))
            .at("/v1/chunks/{id}", "get"),
        Operation::new("registry", "deleteChunk", "Take a chunk out of the registry.")
            .with(vec![id()])
            .answers("That it is gone.", in_json(changes.clone()))
            .fails(errors(schemas, Words::Ours, &[ANY, WORK, CHANGE, &[404, 422]]))
            .at("/v1/chunks/{id}", "delete"),
        Operation::new("registry", "deleteChunks", "Take several chunks out of the registry.")
            .takes(in_json(schemas.asked::<DeleteBody>()))
            .such_as(&[("two", r#"{"ids": ["tides", "gezeiten"]}"#)])
            .answers("What became of each; one that is not there is no error.", in_json(changes.clone()))
            .fails(errors(schemas, Words::Ours, &[ANY, BODY, WORK, CHANGE]))
            .at(DELETE, "post"),
        Operation::new("registry", "getChunkCalledDelete", "The chunk whose id is `delete`.")
            .answers("The chunk.", in_json(chunk))
            .fails(errors(schemas, Words::Ours, &[ANY, &[404]]))
            .at(DELETE, "get"),
        Operation::new(
            "registry",
            "deleteChunkCalledDelete",
            "Take the chunk whose id is `delete` out of the registry.",
        )
        .answers("That it is gone.", in_json(changes))
        .fails(errors(schemas, Words::Ours, &[ANY, WORK, CHANGE, &[404]]))
        .at(DELETE, "delete"),
        Operation::new("registry", "registryProgress", "How far reading ahead has come.")
            .answers("Counts.", in_json(schemas.answered::<ProgressAnswer>()))
            .fails(errors(schemas, Words::Ours, &[ANY]))
            .at("/v1/registry", "get"),
        Operation::new(
            "registry",
            "search",
            "Search registered chunks by words and metadata, ranked by the model.",
        )
        .takes(in_json(schemas.asked::<SearchBody>()))
        .such_as(&[("tides", r#"{"query": "What makes the tides?", "limit": 2}"#)])
        .answers("The best.", in_json(schemas.answered::<SearchAnswer>()))
        .fails(errors(schemas, Words::Ours, &[ANY, BODY, WORK]))
        .at("/v1/search", "post"),
    ]
}

fn rerank(schemas: &mut Schemas) -> Vec<Entry> {
    const EXAMPLE: &str = r#"{"model": "any", "query": "Who discovered penicillin?", "documents": ["It is a mould.", "Fleming did."]}"#;
    const TEI: &str =
        r#"{"query": "Who discovered penicillin?", "texts": ["It is a mould.", "Fleming did."]}"#;
    const PAIRS: &str =
        r#"{"text_1": "Who discovered penicillin?", "text_2": ["It is a mould.", "Fleming did."]}"#;
    let mut reranks = |id, says, path| {
        Operation::new("rerank", id, says)
            .takes(in_json(schemas.asked::<RerankBody>()))
            .such_as(&[("documents", EXAMPLE), ("texts", TEI)])
            .answers("Documents, best first.", in_json(schemas.answered::<RerankAnswer>()))
            .fails(errors(schemas, Words::Rerankers, &[ANY, BODY, WORK]))
            .at(path, "post")
    };
    let mut all = vec![
        reranks("rerankV1", "Rank documents, as Cohere's v1, Jina and vLLM do.", "/v1/rerank"),
        reranks("rerankV2", "Rank documents, as Cohere's v2 does.", "/v2/rerank"),
        reranks("rerank", "Rank documents or texts, as vLLM and Text Embeddings Inference do.", "/rerank"),
    ];
    let mut scores = |id, path| {
        Operation::new("rerank", id, "Score texts, as vLLM does.")
            .takes(in_json(schemas.asked::<ScoreBody>()))
            .such_as(&[("texts", PAIRS)])
            .answers("Scores, in the order of the request.", in_json(schemas.answered::<ScoreAnswer>()))
            .fails(errors(schemas, Words::Rerankers, &[ANY, BODY, WORK]))
            .at(path, "post")
    };
    all.extend([scores("scoreV1", "/v1/score"), scores("score", "/score")]);
    all
}

fn middleware(schemas: &mut Schemas) -> Vec<Entry> {
    // What is no object is for the upstream to refuse.
    let body = json!({
        "properties": {
            "model": {"description": "Says which upstream is asked; without one, the first that has any model."},
            "thresher": schemas.asked::<MiddlewareBody>(),
        },
        "description": "What the API takes; all of it but `thresher` goes on.",
    });
    let choice = |name, says| parameter("header", name, json!({"enum": ["true", "false"]}), says);
    let says = |text: &str| json!({"description": text, "schema": {"type": "string"}});
    let headers = json!({
        "x-thresher": says("`compressed` or `whole`."),
        "x-thresher-reason": says("Why it is whole though it was to be compressed."),
        "x-thresher-tokens-before": says("Tokens (`o200k_base`) of what is compressed in this conversation, as it came."),
        "x-thresher-tokens-after": says("As it went on."),
        "x-thresher-cited": says("`true` where the answer may hold citations of ours."),
    });
    let mut passes = |id, says, path, words| {
        let (_, _, mut operation) = Operation::new("middleware", id, says)
            .with(vec![
                choice("x-thresher-compress", "Whether to compress this request."),
                choice("x-thresher-cite", "Whether to add citations to its answer."),
            ])
            .takes(in_json(body.clone()))
            .answers(PASSED, json!({"application/json": {"schema": {}}, "text/event-stream": {"schema": {}}}))
            .fails(errors(schemas, words, &[ANY, BODY, WORK, &[404, 502]]))
            .at(path, "post");
        operation["responses"]["200"]["headers"] = headers.clone();
        operation["responses"]["default"] =
            json!({"description": PASSED, "headers": headers, "content": {"*/*": {"schema": {}}}});
        (path.to_owned(), "post", operation)
    };
    vec![
        passes("chatCompletions", "OpenAI's Chat Completions.", "/v1/chat/completions", Words::OpenAi),
        passes("responses", "OpenAI's Responses.", "/v1/responses", Words::OpenAi),
        passes("messages", "Anthropic's Messages.", "/v1/messages", Words::Anthropic),
    ]
}

fn mcp(schemas: &mut Schemas) -> Entry {
    let message = json!({
        "type": "object",
        "required": ["jsonrpc"],
        "properties": {"jsonrpc": {"const": "2.0"}, "method": {"type": "string"}},
        "description": "A message of the Model Context Protocol.",
    });
    let mut called = Operation::new(
        "context",
        "mcp",
        "Both as tools of the Model Context Protocol: its streamable HTTP transport, without sessions.",
    )
    .takes(in_json(message))
    .answers(
        "The answer to the message.",
        json!({"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {}}}),
    )
    .fails(errors(schemas, Words::Ours, &[ANY, BODY]))
    .at(crate::http::mcp::PATH, "post");
    let refused = json!({"description": "What the protocol says of messages that are none of its, or come from another page.", "content": {"*/*": {"schema": {}}}});
    for status in ["202", "400", "403", "415", "422", "default"] {
        called.2["responses"][status] = refused.clone();
    }
    called.2["responses"]["202"] = json!({"description": "A notification was taken."});
    called
}

fn daemon(schemas: &mut Schemas) -> Vec<Entry> {
    let document = json!({"type": "object", "required": ["openapi", "info", "paths"]});
    let mut described = Operation::new("daemon", "openapi", "This document. It asks for no key.")
        .answers("The document.", in_json(document))
        .fails(errors(schemas, Words::Ours, &[&[500]]))
        .at(super::PATH, "get");
    described.2["security"] = json!([]);
    vec![
        mcp(schemas),
        Operation::new("daemon", "models", "The model that answers.")
            .answers("The model.", in_json(schemas.answered::<ModelsAnswer>()))
            .fails(errors(schemas, Words::Ours, &[ANY]))
            .at("/v1/models", "get"),
        described,
    ]
}
