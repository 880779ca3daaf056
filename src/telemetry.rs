//! Logs, metrics, traces: set up once by `main`, used through the facades of `tracing` and `metrics` everywhere.
//! Text of requests is never logged and never a label.

mod collector;
mod prometheus;
mod tracing_setup;

pub use prometheus::{Prometheus, install as install_metrics};
pub use tracing_setup::{TelemetryError, TraceGuard, install as install_tracing};
