//! Files that are reloaded when they change. A change is found by reading the files and comparing hashes, not by the modification time,
//! which does not change reliably when a file is restored, or written twice within one tick of the clock. The files are small, and are
//! read once a second.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

/// The time between two checks for changes.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The most bytes that are read of a file, so that a wrong path does not fill the memory. Key files and certificates are smaller.
const BYTES_MAX: u64 = 16 << 20;

/// Files that are read together and watched for changes.
pub struct Watched {
    paths: Vec<PathBuf>,
    /// The hash of the contents that were read last, or the error.
    last: Result<blake3::Hash, io::ErrorKind>,
}

impl Watched {
    /// Creates a watch for the files at `paths`, which have not been read yet.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { paths: paths.into_iter().collect(), last: Err(io::ErrorKind::NotFound) }
    }

    /// Reads the files and returns their contents in the order of the paths. [`Self::changed`] compares with these contents.
    ///
    /// # Errors
    /// Returns the error of the first file that cannot be read, or that has more than 16 MiB.
    pub fn read(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let found = self.paths.iter().map(read).collect::<io::Result<Vec<_>>>();
        self.last = found.as_ref().map(|found| hash(found)).map_err(io::Error::kind);
        found
    }

    /// Reads the files again. Returns their contents or the error if it differs from what was read last, else `None`.
    pub fn changed(&mut self) -> Option<io::Result<Vec<Vec<u8>>>> {
        let before = self.last;
        let found = self.read();
        (self.last != before).then_some(found)
    }
}

fn read(path: &PathBuf) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file has more than 16 MiB"))
    } else {
        Ok(bytes)
    }
}

fn hash(files: &[Vec<u8>]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for bytes in files {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_once_whatever_the_modification_time_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        std::fs::write(&one, "a").expect("written");
        std::fs::write(&two, "b").expect("written");
        let mut watched = Watched::new([one.clone(), two.clone()]);
        assert_eq!(watched.read().expect("both files exist"), [b"a", b"b"]);
        assert!(watched.changed().is_none());
        // The same length, and perhaps the same tick of the clock.
        std::fs::write(&one, "c").expect("written");
        assert_eq!(watched.changed().expect("a change").expect("readable"), [b"c", b"b"]);
        assert!(watched.changed().is_none());
        std::fs::remove_file(&two).expect("removed");
        assert!(watched.changed().expect("a change").is_err());
        assert!(watched.changed().is_none(), "the file is still missing");
        std::fs::write(&two, "b").expect("written");
        assert_eq!(watched.changed().expect("a change").expect("readable"), [b"c", b"b"]);
    }
}
