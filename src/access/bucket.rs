//! A rate with a burst: so many a minute, as many at once, and debt where what something costs is known only afterwards.
//! Has no clock: every call says when it is.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const NANOS_PER_MINUTE: u128 = 60_000_000_000;

/// What is left of a rate. Full at first.
#[derive(Debug)]
pub struct Bucket {
    per_minute: u64,
    /// When it is full again; in the past: it is. One instant says all, so nothing drifts.
    full_at: Mutex<Option<Instant>>,
}

impl Bucket {
    /// # Panics
    /// When `per_minute` is 0, which the reader of settings refuses.
    pub fn new(per_minute: u64) -> Self {
        assert!(per_minute > 0, "a rate of nothing");
        Self { per_minute, full_at: Mutex::new(None) }
    }

    /// What a minute brings, and what it holds.
    pub fn per_minute(&self) -> u64 {
        self.per_minute
    }

    /// How long until `count` are there; none: now. More than it holds never are: that is until it is full.
    pub fn wait(&self, count: u64, now: Instant) -> Option<Duration> {
        self.wait_of(*self.full_at(), count, now)
    }

    /// Takes `count` if they are there.
    ///
    /// # Errors
    /// How long until they are; nothing is taken.
    pub fn take(&self, count: u64, now: Instant) -> Result<(), Duration> {
        let mut full_at = self.full_at();
        match self.wait_of(*full_at, count, now) {
            Some(wait) => Err(wait),
            None => {
                self.spend(&mut full_at, count, now);
                Ok(())
            }
        }
    }

    /// Takes `count`, whether they are there or not.
    pub fn charge(&self, count: u64, now: Instant) {
        self.spend(&mut self.full_at(), count, now);
    }

    fn wait_of(&self, full_at: Option<Instant>, count: u64, now: Instant) -> Option<Duration> {
        let until_full = full_at?.saturating_duration_since(now);
        let spare = self.time_of(self.per_minute.saturating_sub(count));
        until_full.checked_sub(spare).filter(|wait| !wait.is_zero())
    }

    fn spend(&self, full_at: &mut Option<Instant>, count: u64, now: Instant) {
        let from = full_at.map_or(now, |at| at.max(now));
        // A debt that no clock can count stays where it is.
        *full_at = from.checked_add(self.time_of(count)).or(Some(from));
    }

    /// How long `count` take to come; rounded up, so that a minute never brings more than it should.
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
    fn a_minute_at_once_then_one_after_the_other() {
        let (bucket, start) = (Bucket::new(60), Instant::now());
        for n in 0..60 {
            assert_eq!(bucket.take(1, start), Ok(()), "{n} of the burst");
        }
        assert_eq!(bucket.take(1, start), Err(SECOND));
        assert_eq!(bucket.take(1, start + SECOND / 4), Err(SECOND * 3 / 4), "refusing takes nothing");
        assert_eq!(bucket.take(1, start + SECOND), Ok(()));
        assert_eq!(bucket.take(1, start + SECOND), Err(SECOND));
        let later = start + 1000 * SECOND;
        assert_eq!((0..100).filter(|_| bucket.take(1, later).is_ok()).count(), 60, "it holds one minute's");
    }

    #[test]
    fn a_debt_is_paid_before_anything_else() {
        let (bucket, start) = (Bucket::new(600), Instant::now());
        assert_eq!(bucket.wait(0, start), None);
        bucket.charge(600, start);
        assert_eq!(bucket.wait(0, start), None, "nothing left, nothing owed");
        assert_eq!(bucket.wait(1, start), Some(SECOND / 10));
        bucket.charge(1_200, start);
        assert_eq!(bucket.wait(0, start), Some(120 * SECOND));
        assert_eq!(bucket.wait(0, start + 119 * SECOND), Some(SECOND));
        assert_eq!(bucket.wait(0, start + 120 * SECOND), None);
    }

    #[test]
    fn no_minute_brings_more_than_it_should() {
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
    fn sums_beyond_all_clocks_are_no_panic() {
        let (bucket, now) = (Bucket::new(1), Instant::now());
        for _ in 0..100 {
            bucket.charge(u64::MAX, now);
        }
        assert!(bucket.wait(0, now).is_some());
        assert!(bucket.wait(u64::MAX, now).is_some());
    }
}
