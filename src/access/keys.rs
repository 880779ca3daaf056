//! Keys by their hashes, and what each of them has left.
//! Knows nothing of where they are kept.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};
use thresher_core::domain::Tenant;

use super::Denied;
use super::bucket::Bucket;
use super::file::Checked;

/// All keys.
pub struct Keys {
    by_sha256: HashMap<[u8; 32], Arc<Key>>,
    /// Whether they are of more than one tenant.
    are_shared: bool,
}

/// One of them.
pub struct Key {
    name: Arc<str>,
    tenant: Tenant,
    middleware: bool,
    revoked: bool,
    requests: Option<Arc<Bucket>>,
    tokens: Option<Arc<Bucket>>,
}

/// What a key is known by.
pub fn sha256(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl Keys {
    /// Those of a file. A key that was there `before` goes on with what it has left, where its rate is the same.
    pub fn new(entries: Vec<Checked>, before: Option<&Self>) -> Self {
        let key = |Checked { entry, sha256, tenant }: Checked| {
            let before = before.and_then(|before| before.by_sha256.get(&sha256));
            let bucket = |rate: Option<u64>, before: Option<&Arc<Bucket>>| {
                let rate = rate?;
                let same = before.filter(|bucket| bucket.per_minute() == rate);
                Some(same.cloned().unwrap_or_else(|| Arc::new(Bucket::new(rate))))
            };
            let key = Key {
                name: entry.name.into(),
                tenant,
                middleware: entry.middleware,
                revoked: entry.revoked,
                requests: bucket(
                    entry.requests_per_minute,
                    before.and_then(|before| before.requests.as_ref()),
                ),
                tokens: bucket(entry.tokens_per_minute, before.and_then(|before| before.tokens.as_ref())),
            };
            (sha256, Arc::new(key))
        };
        let by_sha256: HashMap<_, _> = entries.into_iter().map(key).collect();
        let mut tenants = by_sha256.values().filter(|key| !key.revoked).map(|key| &key.tenant);
        let are_shared = tenants.next().is_some_and(|first| tenants.any(|tenant| tenant != first));
        Self { by_sha256, are_shared }
    }

    /// Whether more than one tenant has a key that was not revoked.
    pub fn are_shared(&self) -> bool {
        self.are_shared
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_sha256.len()
    }

    /// The one that was presented.
    pub fn find(&self, presented: &str) -> Option<Arc<Key>> {
        self.by_sha256.get(&sha256(presented)).cloned()
    }

    /// Whose they are.
    pub fn tenants(&self) -> BTreeSet<Tenant> {
        self.by_sha256.values().map(|key| key.tenant.clone()).collect()
    }
}

impl Key {
    /// What the file calls it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whose data it works with.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Whether the middleware compresses its requests without being asked.
    pub fn middleware(&self) -> bool {
        self.middleware
    }

    /// Takes one request from its rate. Who is refused is told when all that refuses it has passed, and nothing is taken.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn admit(&self, now: Instant) -> Result<(), Denied> {
        let name = || Arc::clone(&self.name);
        if self.revoked {
            return Err(Denied::Revoked { name: name() });
        }
        let limited = |setting, retry_after| Denied::RateLimited { name: name(), setting, retry_after };
        let owed = self.tokens.as_ref().and_then(|bucket| bucket.wait(0, now));
        match (owed, &self.requests) {
            (Some(owed), requests) => {
                let wait = requests.as_ref().and_then(|bucket| bucket.wait(1, now)).unwrap_or_default();
                Err(limited("tokens_per_minute", owed.max(wait)))
            }
            (None, Some(requests)) => {
                requests.take(1, now).map_err(|wait| limited("requests_per_minute", wait))
            }
            (None, None) => Ok(()),
        }
    }

    /// As [`super::Caller::charge`].
    pub fn charge(&self, tokens: usize, now: Instant) {
        if let Some(bucket) = &self.tokens {
            bucket.charge(tokens as u64, now);
        }
    }
}
