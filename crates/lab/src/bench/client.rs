//! Sends requests over HTTP and times them: from the first byte of the request to the last one of the answer. What a client
//! does before and after (writing the body, reading the answer's JSON) is not in it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// How long a connection is kept without a request: well below what the daemon waits for the next head, which is when it
/// hangs up.
const IDLE: Duration = Duration::from_secs(2);

/// Sends from one thread, which is not one of the daemon's.
pub struct Client {
    runtime: Runtime,
    caller: Caller,
}

/// A handle to send with; clones share connections.
#[derive(Clone)]
pub struct Caller {
    pool: Pool<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Until its last byte.
    pub took: Duration,
    /// Of the answer.
    pub status: StatusCode,
    /// Of the answer.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// What clients beside each other saw.
#[derive(Debug, Clone)]
pub struct Crowd {
    /// One for each request, waiting for its turn included.
    pub took: Vec<Duration>,
    /// From the first request to the last answer.
    pub elapsed: Duration,
}

/// The body of a client's n-th request; none: it has sent all.
pub type Next = dyn Fn(usize, usize) -> Option<Bytes> + Send + Sync;

impl Client {
    /// Of the daemon at `address`.
    ///
    /// # Errors
    /// When the system gives no runtime.
    pub fn new(address: SocketAddr) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, caller: Caller::new(address) })
    }

    /// Runs what calls.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// A handle for what runs under [`Self::block_on`].
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// When there is none, or it is a refusal.
    pub fn ask(&self, body: Bytes) -> anyhow::Result<Answer> {
        self.block_on(self.caller.ask(body))
    }

    /// Has an answer attributed.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn attribute(&self, body: Bytes) -> anyhow::Result<Answer> {
        self.block_on(async { self.caller.post("/v1/attribute", body).await?.accepted() })
    }

    /// Registers chunks.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn register(&self, body: Bytes) -> anyhow::Result<()> {
        self.block_on(async { self.caller.post("/v1/chunks", body).await?.accepted() }).map(drop)
    }

    /// `clients` at the same time, each with a request after the other.
    ///
    /// # Errors
    /// As [`Self::ask`]; the first ends it.
    pub fn crowd(&self, clients: usize, next: Arc<Next>) -> anyhow::Result<Crowd> {
        let all = async {
            let started = Instant::now();
            let mut tasks = JoinSet::new();
            for client in 0..clients {
                let (caller, next) = (self.caller(), Arc::clone(&next));
                tasks.spawn(async move {
                    let mut took = Vec::new();
                    while let Some(body) = next(client, took.len()) {
                        took.push(caller.ask(body).await?.took);
                    }
                    anyhow::Ok(took)
                });
            }
            let mut took = Vec::new();
            while let Some(client) = tasks.join_next().await {
                took.extend(client??);
            }
            Ok(Crowd { took, elapsed: started.elapsed() })
        };
        self.block_on(all)
    }
}

impl Caller {
    /// Of the daemon at `address`, with connections of its own. It has to be used inside a Tokio runtime.
    pub fn new(address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        // Head and body are written apart: without it the second would wait for the first to be acknowledged.
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).pool_idle_timeout(IDLE).build(connector);
        Self { pool, address }
    }

    /// The daemon's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a body and reads the answer, whatever it says.
    ///
    /// # Errors
    /// When none comes.
    pub async fn post(&self, path: &str, body: Bytes) -> anyhow::Result<Answer> {
        let uri = format!("http://{}{path}", self.address);
        self.send(Request::post(uri).header(CONTENT_TYPE, "application/json").body(Full::new(body))?).await
    }

    /// Sends a request and reads the answer, whatever it says.
    ///
    /// # Errors
    /// When none comes.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let started = Instant::now();
        let answer = self.pool.request(request).await?;
        let (head, body) = answer.into_parts();
        let frames = body.collect().await?;
        let took = started.elapsed();
        Ok(Answer { took, status: head.status, headers: head.headers, body: frames.to_bytes() })
    }

    async fn ask(&self, body: Bytes) -> anyhow::Result<Answer> {
        self.post("/v1/compress", body).await?.accepted()
    }
}

impl Answer {
    /// Until its last byte, in milliseconds.
    pub fn ms(&self) -> f64 {
        self.took.as_secs_f64() * 1e3
    }

    fn accepted(self) -> anyhow::Result<Self> {
        let Self { status, body, .. } = &self;
        ensure!(status.is_success(), "the server answered {status}: {}", String::from_utf8_lossy(body));
        Ok(self)
    }
}
