//! Keeps the daemon's own files from other users of the machine: directories with mode 0700, files with mode
//! 0600. Knows nothing of what the files hold. Without Unix modes it does nothing.
//!
//! The stores create their directories and files through this module. Files that a library creates get their
//! mode from the process's umask, which `process::keep_files_private` sets for the daemon.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A path that users other than its owner have permissions on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposed {
    pub path: PathBuf,
    /// Its permission bits, such as 0o755.
    pub mode: u32,
    /// Whether this process's user owns the path, and can therefore change its mode.
    pub is_ours: bool,
}

/// Creates a directory and its missing parents with mode 0700. Directories that exist keep their mode.
///
/// # Errors
/// Returns the operating system's error.
pub fn create_dir_all(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(dir)
}

/// Returns options for opening a file. If opening creates the file, it gets mode 0600; a file that exists
/// keeps its mode.
pub fn open_options() -> OpenOptions {
    let mut options = File::options();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options
}

/// Removes the permissions of other users from a directory and from the files directly in it, but not from
/// its subdirectories. Files are changed even in a directory that others cannot enter, because a copy may
/// keep the modes of the files but not that of the directory. Symbolic links in the directory are not
/// followed. The check costs one system call per file.
///
/// # Errors
/// Returns the first error, such as a file that another user owns, after trying all other paths. The message
/// names the path.
pub fn restrict_dir(dir: &Path) -> io::Result<()> {
    unix::restrict_dir(dir)
}

/// Removes the permissions of other users from one file or directory, if it exists. A symbolic link and its
/// target are not changed.
///
/// # Errors
/// Returns the operating system's error. The message names the path.
pub fn restrict(path: &Path) -> io::Result<()> {
    unix::restrict(path)
}

/// Calls [`restrict`] on a directory if it contains no entries other than `own_names` (and `lost+found`). A
/// directory with other entries may be shared with other programs, as `/etc` is, and is not changed.
///
/// # Errors
/// Returns an error when the directory cannot be read or its mode cannot be changed.
pub fn restrict_dir_of(dir: &Path, own_names: &[&str]) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name != "lost+found" && own_names.iter().all(|own| name != *own) {
            return Ok(());
        }
    }
    restrict(dir)
}

/// Logs an error of [`restrict`] or [`restrict_dir`] as a warning, because the daemon works without the
/// change.
pub fn warn(restricted: io::Result<()>) {
    if let Err(error) = restricted {
        tracing::warn!(%error, "other users of this machine may have access to a file of the daemon; its owner should run chmod go= on it");
    }
}

/// Returns the path with its permission bits if users other than its owner have permissions on it. Returns
/// `None` if they have none, or if the path does not exist.
pub fn exposed(path: &Path) -> Option<Exposed> {
    unix::exposed(path)
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};

    use super::{Exposed, File, Path, fs, io};

    /// Permission bits of the group and of all other users.
    const OTHERS: u32 = 0o077;

    pub fn restrict_dir(dir: &Path) -> io::Result<()> {
        // The operator may have configured a symbolic link to the directory, so this one link is followed.
        let dir = &fs::canonicalize(dir).map_err(|error| named(dir, &error))?;
        // The directory comes first: others then cannot reach the files whose modes are still to be changed.
        let mut result = restrict(dir);
        for entry in fs::read_dir(dir).map_err(|error| named(dir, &error))? {
            let entry = entry.map_err(|error| named(dir, &error))?;
            // DirEntry::metadata does not follow symbolic links.
            let is_exposed =
                entry.metadata().is_ok_and(|found| found.is_file() && found.mode() & OTHERS != 0);
            if is_exposed {
                result = result.and(restrict(&entry.path()));
            }
        }
        result
    }

    pub fn restrict(path: &Path) -> io::Result<()> {
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found.map_err(|error| named(path, &error))?,
        };
        let is_private = metadata.mode() & OTHERS == 0;
        if is_private || !(metadata.is_dir() || metadata.is_file()) {
            return Ok(());
        }
        // The mode is changed through the open file: others may have replaced the path by a symbolic link
        // since it was checked.
        let open = || {
            let file =
                File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
            let mut permissions = file.metadata()?.permissions();
            permissions.set_mode(permissions.mode() & 0o7777 & !OTHERS);
            file.set_permissions(permissions)
        };
        open().map_err(|error| named(path, &error))
    }

    pub fn exposed(path: &Path) -> Option<Exposed> {
        let metadata = fs::metadata(path).ok()?;
        let mode = metadata.mode() & 0o7777;
        // A new file belongs to the process's effective user.
        let is_ours = tempfile::tempfile()
            .and_then(|file| file.metadata())
            .is_ok_and(|new| new.uid() == metadata.uid());
        (mode & OTHERS != 0).then(|| Exposed { path: path.to_owned(), mode, is_ours })
    }

    fn named(path: &Path, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    }
}

#[cfg(not(unix))]
mod unix {
    use super::{Exposed, Path, io};

    pub fn restrict_dir(_: &Path) -> io::Result<()> {
        Ok(())
    }

    pub fn restrict(_: &Path) -> io::Result<()> {
        Ok(())
    }

    pub fn exposed(_: &Path) -> Option<Exposed> {
        None
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is this user's");
    }

    #[test]
    fn others_lose_access_to_a_directory_and_its_files_but_links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, outside) = (folder.path().join("store"), folder.path().join("outside"));
        fs::create_dir_all(store.join("a")).expect("folders");
        for file in ["one", "two", "a/three"] {
            fs::write(store.join(file), "text").expect("a file");
            set(&store.join(file), 0o664);
        }
        fs::write(&outside, "text").expect("a file");
        set(&outside, 0o644);
        symlink(&outside, store.join("link")).expect("a link");
        set(&store.join("a"), 0o755);
        set(&store, 0o2775);
        assert_eq!(exposed(&store), Some(Exposed { path: store.clone(), mode: 0o2775, is_ours: true }));
        let linked = folder.path().join("linked");
        symlink(&store, &linked).expect("a link");
        restrict_dir(&linked).expect("all is this user's");
        let found = ["", "one", "two", "link", "a", "a/three"].map(|path| mode(&store.join(path)));
        assert_eq!(found, [0o2700, 0o600, 0o600, 0o644, 0o755, 0o664]);
        assert_eq!(exposed(&store), None);
        for file in ["one", "two", "a/three"] {
            set(&store.join(file), 0o644);
        }
        restrict_dir(&store).expect("all is this user's");
        let found = ["one", "two", "link", "a/three"].map(|path| mode(&store.join(path)));
        assert_eq!(found, [0o600, 0o600, 0o644, 0o644], "files in a directory that is already private");
        set(&store.join("a/three"), 0o664);
        restrict(&store.join("link")).expect("it is left");
        assert_eq!(mode(&outside), 0o644);
        restrict(&store.join("a")).expect("this user's");
        assert_eq!((mode(&store.join("a")), mode(&store.join("a/three"))), (0o700, 0o664));
        restrict(&folder.path().join("none")).expect("there is nothing to take away");
        assert!(
            restrict_dir(&folder.path().join("none")).is_err_and(|error| error.to_string().contains("none"))
        );
    }

    #[test]
    fn new_directories_and_files_are_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("a/b");
        create_dir_all(&dir).expect("folders");
        let file = dir.join("file");
        open_options().write(true).create(true).truncate(true).open(&file).expect("a file");
        assert_eq!([mode(&folder.path().join("a")), mode(&dir), mode(&file)], [0o700, 0o700, 0o600]);
        set(&dir, 0o755);
        create_dir_all(&dir).expect("it is there");
        assert_eq!(mode(&dir), 0o755, "a directory that exists keeps its mode");
    }
}
