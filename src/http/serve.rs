//! The accept loop: connections with a time for each request's head, and a shutdown that lets answers go out.
//! `axum::serve` would do but for that time: without it a client that never finishes its head holds a connection for good.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// What the system's refusal to accept (no file descriptors, say) is given to pass.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves until `stop`, then takes nobody new and returns when all answers are out.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    head_time: Duration,
    stop: impl Future<Output = ()>,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_time);
    builder.http2().timer(TokioTimer::new());
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let Ok((stream, _peer)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        // How a connection ends is its client's affair; what it asked has been counted.
        let connection = graceful.watch(connection);
        tokio::spawn(async move { drop(connection.await) });
    }
    drop(listener);
    graceful.shutdown().await;
}
