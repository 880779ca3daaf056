//! `thresher doctor`: finds runtime, model and versions, tries them, and says what to do about what is missing.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::app;
use crate::config::{Config, ConfigError};
use crate::model::contract::Contract;
use crate::model::ort::runtime_version;

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
    let registry = &config.registry.dir;
    let kept = [
        report("kv.dir", directory(&config.kv.dir, !config.kv.disk()), String::clone),
        report("registry.dir", directory(registry, registry.as_os_str().is_empty()), String::clone),
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

/// Whether files can be made in the directory, or the directory where it shall be. Changes nothing there: a daemon may have
/// it.
fn directory(dir: &Path, in_memory: bool) -> anyhow::Result<String> {
    if in_memory {
        return Ok("in memory only".to_owned());
    }
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("."));
    // Without a name, gone when it is closed.
    let made = tempfile::tempfile_in(there);
    made.with_context(|| format!("cannot write in {}", there.display()))?;
    let note = if there == dir { "" } else { ", which is not there yet" };
    Ok(format!("{}{note}", dir.display()))
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
