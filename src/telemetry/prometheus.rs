//! The Prometheus recorder, and the description of every metric.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Upper bounds of histogram buckets, in seconds: from half a millisecond, which a request with cached chunks can take, to the default
/// deadline.
const SECONDS_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Handle of the Prometheus recorder. Clones share the recorder.
#[derive(Clone)]
pub struct Prometheus(PrometheusHandle);

impl Prometheus {
    /// Returns all metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Moves recorded samples into their histograms. Call it every few seconds: until then, every request takes more memory.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Installs the recorder for the whole process and describes every metric.
///
/// # Errors
/// Fails if a recorder has already been installed in this process.
pub fn install() -> Result<Prometheus, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)?
        .install_recorder()?;
    describe_counter!(
        "requests_total",
        Unit::Count,
        "Requests answered, by endpoint and error code (ok: no error)"
    );
    describe_histogram!(
        "request_seconds",
        Unit::Seconds,
        "Seconds from the head of a request to its answer, time in the queue included"
    );
    describe_histogram!("stage_seconds", Unit::Seconds, "Seconds that a pipeline stage took");
    describe_counter!(
        "tokens_in_total",
        Unit::Count,
        "Tokens of contexts before compression, counted with the tokenizer that the request names"
    );
    describe_counter!(
        "tokens_out_total",
        Unit::Count,
        "Tokens of contexts after compression, counted with the tokenizer that the request names"
    );
    describe_gauge!("registry_chunks", Unit::Count, "Registered chunks, by the state of their read-ahead");
    describe_counter!("registry_changes_total", Unit::Count, "Changes of registered chunks, by kind");
    describe_counter!("registry_warmed_total", Unit::Count, "Registered chunks read ahead, by outcome");
    describe_histogram!(
        "registry_commit_seconds",
        Unit::Seconds,
        "Seconds until a commit of the registry is durable"
    );
    describe_gauge!(
        "requests_in_flight",
        Unit::Count,
        "Requests that are being answered or wait for a permit"
    );
    describe_counter!("streams_total", Unit::Count, "Event streams that ended, by error code (ok: no error)");
    describe_gauge!("streams_in_flight", Unit::Count, "Streamed answers that are arriving");
    describe_gauge!("requests_waiting", Unit::Count, "Requests that wait for a permit");
    describe_kv();
    describe_counter!(
        "shared_requests_total",
        Unit::Count,
        "Blocks and commands sent to the shared tier, by operation and outcome"
    );
    describe_histogram!("shared_seconds", Unit::Seconds, "Seconds that a call of the shared tier took");
    describe_gauge!(
        "shared_queue_bytes",
        Unit::Bytes,
        "Bytes of blocks that wait to be written to the shared tier"
    );
    describe_gauge!(
        "shared_breaker_open",
        Unit::Count,
        "Share of the shared tier's servers that get no requests because they fail, 0 to 1"
    );
    describe_access();
    describe_connections();
    describe_middleware();
    Ok(Prometheus(handle))
}

/// Describes the metrics of API keys, TLS, models and tools.
fn describe_access() {
    describe_counter!(
        "key_requests_total",
        Unit::Count,
        "Requests by the name of their API key and by error code (ok: no error)"
    );
    describe_counter!("key_tokens_total", Unit::Count, "Tokens of the model charged to an API key");
    describe_counter!(
        "keys_reloads_total",
        Unit::Count,
        "Reloads of the changed keys file, by outcome (failed: the previous keys stay in use)"
    );
    describe_counter!(
        "tls_reloads_total",
        Unit::Count,
        "Reloads of the changed certificate, by outcome (failed: the previous one stays in use)"
    );
    describe_counter!("tls_handshakes_total", Unit::Count, "TLS handshakes of clients, by outcome");
    describe_gauge!("model_info", Unit::Count, "1 for each loaded model, with its name and its device");
    describe_counter!(
        "mcp_calls_total",
        Unit::Count,
        "Calls of MCP tools, by tool and error code (ok: no error)"
    );
}

/// Describes the metrics of connections and of the memory of requests and answers.
fn describe_connections() {
    describe_gauge!("connections_open", Unit::Count, "Open connections, by listener");
    describe_counter!(
        "connections_refused_total",
        Unit::Count,
        "New connections that were closed at once because of a limit, by listener and reason"
    );
    describe_counter!(
        "connections_closed_total",
        Unit::Count,
        "Connections that the daemon closed, by listener and reason"
    );
    describe_gauge!(
        "body_bytes_held",
        Unit::Bytes,
        "Bytes of memory taken for request bodies, each counted twice"
    );
    describe_gauge!("answer_bytes_held", Unit::Bytes, "Bytes of answers that clients have not read yet");
}

/// Describes the metrics of the middleware and of the store of originals.
fn describe_middleware() {
    describe_counter!(
        "middleware_requests_total",
        Unit::Count,
        "Conversations, by outcome: compressed, or whole (nothing was compressed)"
    );
    describe_counter!(
        "middleware_tokens_before_total",
        Unit::Count,
        "Tokens (o200k_base) of the compressed texts of conversations before compression"
    );
    describe_counter!(
        "middleware_tokens_after_total",
        Unit::Count,
        "Tokens (o200k_base) of the compressed texts of conversations after compression"
    );
    describe_counter!(
        "middleware_citing_stopped_total",
        Unit::Count,
        "Answers of upstreams to which no further citations were added, by reason"
    );
    describe_counter!(
        "originals_failures_total",
        Unit::Count,
        "Failed operations of the store of originals, by operation"
    );
    describe_counter!(
        "originals_reopened_total",
        Unit::Count,
        "Times the store of originals was opened again after an I/O error"
    );
}

/// Describes the metrics of the block store's local tiers.
fn describe_kv() {
    describe_counter!(
        "kv_lookups_total",
        Unit::Count,
        "Chunks of requests and of read-ahead, by the source of their block"
    );
    describe_gauge!("kv_bytes", Unit::Bytes, "Bytes that a tier holds, its overhead included");
    describe_gauge!("kv_entries", Unit::Count, "Blocks that a tier holds");
    describe_counter!("kv_evictions_total", Unit::Count, "Blocks removed to make room for others");
    describe_counter!("kv_damaged_total", Unit::Count, "Blocks whose content was damaged; discarded");
    describe_counter!(
        "kv_unreadable_total",
        Unit::Count,
        "Blocks that the operating system could not read; kept"
    );
    describe_counter!(
        "kv_writes_total",
        Unit::Count,
        "Blocks to store in a tier, by outcome (dropped: the write queue of the disk was full)"
    );
    describe_gauge!("kv_failing", Unit::Count, "1 while blocks cannot be written, else 0");
}
