//! Creates keys: the key itself, which is shown once, and the entry for the key file, which has only the hash of the key.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;
use thresher_core::domain::Tenant;

use super::file::{self, KeyEntry, KeyFile, KeyFileProblem, NAME_RULE, TENANT_RULE};
use super::keys::sha256;

/// The prefix of every key, by which people and secret scanners recognize it.
pub const KEY_PREFIX: &str = "thr_";
/// The random bytes of a key. They are too many to guess, so a fast hash protects a key as well as a slow one.
const RANDOM_BYTES: usize = 32;

/// The properties of a key to be issued, as the entry of the key file has them (`KeyEntry`).
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    pub name: String,
    pub tenant: String,
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub middleware: bool,
}

pub struct IssuedKey {
    /// The key itself. Nothing else holds it.
    pub key: String,
    /// The entry for the key file, as TOML.
    pub entry: String,
}

/// Why a key cannot be issued, or not be added to a file.
#[derive(Debug, Error)]
pub enum IssueError {
    #[error("{0:?} is not a valid name of a key; {NAME_RULE}")]
    Name(String),
    #[error("{0:?} is not a valid tenant; {TENANT_RULE}")]
    Tenant(String),
    #[error("the system provides no random numbers for a key")]
    Random,
    #[error("cannot use the key file {}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("{}: {problem}; nothing was added", path.display())]
    Content { path: PathBuf, problem: KeyFileProblem },
}

impl NewKey {
    /// Creates the key with random bytes of the operating system.
    ///
    /// # Errors
    /// Fails if the name of the key or of the tenant is invalid, or if the system provides no random numbers.
    pub fn issue(self) -> Result<IssuedKey, IssueError> {
        if !file::is_name(&self.name) {
            return Err(IssueError::Name(self.name));
        }
        if Tenant::new(&self.tenant).is_none() {
            return Err(IssueError::Tenant(self.tenant));
        }
        let mut random = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| IssueError::Random)?;
        let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
        let sha256 = hex::encode(sha256(&key));
        let Self { name, tenant, requests_per_minute, tokens_per_minute, middleware } = self;
        let entry = KeyEntry {
            name,
            tenant,
            sha256,
            requests_per_minute,
            tokens_per_minute,
            middleware,
            revoked: false,
        };
        let entry = toml::to_string(&KeyFile { key: vec![entry] }).expect("an entry is TOML");
        Ok(IssuedKey { key, entry })
    }
}

impl IssuedKey {
    /// Appends the entry to the key file at `path`. The file is replaced atomically; its other content, comments included, does not change. A
    /// new file is readable by its owner only.
    ///
    /// # Errors
    /// Fails if the file cannot be read or written, or if it is invalid or would be with the entry. The file is then unchanged.
    pub fn add_to(&self, path: &Path) -> Result<(), IssueError> {
        let failed = |cause| IssueError::File { path: path.to_owned(), cause };
        // The target of a symbolic link is replaced, not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let before = match fs::read(&target) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => return Err(failed(cause)),
        };
        let blank: &[u8] = match &before[..] {
            [] => b"",
            [.., b'\n'] => b"\n",
            _ => b"\n\n",
        };
        let after = [&before, blank, self.entry.as_bytes()].concat();
        // The number of tenants is the daemon's limit, not the file's.
        file::parse(&after, usize::MAX)
            .map_err(|problem| IssueError::Content { path: path.to_owned(), problem })?;
        replace(&target, &after).map_err(failed)
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A new file is readable by its owner only. An existing file keeps the permissions of its group, but not those of others.
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    if let Ok(before) = fs::metadata(path) {
        file.as_file().set_permissions(without_others(before.permissions()))?;
    }
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(unix)]
fn without_others(mut permissions: fs::Permissions) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt as _;
    permissions.set_mode(permissions.mode() & 0o770);
    permissions
}

#[cfg(not(unix))]
fn without_others(permissions: fs::Permissions) -> fs::Permissions {
    permissions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str) -> NewKey {
        NewKey { name: name.to_owned(), ..NewKey::default() }
    }

    #[test]
    fn an_entry_holds_only_the_hash_of_the_key() {
        let new_key = NewKey {
            tenant: "acme".to_owned(),
            requests_per_minute: Some(60),
            tokens_per_minute: Some(1_000),
            middleware: true,
            ..new("web")
        };
        let issued = new_key.issue().expect("a key");
        assert!(issued.key.starts_with(KEY_PREFIX) && issued.key.len() == 47, "{}", issued.key.len());
        assert!(!issued.entry.contains(&issued.key[KEY_PREFIX.len()..]));
        let read = file::parse(issued.entry.as_bytes(), 1).expect("it reads");
        assert_eq!(read[0].sha256, sha256(&issued.key));
        assert_eq!((read[0].tenant.name(), read[0].entry.requests_per_minute), ("acme", Some(60)));
        assert!(read[0].entry.middleware);
        assert_ne!(new("web").issue().expect("another").key, issued.key);
        assert!(matches!(new("a b").issue(), Err(IssueError::Name(_))));
        let tenant = NewKey { tenant: "A".to_owned(), ..new("a") };
        assert!(matches!(tenant.issue(), Err(IssueError::Tenant(_))));
    }

    #[test]
    fn an_entry_is_appended_and_the_rest_of_the_file_does_not_change() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys.toml");
        new("a").issue().expect("a key").add_to(&path).expect("a new file");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        }
        let commented = fs::read_to_string(&path).expect("text") + "# The second";
        fs::write(&path, &commented).expect("written");
        let link = dir.path().join("link.toml");
        #[cfg(unix)]
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        new("b").issue().expect("a key").add_to(&link).expect("added");
        let after = fs::read_to_string(&path).expect("text");
        assert!(after.starts_with(&commented), "{after}");
        assert_eq!(file::parse(after.as_bytes(), 1).expect("it reads").len(), 2);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o640);
            assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        }
        let twice = new("a").issue().expect("a key").add_to(&path);
        assert!(matches!(twice, Err(IssueError::Content { .. })), "{twice:?}");
        assert_eq!(fs::read_to_string(&path).expect("text"), after, "the file is unchanged");
        fs::write(&path, "name = thr_").expect("written");
        let broken = new("c").issue().expect("a key").add_to(&path).expect_err("broken").to_string();
        assert!(broken.contains("nothing was added"), "{broken}");
    }
}
