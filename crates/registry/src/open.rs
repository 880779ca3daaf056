//! Opens the index in its folder, or says what is wrong with it; never an empty one in the place of a damaged one.

use std::path::Path;

use tantivy::directory::MmapDirectory;
use tantivy::directory::error::LockError;
use tantivy::{Index, IndexWriter, TantivyError};
use thresher_core::private_files;

use super::directory::Directory;
use super::schema::{Fields, schema};
use super::settings::TENANTS;
use super::{RegistryError, analyzer};

/// Bytes that the writer buffers before it writes a segment.
const WRITER_BYTES: usize = 64 * 1024 * 1024;

/// An index that this process alone writes.
pub struct Opened {
    pub index: Index,
    pub writer: IndexWriter,
    pub fields: Fields,
}

/// Opens the index in `dir`, in memory when that is empty.
pub fn open(dir: &Path) -> Result<Opened, RegistryError> {
    let (schema, fields) = schema();
    let (index, existed) = match dir.as_os_str().is_empty() {
        true => (Index::create_in_ram(schema.clone()), false),
        false => on_disk(dir, &schema)?,
    };
    if index.schema() != schema {
        return Err(RegistryError::OtherVersion { dir: dir.into() });
    }
    index.tokenizers().register(analyzer::NAME, analyzer::analyzer());
    let writer = writer(&index).map_err(|cause| refused(dir, cause))?;
    if existed {
        whole(dir, &index)?;
    }
    if !dir.as_os_str().is_empty() {
        // Registered chunks are texts. Earlier versions left them readable. The directories of tenants are opened one by one.
        private_files::warn(private_files::restrict_dir(dir));
        clear_temporary(dir);
        private_files::warn(private_files::restrict(&dir.join(TENANTS)));
    }
    Ok(Opened { index, writer, fields })
}

/// Deletes what a process that was killed while it replaced a file has left. Only the owner of the writer's lock may call this.
fn clear_temporary(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        // The names that `tempfile` gives, which `tantivy` writes through: six letters or digits.
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(".tmp"));
        let is_temporary =
            random.is_some_and(|r| r.len() == 6 && r.bytes().all(|b| b.is_ascii_alphanumeric()));
        if is_temporary && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            // What stays costs a few hundred bytes.
            let _refused = std::fs::remove_file(entry.path());
        }
    }
}

/// What [`open`] would say of `dir`, as far as it can be seen without changing anything in it.
pub fn inspect(dir: &Path) -> Result<(), RegistryError> {
    let damaged = |reason: String| RegistryError::Damaged { dir: dir.into(), reason };
    if !dir.exists() {
        return Ok(());
    }
    let in_use = std::fs::File::open(dir.join(".tantivy-writer.lock")).map(|file| file.try_lock());
    if matches!(in_use, Ok(Err(std::fs::TryLockError::WouldBlock))) {
        return Err(RegistryError::InUse { dir: dir.into() });
    }
    let mmap = MmapDirectory::open(dir).map_err(|e| damaged(e.to_string()))?;
    match existing(dir, &mmap)? {
        Some(index) if index.schema() != schema().0 => Err(RegistryError::OtherVersion { dir: dir.into() }),
        Some(index) => whole(dir, &index),
        None => Ok(()),
    }
}

/// The one writer of `index`.
pub fn writer(index: &Index) -> Result<IndexWriter, TantivyError> {
    // One thread: a commit then makes one segment, and half a core is enough for what requests send.
    index.writer_with_num_threads(1, WRITER_BYTES)
}

fn on_disk(dir: &Path, schema: &tantivy::schema::Schema) -> Result<(Index, bool), RegistryError> {
    let not_writable = |reason: String| RegistryError::NotWritable { dir: dir.into(), reason };
    private_files::create_dir_all(dir).map_err(|e| not_writable(e.to_string()))?;
    let mmap = MmapDirectory::open(dir).map_err(|e| not_writable(e.to_string()))?;
    match existing(dir, &mmap)? {
        Some(index) => Ok((index, true)),
        None => Index::create(mmap, schema.clone(), tantivy::IndexSettings::default())
            .map(|index| (index, false))
            .map_err(|cause| refused(dir, cause)),
    }
}

/// The index that is in `dir`; none where there is nothing.
fn existing(dir: &Path, mmap: &MmapDirectory) -> Result<Option<Index>, RegistryError> {
    let damaged = |reason: String| RegistryError::Damaged { dir: dir.into(), reason };
    let not_writable = |reason: String| RegistryError::NotWritable { dir: dir.into(), reason };
    match Index::exists(mmap) {
        Ok(true) => Index::open(mmap.clone()).map(Some).map_err(|e| damaged(e.to_string())),
        Ok(false) if holds_files(dir).map_err(|e| not_writable(e.to_string()))? => {
            Err(damaged("it has files but no meta.json".to_owned()))
        }
        Ok(false) => Ok(None),
        Err(cause) => Err(damaged(cause.to_string())),
    }
}

/// Whether there is more than the hidden files (locks, lists) that an index leaves while it is being made, and the folders of
/// tenants.
fn holds_files(dir: &Path) -> std::io::Result<bool> {
    let names = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    Ok(names.iter().any(|name| !name.to_string_lossy().starts_with('.') && name != TENANTS))
}

fn refused(dir: &Path, cause: TantivyError) -> RegistryError {
    match cause {
        TantivyError::LockFailure(LockError::LockBusy, _) => RegistryError::InUse { dir: dir.into() },
        TantivyError::LockFailure(LockError::IoError(cause), _) => {
            RegistryError::NotWritable { dir: dir.into(), reason: cause.to_string() }
        }
        other => RegistryError::NotWritable { dir: dir.into(), reason: other.to_string() },
    }
}

/// Reads every file against its checksum, as fast as the disk gives them: a bit that has flipped is found now, not when a
/// request meets it.
fn whole(dir: &Path, index: &Index) -> Result<(), RegistryError> {
    let damaged = |reason: String| RegistryError::Damaged { dir: dir.into(), reason };
    let broken = index.validate_checksum().map_err(|e| damaged(e.to_string()))?;
    match broken.iter().min() {
        None => Ok(()),
        Some(first) => Err(damaged(format!(
            "{} of its files, {} among them, do not match their checksums",
            broken.len(),
            first.display()
        ))),
    }
}

/// Every chunk that is in the index.
pub fn directory(searcher: &tantivy::Searcher, fields: &Fields) -> Result<Directory, TantivyError> {
    let mut directory = Directory::default();
    for segment in searcher.segment_readers() {
        let content = segment.fast_fields().u64("content")?;
        let ids = segment.inverted_index(fields.id)?;
        let mut terms = ids.terms().stream()?;
        while terms.advance() {
            let id =
                std::str::from_utf8(terms.key()).map_err(|e| TantivyError::InternalError(e.to_string()))?;
            let mut docs =
                ids.read_postings_from_terminfo(terms.value(), tantivy::schema::IndexRecordOption::Basic)?;
            while tantivy::DocSet::doc(&docs) != tantivy::TERMINATED {
                let doc = tantivy::DocSet::doc(&docs);
                if !segment.is_deleted(doc) {
                    directory.found(id, content.first(doc).unwrap_or_default());
                }
                tantivy::DocSet::advance(&mut docs);
            }
        }
    }
    Ok(directory)
}
