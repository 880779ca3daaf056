//! The store of originals: full texts that were compressed on their way to a model, and records of what was sent instead. It is on disk and
//! bounded for each tenant; the oldest values are dropped. A crash loses nothing that was confirmed to a client.
//!
//! After an I/O error, such as a full disk, `redb` refuses every operation until its file is opened again, also those that run beside the one
//! that failed. The store then closes the file, and the next operation opens it; everything that was committed is still there. A read that was
//! refused is repeated.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use metrics::counter;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    AccessGuard, Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    TableError, WriteTransaction,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::private_files;

/// A tenant, and a key within that tenant.
type Key = (&'static str, &'static [u8]);

type Entry<'a> = (&'a [u8], &'a [u8]);

/// Age and value by tenant and key. Ages count the insertions of a tenant.
const VALUES: TableDefinition<Key, (u64, &[u8])> = TableDefinition::new("values");
/// Keys by tenant and age, the oldest first.
const AGES: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("ages");
/// By tenant and slot of time, the first age that was given in it.
const SLOTS: TableDefinition<(&str, u64), u64> = TableDefinition::new("slots");
/// Bytes that are stored, and the next age, by tenant.
const TENANTS: TableDefinition<&str, (u64, u64)> = TableDefinition::new("tenants");

/// Bytes that a value counts in addition to its own.
pub const ENTRY_BYTES: usize = 128;

/// Name of the store's file in its folder.
pub const FILE: &str = "originals.redb";

/// Bytes of memory for pages of the file. The default of `redb` is a gigabyte.
const CACHE_BYTES: usize = 32 << 20;

/// The time after a failed attempt to open the file, or to write to it, in which no other is made.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// `[originals]`: the folder and size of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OriginalSettings {
    /// Folder of the store, used by one daemon only. Empty: in memory, lost at exit. Default: `data/originals`.
    pub dir: PathBuf,
    /// Bytes of one tenant's texts; the oldest are dropped. 0: none are kept. Default: 1 GiB.
    pub bytes_max: u64,
    /// Seconds after which a text that was not written again is dropped. 0: none is. Default: seven days.
    pub expire_s: u64,
}

impl Default for OriginalSettings {
    fn default() -> Self {
        Self { dir: "data/originals".into(), bytes_max: 1 << 30, expire_s: 7 * 86_400 }
    }
}

/// Why the store cannot be opened, read or written.
#[derive(Debug, Error)]
pub enum OriginalError {
    #[error("cannot create the folder {path} (originals.dir): {cause}")]
    Dir {
        path: String,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    #[error("cannot open {path} (originals.dir): {cause}; each daemon needs a folder of its own")]
    Open { path: String, cause: redb::DatabaseError },
    #[error("the store of originals (originals.dir) failed: {0}")]
    Store(#[from] Box<redb::Error>),
    #[error("the store of originals (originals.dir) failed less than a second ago; try again in a second")]
    Paused,
}

/// The operation that failed; a label of `originals_failures_total`.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Open,
    Get,
    Put,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Get => "get",
            Self::Put => "put",
        }
    }
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

/// The store of all tenants. Clones share it. Its file is opened when the store is first used.
#[derive(Clone)]
pub struct Originals {
    /// Every operation holds this lock shared, so the file is closed or replaced only between operations.
    file: Arc<RwLock<OpenFile>>,
    health: Arc<Mutex<Health>>,
    settings: OriginalSettings,
}

#[derive(Default)]
struct OpenFile {
    /// `None` before the first use, and after a failure.
    database: Option<Database>,
    opened: Option<Instant>,
    opened_count: u64,
    open_failed: Option<Instant>,
}

#[derive(Default)]
struct Health {
    write_failed: Option<Instant>,
    /// Whether a failure was logged, and no recovery since.
    is_failing: bool,
}

/// The part of the store that belongs to one tenant.
#[derive(Clone)]
pub struct TenantOriginals {
    store: Originals,
    tenant: Arc<str>,
}

impl Originals {
    /// Creates a store whose file is not opened yet.
    pub fn at(settings: &OriginalSettings) -> Self {
        Self { file: Arc::default(), health: Arc::default(), settings: settings.clone() }
    }

    /// Opens the file of the store, or creates it.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or created. A damaged file is an error; it is never replaced.
    pub fn open(&self) -> Result<(), OriginalError> {
        self.opened().map(drop)
    }

    /// Returns the part of the store that belongs to `tenant`.
    pub fn tenant(&self, tenant: &str) -> TenantOriginals {
        TenantOriginals { store: self.clone(), tenant: tenant.into() }
    }

    /// The bytes of memory that pages of the file take; 0 while it is not open. Never waits.
    pub fn cached_bytes(&self) -> usize {
        let Ok(file) = self.file.try_read() else { return 0 };
        file.database.as_ref().map_or(0, |database| database.cache_stats().used_bytes())
    }

    /// Drops the values of all tenants that are too old. Returns how many there were.
    ///
    /// # Errors
    /// Fails if the store cannot be written.
    pub fn expire(&self) -> Result<u64, OriginalError> {
        if !self.is_in_memory() && !self.settings.dir.join(FILE).exists() {
            return Ok(0);
        }
        let mut dropped = 0;
        self.write(|write| {
            let tenants: Vec<String> = {
                let tenants = write.open_table(TENANTS)?;
                let names = tenants.iter()?.map(|entry| Ok(entry?.0.value().to_owned()));
                names.collect::<Result<_, redb::StorageError>>()?
            };
            for tenant in tenants {
                self.tenant(&tenant).date(write)?;
                dropped += self.tenant(&tenant).expire(write, unix_s())?;
            }
            Ok(())
        })?;
        Ok(dropped)
    }

    /// Deletes all values of a tenant, and writes the file anew, so that nothing of them is left in it. Returns how many there were.
    ///
    /// # Errors
    /// Fails if the store cannot be read or written. The values may be deleted then although the file still has their bytes, until others are
    /// written over them.
    pub fn delete_tenant(&self, tenant: &str) -> Result<u64, OriginalError> {
        let mut deleted = 0;
        self.write(|write| {
            deleted = self.tenant(tenant).drop_until(write, u64::MAX)?;
            write.open_table(TENANTS)?.remove(tenant)?;
            let mut slots = write.open_table(SLOTS)?;
            slots.retain_in((tenant, 0)..=(tenant, u64::MAX), |_, _| false)?;
            Ok(())
        })?;
        // Also if nothing was left: an earlier attempt may have failed here, and rows that expired leave their bytes.
        if !self.is_in_memory() {
            self.write_anew()?;
        }
        Ok(deleted)
    }

    /// Copies what the file has into a new one, which takes its place.
    fn write_anew(&self) -> Result<(), OriginalError> {
        let mut file = self.exclusive();
        let dir = &self.settings.dir;
        let failed = |cause| OriginalError::Dir { path: dir.display().to_string(), cause };
        let new = dir.join(format!("{FILE}.new"));
        let _ = std::fs::remove_file(&new);
        let old = match file.database.take() {
            Some(database) => database,
            None => self.open_database()?,
        };
        {
            let copy = open_path(&new)?;
            let (read, write) = (old.begin_read()?, copy.begin_write()?);
            copy_table(&read, &write, VALUES)?;
            copy_table(&read, &write, AGES)?;
            copy_table(&read, &write, SLOTS)?;
            copy_table(&read, &write, TENANTS)?;
            write.commit()?;
        }
        drop(old);
        std::fs::rename(&new, dir.join(FILE)).map_err(failed)?;
        // The next call opens the new file.
        *file = OpenFile::default();
        Ok(())
    }

    fn is_in_memory(&self) -> bool {
        self.settings.dir.as_os_str().is_empty() || self.settings.bytes_max == 0
    }

    /// Runs `work` in one read transaction. If the file has to be opened again, it runs twice: a write that failed makes `redb` refuse the
    /// reads beside it, too.
    fn read<T>(
        &self,
        work: impl Fn(&ReadTransaction) -> Result<T, OriginalError>,
    ) -> Result<T, OriginalError> {
        let attempt = || self.run(Operation::Get, |database| work(&database.begin_read()?));
        let done = match attempt() {
            Err(error) if needs_reopening(&error) => attempt(),
            done => done,
        };
        self.record(Operation::Get, &done);
        done
    }

    /// Runs `work` in one write transaction, which is committed as a whole or not at all. While the disk is full, every write closes the
    /// file, so no write is tried for a second after a failed one.
    fn write(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<(), OriginalError>,
    ) -> Result<(), OriginalError> {
        if self.health().write_failed.is_some_and(is_recent) {
            counter!("originals_failures_total", "operation" => Operation::Put.name()).increment(1);
            return Err(OriginalError::Paused);
        }
        let done = self.run(Operation::Put, |database| {
            let write = database.begin_write()?;
            work(&write)?;
            Ok(write.commit()?)
        });
        self.record(Operation::Put, &done);
        done
    }

    /// Runs `work` on the open file, and closes the file if it must be opened again.
    fn run<T>(
        &self,
        operation: Operation,
        work: impl FnOnce(&Database) -> Result<T, OriginalError>,
    ) -> Result<T, OriginalError> {
        // A file that cannot be opened was counted already.
        let file = self.opened().map_err(|error| match error {
            OriginalError::Store(_) => OriginalError::Paused,
            error => error,
        })?;
        // Where reads fail by themselves, opening the file again and again does not help.
        let is_new = matches!(operation, Operation::Get)
            && file.opened.is_some_and(|opened| opened.elapsed() < RETRY_DELAY / 2);
        let opened_count = file.opened_count;
        let done = work(file.database.as_ref().expect("the file is open"));
        drop(file);
        if !self.is_in_memory() && !is_new && done.as_ref().is_err_and(needs_reopening) {
            let mut file = self.exclusive();
            // Another operation that failed may have closed it, and a third one opened it again.
            if file.opened_count == opened_count {
                file.database = None;
            }
        }
        done
    }

    /// Counts a failure, and logs the first one and the recovery.
    fn record<T>(&self, operation: Operation, done: &Result<T, OriginalError>) {
        match done {
            Ok(_) => {
                let mut health = self.health();
                if matches!(operation, Operation::Put) {
                    health.write_failed = None;
                }
                // Reads work while the disk is full, so only a write shows that the store works again.
                if health.is_failing && health.write_failed.is_none() {
                    health.is_failing = false;
                    tracing::info!("the store of originals works again");
                }
            }
            Err(error @ OriginalError::Store(_)) => self.failed(operation, error),
            // Counted where the file could not be opened.
            Err(_) => {}
        }
    }

    fn failed(&self, operation: Operation, error: &OriginalError) {
        counter!("originals_failures_total", "operation" => operation.name()).increment(1);
        let mut health = self.health();
        if matches!(operation, Operation::Put) {
            health.write_failed = Some(Instant::now());
        }
        // Logged once, not for every request.
        if !std::mem::replace(&mut health.is_failing, true) {
            let dir = self.settings.dir.display();
            let operation = operation.name();
            tracing::error!(%error, operation, %dir, "the store of originals failed; the next requests will try it again");
        }
    }

    /// Returns the open file. It is opened if it is not open.
    fn opened(&self) -> Result<RwLockReadGuard<'_, OpenFile>, OriginalError> {
        loop {
            let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
            if file.database.is_some() {
                return Ok(file);
            }
            drop(file);
            self.open_again()?;
        }
    }

    fn open_again(&self) -> Result<(), OriginalError> {
        let mut file = self.exclusive();
        if file.database.is_some() {
            return Ok(());
        }
        if file.open_failed.is_some_and(is_recent) {
            return Err(OriginalError::Paused);
        }
        match self.open_database() {
            Ok(database) => {
                if file.opened_count > 0 {
                    counter!("originals_reopened_total").increment(1);
                }
                *file = OpenFile {
                    database: Some(database),
                    opened: Some(Instant::now()),
                    opened_count: file.opened_count + 1,
                    open_failed: None,
                };
                Ok(())
            }
            Err(error) => {
                file.open_failed = Some(Instant::now());
                self.failed(Operation::Open, &error);
                Err(error)
            }
        }
    }

    fn open_database(&self) -> Result<Database, OriginalError> {
        let database = if self.is_in_memory() {
            let opened = Builder::new().create_with_backend(InMemoryBackend::new());
            opened.map_err(|cause| OriginalError::Open { path: "memory".to_owned(), cause })?
        } else {
            open_file(&self.settings.dir)?
        };
        // Nothing is written if the tables exist, so that a file on a full disk can be opened and read.
        if !has_tables(&database)? {
            let write = database.begin_write()?;
            write.open_table(VALUES)?;
            write.open_table(AGES)?;
            write.open_table(SLOTS)?;
            write.open_table(TENANTS)?;
            write.commit()?;
        }
        Ok(database)
    }

    fn exclusive(&self) -> RwLockWriteGuard<'_, OpenFile> {
        self.file.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_recent(failed: Instant) -> bool {
    failed.elapsed() < RETRY_DELAY
}

/// Whether the file must be opened again after `error`: `redb` then refuses every operation, or its cached pages may be wrong.
fn needs_reopening(error: &OriginalError) -> bool {
    match error {
        OriginalError::Store(error) => matches!(
            **error,
            redb::Error::Io(_)
                | redb::Error::PreviousIo
                | redb::Error::Corrupted(_)
                | redb::Error::DatabaseClosed
                | redb::Error::LockPoisoned(_)
        ),
        OriginalError::Dir { .. } | OriginalError::Open { .. } | OriginalError::Paused => false,
    }
}

fn has_tables(database: &Database) -> Result<bool, OriginalError> {
    let read = database.begin_read()?;
    let tables = [
        read.open_table(VALUES).map(drop),
        read.open_table(AGES).map(drop),
        read.open_table(SLOTS).map(drop),
        read.open_table(TENANTS).map(drop),
    ];
    for table in tables {
        match table {
            Err(TableError::TableDoesNotExist(_)) => return Ok(false),
            opened => opened?,
        }
    }
    Ok(true)
}

fn open_file(dir: &Path) -> Result<Database, OriginalError> {
    let failed = |cause| OriginalError::Dir { path: dir.display().to_string(), cause };
    private_files::create_dir_all(dir).map_err(failed)?;
    private_files::warn(private_files::restrict_dir_of(dir, &[FILE]));
    // Of a daemon that stopped while it wrote the file anew.
    let _ = std::fs::remove_file(dir.join(format!("{FILE}.new")));
    open_path(&dir.join(FILE))
}

fn open_path(path: &Path) -> Result<Database, OriginalError> {
    let refused = |cause| OriginalError::Open { path: path.display().to_string(), cause };
    let file = private_files::open_options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(|error| refused(redb::DatabaseError::Storage(error.into())))?;
    private_files::warn(private_files::restrict(path));
    let backend = FileBackend::new(file).map_err(refused)?;
    Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend).map_err(refused)
}

fn copy_table<K: redb::Key + 'static, V: redb::Value + 'static>(
    read: &ReadTransaction,
    write: &WriteTransaction,
    table: TableDefinition<K, V>,
) -> Result<(), OriginalError> {
    let mut to = write.open_table(table)?;
    for entry in read.open_table(table)?.iter()? {
        let (key, value) = entry?;
        to.insert(key.value(), value.value())?;
    }
    Ok(())
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

impl TenantOriginals {
    /// Returns whether a text of `bytes` can be kept together with other values of `others` bytes in the same [`Self::put`], without one of
    /// them dropping another.
    pub fn has_room(&self, others: usize, bytes: usize) -> bool {
        (others + bytes + ENTRY_BYTES) as u64 <= self.store.settings.bytes_max
    }

    /// Returns the value of `key`, or `None` if it was never stored or has been dropped.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OriginalError> {
        self.store.read(|read| {
            let values = read.open_table(VALUES)?;
            Ok(values.get((&*self.tenant, key))?.map(|found| found.value().1.to_vec()))
        })
    }

    /// Stores keys and their values durably. The oldest values of the tenant are dropped if there is not enough room. A value that is larger
    /// than the tenant's part of the store is skipped.
    ///
    /// # Errors
    /// Fails if the store cannot be written. Then no value of `entries` is stored.
    pub fn put(&self, entries: &[Entry]) -> Result<(), OriginalError> {
        self.store.write(|write| entries.iter().try_for_each(|(key, value)| self.put_one(write, key, value)))
    }

    /// As [`Self::put`], and in the same transaction stores those of `absent` whose keys have no value.
    ///
    /// # Errors
    /// Fails if the store cannot be written. Then nothing is stored.
    pub fn put_and_add(&self, entries: &[Entry], absent: &[Entry]) -> Result<(), OriginalError> {
        self.store.write(|write| {
            entries.iter().try_for_each(|(key, value)| self.put_one(write, key, value))?;
            for (key, value) in absent {
                let is_absent = write.open_table(VALUES)?.get((&*self.tenant, *key))?.is_none();
                if is_absent {
                    self.put_one(write, key, value)?;
                }
            }
            Ok(())
        })
    }

    fn put_one(&self, write: &WriteTransaction, key: &[u8], value: &[u8]) -> Result<(), OriginalError> {
        let tenant = &*self.tenant;
        if size(value.len()) > self.store.settings.bytes_max {
            return Ok(());
        }
        self.expire(write, unix_s())?;
        let (mut values, mut ages) = (write.open_table(VALUES)?, write.open_table(AGES)?);
        let mut tenants = write.open_table(TENANTS)?;
        let (mut bytes, next_age) = tenants.get(tenant)?.map_or((0, 0), |found| found.value());
        let before = values.get((tenant, key))?.map(|found| (found.value().0, found.value().1.len()));
        if let Some((age, len)) = before {
            ages.remove((tenant, age))?;
            bytes -= size(len);
        }
        bytes += size(value.len());
        values.insert((tenant, key), (next_age, value))?;
        ages.insert((tenant, next_age), key)?;
        let (mut slots, slot) = (write.open_table(SLOTS)?, unix_s() / self.slot_s());
        if slots.get((tenant, slot))?.is_none() {
            slots.insert((tenant, slot), next_age)?;
        }
        while bytes > self.store.settings.bytes_max {
            let oldest = ages.range((tenant, 0)..)?.next().transpose()?;
            let Some((age, key)) = oldest.map(first_of) else { break };
            ages.remove((tenant, age))?;
            let dropped = values.remove((tenant, &*key))?.map_or(0, |found| size(found.value().1.len()));
            bytes -= dropped;
        }
        tenants.insert(tenant, (bytes, next_age + 1))?;
        Ok(())
    }

    /// Seconds of a slot of time: the age of a value is known to this precision.
    fn slot_s(&self) -> u64 {
        (self.store.settings.expire_s / 24).clamp(1, 3_600)
    }

    /// Takes values without a time, which an earlier version stored, for values of now.
    fn date(&self, write: &WriteTransaction) -> Result<(), OriginalError> {
        let (tenant, mut slots) = (&*self.tenant, write.open_table(SLOTS)?);
        let has_none = slots.range((tenant, 0)..=(tenant, u64::MAX))?.next().is_none();
        if has_none {
            slots.insert((tenant, unix_s() / self.slot_s()), 0)?;
        }
        Ok(())
    }

    /// Drops the values that are too old at `now_s`. Returns how many there were.
    fn expire(&self, write: &WriteTransaction, now_s: u64) -> Result<u64, OriginalError> {
        let (tenant, expire_s) = (&*self.tenant, self.store.settings.expire_s);
        let Some(end) = now_s.checked_sub(expire_s).filter(|_| expire_s > 0) else { return Ok(0) };
        // The first slot that may have a value that is young enough.
        let first = end / self.slot_s();
        let mut slots = write.open_table(SLOTS)?;
        let is_due = slots.range((tenant, 0)..(tenant, first))?.next().is_some();
        if !is_due {
            return Ok(0);
        }
        let young = slots.range((tenant, first)..=(tenant, u64::MAX))?.next().transpose()?;
        let young = young.map_or(u64::MAX, |(_, age)| age.value());
        slots.retain_in((tenant, 0)..(tenant, first), |_, _| false)?;
        drop(slots);
        self.drop_until(write, young)
    }

    /// Drops the values whose age is below `end`. Returns how many there were.
    fn drop_until(&self, write: &WriteTransaction, end: u64) -> Result<u64, OriginalError> {
        let tenant = &*self.tenant;
        let (mut values, mut ages) = (write.open_table(VALUES)?, write.open_table(AGES)?);
        let mut tenants = write.open_table(TENANTS)?;
        let Some((mut bytes, next_age)) = tenants.get(tenant)?.map(|found| found.value()) else {
            return Ok(0);
        };
        let mut count = 0;
        loop {
            let oldest = ages.range((tenant, 0)..(tenant, end))?.next().transpose()?.map(first_of);
            let Some((age, key)) = oldest else { break };
            ages.remove((tenant, age))?;
            bytes -= values.remove((tenant, &*key))?.map_or(0, |found| size(found.value().1.len()));
            count += 1;
        }
        tenants.insert(tenant, (bytes, next_age))?;
        Ok(count)
    }
}

/// Bytes that a value counts.
fn size(bytes: usize) -> u64 {
    (bytes + ENTRY_BYTES) as u64
}

fn first_of((age, key): (AccessGuard<(&str, u64)>, AccessGuard<&[u8]>)) -> (u64, Vec<u8>) {
    (age.value().1, key.value().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(dir: &Path, bytes_max: u64) -> Originals {
        Originals::at(&OriginalSettings { dir: dir.to_owned(), bytes_max, ..OriginalSettings::default() })
    }

    #[test]
    fn values_survive_a_restart_and_belong_to_one_tenant() {
        let dir = tempfile::tempdir().expect("a folder");
        {
            let store = store(dir.path(), 1 << 20);
            store.tenant("a").put(&[(b"k", b"first"), (b"l", b"other")]).expect("keeps");
            store.tenant("a").put(&[(b"k", b"second")]).expect("keeps");
            let other = self::store(dir.path(), 1 << 20);
            assert!(other.open().is_err_and(|error| error.to_string().contains("originals.redb")));
        }
        let store = store(dir.path(), 1 << 20);
        assert_eq!(store.tenant("a").get(b"k").expect("reads").as_deref(), Some(&b"second"[..]));
        assert_eq!(store.tenant("b").get(b"k").expect("reads"), None);
        assert_eq!(store.tenant("").get(b"k").expect("reads"), None);
    }

    #[test]
    fn each_tenant_has_its_own_room_and_drops_its_oldest_values() {
        let store = store(Path::new(""), 10 * (100 + ENTRY_BYTES as u64));
        let (a, b) = (store.tenant("a"), store.tenant("b"));
        b.put(&[(b"0", &[7; 100])]).expect("keeps");
        for key in 0..100_u8 {
            a.put(&[(&[key], &[key; 100])]).expect("keeps");
        }
        let left: Vec<u8> =
            (0..100).filter(|&key| a.get(&[key]).expect("reads") == Some(vec![key; 100])).collect();
        assert_eq!(left, (90..100).collect::<Vec<_>>());
        assert!(b.get(b"0").expect("reads").is_some(), "another tenant has its own room");
        a.put(&[(b"large", &[0; 5_000])]).expect("skipped");
        assert_eq!(a.get(b"large").expect("reads"), None);
        assert!(a.get(&[99]).expect("reads").is_some());
        a.put(&[(&[99], &[1; 100])]).expect("changes");
        assert!(a.get(&[90]).expect("reads").is_some(), "an overwritten value takes no more room");
    }

    #[test]
    fn absent_entries_are_stored_only_if_their_keys_have_no_value() {
        let a = store(Path::new(""), 1 << 20).tenant("a");
        a.put_and_add(&[(b"k", b"k1")], &[(b"l", b"l1")]).expect("keeps");
        a.put_and_add(&[(b"k", b"k2")], &[(b"k", b"k3"), (b"l", b"l2"), (b"m", b"m2")]).expect("keeps");
        let found = [&b"k"[..], b"l", b"m"].map(|key| a.get(key).expect("reads").expect("a value"));
        assert_eq!(found, [b"k2".to_vec(), b"l1".to_vec(), b"m2".to_vec()]);
    }

    #[test]
    fn what_is_too_old_is_dropped() {
        let settings =
            OriginalSettings { dir: PathBuf::new(), expire_s: 48 * 3_600, ..OriginalSettings::default() };
        let store = Originals::at(&settings);
        let (a, b) = (store.tenant("a"), store.tenant("b"));
        a.put(&[(b"k", b"first"), (b"l", b"second")]).expect("keeps");
        b.put(&[(b"k", b"other")]).expect("keeps");
        let expire = |hours: u64| {
            let mut dropped = 0;
            let work = |write: &WriteTransaction| {
                dropped = a.expire(write, unix_s() + hours * 3_600)?;
                Ok(())
            };
            store.write(work).expect("writes");
            dropped
        };
        assert_eq!((expire(0), expire(47)), (0, 0));
        assert!(a.get(b"k").expect("reads").is_some());
        assert_eq!((expire(50), expire(50)), (2, 0));
        assert_eq!((a.get(b"k").expect("reads"), b.get(b"k").expect("reads").is_some()), (None, true));
        assert_eq!(store.expire().expect("writes"), 0);
    }

    #[test]
    fn nothing_of_a_deleted_tenant_is_left_in_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = store(dir.path(), 1 << 20);
        let secret = b"ZEBRA ".repeat(100);
        store.tenant("a").put(&[(b"k", &secret), (b"l", &secret)]).expect("keeps");
        store.tenant("b").put(&[(b"k", b"other")]).expect("keeps");
        assert_eq!(store.delete_tenant("a").expect("deletes"), 2);
        assert_eq!(store.tenant("a").get(b"k").expect("reads"), None);
        assert_eq!(store.tenant("b").get(b"k").expect("reads").as_deref(), Some(&b"other"[..]));
        store.tenant("b").put(&[(b"l", b"more")]).expect("keeps");
        let bytes = std::fs::read(dir.path().join(FILE)).expect("a file");
        assert!(!bytes.windows(6).any(|window| window == b"ZEBRA "), "{} bytes", bytes.len());
        assert_eq!(store.delete_tenant("nobody").expect("nothing to delete"), 0);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join(FILE), b"not a database, but long enough to be looked at as one")
            .expect("writes");
        assert!(store(dir.path(), 1 << 20).open().is_err());
    }
}
