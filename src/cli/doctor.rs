//! `thresher doctor`: finds runtime, model and versions, tries them, and says what to do about what is missing.

use std::process::ExitCode;

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
    if runtime.is_none() || model.is_none() {
        return false;
    }
    let answered = app::pipeline(&config).and_then(|pipeline| app::warm_up(&pipeline));
    report("answer", answered, |took| format!("a request took {:.1} ms, cold", took.as_secs_f64() * 1e3))
        .is_some()
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
