//! Connections to upstreams, on which a write that makes no progress fails.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Uri;
use futures_util::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutWriter;
use tower_service::Service;

/// How long a write to an upstream may make no progress. A body counts towards the memory of all bodies until it has been sent, and sending
/// goes on after the client has gone or the upstream has answered early: without this limit, an upstream that does not read would hold the
/// memory forever.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// Opens connections. It is below TLS, so that the writes of TLS itself are limited, too.
#[derive(Clone)]
pub struct Connector {
    http: HttpConnector,
    write_max: Duration,
}

impl Connector {
    pub fn new(http: HttpConnector) -> Self {
        Self { http, write_max: WRITE_MAX }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = BoxFuture<'static, Result<Stream, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(context)
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let (connecting, write_max) = (self.http.call(address), self.write_max);
        Box::pin(async move { Ok(Stream::new(connecting.await?.into_inner(), write_max)) })
    }
}

pub struct Stream(TokioIo<Pin<Box<TimeoutWriter<TcpStream>>>>);

impl Stream {
    fn new(stream: TcpStream, write_max: Duration) -> Self {
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(write_max));
        Self(TokioIo::new(Box::pin(stream)))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let stream: &TimeoutWriter<TcpStream> = self.0.inner();
        stream.get_ref().connected()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_write_without_progress_fails() {
        let write_max = Duration::from_millis(100);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let mut connector = Connector { http: HttpConnector::new(), write_max };
        let connecting = connector.call(address.parse().expect("a URI"));
        let (stream, accepted) = tokio::join!(connecting, listener.accept());
        let (mut stream, _unread) = (TokioIo::new(stream.expect("connected")), accepted.expect("accepted"));

        // An upstream may take long to answer: only a write is limited.
        tokio::time::sleep(3 * write_max).await;
        stream.write_all(b"POST").await.expect("the peer's buffer is empty");

        let writing = async {
            loop {
                if let Err(error) = stream.write_all(&[0; 64 * 1024]).await {
                    break error;
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(10), writing).await.expect("it does not hang");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
