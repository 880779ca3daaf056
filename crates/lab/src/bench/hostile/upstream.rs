//! A server for language models that follows a script, in this process, on loopback: it records what it is sent.
//! Knows nothing of what should arrive.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::HeaderMap;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Pieces of an endless answer are about so long.
const PIECE_BYTES: usize = 2_000;

/// What it answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// One short answer, with headers that concern the upstream's own web site.
    Answer,
    /// Events without end, with sentences in them.
    Sentences,
    /// Events without end, with one sentence that goes on.
    OneSentence,
    /// One event that goes on.
    OneLine,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// Path and query.
    pub uri: String,
    /// Its headers.
    pub headers: HeaderMap,
}

/// A server that runs until it is dropped.
pub struct Upstream {
    address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    /// Ends with it.
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// Listens.
    ///
    /// # Errors
    /// When the system gives no port.
    pub async fn start(script: Script) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let arrived = Arc::<Mutex<Vec<Arrived>>>::default();
        let record = Arc::clone(&arrived);
        let handle = async move |request: Request| {
            let (head, body) = request.into_parts();
            let seen = Arrived { uri: head.uri.to_string(), headers: head.headers };
            record.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
            // Some send the whole body before they read.
            let _ = body.collect().await;
            script.answer()
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = axum::serve(listener, Router::new().fallback(handle)).await;
        });
        Ok(Self { address, arrived, _tasks: tasks })
    }

    /// The setting `middleware.upstreams` that names it, with every model.
    pub fn setting(&self) -> toml::Value {
        let mut upstream = toml::Table::new();
        upstream.insert("url".to_owned(), format!("http://{}", self.address).into());
        vec![toml::Value::from(upstream)].into()
    }

    /// What has arrived since this was last asked.
    pub fn take(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Script {
    fn answer(self) -> Response {
        let builder = Response::builder();
        let answer = match self {
            Self::Answer => {
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
                let pieces = stream::unfold(0_usize, move |n| async move {
                    Some((Ok::<_, Infallible>(self.piece(n)), n + 1))
                });
                builder.header("content-type", "text/event-stream").body(Body::from_stream(pieces))
            }
        };
        answer.expect("the headers are constant")
    }

    /// The n-th piece of an endless answer.
    fn piece(self, n: usize) -> Bytes {
        let event = |text: &str| {
            let choices = json!([{"index": 0, "delta": {"content": text}}]);
            format!("data: {}\n\n", json!({"id": "a", "object": "chat.completion.chunk", "choices": choices}))
        };
        match self {
            Self::OneSentence => event(&"tide after tide ".repeat(PIECE_BYTES / 16)).into(),
            Self::OneLine if n == 0 => "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"".into(),
            Self::OneLine => "x".repeat(PIECE_BYTES).into(),
            Self::Answer | Self::Sentences => {
                event(&format!("The tide number {n} is at noon. Ships are slow. ")).into()
            }
        }
    }
}
