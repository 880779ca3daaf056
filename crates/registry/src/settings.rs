//! Settings of the registry, their defaults and their units.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thresher_core::domain::Tenant;

/// In the default tenant's folder: the folders of all others.
pub(super) const TENANTS: &str = "tenants";

/// Where registered chunks are kept, and how many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrySettings {
    /// Folder; one daemon each. Tenants have one each in it. Empty: in memory only, forgotten at exit.
    pub dir: PathBuf,
    /// Registered chunks; each takes about 100 bytes of memory, whether in use or not.
    pub chunk_count_max: usize,
    /// Chunks in one call to register or delete.
    pub batch_count_max: usize,
    /// Bytes of one chunk's metadata as JSON.
    pub metadata_bytes_max: usize,
    /// Bytes of chunks that are kept in memory.
    pub cache_bytes_max: usize,
    /// Candidates that a search hands to the model when it names no number.
    pub candidate_count_default: usize,
    /// The most that it may name.
    pub candidate_count_max: usize,
    /// A request that names more ids than this is prefiltered by words; 0: never.
    pub prefilter_above: usize,
    /// How many chunks the prefilter keeps.
    pub prefilter_to: usize,
}

impl RegistrySettings {
    /// The same for a tenant, whose folder is its own.
    pub fn of_tenant(&self, tenant: &Tenant) -> Self {
        let alone = tenant.is_default() || self.dir.as_os_str().is_empty();
        let dir = if alone { self.dir.clone() } else { self.dir.join(TENANTS).join(tenant.name()) };
        Self { dir, ..self.clone() }
    }
}

impl Default for RegistrySettings {
    fn default() -> Self {
        Self {
            dir: "data/registry".into(),
            chunk_count_max: 1_000_000,
            batch_count_max: 10_000,
            metadata_bytes_max: 16_384,
            cache_bytes_max: 256 * 1024 * 1024,
            candidate_count_default: 100,
            candidate_count_max: 1_000,
            prefilter_above: 10_000,
            prefilter_to: 10_000,
        }
    }
}
