//! Opens the index in its folder and checks it. A damaged index is an error and is never replaced by an empty
//! one.

use std::path::Path;

use tantivy::directory::MmapDirectory;
use tantivy::directory::error::LockError;
use tantivy::{Index, IndexWriter, TantivyError};
use thresher_core::private_files;

use super::directory::Directory;
use super::schema::{Fields, schema};
use super::{RegistryError, TENANTS, analyzer};

/// The bytes that the writer buffers before it writes a segment.
const WRITER_BYTES: usize = 64 * 1024 * 1024;

/// An index that is locked, so that no other process writes it.
pub struct OpenedIndex {
    pub index: Index,
    pub writer: IndexWriter,
    pub fields: Fields,
}

/// Opens the index in `dir`, or creates one in memory if `dir` is empty.
pub fn open(dir: &Path) -> Result<OpenedIndex, RegistryError> {
    let (schema, fields) = schema();
    let (index, existed) = if dir.as_os_str().is_empty() {
        (Index::create_in_ram(schema.clone()), false)
    } else {
        open_on_disk(dir, &schema)?
    };
    if index.schema() != schema {
        return Err(RegistryError::OtherVersion { dir: dir.into() });
    }
    index.tokenizers().register(analyzer::NAME, analyzer::analyzer());
    let writer = writer(&index).map_err(|cause| open_error(dir, cause))?;
    if existed {
        validate_checksums(dir, &index)?;
    }
    if !dir.as_os_str().is_empty() {
        // Registered chunks are private texts, and earlier versions left the files readable for other users.
        // Each tenant's folder is restricted when it is opened.
        private_files::warn(private_files::restrict_dir(dir));
        delete_temporary_files(dir);
        private_files::warn(private_files::restrict(&dir.join(TENANTS)));
    }
    Ok(OpenedIndex { index, writer, fields })
}

/// Deletes the temporary files of a process that was killed while it replaced a file. Only the owner of the
/// writer's lock may call this.
fn delete_temporary_files(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        // `tantivy` writes through `tempfile`, whose names are `.tmp` and six letters or digits.
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(".tmp"));
        let is_temporary =
            random.is_some_and(|r| r.len() == 6 && r.bytes().all(|b| b.is_ascii_alphanumeric()));
        if is_temporary && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            // A file that cannot be deleted costs a few hundred bytes.
            let _ignored = std::fs::remove_file(entry.path());
        }
    }
}

/// Checks, without changing anything in `dir`, whether [`open`] would accept it.
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
        Some(index) => validate_checksums(dir, &index),
        None => Ok(()),
    }
}

/// Creates the only writer of `index`.
pub fn writer(index: &Index) -> Result<IndexWriter, TantivyError> {
    // With one thread a commit creates one segment, and half a core is enough for the chunks that requests
    // send.
    index.writer_with_num_threads(1, WRITER_BYTES)
}

fn open_on_disk(dir: &Path, schema: &tantivy::schema::Schema) -> Result<(Index, bool), RegistryError> {
    let not_writable = |reason: String| RegistryError::NotWritable { dir: dir.into(), reason };
    private_files::create_dir_all(dir).map_err(|e| not_writable(e.to_string()))?;
    let mmap = MmapDirectory::open(dir).map_err(|e| not_writable(e.to_string()))?;
    match existing(dir, &mmap)? {
        Some(index) => Ok((index, true)),
        None => Index::create(mmap, schema.clone(), tantivy::IndexSettings::default())
            .map(|index| (index, false))
            .map_err(|cause| open_error(dir, cause)),
    }
}

/// Opens the index in `dir`. Returns `None` if the folder has no index and no other files.
fn existing(dir: &Path, mmap: &MmapDirectory) -> Result<Option<Index>, RegistryError> {
    let damaged = |reason: String| RegistryError::Damaged { dir: dir.into(), reason };
    let not_writable = |reason: String| RegistryError::NotWritable { dir: dir.into(), reason };
    match Index::exists(mmap) {
        Ok(true) => Index::open(mmap.clone()).map(Some).map_err(|e| damaged(e.to_string())),
        Ok(false) if has_files(dir).map_err(|e| not_writable(e.to_string()))? => {
            Err(damaged("it has files but no meta.json".to_owned()))
        }
        Ok(false) => Ok(None),
        Err(cause) => Err(damaged(cause.to_string())),
    }
}

/// Whether `dir` has more than the folders of tenants and the hidden files (locks, lists) that exist while an
/// index is being created.
fn has_files(dir: &Path) -> std::io::Result<bool> {
    let names = std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    Ok(names.iter().any(|name| !name.to_string_lossy().starts_with('.') && name != TENANTS))
}

fn open_error(dir: &Path, cause: TantivyError) -> RegistryError {
    match cause {
        TantivyError::LockFailure(LockError::LockBusy, _) => RegistryError::InUse { dir: dir.into() },
        TantivyError::LockFailure(LockError::IoError(cause), _) => {
            RegistryError::NotWritable { dir: dir.into(), reason: cause.to_string() }
        }
        other => RegistryError::NotWritable { dir: dir.into(), reason: other.to_string() },
    }
}

/// Reads every file of the index and compares it with its checksum, so that a flipped bit is found at startup
/// instead of by a request.
fn validate_checksums(dir: &Path, index: &Index) -> Result<(), RegistryError> {
    let damaged = |reason: String| RegistryError::Damaged { dir: dir.into(), reason };
    let broken = index.validate_checksum().map_err(|e| damaged(e.to_string()))?;
    match broken.iter().min() {
        None => Ok(()),
        Some(first) => Err(damaged(format!(
            "{} of its files, among them {}, do not match their checksums",
            broken.len(),
            first.display()
        ))),
    }
}

/// Lists every chunk in the index.
pub fn read_directory(searcher: &tantivy::Searcher, fields: &Fields) -> Result<Directory, TantivyError> {
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
                    directory.add_stored(id, content.first(doc).unwrap_or_default());
                }
                tantivy::DocSet::advance(&mut docs);
            }
        }
    }
    Ok(directory)
}
