//! The Model Context Protocol: `compress`, `attribute`, `retrieve` and `search` as tools that a model calls, over standard input and output or HTTP, with the
//! official SDK. Does not know how the tools are run.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::{Request, Response};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;
use thresher_core::plain::{Quoted, Shortened};

use crate::api::{AttributeAnswer, CompressAnswer, OriginalAnswer, SearchAnswer};
use crate::error::{ApiError, ErrorAnswer};

const COMPRESS: &str = "compress";
const ATTRIBUTE: &str = "attribute";
const RETRIEVE: &str = "retrieve";
const SEARCH: &str = "search";

const INSTRUCTIONS: &str = "Call `compress` before you answer from long retrieved texts: it returns the sentences that matter for the \
    question, word for word and numbered, so that you can cite them. Call `attribute` with an answer and the texts that it was written from \
    to see which text each sentence came from, and which sentences no text supports.";

const COMPRESS_TITLE: &str = "Shorten retrieved texts for a question";

const COMPRESS_DESCRIPTION: &str = "Shortens retrieved texts to the sentences that a question needs, word for word, each text with its number in brackets; \
    cite these numbers.";

const ATTRIBUTE_TITLE: &str = "Check an answer against its sources";

const ATTRIBUTE_DESCRIPTION: &str = "Checks an answer against the texts that it was written from: says for each sentence whether they support it, which \
    sentence it came from, and which words and numbers no text has.";

const DAEMON_INSTRUCTIONS: &str = " Where a text ends with a mark such as `[shortened: left out lines 3-16 of 60; hash=...]`, call `retrieve` with \
    the hash if you need what is missing. Call `search` to find texts that were registered.";

const RETRIEVE_DESCRIPTION: &str = "Returns the original of a text that was shortened, whole and unchanged. Give the hash of the mark at the end of \
    the shortened text in `hash`. With a question in `query`, returns only the sentences of the original that concern it.";

const SEARCH_DESCRIPTION: &str = "Searches the registered texts. Give the question in `query`, and how many texts you want in `limit`. Returns of the \
    best texts what the question needs, each with its id in brackets.";

/// Origins of web pages that may always call the tools: those of the same machine.
const ORIGINS: [&str; 6] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "https://localhost:*",
    "https://127.0.0.1:*",
    "https://[::1]:*",
];

/// Why a request is refused before the SDK parses its message, as a JSON-RPC error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    code: i32,
    message: String,
    /// The id of the message; null if none has been read.
    id: Value,
}

/// A message that calls a tool, as far as it is checked here.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(default)]
    id: Value,
    method: String,
    #[serde(borrow)]
    params: CallParams<'a>,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// The field that every JSON-RPC 2.0 message has.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: &'a RawValue,
}

impl Refusal {
    /// Checks that a body is JSON and a JSON-RPC 2.0 message. The SDK would answer both mistakes with 415, as if the media type were wrong.
    ///
    /// # Errors
    /// -32700 if the body is not JSON, -32600 if it is not a message, -32602 if it calls a tool with arguments that are no object: the SDK would
    /// answer that it does not know the method.
    pub fn check(body: &[u8]) -> Result<(), Self> {
        let json = serde_json::from_slice::<&RawValue>(body)
            .map_err(|error| Self::new(-32700, format!("the body is not JSON: {error}")))?;
        // serde also reads a struct from a list.
        let is_object = json.get().starts_with('{');
        let envelope = is_object.then(|| serde_json::from_str::<Envelope>(json.get()).ok()).flatten();
        match envelope {
            Some(envelope) if envelope.jsonrpc.get() == "\"2.0\"" => Self::check_call(json.get()),
            _ => {
                Err(Self::message("the body is not a JSON-RPC message: an object with \"jsonrpc\": \"2.0\""))
            }
        }
    }

    fn check_call(message: &str) -> Result<(), Self> {
        let Ok(Call { id, method, params }) = serde_json::from_str(message) else { return Ok(()) };
        match params.arguments {
            Some(found) if method == "tools/call" && !found.get().starts_with('{') => {
                let message = format!("params.arguments is {}; it must be an object", Shortened(found.get()));
                Err(Self { id, ..Self::new(-32602, message) })
            }
            _ => Ok(()),
        }
    }

    fn new(code: i32, message: String) -> Self {
        Self { code, message, id: Value::Null }
    }

    /// The body is JSON, but not a message of the protocol.
    pub fn message(text: &str) -> Self {
        Self::new(-32600, Shortened(text).to_string())
    }

    pub fn request(text: &str) -> Self {
        Self::new(-32000, Shortened(text).to_string())
    }

    /// Whether the error answers a message by its id.
    pub fn has_id(&self) -> bool {
        !self.id.is_null()
    }

    pub fn is_no_json(&self) -> bool {
        self.code == -32700
    }

    pub fn to_json(&self) -> Value {
        let Self { code, message, id } = self;
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
    }
}

/// Runs the tools. Dropping a returned future stops the work.
pub trait Tools: Clone + Send + Sync + 'static {
    /// Whether requests may name registered chunks and recent compressions.
    const HAS_REGISTRY: bool;

    /// The answer to a body of `POST /v1/compress`.
    fn compress(&self, body: Vec<u8>) -> impl Future<Output = Result<CompressAnswer, ApiError>> + Send;

    /// The answer to a body of `POST /v1/attribute`.
    fn attribute(&self, body: Vec<u8>) -> impl Future<Output = Result<AttributeAnswer, ApiError>> + Send;

    /// The answer to `GET /headroom/v1/retrieve/{hash}`. Called only if [`Self::HAS_REGISTRY`].
    fn retrieve(&self, body: Vec<u8>) -> impl Future<Output = Result<OriginalAnswer, ApiError>> + Send;

    /// The answer to a body of `POST /v1/search`. Called only if [`Self::HAS_REGISTRY`].
    fn search(&self, body: Vec<u8>) -> impl Future<Output = Result<SearchAnswer, ApiError>> + Send;
}

/// Why serving over standard input and output ended before the client closed its end.
#[derive(Debug, Error)]
pub enum McpError {
    #[error("the client did not initialize the protocol: {0}")]
    Initialize(String),
    #[error("serving ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Serves the process that started this one, until it closes the standard input.
///
/// # Errors
/// [`McpError`].
pub async fn serve_stdio(tools: impl Tools) -> Result<(), McpError> {
    let serving = Server { tools }.serve(rmcp::transport::stdio()).await;
    let serving = match serving {
        Ok(serving) => serving,
        // Closing the input before the first message is not an error.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Initialize(error.to_string())),
    };
    serving.waiting().await?;
    Ok(())
}

/// Answers one request of the streamable HTTP transport, without sessions. Web pages of this machine and of `origins` may call; the protocol
/// demands this check even where keys are needed.
pub async fn serve_http(
    tools: impl Tools,
    request: Request<Full<Bytes>>,
    origins: Vec<String>,
) -> Response<BoxBody<Bytes, std::convert::Infallible>> {
    // The limit of the body and the host have been checked already.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(usize::MAX)
        .disable_allowed_hosts()
        .with_allowed_origins(ORIGINS.map(str::to_owned).into_iter().chain(origins))
        .enforce_origin_validation();
    let server = move || Ok(Server { tools: tools.clone() });
    StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config).handle(request).await
}

#[derive(Clone)]
struct Server<T> {
    tools: T,
}

impl<T: Tools> ServerHandler for Server<T> {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("thresher", env!("CARGO_PKG_VERSION")))
            .with_instructions(if T::HAS_REGISTRY {
                format!("{INSTRUCTIONS}{DAEMON_INSTRUCTIONS}")
            } else {
                INSTRUCTIONS.to_owned()
            })
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(descriptions(T::HAS_REGISTRY)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        descriptions(T::HAS_REGISTRY).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (body, is_structured) = body(&request.name, request.arguments.unwrap_or_default());
        let work = async {
            match &*request.name {
                COMPRESS => Ok(result(self.tools.compress(body).await, context_text, is_structured)),
                ATTRIBUTE => {
                    let answer = self.tools.attribute(body).await;
                    Ok(result(answer, AttributeAnswer::to_plain_text, is_structured))
                }
                RETRIEVE if T::HAS_REGISTRY => {
                    let answer = self.tools.retrieve(body).await;
                    Ok(result(answer, OriginalAnswer::to_plain_text, is_structured))
                }
                SEARCH if T::HAS_REGISTRY => {
                    let answer = self.tools.search(body).await;
                    Ok(result(answer, SearchAnswer::to_plain_text, is_structured))
                }
                name => {
                    let tools = descriptions(T::HAS_REGISTRY);
                    let names: Vec<String> = tools.iter().map(|tool| format!("{:?}", tool.name)).collect();
                    let message = format!("no tool {}; there are {}", Quoted(name), names.join(", "));
                    Err(ErrorData::invalid_params(message, None))
                }
            }
        };
        tokio::select! {
            answer = work => answer.map(CallToolResponse::from),
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
        }
    }
}

/// The tools. Their schemas list what a model needs: a schema is part of every request of the model. The tools take all fields of the requests
/// of the same names.
fn descriptions(has_registry: bool) -> Vec<Tool> {
    // The tools change nothing, give equal answers to equal requests, and read only what they are sent.
    let annotations =
        |title| ToolAnnotations::with_title(title).read_only(true).idempotent(true).open_world(false);
    let tool = |name, description, title, properties: Value, required: &[&str]| {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let schema: Arc<JsonObject> = schema.as_object().expect("an object").clone().into();
        Tool::new(name, description, schema).with_annotations(annotations(title))
    };
    let text = |description: &str| json!({"type": "string", "description": description});
    let structured = json!({"type": "boolean", "description": "Also return the answer as JSON, with scores and positions."});
    let chunks = json!({
        "type": "array",
        "description": "The texts.",
        "items": {"anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "properties": {"text": {"type": "string"}, "id": {"type": "string"}, "title": {"type": "string"}},
                "required": ["text"],
            },
        ]},
    });
    let ids = json!({
        "type": "array",
        "description": "Instead of chunks: ids that search returned.",
        "items": {"type": "string"},
    });
    let tokens = json!({"type": "integer", "minimum": 1, "description": "The most tokens to keep."});
    let mut compress = json!({
        "query": text("The question."), "chunks": chunks, "tokens": tokens, "structured": structured,
    });
    let mut attribute =
        json!({"answer": text("The answer to check."), "chunks": chunks, "structured": structured});
    if !has_registry {
        return vec![
            tool(COMPRESS, COMPRESS_DESCRIPTION, COMPRESS_TITLE, compress, &["query", "chunks"]),
            tool(ATTRIBUTE, ATTRIBUTE_DESCRIPTION, ATTRIBUTE_TITLE, attribute, &["answer", "chunks"]),
        ];
    }
    compress["chunk_ids"] = ids.clone();
    attribute["chunk_ids"] = ids;
    attribute["compress_id"] = text("Instead of chunks: the id of an earlier compression.");
    let retrieve = json!({
        "hash": text("The hash, as the mark has it."),
        "query": text("A question, to get only the sentences that concern it."),
    });
    let search = json!({
        "query": text("The question."),
        "limit": {"type": "integer", "minimum": 1, "description": "How many texts; 10 if left out."},
        "structured": structured,
    });
    vec![
        tool(COMPRESS, COMPRESS_DESCRIPTION, COMPRESS_TITLE, compress, &["query"]),
        tool(ATTRIBUTE, ATTRIBUTE_DESCRIPTION, ATTRIBUTE_TITLE, attribute, &["answer"]),
        tool(RETRIEVE, RETRIEVE_DESCRIPTION, "Get the original of a shortened text", retrieve, &["hash"]),
        tool(SEARCH, SEARCH_DESCRIPTION, "Search registered texts", search, &["query"]),
    ]
}

/// The body of the request of a call, and whether the answer is wanted as JSON, too.
fn body(tool: &str, mut arguments: JsonObject) -> (Vec<u8>, bool) {
    let is_structured = arguments.remove("structured") == Some(Value::Bool(true));
    if tool == COMPRESS
        && !arguments.contains_key("budget")
        && let Some(tokens) = arguments.remove("tokens")
    {
        arguments.insert("budget".to_owned(), json!({"tokens": tokens}));
    }
    (serde_json::to_vec(&arguments).expect("an object is JSON"), is_structured)
}

/// The result of a call: text for the model, and JSON for programs that want it. An error is a result, too, so that the model can correct its call.
fn result<T: Serialize>(
    answer: Result<T, ApiError>,
    text: impl FnOnce(&T) -> String,
    is_structured: bool,
) -> CallToolResult {
    match answer {
        Ok(answer) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text(&answer))]);
            let value = || serde_json::to_value(&answer).expect("answers are JSON");
            result.structured_content = is_structured.then(value);
            result
        }
        Err(error) => {
            let position = error.param.as_ref().map_or_else(String::new, |param| format!(" (at {param})"));
            let text = format!("{}: {}{position}", error.code, error.message);
            let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
            result.structured_content = serde_json::to_value(ErrorAnswer { error }).ok();
            result
        }
    }
}

/// The context, or why it is empty.
fn context_text(answer: &CompressAnswer) -> String {
    match answer.context() {
        "" => "Nothing in these texts is related to the question.".to_owned(),
        context => context.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_json_and_invalid_messages_have_different_codes() {
        for (body, code) in [
            (r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}"#, 0),
            (r#" {"method": [{}], "jsonrpc": "2.0"} "#, 0),
            ("", -32700),
            ("tools/list", -32700),
            (r#"{"jsonrpc": "2.0""#, -32700),
            (r#"{"jsonrpc": "2.0"} {}"#, -32700),
            ("{}", -32600),
            ("null", -32600),
            (r#"["2.0"]"#, -32600),
            (r#"[{"jsonrpc": "2.0"}]"#, -32600),
            (r#"{"jsonrpc": "1.0"}"#, -32600),
            (r#"{"jsonrpc": 2.0}"#, -32600),
            (r#"{"jsonrpc": "2.0", "jsonrpc": "2.0"}"#, -32600),
        ] {
            let found = Refusal::check(body.as_bytes()).map_or_else(|refusal| refusal.code, |()| 0);
            assert_eq!(found, code, "{body}");
        }
        assert_eq!(Refusal::check(b"\"\xff\"").expect_err("no UTF-8").code, -32700);
        let call = |arguments: &str| {
            format!(
                r#"{{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {{"name": "compress"{arguments}}}}}"#
            )
        };
        for arguments in ["", r#", "arguments": {}"#, r#", "arguments": null"#] {
            assert_eq!(Refusal::check(call(arguments).as_bytes()), Ok(()), "{arguments}");
        }
        let refusal = Refusal::check(call(r#", "arguments": "x""#).as_bytes()).expect_err("a string");
        let error = json!({"code": -32602, "message": "params.arguments is \"x\"; it must be an object"});
        assert_eq!(
            (refusal.to_json(), refusal.has_id()),
            (json!({"jsonrpc": "2.0", "id": 7, "error": error}), true)
        );
        let json = Refusal::message("no").to_json();
        assert_eq!(json, json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "no"}}));
    }
}
