//! How fast chunks are being read, and whether a request's would be read before it is late. Counted in bytes of text: they are
//! known before anything is done. Tenants share the model equally: a tenant stands behind its own readings, and beside as much of
//! each other tenant's. Knows nothing of chunks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::Tenant;

/// How much the latest reading says about the next one.
const WEIGHT: f64 = 0.3;

/// How many times longer than expected a reading may take before it is late: others come after it, and take turns too.
const MARGIN: f64 = 1.6;

/// A reading that took less says nothing of the pace.
const TIME_MIN: Duration = Duration::from_millis(20);

/// What all requests together have the model read.
#[derive(Debug, Default)]
pub struct LoadEstimator(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of all readings together, while there was one; none before the first.
    bytes_per_s: Option<f64>,
    /// Read since the start.
    bytes_read: usize,
    /// Of tenants that have readings under way.
    tenants: HashMap<Tenant, Queued>,
}

/// The readings of one tenant that are under way.
#[derive(Debug, Default)]
struct Queued {
    readings: usize,
    /// Those of them that a request waits for.
    waited_for: usize,
    /// To be read.
    bytes_left: usize,
}

/// Why a reading does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late {
    /// How long it would take.
    pub expected: Duration,
    /// When enough of what stands in front of it will have been read, if nothing else comes.
    pub retry_after: Duration,
}

impl LoadEstimator {
    /// A reading of so many `bytes` of text begins for a request of `tenant` that waits no longer than `patience`; none: no request
    /// waits for it.
    ///
    /// # Errors
    /// [`Late`], if reading would take longer than that and other readings of this tenant are under way: it would take their time and
    /// end without an answer. A tenant's only reading begins in any case: what it reads is kept, and the next try goes on from there.
    pub fn begin(
        &self,
        tenant: &Tenant,
        bytes: usize,
        patience: Option<Duration>,
    ) -> Result<Reading<'_>, Late> {
        let mut state = self.state();
        if let (Some(patience), Some(expected)) = (patience, state.expected(tenant, bytes)) {
            let with_margin = expected.mul_f64(MARGIN);
            if with_margin > patience {
                return Err(Late { expected, retry_after: with_margin - patience });
            }
        }
        let queued = state.tenants.entry(tenant.clone()).or_default();
        queued.readings += 1;
        queued.waited_for += usize::from(patience.is_some());
        queued.bytes_left += bytes;
        let (started, read_before) = (Instant::now(), state.bytes_read);
        Ok(Reading {
            pace: self,
            tenant: tenant.clone(),
            left: Mutex::new(bytes),
            is_waited_for: patience.is_some(),
            started,
            read_before,
        })
    }

    /// How long the model will take for what this tenant has under way, beside other tenants. Zero while its speed is not known.
    pub fn time_left(&self, tenant: &Tenant) -> Duration {
        let state = self.state();
        let left = state.tenants.get(tenant).map_or(0, |queued| queued.bytes_left);
        state.time(left + state.beside(tenant, left)).unwrap_or_default()
    }

    /// One that is known.
    #[cfg(test)]
    pub fn of(bytes_per_s: f64) -> Self {
        Self(Mutex::new(State { bytes_per_s: Some(bytes_per_s), ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How long a reading of so many bytes would take; none where nothing of this tenant is waited for, or the speed is not known.
    fn expected(&self, tenant: &Tenant, bytes: usize) -> Option<Duration> {
        let own = self.tenants.get(tenant).filter(|own| own.waited_for > 0)?;
        // All readings of a tenant take turns: of what the others have left, so much goes before the last of these bytes. Twice what
        // is left, since those that come after it take turns, too, as long as they are let in by this rule.
        let own = bytes + (2 * own.bytes_left).min(own.waited_for * bytes);
        self.time(own + self.beside(tenant, own))
    }

    /// What is read for other tenants while so many `bytes` are read for this one: as much for each, if it has so much. Twice what
    /// is left, for the same reason.
    fn beside(&self, tenant: &Tenant, bytes: usize) -> usize {
        let others = self.tenants.iter().filter(|&(other, _)| other != tenant);
        others.map(|(_, queued)| (2 * queued.bytes_left).min(bytes)).sum()
    }

    fn time(&self, bytes: usize) -> Option<Duration> {
        Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_s?).ok()
    }

    fn queued(&mut self, tenant: &Tenant) -> &mut Queued {
        self.tenants.get_mut(tenant).expect("it has a reading under way")
    }
}

/// A reading that is under way; dropped when it has ended, however.
#[derive(Debug)]
pub struct Reading<'a> {
    pace: &'a LoadEstimator,
    tenant: Tenant,
    left: Mutex<usize>,
    is_waited_for: bool,
    started: Instant,
    read_before: usize,
}

impl Reading<'_> {
    /// So many bytes are left of it, as is now known better than when it began.
    pub fn expect(&self, bytes: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.pace.state();
        let queued = state.queued(&self.tenant);
        queued.bytes_left = queued.bytes_left - *left + bytes;
        *left = bytes;
    }

    /// So many of its bytes have been read.
    pub fn read(&self, bytes: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.min(*left);
        *left -= bytes;
        let mut state = self.pace.state();
        state.queued(&self.tenant).bytes_left -= bytes;
        state.bytes_read += bytes;
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let left = *self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.pace.state();
        let queued = state.queued(&self.tenant);
        queued.bytes_left -= left;
        queued.waited_for -= usize::from(self.is_waited_for);
        queued.readings -= 1;
        if queued.readings == 0 {
            state.tenants.remove(&self.tenant);
        }
        let (took, read) = (self.started.elapsed(), state.bytes_read - self.read_before);
        if took >= TIME_MIN && read > 0 {
            let now = read as f64 / took.as_secs_f64();
            state.bytes_per_s =
                Some(state.bytes_per_s.map_or(now, |before| before + WEIGHT * (now - before)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second, and the margin.
    const SECOND: Option<Duration> = Some(Duration::from_millis(1_600));

    fn expected(late: Result<Reading<'_>, Late>) -> Option<Duration> {
        late.err().map(|late| late.expected)
    }

    #[test]
    fn who_would_be_late_beside_others_is_told_so() {
        let (pace, one) = (LoadEstimator::of(1_000.0), Tenant::default());
        let begin = |bytes: usize| pace.begin(&one, bytes, SECOND);
        let first = begin(5_000).expect("alone");
        let second = begin(500).expect("half a second of each");
        assert_eq!(expected(begin(501)), Some(Duration::from_millis(1_503)), "three take turns");
        assert_eq!(expected(begin(334)), Some(Duration::from_millis(1_002)));
        drop(begin(333).expect("in time"));
        drop(pace.begin(&one, 9_000, None).expect("nobody waits"));
        drop(second);
        first.read(4_900);
        drop(begin(800).expect("behind what is left, and others like it"));
        assert!(begin(801).is_err());
        first.expect(200);
        drop(begin(600).expect("twice what is left, and these"));
        assert!(begin(601).is_err());
        drop(first);
        drop(begin(5_000).expect("alone again"));
        assert!(pace.state().tenants.is_empty());
    }

    #[test]
    fn a_tenant_stands_beside_others_not_behind_them() {
        let pace = LoadEstimator::of(1_000.0);
        let [a, b] = ["a", "b"].map(|name| Tenant::new(name).expect("a name"));
        let _flood: Vec<Reading> =
            (0..9).map(|_| pace.begin(&b, 100_000, None).expect("nobody waits")).collect();
        let first = pace.begin(&a, 9_000, SECOND).expect("its only one: what it reads is kept");
        first.read(8_900);
        // 300 of its own, behind twice the 100 that are left, and as much of the other tenant's beside them.
        assert_eq!(expected(pace.begin(&a, 301, SECOND)), Some(Duration::from_millis(1_002)));
        drop(pace.begin(&a, 300, SECOND).expect("in time"));
        assert_eq!(pace.time_left(&a), Duration::from_millis(200));
        drop(first);
        assert_eq!(pace.time_left(&a), Duration::ZERO);
        assert_eq!(pace.time_left(&b), Duration::from_secs(900));
    }

    #[test]
    fn a_refusal_says_when_enough_will_have_been_read() {
        let (pace, one) = (LoadEstimator::of(1_000.0), Tenant::default());
        let retry_after = |bytes: usize| pace.begin(&one, bytes, SECOND).expect_err("late").retry_after;
        let _first = pace.begin(&one, 20_000, SECOND).expect("alone");
        let short = retry_after(1_000);
        let _second = pace.begin(&one, 20_000, None).expect("nobody waits");
        let _third = pace.begin(&one, 500, SECOND).expect("in time, and one more that takes turns");
        let long = retry_after(1_000);
        assert_eq!((short, long), (Duration::from_millis(1_600), Duration::from_millis(3_200)));
    }

    #[test]
    fn the_pace_is_that_of_all_together() {
        let (pace, tenant) = (LoadEstimator::default(), Tenant::default());
        let begin = |bytes: usize| pace.begin(&tenant, bytes, SECOND).expect("no pace yet");
        let (one, two) = (begin(100), begin(300));
        std::thread::sleep(TIME_MIN);
        one.read(100);
        two.read(300);
        let took = one.started.elapsed().as_secs_f64();
        drop(one);
        let per_s = pace.state().bytes_per_s.expect("known");
        assert!(per_s <= 400.0 / took && per_s > 100.0, "{per_s}");
        drop(two);
    }
}
