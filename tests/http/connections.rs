//! Connections that say nothing, read nothing, or are too many; bodies that come too slowly, or are too much together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get as route;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use thresher::admission::Claim;
use thresher::http::{self, ConnectionLimits, Serving};
use thresher_core::domain::Tenant;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::wire::{Framing, get, send};
use crate::{BODIES_BYTES_MAX, assert_good, daemon, good, scripted, serving, until};

/// Short enough to be waited for, and long enough for a busy machine to do in it what a test needs done.
const SOON: Duration = Duration::from_millis(300);

/// The bytes of an answer that fill every buffer between two programs of one machine.
const LARGE: usize = 32 << 20;

/// A listener whose `/` answers at once and whose `/large` answers with [`LARGE`] bytes, of which `taken` counts the handed-over ones.
async fn listener(
    connections: ConnectionLimits,
) -> (SocketAddr, watch::Sender<bool>, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let router = Router::new()
        .route("/", route(async || "ok"))
        .route("/large", route(async || Body::from(vec![b'x'; LARGE])));
    let (stop, mut stopped) = watch::channel(false);
    let stopped = async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let serving = Serving { connections, ..serving() };
    let task = tokio::spawn(http::serve(listener, router, (serving, None), stopped));
    (address, stop, task)
}

fn limits() -> ConnectionLimits {
    serving().connections
}

/// Waits until the other side closes the connection; what came before that is thrown away.
async fn closed(stream: &mut TcpStream) {
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await.is_ok_and(|length| length > 0) {}
}

async fn keep_alive(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("the daemon listens");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
    let mut answer = [0; 512];
    let length = stream.read(&mut answer).await.expect("an answer");
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
    stream
}

/// An HTTP/2 client; the connection ends when the handle of its task says so.
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

fn asked(path: &str) -> Request<Empty<Bytes>> {
    Request::builder().uri(format!("http://localhost{path}")).body(Empty::new()).expect("a request")
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_make_room() {
    let (address, _stop, _serving) = listener(ConnectionLimits { count_max: 8, ..limits() }).await;
    let mut idle = Vec::new();
    for n in 0..40 {
        idle.push(match n % 3 {
            0 => keep_alive(address).await,
            // Nothing at all, and half a head.
            1 => TcpStream::connect(address).await.expect("it listens"),
            _ => {
                let mut stream = TcpStream::connect(address).await.expect("it listens");
                stream.write_all(b"GET / HTTP/1.1\r\nho").await.expect("it reads");
                stream
            }
        });
    }
    for _ in 0..20 {
        assert_eq!(get(address, "/").await.status, 200);
    }
    closed(&mut idle[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_http2_is_closed_and_active_http2_is_not() {
    let (address, _stop, _serving) = listener(ConnectionLimits { idle_max: SOON, ..limits() }).await;
    let (_sender, ended) = http2(address).await;
    ended.await.expect("the daemon closes it");
    let mut preface = TcpStream::connect(address).await.expect("it listens");
    preface.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("it reads");
    closed(&mut preface).await;
    let (mut sender, _connection) = http2(address).await;
    let started = Instant::now();
    while started.elapsed() < 3 * SOON {
        let answer = sender.send_request(asked("/")).await.expect("it was not idle");
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "ok");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_loses_its_connection() {
    let (address, _stop, _serving) = listener(ConnectionLimits { write_max: SOON, ..limits() }).await;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
    // Nothing is read until the daemon has given up: what has been sent by then is all that comes.
    tokio::time::sleep(4 * SOON).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.len() < LARGE, "{} bytes of {LARGE}", answer.len());

    let (mut sender, ended) = http2(address).await;
    let answer = sender.send_request(asked("/large")).await.expect("a head");
    // Its window stays closed: the body is held and not read.
    ended.await.expect("the daemon closes it");
    assert!(answer.into_body().collect().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_on_its_way_is_finished_when_the_daemon_stops() {
    let (address, stop, task) = listener(limits()).await;
    let mut idle = keep_alive(address).await;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.expect("it has begun");
    stop.send_replace(true);
    closed(&mut idle).await;
    let mut answer = first.to_vec();
    stream.read_to_end(&mut answer).await.expect("the rest");
    assert!(answer.len() > LARGE);
    task.await.expect("it ends when all is out");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_share_their_room() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let pool = daemon.service.bodies().clone();
    // Heads that promise a body, and all of it but the last byte.
    let body = vec![b' '; crate::BODY_BYTES_MAX - 1];
    let count = BODIES_BYTES_MAX / (2 * 64 * 1024);
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(daemon.http).await.expect("it listens");
        let head = format!(
            "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len() + 1
        );
        stream.write_all(&[head.as_bytes(), &body].concat()).await.expect("it reads");
        held.push(stream);
    }
    until("all room is taken", || pool.held() >= BODIES_BYTES_MAX).await;
    let refused = crate::wire::post(daemon.http, "/v1/compress", good().to_string()).await;
    crate::check_error("no room", &refused, "429 overloaded -", "http.bodies_bytes_max");
    assert!(refused.header("retry-after").is_some());
    drop(held);
    until("it is given back", || pool.held() == 0).await;
    assert_good("then", &crate::wire::post(daemon.http, "/v1/compress", good().to_string()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_share_their_room() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let pool = daemon.service.answers().clone();
    let tenant = Tenant::default();
    let claim = Claim { tenant: &tenant, has_rivals: false };
    let held = pool.try_take(claim, 16 << 20).expect("all of it");
    let refused = crate::wire::post(daemon.http, "/v1/compress", good().to_string()).await;
    crate::check_error("no room", &refused, "429 overloaded -", "http.answers_bytes_max");
    drop(held);
    assert_good("then", &crate::wire::post(daemon.http, "/v1/compress", good().to_string()).await);
    until("it is given back", || pool.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_answered_holds_no_room() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    for path in ["/v1/compress", "/v1/rerank", "/v1/attribute", "/v1/chunks", "/v1/search", "/v1/score"] {
        for framing in [Framing::ContentLength, Framing::Chunked] {
            let mut stream = send(daemon.http, "POST", path, good().to_string().as_bytes(), framing).await;
            closed(&mut stream).await;
        }
    }
    let pool = daemon.service.bodies().clone();
    until("all room is given back", || pool.held() == 0).await;
    drop(Arc::new(daemon));
}
