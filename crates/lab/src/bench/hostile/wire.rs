//! Requests with any headers, sockets that are treated badly, and a well-behaved client beside them.
//! Knows nothing of what should be answered.

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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Finding;
use crate::bench::client::{Answer, Caller};

/// How long any request is waited for: longer than the daemon's longest default deadline for an answer.
pub const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The start of a connection of HTTP/2, and an empty SETTINGS frame.
pub const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The same with SETTINGS_INITIAL_WINDOW_SIZE = 0: the peer may send no data.
const H2_CLOSED_WINDOW: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";

/// Flags of a HEADERS frame without a body: END_STREAM, END_HEADERS.
const H2_END: u8 = 0x05;

/// The receive buffer of clients that do not read: the system would otherwise take megabytes for them.
const RECEIVE_BYTES: u32 = 4096;

/// Between two requests of the client [`Bystander`] an attack.
const PAUSE: Duration = Duration::from_millis(200);

/// How long one request of this client is tried.
const BESIDE_MAX: Duration = Duration::from_secs(10);

/// A request of this client may take so long.
const BESIDE_MS_MAX: f64 = 5_000.0;

/// Of the requests of this client, this share has to be answered.
const BESIDE_SHARE_MIN: f64 = 0.9;

/// A request with any headers.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    /// Headers, in place of the usual ones of the same name.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: Bytes,
}

impl<'a> Ask<'a> {
    /// A GET.
    pub fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, headers: &[], body: Bytes::new() }
    }

    /// A POST of JSON.
    pub fn post(path: &'a str, body: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, path, headers: &[], body: body.into() }
    }

    /// With these headers.
    pub fn with(self, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { headers, ..self }
    }

    /// Sends it and reads the answer, whatever it says.
    ///
    /// # Errors
    /// When none comes within [`ANSWER_MAX`].
    pub async fn send(&self, caller: &Caller) -> anyhow::Result<Answer> {
        self.send_within(caller, ANSWER_MAX).await
    }

    /// The same within another time.
    ///
    /// # Errors
    /// When no answer comes within it.
    pub async fn send_within(&self, caller: &Caller, max: Duration) -> anyhow::Result<Answer> {
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
        let answer = timeout(max, caller.send(request)).await;
        answer.with_context(|| format!("no answer to {} within {} s", self.path, max.as_secs()))?
    }
}

/// How long a new client waits for an answer, its connection included.
///
/// # Errors
/// When it is not answered with 200 within ten seconds.
pub async fn newcomer_ms(address: SocketAddr, path: &str) -> anyhow::Result<f64> {
    let (started, caller) = (Instant::now(), Caller::new(address));
    let answer = Ask::get(path).send_within(&caller, Duration::from_secs(10)).await?;
    anyhow::ensure!(answer.status == StatusCode::OK, "{path} was answered {}", answer.status);
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

/// Seconds that an answer asks its client to wait.
pub fn retry_after_s(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// A connection over which `bytes` were sent.
///
/// # Errors
/// When it is not accepted or broken.
pub async fn sent(address: SocketAddr, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    sent_over(TcpSocket::new_v4()?, address, bytes).await
}

/// The same from another loopback address, as if from another machine.
///
/// # Errors
/// As [`sent`].
pub async fn sent_from(source: Ipv4Addr, address: SocketAddr, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    sent_over(socket, address, bytes).await
}

/// The same with a small receive buffer, for a client that is not going to read.
///
/// # Errors
/// As [`sent`].
pub async fn sent_to_read_nothing(address: SocketAddr, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    sent_over(socket, address, bytes).await
}

async fn sent_over(socket: TcpSocket, address: SocketAddr, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    let mut stream = timeout(CONNECT_MAX, socket.connect(address)).await.context("no connection")??;
    timeout(CONNECT_MAX, stream.write_all(bytes)).await.context("nothing is read")??;
    Ok(stream)
}

/// An HTTP/2 connection's first bytes with a GET on it whose answer may not be sent.
pub fn h2_get_closed(address: SocketAddr, path: &str) -> Vec<u8> {
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

/// Reads what has arrived and throws it away; whether the peer has closed the connection.
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

/// The status line's number, once it has arrived.
///
/// # Errors
/// When none arrives within [`ANSWER_MAX`].
pub async fn status(stream: &mut TcpStream) -> anyhow::Result<u16> {
    let mut head = Vec::new();
    let read = async {
        while head.len() < 12 {
            let byte = stream.read_u8().await.context("the connection was closed")?;
            head.push(byte);
        }
        anyhow::Ok(())
    };
    timeout(ANSWER_MAX, read).await.context("no answer")??;
    String::from_utf8_lossy(&head[9..12]).parse().context("no status")
}

/// A client that sends a small request now and then while something else goes on, and comes back when it is told to.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    /// Ends with it.
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
            Err(why) => *self.failed.entry(format!("{why:#}")).or_default() += 1,
        }
    }
}

impl Bystander {
    /// Begins to send, with connections of its own.
    pub fn start(address: SocketAddr) -> Self {
        let (stop, tally) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Tally>>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&tally));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let caller = Caller::new(address);
            while !stopped.load(Ordering::Relaxed) {
                let (started, answered) = (Instant::now(), small(&caller).await);
                counted.lock().unwrap_or_else(PoisonError::into_inner).count(started.elapsed(), answered);
                sleep(PAUSE).await;
            }
        });
        Self { stop, tally, tasks }
    }

    /// Waits for the last answer; the share of requests that were answered, and how long the slowest took.
    pub async fn finish(mut self) -> [Finding; 2] {
        self.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let failed: usize = tally.failed.values().sum();
        let sent = tally.answered + failed;
        let failures: Vec<String> =
            tally.failed.iter().map(|(why, times)| format!("{times} times: {why}")).collect();
        let share = tally.answered as f64 / sent.max(1) as f64;
        [
            Finding::at_least("small requests answered meanwhile, share", share, BESIDE_SHARE_MIN)
                .note(format!("{} of {sent}; {}", tally.answered, failures.join(", "))),
            Finding::at_most("slowest of these, ms", tally.ms_max, BESIDE_MS_MAX),
        ]
    }
}

/// One small request, tried again for as long as the daemon says when, up to [`BESIDE_MAX`].
async fn small(caller: &Caller) -> anyhow::Result<()> {
    let body = json!({"query": "When is the tide?", "chunks": ["The tide is at noon. Ships are slow."]});
    let ask = Ask::post("/v1/compress", body.to_string());
    let until = Instant::now() + BESIDE_MAX;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let answer = ask.send_within(caller, left).await.context("late")?;
        let wait = retry_after_s(&answer.headers).map(Duration::from_secs);
        match (answer.status, wait) {
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
    fn frames_have_the_length_that_they_say() {
        let address = "127.0.0.1:80".parse().expect("an address");
        let bytes = h2_get_closed(address, "/v1/chunks");
        let frame = &bytes[H2_CLOSED_WINDOW.len()..];
        assert_eq!(usize::from(frame[2]) + 9, frame.len());
        assert_eq!(frame[3..9], [1, 5, 0, 0, 0, 1]);
        assert_eq!(&frame[9..13], [0x82, 0x86, 0x04, 10]);
    }
}
