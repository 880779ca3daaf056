//! Texts that were shortened on their way, as they were, and what was sent instead: on disk, bounded for each tenant, the oldest making room.
//! A crash loses nothing that was answered.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A tenant, and a key of its own.
type Key = (&'static str, &'static [u8]);

/// Values by tenant and key, each with its place among the tenant's ages.
const VALUES: TableDefinition<Key, (u64, &[u8])> = TableDefinition::new("values");
/// Keys by tenant and age: ascending, the oldest first.
const AGES: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("ages");
/// Bytes by tenant, and the next age.
const TENANTS: TableDefinition<&str, (u64, u64)> = TableDefinition::new("tenants");

/// What a value takes beside its bytes.
pub const ENTRY_BYTES: usize = 128;

const FILE: &str = "originals.redb";

/// How much is kept, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OriginalSettings {
    /// One daemon's; empty: in memory, forgotten at exit.
    pub dir: PathBuf,
    /// Bytes of one tenant's texts; 0: none is kept.
    pub bytes_max: u64,
}

impl Default for OriginalSettings {
    fn default() -> Self {
        Self { dir: "data/originals".into(), bytes_max: 1 << 30 }
    }
}

/// Why the store does not open, or not answer.
#[derive(Debug, Error)]
pub enum OriginalError {
    /// The folder cannot be made.
    #[error("originals.dir ({path}): {cause}")]
    Dir {
        /// The folder.
        path: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// The file cannot be used.
    #[error("{path} (originals.dir) cannot be opened: {cause}; each daemon needs a folder of its own")]
    Open {
        /// The file.
        path: String,
        /// What the store says.
        cause: redb::DatabaseError,
    },
    /// It does not read, or not write.
    #[error("the store of originals failed: {0}")]
    Store(#[from] Box<redb::Error>),
}

macro_rules! from_redb {
    ($($error:ty),*) => {$(
        impl From<$error> for OriginalError {
            fn from(error: $error) -> Self {
                Self::Store(Box::new(error.into()))
            }
        }
    )*};
}
from_redb!(redb::TransactionError, redb::TableError, redb::StorageError, redb::CommitError);

/// All tenants' texts. Cheap to clone; clones are one store, which is opened when it is first needed.
#[derive(Clone)]
pub struct Originals {
    database: Arc<Mutex<Option<Arc<Database>>>>,
    settings: OriginalSettings,
}

/// One tenant's texts.
#[derive(Clone)]
pub struct TenantOriginals {
    store: Originals,
    tenant: Arc<str>,
}

impl Originals {
    /// Nothing is opened yet.
    pub fn at(settings: &OriginalSettings) -> Self {
        Self { database: Arc::default(), settings: settings.clone() }
    }

    /// Opens the store, or makes it.
    ///
    /// # Errors
    /// [`OriginalError`]; a file that cannot be read is refused, never replaced.
    pub fn open(&self) -> Result<(), OriginalError> {
        self.database().map(drop)
    }

    /// What belongs to this tenant.
    pub fn of(&self, tenant: &str) -> TenantOriginals {
        TenantOriginals { store: self.clone(), tenant: tenant.into() }
    }

    fn database(&self) -> Result<Arc<Database>, OriginalError> {
        let mut held = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*held {
            return Ok(Arc::clone(database));
        }
        let dir = &self.settings.dir;
        let database = match dir.as_os_str().is_empty() || self.settings.bytes_max == 0 {
            true => {
                let opened = Database::builder().create_with_backend(InMemoryBackend::new());
                opened.map_err(|cause| OriginalError::Open { path: "memory".to_owned(), cause })?
            }
            false => on_disk(dir)?,
        };
        let write = database.begin_write()?;
        write.open_table(VALUES)?;
        write.open_table(AGES)?;
        write.open_table(TENANTS)?;
        write.commit()?;
        Ok(Arc::clone(held.insert(Arc::new(database))))
    }
}

fn on_disk(dir: &Path) -> Result<Database, OriginalError> {
    let failed = |cause| OriginalError::Dir { path: dir.display().to_string(), cause };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let path = dir.join(FILE);
    Database::create(&path).map_err(|cause| OriginalError::Open { path: path.display().to_string(), cause })
}

impl TenantOriginals {
    /// Whether a text is kept for sure beside others that are put with it, of so many bytes.
    pub fn has_room(&self, others: usize, bytes: usize) -> bool {
        (others + bytes + ENTRY_BYTES) as u64 <= self.store.settings.bytes_max
    }

    /// What is kept under a key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OriginalError> {
        let read = self.store.database()?.begin_read()?;
        let values = read.open_table(VALUES)?;
        Ok(values.get((&*self.tenant, key))?.map(|found| found.value().1.to_vec()))
    }

    /// Keeps values, durably; the tenant's oldest make room. One that is larger than all room is not kept.
    ///
    /// # Errors
    /// When the store cannot be written; then none is kept.
    pub fn put(&self, entries: &[(&[u8], &[u8])]) -> Result<(), OriginalError> {
        let write = self.store.database()?.begin_write()?;
        for (key, value) in entries {
            self.put_one(&write, key, value)?;
        }
        Ok(write.commit()?)
    }

    fn put_one(&self, write: &WriteTransaction, key: &[u8], value: &[u8]) -> Result<(), OriginalError> {
        let tenant = &*self.tenant;
        let size = |bytes: usize| (bytes + ENTRY_BYTES) as u64;
        if size(value.len()) > self.store.settings.bytes_max {
            return Ok(());
        }
        let (mut values, mut ages) = (write.open_table(VALUES)?, write.open_table(AGES)?);
        let mut tenants = write.open_table(TENANTS)?;
        let (mut bytes, next) = tenants.get(tenant)?.map_or((0, 0), |found| found.value());
        let before = values.get((tenant, key))?.map(|found| (found.value().0, found.value().1.len()));
        if let Some((age, len)) = before {
            ages.remove((tenant, age))?;
            bytes -= size(len);
        }
        bytes += size(value.len());
        values.insert((tenant, key), (next, value))?;
        ages.insert((tenant, next), key)?;
        while bytes > self.store.settings.bytes_max {
            let oldest = ages.range((tenant, 0)..)?.next().transpose()?;
            let Some((age, key)) = oldest.map(|(age, key)| (age.value().1, key.value().to_vec())) else {
                break;
            };
            ages.remove((tenant, age))?;
            let gone = values.remove((tenant, &*key))?.map_or(0, |found| size(found.value().1.len()));
            bytes -= gone;
        }
        tenants.insert(tenant, (bytes, next + 1))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(dir: &Path, bytes_max: u64) -> Originals {
        Originals::at(&OriginalSettings { dir: dir.to_owned(), bytes_max })
    }

    #[test]
    fn what_is_kept_survives_and_is_its_tenants() {
        let dir = tempfile::tempdir().expect("a folder");
        {
            let store = store(dir.path(), 1 << 20);
            store.of("a").put(&[(b"k", b"first"), (b"l", b"other")]).expect("keeps");
            store.of("a").put(&[(b"k", b"second")]).expect("keeps");
            let other = self::store(dir.path(), 1 << 20);
            assert!(other.open().is_err_and(|error| error.to_string().contains("originals.redb")));
        }
        let store = store(dir.path(), 1 << 20);
        assert_eq!(store.of("a").get(b"k").expect("reads").as_deref(), Some(&b"second"[..]));
        assert_eq!(store.of("b").get(b"k").expect("reads"), None);
        assert_eq!(store.of("").get(b"k").expect("reads"), None);
    }

    #[test]
    fn each_tenant_has_its_room_and_the_oldest_make_it() {
        let store = store(Path::new(""), 10 * (100 + ENTRY_BYTES as u64));
        let (a, b) = (store.of("a"), store.of("b"));
        b.put(&[(b"0", &[7; 100])]).expect("keeps");
        for key in 0..100_u8 {
            a.put(&[(&[key], &[key; 100])]).expect("keeps");
        }
        let left: Vec<u8> =
            (0..100).filter(|&key| a.get(&[key]).expect("reads") == Some(vec![key; 100])).collect();
        assert_eq!(left, (90..100).collect::<Vec<_>>());
        assert!(b.get(b"0").expect("reads").is_some(), "another tenant's room");
        a.put(&[(b"large", &[0; 5_000])]).expect("is let be");
        assert_eq!(a.get(b"large").expect("reads"), None);
        assert!(a.get(&[99]).expect("reads").is_some());
        a.put(&[(&[99], &[1; 100])]).expect("changes");
        assert!(a.get(&[90]).expect("reads").is_some(), "a change takes no more room");
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(FILE), b"not a database, but long enough to be looked at as one")
            .expect("writes");
        assert!(store(dir.path(), 1 << 20).open().is_err());
    }
}
