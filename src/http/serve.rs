//! The accept loop: accepts connections within their limits, does TLS if it is configured, and drains without cutting off answers.
//!
//! `axum::serve` has none of these limits: with it, a client that never finishes the head of a request, reads no answer or sends nothing at
//! all occupies a connection forever.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_io_timeout::TimeoutWriter;

use super::connections::{Close, Connection, ConnectionLimits, Connections};
use super::tls::Tls;

/// How long the accept loop waits after the system refused a connection, for example without file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How often the daemon checks whether more of a connection's first bytes have arrived.
const PREFACE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The most bytes of a response that HTTP/1.1 buffers, and of the head of a request.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// The most requests in flight on one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 64;

/// The time between two pings of an HTTP/2 client with requests in flight, and the longest time until it answers one.
const H2_PING_INTERVAL: Duration = Duration::from_secs(30);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How long an idle connection may take to end after its client has been told.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub struct Serving {
    /// The listener's label in metrics: `public` or `admin`.
    pub listener: &'static str,
    /// The longest time for the head of a request to arrive, and for the first bytes of a connection.
    pub head_max: Duration,
    pub connections: ConnectionLimits,
}

/// Serves until `stop`, then accepts no new connection and returns when all answers have been sent.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    serving: Serving,
    tls: Option<Tls>,
    stop: impl Future<Output = ()>,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(serving.head_max)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .keep_alive_interval(H2_PING_INTERVAL)
        .keep_alive_timeout(H2_PING_TIMEOUT);
    let connections = Connections::new(serving.listener, serving.connections);
    let (stopping, stopped) = watch::channel(());
    // Every connection holds a sender: when the last sender is dropped, all connections have ended.
    let (open, mut all_ended) = mpsc::channel::<()>(1);
    let mut stop = pin!(stop);
    let mut is_refused = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(cause) => {
                // Logged once until a connection is accepted again: without file descriptors, the system refuses ten times a second.
                if !std::mem::replace(&mut is_refused, true) {
                    tracing::warn!(%cause, "the system refuses connections; trying again until it accepts one");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        is_refused = false;
        let Some(connection) = connections.admit(peer.ip()) else { continue };
        let _ = stream.set_nodelay(true);
        let task = ConnectionTask {
            builder: builder.clone(),
            router: router.clone(),
            connection,
            stopped: stopped.clone(),
            serving,
        };
        let (tls, open) = (tls.clone(), open.clone());
        tokio::spawn(async move {
            task.run(stream, tls).await;
            drop(open);
        });
    }
    drop((listener, stopping, open));
    // Nothing is ever sent: this waits until every sender is gone.
    let _ = all_ended.recv().await;
}

struct ConnectionTask {
    builder: Builder<TokioExecutor>,
    router: Router,
    connection: Connection,
    stopped: watch::Receiver<()>,
    serving: Serving,
}

impl ConnectionTask {
    /// Waits for the first bytes of the connection, then serves it until it ends.
    async fn run(mut self, stream: TcpStream, tls: Option<Tls>) {
        // Each connection has a task of its own, so that a slow handshake delays no other connection.
        let opening = async {
            match tls {
                None => has_sent_bytes(&stream).await.then_some(Stream::Plain(stream)),
                Some(tls) => tls.accept(stream).await.map(Stream::Tls),
            }
        };
        // The builder's own timeout starts only when it knows the version of HTTP.
        let opened = tokio::select! {
            opened = opening => opened,
            () = tokio::time::sleep(self.serving.head_max) => return,
            _ = self.connection.closing() => return,
            _ = self.stopped.changed() => return,
        };
        match opened {
            None => {}
            Some(Stream::Plain(stream)) => self.serve(stream).await,
            Some(Stream::Tls((stream, is_h2))) => {
                // TLS has agreed on the version before the first byte of HTTP.
                let builder = self.builder;
                self.builder = if is_h2 { builder.http2_only() } else { builder.http1_only() };
                self.serve(stream).await;
            }
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(self, stream: S) {
        let Self { builder, router, connection, mut stopped, serving } = self;
        let mut stream = Box::pin(TimeoutWriter::new(stream));
        stream.as_mut().set_timeout_pinned(Some(serving.connections.write_max));
        let router = TowerToHyperService::new(router);
        let service = service_fn(|mut request: Request<Incoming>| {
            let in_flight = connection.request();
            request.extensions_mut().insert(in_flight.handle());
            let answer = router.call(request);
            async move { answer.await.map(|answer| in_flight.answer(answer)) }
        });
        let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
        // Errors of a connection are not logged: its requests have been counted.
        let close = tokio::select! {
            _ = serving.as_mut() => return,
            close = connection.closing() => Some(close),
            _ = stopped.changed() => None,
        };
        match close {
            Some(Close::Stalled | Close::Evicted) => {}
            Some(Close::Idle) => {
                serving.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, serving).await;
            }
            None => {
                serving.as_mut().graceful_shutdown();
                tokio::select! {
                    _ = serving.as_mut() => {}
                    // An answer that is not read does not delay the shutdown.
                    _ = connection.closing() => {}
                }
            }
        }
    }
}

/// A connection whose first bytes have arrived.
enum Stream<T> {
    Plain(TcpStream),
    Tls(T),
}

/// Waits until the first bytes tell the version of HTTP; false: the connection has ended.
async fn has_sent_bytes(stream: &TcpStream) -> bool {
    let mut bytes = [0; PREFACE.len()];
    while let Ok(length @ 1..) = stream.peek(&mut bytes).await {
        if length == PREFACE.len() || bytes[..length] != PREFACE[..length] {
            return true;
        }
        tokio::time::sleep(PREFACE_CHECK_INTERVAL).await;
    }
    false
}
