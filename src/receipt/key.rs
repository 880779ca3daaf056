//! The key that receipts are signed with: Ed25519, in a file of this daemon's alone.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, ED25519_PUBLIC_KEY_LEN, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use thiserror::Error;
use thresher_core::private_files;

/// The first line of a file with a private key.
pub const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const END: &str = "-----END PRIVATE KEY-----";
const LINE_LETTERS: usize = 64;

/// A private key.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
}

/// Why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("cannot use the key of receipts {}: {cause}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The file holds something else.
    #[error("{} holds no Ed25519 key as PKCS#8 in PEM; take it away to have a new one made", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
    },
    /// The system gave no random numbers.
    #[error("the system gives no random numbers for a key of receipts")]
    Random,
}

impl SigningKey {
    /// The key in a file; a new one where there is none. The file is made readable by its owner alone, where this user owns it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn at(path: &Path) -> Result<Self, KeyError> {
        let failed = |cause| KeyError::File { path: path.to_owned(), cause };
        match fs::read_to_string(path) {
            Ok(pem) => {
                // A mounted secret is another user's, or a link: it stays as it is.
                let _refused = private_files::restrict(path);
                if let (Some(dir), Some(name)) =
                    (path.parent(), path.file_name().and_then(|name| name.to_str()))
                {
                    let _refused = private_files::restrict_dir_of(dir, &[name]);
                }
                warn_of_readers(path);
                Self::from_pem(&pem).ok_or_else(|| KeyError::Content { path: path.to_owned() })
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                let key = Self::generate()?;
                key.save(path).map_err(failed)?;
                // Another process may have been first.
                let pem = fs::read_to_string(path).map_err(failed)?;
                Self::from_pem(&pem).ok_or_else(|| KeyError::Content { path: path.to_owned() })
            }
            Err(cause) => Err(failed(cause)),
        }
    }

    /// A new one.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<Self, KeyError> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
        Self::from_pkcs8(pkcs8.as_ref()).ok_or(KeyError::Random)
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        // Version 1, as other tools write it, has no public key beside the private one.
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).ok()?;
        Some(Self { pair, pkcs8: pkcs8.to_vec() })
    }

    fn from_pem(pem: &str) -> Option<Self> {
        let body = pem.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
        let letters: String = body.split_whitespace().collect();
        Self::from_pkcs8(&BASE64.decode(letters).ok()?)
    }

    /// Written beside and linked into place, so that no half a key is ever read and none is replaced.
    fn save(&self, path: &Path) -> io::Result<()> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        private_files::create_dir_all(dir)?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        writeln!(file, "{BEGIN}")?;
        for line in BASE64.encode(&self.pkcs8).as_bytes().chunks(LINE_LETTERS) {
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

    /// Whether a text can be a public key.
    pub fn is_public(text: &str) -> bool {
        BASE64.decode(text.trim()).is_ok_and(|key| key.len() == ED25519_PUBLIC_KEY_LEN)
    }

    /// The public key, base64.
    pub fn public(&self) -> String {
        BASE64.encode(self.pair.public_key().as_ref())
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

pub(super) fn verifies(public_key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public_key).verify(message, signature).is_ok()
}

/// Whoever can read the key can sign as this daemon. The daemon logs it and goes on: a mounted secret may be readable by a group that
/// is meant to read it.
fn warn_of_readers(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(path).map_or(0, |file| file.permissions().mode());
        if mode & 0o077 != 0 {
            tracing::warn!(path = %path.display(), mode = format!("{:o}", mode & 0o777), "others than its owner can use the key of receipts");
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept_to_its_owner() {
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
            assert_eq!(mode(), 0o755, "it may be somebody else's");
            fs::remove_file(keys.join("other")).expect("it was there");
            SigningKey::at(&path).expect("the same");
            assert_eq!(mode(), 0o700);
        }
        fs::write(&path, "no key").expect("written");
        assert!(matches!(SigningKey::at(&path), Err(KeyError::Content { .. })));
    }
}
