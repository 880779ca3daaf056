//! Clients of the attacks: HTTP requests with arbitrary headers, raw connections that misbehave, and a
//! well-behaved client that runs in the background.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Finding;
use thresher_lab::client::{Caller, HttpResponse};

/// How long a response may take: longer than the daemon's longest default deadline.
pub const RESPONSE_TIME_MAX: Duration = Duration::from_secs(30);

/// How long connecting may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// The HTTP/2 connection preface with an empty SETTINGS frame.
pub const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The HTTP/2 connection preface with SETTINGS_INITIAL_WINDOW_SIZE = 0: the peer may send no data.
const H2_CLOSED_WINDOW: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";

/// Flags of a HEADERS frame without a body: END_STREAM and END_HEADERS.
const H2_END: u8 = 0x05;

/// Receive buffer of clients that do not read. With its default size the system would buffer megabytes.
const RECEIVE_BUFFER_BYTES: u32 = 4096;

/// Time between two requests of a [`BackgroundClient`].
const BACKGROUND_INTERVAL: Duration = Duration::from_millis(200);

/// How long a [`BackgroundClient`] tries one request, retries included.
const BACKGROUND_TIME_MAX: Duration = Duration::from_secs(10);

/// The longest time that a request of a [`BackgroundClient`] may take, in milliseconds.
const BACKGROUND_MS_MAX: f64 = 5_000.0;

/// The smallest share of a [`BackgroundClient`]'s requests that must be answered.
const BACKGROUND_SHARE_MIN: f64 = 0.9;

/// An HTTP request with arbitrary headers.
#[derive(Debug, Clone)]
pub struct HttpRequest<'a> {
    pub method: Method,
    pub path: &'a str,
    /// Headers. They replace default headers of the same name.
    pub headers: &'a [(&'a str, &'a str)],
    pub body: Bytes,
}

impl<'a> HttpRequest<'a> {
    /// Creates a GET request.
    pub fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, headers: &[], body: Bytes::new() }
    }

    /// Creates a POST request with a JSON body.
    pub fn post(path: &'a str, body: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, path, headers: &[], body: body.into() }
    }

    pub fn with(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { headers, ..self }
    }

    /// Sends the request and reads the response, whatever its status.
    ///
    /// # Errors
    /// Fails if there is no response within [`RESPONSE_TIME_MAX`].
    pub async fn send(&self, caller: &Caller) -> anyhow::Result<HttpResponse> {
        self.send_within(caller, RESPONSE_TIME_MAX).await
    }

    /// Sends the request and reads the response, whatever its status.
    ///
    /// # Errors
    /// Fails if there is no response within `max`.
    pub async fn send_within(&self, caller: &Caller, max: Duration) -> anyhow::Result<HttpResponse> {
        let uri = format!("http://{}{}", caller.address(), self.path);
        let mut request = Request::builder().method(self.method.clone()).uri(uri);
        let is_set = |name: &str| self.headers.iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
        if !self.body.is_empty() && !is_set("content-type") {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in self.headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(self.body.clone()))?;
        let response = timeout(max, caller.send(request)).await;
        response.with_context(|| format!("no response to {} within {} s", self.path, max.as_secs()))?
    }
}

/// Returns how long a new client waits for a response, connecting included, in milliseconds.
///
/// # Errors
/// Fails if it does not get status 200 within ten seconds.
pub async fn new_client_ms(address: SocketAddr, path: &str) -> anyhow::Result<f64> {
    let (started, caller) = (Instant::now(), Caller::new(address));
    let response = HttpRequest::get(path).send_within(&caller, Duration::from_secs(10)).await?;
    anyhow::ensure!(response.status == StatusCode::OK, "{path} was answered with {}", response.status);
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// Returns the seconds of the `Retry-After` header, if there is one.
pub fn retry_after_s(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// Opens a connection and sends `bytes` over it.
///
/// # Errors
/// Fails if the connection is not accepted or breaks.
pub async fn connect_and_send(address: SocketAddr, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    connect_socket_and_send(TcpSocket::new_v4()?, address, bytes).await
}

/// Opens a connection from another loopback address, as if from another machine, and sends `bytes`.
///
/// # Errors
/// Fails as [`connect_and_send`] does.
pub async fn connect_from_and_send(
    source: Ipv4Addr,
    address: SocketAddr,
    bytes: &[u8],
) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    connect_socket_and_send(socket, address, bytes).await
}

/// Opens a connection with a small receive buffer, for a client that does not read, and sends `bytes`.
///
/// # Errors
/// Fails as [`connect_and_send`] does.
pub async fn connect_without_reading(address: SocketAddr, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    connect_socket_and_send(socket, address, bytes).await
}

async fn connect_socket_and_send(
    socket: TcpSocket,
    address: SocketAddr,
    bytes: &[u8],
) -> anyhow::Result<TcpStream> {
    let mut stream = timeout(CONNECT_TIME_MAX, socket.connect(address))
        .await
        .context("the connection was not accepted in time")??;
    timeout(CONNECT_TIME_MAX, stream.write_all(bytes)).await.context("the peer does not read")??;
    Ok(stream)
}

/// Returns the first bytes of an HTTP/2 connection with a GET request whose response body may not be sent.
pub fn h2_get_with_closed_window(address: SocketAddr, path: &str) -> Vec<u8> {
    let authority = address.to_string();
    // Indexed: `:method: GET` (2), `:scheme: http` (6). Literal: `:path` (4), `:authority` (1).
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(0x04, path), (0x01, &*authority)] {
        assert!(value.len() < 127, "a length of one byte");
        block.extend([name, value.len() as u8]);
        block.extend(value.as_bytes());
    }
    let mut bytes = H2_CLOSED_WINDOW.to_vec();
    bytes.extend([0, 0, block.len() as u8, 1, H2_END, 0, 0, 0, 1]);
    bytes.extend(block);
    bytes
}

/// Reads and discards what has arrived; returns whether the peer has closed the connection.
pub fn is_closed(stream: &TcpStream) -> bool {
    let mut bytes = [0; 16 * 1024];
    loop {
        match stream.try_read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// A well-behaved client that sends a small request at intervals during an attack, and obeys `Retry-After`.
pub struct BackgroundClient {
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    /// Aborted when the client is dropped.
    tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Tally {
    answered: usize,
    ms_max: f64,
    failed: BTreeMap<String, usize>,
}

impl Tally {
    fn count(&mut self, took: Duration, answered: anyhow::Result<()>) {
        self.ms_max = self.ms_max.max(took.as_secs_f64() * 1e3);
        match answered {
            Ok(()) => self.answered += 1,
            Err(error) => *self.failed.entry(format!("{error:#}")).or_default() += 1,
        }
    }
}

impl BackgroundClient {
    /// Starts to send, with connections of its own.
    pub fn start(address: SocketAddr) -> Self {
        let (stop, tally) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Tally>>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&tally));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let caller = Caller::new(address);
            while !stopped.load(Ordering::Relaxed) {
                let (started, answered) = (Instant::now(), send_small_request(&caller).await);
                counted.lock().unwrap_or_else(PoisonError::into_inner).count(started.elapsed(), answered);
                sleep(BACKGROUND_INTERVAL).await;
            }
        });
        Self { stop, tally, tasks }
    }

    /// Waits for the last response; returns the share of answered requests and the time of the slowest.
    pub async fn finish(mut self) -> [Finding; 2] {
        self.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let failed: usize = tally.failed.values().sum();
        let sent = tally.answered + failed;
        let failures: Vec<String> =
            tally.failed.iter().map(|(error, times)| format!("{times} times: {error}")).collect();
        let share = tally.answered as f64 / sent.max(1) as f64;
        [
            Finding::at_least("small requests answered meanwhile, share", share, BACKGROUND_SHARE_MIN)
                .note(format!("{} of {sent}; {}", tally.answered, failures.join(", "))),
            Finding::at_most("slowest of these requests, ms", tally.ms_max, BACKGROUND_MS_MAX),
        ]
    }
}

/// Sends one small request, and retries it as `Retry-After` says, for at most [`BACKGROUND_TIME_MAX`].
async fn send_small_request(caller: &Caller) -> anyhow::Result<()> {
    let body = json!({"query": "When is the tide?", "chunks": ["The tide is at noon. Ships are slow."]});
    let request = HttpRequest::post("/v1/compress", body.to_string());
    let until = Instant::now() + BACKGROUND_TIME_MAX;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let response = request.send_within(caller, left).await.context("no response in time")?;
        let wait = retry_after_s(&response.headers).map(Duration::from_secs);
        match (response.status, wait) {
            (StatusCode::OK, _) => return Ok(()),
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(wait))
                if Instant::now() + wait < until =>
            {
                sleep(wait).await;
            }
            (status, _) => anyhow::bail!("{status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_lengths_match_their_headers() {
        let address = "127.0.0.1:80".parse().expect("an address");
        let bytes = h2_get_with_closed_window(address, "/v1/chunks");
        let frame = &bytes[H2_CLOSED_WINDOW.len()..];
        assert_eq!(usize::from(frame[2]) + 9, frame.len());
        assert_eq!(frame[3..9], [1, 5, 0, 0, 0, 1]);
        assert_eq!(&frame[9..13], [0x82, 0x86, 0x04, 10]);
    }
}
