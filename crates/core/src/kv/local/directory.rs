//! The disk tier's directory: whose it is, its version, and the names of the files in it.
//! Knows nothing of which blocks are worth keeping.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::error::LocalError;
use super::record;
use crate::kv::key::BlockKey;
use crate::private_files;

/// Held for as long as the directory is open; the system lets go of it when the process ends, however it ends.
const LOCK: &str = "LOCK";

/// Says that the directory is a block store, and of which version.
const FORMAT: &str = "FORMAT";
const FORMAT_NOW: &str = "thresher blocks 1\n";

/// Where the blocks are, one file each.
const BLOCKS: &str = "blocks";

/// Ends the name of a file that is being written.
const PART: &str = ".part";

/// Bytes of the largest block that is read. The largest that requests make have about a tenth of this.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// What a fresh file system may have at its root.
const NOT_FOREIGN: [&str; 2] = [LOCK, "lost+found"];

/// An open directory: nobody else has it.
pub struct Directory {
    blocks: PathBuf,
    lock: File,
}

/// A block's file. The number grows with every file written: it tells the newer of two, and no clock is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockFile {
    /// Which write this was.
    pub number: u64,
    /// What it holds.
    pub key: BlockKey,
    /// Bytes of the block, without the record's header.
    pub len: u64,
}

impl Directory {
    /// Opens or makes the directory; returns the block files in it, oldest first. Files of another version and unfinished
    /// ones are deleted, what is not a block's file is left alone.
    ///
    /// # Errors
    /// [`LocalError`] names the path and says what to do.
    pub fn open(dir: &Path) -> Result<(Self, Vec<BlockFile>), LocalError> {
        private_files::create_dir_all(dir)
            .map_err(|source| LocalError::Create { path: dir.into(), source })?;
        let format = dir.join(FORMAT);
        let read = || read_format(&format).map_err(access("read", &format));
        // Before the lock, which is a file: nothing is made in a directory that is somebody's.
        if read()?.is_none()
            && let Err(foreign) = refuse_foreign(dir)
            // Unless another process that is just starting has made it a block store meanwhile.
            && read()?.is_none()
        {
            return Err(foreign);
        }
        let lock = lock(dir)?;
        let found = read()?;
        let blocks = dir.join(BLOCKS);
        let current = found.as_deref() == Some(FORMAT_NOW.as_bytes());
        if !current {
            if found.is_some() {
                let of_version = found.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
                tracing::warn!(dir = %dir.display(), of_version, "blocks of another version are discarded");
                discard(&blocks)?;
            }
            write_format(&format).map_err(access("write", &format))?;
        }
        private_files::create_dir_all(&blocks).map_err(access("create", &blocks))?;
        // Blocks hold what the model made of texts. Earlier versions left them readable.
        private_files::warn(private_files::restrict_dir(&blocks));
        private_files::warn(private_files::restrict_dir(dir));
        let directory = Self { blocks, lock };
        directory.probe()?;
        let files = directory.scan()?;
        Ok((directory, files))
    }

    /// What [`Self::open`] would say of the directory, as far as it can be seen without changing anything in it.
    ///
    /// # Errors
    /// [`LocalError`].
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

    /// Writes a block's file: whole under its name, or not at all. Not synced: see [`super::LocalTiers::flush`].
    ///
    /// # Errors
    /// What the system said; nothing is left behind, if it lets us.
    pub fn write(&self, file: &BlockFile, bytes: &[u8]) -> io::Result<()> {
        let (path, part) = (self.path(file), self.blocks.join(file.name() + PART));
        let written = write_all(&part, &record::header(&file.key, bytes), bytes);
        let written = written.and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// Everything in a block's file, if it has the length that its name says.
    ///
    /// # Errors
    /// What the system said; [`ErrorKind::UnexpectedEof`] for another length.
    pub fn read(&self, file: &BlockFile) -> io::Result<Vec<u8>> {
        let mut opened = File::open(self.path(file))?;
        let len = file.record_len();
        // Before the allocation: neither a name nor the length of a file with holes is a reason to take memory.
        if opened.metadata()?.len() != len || file.len > BLOCK_BYTES_MAX {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut record = vec![0; len as usize];
        opened.read_exact(&mut record)?;
        Ok(record)
    }

    /// Deletes a block's file; one that is gone already is fine.
    ///
    /// # Errors
    /// What the system said.
    pub fn delete(&self, file: &BlockFile) -> io::Result<()> {
        gone(fs::remove_file(self.path(file)))
    }

    fn path(&self, file: &BlockFile) -> PathBuf {
        self.blocks.join(file.name())
    }

    /// Says at once that nothing can be written. A full disk may have room later.
    fn probe(&self) -> Result<(), LocalError> {
        let path = self.blocks.join(format!("probe{PART}"));
        match write_all(&path, b"", b"").and_then(|()| fs::remove_file(&path)) {
            Err(error) if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                Err(access("write", &path)(error))
            }
            _ => Ok(()),
        }
    }

    fn scan(&self) -> Result<Vec<BlockFile>, LocalError> {
        let (mut files, mut unknown) = (Vec::new(), 0_usize);
        for entry in fs::read_dir(&self.blocks).map_err(access("read", &self.blocks))? {
            let entry = entry.map_err(access("read", &self.blocks))?;
            // A link leads elsewhere, and opening a pipe would wait for somebody who writes into it.
            let is_plain = entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir());
            match Named::of(&entry.file_name().to_string_lossy()) {
                Named::Block(file) if is_plain => files.push(file),
                Named::Block(_) => unknown += 1,
                Named::Unfinished => drop(fs::remove_file(entry.path())),
                Named::Unknown => unknown += 1,
            }
        }
        if unknown > 0 {
            let dir = self.blocks.display();
            tracing::warn!(%dir, unknown, "files that are no blocks' are left alone and not counted");
        }
        files.sort_unstable();
        Ok(files)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Closing is not enough: a process that is just being started may still share the file.
        let _ = self.lock.unlock();
    }
}

impl BlockFile {
    /// Bytes of the file.
    pub fn record_len(&self) -> u64 {
        self.len.saturating_add(record::HEADER_BYTES as u64)
    }

    fn name(&self) -> String {
        format!("{:016x}-{}-{:x}", self.number, self.key, self.len)
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        // The larger half is never reached by counting: such a name is not ours, and the next number always fits.
        let number = u64::from_str_radix(parts.next()?, 16).ok().filter(|number| *number < 1 << 63)?;
        let key = blake3::Hash::from_hex(parts.next()?).ok()?;
        let len = u64::from_str_radix(parts.next()?, 16).ok()?;
        let file = Self { number, key: BlockKey::from_bytes(*key.as_bytes()), len };
        // One spelling only: what is deleted by name must be what was found.
        (file.name() == name).then_some(file)
    }
}

/// What a name in the folder of blocks says.
enum Named {
    Block(BlockFile),
    Unfinished,
    Unknown,
}

impl Named {
    fn of(name: &str) -> Self {
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

/// A directory without a version must be empty: whatever else is in it is somebody's.
fn refuse_foreign(dir: &Path) -> Result<(), LocalError> {
    for entry in fs::read_dir(dir).map_err(access("read", dir))? {
        let found = entry.map_err(access("read", dir))?.file_name().to_string_lossy().into_owned();
        if !NOT_FOREIGN.contains(&found.as_str()) && found != format!("{FORMAT}{PART}") {
            return Err(LocalError::Foreign { path: dir.into(), found });
        }
    }
    Ok(())
}

/// The first bytes of the file, if there is one.
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
    gone(fs::remove_file(&part))?;
    write_all(&part, FORMAT_NOW.as_bytes(), b"")?;
    fs::rename(part, path)
}

/// Deletes the block files, and nothing else.
fn discard(blocks: &Path) -> Result<(), LocalError> {
    let entries = match fs::read_dir(blocks) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(access("read", blocks))?,
    };
    for entry in entries {
        let entry = entry.map_err(access("read", blocks))?;
        if !matches!(Named::of(&entry.file_name().to_string_lossy()), Named::Unknown) {
            gone(fs::remove_file(entry.path())).map_err(access("delete", &entry.path()))?;
        }
    }
    Ok(())
}

fn write_all(path: &Path, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut file = private_files::open_options().write(true).create(true).truncate(true).open(path)?;
    file.write_all(head)?;
    file.write_all(body)
}

fn gone(deleted: io::Result<()>) -> io::Result<()> {
    match deleted {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}
