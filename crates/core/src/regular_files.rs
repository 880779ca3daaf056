//! Opens files that someone else wrote. Pipes and devices in their place may never end, so only regular files are opened.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// Opens a file.
///
/// # Errors
/// Fails if it cannot be opened, or is not a regular file.
pub fn open(file: &Path) -> io::Result<File> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(file)
}

/// Reads a file as [`open`] opens it.
///
/// # Errors
/// As [`open`], and if the file cannot be read.
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(file)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a text as [`read`] reads bytes.
///
/// # Errors
/// As [`read`], and if the file is not UTF-8.
pub fn read_to_string(file: &Path) -> io::Result<String> {
    String::from_utf8(read(file)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
