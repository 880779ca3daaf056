//! `thresher doctor`: finds runtime, model and versions, tries them, and says what to do about what is missing.

use std::process::ExitCode;

use crate::app;
use crate::config::{Config, ConfigError};
use crate::kv::local::{LocalError, LocalTiers};
use crate::model::contract::Contract;
use crate::model::ort::runtime_version;
use crate::registry::{Registry, RegistryError};

/// One line per check; the first failure ends the checks that build on it.
pub fn run(config: Result<Config, ConfigError>) -> anyhow::Result<ExitCode> {
    super::print(format_args!(
        "thresher {} on {}-{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    ));
    let healthy = check(config);
    super::print(if healthy { "all is well" } else { "not ready; see above" });
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(config: Result<Config, ConfigError>) -> bool {
    let Some(config) = report("settings", config, |_| "read and consistent".to_owned()) else {
        return false;
    };
    let lib = config.model.runtime_lib();
    let runtime =
        report("runtime", runtime_version(&lib), |version| format!("{version} from {}", lib.display()));
    let dir = &config.model.dir;
    let contract = Contract::load(dir).and_then(|contract| contract.verify_files(dir).map(|()| contract));
    let model =
        report("model", contract, |c| format!("{} in {}, every file as exported", c.name, dir.display()));
    let kept = [
        report("blocks", blocks(&config), String::clone),
        report("registry", registry(&config), String::clone),
        report("shared tier", shared(&config), String::clone),
    ];
    if runtime.is_none() || model.is_none() {
        return false;
    }
    let answered = app::pipeline(&config).and_then(|pipeline| app::warm_up(&pipeline));
    let answered =
        report("answer", answered, |took| format!("a request took {:.1} ms, cold", took.as_secs_f64() * 1e3));
    answered.is_some() && kept.iter().all(Option::is_some)
}

/// Opens the directory as `serve` would. One that another process has is in order: a daemon may be running.
fn blocks(config: &Config) -> Result<String, LocalError> {
    let settings = app::local_settings(config);
    let Some(dir) = settings.dir.as_ref().map(|dir| dir.display().to_string()) else {
        return Ok("in memory only (kv.dir, kv.disk_bytes_max)".to_owned());
    };
    match LocalTiers::open(&settings) {
        Ok(tiers) => Ok(format!("{} in {dir}", tiers.stats().disk.entries)),
        Err(LocalError::InUse { .. }) => Ok(format!("{dir} is in use, by a daemon that runs")),
        Err(error) => Err(error),
    }
}

fn registry(config: &Config) -> Result<String, RegistryError> {
    let dir = &config.registry.dir;
    if dir.as_os_str().is_empty() {
        return Ok("in memory only (registry.dir)".to_owned());
    }
    match Registry::open(&config.registry) {
        Ok(registry) => Ok(format!("{} chunks in {}", registry.progress().registered, dir.display())),
        Err(RegistryError::InUse { .. }) => Ok(format!("{} is in use, by a daemon that runs", dir.display())),
        Err(error) => Err(error),
    }
}

/// The daemon would go on without it; who names one wants to know.
fn shared(config: &Config) -> anyhow::Result<String> {
    if !config.shared.enabled() {
        return Ok("none (shared.urls)".to_owned());
    }
    app::probe_shared(config)?;
    Ok(format!("{} answers", config.shared.urls))
}

fn report<T, E: std::fmt::Display>(
    what: &str,
    outcome: Result<T, E>,
    say: impl Fn(&T) -> String,
) -> Option<T> {
    match outcome {
        Ok(value) => {
            super::print(format_args!("  ok      {what}: {}", say(&value)));
            Some(value)
        }
        Err(error) => {
            super::print(format_args!("  FAILED  {what}: {error:#}"));
            None
        }
    }
}
