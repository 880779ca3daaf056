//! Logs and traces, set up once for the whole process; metrics in `prometheus`. The rest of the daemon uses the facades of `tracing` and
//! `metrics`. Texts of requests are never logged and never a label.

mod prometheus;

use std::io::IsTerminal as _;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

pub use self::prometheus::{Prometheus, install as install_metrics};
use crate::config::Telemetry;

/// The longest that one export of traces may take, the collector's answer included.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes that are read of a collector's answer, which names the spans that the collector refused.
const ANSWER_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Error)]
pub enum TelemetryError {
    #[error("telemetry.log is not a filter: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("telemetry.otlp_endpoint cannot be used: {0}")]
    Otlp(#[from] opentelemetry_otlp::ExporterBuildError),
    #[error("the HTTP client for telemetry.otlp_endpoint cannot be created: {0}")]
    Client(#[source] std::io::Error),
    #[error("logging has already been set up in this process: {0}")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Exports the traces that are still buffered when it is dropped.
#[must_use = "dropping it ends the export of traces"]
pub struct TraceGuard(Option<SdkTracerProvider>);

impl TraceGuard {
    pub fn is_exporting(&self) -> bool {
        self.0.is_some()
    }
}

/// Crates that log texts of requests, which are never logged: the messages of the Model Context Protocol, and each character of a text that is
/// tokenized.
const LOGS_TEXTS: [&str; 2] = ["rmcp", "tokenizers"];

impl Drop for TraceGuard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(SdkTracerProvider::shutdown) {
            eprintln!("the last traces could not be exported: {error}");
        }
    }
}

/// Sets up logs and traces for the whole process: logs go to stderr, traces to `telemetry.otlp_endpoint` if that is set.
///
/// # Errors
/// Fails if a setting cannot be used, which [`TelemetryError`] names, or if logging has already been set up.
pub fn install_tracing(settings: &Telemetry) -> Result<TraceGuard, TelemetryError> {
    let mut filter = EnvFilter::builder().parse(&settings.log)?;
    for crate_name in LOGS_TEXTS {
        filter = filter.add_directive(format!("{crate_name}=off").parse().expect("a directive"));
    }
    let lines = if std::io::stderr().is_terminal() {
        fmt::layer().compact().with_target(false).with_writer(std::io::stderr).boxed()
    } else {
        fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(std::io::stderr).boxed()
    };
    let provider = trace_provider(settings)?;
    // The stages of the pipeline become spans, whatever `telemetry.log` says: a quiet log does not turn traces off. The other spans are made by
    // `http::traces`.
    let targets = Targets::new().with_target("thresher_core", Level::INFO);
    let spans = provider.as_ref().map(|provider| {
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("thresher"));
        // Where in the code a stage is, and on which thread it ran, helps nobody who reads traces.
        let layer = layer.with_location(false).with_threads(false).with_target(false);
        layer.with_tracked_inactivity(false).with_filter(targets)
    });
    std::panic::set_hook(Box::new(log_panic));
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).try_init()?;
    if let Some(provider) = &provider {
        opentelemetry::global::set_tracer_provider(provider.clone());
    }
    Ok(TraceGuard(provider))
}

fn trace_provider(settings: &Telemetry) -> Result<Option<SdkTracerProvider>, TelemetryError> {
    let endpoint = &settings.otlp_endpoint;
    if endpoint.is_empty() {
        return Ok(None);
    }
    let client = CollectorClient::new().map_err(TelemetryError::Client)?;
    let exporter =
        SpanExporter::builder().with_http().with_http_client(client).with_endpoint(endpoint).build()?;
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_service_name("thresher").with_attribute(version).build();
    // A caller that samples says so in `traceparent`; everything else is for the collector to sample.
    let sampler = Sampler::ParentBased(Box::new(Sampler::AlwaysOn));
    let provider = SdkTracerProvider::builder().with_sampler(sampler).with_batch_exporter(exporter);
    Ok(Some(provider.with_resource(resource).build()))
}

/// Logs where a panic happened, but not its message: the message can quote a text of a request, as that of string slicing does.
fn log_panic(panic: &std::panic::PanicHookInfo) {
    let place = panic.location().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    tracing::error!(place, "panicked; this is a bug in Thresher");
}

/// The HTTP client that sends traces to the collector. It uses hyper, which the daemon needs anyway, and has its own runtime: the
/// exporter calls it from a thread without one, even while the daemon shuts down.
#[derive(Debug)]
struct CollectorClient {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Runtime,
}

impl CollectorClient {
    fn new() -> Result<Self, std::io::Error> {
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
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // Blocking is fine here: this is the exporter's own thread.
        self.runtime.block_on(async { tokio::time::timeout(EXPORT_TIMEOUT, self.send(request)).await? })
    }
}
