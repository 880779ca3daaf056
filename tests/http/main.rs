//! The daemon's HTTP routes over real sockets, with models that answer, wait or panic as a test needs.
//! `process.rs` runs the real binary with the real model.

mod agents;
mod allocations;
mod attribute;
mod connections;
mod conversations;
mod bounds;
mod fairness;
mod gateways;
mod highlight;
mod keys;
mod kv;
mod middleware;
mod openapi;
mod origins;
mod page;
mod passthrough;
mod place;
mod process;
mod registry;
mod request_id;
mod rerank;
mod savings;
mod source_conflicts;
#[path = "../support/mod.rs"]
mod support;
mod tenants;
mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use ndarray::ArrayView3;
use serde_json::{Value, json};
use thresher::access::Access;
use thresher::admission::{Admission, Bounds};
use thresher::api::BodyLimits;
use thresher::app::{self, Limits};
use thresher::config::{self, Config, MemoryShares};
use thresher::http::admin::Admin;
use thresher::http::{self, ConnectionLimits, OriginPolicy, Prefilter, Service, Serving};
use thresher::middleware::settings::MiddlewareLimits;
use thresher::originals::OriginalSettings;
use thresher::savings::settings::SavingsSettings;
use thresher::telemetry::{self, Prometheus};
use thresher::tenants::{TenantSettings, Tenants};
use thresher_core::kv::store::KvStore;
use thresher_core::model::scripted::ScriptedModel;
use thresher_core::model::{
    EncodedQuestion, ModelError, ModelInfo, ModelRuntime, Past, RawLogits, WindowFilter, WindowSink,
};
use thresher_core::pipeline::calibration::Calibration;
use thresher_core::pipeline::decide::coverage::CoverageLimits;
use thresher_core::pipeline::score::Scoring;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::pipeline::{Pipeline, Settings};
use thresher_registry::RegistrySettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use self::support::wait::eventually;
use self::support::wire::{self, Framing, ask, get, post, send};

const TENANT_COUNT_MAX: usize = 3;
const BODY_BYTES_MAX: usize = 4096;
const BODIES_BYTES_MAX: usize = 16 << 20;
const DEADLINE_MS_MAX: u64 = 600_000;
/// A word that tests put into requests and then look for where no text of a request may appear.
const SECRET: &str = "xyzzyplugh";

// ---- a daemon for one test ----

struct Daemon {
    http: SocketAddr,
    admin: SocketAddr,
    service: Service,
    tenants: Tenants,
}

/// A daemon that serves `model` to `concurrency` requests at the same time while `queue` more may wait.
/// Without a model it is still loading.
async fn daemon(model: Option<Arc<dyn ModelRuntime>>, concurrency: usize, queue: usize) -> Daemon {
    let pipeline = model.map(|model| pipeline_of(model, KvStore::without_tiers()));
    daemon_of(pipeline, concurrency, queue).await
}

async fn daemon_of(loaded: Option<Pipeline>, concurrency: usize, queue: usize) -> Daemon {
    serve(service(loaded, concurrency, queue, &registry_settings())).await
}

/// A service without keys, and its tenants.
fn service(loaded: Option<Pipeline>, concurrency: usize, queue: usize, settings: &RegistrySettings) -> Made {
    keyed_service(loaded, (concurrency, queue), settings, Access::open_to_all())
}

type Made = (Service, Tenants);

fn keyed_service(
    loaded: Option<Pipeline>,
    bounds: (usize, usize),
    settings: &RegistrySettings,
    access: Access,
) -> Made {
    service_that_counts(loaded, bounds, settings, (access, SavingsSettings::default()))
}

fn service_that_counts(
    loaded: Option<Pipeline>,
    bounds: (usize, usize),
    settings: &RegistrySettings,
    (access, savings): (Access, SavingsSettings),
) -> Made {
    let in_memory = OriginalSettings { dir: "".into(), ..OriginalSettings::default() };
    service_of(loaded, bounds, settings, (access, savings, in_memory))
}

/// The same without keys, with this store of originals.
fn storing_service(
    loaded: Option<Pipeline>,
    bounds: (usize, usize),
    settings: &RegistrySettings,
    originals: OriginalSettings,
) -> Made {
    service_of(loaded, bounds, settings, (Access::open_to_all(), SavingsSettings::default(), originals))
}

fn service_of(
    loaded: Option<Pipeline>,
    (concurrency, queue): (usize, usize),
    settings: &RegistrySettings,
    (access, savings, originals): (Access, SavingsSettings, OriginalSettings),
) -> Made {
    let tenants = Tenants::new(TenantSettings {
        registry: settings.clone(),
        savings: Arc::new(savings),
        count_max: TENANT_COUNT_MAX,
        ..TenantSettings::default()
    });
    tenants.open_default().expect("a registry");
    tenants.open(&access.tenants());
    if let Some(loaded) = loaded {
        tenants.set_pipeline(Arc::new(loaded));
    }
    let config = Config {
        admission: config::Admission { concurrency_max: concurrency, deadline_ms_default: DEADLINE_MS_MAX },
        registry: settings.clone(),
        originals,
        receipts: config::Receipts { key_file: receipts().join("key.pem") },
        ..Config::default()
    };
    let mut service = app::service(&config, &limits(&config), access, tenants.clone()).expect("no upstream");
    // A concurrency of 0 lets nothing work here; in the settings it means "as many as the machine takes".
    service.admission = Admission::new(Bounds { concurrency_max: concurrency, queue_max: queue });
    (service, tenants)
}

/// Limits that small requests reach.
fn limits(config: &Config) -> Limits {
    let defaults = Limits::new(config, 1);
    Limits {
        memory: MemoryShares { bodies: BODIES_BYTES_MAX, responses: 16 << 20, ..defaults.memory },
        body_bytes_max: BODY_BYTES_MAX,
        read_max: Duration::from_secs(30),
        deadline_max: Duration::from_millis(DEADLINE_MS_MAX),
        bodies: BodyLimits {
            requests: request_limits(),
            batch_count_max: 15,
            metadata_bytes_max: 64,
            candidate_count_max: 10,
        },
        prefilter: Prefilter { above: 10, to: 2 },
        // Texts of tests are short.
        middleware: MiddlewareLimits { result_tokens_min: 0, ..MiddlewareLimits::default() },
        tenant_count_max: TENANT_COUNT_MAX,
    }
}

/// The directory of the keys with which all daemons of this process sign receipts.
fn receipts() -> &'static Path {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));
    FOLDER.path()
}

async fn serve((service, tenants): Made) -> Daemon {
    let metrics = metrics();
    let render = Arc::new(move || metrics.render());
    let admin =
        http::admin::router(Admin { service: service.clone(), render }, OriginPolicy::admin(&[], false));
    Daemon { http: listen(http::router(service.clone())).await, admin: listen(admin).await, service, tenants }
}

fn pipeline_of(model: Arc<dyn ModelRuntime>, store: KvStore) -> Pipeline {
    pipeline_within(request_limits(), model, store)
}

fn pipeline_within(limits: RequestLimits, model: Arc<dyn ModelRuntime>, store: KvStore) -> Pipeline {
    let tokenizer = Arc::new(ScriptedModel::tokenizer(&["tide", "moon"]));
    let settings = Settings { limits, calibration: Some(Arc::new(calibration())), ..Settings::default() };
    Pipeline::new(model, tokenizer, store.into(), settings)
}

/// The thresholds of the default model, with limits of coverage for texts of a few sentences: most would be kept whole otherwise.
fn calibration() -> Calibration {
    let shipped = Calibration::shipped("minilm-l6").expect("the default model");
    // A budget with an upper limit alone is filled up to it.
    let efforts =
        (1..=100).map(|effort| if effort > 95 { 1e6 } else { 1.0 + effort as f32 / 50.0 }).collect();
    let estimator = Scoring::default().to_string();
    let limits = CoverageLimits::of_efforts(efforts, estimator, String::new()).expect("enough rows");
    let mut calibration = Calibration::clone(&shipped);
    calibration.coverage = Some(limits);
    calibration
}

fn request_limits() -> RequestLimits {
    RequestLimits {
        chunk_count_max: 8,
        registered_chunk_count_max: 12,
        registered_bytes_max: 4_000,
        chunk_bytes_max: 1_500,
        answer_bytes_max: 1_000,
        span_count_max: 4,
        query_tokens_max: 64,
        input_tokens_max: 2_500,
        chunk_tokens_max: RequestLimits::default().chunk_tokens_max,
        block_bytes_max: RequestLimits::default().block_bytes_max,
        stream_block_bytes_max: RequestLimits::default().stream_block_bytes_max,
        source_count_max: 100,
        logit_count_max: 50_000,
        json_value_count_max: 100,
    }
}

fn registry_settings() -> RegistrySettings {
    RegistrySettings { dir: "".into(), chunk_count_max: 20 }
}

/// Settings of a listener that closes no connection by itself.
fn serving() -> Serving {
    let long = Duration::from_secs(3_600);
    let connections = ConnectionLimits { count_max: 100, per_peer_max: 100, idle_max: long, write_max: long };
    Serving { listener: "test", head_max: long, connections }
}

async fn listen(router: axum::Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// The metrics of this process. It can have one recorder only, so all daemons of these tests share it.
fn metrics() -> Prometheus {
    static METRICS: OnceLock<Prometheus> = OnceLock::new();
    METRICS.get_or_init(|| telemetry::install_metrics().expect("the first recorder")).clone()
}

fn scripted() -> Arc<dyn ModelRuntime> {
    Arc::new(ScriptedModel::new(16))
}

/// The scripted model. Before it reads windows it calls `before` with a function that says whether any of
/// them is still wanted.
struct Double<F> {
    model: ScriptedModel,
    before: F,
}

impl<F: Fn(&dyn Fn() -> bool) + Send + Sync> ModelRuntime for Double<F> {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn read(
        &self,
        windows: &[&[u32]],
        is_needed: WindowFilter,
        on_read: WindowSink,
    ) -> Result<(), ModelError> {
        (self.before)(&|| (0..windows.len()).any(is_needed));
        self.model.read(windows, is_needed, on_read)
    }

    fn encode_question(&self, question: &[u32], past: &dyn Past) -> Result<EncodedQuestion, ModelError> {
        self.model.encode_question(question, past)
    }

    fn logits(&self, question: &[u32], keys: ArrayView3<f32>) -> Result<RawLogits, ModelError> {
        self.model.logits(question, keys)
    }
}

fn double(before: impl Fn(&dyn Fn() -> bool) + Send + Sync + 'static) -> Arc<dyn ModelRuntime> {
    Arc::new(Double { model: ScriptedModel::new(16), before })
}

/// Holds calls of a model back until a test opens the gate, and counts how many calls have arrived.
#[derive(Default)]
struct Gate {
    arrived: AtomicUsize,
    open: AtomicBool,
}

impl Gate {
    /// Waits until the gate is open or `go_on` says that the work should stop. It polls, since nothing wakes
    /// a thread whose work is cancelled.
    fn pass(&self, go_on: &dyn Fn() -> bool) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) && go_on() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

// ---- requests ----

fn good() -> Value {
    json!({"query": "When is the tide?", "chunks": [{"id": "a", "text": "The tide is at noon."}, "The moon is far. Water is wet."]})
}

/// The good request with these fields replaced or added.
fn with(fields: Value) -> Value {
    let mut request = good();
    for (name, value) in fields.as_object().expect("fields") {
        request[name] = value.clone();
    }
    request
}

/// The good request with one more chunk, which no request with another `name` has.
fn with_own_chunk(name: &str) -> Value {
    let mut request = good();
    let chunks = request["chunks"].as_array_mut().expect("chunks");
    chunks.push(json!({"id": name, "text": format!("Gulls are loud, says the {name}.")}));
    request
}

/// Asserts that a response is the result of the good request.
#[track_caller]
fn assert_good(case: &str, response: &wire::Response) {
    assert_eq!(response.status, 200, "{case}: a good request: {}", response.body);
    let answer = response.json();
    assert!(answer["context"].as_str().is_some_and(|text| text.contains("The tide is at noon.")), "{case}");
    assert_eq!(answer["degraded"], Value::Null, "{case}");
}

/// Sends `body` and expects `error`, given as "status code param", with a message that contains `message`.
/// Then a good request must succeed.
async fn check(daemon: &Daemon, case: &str, body: impl AsRef<[u8]>, error: &str, message: &str) {
    let response = post(daemon.http, "/v1/compress", body).await;
    check_error(case, &response, error, message);
    assert_good(case, &post(daemon.http, "/v1/compress", good().to_string()).await);
}

/// Expects `error`, given as "status code param", with a message that contains `message`.
#[track_caller]
fn check_error(case: &str, response: &wire::Response, error: &str, message: &str) {
    let body = response.json();
    // The errors of Text Embeddings Inference have their message in `error`.
    let (found, of_message) = match &body["error"] {
        Value::String(_) => (&body, "error"),
        error => (error, "message"),
    };
    let text = |field: &str| found[field].as_str().unwrap_or("-");
    let head = format!("{} {} {}", response.status, text("code"), text("param"));
    assert_eq!(head, error, "{case}: {}", response.body);
    assert!(text(of_message).contains(message), "{case}: {:?} lacks {message:?}", text(of_message));
    assert_eq!(response.header("content-type"), Some("application/json"), "{case}");
}

// ---- tests ----

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_cannot_be_parsed_are_refused() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let good = good().to_string();
    let table: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        ("no body", b"".to_vec(), "400 invalid_json -", "EOF"),
        ("broken JSON", b"{\"query\": ".to_vec(), "400 invalid_json -", "EOF"),
        ("a trailing comma", b"{\"query\": \"q\",}".to_vec(), "400 invalid_json -", "trailing comma"),
        ("trailing garbage", format!("{good} x").into_bytes(), "400 invalid_json -", "trailing characters"),
        ("two requests", format!("{good}{good}").into_bytes(), "400 invalid_json -", "trailing characters"),
        ("not UTF-8", b"{\"query\": \"\xff\", \"chunks\": []}".to_vec(), "400 invalid_json -", "unicode"),
        (
            "half a surrogate pair",
            br#"{"query": "\ud800", "chunks": []}"#.to_vec(),
            "400 invalid_json -",
            "come in pairs",
        ),
        ("nested too deeply", "[".repeat(1000).into_bytes(), "400 wrong_type -", "expected an object"),
        (
            "a list in place of an object",
            br#"["q", ["a"]]"#.to_vec(),
            "400 wrong_type -",
            "expected an object",
        ),
        (
            "a field twice",
            br#"{"query": "q", "query": "r", "chunks": ["a"]}"#.to_vec(),
            "400 duplicate_field query",
            "`query`",
        ),
        (
            "too many bytes, by the declared length",
            vec![b' '; BODY_BYTES_MAX + 1],
            "413 body_too_large -",
            "larger than 4096 bytes",
        ),
    ];
    for (case, body, error, message) in table {
        check(&daemon, case, body, error, message).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_requests_are_refused() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let nine = vec!["text"; 9];
    let table = [
        (
            "unknown field",
            with(json!({"qeury": "q"})),
            "400 unknown_field qeury",
            "`qeury`, expected one of `query`",
        ),
        (
            "unknown field of a chunk",
            with(json!({"chunks": ["a", {"text": "b", "body": "c"}]})),
            "400 unknown_field chunks[1].body",
            "`body`",
        ),
        (
            "wrong type",
            with(json!({"chunks": ["a", {"text": 5}]})),
            "400 wrong_type chunks[1].text",
            "integer `5`, expected a string",
        ),
        ("null for a chunk", with(json!({"chunks": [null]})), "400 wrong_type chunks[0]", "expected a chunk"),
        ("null for a query", with(json!({"query": null})), "400 wrong_type query", "expected a string"),
        ("no query", json!({"chunks": ["a"]}), "400 missing_field query", "`query`"),
        ("no chunks", json!({"query": "q"}), "400 missing_field chunks", "`chunks`"),
        (
            "a chunk without text",
            with(json!({"chunks": [{"id": "a"}]})),
            "400 missing_field chunks[0].text",
            "`text`",
        ),
        ("a number for a word", with(json!({"order": 5})), "400 wrong_type order", "expected a string"),
        ("an unknown format", with(json!({"format": "html"})), "400 unknown_value format", "`numbered`"),
        (
            "an unknown on_error",
            with(json!({"on_error": "retry"})),
            "400 unknown_value on_error",
            "`passthrough`",
        ),
        (
            "more ids to keep than chunks",
            with(json!({"keep": vec!["a"; 9]})),
            "422 too_many keep",
            "keep names 9 chunks",
        ),
        (
            "a chunk over its limit",
            with(json!({"chunks": ["x", "y".repeat(1501)]})),
            "422 too_long chunks[1].text",
            "1501 bytes; the limit is 1500",
        ),
        (
            "too many tokens together",
            with(json!({"chunks": vec!["y".repeat(1000); 3]})),
            "422 too_long chunks",
            "more than 2500 tokens together",
        ),
        (
            "too many logits",
            with(json!({"query": "q".repeat(30), "chunks": vec!["y".repeat(1000); 2], "explain": true})),
            "422 too_many chunks",
            "are more than",
        ),
        ("empty query", with(json!({"query": ""})), "422 field_empty query", "query is empty"),
        ("blank query", with(json!({"query": " \n\t\u{3000}"})), "422 field_empty query", "query is empty"),
        ("empty chunks", with(json!({"chunks": []})), "422 field_empty chunks", "at least one"),
        (
            "too many chunks",
            with(json!({"chunks": nine})),
            "422 too_many chunks",
            "too many entries; the limit is 8",
        ),
        (
            "an id twice",
            with(json!({"chunks": [{"id": "a", "text": "x"}, "y", {"id": "a", "text": "z"}]})),
            "422 duplicate chunks[2].id",
            "chunks[0] and chunks[2]",
        ),
        ("an unknown id to keep", with(json!({"keep": ["a", "b"]})), "422 chunk_unknown keep[1]", "\"b\""),
        (
            "a budget of no tokens",
            with(json!({"budget": {"tokens": 0}})),
            "422 out_of_range budget.tokens",
            "budget.tokens is 0",
        ),
        (
            "a negative budget",
            with(json!({"budget": {"tokens": -1}})),
            "400 wrong_type budget.tokens",
            "`-1`",
        ),
        (
            "a budget below the shortest word",
            with(json!({"budget": {"tokens": 1}})),
            "422 budget_impossible budget.tokens",
            "the best word needs",
        ),
        (
            "a budget below the chunks to keep",
            with(json!({"budget": {"tokens": 5}, "keep": ["a"]})),
            "422 budget_impossible budget.tokens",
            "what `keep` names needs",
        ),
        (
            "two budgets",
            with(json!({"budget": {"tokens": 9, "ratio": 0.5}})),
            "422 fields_conflict budget",
            "not both",
        ),
        (
            "a budget that is a list",
            with(json!({"budget": [9, null, null]})),
            "400 wrong_type budget",
            "expected an object",
        ),
        (
            "a ratio of 0",
            with(json!({"budget": {"ratio": 0}})),
            "422 out_of_range budget.ratio",
            "budget.ratio is 0",
        ),
        ("a ratio over 1", with(json!({"budget": {"ratio": 1.5}})), "422 out_of_range budget.ratio", "1.5"),
        ("a ratio under 0", with(json!({"budget": {"ratio": -1}})), "422 out_of_range budget.ratio", "-1"),
        (
            "unknown tokenizer",
            with(json!({"tokenizer": "gpt2"})),
            "400 unknown_value tokenizer",
            "`gpt2`, expected one of `model`, `o200k_base`, `cl100k_base`",
        ),
        (
            "unknown granularity",
            with(json!({"granularity": "token"})),
            "400 unknown_value granularity",
            "`token`, expected one of `chunk`, `sentence`, `word`",
        ),
        (
            "unknown unit of offsets",
            with(json!({"offsets": "char"})),
            "400 unknown_value offsets",
            "`byte`, `codepoint`, `utf16`",
        ),
        (
            "a deadline over the limit",
            with(json!({"deadline_ms": DEADLINE_MS_MAX + 1})),
            "422 out_of_range deadline_ms",
            "the limit is 600000",
        ),
        (
            "a deadline that has passed",
            with(json!({"deadline_ms": 0})),
            "504 deadline_exceeded -",
            "deadline",
        ),
    ];
    for (case, body, error, message) in table {
        check(&daemon, case, body.to_string(), error, message).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_undeclared_length_is_bounded_too() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let long = vec![b' '; BODY_BYTES_MAX + 1];
    let response = ask(daemon.http, "POST", "/v1/compress", &long, Framing::Chunked).await;
    check_error("streamed", &response, "413 body_too_large -", "4096 bytes");
    let good = good().to_string();
    assert_good(
        "streamed",
        &ask(daemon.http, "POST", "/v1/compress", good.as_bytes(), Framing::Chunked).await,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_or_is_compressed_is_refused() {
    let (mut service, tenants) = service(None, 1, 0, &registry_settings());
    Arc::make_mut(&mut service.settings).read_max = Duration::from_millis(50);
    let daemon = serve((service, tenants)).await;
    let answer = async |head: &str| {
        let mut stream = tokio::net::TcpStream::connect(daemon.http).await.expect("the daemon listens");
        let head = format!(
            "POST /v1/compress HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n{head}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("the daemon reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a response");
        wire::parse(&response)
    };
    let late = answer("content-length: 5").await;
    check_error("a body that never comes", &late, "408 body_timeout -", "arrived too slowly");
    let zipped = answer("content-encoding: gzip\r\ncontent-length: 0").await;
    check_error("a compressed body", &zipped, "415 content_type_unsupported -", "Content-Encoding");
    let framed = answer("transfer-encoding: chunked\r\n\r\nno size").await;
    check_error("a body with invalid chunks", &framed, "400 body_broken -", "framing");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_are_refused() {
    let daemon = daemon(Some(scripted()), 4, 4).await;
    let response = get(daemon.http, "/v2/compress").await;
    check_error("unknown path", &response, "404 not_found -", "/v1/compress");
    let response = get(daemon.http, "/v1/compress").await;
    check_error("wrong method", &response, "405 method_not_allowed -", "Allow");
    assert_eq!(response.header("allow"), Some("POST"));
    let response = get(daemon.admin, "/v1/compress").await;
    check_error(
        "unknown path of the admin listener",
        &response,
        "404 not_found -",
        "/livez, /readyz, /metrics",
    );
    let models = get(daemon.http, "/v1/models").await.json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["window_tokens_max"]),
        (&json!("scripted"), &json!(16))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn passthrough_returns_the_whole_chunks_when_the_daemon_cannot_compress_them() {
    let (gate, panics) = (Arc::new(Gate::default()), double(|_| panic!("a bug")));
    let waits = double({
        let gate = Arc::clone(&gate);
        move |go_on| gate.pass(go_on)
    });
    let late = with(json!({"on_error": "passthrough", "deadline_ms": 0}));
    let now = with(json!({"on_error": "passthrough"}));
    let busy = daemon(Some(waits), 1, 0).await;
    let first = tokio::spawn({
        let (address, good) = (busy.http, good().to_string());
        async move { post(address, "/v1/compress", good).await }
    });
    eventually("the model reads for the first request", async || gate.arrived.load(Ordering::SeqCst) == 1)
        .await;
    let broken = daemon(Some(panics), 1, 0).await;
    let table = [
        (daemon(Some(scripted()), 1, 0).await, late, "deadline_exceeded"),
        (busy, now.clone(), "overloaded"),
        (broken, now, "internal"),
    ];
    for (daemon, request, code) in &table {
        let response = post(daemon.http, "/v1/compress", request.to_string()).await;
        assert_eq!(response.status, 200, "{code}: {}", response.body);
        let answer = response.json();
        assert_eq!(answer["degraded"]["code"], *code);
        assert_eq!(
            answer["context"], "[1] The tide is at noon.\n\n[2] The moon is far. Water is wet.",
            "{code}"
        );
        assert_eq!(answer["usage"], Value::Null, "{code}");
        assert_eq!(answer["citations"][1]["text"], "The moon is far. Water is wet.", "{code}");
    }
    let invalid = with(json!({"on_error": "passthrough", "keep": ["nobody"]}));
    let response = post(table[0].0.http, "/v1/compress", invalid.to_string()).await;
    check_error("a mistake of the caller stays an error", &response, "422 chunk_unknown keep[0]", "nobody");
    gate.open.store(true, Ordering::SeqCst);
    assert_good("the request that waited at the gate", &first.await.expect("no panic"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_the_queue_is_refused_with_a_time_to_retry() {
    let gate = Arc::new(Gate::default());
    let model = double({
        let gate = Arc::clone(&gate);
        move |go_on| gate.pass(go_on)
    });
    let daemon = daemon(Some(model), 1, 1).await;
    let ask = || {
        let address = daemon.http;
        tokio::spawn(async move { post(address, "/v1/compress", good().to_string()).await })
    };
    let working = ask();
    eventually("the model reads for the first request", async || gate.arrived.load(Ordering::SeqCst) == 1)
        .await;
    let waiting = ask();
    eventually("the second request waits in the queue", async || daemon.service.admission.waiting() == 1)
        .await;
    let refused = ask().await.expect("no panic");
    check_error("the third request", &refused, "429 overloaded -", "too many requests are waiting");
    let after_s: u64 = refused.header("retry-after").expect("a Retry-After header").parse().expect("seconds");
    assert!((1..=60).contains(&after_s), "{after_s}");
    let named = json!({"query": "tide", "chunk_ids": ["an id that is not looked up"]}).to_string();
    let refused = post(daemon.http, "/v1/compress", named).await;
    check_error(
        "ids are not looked up before the request is admitted",
        &refused,
        "429 overloaded -",
        "too many requests are waiting",
    );
    gate.open.store(true, Ordering::SeqCst);
    assert_good("the first request", &working.await.expect("no panic"));
    assert_good("the second request", &waiting.await.expect("no panic"));
    assert_good("a later request", &ask().await.expect("no panic"));
}

#[tokio::test(flavor = "multi_thread")]
async fn null_means_the_default_and_metadata_is_returned_byte_for_byte() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let metadata = r#"{"n":12345678901234567890123,"n":1e400,"s":"\u00e9"}"#;
    let nulls =
        r#""budget":null,"granularity":null,"keep":null,"order":null,"format":null,"tokenizer":null,"#;
    let more = r#""offsets":null,"explain":null,"deadline_ms":null,"on_error":null"#;
    let chunk = format!(r#"{{"id":null,"title":null,"text":"tide","metadata":{metadata}}}"#);
    let body = format!(r#"{{"query":"tide","chunks":[{chunk}],{nulls}{more}}}"#);
    let response = post(daemon.http, "/v1/compress", body).await;
    assert_eq!(response.status, 200, "{}", response.body);
    assert!(response.body.contains(&format!(r#""metadata":{metadata}"#)), "{}", response.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_reports_loading_ready_and_draining() {
    let daemon = daemon(None, 1, 0).await;
    let admin = |path: &'static str| get(daemon.admin, path);
    assert_eq!(admin("/livez").await.status, 200);
    assert_eq!((admin("/readyz").await.status, &*admin("/readyz").await.body), (503, "loading the model\n"));
    for path in ["/v1/compress", "/v1/models"] {
        let response = match path {
            "/v1/models" => get(daemon.http, path).await,
            _ => post(daemon.http, path, good().to_string()).await,
        };
        check_error(path, &response, "503 not_ready -", "/readyz");
        assert_eq!(response.header("retry-after"), Some("5"), "{path}");
    }
    let request = with(json!({"on_error": "passthrough"}));
    let response = post(daemon.http, "/v1/compress", request.to_string()).await;
    assert_eq!(response.status, 200, "while loading, chunks are passed through");
    assert!(response.body.contains("\"code\":\"not_ready\""), "{}", response.body);
    daemon.tenants.set_pipeline(Arc::new(pipeline_of(scripted(), KvStore::without_tiers())));
    assert_eq!((admin("/readyz").await.status, &*admin("/readyz").await.body), (200, "ok\n"));
    assert_good("with a loaded model", &post(daemon.http, "/v1/compress", good().to_string()).await);
    daemon.service.admission.drain();
    assert_eq!((admin("/readyz").await.status, &*admin("/readyz").await.body), (503, "draining\n"));
    assert_eq!(admin("/livez").await.status, 200);
    let response = post(daemon.http, "/v1/compress", good().to_string()).await;
    check_error("draining", &response, "503 draining -", "shutting down");
    assert_eq!(response.header("retry-after"), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_one_request_and_returns_its_permit() {
    let panics = Arc::new(AtomicBool::new(true));
    let model = double({
        let panics = Arc::clone(&panics);
        move |_| assert!(!panics.load(Ordering::SeqCst), "a bug")
    });
    let daemon = daemon(Some(model), 1, 0).await;
    for _ in 0..3 {
        let response = post(daemon.http, "/v1/compress", good().to_string()).await;
        check_error("a panic", &response, "500 internal -", "internal error");
    }
    panics.store(false, Ordering::SeqCst);
    assert_good("after the panics", &post(daemon.http, "/v1/compress", good().to_string()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_stops_when_its_client_disconnects() {
    let gate = Arc::new(Gate::default());
    let stopped = Arc::new(AtomicBool::new(false));
    let model = double({
        let (gate, stopped) = (Arc::clone(&gate), Arc::clone(&stopped));
        move |go_on| {
            gate.pass(go_on);
            stopped.fetch_or(!go_on(), Ordering::SeqCst);
        }
    });
    let daemon = daemon(Some(model), 1, 0).await;
    let body = good().to_string();
    let stream = send(daemon.http, "POST", "/v1/compress", body.as_bytes(), Framing::ContentLength).await;
    eventually("the model reads", async || gate.arrived.load(Ordering::SeqCst) == 1).await;
    drop(stream);
    eventually("the model has stopped", async || stopped.load(Ordering::SeqCst)).await;
    gate.open.store(true, Ordering::SeqCst);
    // The only permit is returned a moment after the work has stopped.
    let mut response = None;
    eventually("the permit is returned", async || {
        response = Some(post(daemon.http, "/v1/compress", &body).await);
        response.as_ref().is_some_and(|response| response.status != 429)
    })
    .await;
    assert_good("with the permit of the client that disconnected", &response.expect("a response"));
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_read_once_for_all_requests_that_wait_even_if_the_first_client_disconnects() {
    let gate = Arc::new(Gate::default());
    let model = double({
        let gate = Arc::clone(&gate);
        move |go_on| gate.pass(go_on)
    });
    let daemon = daemon(Some(model), 4, 4).await;
    let body = good().to_string();
    let first = send(daemon.http, "POST", "/v1/compress", body.as_bytes(), Framing::ContentLength).await;
    eventually("the model reads both chunks for the first request", async || {
        gate.arrived.load(Ordering::SeqCst) == 1
    })
    .await;
    // The others have a chunk of their own, too. The model reads it once the request has joined the reading
    // of the shared chunks.
    let others = ["first", "second"].map(|name| {
        let (http, body) = (daemon.http, with_own_chunk(name).to_string());
        tokio::spawn(async move { post(http, "/v1/compress", body).await })
    });
    eventually("both have joined and read their own chunks", async || {
        gate.arrived.load(Ordering::SeqCst) == 3
    })
    .await;
    let disconnects = async || {
        let metrics = get(daemon.admin, "/metrics").await.body;
        let line = "requests_total{endpoint=\"/v1/compress\",code=\"client_gone\"} ";
        metrics.lines().find_map(|found| found.strip_prefix(line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = disconnects().await;
    drop(first);
    eventually("the daemon has noticed that the first client is gone", async || disconnects().await > before)
        .await;
    gate.open.store(true, Ordering::SeqCst);
    for other in others {
        let response = other.await.expect("no panic");
        assert_good("a request that joined", &response);
        assert_eq!(response.json()["blocks"]["joined"], 2, "{}", response.body);
    }
    assert_eq!(gate.arrived.load(Ordering::SeqCst), 3, "the model has read a shared chunk twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_and_quote_none() {
    let daemon = daemon(Some(scripted()), 1, 0).await;
    let id = format!("id-{SECRET}");
    let chunk =
        json!({"id": id, "title": SECRET, "text": format!("The tide is {SECRET}."), "metadata": {SECRET: 1}});
    let request = json!({"query": format!("{SECRET}?"), "chunks": [chunk], "keep": [id]});
    assert_eq!(post(daemon.http, "/v1/compress", request.to_string()).await.status, 200);
    let refused = with(json!({"keep": [SECRET], SECRET: 1}));
    assert_eq!(post(daemon.http, "/v1/compress", refused.to_string()).await.status, 400);
    assert_eq!(get(daemon.http, &format!("/{SECRET}")).await.status, 404);
    let metrics = get(daemon.admin, "/metrics").await.body;
    for stage in ["tokenize", "blocks", "question", "scan", "score", "decide"] {
        assert!(
            metrics.contains(&format!("stage_seconds_bucket{{stage=\"{stage}\",le=")),
            "{stage}: {metrics}"
        );
    }
    for line in [
        "requests_total{endpoint=\"/v1/compress\",code=\"ok\"}",
        "requests_total{endpoint=\"/v1/compress\",code=\"unknown_field\"}",
        "requests_total{endpoint=\"other\",code=\"not_found\"}",
        "request_seconds_bucket{endpoint=\"/v1/compress\",le=",
        "# TYPE requests_in_flight gauge",
        "requests_waiting 0",
        "tokens_in_total ",
        "tokens_out_total ",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert!(!metrics.contains(SECRET), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_a_page_is_kept_without_its_header_where_both_do_not_fit() {
    let daemon = daemon(Some(scripted()), 1, 1).await;
    let page = "Year ended March 31,\n(in thousands)\n2024\n2023\nRevenue\n48,210\n44,907\nTide\n34\n33\nCrews\n(21,330)\n(20,118)\n";
    let compress = async |tokens: usize| {
        let body = json!({"query": "When is the tide?", "chunks": [page], "budget": {"tokens": tokens}, "tokenizer": "model", "format": "plain"});
        post(daemon.http, "/v1/compress", body.to_string()).await.json()
    };
    let row = "Tide\n34\n33";
    let large = compress(page.len()).await;
    assert_eq!((&large["chunks"][0]["kind"], &large["warnings"]), (&json!("pdf"), &Value::Null), "{large}");
    let small = compress(row.len()).await;
    assert_eq!(small["context"], row, "{small}");
    assert_eq!(small["warnings"][0]["code"], "group_cut", "{small}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_question_is_read_by_the_sentences_that_ask() {
    let daemon = daemon(Some(scripted()), 1, 1).await;
    let query = "We had rain all week. ".repeat(40) + "When is the tide? Thank you.";
    let body = json!({"query": query, "chunks": ["The tide is at noon.", "The harbour is old."], "budget": {"tokens": 24}, "tokenizer": "model"});
    let answer = post(daemon.http, "/v1/compress", body.to_string()).await.json();
    assert_eq!(answer["warnings"][0]["code"], "question_shortened", "{answer}");
    assert_eq!(answer["context"], "[1] The tide is at noon.", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_two_chunks_say_is_kept_once_and_cited_with_both() {
    let daemon = daemon(Some(scripted()), 1, 1).await;
    let text = "The tide is at noon. The harbour is old.";
    let chunks =
        json!([{"id": "a", "text": text}, {"id": "b", "text": "A lamp."}, {"id": "c", "text": text}]);
    let body = json!({"query": "When is the tide?", "chunks": chunks, "budget": {"tokens": 500}});
    let answer = post(daemon.http, "/v1/compress", body.to_string()).await.json();
    assert_eq!(answer["context"], format!("[1] {text}\n\n[2] A lamp."), "{answer}");
    let citations = answer["citations"].as_array().expect("citations");
    let cited: Vec<String> =
        citations.iter().map(|citation| format!("{} {}", citation["chunk"], citation["marker"])).collect();
    assert_eq!(cited, ["\"a\" 1", "\"b\" 2", "\"c\" 1"], "{answer}");
}
