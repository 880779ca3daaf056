//! Where the settings file is, and which folder relative paths in it mean.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy as _;

use super::{Config, RUNTIME_FILE};

/// The name of the settings file in its folder, which is `thresher` in every place.
const FILE: &str = "thresher/thresher.toml";

/// The settings file of the whole system, which every user reads who has none.
pub const SETTINGS_FILE_OF_SYSTEM: &str = "/etc/thresher/thresher.toml";

/// Returns the settings file that `thresher` reads if the command line names none: the user's own, else that of the system; `None` if
/// neither exists.
pub fn settings_file() -> Option<PathBuf> {
    let of_user = settings_file_of_user();
    of_user.into_iter().chain([SETTINGS_FILE_OF_SYSTEM.into()]).find(|path| path.exists())
}

/// Returns the user's settings file, whether it exists or not: `$XDG_CONFIG_HOME/thresher/thresher.toml`, by default in `~/.config`.
/// `None` if the user has no home.
pub fn settings_file_of_user() -> Option<PathBuf> {
    Some(etcetera::choose_base_strategy().ok()?.config_dir().join(FILE))
}

/// Returns the user's folder for the model, the runtime and all data: `$XDG_DATA_HOME/thresher`, by default in `~/.local/share`. `None` if
/// the user has no home.
pub fn root_of_user() -> Option<PathBuf> {
    Some(etcetera::choose_base_strategy().ok()?.data_dir().join("thresher"))
}

/// Makes relative paths absolute or relative to the current directory. A path from the settings file at `file`, or a default beside it, is
/// relative to `root`, which is itself relative to the folder of the file. A path from an environment variable stays as it is.
pub(super) fn resolve(config: &mut Config, file: Option<&Path>, variables: &HashMap<String, String>) {
    // A variable can give a setting or, as a table, its whole section.
    let is_of_variable = |setting: &str| {
        let section = setting.split('.').next().unwrap_or_default();
        variables.contains_key(setting) || variables.contains_key(section)
    };
    let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
    if !is_of_variable("root") {
        config.root = folder.join(&config.root);
    }
    let root = config.root.clone();
    if config.model.runtime_lib.as_os_str().is_empty() && !is_of_variable("model.runtime_lib") {
        let installed = Path::new("runtime").join(RUNTIME_FILE);
        config.model.runtime_lib =
            if root.join(&installed).exists() { installed } else { config.model.runtime_lib() };
    }
    for (setting, path) in paths(config) {
        if !path.as_os_str().is_empty() && !is_of_variable(setting) {
            *path = root.join(&path);
        }
    }
}

/// Every setting that is a path of a file or folder, except `root`.
fn paths(config: &mut Config) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
    let Config {
        http,
        access,
        model,
        blocks,
        registry,
        originals,
        middleware,
        receipts,
        verdict,
        shared,
        ..
    } = config;
    let of_upstreams = middleware.upstreams.iter_mut().flat_map(|upstream| {
        [("middleware.upstreams", &mut upstream.key_file), ("middleware.upstreams", &mut upstream.ca_file)]
    });
    let others = [
        ("http.tls_cert_file", &mut http.tls_cert_file),
        ("http.tls_key_file", &mut http.tls_key_file),
        ("access.keys_file", &mut access.keys_file),
        ("model.dir", &mut model.dir),
        ("model.runtime_lib", &mut model.runtime_lib),
        ("model.kv_dir", &mut model.kv_dir),
        ("blocks.dir", &mut blocks.dir),
        ("registry.dir", &mut registry.dir),
        ("originals.dir", &mut originals.dir),
        ("receipts.key_file", &mut receipts.key_file),
        ("verdict.model", &mut verdict.model),
        ("shared.ca_file", &mut shared.ca_file),
        ("shared.client_cert_file", &mut shared.client_cert_file),
        ("shared.client_key_file", &mut shared.client_key_file),
        ("shared.password_file", &mut shared.password_file),
        ("shared.secret_file", &mut shared.secret_file),
    ];
    others.into_iter().chain(of_upstreams)
}
