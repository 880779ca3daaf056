//! The keys of a key file, looked up by their hash, and what each key has left of its rate limits. The module knows nothing of files, and
//! has no clock: callers pass the time.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::gauge;
use sha2::{Digest, Sha256};
use thresher_core::domain::Tenant;

use super::Denied;
use super::file::ParsedKey;

pub struct Keys {
    by_sha256: HashMap<[u8; 32], Arc<Key>>,
    /// Whether more than one tenant has a key that is not revoked.
    are_shared: bool,
}

/// A key, without its secret.
pub struct Key {
    name: Arc<str>,
    tenant: Tenant,
    middleware: bool,
    revoked: bool,
    requests: Option<Arc<Bucket>>,
    tokens: Option<Arc<Bucket>>,
}

/// Returns the SHA-256 of a key, under which the key is stored and looked up.
pub fn sha256(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl Keys {
    /// Creates the keys of a file. A key that was in the file `before` keeps what it has left of a rate limit that did not change.
    pub fn new(entries: Vec<ParsedKey>, before: Option<&Self>) -> Self {
        let key = |ParsedKey { entry, sha256, tenant }: ParsedKey| {
            let before = before.and_then(|before| before.by_sha256.get(&sha256));
            let bucket = |rate: Option<u64>, before: Option<&Arc<Bucket>>| {
                let rate = rate?;
                let same = before.filter(|bucket| bucket.per_minute == rate);
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

    /// Returns whether more than one tenant has a key that is not revoked.
    pub fn are_shared(&self) -> bool {
        self.are_shared
    }

    /// Returns the number of keys, including revoked ones.
    pub fn len(&self) -> usize {
        self.by_sha256.len()
    }

    /// Returns the key that a client presented, or `None` if the file does not have it.
    pub fn find(&self, presented: &str) -> Option<Arc<Key>> {
        self.by_sha256.get(&sha256(presented)).cloned()
    }

    /// Sets the metric that says which tenant each key belongs to: 1 for keys of the file, 0 for keys that were removed from it.
    pub fn record(&self, value: f64) {
        for key in self.by_sha256.values() {
            let (name, tenant) = (key.name.to_string(), key.tenant.name().to_owned());
            gauge!("key_info", "key" => name, "tenant" => tenant).set(value);
        }
    }

    /// Returns the tenants of all keys, including revoked ones.
    pub fn tenants(&self) -> BTreeSet<Tenant> {
        self.by_sha256.values().map(|key| key.tenant.clone()).collect()
    }
}

impl Key {
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the tenant whose data the key gives access to.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns whether the middleware compresses requests with this key by default.
    pub fn middleware(&self) -> bool {
        self.middleware
    }

    /// Takes one request from the key's rate limit. A refused request takes nothing.
    ///
    /// # Errors
    /// Refuses if the key is revoked, or if it has used up a rate limit. `retry_after` is then the time until all its limits allow a request
    /// again.
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

    /// Takes `tokens` from the key's token limit, into debt if fewer are left: the cost of work is known only when it is done.
    pub fn charge(&self, tokens: usize, now: Instant) {
        if let Some(bucket) = &self.tokens {
            bucket.charge(tokens as u64, now);
        }
    }
}

const NANOS_PER_MINUTE: u128 = 60_000_000_000;

/// A token bucket: it refills with `per_minute` units a minute, holds at most as many, and can go into debt. It is full at first.
#[derive(Debug)]
struct Bucket {
    per_minute: u64,
    /// The time at which the bucket will be full again; `None` or a time in the past: it is full. This one instant is the whole state, so
    /// rounding errors do not add up.
    full_at: Mutex<Option<Instant>>,
}

impl Bucket {
    /// Panics if `per_minute` is 0, which the parser of key files refuses.
    fn new(per_minute: u64) -> Self {
        assert!(per_minute > 0, "a rate limit is at least 1");
        Self { per_minute, full_at: Mutex::new(None) }
    }

    /// The time until the bucket holds `count` units; `None`: it does now. For more than the bucket can hold, the time until it is full.
    fn wait(&self, count: u64, now: Instant) -> Option<Duration> {
        self.wait_of(*self.full_at(), count, now)
    }

    /// Takes `count` units, or returns the time until the bucket holds them and takes nothing.
    fn take(&self, count: u64, now: Instant) -> Result<(), Duration> {
        let mut full_at = self.full_at();
        match self.wait_of(*full_at, count, now) {
            Some(wait) => Err(wait),
            None => {
                self.spend(&mut full_at, count, now);
                Ok(())
            }
        }
    }

    /// Takes `count` units, into debt if the bucket holds fewer.
    fn charge(&self, count: u64, now: Instant) {
        self.spend(&mut self.full_at(), count, now);
    }

    fn wait_of(&self, full_at: Option<Instant>, count: u64, now: Instant) -> Option<Duration> {
        let until_full = full_at?.saturating_duration_since(now);
        let spare = self.time_of(self.per_minute.saturating_sub(count));
        until_full.checked_sub(spare).filter(|wait| !wait.is_zero())
    }

    fn spend(&self, full_at: &mut Option<Instant>, count: u64, now: Instant) {
        let from = full_at.map_or(now, |at| at.max(now));
        // A debt that no clock can represent does not grow further.
        *full_at = from.checked_add(self.time_of(count)).or(Some(from));
    }

    /// The time in which `count` units refill, rounded up, so that a minute never brings more than `per_minute`.
    fn time_of(&self, count: u64) -> Duration {
        let nanos = (u128::from(count) * NANOS_PER_MINUTE).div_ceil(u128::from(self.per_minute));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn full_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.full_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_of_one_minute_is_allowed_and_then_one_at_a_time() {
        let (bucket, start) = (Bucket::new(60), Instant::now());
        for n in 0..60 {
            assert_eq!(bucket.take(1, start), Ok(()), "{n} of the burst");
        }
        assert_eq!(bucket.take(1, start), Err(SECOND));
        assert_eq!(bucket.take(1, start + SECOND / 4), Err(SECOND * 3 / 4), "a refusal takes nothing");
        assert_eq!(bucket.take(1, start + SECOND), Ok(()));
        assert_eq!(bucket.take(1, start + SECOND), Err(SECOND));
        let later = start + 1000 * SECOND;
        assert_eq!(
            (0..100).filter(|_| bucket.take(1, later).is_ok()).count(),
            60,
            "the bucket holds one minute's units"
        );
    }

    #[test]
    fn a_debt_is_paid_before_anything_else() {
        let (bucket, start) = (Bucket::new(600), Instant::now());
        assert_eq!(bucket.wait(0, start), None);
        bucket.charge(600, start);
        assert_eq!(bucket.wait(0, start), None, "the bucket is empty and not in debt");
        assert_eq!(bucket.wait(1, start), Some(SECOND / 10));
        bucket.charge(1_200, start);
        assert_eq!(bucket.wait(0, start), Some(120 * SECOND));
        assert_eq!(bucket.wait(0, start + 119 * SECOND), Some(SECOND));
        assert_eq!(bucket.wait(0, start + 120 * SECOND), None);
    }

    #[test]
    fn no_minute_brings_more_than_the_rate() {
        for per_minute in [1, 7, 59, 61, 1_000_003] {
            let (bucket, start) = (Bucket::new(per_minute), Instant::now());
            bucket.charge(per_minute, start);
            let mut taken = 0;
            // Ten minutes in uneven steps.
            for step in 0..6_007_u32 {
                let now = start + SECOND * 600 * step / 6_007;
                while bucket.take((per_minute / 100).max(1), now).is_ok() {
                    taken += (per_minute / 100).max(1);
                }
            }
            assert!(taken <= 10 * per_minute, "{taken} of {per_minute} a minute");
            assert!(
                taken + per_minute / 50 + 1 >= 10 * per_minute - per_minute / 600,
                "{taken} of {per_minute}"
            );
        }
    }

    #[test]
    fn a_debt_beyond_all_clocks_does_not_panic() {
        let (bucket, now) = (Bucket::new(1), Instant::now());
        for _ in 0..100 {
            bucket.charge(u64::MAX, now);
        }
        assert!(bucket.wait(0, now).is_some());
        assert!(bucket.wait(u64::MAX, now).is_some());
    }
}
