//! HTTP clients that time requests, from the first byte of the request to the last byte of the response.
//! Writing the request body and parsing the response are not part of the time.

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

/// How long an idle connection is kept. It is well below the daemon's timeout for the next request head,
/// after which the daemon closes the connection.
const IDLE_MAX: Duration = Duration::from_secs(2);

/// A blocking HTTP client that sends from one thread, which is not one of the daemon's.
pub struct Client {
    runtime: Runtime,
    caller: Caller,
}

/// An asynchronous handle for sending requests; clones share connections.
#[derive(Clone)]
pub struct Caller {
    pool: Pool<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

#[derive(Debug, Clone)]
pub struct HttpResponse {
    /// Time until the last byte of the response.
    pub time: Duration,
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Times of clients that sent requests concurrently.
#[derive(Debug, Clone)]
pub struct ConcurrentRun {
    /// One time per request, including its wait in the daemon's queue.
    pub times: Vec<Duration>,
    /// Time from the first request to the last response.
    pub elapsed: Duration,
}

/// Returns the body of a client's n-th request, given the client's index and n; `None` once the client has
/// sent all its requests.
pub type NextBody = dyn Fn(usize, usize) -> Option<Bytes> + Send + Sync;

impl Client {
    /// Creates a client of the daemon at `address`.
    ///
    /// # Errors
    /// Fails if the system cannot create a runtime.
    pub fn new(address: SocketAddr) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, caller: Caller::new(address) })
    }

    /// Runs a future to completion on this client's thread.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Returns a handle for futures that run under [`Self::block_on`].
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Sends a body to `/v1/compress` and waits for the response.
    ///
    /// # Errors
    /// Fails if there is no response or its status is not a success.
    pub fn compress(&self, body: Bytes) -> anyhow::Result<HttpResponse> {
        self.block_on(self.caller.compress(body))
    }

    /// Sends a body to `/v1/attribute` and waits for the response.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn attribute(&self, body: Bytes) -> anyhow::Result<HttpResponse> {
        self.block_on(async { self.caller.post("/v1/attribute", body).await?.ensure_success() })
    }

    /// Sends a body to `/v1/chunks`, which registers chunks, and waits for the response.
    ///
    /// # Errors
    /// Fails as [`Self::compress`] does.
    pub fn register(&self, body: Bytes) -> anyhow::Result<()> {
        self.block_on(async { self.caller.post("/v1/chunks", body).await?.ensure_success() }).map(drop)
    }

    /// Runs `clients` clients concurrently; each sends one request after another to `/v1/compress`.
    ///
    /// # Errors
    /// Fails with the first request that fails as in [`Self::compress`].
    pub fn run_concurrently(&self, clients: usize, next: Arc<NextBody>) -> anyhow::Result<ConcurrentRun> {
        let all = async {
            let started = Instant::now();
            let mut tasks = JoinSet::new();
            for client in 0..clients {
                let (caller, next) = (self.caller(), Arc::clone(&next));
                tasks.spawn(async move {
                    let mut times = Vec::new();
                    while let Some(body) = next(client, times.len()) {
                        times.push(caller.compress(body).await?.time);
                    }
                    anyhow::Ok(times)
                });
            }
            let mut times = Vec::new();
            while let Some(client) = tasks.join_next().await {
                times.extend(client??);
            }
            Ok(ConcurrentRun { times, elapsed: started.elapsed() })
        };
        self.block_on(all)
    }
}

impl Caller {
    /// Creates a handle to the daemon at `address` with connections of its own. It must be used inside a
    /// Tokio runtime.
    pub fn new(address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        // Head and body are written separately. Without TCP_NODELAY, the body would wait for the
        // acknowledgement of the head.
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).pool_idle_timeout(IDLE_MAX).build(connector);
        Self { pool, address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a JSON body with POST and reads the response, whatever its status.
    ///
    /// # Errors
    /// Fails if there is no response.
    pub async fn post(&self, path: &str, body: Bytes) -> anyhow::Result<HttpResponse> {
        let uri = format!("http://{}{path}", self.address);
        self.send(Request::post(uri).header(CONTENT_TYPE, "application/json").body(Full::new(body))?).await
    }

    /// Sends a request and reads the response, whatever its status.
    ///
    /// # Errors
    /// Fails if there is no response.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> anyhow::Result<HttpResponse> {
        let started = Instant::now();
        let response = self.pool.request(request).await?;
        let (head, body) = response.into_parts();
        let frames = body.collect().await?;
        let time = started.elapsed();
        Ok(HttpResponse { time, status: head.status, headers: head.headers, body: frames.to_bytes() })
    }

    async fn compress(&self, body: Bytes) -> anyhow::Result<HttpResponse> {
        self.post("/v1/compress", body).await?.ensure_success()
    }
}

impl HttpResponse {
    /// Returns the time until the last byte of the response, in milliseconds.
    pub fn ms(&self) -> f64 {
        self.time.as_secs_f64() * 1e3
    }

    fn ensure_success(self) -> anyhow::Result<Self> {
        let Self { status, body, .. } = &self;
        ensure!(status.is_success(), "the server answered {status}: {}", String::from_utf8_lossy(body));
        Ok(self)
    }
}
