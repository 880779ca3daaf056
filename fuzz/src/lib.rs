//! What fuzz targets share: a service without a network, and files in memory.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use thresher::access::Access;
use thresher::admission::{Admission, Bounds};
use thresher::api::BodyLimits;
use thresher::http::{
    Middleware, OriginPolicy, ReceiptKey, RegistryLimits, ServeLimits, Service, ServiceParts,
};
use thresher::originals::{OriginalSettings, Originals};
use thresher::middleware::settings::{MiddlewareSettings, UpstreamSettings, When};
use thresher::tenants::{TenantSettings, Tenants};
use thresher_core::kv::store::KvStore;
use thresher_core::model::scripted::ScriptedModel;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::pipeline::{Pipeline, Settings};
use thresher_registry::RegistrySettings;

/// Small, so that one input takes milliseconds.
const LIMITS: RequestLimits = RequestLimits {
    chunk_count_max: 8,
    registered_chunk_count_max: 12,
    registered_bytes_max: 4_000,
    chunk_bytes_max: 1_500,
    answer_bytes_max: 1_000,
    span_count_max: 4,
    query_tokens_max: 64,
    input_tokens_max: 2_500,
    block_bytes_max: 1 << 20,
    source_count_max: 100,
    logit_count_max: 50_000,
    json_value_count_max: 100,
};

/// The longest that a request may take. A slow unit is reported by libFuzzer itself.
const DEADLINE: Duration = Duration::from_secs(2);

/// The middleware's upstream: nobody listens on the port of RFC 863, so that a request is read and rewritten, and then answered 502.
const NOBODY: &str = "http://127.0.0.1:9";

/// The daemon's service with a model that is arithmetic only, and an upstream that is nobody; its files lie in `folder`.
///
/// # Panics
/// When `folder` cannot be written to.
pub fn service(folder: &TempDir) -> Service {
    let registry = RegistrySettings { dir: "".into(), batch_count_max: 8, ..RegistrySettings::default() };
    let tenants = Tenants::new(TenantSettings { registry: registry.clone(), ..TenantSettings::default() });
    tenants.open_default().expect("a registry in memory");
    let tokenizer = Arc::new(ScriptedModel::tokenizer(&["tide", "moon", "water"]));
    let settings = Settings { limits: LIMITS, ..Settings::default() };
    let store = Arc::new(KvStore::without_tiers());
    let model = Arc::new(ScriptedModel::new(16));
    tenants.set_pipeline(Arc::new(Pipeline::new(model, tokenizer, store, settings)));
    let bodies = BodyLimits::new(&LIMITS, registry.batch_count_max);
    Service::new(ServiceParts {
        access: Access::open_to_all(),
        tenants,
        originals: Originals::at(&OriginalSettings { dir: "".into(), ..OriginalSettings::default() }),
        middleware: Arc::new(Middleware::new(&middleware()).expect("an upstream")),
        receipts: Arc::new(ReceiptKey::at(&folder.path().join("key.pem"))),
        admission: Admission::new(Bounds { concurrency_max: 2, queue_max: 8, stream_count_max: 2 }),
        limits: ServeLimits {
            body_bytes_max: 16 << 10,
            bodies_bytes_max: 1 << 20,
            answers_bytes_max: 16 << 20,
            read_max: DEADLINE,
            deadline_default: DEADLINE,
            deadline_max: DEADLINE,
            stream_max: DEADLINE,
            bodies,
            registry: RegistryLimits::new(&registry, &LIMITS),
        },
        origins: OriginPolicy::public(&[], &[], false),
    })
}

/// Every conversation is compressed, however short it is.
fn middleware() -> MiddlewareSettings {
    MiddlewareSettings {
        upstreams: vec![UpstreamSettings { url: NOBODY.to_owned(), ..UpstreamSettings::default() }],
        compress: When::Always,
        tools: vec!["*".to_owned()],
        prompt_tokens_min: 0,
        body_bytes_max: 16 << 10,
        // For a machine on which somebody does listen, and discards.
        silence_ms_max: 2_000,
        ..MiddlewareSettings::default()
    }
}

/// A folder in memory where the system has one: a target writes files thousands of times a second.
///
/// # Errors
/// As [`tempfile::tempdir`].
pub fn folder() -> io::Result<TempDir> {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}
