//! Makes keys: the key itself, which is shown once, and the entry with its hash, which is kept.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use thiserror::Error;
use thresher_core::domain::Tenant;

use super::file::{self, Entry, File, Misplaced, NAME_RULE, TENANT_RULE};
use super::keys::sha256;

/// What every key begins with: so that scanners for secrets know it, and people.
pub const KEY_PREFIX: &str = "thr_";
/// More than anybody guesses: a plain hash of it is as good as a slow one.
const RANDOM_BYTES: usize = 32;

/// What a new key shall be.
#[derive(Debug, Clone, Default)]
pub struct NewKey {
    /// For logs and metrics.
    pub name: String,
    /// Whose data it works with; empty: the default tenant's.
    pub tenant: String,
    /// Requests that a minute brings; none: as many as come.
    pub requests_per_minute: Option<u64>,
    /// Tokens of the model, likewise.
    pub tokens_per_minute: Option<u64>,
    /// Whether the middleware compresses its requests without being asked.
    pub middleware: bool,
}

/// A new key.
pub struct Issued {
    /// The key. It is nowhere else.
    pub key: String,
    /// What stands for it in the file of keys.
    pub entry: String,
}

/// Why there is no new key.
#[derive(Debug, Error)]
pub enum IssueError {
    /// A key cannot be called so.
    #[error("{0:?} is no name of a key: {NAME_RULE}")]
    Name(String),
    /// A tenant cannot be called so.
    #[error("{0:?} is no name of a tenant: {TENANT_RULE}")]
    Tenant(String),
    /// The system gave no random numbers.
    #[error("the system gives no random numbers for a key")]
    Random,
    /// The file cannot be read or written.
    #[error("cannot use the file of keys {}: {cause}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The file would be wrong with it, or is.
    #[error("{}: {at}; nothing was added", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it, and where.
        at: Misplaced,
    },
}

impl NewKey {
    /// Makes it.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue(self) -> Result<Issued, IssueError> {
        if !file::is_name(&self.name) {
            return Err(IssueError::Name(self.name));
        }
        if Tenant::new(&self.tenant).is_none() {
            return Err(IssueError::Tenant(self.tenant));
        }
        let mut random = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| IssueError::Random)?;
        let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
        let sha256 = sha256(&key).iter().map(|byte| format!("{byte:02x}")).collect();
        let Self { name, tenant, requests_per_minute, tokens_per_minute, middleware } = self;
        let entry = Entry {
            name,
            tenant,
            sha256,
            requests_per_minute,
            tokens_per_minute,
            middleware,
            revoked: false,
        };
        let entry = toml::to_string(&File { key: vec![entry] }).expect("texts and numbers are TOML");
        Ok(Issued { key, entry })
    }
}

impl Issued {
    /// Adds its entry to a file, which is then replaced as a whole: who reads it sees it with the entry or without. What stands
    /// there stays as it is, comments too; a new file is its owner's alone to read.
    ///
    /// # Errors
    /// [`IssueError`]; then the file is as it was.
    pub fn add_to(&self, path: &Path) -> Result<(), IssueError> {
        let failed = |cause| IssueError::File { path: path.to_owned(), cause };
        // Where a link leads, so that it goes on leading there.
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
        // How many tenants there may be, the daemon says.
        file::parse(&after, usize::MAX).map_err(|at| IssueError::Content { path: path.to_owned(), at })?;
        replace(&target, &after).map_err(failed)
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A new file is readable by its owner alone. One that is there keeps the rights of its group, but not those of everybody.
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    if let Ok(before) = fs::metadata(path) {
        file.as_file().set_permissions(without_everybody(before.permissions()))?;
    }
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(unix)]
fn without_everybody(mut permissions: fs::Permissions) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt as _;
    permissions.set_mode(permissions.mode() & 0o770);
    permissions
}

#[cfg(not(unix))]
fn without_everybody(permissions: fs::Permissions) -> fs::Permissions {
    permissions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str) -> NewKey {
        NewKey { name: name.to_owned(), ..NewKey::default() }
    }

    #[test]
    fn what_is_issued_is_known_by_its_hash_alone() {
        let asked = NewKey {
            tenant: "acme".to_owned(),
            requests_per_minute: Some(60),
            tokens_per_minute: Some(1_000),
            middleware: true,
            ..new("web")
        };
        let issued = asked.issue().expect("a key");
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
    fn entries_are_added_and_what_stands_there_stays() {
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
        assert_eq!(fs::read_to_string(&path).expect("text"), after, "it is as it was");
        fs::write(&path, "name = thr_").expect("written");
        let broken = new("c").issue().expect("a key").add_to(&path).expect_err("broken").to_string();
        assert!(broken.contains("nothing was added"), "{broken}");
    }
}
