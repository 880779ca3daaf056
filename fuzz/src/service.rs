//! What fuzz targets share: a service without a network, and files in memory.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use thresher::access::Access;
use thresher::api::BodyLimits;
use thresher::app::{self, Limits};
use thresher::config::{self, Config, MemoryShares};
use thresher::http::Service;
use thresher::middleware::settings::{MiddlewareLimits, MiddlewareSettings, UpstreamSettings, When};
use thresher::originals::OriginalSettings;
use thresher_core::kv::store::KvStore;
use thresher_core::model::scripted::ScriptedModel;
use thresher_core::pipeline::validate::RequestLimits;
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
    chunk_tokens_max: 2_000,
    block_bytes_max: 1 << 20,
    stream_block_bytes_max: 1 << 18,
    source_count_max: 100,
    logit_count_max: 50_000,
    json_value_count_max: 100,
};

/// The longest that a request may take. A slow unit is reported by libFuzzer itself.
const MS_MAX: u64 = 2_000;

/// The middleware's upstream: nobody listens on the port of RFC 863, so that a request is read and rewritten, and then answered 502.
const NOBODY: &str = "http://127.0.0.1:9";

/// The daemon's service with a model that is arithmetic only, and an upstream that is nobody; its files lie in `folder`.
///
/// # Panics
/// When `folder` cannot be written to.
pub fn service(folder: &TempDir) -> Service {
    let config = config(folder);
    let limits = limits(&config);
    let tenants = app::tenants(&config, &limits, None);
    tenants.open_default().expect("a registry in memory");
    let tokenizer = Arc::new(ScriptedModel::tokenizer(&["tide", "moon", "water"]));
    let store = Arc::new(KvStore::without_tiers());
    tenants.set_pipeline(app::wire(&config, &limits, Arc::new(ScriptedModel::new(16)), tokenizer, store));
    app::service(&config, &limits, Access::open_to_all(), tenants).expect("a store in memory and an upstream")
}

fn config(folder: &TempDir) -> Config {
    Config {
        admission: config::Admission { concurrency_max: 2, deadline_ms_default: MS_MAX },
        registry: RegistrySettings { dir: "".into(), ..RegistrySettings::default() },
        originals: OriginalSettings { dir: "".into(), ..OriginalSettings::default() },
        middleware: middleware(),
        receipts: config::Receipts { key_file: folder.path().join("key.pem") },
        ..Config::default()
    }
}

fn limits(config: &Config) -> Limits {
    let defaults = Limits::new(config, 1);
    let time = Duration::from_millis(MS_MAX);
    Limits {
        memory: MemoryShares { bodies: 1 << 20, responses: 16 << 20, ..defaults.memory },
        body_bytes_max: 16 << 10,
        read_max: time,
        deadline_max: time,
        bodies: BodyLimits { requests: LIMITS, batch_count_max: 8, ..defaults.bodies },
        // For a machine on which somebody does listen, and discards.
        middleware: MiddlewareLimits { body_bytes_max: 16 << 10, silence_max: time, ..defaults.middleware },
        ..defaults
    }
}

/// Every conversation is compressed, however short it is.
fn middleware() -> MiddlewareSettings {
    MiddlewareSettings {
        upstreams: vec![UpstreamSettings {
            url: NOBODY.to_owned(),
            compress: When::Always,
            ..UpstreamSettings::default()
        }],
        tools: vec!["*".to_owned()],
        prompt_tokens_min: 0,
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
