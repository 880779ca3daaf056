//! The accept loop: takes in connections within their limits, speaks TLS where it is asked for, and ends without cutting answers off.
//!
//! `axum::serve` has none of these limits: with it, a client that never finishes its head, reads no answer or says nothing at all holds
//! a connection for as long as it likes.

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

/// How long the accept loop waits after the system refused a connection, for want of file descriptors say.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How often is looked whether more of a connection's beginning has come.
const LOOK: Duration = Duration::from_millis(20);

/// Bytes of an answer that HTTP/1.1 buffers, and of a head that it reads.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Requests that one HTTP/2 connection may have in flight.
const H2_STREAMS_MAX: u32 = 64;

/// How often an HTTP/2 client that has requests in flight is asked whether it is still there, and how long it may take to say so.
const H2_PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

/// What an idle connection gets for ending once its client was told.
const GOODBYE: Duration = Duration::from_secs(1);

/// How one listener treats its connections.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    /// ChunkNumbers the listener in metrics: `public` or `admin`.
    pub listener: &'static str,
    /// How long the head of a request may take to arrive, and a connection to begin.
    pub head_max: Duration,
    /// Bounds of the connections.
    pub connections: ConnectionLimits,
}

/// Serves until `stop`, then takes in no new connection and returns when all answers are out.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    (serving, tls): (Serving, Option<Tls>),
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
        .keep_alive_interval(H2_PING.0)
        .keep_alive_timeout(H2_PING.1);
    let connections = Connections::new(serving.listener, serving.connections);
    let (stopping, stopped) = watch::channel(());
    // Every connection holds a sender: when the last one is dropped, all have ended.
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
                // Logged once, until a connection is accepted again: a system without file descriptors refuses ten times a second.
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
        let carrier = Carrier {
            builder: builder.clone(),
            router: router.clone(),
            connection,
            stopped: stopped.clone(),
            serving,
        };
        let (tls, open) = (tls.clone(), open.clone());
        tokio::spawn(async move {
            carrier.run(stream, tls).await;
            drop(open);
        });
    }
    drop((listener, stopping, open));
    // Nothing is ever sent: this waits until every sender is gone.
    let _ = all_ended.recv().await;
}

/// One connection and what it needs.
struct Carrier {
    builder: Builder<TokioExecutor>,
    router: Router,
    connection: Connection,
    stopped: watch::Receiver<()>,
    serving: Serving,
}

impl Carrier {
    /// Waits for the connection to begin, then carries it until it ends.
    async fn run(mut self, stream: TcpStream, tls: Option<Tls>) {
        // Each connection waits by itself: one that is slow to shake hands keeps no other waiting.
        let begun = async {
            match tls {
                None => begun(&stream).await.then_some(Stream::Plain(stream)),
                Some(tls) => tls.begin(stream).await.map(Stream::Tls),
            }
        };
        // The builder's own timeout begins when it knows which HTTP is spoken.
        let begun = tokio::select! {
            begun = begun => begun,
            () = tokio::time::sleep(self.serving.head_max) => return,
            _ = self.connection.closing() => return,
            _ = self.stopped.changed() => return,
        };
        match begun {
            None => {}
            Some(Stream::Plain(stream)) => self.carry(stream).await,
            Some(Stream::Tls((stream, is_h2))) => {
                // TLS has agreed on the version before the first byte of HTTP.
                let builder = self.builder;
                self.builder = if is_h2 { builder.http2_only() } else { builder.http1_only() };
                self.carry(stream).await;
            }
        }
    }

    async fn carry<S: AsyncRead + AsyncWrite + Send + 'static>(self, stream: S) {
        let Self { builder, router, connection, mut stopped, serving } = self;
        let mut stream = Box::pin(TimeoutWriter::new(stream));
        stream.as_mut().set_timeout_pinned(Some(serving.connections.write_max));
        let router = TowerToHyperService::new(router);
        let service = service_fn(|mut request: Request<Incoming>| {
            let in_flight = connection.request();
            request.extensions_mut().insert(in_flight.begun());
            let answer = router.call(request);
            async move { answer.await.map(|answer| in_flight.answer(answer)) }
        });
        let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
        // How a connection ends is its client's affair: its requests have been counted.
        let close = tokio::select! {
            _ = serving.as_mut() => return,
            close = connection.closing() => Some(close),
            _ = stopped.changed() => None,
        };
        match close {
            Some(Close::Stalled | Close::Evicted) => {}
            Some(Close::Idle) => {
                serving.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(GOODBYE, serving).await;
            }
            None => {
                serving.as_mut().graceful_shutdown();
                tokio::select! {
                    _ = serving.as_mut() => {}
                    // An answer that nobody takes does not keep the daemon from ending.
                    _ = connection.closing() => {}
                }
            }
        }
    }
}

/// A connection that has begun.
enum Stream<T> {
    Plain(TcpStream),
    Tls(T),
}

/// Waits until the first bytes say which HTTP is spoken; false: the connection has ended.
async fn begun(stream: &TcpStream) -> bool {
    let mut bytes = [0; PREFACE.len()];
    while let Ok(length @ 1..) = stream.peek(&mut bytes).await {
        if length == PREFACE.len() || bytes[..length] != PREFACE[..length] {
            return true;
        }
        tokio::time::sleep(LOOK).await;
    }
    false
}
