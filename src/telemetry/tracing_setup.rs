//! Where events and spans go: stderr, and an OTLP collector if one is named.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use thiserror::Error;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use super::collector::Collector;
use crate::config::{LogFormat, Telemetry};

/// Why there are no logs or traces.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each message says it")]
pub enum TelemetryError {
    #[error("telemetry.log is not a filter: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("telemetry.otlp_endpoint cannot be used: {0}")]
    Otlp(#[from] opentelemetry_otlp::ExporterBuildError),
    #[error("the client of telemetry.otlp_endpoint cannot be made: {0}")]
    Client(#[source] std::io::Error),
    #[error("logging is set up already: {0}")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends what is still buffered when dropped.
#[must_use = "dropping it ends the export of traces"]
pub struct TraceGuard(Option<SdkTracerProvider>);

impl Drop for TraceGuard {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.as_ref().map(SdkTracerProvider::shutdown) {
            eprintln!("the last traces could not be sent: {error}");
        }
    }
}

/// Sets up logs and traces for the whole process.
///
/// # Errors
/// [`TelemetryError`] names the setting.
pub fn install(settings: &Telemetry) -> Result<TraceGuard, TelemetryError> {
    // The SDK of the Model Context Protocol logs what it is sent, and texts of requests are never logged.
    let silent = "rmcp=off".parse().expect("a directive");
    let filter = EnvFilter::builder().parse(&settings.log)?.add_directive(silent);
    let lines = match settings.log_format {
        LogFormat::Json => {
            fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(std::io::stderr).boxed()
        }
        LogFormat::Text => fmt::layer().with_writer(std::io::stderr).boxed(),
    };
    let provider = provider(&settings.otlp_endpoint)?;
    // Ours only, and whatever is logged: a quiet log is no reason to lose traces.
    let ours = Targets::new().with_target(env!("CARGO_PKG_NAME"), Level::INFO);
    let spans = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer().with_tracer(provider.tracer("thresher")).with_filter(ours)
    });
    std::panic::set_hook(Box::new(log_panic));
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).try_init()?;
    Ok(TraceGuard(provider))
}

fn provider(endpoint: &str) -> Result<Option<SdkTracerProvider>, TelemetryError> {
    if endpoint.is_empty() {
        return Ok(None);
    }
    let client = Collector::new().map_err(TelemetryError::Client)?;
    let exporter =
        SpanExporter::builder().with_http().with_http_client(client).with_endpoint(endpoint).build()?;
    let resource = Resource::builder().with_service_name("thresher").build();
    Ok(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
}

/// Says where, not what: a panic's message can quote the text it was about, as string slicing does.
fn log_panic(panic: &std::panic::PanicHookInfo) {
    let place = panic.location().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    tracing::error!(place, "panicked; this is a bug of ours");
}
