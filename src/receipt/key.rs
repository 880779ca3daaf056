//! The Ed25519 key that signs receipts, and its file.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, VerifyingKey};
use ring::rand::SystemRandom;
use ring::signature::{ED25519_PUBLIC_KEY_LEN, Ed25519KeyPair, KeyPair as _};
use thiserror::Error;
use thresher_core::private_files;

/// The first line of a key file (PEM).
pub const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
const LINE_BYTES: usize = 64;

pub struct SigningKey {
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
}

#[derive(Debug, Error)]
pub enum KeyError {
    #[error("cannot read or write the key file {} (receipts.key_file): {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error(
        "{} (receipts.key_file) is not an Ed25519 key as PKCS#8 in PEM; remove the file, and the daemon creates a new key",
        path.display()
    )]
    Content { path: PathBuf },
    #[error("the system provides no random numbers for a key (receipts.key_file)")]
    Random,
}

impl SigningKey {
    /// Loads the key from the file at `path`, or creates the file with a new key. If this user owns the file, it is made readable by its
    /// owner only.
    ///
    /// # Errors
    /// Fails if the file cannot be read or created, if it is not an Ed25519 key, or if the system provides no random numbers.
    pub fn at(path: &Path) -> Result<Self, KeyError> {
        let failed = |cause| KeyError::File { path: path.to_owned(), cause };
        match fs::read_to_string(path) {
            Ok(pem) => {
                // A mounted secret belongs to another user, or is a symbolic link: its permissions are left alone.
                let _refused = private_files::restrict(path);
                if let (Some(dir), Some(name)) =
                    (path.parent(), path.file_name().and_then(|name| name.to_str()))
                {
                    let _refused = private_files::restrict_dir_of(dir, &[name]);
                }
                warn_if_readable_by_others(path);
                Self::from_pem(&pem).ok_or_else(|| KeyError::Content { path: path.to_owned() })
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                let key = Self::generate()?;
                key.save(path).map_err(failed)?;
                // Read back, because another process may have created the file first.
                let pem = fs::read_to_string(path).map_err(failed)?;
                Self::from_pem(&pem).ok_or_else(|| KeyError::Content { path: path.to_owned() })
            }
            Err(cause) => Err(failed(cause)),
        }
    }

    /// Creates a new key.
    ///
    /// # Errors
    /// Fails if the system provides no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
        Self::from_pkcs8(pkcs8.as_ref()).ok_or(KeyError::Random)
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        // Version 1 of PKCS#8, which other tools write, has no public key to check the private key against.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).ok()?;
        Some(Self { pair, pkcs8: pkcs8.to_vec() })
    }

    fn from_pem(pem: &str) -> Option<Self> {
        let body = pem.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
        let base64: String = body.split_whitespace().collect();
        Self::from_pkcs8(&BASE64.decode(base64).ok()?)
    }

    /// Writes a temporary file and links it to `path`, so that an incomplete key is never read and an existing key never replaced.
    fn save(&self, path: &Path) -> io::Result<()> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        private_files::create_dir_all(dir)?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        writeln!(file, "{BEGIN}")?;
        for line in BASE64.encode(&self.pkcs8).as_bytes().chunks(LINE_BYTES) {
            file.write_all(line)?;
            writeln!(file)?;
        }
        writeln!(file, "{END}")?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => Ok(()),
        }
    }

    /// Returns whether `text` has the form of a public key: base64 of 32 bytes.
    pub fn is_public(text: &str) -> bool {
        BASE64.decode(text.trim()).is_ok_and(|key| key.len() == ED25519_PUBLIC_KEY_LEN)
    }

    /// Returns the public key as base64.
    pub fn public(&self) -> String {
        BASE64.encode(self.pair.public_key().as_ref())
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

pub(super) fn verifies(public_key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    // Strictly: with a key of small order, one signature would hold for every message.
    let verified = || {
        let key = VerifyingKey::from_bytes(public_key.try_into().ok()?).ok()?;
        key.verify_strict(message, &Signature::from_slice(signature).ok()?).ok()
    };
    verified().is_some()
}

/// Logs a warning if other users can read or write the key file: whoever can read the key can sign as this daemon. It is no error, because
/// a mounted secret may be readable by a group on purpose.
fn warn_if_readable_by_others(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode());
        if mode & 0o077 != 0 {
            tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777), "other users can read or write the key file (receipts.key_file)");
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_created_once_and_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys/receipts.pem");
        let made = SigningKey::at(&path).expect("a new one");
        assert_eq!(SigningKey::at(&path).expect("the same").public(), made.public());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("this user's");
            assert_eq!(SigningKey::at(&path).expect("the same").public(), made.public());
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
            let keys = dir.path().join("keys");
            let mode = || fs::metadata(&keys).expect("a directory").permissions().mode() & 0o777;
            assert_eq!(mode(), 0o700);
            fs::set_permissions(&keys, fs::Permissions::from_mode(0o755)).expect("this user's");
            fs::write(keys.join("other"), "").expect("written");
            SigningKey::at(&path).expect("the same");
            assert_eq!(mode(), 0o755, "the folder has other files");
            fs::remove_file(keys.join("other")).expect("it was there");
            SigningKey::at(&path).expect("the same");
            assert_eq!(mode(), 0o700);
        }
        fs::write(&path, "no key").expect("written");
        assert!(matches!(SigningKey::at(&path), Err(KeyError::Content { .. })));
    }
}
