//! Why a disk tier cannot be opened, and what to do about it.
//! Knows nothing of blocks: once a tier is open, its troubles are counted and logged, never errors.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why the disk tier cannot be opened.
#[derive(Debug, Error)]
pub enum LocalError {
    /// The directory is not there and cannot be made.
    #[error(
        "cannot create {} (blocks.dir): {source}; create it for this user, name another, or set blocks.dir to \"\" for no disk tier",
        path.display()
    )]
    Create {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The directory is there and cannot be worked with.
    #[error(
        "cannot {action} {}: {source}; this user must be able to write in blocks.dir: change its owner, name another, or set it to \"\" for no disk tier",
        path.display()
    )]
    Access {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{} (blocks.dir) is in use by another process: give every daemon a directory of its own", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It is somebody else's.
    #[error("{} (blocks.dir) holds {found:?}, which is no block store's: name an empty or a new directory", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// The system gives no thread.
    #[error("cannot start the disk tier's {thread} thread: {reason}; raise the limit on threads")]
    Thread {
        /// Which one.
        thread: &'static str,
        /// What the system said.
        reason: String,
    },
}
