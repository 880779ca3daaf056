//! Every setting, its default and its unit: from a TOML file, then the environment, then checked as a whole.
//! Knows no part of the program but their settings.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::access::AccessSettings;
use crate::handles::HandleSettings;
use crate::kv::codec::Codec;
use crate::model::device::DeviceChoice;
use crate::originals::OriginalSettings;
use crate::pipeline::Placement;
use crate::pipeline::auto::Auto;
use crate::pipeline::scan::ScanBy;
use crate::pipeline::score::Scoring;
use crate::pipeline::validate::RequestLimits;
use crate::plain;
use crate::proxy::settings::MiddlewareSettings;
use crate::registry::RegistrySettings;
use crate::shared::SharedSettings;

/// Prefix of environment variables: `THRESHER__HTTP__LISTEN=127.0.0.1:9000` sets `http.listen`.
const ENV_PREFIX: &str = "THRESHER__";

/// A disk tier for less is a mistake in the unit.
const KV_DISK_BYTES_MIN: u64 = 16 << 20;

/// Far more than there are cores.
const WORKERS_MAX: usize = 1024;

/// Short for `model.runtime_lib`; provisioning and the tests know it too.
const ENV_RUNTIME_LIB: &str = "THRESHER_RUNTIME_LIB";

/// All settings. `config/thresher.toml` shows them with their defaults; a test holds the two together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The public listener.
    pub http: Http,
    /// Who may ask.
    pub access: AccessSettings,
    /// The listener for operators.
    pub admin: Admin,
    /// The model and its runtime.
    pub model: Model,
    /// The statistic.
    pub rc: Rc,
    /// Blocks of chunks that have been read.
    pub kv: Kv,
    /// Bounds of one request.
    pub limits: RequestLimits,
    /// Registered chunks.
    pub registry: RegistrySettings,
    /// Requests that later ones may refer to.
    pub handles: HandleSettings,
    /// Texts that were shortened on their way, as they were.
    pub originals: OriginalSettings,
    /// In front of other servers.
    pub middleware: MiddlewareSettings,
    /// Signed records of attributions.
    pub receipts: Receipts,
    /// How much is worth keeping when no budget is named.
    pub auto: Auto,
    /// How many requests at once.
    pub admission: Admission,
    /// The tier of blocks that all sidecars share.
    pub shared: SharedSettings,
    /// Logs and traces.
    pub telemetry: Telemetry,
}

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
    /// Bytes of one request body.
    pub body_bytes_max: usize,
    /// Milliseconds that a request's head, and again its body, may take to arrive.
    pub read_ms_max: u64,
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
pub struct Kv {
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
    /// Requests that wait for their turn; one more is answered 429.
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
            body_bytes_max: 8 * 1024 * 1024,
            read_ms_max: 10_000,
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
        }
    }
}

impl Default for Kv {
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

/// Why settings are refused.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path} is not TOML: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A setting does not exist or has the wrong type.
    #[error("{place}: {reason}")]
    Setting {
        /// The setting and where it was given.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// Two settings contradict each other, or one is out of range.
    #[error("{0}")]
    Relation(String),
}

impl Config {
    /// Defaults, then `path` if given, then `environment`.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and where it was given.
    pub fn load(
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut table = path.map_or(Ok(toml::Table::new()), read)?;
        let mut environment: Vec<_> = environment.filter(|(name, _)| name.starts_with("THRESHER_")).collect();
        // The short name first, so that the long one wins where both are set.
        environment.sort_by_key(|(name, _)| name != ENV_RUNTIME_LIB);
        let mut origins = HashMap::new();
        for (name, value) in &environment {
            let setting = match name.strip_prefix(ENV_PREFIX) {
                Some(setting) => setting.to_ascii_lowercase().replace("__", "."),
                None if name == ENV_RUNTIME_LIB => "model.runtime_lib".to_owned(),
                None => match nearly(name) {
                    Some(meant) => {
                        let reason = format!("this is no setting; write {meant}");
                        return Err(ConfigError::Setting {
                            place: format!("environment variable {name}"),
                            reason,
                        });
                    }
                    // Orchestrators set variables that begin with the name of a service.
                    None => continue,
                },
            };
            set(&mut table, name, &setting, value)?;
            origins.insert(setting, name);
        }
        let config: Self = serde_path_to_error::deserialize(toml::Value::Table(table)).map_err(|error| {
            let setting = error.path().to_string();
            // Of a section that does not exist, the section is at fault.
            let within = |(name, _): &(&String, &&String)| name.starts_with(&format!("{setting}."));
            let origin =
                origins.get(&setting).or_else(|| origins.iter().find(within).map(|(_, origin)| origin));
            let place = match (origin, path) {
                (Some(name), _) => format!("environment variable {name}: {setting}"),
                (None, Some(path)) => format!("{}: {setting}", path.display()),
                (None, None) => setting,
            };
            ConfigError::Setting { place, reason: plain::message(error.into_inner().message()) }
        })?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let Self { http, access, admin, kv, limits, registry, admission, .. } = self;
        let is_reachable = !http.listen.ip().to_canonical().is_loopback();
        if is_reachable && access.keys_file.as_os_str().is_empty() {
            let message = format!(
                "http.listen is {}, which is not this machine's loopback, and access.keys_file names no keys: whoever reaches \
                 it could ask; make a key (thresher key new), or listen on 127.0.0.1",
                http.listen
            );
            return Err(ConfigError::Relation(message));
        }
        let rules = [
            (
                http.listen == admin.listen && http.listen.port() != 0,
                "http.listen and admin.listen are the same address",
            ),
            (
                kv.disk() && kv.dir == registry.dir,
                "kv.dir and registry.dir are the same folder: each needs one of its own",
            ),
            (
                http.tls_cert_file.as_os_str().is_empty() != http.tls_key_file.as_os_str().is_empty(),
                "http.tls_cert_file and http.tls_key_file: one is set without the other",
            ),
            (
                !access.keys_file.as_os_str().is_empty() && access.tenant_count_max == 0,
                "access.tenant_count_max is 0: no key could be used",
            ),
            (http.body_bytes_max == 0, "http.body_bytes_max is 0: no request could be sent"),
            (http.read_ms_max == 0, "http.read_ms_max is 0: no request could arrive"),
            (
                kv.disk() && kv.write_queue_bytes_max == 0,
                "kv.write_queue_bytes_max is 0: nothing would be written; for no disk tier set kv.dir to \"\"",
            ),
            (
                kv.disk() && kv.disk_bytes_max < KV_DISK_BYTES_MIN,
                "kv.disk_bytes_max is less than 16777216, which holds next to nothing; for no disk tier set it to 0",
            ),
            (limits.chunk_bytes_max == 0, "limits.chunk_bytes_max is 0: no request could be answered"),
            (
                admission.concurrency_max > Semaphore::MAX_PERMITS,
                "admission.concurrency_max is greater than the system can count",
            ),
            (
                admission.stream_count_max > Semaphore::MAX_PERMITS,
                "admission.stream_count_max is greater than the system can count",
            ),
            (
                !self.telemetry.otlp_endpoint.is_empty()
                    && !self.telemetry.otlp_endpoint.starts_with("http://"),
                "telemetry.otlp_endpoint must be empty or start with http://",
            ),
            (!self.auto.reach_min.is_finite(), "auto.reach_min is not a finite number"),
            (
                self.model.workers > WORKERS_MAX,
                "model.workers is more than 1024: each takes memory of its own",
            ),
            (limits.chunk_count_max == 0, "limits.chunk_count_max is 0: no request could be answered"),
            (
                limits.registered_chunk_count_max == 0,
                "limits.registered_chunk_count_max is 0: no request could name a chunk",
            ),
            (
                limits.registered_bytes_max == 0,
                "limits.registered_bytes_max is 0: no request could name a chunk",
            ),
            (registry.chunk_count_max == 0, "registry.chunk_count_max is 0: nothing could be registered"),
            (registry.batch_count_max == 0, "registry.batch_count_max is 0: nothing could be registered"),
            (registry.candidate_count_max == 0, "registry.candidate_count_max is 0: nothing could be found"),
            (
                registry.candidate_count_default == 0
                    || registry.candidate_count_default > registry.candidate_count_max,
                "registry.candidate_count_default is not from 1 to registry.candidate_count_max",
            ),
            (
                registry.prefilter_above > 0
                    && (registry.prefilter_to == 0 || registry.prefilter_to > registry.prefilter_above),
                "registry.prefilter_to is not from 1 to registry.prefilter_above",
            ),
            (limits.query_tokens_max == 0, "limits.query_tokens_max is 0: no request could be answered"),
            (limits.input_tokens_max == 0, "limits.input_tokens_max is 0: no request could be answered"),
            (
                admission.deadline_ms_default == 0,
                "admission.deadline_ms_default is 0: every request would be late",
            ),
            (limits.source_count_max == 0, "limits.source_count_max is 0: no answer could be attributed"),
            (limits.logit_count_max == 0, "limits.logit_count_max is 0: no request could be answered"),
            (
                admission.deadline_ms_default > admission.deadline_ms_max,
                "admission.deadline_ms_default is greater than admission.deadline_ms_max",
            ),
        ];
        if let Some(word) = self.telemetry.log.split(',').map(str::trim).find(|word| !is_log_directive(word))
        {
            let message = format!(
                "telemetry.log holds {word:?}: a directive is a level (off, error, warn, info, debug, trace) or target=level"
            );
            return Err(ConfigError::Relation(message));
        }
        match rules.into_iter().find(|(broken, _)| *broken) {
            Some((_, message)) => Err(ConfigError::Relation(message.to_owned())),
            None => match self.shared.nonsense().map(str::to_owned).or_else(|| self.middleware.nonsense()) {
                Some(said) => Err(ConfigError::Relation(said)),
                None => Ok(()),
            },
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

impl Kv {
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

/// The variable that is meant by one with single underscores, where there is such a setting.
fn nearly(name: &str) -> Option<String> {
    let settings = toml::Table::try_from(Config::default()).ok()?;
    let name = name.replace("__", "_");
    let section = |(section, values): (&String, &toml::Value)| {
        let name = name.strip_prefix(&format!("THRESHER_{}_", section.to_ascii_uppercase()))?;
        let exists = values.as_table()?.contains_key(&name.to_ascii_lowercase());
        exists.then(|| format!("{ENV_PREFIX}{}__{name}", section.to_ascii_uppercase()))
    };
    settings.iter().find_map(section)
}

/// A bare word that is no level would be taken for a target, of which everything is logged, and nothing else.
fn is_log_directive(word: &str) -> bool {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    word.is_empty() || word.contains(['=', '[']) || levels.contains(&&*word.to_ascii_lowercase())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn read(path: &Path) -> Result<toml::Table, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    text.parse().map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })
}

/// Sets `setting` (`section.name`) from the environment variable `name`. A value that reads as a TOML number, boolean or
/// array is one; any other is text.
fn set(table: &mut toml::Table, name: &str, setting: &str, value: &str) -> Result<(), ConfigError> {
    let parsed = format!("v = {value}").parse::<toml::Table>().ok().filter(|table| table.len() == 1);
    let value = parsed.and_then(|mut table| table.remove("v")).unwrap_or_else(|| value.to_owned().into());
    let (parents, leaf) = setting.rsplit_once('.').unwrap_or(("", setting));
    let mut table = table;
    for parent in parents.split('.').filter(|p| !p.is_empty()) {
        let entry = table.entry(parent).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        table = entry.as_table_mut().ok_or_else(|| ConfigError::Setting {
            place: format!("environment variable {name}"),
            reason: format!("{parent} is not a section"),
        })?;
    }
    table.insert(leaf.to_owned(), value);
    Ok(())
}
