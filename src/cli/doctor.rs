//! `thresher doctor`: checks the runtime, the model, the settings and the directories, and says what to do about problems.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use thresher_core::kv::local::{LocalError, LocalTiers};
use thresher_core::model::ModelError;
use thresher_core::model::contract::{CONTRACT_FILE, Contract, Family};
use thresher_core::model::ort::runtime_version;
use thresher_core::pipeline::calibration::{Calibration, CalibrationError};
use thresher_core::private_files::{self, Exposed};
use thresher_core::{Engine, EngineError};
use thresher_registry::{Registry, RegistryError, RegistrySettings};

use self::Finding::{Fine, Warning};
use crate::access::Access;
use crate::app;
use crate::config::{Config, ConfigError};
use crate::{originals, receipt};

/// The outcome of a check that does not prevent the daemon from working.
enum Finding {
    Fine(String),
    /// The operator should look at it.
    Warning(String),
}

/// Prints and counts the outcomes of checks.
#[derive(Default)]
struct Report {
    warnings: usize,
    failures: usize,
}

impl Report {
    fn line<E: Into<anyhow::Error>>(&mut self, name: &str, found: Result<Finding, E>) {
        let (level, text) = match found {
            Ok(Fine(text)) => ("ok", text),
            Ok(Warning(text)) => {
                self.warnings += 1;
                ("warning", text)
            }
            Err(error) => {
                self.failures += 1;
                ("FAILED", super::in_one_line(&error.into()))
            }
        };
        super::print(format_args!("  {level:<7} {name}: {text}"));
    }

    /// Prints the line of a check; returns the value, which later checks need.
    fn value<T, E: Into<anyhow::Error>>(
        &mut self,
        name: &str,
        outcome: Result<T, E>,
        describe: impl Fn(&T) -> String,
    ) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.line(name, Ok::<_, anyhow::Error>(Fine(describe(&value))));
                Some(value)
            }
            Err(error) => {
                self.line(name, Err(error));
                None
            }
        }
    }

    /// The text of the last line.
    fn conclusion(&self) -> String {
        match (self.failures, self.warnings) {
            (0, 0) => "all is well".to_owned(),
            (0, warnings) => format!("{}; see above", counted(warnings, "warning")),
            _ => "not ready; see above".to_owned(),
        }
    }
}

/// Runs all checks and prints a line for each. Checks that need a failed one are skipped.
pub fn run(config: Result<Config, ConfigError>) -> anyhow::Result<ExitCode> {
    super::print(format_args!(
        "thresher {} on {}-{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    ));
    let mut report = Report::default();
    check(config, &mut report);
    super::print(report.conclusion());
    Ok(if report.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fails if a model cannot score chunks.
fn scores_chunks(contract: &Contract) -> anyhow::Result<()> {
    match contract.family {
        Family::Cross(_) => Err(ModelError::NoScores { model: contract.name.clone() }.into()),
        Family::Late(_) | Family::Decoder(_) => Ok(()),
    }
}

/// Fails if a model is not a cross-encoder.
fn judges_pairs(contract: &Contract) -> anyhow::Result<()> {
    match contract.family {
        Family::Cross(_) => Ok(()),
        Family::Late(_) | Family::Decoder(_) => {
            Err(ModelError::WrongFamily { name: contract.name.clone(), expected: "cross-encoder" }.into())
        }
    }
}

fn check(config: Result<Config, ConfigError>, report: &mut Report) {
    let Some(config) = report.value("settings", config, |_| "read and consistent".to_owned()) else { return };
    let lib = config.model.runtime_lib();
    let runtime = report.value("runtime", runtime_version(&lib), |version| {
        format!("ONNX Runtime {version} from {}", lib.display())
    });
    let scores = model("model", &config.model.dir, scores_chunks, report);
    let calibration = scores.as_ref().map(|contract| calibration(&config.model.dir, contract));
    let is_calibrated = calibration.as_ref().is_none_or(Result::is_ok);
    if let Some(calibration) = calibration {
        report.line("calibration", calibration);
    }
    let scores = scores.is_some();
    let kv_dir = &config.model.kv_dir;
    let is_decoder = |contract: &Contract| match contract.family {
        Family::Decoder(_) => Ok(()),
        Family::Late(_) | Family::Cross(_) => {
            Err(anyhow!("{} is an encoder; name a decoder, such as that of `make decoder`", contract.name))
        }
    };
    let exports =
        kv_dir.as_os_str().is_empty() || model("model.kv_dir", kv_dir, is_decoder, report).is_some();
    let verdict_model = &config.verdict.model;
    // A classifier without a contract is checked when it is loaded.
    let judges = !verdict_model.join(CONTRACT_FILE).is_file()
        || model("verdict.model", verdict_model, judges_pairs, report).is_some();
    let access = Access::open(&config.access).map(|(access, _)| access);
    let chunks = chunks(&config.registry, access.as_ref().ok());
    report.line("keys", access.map(|access| keys(&access)));
    report.line("tls", tls(&config));
    let is_alive = super::health::is_alive(&config);
    report.line("http.listen", listener(config.http.listen, is_alive));
    report.line("admin.listen", listener(config.admin.listen, is_alive));
    report.line("blocks.dir", blocks(&config));
    report.line("registry.dir", chunks);
    report.line("originals.dir", originals(&config));
    report.line("receipts.key_file", Ok::<_, anyhow::Error>(receipts(&config.receipts.key_file)));
    report.line("shared tier", shared(&config));
    report.line("file modes", Ok::<_, anyhow::Error>(modes(&config)));
    report.line("upstreams", app::check_upstreams(&config).map(|()| upstreams(&config)));
    if runtime.is_none() || !is_calibrated || !scores || !exports || !judges {
        return;
    }
    let engine = app::engine_with_exporter(&config).build();
    let part = match &engine {
        Err(EngineError::VerdictModel { .. }) => "verdict.model",
        Err(EngineError::KvModel { .. }) => "model.kv_dir",
        _ => "device",
    };
    let engine = report.value(part, engine, |engine| engine.pipeline().model().device.to_string());
    if let Some(pipeline) = engine.map(Engine::into_pipeline) {
        report.value("answer", app::warm_up(&pipeline), |took| {
            format!("a request took {:.1} ms, cold", took.as_secs_f64() * 1e3)
        });
    }
}

/// Checks the files of a model, and the contract with `check`.
fn model(
    name: &str,
    dir: &Path,
    check: impl Fn(&Contract) -> anyhow::Result<()>,
    report: &mut Report,
) -> Option<Contract> {
    let contract = Contract::load(dir).and_then(|contract| contract.verify_files(dir).map(|()| contract));
    let contract =
        contract.map_err(anyhow::Error::from).and_then(|contract| check(&contract).map(|()| contract));
    report.value(name, contract, |c| format!("{} in {}, every file as exported", c.name, dir.display()))
}

/// What was fitted for a model.
fn calibration(dir: &Path, contract: &Contract) -> anyhow::Result<Finding> {
    let found = match Calibration::load(dir, contract) {
        Err(error @ (CalibrationError::OtherModel { .. } | CalibrationError::OtherVersion { .. })) => {
            let other = Calibration::of_contract(contract)
                .map_or("", |_| ". The one that comes with thresher is used");
            return Ok(Warning(format!("{error}{other}")));
        }
        loaded => loaded?,
    };
    let is_fitted = |found: &Calibration| {
        let Calibration { cosine_floor, related, answerable, coverage, .. } = found;
        let parts = [
            ("related", related.is_some()),
            ("answerable", answerable.is_some()),
            ("coverage", coverage.is_some()),
            ("support", cosine_floor.is_some()),
        ];
        parts
            .into_iter()
            .filter(|(_, is_fitted)| *is_fitted)
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    Ok(Fine(found.as_deref().map(is_fitted).unwrap_or_else(|| "none (thresher calibrate)".to_owned())))
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

fn in_memory() -> Finding {
    Fine("in memory only".to_owned())
}

fn blocks(config: &Config) -> anyhow::Result<Finding> {
    let dir = &config.blocks.dir;
    if !config.blocks.disk() {
        return Ok(in_memory());
    }
    let is_in_use = |error: &LocalError| matches!(error, LocalError::InUse { .. });
    directory(dir, || in_use(LocalTiers::inspect(dir), is_in_use))
}

fn chunks(registry: &RegistrySettings, access: Option<&Access>) -> anyhow::Result<Finding> {
    let dir = &registry.dir;
    if dir.as_os_str().is_empty() {
        return Ok(in_memory());
    }
    let is_in_use = |error: &RegistryError| matches!(error, RegistryError::InUse { .. });
    let found = directory(dir, || in_use(Registry::inspect(dir), is_in_use))?;
    tenants(access, registry)?;
    Ok(found)
}

/// Without the store of original texts, the daemon does everything except shortening conversations. A daemon with upstreams does not start.
fn originals(config: &Config) -> anyhow::Result<Finding> {
    let (dir, bytes_max) = (&config.originals.dir, config.originals.bytes_max);
    if dir.as_os_str().is_empty() || bytes_max == 0 {
        return Ok(in_memory());
    }
    let file = dir.join(originals::FILE);
    let found = directory(dir, || match File::options().read(true).write(true).open(&file) {
        Ok(store) => Ok(matches!(store.try_lock(), Err(TryLockError::WouldBlock))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", file.display())),
    });
    match found {
        Err(error) if config.middleware.upstreams.is_empty() => Ok(Warning(format!(
            "conversations cannot be shortened, since their texts cannot be kept: {}",
            super::in_one_line(&error)
        ))),
        found => found,
    }
}

/// Without a key, the daemon does everything except signing receipts.
fn receipts(file: &Path) -> Finding {
    let unsigned = |reason: String| Warning(format!("no receipt can be signed: {reason}"));
    match fs::read_to_string(file) {
        Ok(pem) if pem.trim_start().starts_with(receipt::KEY_BEGIN) => Fine(file.display().to_string()),
        Ok(_) => unsigned(format!("{} holds no key as PKCS#8 in PEM", file.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match directory(file.parent().unwrap_or(Path::new("")), || Ok(false)) {
                Ok(_) => Fine(format!("{}, which is created for the first receipt", file.display())),
                Err(error) => unsigned(super::in_one_line(&error)),
            }
        }
        Err(error) => unsigned(format!("cannot read {}: {error}", file.display())),
    }
}

/// Whether a daemon uses what was inspected.
fn in_use<E: std::error::Error + Send + Sync + 'static>(
    inspected: Result<(), E>,
    is_in_use: impl Fn(&E) -> bool,
) -> anyhow::Result<bool> {
    match inspected {
        Err(error) if is_in_use(&error) => Ok(true),
        inspected => inspected.map(|()| false).map_err(Into::into),
    }
}

/// What `serve` would find in a directory, and whether files can be created there. Changes nothing, since a daemon may use it: `is_in_use` tells.
fn directory(dir: &Path, is_in_use: impl FnOnce() -> anyhow::Result<bool>) -> anyhow::Result<Finding> {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("."));
    anyhow::ensure!(existing.is_dir(), "{} is a file, not a folder", existing.display());
    if is_in_use()? {
        return Ok(Fine(format!("{} is in use; a daemon is running", dir.display())));
    }
    let cannot = || format!("cannot write in {}", existing.display());
    // The file has no name, and is deleted when it is closed.
    let mut file = tempfile::tempfile_in(existing).with_context(cannot)?;
    file.write_all(&[0; 4096]).and_then(|()| file.sync_all()).with_context(cannot)?;
    let note = if existing == dir { "" } else { ", which is not there yet" };
    Ok(Fine(format!("{}{note}", dir.display())))
}

/// The daemon's directories and files that other users of this machine can use. That is not a failure: at its start, the daemon restricts the
/// modes of those that it owns.
fn modes(config: &Config) -> Finding {
    let paths = [&config.blocks.dir, &config.registry.dir, &config.originals.dir, &config.receipts.key_file];
    let is_file = |path: &Path| *path == *config.receipts.key_file;
    let paths = paths.into_iter().filter(|path| !path.as_os_str().is_empty());
    let exposed: Vec<String> = paths
        .filter_map(|path| private_files::exposed(path))
        .map(|Exposed { path, mode, is_ours }| {
            let wanted = if is_file(&path) { "0600" } else { "0700" };
            let remedy = if is_ours {
                format!("serve sets it to {wanted}")
            } else {
                format!("its owner has to set it to {wanted}")
            };
            format!("{} has {mode:04o}, {remedy}", path.display())
        })
        .collect();
    if exposed.is_empty() {
        Fine("other users of this machine cannot use any file of the daemon".to_owned())
    } else {
        Warning(format!("other users of this machine may use files of the daemon: {}", exposed.join("; ")))
    }
}

fn keys(access: &Access) -> Finding {
    Fine(if access.is_keyed() {
        format!("read, of {}", counted(access.tenants().len(), "tenant"))
    } else {
        "none (access.keys_file): every client that reaches http.listen may send requests".to_owned()
    })
}

fn tls(config: &Config) -> anyhow::Result<Finding> {
    let listen = config.http.listen;
    Ok(match app::tls(config)? {
        Some(_) => {
            let cert = config.http.tls_cert_file.display();
            Fine(format!("{cert} and its key; the dates of the certificate are not checked"))
        }
        None if !listen.ip().to_canonical().is_loopback() => Warning(format!(
            "none (http.tls_cert_file): keys and texts cross the network to {listen} unencrypted"
        )),
        None => Fine("none (http.tls_cert_file)".to_owned()),
    })
}

/// Checks the registry folders of tenants; that of the default tenant is checked with the directory.
fn tenants(access: Option<&Access>, registry: &RegistrySettings) -> anyhow::Result<()> {
    for tenant in access.map(Access::tenants).unwrap_or_default().iter().filter(|t| !t.is_default()) {
        match Registry::inspect(&registry.of_tenant(tenant).dir) {
            Ok(()) | Err(RegistryError::InUse { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether the daemon can listen at an address. `is_alive` says whether a daemon of these settings runs already.
fn listener(address: SocketAddr, is_alive: bool) -> anyhow::Result<Finding> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(Fine(format!("{address} is free"))),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            if is_alive {
                Ok(Fine(format!("{address} is in use; a daemon is running")))
            } else {
                Ok(Warning(format!("{address} is taken by another program; stop it, or set another port")))
            }
        }
        Err(error) => Err(error).with_context(|| format!("cannot listen on {address}")),
    }
}

/// The credentials of each upstream of the middleware, one line each.
fn upstreams(config: &Config) -> Finding {
    let (mut text, mut is_exposed) = (String::new(), false);
    for upstream in &config.middleware.upstreams {
        let exposure = upstream.cleartext_warning().map(|why| format!("; WARNING: {why}"));
        is_exposed |= exposure.is_some();
        let exposure = exposure.unwrap_or_default();
        text += &format!("\n            {} is {}{exposure}", upstream.url, upstream.credential_description());
    }
    match (text.is_empty(), is_exposed) {
        (true, _) => Fine("none (middleware.upstreams)".to_owned()),
        (false, false) => Fine(text),
        (false, true) => Warning(text),
    }
}

/// The daemon works without the shared tier, but an operator who configures one wants to know.
fn shared(config: &Config) -> anyhow::Result<Finding> {
    if !config.shared.enabled() {
        return Ok(Fine("none (shared.urls)".to_owned()));
    }
    app::probe_shared(config)?;
    Ok(Fine(format!("{} answers", config.shared.urls)))
}
