//! The Prometheus recorder and the list of what is recorded.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// From half a millisecond, which a warm request can take, to the longest default deadline.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Renders what was recorded.
#[derive(Clone)]
pub struct Prometheus(PrometheusHandle);

impl Prometheus {
    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Moves recorded samples into their histograms; to be called every few seconds, or memory grows with requests.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Installs the recorder for the whole process and describes every metric.
///
/// # Errors
/// When a recorder is installed already.
pub fn install() -> Result<Prometheus, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .install_recorder()?;
    describe_counter!(
        "requests_total",
        Unit::Count,
        "Requests answered, by endpoint and error code (ok: none)"
    );
    describe_histogram!(
        "request_seconds",
        Unit::Seconds,
        "From the request's head to the answer, waiting included"
    );
    describe_histogram!("stage_seconds", Unit::Seconds, "Time of a pipeline stage");
    describe_counter!(
        "tokens_in_total",
        Unit::Count,
        "Tokens of contexts before compression, as callers count them"
    );
    describe_counter!(
        "tokens_out_total",
        Unit::Count,
        "Tokens of contexts after compression, as callers count them"
    );
    describe_gauge!(
        "registry_chunks",
        Unit::Count,
        "Registered chunks, by how far reading them ahead has come"
    );
    describe_counter!(
        "registry_changes_total",
        Unit::Count,
        "Changes of what is registered, by what they did"
    );
    describe_counter!("registry_warmed_total", Unit::Count, "Registered chunks read ahead, by how it ended");
    describe_histogram!(
        "registry_commit_seconds",
        Unit::Seconds,
        "Time until a commit of the registry is durable"
    );
    describe_gauge!("requests_in_flight", Unit::Count, "Requests being answered or waiting");
    describe_counter!("streams_total", Unit::Count, "Streams of events that ended, by error code (ok: none)");
    describe_gauge!("streams_in_flight", Unit::Count, "Answers that are arriving");
    describe_gauge!("requests_waiting", Unit::Count, "Requests waiting for a permit");
    describe_kv();
    describe_counter!(
        "shared_requests_total",
        Unit::Count,
        "Blocks and commands of the shared tier, by operation and outcome"
    );
    describe_histogram!("shared_seconds", Unit::Seconds, "Time of a call of the shared tier");
    describe_gauge!("shared_queue_bytes", Unit::Bytes, "Blocks that wait to be written to the shared tier");
    describe_gauge!(
        "shared_breaker_open",
        Unit::Count,
        "Share of the shared tier's servers that are left alone, 0 to 1"
    );
    Ok(Prometheus(handle))
}

/// The block store's local tiers.
fn describe_kv() {
    describe_counter!(
        "kv_lookups_total",
        Unit::Count,
        "Blocks that requests asked for, by where they came from"
    );
    describe_gauge!("kv_bytes", Unit::Bytes, "Bytes that a tier holds, with what it costs to keep them");
    describe_gauge!("kv_entries", Unit::Count, "Blocks that a tier holds");
    describe_counter!("kv_evictions_total", Unit::Count, "Blocks that made room for others");
    describe_counter!(
        "kv_damaged_total",
        Unit::Count,
        "Blocks that were not what had been written; discarded"
    );
    describe_counter!("kv_unreadable_total", Unit::Count, "Blocks that the system would not give; kept");
    describe_counter!(
        "kv_writes_total",
        Unit::Count,
        "Blocks to keep, by outcome (dropped: the queue was full)"
    );
    describe_gauge!("kv_failing", Unit::Count, "1 while blocks cannot be written");
}
