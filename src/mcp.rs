//! The Model Context Protocol: `compress` and `attribute` as tools that a model calls, over standard input and output or HTTP, by the
//! official SDK. Knows nothing of who answers.

mod schema;

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::{Request, Response};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thiserror::Error;
use thresher_core::plain::{Quoted, Shortened};

use crate::api::{AttributeAnswer, AttributeBody, CompressAnswer, CompressBody};
use crate::error::{ApiError, ErrorAnswer};

const COMPRESS: &str = "compress";
const ATTRIBUTE: &str = "attribute";

const INSTRUCTIONS: &str = "Call `compress` before you answer from long retrieved texts: it returns the sentences that matter for the \
    question, word for word and numbered, so that you can cite them. Call `attribute` with an answer and the texts it was given from to see \
    which text each sentence came from, and which sentences no text supports.";

const COMPRESS_SAYS: &str = "Shortens retrieved texts to what a question needs. Give the question in `query` and the texts in `chunks` (strings, \
    or objects with `text`, `id`, `title`). Returns a context of their own sentences, word for word, each text with its number in \
    brackets; cite these numbers. Without `budget` it keeps as much as the evidence says; {\"ratio\": 0.25} or {\"tokens\": 800} bound it.";

const ATTRIBUTE_SAYS: &str = "Checks an answer against the texts it was given from. Give the answer in `answer` and the texts in `chunks` \
    (strings, or objects with `text`, `id`, `title`). Returns for each sentence whether the texts support it, which text and sentence it \
    came from, and which words, names and numbers of it no text has.";

/// Origins of web pages that may call wherever the daemon runs: those of this machine.
const ORIGINS: [&str; 6] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "https://localhost:*",
    "https://127.0.0.1:*",
    "https://[::1]:*",
];

/// Why a request is refused before its message is read, as a JSON-RPC error. Its `id` is null: no `id` was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    code: i32,
    message: String,
}

/// The field that every message of JSON-RPC 2.0 has.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: &'a RawValue,
}

impl Refusal {
    /// Checks that a body is JSON, and a message of JSON-RPC 2.0. The SDK answers both mistakes with 415, as if the media type were wrong.
    ///
    /// # Errors
    /// [`Refusal`]: -32700 if the body is not JSON, -32600 if it is no message.
    pub fn check(body: &[u8]) -> Result<(), Self> {
        let json = serde_json::from_slice::<&RawValue>(body)
            .map_err(|error| Self { code: -32700, message: format!("the body is not JSON: {error}") })?;
        // Serde reads a struct from a list, too.
        let is_object = json.get().starts_with('{');
        let envelope = is_object.then(|| serde_json::from_str::<Envelope>(json.get()).ok()).flatten();
        match envelope {
            Some(envelope) if envelope.jsonrpc.get() == "\"2.0\"" => Ok(()),
            _ => Err(Self::message(
                "the body has to be one JSON-RPC message: an object with \"jsonrpc\": \"2.0\"",
            )),
        }
    }

    /// The body is JSON, but not a message of the protocol.
    pub fn message(said: &str) -> Self {
        Self { code: -32600, message: Shortened(said).to_string() }
    }

    /// A header is wrong.
    pub fn request(said: &str) -> Self {
        Self { code: -32000, message: Shortened(said).to_string() }
    }

    /// Whether the body is not JSON.
    pub fn is_no_json(&self) -> bool {
        self.code == -32700
    }

    /// The body of the answer.
    pub fn to_json(&self) -> Value {
        let Self { code, message } = self;
        json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": message}})
    }
}

/// Who answers calls. A future that is dropped is an answer that nobody waits for: its work stops.
pub trait Tools: Clone + Send + Sync + 'static {
    /// Whether a request may name registered chunks and earlier compressions.
    const HAS_REGISTRY: bool;

    /// To the body of `POST /v1/compress`.
    fn compress(&self, body: Vec<u8>) -> impl Future<Output = Result<CompressAnswer, ApiError>> + Send;

    /// To the body of `POST /v1/attribute`.
    fn attribute(&self, body: Vec<u8>) -> impl Future<Output = Result<AttributeAnswer, ApiError>> + Send;
}

/// Why serving over standard input and output ended before its client did.
#[derive(Debug, Error)]
pub enum McpError {
    /// The client did not begin as the protocol says.
    #[error("the client did not begin as the protocol says: {0}")]
    Begin(String),
    /// A bug, or the end of the runtime.
    #[error("serving broke off: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// Serves whoever started this process, until it closes our standard input.
///
/// # Errors
/// When it does not speak the protocol.
pub async fn serve_stdio(answers: impl Tools) -> Result<(), McpError> {
    let serving = Server { answers }.serve(rmcp::transport::stdio()).await;
    let serving = match serving {
        Ok(serving) => serving,
        // One that closed it before it said anything wanted nothing.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Begin(error.to_string())),
    };
    serving.waiting().await?;
    Ok(())
}

/// Answers one request of the streamable HTTP transport, whose body was read. Nothing is kept between two: there are no sessions.
/// Web pages may call from this machine and from the `origins` that the settings allow; the protocol asks for this check with keys, too.
pub async fn serve_http(
    answers: impl Tools,
    request: Request<Full<Bytes>>,
    origins: Vec<String>,
) -> Response<BoxBody<Bytes, std::convert::Infallible>> {
    // The body is within its limit already.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(usize::MAX)
        // The listener has checked the host.
        .disable_allowed_hosts()
        .with_allowed_origins(ORIGINS.map(str::to_owned).into_iter().chain(origins))
        .enforce_origin_validation();
    let server = move || Ok(Server { answers: answers.clone() });
    StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config).handle(request).await
}

#[derive(Clone)]
struct Server<A> {
    answers: A,
}

impl<A: Tools> ServerHandler for Server<A> {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("thresher", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools(A::HAS_REGISTRY)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools(A::HAS_REGISTRY).into_iter().find(|tool| tool.name == name)
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
                    let answer = self.answers.compress(body).await;
                    Ok(result(
                        answer.map(|answer| (answer.context().to_owned(), serde_json::to_value(answer))),
                    ))
                }
                ATTRIBUTE => {
                    let answer = self.answers.attribute(body).await;
                    Ok(result(answer.map(|answer| (answer.in_plain_words(), serde_json::to_value(answer)))))
                }
                name => {
                    let name = Quoted(name);
                    let message = format!("no tool {name}; there are {COMPRESS:?} and {ATTRIBUTE:?}");
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

fn tools(remembers: bool) -> Vec<Tool> {
    // They change nothing, give the same to the same, and see nothing but what they are sent.
    let annotations =
        |title| ToolAnnotations::with_title(title).read_only(true).idempotent(true).open_world(false);
    vec![
        Tool::new(COMPRESS, COMPRESS_SAYS, schema::asked::<CompressBody>(remembers))
            .with_raw_output_schema(schema::answered::<CompressAnswer>())
            .with_annotations(annotations("Shorten retrieved texts for a question")),
        Tool::new(ATTRIBUTE, ATTRIBUTE_SAYS, schema::asked::<AttributeBody>(remembers))
            .with_raw_output_schema(schema::answered::<AttributeAnswer>())
            .with_annotations(annotations("Check an answer against its sources")),
    ]
}

/// What programs read, and what a model reads of it. A mistake is an answer of the tool: a model can mend what it sent.
fn result(answer: Result<(String, Result<Value, serde_json::Error>), ApiError>) -> CallToolResult {
    match answer {
        Ok((text, value)) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(value.expect("our answers are JSON"));
            result
        }
        Err(error) => {
            let place = error.param.as_ref().map_or_else(String::new, |param| format!(" (at {param})"));
            let text = format!("{}: {}{place}", error.code, error.message);
            let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
            result.structured_content = serde_json::to_value(ErrorAnswer { error }).ok();
            result
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_told_from_what_is_no_json() {
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
        let said = Refusal::message("no").to_json();
        assert_eq!(said, json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "no"}}));
    }
}
