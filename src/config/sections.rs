//! Settings types of the sections that no other module owns, with their defaults.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thresher_core::kv::codec::Codec;
use thresher_core::model::device::DeviceChoice;
use thresher_core::pipeline::score::Scoring;

/// `[http]`: the public listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address and port. An address that is not loopback requires `access.keys_file`. Default: `127.0.0.1:8080`.
    pub listen: SocketAddr,
    /// PEM file with the certificate and its chain, reloaded when it changes. Empty: no TLS.
    pub tls_cert_file: PathBuf,
    /// PEM file with the private key of the certificate; required if `tls_cert_file` is set.
    pub tls_key_file: PathBuf,
    /// Whether this listener and that of operators serve the page at `/`.
    pub page: bool,
    /// Host names that a daemon without keys accepts in the `Host` header, beside the names of loopback.
    pub hosts_allowed: Vec<String>,
    /// Origins of web pages that may send requests and read answers (CORS), such as `https://app.example.com`.
    pub origins_allowed: Vec<String>,
}

/// `[admin]`: the listener for operators, with `/livez`, `/readyz`, `/metrics`, `/v1/savings` and `DELETE /admin/tenants/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Address and port; no key is needed there. Default: `127.0.0.1:8081`.
    pub listen: SocketAddr,
}

/// `[model]`: the model and its runtime.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Folder with `contract.toml`, written by `thresher export`.
    pub dir: PathBuf,
    /// Path of ONNX Runtime's shared library. Empty: `runtime/` in the root, where `thresher init` puts it, if it is there, else the path
    /// where `make provision` puts it. `THRESHER_RUNTIME_LIB` sets it as well.
    pub runtime_lib: PathBuf,
    /// Windows that the model reads at the same time. 0: one per core.
    pub workers: usize,
    /// The processor or GPU that the model runs on.
    pub device: DeviceChoice,
    /// Bytes of GPU memory that the model may use. 0: no limit.
    pub device_memory_bytes_max: u64,
    /// Folder of the decoder whose keys and values are exported, in full. It may be `dir`: then all layers of that model are run and cached, not
    /// only those up to its last chosen head. Empty: those of the model in `dir`, if it is a decoder that runs all its layers.
    pub kv_dir: PathBuf,
}

/// `[rc]`: the scoring method.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rc {
    /// The estimator that scores chunks and units.
    pub estimator: Scoring,
}

/// `[blocks]`: the cache of chunk keys. A block holds the keys (and, for a decoder, the values) of one chunk, about 400 bytes a token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockSettings {
    /// Folder of the disk cache, used by one daemon only. Empty: no disk cache.
    pub dir: PathBuf,
    /// Bytes on disk, as the file system counts them. 0: no disk cache.
    pub disk_bytes_max: u64,
    /// Number format of stored keys and values.
    pub codec: Codec,
}

/// `[verdict]`: what judges whether the chunks support an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VerdictSettings {
    /// Directory of a classifier of two texts: an ONNX graph with its `tokenizer.json`, or what `thresher export` wrote. It judges the parts
    /// of an answer that are no copies. Empty: none.
    pub model: PathBuf,
}

/// `[receipts]`: signed records of attributions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Receipts {
    /// File with the private key (Ed25519, PKCS#8 in PEM) that signs receipts. The daemon creates it for the first receipt.
    pub key_file: PathBuf,
}

impl Default for Receipts {
    fn default() -> Self {
        Self { key_file: "data/receipts.pem".into() }
    }
}

/// `[admission]`: how many requests are worked on at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// Requests that are worked on at the same time. 0: eight per core, so that requests whose chunks the model has to read do not
    /// delay requests whose chunks are cached.
    pub concurrency_max: usize,
    /// Milliseconds that a request may take, time in the queue included, if it sets no `deadline_ms`.
    pub deadline_ms_default: u64,
}

/// `[telemetry]`: logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// The events that are logged: a level, or directives such as `info,thresher=debug`.
    pub log: String,
    /// OTLP endpoint for traces over HTTP, such as `http://127.0.0.1:4318/v1/traces`. Empty: no traces.
    pub otlp_endpoint: String,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 8080).into(),
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            page: true,
            hosts_allowed: Vec::new(),
            origins_allowed: Vec::new(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: ([127, 0, 0, 1], 8081).into() }
    }
}

impl Default for Model {
    fn default() -> Self {
        Self {
            dir: "models/minilm-l6".into(),
            runtime_lib: PathBuf::new(),
            workers: 0,
            device: DeviceChoice::default(),
            device_memory_bytes_max: 0,
            kv_dir: PathBuf::new(),
        }
    }
}

impl Default for BlockSettings {
    fn default() -> Self {
        Self { dir: "data/kv".into(), disk_bytes_max: 8 << 30, codec: Codec::default() }
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self { concurrency_max: 0, deadline_ms_default: 10_000 }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { log: "info,ort=warn,redis=off,tantivy=error".to_owned(), otlp_endpoint: String::new() }
    }
}

/// The name of ONNX Runtime's shared library on this platform.
pub const RUNTIME_FILE: &str =
    if cfg!(target_os = "macos") { "libonnxruntime.dylib" } else { "libonnxruntime.so" };

impl Model {
    /// Returns the path of the runtime's library: `runtime_lib`, or the path where `make provision` puts it if `runtime_lib` is empty.
    pub fn runtime_lib(&self) -> PathBuf {
        if !self.runtime_lib.as_os_str().is_empty() {
            return self.runtime_lib.clone();
        }
        Path::new("models/.cache/onnxruntime").join(RUNTIME_FILE)
    }

    /// Returns whether keys and values are exported from the model that scores, which then runs all its layers.
    pub fn exports_itself(&self) -> bool {
        self.kv_dir == self.dir
    }

    /// Returns whether keys and values are exported from a second model.
    pub fn has_exporter(&self) -> bool {
        !self.kv_dir.as_os_str().is_empty() && !self.exports_itself()
    }

    /// Returns the number of windows that the model reads at the same time: `workers`, or the number of cores if `workers` is 0.
    pub fn workers(&self) -> usize {
        if self.workers == 0 { cores() } else { self.workers }
    }
}

impl BlockSettings {
    /// Returns whether the settings ask for a disk cache.
    pub fn disk(&self) -> bool {
        !self.dir.as_os_str().is_empty() && self.disk_bytes_max > 0
    }
}

impl Admission {
    /// Requests that wait for a permit; one more gets a 429. A few seconds of work: a client that waits longer is better served by another
    /// daemon. While several tenants have keys, one of them takes at most half.
    pub const QUEUE_MAX: usize = 64;

    /// Requests that are worked on at the same time for each core if `concurrency_max` is 0.
    pub const PER_CORE: usize = 8;

    /// The longest deadline that a request may set: long enough to encode a book on a slow machine, and short enough that a forgotten request
    /// frees its permit.
    pub const DEADLINE_MAX: Duration = Duration::from_secs(120);

    /// Returns the number of requests that are worked on at the same time: `concurrency_max`, or [`Self::PER_CORE`] for each core if it
    /// is 0.
    pub fn concurrency_max(&self) -> usize {
        if self.concurrency_max == 0 { Self::PER_CORE * cores() } else { self.concurrency_max }
    }

    /// Returns the time that a request may take if it names no deadline.
    pub fn deadline_default(&self) -> Duration {
        Duration::from_millis(self.deadline_ms_default)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
