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
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;
use thresher_core::plain::{Quoted, Shortened};

use crate::api::{
    AttributeAnswer, AttributeBody, CompressAnswer, CompressBody, OriginalAnswer, RetrieveBody, SearchAnswer,
    SearchBody,
};
use crate::error::{ApiError, ErrorAnswer};

const COMPRESS: &str = "compress";
const ATTRIBUTE: &str = "attribute";
const RETRIEVE: &str = "retrieve";
const SEARCH: &str = "search";

const INSTRUCTIONS: &str = "Call `compress` before you answer from long retrieved texts: it returns the sentences that matter for the \
    question, word for word and numbered, so that you can cite them. Call `attribute` with an answer and the texts that it was written from \
    to see which text each sentence came from, and which sentences no text supports.";

const COMPRESS_DESCRIPTION: &str = "Shortens retrieved texts to what a question needs. Give the question in `query` and the texts in `chunks` (strings, \
    or objects with `text`, `id`, `title`). Returns a context of their own sentences, word for word, each text with its number in \
    brackets; cite these numbers. Without `budget` it keeps as much as the scores support; {\"ratio\": 0.25} or {\"tokens\": 800} limits it.";

const ATTRIBUTE_DESCRIPTION: &str = "Checks an answer against the texts that it was written from. Give the answer in `answer` and the texts in `chunks` \
    (strings, or objects with `text`, `id`, `title`). Returns for each sentence whether the texts support it, which text and sentence it \
    came from, and which words, names and numbers of it no text has.";

const DAEMON_INSTRUCTIONS: &str = " Where a text ends with a mark such as `[shortened: left out lines 3-16 of 60; hash=...]`, call `retrieve` with \
    the hash if you need what is missing. Call `search` to find texts that were registered.";

const RETRIEVE_DESCRIPTION: &str = "Returns the original of a text that was shortened, whole and unchanged. Give the hash of the mark at the end of \
    the shortened text in `hash`. With a question in `query`, returns only the sentences of the original that concern it.";

const SEARCH_DESCRIPTION: &str = "Searches the registered texts. Give the question in `query`, and how many texts you want in `limit`. Returns the best \
    texts, each with its id in brackets.";

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

    /// A header is wrong.
    pub fn request(text: &str) -> Self {
        Self::new(-32000, Shortened(text).to_string())
    }

    /// Whether the error answers a message by its id.
    pub fn has_id(&self) -> bool {
        !self.id.is_null()
    }

    /// Whether the body is not JSON.
    pub fn is_no_json(&self) -> bool {
        self.code == -32700
    }

    /// The body of the response.
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

    /// The answer to a body of `POST /headroom/v1/retrieve`. Called only if [`Self::HAS_REGISTRY`].
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
        let body = serde_json::to_vec(&request.arguments.unwrap_or_default()).expect("an object is JSON");
        let work = async {
            match &*request.name {
                COMPRESS => {
                    let answer = self.tools.compress(body).await;
                    Ok(result(
                        answer.map(|answer| (answer.context().to_owned(), serde_json::to_value(answer))),
                    ))
                }
                ATTRIBUTE => {
                    let answer = self.tools.attribute(body).await;
                    Ok(result(answer.map(|answer| (answer.to_plain_text(), serde_json::to_value(answer)))))
                }
                RETRIEVE if T::HAS_REGISTRY => {
                    let answer = self.tools.retrieve(body).await;
                    Ok(result(answer.map(|answer| (answer.to_plain_text(), serde_json::to_value(answer)))))
                }
                SEARCH if T::HAS_REGISTRY => {
                    let answer = self.tools.search(body).await;
                    Ok(result(answer.map(|answer| (answer.to_plain_text(), serde_json::to_value(answer)))))
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

fn descriptions(has_registry: bool) -> Vec<Tool> {
    // The tools change nothing, give equal answers to equal requests, and read only what they are sent.
    let annotations =
        |title| ToolAnnotations::with_title(title).read_only(true).idempotent(true).open_world(false);
    let mut tools = vec![
        Tool::new(COMPRESS, COMPRESS_DESCRIPTION, request_schema::<CompressBody>(has_registry))
            .with_raw_output_schema(response_schema::<CompressAnswer>())
            .with_annotations(annotations("Shorten retrieved texts for a question")),
        Tool::new(ATTRIBUTE, ATTRIBUTE_DESCRIPTION, request_schema::<AttributeBody>(has_registry))
            .with_raw_output_schema(response_schema::<AttributeAnswer>())
            .with_annotations(annotations("Check an answer against its sources")),
    ];
    if has_registry {
        tools.extend([
            Tool::new(RETRIEVE, RETRIEVE_DESCRIPTION, request_schema::<RetrieveBody>(true))
                .with_raw_output_schema(response_schema::<OriginalAnswer>())
                .with_annotations(annotations("Get the original of a shortened text")),
            Tool::new(SEARCH, SEARCH_DESCRIPTION, request_schema::<SearchBody>(true))
                .with_raw_output_schema(response_schema::<SearchAnswer>())
                .with_annotations(annotations("Search registered texts")),
        ]);
    }
    tools
}

/// The result of a call: JSON for programs, and text for the model. An error is a result, too, so that the model can correct its call.
fn result(answer: Result<(String, Result<Value, serde_json::Error>), ApiError>) -> CallToolResult {
    match answer {
        Ok((text, value)) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(value.expect("answers are JSON"));
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

/// Fields that refer to what only a daemon stores.
const DAEMON_FIELDS: [&str; 2] = ["chunk_ids", "compress_id"];

/// The definition of error codes, which tools describe as strings: a model that reads all of a tool's schema has no use for the list.
const ERROR_CODE: &str = "ErrorCode";

fn request_schema<T: JsonSchema>(has_registry: bool) -> Arc<JsonObject> {
    let mut schema = object_schema(SchemaSettings::draft2020_12().for_deserialize(), |settings| {
        settings.into_generator().into_root_schema_for::<T>()
    });
    // Some model providers refuse tools whose outermost schema has conditions. A wrong combination of fields is an error of the call.
    for condition in ["if", "then", "else"] {
        schema.remove(condition);
    }
    if let Some(properties) = schema.get_mut("properties").and_then(|all| all.as_object_mut())
        && !has_registry
    {
        properties.retain(|name, _| !DAEMON_FIELDS.contains(&name.as_str()));
    }
    schema.into()
}

fn response_schema<T: JsonSchema>() -> Arc<JsonObject> {
    object_schema(SchemaSettings::draft2020_12().for_serialize(), |settings| {
        settings.into_generator().into_root_schema_for::<T>()
    })
    .into()
}

fn object_schema(settings: SchemaSettings, schema: impl FnOnce(SchemaSettings) -> Schema) -> JsonObject {
    let mut schema = schema(settings.with_transform(RecursiveTransform(simplify)));
    if let Some(definitions) = schema.get_mut("$defs").and_then(|all| all.as_object_mut()) {
        definitions.remove(ERROR_CODE);
    }
    schema.as_object().expect("bodies are objects").clone()
}

/// Removes formats that only schemars knows, since strict validators refuse them, and the list of error codes.
fn simplify(schema: &mut Schema) {
    schema.remove("format");
    let refers = schema.get("$ref").and_then(|reference| reference.as_str()?.strip_prefix("#/$defs/"));
    if refers == Some(ERROR_CODE) {
        schema.remove("$ref");
        schema.insert("type".to_owned(), "string".into());
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
