//! Requests over HTTP, through a real listener on the loopback interface: one after the other, then many at once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::net::TcpListener;

use super::workload::Workload;
use super::{Effort, Progress, Subject};
use crate::http;

/// Rounds of throughput never get this far: their chunks are not these.
const ROUND_FIRST: u64 = 1 << 32;
/// Requests of each client that sends beside others.
const REQUESTS_PER_CLIENT: usize = 4;

/// What requests took.
#[derive(Debug, Clone)]
pub struct Latency {
    /// Of requests one after the other.
    pub sequential: Vec<Duration>,
    /// Of requests beside each other, waiting for their turn included.
    pub concurrent: Vec<Duration>,
    /// From the first of those to the last.
    pub concurrent_took: Duration,
    /// Tokens of their chunks.
    pub concurrent_tokens: usize,
}

type HttpClient = Client<HttpConnector, Full<Bytes>>;

struct Prepared {
    body: Bytes,
    tokens: usize,
}

/// Measures both, against a server in this process.
pub fn measure(
    subject: &Subject,
    workload: &Workload,
    effort: Effort,
    progress: Progress,
) -> anyhow::Result<Latency> {
    let count = |round: u64| prepare(subject, workload, ROUND_FIRST + round);
    let sequential: Vec<Prepared> = (0..effort.requests as u64).map(count).collect::<anyhow::Result<_>>()?;
    let beside = (effort.clients * REQUESTS_PER_CLIENT) as u64;
    let first = effort.requests as u64;
    let concurrent: Vec<Prepared> = (first..first + beside).map(count).collect::<anyhow::Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let router = http::router(subject.service.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut latency = Latency {
            sequential: Vec::with_capacity(sequential.len()),
            concurrent: Vec::new(),
            concurrent_took: Duration::ZERO,
            concurrent_tokens: concurrent.iter().map(|prepared| prepared.tokens).sum(),
        };
        for (index, prepared) in sequential.iter().enumerate() {
            progress("requests in a row", index, sequential.len());
            latency.sequential.push(send(&client, address, prepared.body.clone()).await?);
        }
        progress("requests side by side", 0, concurrent.len());
        let started = Instant::now();
        latency.concurrent = side_by_side(&client, address, &concurrent).await?;
        latency.concurrent_took = started.elapsed();
        server.abort();
        Ok(latency)
    })
}

fn prepare(subject: &Subject, workload: &Workload, round: u64) -> anyhow::Result<Prepared> {
    let request = workload.request(round, &subject.tokenizer)?;
    let count = |chunk: &std::sync::Arc<crate::domain::Chunk>| subject.tokenizer.count(&chunk.text);
    let tokens = request.chunks.iter().map(count).sum::<Result<_, _>>()?;
    let chunk = |chunk: &std::sync::Arc<crate::domain::Chunk>| json!({"id": chunk.id, "text": chunk.text});
    let chunks: Vec<_> = request.chunks.iter().map(chunk).collect();
    let deadline_ms = subject.service.limits.deadline_max.as_millis() as u64;
    let body = json!({"query": request.query, "chunks": chunks, "deadline_ms": deadline_ms});
    Ok(Prepared { body: Bytes::from(body.to_string()), tokens })
}

/// Every client sends its share, one request after the other.
async fn side_by_side(
    client: &HttpClient,
    address: SocketAddr,
    prepared: &[Prepared],
) -> anyhow::Result<Vec<Duration>> {
    let clients = prepared.chunks(REQUESTS_PER_CLIENT).map(|share| {
        let bodies: Vec<Bytes> = share.iter().map(|prepared| prepared.body.clone()).collect();
        let client = client.clone();
        tokio::spawn(async move {
            let mut took = Vec::with_capacity(bodies.len());
            for body in bodies {
                took.push(send(&client, address, body).await?);
            }
            anyhow::Ok(took)
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut took = Vec::new();
    for client in clients {
        took.extend(client.await??);
    }
    Ok(took)
}

/// Sends one request; the time is until the last byte of the answer.
async fn send(client: &HttpClient, address: SocketAddr, body: Bytes) -> anyhow::Result<Duration> {
    let request = Request::post(format!("http://{address}/v1/compress"))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))?;
    let started = Instant::now();
    let answer = client.request(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    let took = started.elapsed();
    ensure!(status.is_success(), "the server answered {status}: {}", String::from_utf8_lossy(&body));
    Ok(took)
}
