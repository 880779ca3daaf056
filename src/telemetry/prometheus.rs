//! The Prometheus recorder, and the description of every metric.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Upper bounds of histogram buckets, in seconds: from half a millisecond, which a request with cached chunks can take, to the default
/// deadline.
const SECONDS_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What each counter counts, by its name.
const COUNTERS: &[(&str, &str)] = &[
    ("requests_total", "Requests answered, by endpoint and error code (ok: no error)"),
    (
        "tokens_in_total",
        "Tokens of contexts before compression, counted with the tokenizer that the request names",
    ),
    (
        "tokens_out_total",
        "Tokens of contexts after compression, counted with the tokenizer that the request names",
    ),
    ("registry_changes_total", "Changes of registered chunks, by kind"),
    ("registry_warmed_total", "Registered chunks read ahead, by outcome"),
    ("shared_requests_total", "Blocks and commands sent to the shared tier, by operation and outcome"),
    ("key_requests_total", "Requests by the name of their API key and by error code (ok: no error)"),
    ("key_tokens_total", "Tokens of the model charged to an API key"),
    (
        "keys_reloads_total",
        "Reloads of the changed keys file, by outcome (failed: the previous keys stay in use)",
    ),
    (
        "tls_reloads_total",
        "Reloads of the changed certificate, by outcome (failed: the previous one stays in use)",
    ),
    ("tls_handshakes_total", "TLS handshakes of clients, by outcome"),
    ("kv_exports_total", "Exports of keys and values, by policy"),
    (
        "kv_export_tokens_total",
        "Tokens of exports, by kind (recomputed: encoded again for the export; cached: the others)",
    ),
    ("kv_export_bytes_sent_total", "Bytes of export files sent to clients"),
    ("mcp_calls_total", "Calls of MCP tools, by tool and error code (ok: no error)"),
    (
        "connections_refused_total",
        "New connections that were closed at once because of a limit, by listener and reason",
    ),
    ("connections_closed_total", "Connections that the daemon closed, by listener and reason"),
    (
        "middleware_requests_total",
        "Conversations, by outcome: compressed, whole (nothing was compressed), or shadow (what would have been kept was computed)",
    ),
    ("savings_requests_total", "Answered requests that were to be compressed, by outcome"),
    (
        "savings_tokens_before_total",
        "Tokens (o200k_base) before compression of the texts of answered requests that could be compressed",
    ),
    ("savings_tokens_after_total", "The same tokens after compression"),
    (
        "savings_tokens_saved_total",
        "Tokens (o200k_base) that were left out, by what they would have been billed as",
    ),
    ("savings_tokens_billed_total", "Tokens that upstreams counted, by kind"),
    ("savings_saved_micros_total", "What the saved tokens would have cost, in millionths of the currency"),
    ("savings_billed_micros_total", "What the billed tokens cost, in millionths of the currency"),
    (
        "savings_shadow_sentences_total",
        "Sentences of answers in shadow mode with a source, by whether it would have been kept",
    ),
    (
        "savings_results_used_total",
        "Results of tools from which the model copied later, by whether that was sent",
    ),
    (
        "savings_tools_off_total",
        "Tools, with the kind of their results, that are sent whole because too much was lost",
    ),
    ("savings_shadow_answers_total", "Answers in shadow mode, by whether their sources were looked up"),
    (
        "middleware_tokens_before_total",
        "Tokens (o200k_base) of the compressed texts of conversations before compression",
    ),
    (
        "middleware_tokens_after_total",
        "Tokens (o200k_base) of the compressed texts of conversations after compression",
    ),
    (
        "middleware_citing_stopped_total",
        "Answers of upstreams to which no further citations were added, by reason",
    ),
    ("originals_failures_total", "Failed operations of the store of originals, by operation"),
    ("originals_reopened_total", "Times the store of originals was opened again after an I/O error"),
    ("kv_lookups_total", "Chunks of requests and of read-ahead, by the source of their block"),
    ("kv_evictions_total", "Blocks removed to make room for others"),
    ("kv_damaged_total", "Blocks whose content was damaged; discarded"),
    ("kv_unreadable_total", "Blocks that the operating system could not read; kept"),
    (
        "kv_writes_total",
        "Blocks to store in a tier, by outcome (dropped: the write queue of the disk was full)",
    ),
];

/// The unit and the meaning of each gauge, by its name.
const GAUGES: &[(&str, Unit, &str)] = &[
    ("registry_chunks", Unit::Count, "Registered chunks, by the state of their read-ahead"),
    ("requests_in_flight", Unit::Count, "Requests that are being answered or wait for a permit"),
    ("requests_waiting", Unit::Count, "Requests that wait for a permit"),
    ("shared_queue_bytes", Unit::Bytes, "Bytes of blocks that wait to be written to the shared tier"),
    (
        "shared_breaker_open",
        Unit::Count,
        "Share of the shared tier's servers that get no requests because they fail, 0 to 1",
    ),
    ("model_info", Unit::Count, "1 for each loaded model, with its name and its device"),
    (
        "key_info",
        Unit::Count,
        "1 for each API key in the key file, with its tenant; 0 for a key that was removed",
    ),
    ("connections_open", Unit::Count, "Open connections, by listener"),
    ("body_bytes_held", Unit::Bytes, "Bytes of memory taken for request bodies, each counted twice"),
    ("answer_bytes_held", Unit::Bytes, "Bytes of answers that clients have not read yet"),
    ("block_bytes_held", Unit::Bytes, "Bytes of memory taken for the blocks of requests"),
    ("store_bytes_held", Unit::Bytes, "Bytes of memory that a store of all tenants holds"),
    ("kv_bytes", Unit::Bytes, "Bytes that a tier holds, its overhead included"),
    ("kv_entries", Unit::Count, "Blocks that a tier holds"),
    ("kv_failing", Unit::Count, "1 while blocks cannot be written, else 0"),
];

/// What each histogram measures, in seconds, by its name.
const HISTOGRAMS: &[(&str, &str)] = &[
    ("request_seconds", "Seconds from the head of a request to its answer, time in the queue included"),
    ("stage_seconds", "Seconds that a pipeline stage took"),
    ("registry_commit_seconds", "Seconds until a commit of the registry is durable"),
    ("shared_seconds", "Seconds that a call of the shared tier took"),
];

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
    for &(name, text) in COUNTERS {
        describe_counter!(name, Unit::Count, text);
    }
    for &(name, unit, text) in GAUGES {
        describe_gauge!(name, unit, text);
    }
    for &(name, text) in HISTOGRAMS {
        describe_histogram!(name, Unit::Seconds, text);
    }
    Ok(Prometheus(handle))
}
