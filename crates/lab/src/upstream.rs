//! A scripted LLM server in this process, on loopback, that records the requests it receives.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Collected};
use hyper::HeaderMap;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Approximate size of one delta of an endless response, in bytes.
const DELTA_BYTES: usize = 2_000;

/// What the server responds with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// One short response, with headers that concern the upstream's own web site.
    ShortAnswer,
    /// Endless events that contain sentences.
    Sentences,
    /// Endless events that contain one endless sentence.
    OneSentence,
    /// One endless event on one line.
    OneLine,
}

#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub uri: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A server that runs until it is dropped.
pub struct Upstream {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    /// Aborted when the server is dropped.
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// Starts the server on a free port.
    ///
    /// # Errors
    /// Fails if the system provides no port.
    pub async fn start(script: Script) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let requests = Arc::<Mutex<Vec<RecordedRequest>>>::default();
        let record = Arc::clone(&requests);
        let handle = async move |request: Request| {
            let (head, body) = request.into_parts();
            // Some clients send the whole body before they read.
            let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            let recorded = RecordedRequest { uri: head.uri.to_string(), headers: head.headers, body };
            record.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
            script.response()
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, Router::new().fallback(handle)).await;
        });
        Ok(Self { address, requests, _tasks: tasks })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a value for the setting `middleware.upstreams` that names this server for every model.
    pub fn setting(&self) -> toml::Value {
        setting_of(self.address)
    }

    /// Returns an entry of `middleware.upstreams` that names this server for one model.
    pub fn setting_with_model(&self, model: &str) -> toml::Value {
        let mut upstream = toml::Table::new();
        upstream.insert("url".to_owned(), format!("http://{}", self.address).into());
        upstream.insert("models".to_owned(), vec![model.to_owned()].into());
        upstream.into()
    }

    /// As [`Self::setting`], but for one model only, with a key of the operator that is in `key_file`.
    pub fn setting_with_key(&self, model: &str, key_file: &str) -> toml::Value {
        let mut upstream = toml::Table::new();
        upstream.insert("url".to_owned(), format!("http://{}", self.address).into());
        upstream.insert("models".to_owned(), vec![model.to_owned()].into());
        upstream.insert("key_file".to_owned(), key_file.to_owned().into());
        vec![toml::Value::from(upstream)].into()
    }

    /// Returns the requests received since the last call.
    pub fn take_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns a value for the setting `middleware.upstreams` that names a server for every model.
pub fn setting_of(address: SocketAddr) -> toml::Value {
    let mut upstream = toml::Table::new();
    upstream.insert("url".to_owned(), format!("http://{address}").into());
    vec![toml::Value::from(upstream)].into()
}

impl Script {
    fn response(self) -> Response {
        let builder = Response::builder();
        let response = match self {
            Self::ShortAnswer => {
                let message = json!({"role": "assistant", "content": "The tide is at noon."});
                let body = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
                builder
                    .header("content-type", "application/json")
                    .header("set-cookie", "session=upstream")
                    .header("alt-svc", "h3=\":443\"")
                    .header("access-control-allow-origin", "*")
                    .body(Body::from(body.to_string()))
            }
            _ => {
                let deltas = stream::unfold(0_usize, move |n| async move {
                    Some((Ok::<_, Infallible>(self.nth_delta(n)), n + 1))
                });
                builder.header("content-type", "text/event-stream").body(Body::from_stream(deltas))
            }
        };
        response.expect("the headers are constant")
    }

    fn nth_delta(self, n: usize) -> Bytes {
        let event = |text: &str| {
            let choices = json!([{"index": 0, "delta": {"content": text}}]);
            format!("data: {}\n\n", json!({"id": "a", "object": "chat.completion.chunk", "choices": choices}))
        };
        match self {
            Self::OneSentence => event(&"tide after tide ".repeat(DELTA_BYTES / 16)).into(),
            Self::OneLine if n == 0 => "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"".into(),
            Self::OneLine => "x".repeat(DELTA_BYTES).into(),
            Self::ShortAnswer | Self::Sentences => {
                event(&format!("The tide number {n} is at noon. Ships are slow. ")).into()
            }
        }
    }
}
