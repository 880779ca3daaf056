//! Authenticates clients by API keys from a file that is reloaded when it changes, and limits the rate of each key. The module knows
//! nothing of transports, or of what a request asks for.
//!
//! Keys are looked up by their SHA-256. A client that measures how long a lookup takes learns only about hashes of keys that it made up.
//! That does not lead to a valid key: keys are random, and the hash of one key says nothing about another.

mod file;
mod issue;
mod keys;
mod watched;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use metrics::counter;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use thresher_core::domain::Tenant;

pub use self::file::{KeyFileProblem, KeysError};
pub use self::issue::{IssueError, IssuedKey, KEY_PREFIX, NewKey};
use self::keys::{Key, Keys};
pub use self::watched::{LOOK_AGAIN, Watched};

/// `[access]`: API keys and tenants.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSettings {
    /// TOML file with the keys, reloaded when it changes. Empty: no key is needed, and everybody is the default tenant.
    pub keys_file: PathBuf,
}

/// The most tenants that a key file may name. Each has a registry, a registry cache and stores of recent requests in memory.
pub const TENANT_COUNT_MAX: usize = 256;

/// Admits clients by their keys, or everybody if there is no key file. Clones share the keys.
#[derive(Clone)]
pub struct Access(Option<Arc<KeyedAccess>>);

struct KeyedAccess {
    file: KeyFile,
    keys: RwLock<Arc<Keys>>,
}

/// The key file, and how many tenants it may name.
struct KeyFile {
    path: PathBuf,
    tenant_count_max: usize,
}

/// An admitted client: its key and its tenant.
#[derive(Clone, Default)]
pub struct Caller {
    key: Option<Arc<Key>>,
    tenant: Tenant,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Denied {
    #[error(
        "a key is required; send it in the header \"Authorization: Bearer thr_...\" or \"x-thresher-key: thr_...\""
    )]
    Missing,
    #[error("this key is not valid here; check it, or ask the operator for another one")]
    Unknown,
    #[error("the key {name:?} has been revoked")]
    Revoked {
        /// The name of the key in the file.
        name: Arc<str>,
    },
    #[error("the key {name:?} has used up its {setting}; repeat the request in {} s", seconds(*retry_after))]
    RateLimited {
        /// The name of the key in the file.
        name: Arc<str>,
        /// The limit: `requests_per_minute` or `tokens_per_minute`.
        setting: &'static str,
        /// The time until all limits of the key allow a request again.
        retry_after: Duration,
    },
}

/// `time` in whole seconds, rounded up, and at least 1.
fn seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

impl Denied {
    /// Returns the whole seconds after which the request can be repeated, if waiting helps.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::RateLimited { retry_after, .. } => Some(seconds(*retry_after)),
            _ => None,
        }
    }

    /// Returns the name of the key, if the file has the key.
    pub fn name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Missing | Self::Unknown => None,
            Self::Revoked { name } | Self::RateLimited { name, .. } => Some(name),
        }
    }
}

impl Access {
    /// Creates an access that admits everybody, as the default tenant.
    pub fn open_to_all() -> Self {
        Self(None)
    }

    /// Reads the key file that `settings` name. Also returns the watch for changes of that file, if there is one: see [`Self::refresh`].
    ///
    /// # Errors
    /// Fails if the key file cannot be read or is invalid.
    pub fn open(settings: &AccessSettings) -> Result<(Self, Option<Watched>), KeysError> {
        Self::open_within(settings, TENANT_COUNT_MAX)
    }

    /// Reads the key file as [`Self::open`] does, with another limit on the number of tenants.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_within(
        settings: &AccessSettings,
        tenant_count_max: usize,
    ) -> Result<(Self, Option<Watched>), KeysError> {
        if settings.keys_file.as_os_str().is_empty() {
            return Ok((Self::open_to_all(), None));
        }
        let mut watched = Watched::new([settings.keys_file.clone()]);
        let bytes = watched.read().map_err(|cause| KeysError::read(&settings.keys_file, cause))?.remove(0);
        let file = KeyFile { path: settings.keys_file.clone(), tenant_count_max };
        let keys = file.parse(&bytes, None)?;
        let (count, tenants) = (keys.len(), keys.tenants().len());
        let keyed = KeyedAccess { file, keys: RwLock::new(Arc::new(keys)) };
        tracing::info!(keys = count, tenants, path = %settings.keys_file.display(), "key file loaded");
        if count == 0 {
            tracing::warn!(
                "access.keys_file has no key, so every request is refused; add one with `thresher key new`"
            );
        }
        Ok((Self(Some(Arc::new(keyed))), Some(watched)))
    }

    /// Admits a client that presents a valid key, and takes one request from the key's rate limit.
    ///
    /// # Errors
    /// Refuses if the key is missing, unknown or revoked, or if it has used up a rate limit at `now`.
    pub fn admit(&self, presented: Option<&str>, now: Instant) -> Result<Caller, Denied> {
        let Some(keyed) = &self.0 else { return Ok(Caller::default()) };
        let key = keyed.keys().find(presented.ok_or(Denied::Missing)?).ok_or(Denied::Unknown)?;
        key.admit(now)?;
        let tenant = key.tenant().clone();
        Ok(Caller { key: Some(key), tenant })
    }

    /// Records the metric that says which tenant each key belongs to. It is called once the metrics have a recorder.
    pub fn record_keys(&self) {
        if let Some(keyed) = &self.0 {
            keyed.keys().record(1.0);
        }
    }

    pub fn is_keyed(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether more than one tenant has a key that is not revoked.
    pub fn is_shared(&self) -> bool {
        self.0.as_ref().is_some_and(|keyed| keyed.keys().are_shared())
    }

    /// Returns all tenants that have keys, including revoked ones; none if no key is needed.
    pub fn tenants(&self) -> BTreeSet<Tenant> {
        self.0.as_ref().map(|keyed| keyed.keys().tenants()).unwrap_or_default()
    }

    /// Loads the key file again if `watched` finds a change. Calls `prepare` with the tenants of the new keys before any of these keys is
    /// admitted. If the file cannot be read or is invalid, the earlier keys stay valid and the log says why.
    pub fn refresh(&self, watched: &mut Watched, prepare: impl FnOnce(&BTreeSet<Tenant>)) {
        let (Some(keyed), Some(found)) = (&self.0, watched.changed()) else { return };
        let path = &keyed.file.path;
        let read = found.map_err(|cause| KeysError::read(path, cause));
        let before = keyed.keys();
        let keys = read.and_then(|bytes| keyed.file.parse(&bytes[0], Some(&before)));
        let outcome = match keys {
            Ok(keys) => {
                let tenants = keys.tenants();
                prepare(&tenants);
                tracing::info!(keys = keys.len(), tenants = tenants.len(), "key file reloaded");
                before.record(0.0);
                keys.record(1.0);
                *keyed.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
                "ok"
            }
            Err(error) => {
                tracing::error!(%error, "the changed key file cannot be used; the earlier keys stay valid");
                "failed"
            }
        };
        counter!("keys_reloads_total", "outcome" => outcome).increment(1);
    }
}

impl KeyedAccess {
    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KeyFile {
    /// Parses the bytes of the file. Keys that were there `before` keep what they have used of their rates.
    fn parse(&self, bytes: &[u8], before: Option<&Keys>) -> Result<Keys, KeysError> {
        let entries =
            file::parse(bytes, self.tenant_count_max).map_err(|problem| problem.in_file(&self.path))?;
        Ok(Keys::new(entries, before))
    }
}

impl Caller {
    /// Returns the name of the client's key in the file, or `None` if no key is needed.
    pub fn key_name(&self) -> Option<&Arc<str>> {
        self.key.as_ref().map(|key| key.name())
    }

    /// Returns the tenant whose data the client works with.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns whether the middleware compresses the client's requests by default.
    pub fn compresses_by_default(&self) -> bool {
        self.key.as_ref().is_some_and(|key| key.middleware())
    }

    /// Takes `tokens`, which the model has read for the client, from the key's token limit. The key goes into debt if fewer are left: the cost
    /// of work is known only when it is done.
    pub fn charge(&self, tokens: usize, now: Instant) {
        let Some(key) = self.key.as_ref().filter(|_| tokens > 0) else { return };
        key.charge(tokens, now);
        counter!("key_tokens_total", "key" => key.name().to_string()).increment(tokens as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// An entry of a key file; the key of `name` is `thr_<name>`.
    fn entry(name: &str, more: &str) -> String {
        let sha256 = hex::encode(keys::sha256(&format!("thr_{name}")));
        format!("[[key]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\n{more}\n")
    }

    fn open(path: &Path, text: &str) -> (Access, Watched) {
        std::fs::write(path, text).expect("written");
        let settings = AccessSettings { keys_file: path.to_owned() };
        let (access, watched) = Access::open(&settings).expect("valid");
        (access, watched.expect("a file to watch"))
    }

    fn codes(access: &Access, keys: &[&str], now: Instant) -> Vec<&'static str> {
        let code = |key: &&str| match access.admit(Some(key), now) {
            Ok(_) => "ok",
            Err(Denied::Missing) => "key_missing",
            Err(Denied::Unknown) => "key_unknown",
            Err(Denied::Revoked { .. }) => "key_revoked",
            Err(Denied::RateLimited { .. }) => "rate_limited",
        };
        keys.iter().map(code).collect()
    }

    #[test]
    fn without_a_key_file_everybody_is_the_default_tenant() {
        let (access, watched) = Access::open(&AccessSettings::default()).expect("nothing to read");
        assert!(watched.is_none() && !access.is_keyed());
        let caller = access.admit(None, Instant::now()).expect("admitted");
        assert!(
            caller.tenant().is_default() && caller.key_name().is_none() && !caller.compresses_by_default()
        );
    }

    #[test]
    fn a_changed_file_is_loaded_unless_it_is_invalid() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys.toml");
        let (access, mut watched) = open(&path, &entry("a", "requests_per_minute = 2"));
        let now = Instant::now();
        let look = |watched: &mut Watched, text: &str| {
            std::fs::write(&path, text).expect("written");
            let mut prepared = None;
            access.refresh(watched, |tenants| prepared = Some(tenants.len()));
            prepared
        };
        assert_eq!(codes(&access, &["thr_a", "thr_b"], now), ["ok", "key_unknown"]);
        let two = entry("a", "requests_per_minute = 2") + &entry("b", "tenant = \"x\"");
        assert_eq!(look(&mut watched, &two), Some(2));
        assert_eq!(look(&mut watched, &two), None, "no change");
        let left = codes(&access, &["thr_a", "thr_a", "thr_b"], now);
        assert_eq!(left, ["ok", "rate_limited", "ok"], "earlier requests still count");
        assert_eq!(look(&mut watched, "[[key]]\nname = 1"), None, "an invalid file");
        assert_eq!(codes(&access, &["thr_b"], now), ["ok"]);
        let gone = std::fs::remove_file(&path);
        access.refresh(&mut watched, |_| panic!("nothing to prepare"));
        assert!(gone.is_ok() && codes(&access, &["thr_b"], now) == ["ok"]);
        look(&mut watched, &entry("a", "revoked = true"));
        assert_eq!(codes(&access, &["thr_a", "thr_b"], now), ["key_revoked", "key_unknown"]);
        look(&mut watched, "");
        assert_eq!(codes(&access, &["thr_a"], now), ["key_unknown"], "an empty file admits nobody");
    }

    #[test]
    fn a_rate_limit_says_when_to_repeat_the_request() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = entry("a", "requests_per_minute = 2\ntokens_per_minute = 60");
        let (access, _) = open(&dir.path().join("keys.toml"), &text);
        let start = Instant::now();
        let retry = |after_ms: u64| {
            let denied = access.admit(Some("thr_a"), start + Duration::from_millis(after_ms)).err();
            denied.map(|denied| (denied.retry_after_s(), denied.to_string()))
        };
        let caller = access.admit(Some("thr_a"), start).expect("the first");
        caller.charge(60, start);
        assert_eq!(retry(0), None, "an empty bucket is not in debt");
        let (after, message) = retry(100).expect("two a minute");
        assert!(
            after == Some(30) && message.contains("requests_per_minute; repeat the request in 30 s"),
            "{message}"
        );
        caller.charge(40, start);
        let (after, message) = retry(0).expect("in debt, and two a minute");
        assert!(after == Some(40) && message.contains("tokens_per_minute"), "{message}");
        assert_eq!(retry(39_001).expect("still in debt").0, Some(1));
        assert_eq!(retry(40_000), None);
    }

    #[test]
    fn no_error_message_holds_a_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys.toml");
        std::fs::write(&path, "[[key]]\nname = \"a\"\nsha256 = \"thr_secret\"").expect("written");
        let settings = AccessSettings { keys_file: path.clone() };
        let message = Access::open(&settings).err().expect("no hash").to_string();
        assert!(message.starts_with(&format!("{}: key[0].sha256: ", path.display())), "{message}");
        assert!(!message.contains("thr_"), "{message}");
    }
}
