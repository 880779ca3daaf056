//! The accept loop: connections with a time for each request's head, over TLS where that is asked for, and a shutdown that lets
//! answers go out.
//! `axum::serve` would do but for that time: without it a client that never finishes its head holds a connection for good.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::tls::Tls;

/// What the system's refusal to accept (no file descriptors, say) is given to pass.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How often is looked whether more of a beginning has come.
const LOOK: Duration = Duration::from_millis(20);

/// Serves until `stop`, then takes nobody new and returns when all answers are out.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    (head_time, tls): (Duration, Option<Tls>),
    stop: impl Future<Output = ()>,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_time);
    builder.http2().timer(TokioTimer::new());
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    let (stopping, stopped) = watch::channel(());
    let mut refused = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let stream = match accepted {
            Ok((stream, _peer)) => stream,
            Err(cause) => {
                // Once, until it goes well again: a system without file descriptors refuses ten times a second.
                if !std::mem::replace(&mut refused, true) {
                    tracing::warn!(%cause, "no connection is accepted; tried again until it goes");
                }
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        refused = false;
        let _ = stream.set_nodelay(true);
        let (router, watcher, tls) = (router.clone(), graceful.watcher(), tls.clone());
        let (mut builder, mut stopped) = (builder.clone(), stopped.clone());
        tokio::spawn(async move {
            // Asked of every connection by itself: who is slow to shake hands keeps nobody else waiting.
            let begun = async {
                match tls {
                    None => begun(&stream).await.then_some(Stream::Plain(stream)),
                    Some(tls) => tls.begin(stream).await.map(Stream::Tls),
                }
            };
            // The builder's own time begins when it knows which HTTP is spoken.
            let begun = tokio::select! {
                begun = begun => begun,
                () = tokio::time::sleep(head_time) => return,
                _ = stopped.changed() => return,
            };
            match begun {
                None => {}
                Some(Stream::Plain(stream)) => carry(&builder, stream, router, watcher).await,
                Some(Stream::Tls((stream, is_h2))) => {
                    // Agreed on before the first byte.
                    builder = if is_h2 { builder.http2_only() } else { builder.http1_only() };
                    carry(&builder, stream, router, watcher).await;
                }
            }
        });
    }
    drop((listener, stopping));
    graceful.shutdown().await;
}

/// A connection that has begun.
enum Stream<T> {
    Plain(TcpStream),
    Tls(T),
}

async fn carry<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    builder: &Builder<TokioExecutor>,
    stream: S,
    router: Router,
    watcher: Watcher,
) {
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    // How a connection ends is its client's affair; what it asked has been counted.
    drop(watcher.watch(connection).await);
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
