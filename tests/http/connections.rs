//! Limits of connections and of memory: clients that send nothing or read nothing, too many connections, and
//! bodies and responses that together need too much memory.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get as route;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use thresher::admission::Sharer;
use thresher::http::{self, ConnectionLimits, Serving};
use thresher_core::domain::Tenant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::support::wait::eventually;
use crate::support::wire::{Framing, get, post, send};
use crate::{BODIES_BYTES_MAX, assert_good, check_error, daemon, good, scripted, serving};

/// A limit that these tests wait for. No test needs to finish anything within it.
const SOON: Duration = Duration::from_millis(300);

/// The bytes of a response that is larger than all buffers between two programs on one machine.
const LARGE: usize = 32 << 20;

/// The bytes of each part in which the large response is written.
const PART: usize = 64 << 10;

/// A listener whose `/` answers at once and whose `/large` answers with [`LARGE`] bytes.
struct Listener {
    address: SocketAddr,
    /// Sending true stops the listener.
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    /// Receives a message for each large response that the listener has dropped, because it was sent or
    /// because its connection was closed.
    dropped: mpsc::UnboundedReceiver<()>,
}

/// Reports that a large response was dropped.
struct ReportDrop(mpsc::UnboundedSender<()>);

impl Drop for ReportDrop {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

fn large_body(dropped: mpsc::UnboundedSender<()>) -> Body {
    let report = ReportDrop(dropped);
    let parts = (0..LARGE / PART).map(move |_| {
        let _report = &report;
        Ok::<_, Infallible>(Bytes::from_static(&[b'x'; PART]))
    });
    Body::from_stream(stream::iter(parts))
}

async fn listener(connections: ConnectionLimits) -> Listener {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (report, dropped) = mpsc::unbounded_channel();
    let large = route(async move || large_body(report.clone()));
    let router = Router::new().route("/", route(async || "ok")).route("/large", large);
    let (stop, mut stopped) = watch::channel(false);
    let stopped = async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let serving = Serving { connections, ..serving() };
    let task = tokio::spawn(http::serve(listener, router, serving, None, stopped));
    Listener { address, stop, task, dropped }
}

fn limits() -> ConnectionLimits {
    serving().connections
}

/// Waits until the other side closes the connection, and discards what it sends before.
async fn closed(stream: &mut TcpStream) {
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await.is_ok_and(|length| length > 0) {}
}

/// A connection that has had one response and stays open.
async fn keep_alive(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("the daemon reads");
    let mut answer = [0; 512];
    let length = stream.read(&mut answer).await.expect("an answer");
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
    stream
}

/// An HTTP/2 client with small windows. The task ends when the connection does.
async fn http2(
    address: SocketAddr,
) -> (hyper::client::conn::http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<()>) {
    let stream = TcpStream::connect(address).await.expect("the daemon listens");
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(16_384)
        .initial_connection_window_size(16_384)
        .handshake(TokioIo::new(stream))
        .await
        .expect("HTTP/2");
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

fn request(path: &str) -> Request<Empty<Bytes>> {
    Request::builder().uri(format!("http://localhost{path}")).body(Empty::new()).expect("a request")
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_closed_to_make_space_for_new_ones() {
    let listener = listener(ConnectionLimits { count_max: 8, ..limits() }).await;
    let address = listener.address;
    let mut idle = Vec::new();
    for n in 0..40 {
        idle.push(match n % 3 {
            0 => keep_alive(address).await,
            // A connection that sends nothing, and one that sends half a head.
            1 => TcpStream::connect(address).await.expect("the daemon listens"),
            _ => {
                let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
                stream.write_all(b"GET / HTTP/1.1\r\nho").await.expect("the daemon reads");
                stream
            }
        });
    }
    for _ in 0..20 {
        assert_eq!(get(address, "/").await.status, 200);
    }
    closed(&mut idle[0]).await;
}

/// Sends requests over one connection for three idle limits. False if the connection was closed because this
/// machine was too busy to send them in time, which says nothing about the daemon.
async fn outlives_idle_limit(address: SocketAddr) -> bool {
    let (mut sender, _connection) = http2(address).await;
    let (started, mut last_sent) = (Instant::now(), Instant::now());
    while started.elapsed() < 3 * SOON {
        // The connection was active after the last request was sent, so the daemon may close it only if that
        // was long ago.
        let idle_since = std::mem::replace(&mut last_sent, Instant::now());
        let Ok(answer) = sender.send_request(request("/")).await else {
            assert!(idle_since.elapsed() >= SOON, "the daemon closed an active connection");
            return false;
        };
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "ok");
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_http2_connection_is_closed_and_an_active_one_is_not() {
    let listener = listener(ConnectionLimits { idle_max: SOON, ..limits() }).await;
    let address = listener.address;
    let (_sender, ended) = http2(address).await;
    ended.await.expect("the daemon closes it");
    let mut preface = TcpStream::connect(address).await.expect("the daemon listens");
    preface.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("the daemon reads");
    closed(&mut preface).await;
    eventually("a connection with requests all the time outlives its idle limit", async || {
        outlives_idle_limit(address).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_of_a_client_that_does_not_read_is_closed() {
    let mut listener = listener(ConnectionLimits { write_max: SOON, ..limits() }).await;
    let address = listener.address;
    let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("the daemon reads");
    // Nothing is read until the daemon has closed the connection, so only what was in the buffers by then
    // arrives.
    eventually("the listener has dropped the response", async || listener.dropped.try_recv().is_ok()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.len() < LARGE, "{} bytes of {LARGE}", answer.len());

    let (mut sender, ended) = http2(address).await;
    let answer = sender.send_request(request("/large")).await.expect("a head");
    // The body is not read, so the window of its stream stays closed.
    ended.await.expect("the daemon closes it");
    assert!(answer.into_body().collect().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_has_begun_is_finished_when_the_daemon_stops() {
    let Listener { address, stop, task, .. } = listener(limits()).await;
    let mut idle = keep_alive(address).await;
    let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("the daemon reads");
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.expect("the response begins");
    stop.send_replace(true);
    closed(&mut idle).await;
    let mut answer = first.to_vec();
    stream.read_to_end(&mut answer).await.expect("the rest");
    assert!(answer.len() > LARGE);
    task.await.expect("the listener ends when the response is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_share_a_memory_limit() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let pool = daemon.service.bodies.clone();
    // Requests that declare a body and send all of it but the last byte.
    let body = vec![b' '; crate::BODY_BYTES_MAX - 1];
    let count = BODIES_BYTES_MAX / (2 * 64 * 1024);
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(daemon.http).await.expect("the daemon listens");
        let head = format!(
            "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len() + 1
        );
        stream.write_all(&[head.as_bytes(), &body].concat()).await.expect("the daemon reads");
        held.push(stream);
    }
    eventually("all memory for bodies is taken", async || pool.held() >= BODIES_BYTES_MAX).await;
    let refused = post(daemon.http, "/v1/compress", good().to_string()).await;
    check_error("no memory for a body", &refused, "429 overloaded -", "memory_bytes_max");
    assert!(refused.header("retry-after").is_some());
    drop(held);
    eventually("the memory is given back", async || pool.held() == 0).await;
    assert_good("with free memory", &post(daemon.http, "/v1/compress", good().to_string()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_share_a_memory_limit() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let pool = daemon.service.answers.clone();
    let tenant = Tenant::default();
    let sharer = Sharer { tenant: &tenant, has_rivals: false };
    let held = pool.try_take(sharer, 16 << 20).expect("all of the memory");
    let refused = post(daemon.http, "/v1/compress", good().to_string()).await;
    check_error("no memory for a response", &refused, "429 overloaded -", "memory_bytes_max");
    drop(held);
    assert_good("with free memory", &post(daemon.http, "/v1/compress", good().to_string()).await);
    eventually("the memory is given back", async || pool.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answered_request_holds_no_memory() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    for path in ["/v1/compress", "/v1/rerank", "/v1/attribute", "/v1/chunks", "/v1/search"] {
        for framing in [Framing::ContentLength, Framing::Chunked] {
            let mut stream = send(daemon.http, "POST", path, good().to_string().as_bytes(), framing).await;
            closed(&mut stream).await;
        }
    }
    let pool = daemon.service.bodies.clone();
    eventually("all memory is given back", async || pool.held() == 0).await;
}
