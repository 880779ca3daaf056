//! The sections that belong to no other module, each with its defaults.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thresher_core::kv::codec::Codec;
use thresher_core::model::device::DeviceChoice;
use thresher_core::pipeline::Placement;
use thresher_core::pipeline::scan::ScanBy;
use thresher_core::pipeline::score::Scoring;

/// The public listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address and port. One that others than this machine can reach takes a file of keys.
    pub listen: SocketAddr,
    /// PEM file of the certificate, and of those between it and the authority; empty: no TLS. Read again when it changes.
    pub tls_cert_file: PathBuf,
    /// PEM file of its private key.
    pub tls_key_file: PathBuf,
    /// Host names under which the daemon may be asked, beside this machine's loopback names, where there are no keys.
    pub hosts_allowed: Vec<String>,
    /// Origins of web pages that may ask and read answers (CORS), such as `https://app.example.com`.
    pub origins_allowed: Vec<String>,
    /// Connections in all; less where the system allows fewer file descriptors. One more takes the place of an idle one.
    pub connection_count_max: usize,
    /// Connections of one address.
    pub peer_connection_count_max: usize,
    /// Bytes of one request body.
    pub body_bytes_max: usize,
    /// Bytes of memory that the bodies of all requests may take together, while they are read and worked on.
    pub bodies_bytes_max: usize,
    /// Bytes of memory that all answers may take together which clients have not read.
    pub answers_bytes_max: usize,
    /// Milliseconds that a request's head, and again the first bytes of its body, may take to arrive; what follows has to come at
    /// 256 KiB a second.
    pub read_ms_max: u64,
    /// Milliseconds that a client may take nothing of an answer.
    pub write_ms_max: u64,
    /// Milliseconds that a connection may have no request in flight.
    pub idle_ms_max: u64,
    /// Milliseconds that requests in flight get after SIGTERM.
    pub drain_ms_max: u64,
}

/// The listener for operators: `/livez`, `/readyz`, `/metrics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Address and port.
    pub listen: SocketAddr,
}

/// The model and its runtime.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Folder with `contract.toml`.
    pub dir: PathBuf,
    /// Shared library of ONNX Runtime; empty: where `make provision` puts it. `THRESHER_RUNTIME_LIB` sets it too.
    pub runtime_lib: PathBuf,
    /// Windows that are read side by side; 0: one per core.
    pub workers: usize,
    /// Where the model runs.
    pub device: DeviceChoice,
    /// Bytes of a GPU's memory that it may take; 0: all.
    pub device_memory_bytes_max: u64,
    /// How a decoder's blocks stand in front of a question.
    pub placement: Placement,
    /// Which layers of a decoder are read and kept.
    pub layers: LayersRead,
}

/// Which layers of a decoder are read and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayersRead {
    /// Up to the last that a calibration chose a head from.
    #[default]
    Needed,
    /// All of them: keys and values can be handed over.
    All,
}

/// The statistic.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rc {
    /// How chunks and units are scored.
    pub estimator: Scoring,
}

/// Blocks of chunks that have been read: about 400 bytes a token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockSettings {
    /// Bytes of blocks in memory, with what it costs to keep them; 0: none.
    pub memory_bytes_max: u64,
    /// The disk tier's directory, of this daemon alone; empty: no disk tier.
    pub dir: PathBuf,
    /// Bytes on disk, as the file system counts them; 0: no disk tier.
    pub disk_bytes_max: u64,
    /// Bytes of blocks that wait to be written to disk, beside `memory_bytes_max`; what finds it full is in memory only.
    pub write_queue_bytes_max: u64,
    /// How keys are stored.
    pub codec: Codec,
    /// Part of every block's name: sidecars with different ones never find each other's blocks.
    pub salt: String,
    /// What computes logits over them.
    pub scan: ScanBy,
}

/// Signed records of attributions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Receipts {
    /// The key they are signed with: Ed25519, PKCS#8 in PEM. Made when the first one is asked for.
    pub key_file: PathBuf,
}

impl Default for Receipts {
    fn default() -> Self {
        Self { key_file: "data/receipts.pem".into() }
    }
}

/// How many requests at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// Requests that are worked on at the same time; 0: eight per core, so that those who have chunks read by the model do not
    /// keep back those who have not.
    pub concurrency_max: usize,
    /// Requests that wait for their turn; one more is answered 429. Of this, of `concurrency_max` and of `stream_count_max`, one
    /// tenant takes at most half while others have keys.
    pub queue_max: usize,
    /// Answers that arrive piece by piece at the same time; one more is answered 429.
    pub stream_count_max: usize,
    /// Milliseconds that such an answer may take to arrive.
    pub stream_ms_max: u64,
    /// Milliseconds that a request may take, waiting included, when it names no deadline.
    pub deadline_ms_default: u64,
    /// The longest deadline that a request may name.
    pub deadline_ms_max: u64,
}

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// Which events are logged: a level, or directives such as `info,thresher=debug`.
    pub log: String,
    /// `json` or `text`.
    pub log_format: LogFormat,
    /// OTLP endpoint for traces, over HTTP, such as `http://127.0.0.1:4318/v1/traces`; empty: none.
    pub otlp_endpoint: String,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For reading.
    Text,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 8080).into(),
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            hosts_allowed: Vec::new(),
            origins_allowed: Vec::new(),
            connection_count_max: 1_024,
            peer_connection_count_max: 512,
            body_bytes_max: 8 * 1024 * 1024,
            bodies_bytes_max: 256 * 1024 * 1024,
            answers_bytes_max: 256 * 1024 * 1024,
            read_ms_max: 10_000,
            write_ms_max: 30_000,
            idle_ms_max: 60_000,
            drain_ms_max: 10_000,
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
            placement: Placement::default(),
            layers: LayersRead::default(),
        }
    }
}

impl Default for BlockSettings {
    fn default() -> Self {
        Self {
            memory_bytes_max: 1 << 30,
            dir: "data/kv".into(),
            disk_bytes_max: 8 << 30,
            write_queue_bytes_max: 64 << 20,
            codec: Codec::default(),
            salt: String::new(),
            scan: ScanBy::default(),
        }
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            concurrency_max: 0,
            queue_max: 64,
            stream_count_max: 64,
            stream_ms_max: 600_000,
            deadline_ms_default: 10_000,
            deadline_ms_max: 120_000,
        }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            log: "info,ort=warn,redis=off,tantivy=error".to_owned(),
            log_format: LogFormat::Json,
            otlp_endpoint: String::new(),
        }
    }
}

impl Model {
    /// The library to load: the setting, else where provisioning puts it.
    pub fn runtime_lib(&self) -> PathBuf {
        if !self.runtime_lib.as_os_str().is_empty() {
            return self.runtime_lib.clone();
        }
        let file = if cfg!(target_os = "macos") { "libonnxruntime.dylib" } else { "libonnxruntime.so" };
        Path::new("models/.cache/onnxruntime").join(file)
    }

    /// Worker threads, resolved.
    pub fn workers(&self) -> usize {
        if self.workers == 0 { cores() } else { self.workers }
    }
}

impl BlockSettings {
    /// Whether there is to be a disk tier.
    pub fn disk(&self) -> bool {
        !self.dir.as_os_str().is_empty() && self.disk_bytes_max > 0
    }
}

impl Admission {
    /// Requests at the same time for each core, where the setting names no number.
    pub const PER_CORE: usize = 8;

    /// Requests at the same time, resolved.
    pub fn concurrency_max(&self) -> usize {
        if self.concurrency_max == 0 { Self::PER_CORE * cores() } else { self.concurrency_max }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
