//! Sends traces to a collector over hyper, the HTTP client that the daemon has anyway.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use tokio::runtime::{Builder, Runtime};

/// For a request and its answer together.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A collector's answer names what it refused; the rest would be of no use.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A client with a runtime of its own: the exporter calls it from a thread without one, also while the daemon ends.
#[derive(Debug)]
pub struct Collector {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Runtime,
}

impl Collector {
    /// # Errors
    /// When the system has no handles left for a runtime.
    pub fn new() -> Result<Self, std::io::Error> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { client, runtime: Builder::new_current_thread().enable_all().build()? })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = self.client.request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The exporter's own thread may wait here.
        self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, self.send(request)).await? })
    }
}
