//! Who may ask, as whom, and how much: keys from a file that is read again when it changes, and what each of them has left.
//! Knows nothing of transports, or of what is asked.
//!
//! Keys are looked up by their SHA-256. Who measures how long a look takes learns something of hashes that they made themselves,
//! which leads to no key: keys are random, and hashes of others say nothing of them.

mod bucket;
mod file;
mod issue;
mod keys;
mod settings;
mod watched;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use metrics::counter;
use thiserror::Error;
use thresher_core::domain::Tenant;

pub use self::file::{KeysError, Misplaced};
pub use self::issue::{IssueError, Issued, KEY_PREFIX, NewKey};
use self::keys::{Key, Keys};
pub use self::settings::AccessSettings;
pub use self::watched::{LOOK_AGAIN, Watched};

/// The door. Clones are the same door.
#[derive(Clone)]
pub struct Access(Option<Arc<Door>>);

struct Door {
    settings: AccessSettings,
    keys: RwLock<Arc<Keys>>,
}

/// Who asks.
#[derive(Clone, Default)]
pub struct Caller {
    key: Option<Arc<Key>>,
    tenant: Tenant,
}

/// Why nobody is let in.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Denied {
    /// No key was sent.
    #[error(
        "a key is needed: send it as \"Authorization: Bearer thr_...\", or as \"x-thresher-key: thr_...\""
    )]
    Missing,
    /// It is none of those in the file.
    #[error("this key is not known here")]
    Unknown,
    /// It was taken back.
    #[error("the key {name:?} has been revoked")]
    Revoked {
        /// What the file calls it.
        name: Arc<str>,
    },
    /// It has asked too much.
    #[error(
        "the key {name:?} has used up its {setting}; it may ask again in {} s",
        seconds(*retry_after)
    )]
    RateLimited {
        /// What the file calls it.
        name: Arc<str>,
        /// Which limit.
        setting: &'static str,
        /// When it may ask again.
        retry_after: Duration,
    },
}

/// Whole seconds, none too few.
fn seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

impl Denied {
    /// Whole seconds after which asking again helps.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::RateLimited { retry_after, .. } => Some(seconds(*retry_after)),
            _ => None,
        }
    }

    /// Whose key it is, where that is known.
    pub fn name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Missing | Self::Unknown => None,
            Self::Revoked { name } | Self::RateLimited { name, .. } => Some(name),
        }
    }
}

impl Access {
    /// A door that lets everybody in, as the default tenant.
    pub fn open_to_all() -> Self {
        Self(None)
    }

    /// The door that the settings describe, and what to look at for changes of it.
    ///
    /// # Errors
    /// What is wrong with the file of keys, and where.
    pub fn open(settings: &AccessSettings) -> Result<(Self, Option<Watched>), KeysError> {
        if settings.keys_file.as_os_str().is_empty() {
            return Ok((Self::open_to_all(), None));
        }
        let mut watched = Watched::new([settings.keys_file.clone()]);
        let bytes = watched.read().map_err(|cause| KeysError::read(&settings.keys_file, cause))?.remove(0);
        let keys = keys_of(settings, &bytes, None)?;
        let (named, tenants) = (keys.len(), keys.tenants().len());
        let door = Door { settings: settings.clone(), keys: RwLock::new(Arc::new(keys)) };
        tracing::info!(keys = named, tenants, path = %settings.keys_file.display(), "keys read");
        if named == 0 {
            tracing::warn!("access.keys_file holds no key: every request is refused until it does");
        }
        Ok((Self(Some(Arc::new(door))), Some(watched)))
    }

    /// Lets in who has a key that is good at `now`; that is one request of its rate.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn admit(&self, presented: Option<&str>, now: Instant) -> Result<Caller, Denied> {
        let Some(door) = &self.0 else { return Ok(Caller::default()) };
        let key = door.keys().find(presented.ok_or(Denied::Missing)?).ok_or(Denied::Unknown)?;
        key.admit(now)?;
        let tenant = key.tenant().clone();
        Ok(Caller { key: Some(key), tenant })
    }

    /// Whether keys are asked for.
    pub fn is_keyed(&self) -> bool {
        self.0.is_some()
    }

    /// Whether more than one tenant may come in.
    pub fn is_shared(&self) -> bool {
        self.0.as_ref().is_some_and(|door| door.keys().are_shared())
    }

    /// All tenants that have keys, those of revoked ones included; none where no keys are asked for.
    pub fn tenants(&self) -> BTreeSet<Tenant> {
        self.0.as_ref().map(|door| door.keys().tenants()).unwrap_or_default()
    }

    /// Takes in what `watched` finds changed. `prepare` is called with the tenants before the first of them can come in. A file
    /// that cannot be read, or that is wrong, changes nothing.
    pub fn refresh(&self, watched: &mut Watched, prepare: impl FnOnce(&BTreeSet<Tenant>)) {
        let (Some(door), Some(found)) = (&self.0, watched.changed()) else { return };
        let path = &door.settings.keys_file;
        let read = found.map_err(|cause| KeysError::read(path, cause));
        let before = door.keys();
        let keys = read.and_then(|bytes| keys_of(&door.settings, &bytes[0], Some(&before)));
        let outcome = match keys {
            Ok(keys) => {
                let tenants = keys.tenants();
                prepare(&tenants);
                tracing::info!(keys = keys.len(), tenants = tenants.len(), "keys read again");
                *door.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
                "ok"
            }
            Err(error) => {
                tracing::error!(%error, "the changed file of keys cannot be used; the keys read before it hold");
                "failed"
            }
        };
        counter!("keys_reloads_total", "outcome" => outcome).increment(1);
    }
}

impl Door {
    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn keys_of(settings: &AccessSettings, bytes: &[u8], before: Option<&Keys>) -> Result<Keys, KeysError> {
    let path: &PathBuf = &settings.keys_file;
    let entries = file::parse(bytes, settings.tenant_count_max).map_err(|at| at.of(path))?;
    Ok(Keys::new(entries, before))
}

impl Caller {
    /// What the file calls the key; none where no keys are asked for.
    pub fn key_name(&self) -> Option<&Arc<str>> {
        self.key.as_ref().map(|key| key.name())
    }

    /// Whose data it works with.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Whether its requests are compressed by the middleware without asking.
    pub fn is_compressed_unasked(&self) -> bool {
        self.key.as_ref().is_some_and(|key| key.middleware())
    }

    /// Takes so many of the model's tokens from what the key has left, and into debt where that is less: what work costs is
    /// known when it has been done.
    pub fn charge(&self, tokens: usize, now: Instant) {
        let Some(key) = self.key.as_ref().filter(|_| tokens > 0) else { return };
        key.charge(tokens, now);
        counter!("key_tokens_total", "key" => key.name().to_string()).increment(tokens as u64);
    }
}

#[cfg(test)]
mod tests;
