//! All settings with their defaults and units: read from a TOML file, overridden by environment variables, then checked as a whole.
//! The module knows the other modules' settings types and nothing else of the program.

mod memory;
mod places;
mod relations;
mod sections;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::plain;
use thresher_registry::RegistrySettings;
use thresher_shared::SharedSettings;
use toml::{Table, Value};

pub use self::memory::MemoryShares;
pub use self::places::{SETTINGS_FILE_OF_SYSTEM, root_of_user, settings_file, settings_file_of_user};
pub use self::sections::{
    Admin, Admission, BlockSettings, Http, Model, RUNTIME_FILE, Rc, Receipts, Telemetry, VerdictSettings,
};
use crate::access::AccessSettings;
use crate::middleware::settings::{MiddlewareSettings, UpstreamSettings};
use crate::originals::OriginalSettings;
use crate::savings::settings::SavingsSettings;

/// Prefix of environment variables: `THRESHER__HTTP__LISTEN=127.0.0.1:9000` sets `http.listen`.
const ENV_PREFIX: &str = "THRESHER__";

/// Short name of `THRESHER__MODEL__RUNTIME_LIB`, which wins if both are set.
const ENV_RUNTIME_LIB: &str = "THRESHER_RUNTIME_LIB";

/// All settings. A test checks that `config/thresher.toml` lists every one of them with its default. What no operator sets is in
/// [`crate::app::Limits`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The folder that relative paths of the settings are relative to. [`Config::load`] resolves all paths.
    pub root: PathBuf,
    /// Bytes of memory for caches, request bodies and responses together. The model and its arithmetic come on top.
    pub memory_bytes_max: u64,
    pub http: Http,
    /// `[access]`: API keys and tenants.
    pub access: AccessSettings,
    pub admin: Admin,
    pub model: Model,
    pub rc: Rc,
    pub blocks: BlockSettings,
    /// `[registry]`: registered chunks.
    pub registry: RegistrySettings,
    /// `[originals]`: full texts that the middleware compressed.
    pub originals: OriginalSettings,
    pub middleware: MiddlewareSettings,
    pub savings: SavingsSettings,
    pub receipts: Receipts,
    pub verdict: VerdictSettings,
    pub admission: Admission,
    /// `[shared]`: the cache that all sidecars share.
    pub shared: SharedSettings,
    pub telemetry: Telemetry,
}

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}{}", advice(path, source))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not TOML: {source}")]
    Parse {
        path: PathBuf,
        /// The line and the reason.
        source: Box<toml::de::Error>,
    },
    /// A setting does not exist or has the wrong type.
    #[error("{location}: {reason}")]
    Setting {
        /// The file or environment variable, and the setting.
        location: String,
        reason: String,
    },
    /// A setting is out of range, or two settings contradict each other. The message names the settings and their values.
    #[error("{0}")]
    Relation(String),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root: PathBuf::new(),
            memory_bytes_max: 2 << 30,
            http: Http::default(),
            access: AccessSettings::default(),
            admin: Admin::default(),
            model: Model::default(),
            rc: Rc::default(),
            blocks: BlockSettings::default(),
            registry: RegistrySettings::default(),
            originals: OriginalSettings::default(),
            middleware: MiddlewareSettings::default(),
            savings: SavingsSettings::default(),
            receipts: Receipts::default(),
            verdict: VerdictSettings::default(),
            admission: Admission::default(),
            shared: SharedSettings::default(),
            telemetry: Telemetry::default(),
        }
    }
}

impl Config {
    /// The settings with one upstream of the middleware, which has any model.
    pub fn with_upstream(mut self, url: String) -> Self {
        self.middleware.upstreams = vec![UpstreamSettings { url, ..UpstreamSettings::default() }];
        self
    }

    /// Reads the settings: the defaults, overridden by the file at `path` if there is one, overridden by the variables of `environment`
    /// that begin with `THRESHER__`.
    ///
    /// Relative paths of the file and relative defaults beside it are relative to `root`, and that to the folder of the file. Relative
    /// paths of variables, and without a file all paths, are relative to the current directory.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if a setting is unknown, has the wrong type, is out of range or contradicts another one.
    /// [`ConfigError`] names the setting and the file or environment variable that gave it.
    pub fn load(
        path: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut table = path.map_or_else(|| Ok(Table::new()), read)?;
        let variables = apply_environment(&mut table, environment)?;
        let mut config: Self = serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
            let setting = error.path().to_string();
            // If a section does not exist, the path is that of the section, but the variable sets one of its settings.
            let is_inside = |(name, _): &(&String, &String)| name.starts_with(&format!("{setting}."));
            let variable =
                variables.get(&setting).or_else(|| variables.iter().find(is_inside).map(|(_, found)| found));
            let location = match (variable, path) {
                (Some(variable), _) => format!("environment variable {variable}: {setting}"),
                (None, Some(path)) => format!("{}: {setting}", path.display()),
                (None, None) => setting,
            };
            ConfigError::Setting { location, reason: plain::message(error.into_inner().message()) }
        })?;
        places::resolve(&mut config, path, &variables);
        config.check()?;
        Ok(config)
    }
}

/// What to do about a settings file that cannot be read.
fn advice(path: &Path, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound if path == Path::new(SETTINGS_FILE_OF_SYSTEM) => {
            "; `thresher init --system` writes it".to_owned()
        }
        std::io::ErrorKind::NotFound => format!("; `thresher init --config {}` writes it", path.display()),
        _ => String::new(),
    }
}

fn read(path: &Path) -> Result<Table, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    text.parse().map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })
}

/// Overrides `table` with environment variables. Returns the variable that gave each setting, by the setting's name.
fn apply_environment(
    table: &mut Table,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<HashMap<String, String>, ConfigError> {
    let mut environment: Vec<_> = environment.filter(|(name, _)| name.starts_with("THRESHER_")).collect();
    // The short name comes first, so that the long name wins if both are set.
    environment.sort_by_key(|(name, _)| name != ENV_RUNTIME_LIB);
    let mut variables = HashMap::new();
    for (name, value) in environment {
        let location = || format!("environment variable {name}");
        let setting = match name.strip_prefix(ENV_PREFIX) {
            Some(setting) => setting.to_ascii_lowercase().replace("__", "."),
            None if name == ENV_RUNTIME_LIB => "model.runtime_lib".to_owned(),
            None => match intended(&name) {
                Some(intended) => {
                    let reason = format!("this is not a setting; did you mean {intended}?");
                    return Err(ConfigError::Setting { location: location(), reason });
                }
                // Orchestrators such as Kubernetes set variables that begin with the name of a service.
                None => continue,
            },
        };
        set(table, &location(), &setting, &value)?;
        variables.insert(setting, name);
    }
    Ok(variables)
}

/// Sets `setting` (`section.key`). A value that parses as a TOML number, boolean or array is one; any other value is a string.
fn set(table: &mut Table, location: &str, setting: &str, value: &str) -> Result<(), ConfigError> {
    let parsed = format!("v = {value}").parse::<Table>().ok().filter(|table| table.len() == 1);
    let value = parsed.and_then(|mut table| table.remove("v")).unwrap_or_else(|| value.to_owned().into());
    let (parents, key) = split(setting);
    let mut table = table;
    for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
        let entry = table.entry(parent).or_insert_with(|| Value::Table(Table::new()));
        table = entry.as_table_mut().ok_or_else(|| ConfigError::Setting {
            location: location.to_owned(),
            reason: format!("{parent} is not a section"),
        })?;
    }
    table.insert(key.to_owned(), value);
    Ok(())
}

/// Splits `section.key`; the section of a name without a dot is empty.
fn split(setting: &str) -> (&str, &str) {
    setting.rsplit_once('.').unwrap_or(("", setting))
}

fn variable_name(setting: &str) -> String {
    format!("{ENV_PREFIX}{}", setting.to_ascii_uppercase().replace('.', "__"))
}

/// The variable that was probably meant by `name`, which has single underscores: the one of the setting with the same words.
fn intended(name: &str) -> Option<String> {
    let words = |setting: &str| setting.to_ascii_uppercase().replace('.', "_");
    let given = name.strip_prefix("THRESHER_")?.replace("__", "_");
    let settings = Table::try_from(Config::default()).ok()?;
    let sections = settings.iter().filter_map(|(section, values)| Some((section, values.as_table()?)));
    let in_sections =
        sections.flat_map(|(section, values)| values.keys().map(move |key| format!("{section}.{key}")));
    let outside = settings.iter().filter(|(_, value)| !value.is_table()).map(|(name, _)| name.clone());
    let mut names = in_sections.chain(outside);
    names.find(|setting| words(setting) == given).map(|setting| variable_name(&setting))
}
