//! Files that are read again when they change.
//! They are read and compared, not asked for their time: a file that is restored, or written twice in one tick of its clock, has a
//! time that says nothing. They are small, and read once a second.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

/// How often to look.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// No file of keys or certificates is longer; one that is shall not fill the memory.
const BYTES_MAX: u64 = 16 << 20;

/// Some files that are read together.
pub struct Watched {
    paths: Vec<PathBuf>,
    /// What was found, or what the system said.
    seen: Result<blake3::Hash, io::ErrorKind>,
}

impl Watched {
    /// Not read yet.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { paths: paths.into_iter().collect(), seen: Err(io::ErrorKind::NotFound) }
    }

    /// What they hold, in their order; from now on this is known.
    ///
    /// # Errors
    /// Of the first that cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let found = self.paths.iter().map(read).collect::<io::Result<Vec<_>>>();
        self.seen = found.as_ref().map(|found| hash(found)).map_err(io::Error::kind);
        found
    }

    /// What they hold now, if that is not what they held, or why they cannot be read, if that is news.
    pub fn changed(&mut self) -> Option<io::Result<Vec<Vec<u8>>>> {
        let before = self.seen;
        let found = self.read();
        (self.seen != before).then_some(found)
    }
}

fn read(path: &PathBuf) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > BYTES_MAX {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has more than 16 MiB")),
        false => Ok(bytes),
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
    fn a_change_is_told_once_whatever_the_clock_of_the_file_says() {
        let dir = tempfile::tempdir().expect("a directory");
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        std::fs::write(&one, "a").expect("written");
        std::fs::write(&two, "b").expect("written");
        let mut watched = Watched::new([one.clone(), two.clone()]);
        assert_eq!(watched.read().expect("there"), [b"a", b"b"]);
        assert!(watched.changed().is_none());
        // The same length, perhaps in the same tick.
        std::fs::write(&one, "c").expect("written");
        assert_eq!(watched.changed().expect("a change").expect("readable"), [b"c", b"b"]);
        assert!(watched.changed().is_none());
        std::fs::remove_file(&two).expect("removed");
        assert!(watched.changed().expect("news").is_err());
        assert!(watched.changed().is_none(), "it is still gone");
        std::fs::write(&two, "b").expect("written");
        assert_eq!(watched.changed().expect("news").expect("readable"), [b"c", b"b"]);
    }
}
