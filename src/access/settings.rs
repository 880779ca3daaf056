//! Settings of access, their defaults and their units.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Who may ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSettings {
    /// TOML file of keys, read again when it changes; empty: whoever reaches the listener may ask.
    pub keys_file: PathBuf,
    /// Tenants that the file may name: each has a registry, its cache and its handles in memory.
    pub tenant_count_max: usize,
}

impl Default for AccessSettings {
    fn default() -> Self {
        Self { keys_file: PathBuf::new(), tenant_count_max: 32 }
    }
}
