//! The directory of the disk tier: its lock, its version, and its files, one per block, with their names and
//! their format. Knows nothing of which blocks are worth keeping, nor of what a block contains.
//!
//! The file of a block is a record: magic number, checksum, and the bytes of the block.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use blake3::Hasher;
use bytes::Bytes;

use super::LocalError;
use crate::kv::key::BlockKey;
use crate::private_files;

/// The file that is locked while the directory is open. The operating system releases the lock when the
/// process ends, however it ends.
const LOCK: &str = "LOCK";

/// The file that marks the directory as a block store and contains its version.
const FORMAT: &str = "FORMAT";
const FORMAT_CURRENT: &str = "thresher blocks 2\n";

const BLOCKS: &str = "blocks";

/// The suffix of the name of a file that is being written.
const PART: &str = ".part";

/// The largest block that is read, in bytes. The largest blocks that requests create have about a tenth of
/// this.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// Entries that a directory without a version may have: the lock, and `lost+found` at the root of a new file
/// system.
const NOT_FOREIGN: [&str; 2] = [LOCK, "lost+found"];

/// The first bytes of a record, which are also its version. Records that begin with other bytes are not read.
const RECORD_MAGIC: &[u8; 8] = b"threshk1";

/// The context of the checksum, which separates it from all other hashes.
const CHECKSUM_CONTEXT: &str = "thresher 2026 block file 1";

const CHECKSUM_BYTES: usize = 32;

/// Bytes of a record before those of the block.
const RECORD_HEADER_BYTES: usize = RECORD_MAGIC.len() + CHECKSUM_BYTES;

/// An open directory, which no other process can open.
pub struct Directory {
    blocks: PathBuf,
    lock: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockFile {
    /// The number of the write. It increases with every file, so that the newer of two files is known without
    /// a clock.
    pub number: u64,
    pub key: BlockKey,
    /// The bytes of the block, without the header of the record.
    pub len: u64,
}

impl Directory {
    /// Opens or creates the directory. Returns the block files in it, oldest first. Block files of another
    /// version and unfinished ones are deleted; other files are not changed.
    ///
    /// # Errors
    /// Returns [`LocalError`] when the directory cannot be used. The message names the path and says what to
    /// do.
    pub fn open(dir: &Path) -> Result<(Self, Vec<BlockFile>), LocalError> {
        private_files::create_dir_all(dir)
            .map_err(|source| LocalError::Create { path: dir.into(), source })?;
        let format = dir.join(FORMAT);
        let read = || read_format(&format).map_err(access("read", &format));
        // This check precedes the lock, which creates a file: nothing is created in a directory with foreign
        // files.
        if read()?.is_none()
            && let Err(foreign) = refuse_foreign(dir)
            // Another process that is just starting may have created the block store in the meantime.
            && read()?.is_none()
        {
            return Err(foreign);
        }
        let lock = lock(dir)?;
        let found = read()?;
        let blocks = dir.join(BLOCKS);
        let is_current = found.as_deref() == Some(FORMAT_CURRENT.as_bytes());
        if !is_current {
            if found.is_some() {
                let version = found.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
                tracing::warn!(dir = %dir.display(), version, "the blocks in this directory have another version and are deleted");
                delete_blocks(&blocks)?;
            }
            write_format(&format).map_err(access("write", &format))?;
        }
        private_files::create_dir_all(&blocks).map_err(access("create", &blocks))?;
        // Blocks contain data derived from texts. Directories that earlier versions created may be readable
        // by other users.
        private_files::warn(private_files::restrict_dir(&blocks));
        private_files::warn(private_files::restrict_dir(dir));
        let directory = Self { blocks, lock };
        directory.probe()?;
        let files = directory.scan()?;
        Ok((directory, files))
    }

    /// Checks whether [`Self::open`] would accept the directory, as far as this is possible without changing
    /// anything in it.
    ///
    /// # Errors
    /// Returns the [`LocalError`] that [`Self::open`] would return.
    pub fn inspect(dir: &Path) -> Result<(), LocalError> {
        if !dir.exists() {
            return Ok(());
        }
        let format = dir.join(FORMAT);
        if read_format(&format).map_err(access("read", &format))?.is_none() {
            refuse_foreign(dir)?;
        }
        match File::open(dir.join(LOCK)).map(|file| file.try_lock()) {
            Ok(Err(TryLockError::WouldBlock)) => Err(LocalError::InUse { path: dir.into() }),
            _ => Ok(()),
        }
    }

    /// Writes the file of a block atomically: the whole file appears under its name, or none. The file is not
    /// synced, see [`super::LocalTiers::flush`].
    ///
    /// # Errors
    /// Returns the operating system's error, after trying to delete the unfinished file.
    pub fn write(&self, file: &BlockFile, bytes: &[u8]) -> io::Result<()> {
        let (path, part) = (self.path(file), self.blocks.join(file.name() + PART));
        let written = write_all(&part, &record_header(&file.key, bytes), bytes);
        let written = written.and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// Reads the file of a block. Returns `None` if its contents are not those that were written for its key.
    ///
    /// # Errors
    /// Returns the operating system's error, or [`ErrorKind::UnexpectedEof`] if the file does not have the
    /// length that its name says.
    pub fn read(&self, file: &BlockFile) -> io::Result<Option<Bytes>> {
        let mut opened = File::open(self.path(file))?;
        let len = file.record_len();
        // This check precedes the allocation, because neither a file name nor the length of a sparse file is
        // proof of that many bytes.
        if opened.metadata()?.len() != len || file.len > BLOCK_BYTES_MAX {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut record = vec![0; len as usize];
        opened.read_exact(&mut record)?;
        Ok(record_block(&file.key, record))
    }

    /// Deletes the file of a block. A file that does not exist is not an error.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn delete(&self, file: &BlockFile) -> io::Result<()> {
        ignore_not_found(fs::remove_file(self.path(file)))
    }

    fn path(&self, file: &BlockFile) -> PathBuf {
        self.blocks.join(file.name())
    }

    /// Checks that files can be written. A full disk is accepted, because it may have space later.
    fn probe(&self) -> Result<(), LocalError> {
        let path = self.blocks.join(format!("probe{PART}"));
        match write_all(&path, b"", b"").and_then(|()| fs::remove_file(&path)) {
            Err(error) if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                Err(access("write", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the block files in the directory, oldest first, and deletes unfinished ones.
    fn scan(&self) -> Result<Vec<BlockFile>, LocalError> {
        let (mut files, mut unknown) = (Vec::new(), 0_usize);
        for entry in fs::read_dir(&self.blocks).map_err(access("read", &self.blocks))? {
            let entry = entry.map_err(access("read", &self.blocks))?;
            // A symbolic link leads out of the directory, and opening a pipe would wait for a writer.
            let is_plain = entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir());
            match NameKind::parse(&entry.file_name().to_string_lossy()) {
                NameKind::Block(file) if is_plain => files.push(file),
                NameKind::Block(_) => unknown += 1,
                NameKind::Unfinished => drop(fs::remove_file(entry.path())),
                NameKind::Unknown => unknown += 1,
            }
        }
        if unknown > 0 {
            let dir = self.blocks.display();
            tracing::warn!(%dir, unknown, "the directory contains files that are not block files; they are not changed and not counted");
        }
        files.sort_unstable();
        Ok(files)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing the file does not release the lock if a child process that is just being started still
        // shares the file.
        let _ = self.lock.unlock();
    }
}

impl BlockFile {
    pub fn record_len(&self) -> u64 {
        self.len.saturating_add(RECORD_HEADER_BYTES as u64)
    }

    fn name(&self) -> String {
        format!("{:016x}-{}-{:x}", self.number, self.key, self.len)
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        // Counting never reaches the larger half of the numbers. Such a name is not of this program, and
        // without it the next number always fits.
        let number = u64::from_str_radix(parts.next()?, 16).ok().filter(|number| *number < 1 << 63)?;
        let key = blake3::Hash::from_hex(parts.next()?).ok()?;
        let len = u64::from_str_radix(parts.next()?, 16).ok()?;
        let file = Self { number, key: BlockKey::from_bytes(*key.as_bytes()), len };
        // Only one spelling is accepted, because files are later deleted by the name that this value gives.
        (file.name() == name).then_some(file)
    }
}

enum NameKind {
    Block(BlockFile),
    Unfinished,
    Unknown,
}

impl NameKind {
    fn parse(name: &str) -> Self {
        match name.strip_suffix(PART) {
            Some(whole) if whole == "probe" || BlockFile::parse(whole).is_some() => Self::Unfinished,
            Some(_) => Self::Unknown,
            None => BlockFile::parse(name).map_or(Self::Unknown, Self::Block),
        }
    }
}

fn access(action: &'static str, path: &Path) -> impl Fn(io::Error) -> LocalError {
    move |source| LocalError::Access { action, path: path.into(), source }
}

fn lock(dir: &Path) -> Result<File, LocalError> {
    let path = dir.join(LOCK);
    let opened = private_files::open_options().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(access("write", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LocalError::InUse { path: dir.into() }),
        Err(TryLockError::Error(source)) => Err(access("lock", &path)(source)),
    }
}

/// Refuses a directory without a version that is not empty, because its files belong to something else.
fn refuse_foreign(dir: &Path) -> Result<(), LocalError> {
    for entry in fs::read_dir(dir).map_err(access("read", dir))? {
        let found = entry.map_err(access("read", dir))?.file_name().to_string_lossy().into_owned();
        if !NOT_FOREIGN.contains(&found.as_str()) && found != format!("{FORMAT}{PART}") {
            return Err(LocalError::Foreign { path: dir.into(), found });
        }
    }
    Ok(())
}

/// Returns the first 64 bytes of the file, or `None` if it does not exist.
fn read_format(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(64).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_format(path: &Path) -> io::Result<()> {
    let part = path.with_file_name(format!("{FORMAT}{PART}"));
    ignore_not_found(fs::remove_file(&part))?;
    write_all(&part, FORMAT_CURRENT.as_bytes(), b"")?;
    fs::rename(part, path)
}

/// Deletes the block files, finished or not, and no other files.
fn delete_blocks(blocks: &Path) -> Result<(), LocalError> {
    let entries = match fs::read_dir(blocks) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(access("read", blocks))?,
    };
    for entry in entries {
        let entry = entry.map_err(access("read", blocks))?;
        if !matches!(NameKind::parse(&entry.file_name().to_string_lossy()), NameKind::Unknown) {
            ignore_not_found(fs::remove_file(entry.path())).map_err(access("delete", &entry.path()))?;
        }
    }
    Ok(())
}

fn write_all(path: &Path, header: &[u8], body: &[u8]) -> io::Result<()> {
    let mut file = private_files::open_options().write(true).create(true).truncate(true).open(path)?;
    file.write_all(header)?;
    file.write_all(body)
}

fn ignore_not_found(deleted: io::Result<()>) -> io::Result<()> {
    match deleted {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

fn record_header(key: &BlockKey, bytes: &[u8]) -> [u8; RECORD_HEADER_BYTES] {
    let mut header = [0; RECORD_HEADER_BYTES];
    header[..RECORD_MAGIC.len()].copy_from_slice(RECORD_MAGIC);
    header[RECORD_MAGIC.len()..].copy_from_slice(&checksum(key, bytes));
    header
}

/// Returns the block in a record without copying it, or `None` if the record is not the one that was written
/// for `key`.
fn record_block(key: &BlockKey, record: Vec<u8>) -> Option<Bytes> {
    let (header, bytes) = record.split_at_checked(RECORD_HEADER_BYTES)?;
    let is_valid = header.starts_with(RECORD_MAGIC) && header[RECORD_MAGIC.len()..] == checksum(key, bytes);
    is_valid.then(|| Bytes::from(record).slice(RECORD_HEADER_BYTES..))
}

/// Returns the checksum of a block. It covers the key, so that the file of another block under the name of
/// this key counts as damaged.
fn checksum(key: &BlockKey, bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = Hasher::new_derive_key(CHECKSUM_CONTEXT);
    hasher.update(key.as_bytes()).update(bytes);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_record_that_was_written_for_the_key_is_read() {
        let (key, other) = (BlockKey::from_bytes([1; 32]), BlockKey::from_bytes([2; 32]));
        let block = b"keys and offsets";
        let record = [&record_header(&key, block)[..], block].concat();
        let check = |name: &str, key: &BlockKey, record: &[u8], expect: Option<&[u8]>| {
            assert_eq!(record_block(key, record.to_vec()).as_deref(), expect, "{name}");
        };
        check("the whole record", &key, &record, Some(block));
        check("another key", &other, &record, None);
        check("one more byte", &key, &[&record[..], b"\0"].concat(), None);
        check("an empty block", &key, &record_header(&key, b""), Some(b""));
        for at in 0..record.len() {
            check("cut short", &key, &record[..at], None);
            for bit in 0..8 {
                let mut flipped = record.clone();
                flipped[at] ^= 1 << bit;
                check("a flipped bit", &key, &flipped, None);
            }
        }
    }
}
