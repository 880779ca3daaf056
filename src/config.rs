//! Every setting, its default and its unit: from a TOML file, then the environment, then checked as a whole.
//! Knows no part of the program but their settings.

mod relations;
mod sections;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::pipeline::auto::Auto;
use thresher_core::pipeline::validate::RequestLimits;
use thresher_core::plain;
use thresher_registry::RegistrySettings;
use thresher_shared::SharedSettings;

pub use self::sections::{
    Admin, Admission, BlockSettings, Http, LayersRead, LogFormat, Model, Rc, Receipts, Telemetry,
};
use crate::access::AccessSettings;
use crate::kv_export::KvExportSettings;
use crate::middleware::settings::MiddlewareSettings;
use crate::originals::OriginalSettings;
use crate::tenants::ttl_store::TtlStoreSettings;

/// Prefix of environment variables: `THRESHER__HTTP__LISTEN=127.0.0.1:9000` sets `http.listen`.
const ENV_PREFIX: &str = "THRESHER__";

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
    pub blocks: BlockSettings,
    /// Bounds of one request.
    pub limits: RequestLimits,
    /// Registered chunks.
    pub registry: RegistrySettings,
    /// Requests that later ones may refer to.
    pub handles: TtlStoreSettings,
    /// Keys and values that are fetched.
    pub kv_export: KvExportSettings,
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
