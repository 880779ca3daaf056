//! Load estimation: measures how fast the model reads new chunks, and refuses a request early if its new
//! chunks could not be read before its deadline. Knows nothing of chunks.
//!
//! Text is counted in bytes, because its bytes are known before it is tokenized. The model's time is divided
//! equally between tenants: a request waits for the other reads of its own tenant, and for as many bytes of
//! each other tenant as it reads itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::Tenant;

/// The weight of the latest read in the moving average of the model's speed.
const SPEED_WEIGHT: f64 = 0.3;

/// A read is refused if its expected time, multiplied by this margin, exceeds the time until its deadline.
/// The margin exists because requests that arrive later take turns with it, too.
const MARGIN: f64 = 1.6;

/// The shortest read whose speed is measured.
const MEASURED_TIME_MIN: Duration = Duration::from_millis(20);

/// Estimates how long the model needs to read new text. One estimator observes all reads of a model.
#[derive(Debug, Default)]
pub struct LoadEstimator(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The measured speed of all reads together, while there were any; `None` before the first read has
    /// ended.
    bytes_per_s: Option<f64>,
    /// The bytes that have been read since the start of the program.
    bytes_read: usize,
    /// The ongoing reads of each tenant that has any.
    tenants: HashMap<Tenant, TenantLoad>,
}

#[derive(Debug, Default)]
struct TenantLoad {
    reads: usize,
    /// The number of reads with a deadline, for which a request waits.
    reads_with_deadline: usize,
    bytes_left: usize,
}

/// The error of a request whose new chunks the model could not read before the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model needs about {:.1} s to read {bytes} bytes of new text beside other requests: too long for the \
     deadline. Repeat the request in {:.0} s, with a longer deadline_ms, or with fewer new chunks",
    expected.as_secs_f64(),
    retry_after.as_secs_f64().ceil().max(1.0)
)]
pub struct Overload {
    /// The bytes of text in the chunks of the request that are not cached.
    pub bytes: usize,
    /// The expected time to read them.
    pub expected: Duration,
    /// The time after which a retry would be accepted if no other request arrived.
    pub retry_after: Duration,
}

impl LoadEstimator {
    /// Registers a read of `bytes` bytes of text for a tenant, which lasts until the result is dropped.
    /// `time_left` is the time until the deadline of the request that waits for the read; `None` means that
    /// no request with a deadline waits for it.
    ///
    /// # Errors
    /// Returns [`Overload`] if the read would probably end after the deadline, and other reads with deadlines
    /// of the same tenant are ongoing: the read would delay those, and its own request would fail anyway. The
    /// only read of a tenant is always accepted, because the chunks that it reads are cached, so a retry of
    /// the request continues from there.
    pub fn begin(
        &self,
        tenant: &Tenant,
        bytes: usize,
        time_left: Option<Duration>,
    ) -> Result<OngoingRead<'_>, Overload> {
        let mut state = self.state();
        if let (Some(time_left), Some(expected)) = (time_left, state.expected_time(tenant, bytes)) {
            let with_margin = expected.mul_f64(MARGIN);
            if with_margin > time_left {
                return Err(Overload { bytes, expected, retry_after: with_margin - time_left });
            }
        }
        let has_deadline = time_left.is_some();
        let load = state.tenants.entry(tenant.clone()).or_default();
        load.reads += 1;
        load.reads_with_deadline += usize::from(has_deadline);
        load.bytes_left += bytes;
        Ok(OngoingRead {
            estimator: self,
            tenant: tenant.clone(),
            bytes_left: Mutex::new(bytes),
            has_deadline,
            started: Instant::now(),
            bytes_read_before: state.bytes_read,
        })
    }

    /// Returns the estimated time that the ongoing reads of a tenant still take, beside those of other
    /// tenants. It is zero until the model's speed has been measured.
    pub fn time_left(&self, tenant: &Tenant) -> Duration {
        let state = self.state();
        let bytes_left = state.tenants.get(tenant).map_or(0, |load| load.bytes_left);
        state.time_for(bytes_left + state.bytes_of_others(tenant, bytes_left)).unwrap_or_default()
    }

    /// Returns the estimated time to read `bytes` bytes, with the speed of all reads together. It is zero until the
    /// model's speed has been measured.
    pub fn time_of_one(&self, bytes: usize) -> Duration {
        self.state().time_for(bytes).unwrap_or_default()
    }

    #[cfg(test)]
    pub fn with_speed(bytes_per_s: f64) -> Self {
        Self(Mutex::new(State { bytes_per_s: Some(bytes_per_s), ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the expected time to read `bytes` more bytes for a tenant, or `None` if the tenant has no
    /// ongoing read with a deadline, or the speed is unknown.
    fn expected_time(&self, tenant: &Tenant, bytes: usize) -> Option<Duration> {
        let load = self.tenants.get(tenant).filter(|load| load.reads_with_deadline > 0)?;
        // The reads of a tenant take turns, so at most `bytes` bytes of each other read are read before the
        // last of these. What is left of the other reads counts twice: reads that begin later take turns,
        // too, as long as this rule accepts them.
        let tenant_bytes = bytes + (2 * load.bytes_left).min(load.reads_with_deadline * bytes);
        self.time_for(tenant_bytes + self.bytes_of_others(tenant, tenant_bytes))
    }

    /// Returns how many bytes are read for other tenants while `bytes` bytes are read for this one: for each
    /// other tenant as many, but no more than twice what is left of its reads. Twice, for the reason given in
    /// [`Self::expected_time`].
    fn bytes_of_others(&self, tenant: &Tenant, bytes: usize) -> usize {
        let others = self.tenants.iter().filter(|&(other, _)| other != tenant);
        others.map(|(_, load)| (2 * load.bytes_left).min(bytes)).sum()
    }

    /// Returns the time to read `bytes` bytes at the measured speed, or `None` if the speed is unknown.
    fn time_for(&self, bytes: usize) -> Option<Duration> {
        Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_s?).ok()
    }

    fn load_of(&mut self, tenant: &Tenant) -> &mut TenantLoad {
        self.tenants.get_mut(tenant).expect("the tenant has an ongoing read")
    }
}

/// A read that is ongoing until it is dropped, whether it succeeded or not.
#[derive(Debug)]
pub struct OngoingRead<'a> {
    estimator: &'a LoadEstimator,
    tenant: Tenant,
    bytes_left: Mutex<usize>,
    has_deadline: bool,
    started: Instant,
    bytes_read_before: usize,
}

impl OngoingRead<'_> {
    /// Corrects the number of bytes that are left to read.
    pub fn set_bytes_left(&self, bytes: usize) {
        let mut bytes_left = self.bytes_left();
        let mut state = self.estimator.state();
        let load = state.load_of(&self.tenant);
        load.bytes_left = load.bytes_left - *bytes_left + bytes;
        *bytes_left = bytes;
    }

    /// Reports that the model has read `bytes` more bytes.
    pub fn add_bytes_read(&self, bytes: usize) {
        let mut bytes_left = self.bytes_left();
        let bytes = bytes.min(*bytes_left);
        *bytes_left -= bytes;
        let mut state = self.estimator.state();
        state.load_of(&self.tenant).bytes_left -= bytes;
        state.bytes_read += bytes;
    }

    fn bytes_left(&self) -> MutexGuard<'_, usize> {
        self.bytes_left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OngoingRead<'_> {
    fn drop(&mut self) {
        let bytes_left = *self.bytes_left();
        let mut state = self.estimator.state();
        let load = state.load_of(&self.tenant);
        load.bytes_left -= bytes_left;
        load.reads_with_deadline -= usize::from(self.has_deadline);
        load.reads -= 1;
        if load.reads == 0 {
            state.tenants.remove(&self.tenant);
        }
        let (took, bytes_read) = (self.started.elapsed(), state.bytes_read - self.bytes_read_before);
        if took >= MEASURED_TIME_MIN && bytes_read > 0 {
            let measured = bytes_read as f64 / took.as_secs_f64();
            let average = |before: f64| before + SPEED_WEIGHT * (measured - before);
            state.bytes_per_s = Some(state.bytes_per_s.map_or(measured, average));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One second, multiplied by the margin.
    const SECOND: Option<Duration> = Some(Duration::from_millis(1_600));

    fn expected(begun: Result<OngoingRead<'_>, Overload>) -> Option<Duration> {
        begun.err().map(|overload| overload.expected)
    }

    #[test]
    fn a_read_that_would_end_after_its_deadline_is_refused() {
        let (estimator, tenant) = (LoadEstimator::with_speed(1_000.0), Tenant::default());
        let begin = |bytes: usize| estimator.begin(&tenant, bytes, SECOND);
        let first = begin(5_000).expect("the only read");
        let second = begin(500).expect("half a second for each of the two");
        assert_eq!(expected(begin(501)), Some(Duration::from_millis(1_503)), "three reads take turns");
        assert_eq!(expected(begin(334)), Some(Duration::from_millis(1_002)));
        drop(begin(333).expect("in time"));
        drop(estimator.begin(&tenant, 9_000, None).expect("no deadline"));
        drop(second);
        first.add_bytes_read(4_900);
        drop(begin(800).expect("twice the 100 bytes that are left, and these"));
        assert!(begin(801).is_err());
        first.set_bytes_left(200);
        drop(begin(600).expect("twice the 200 bytes that are left, and these"));
        assert!(begin(601).is_err());
        drop(first);
        drop(begin(5_000).expect("the only read again"));
        assert!(estimator.state().tenants.is_empty());
    }

    #[test]
    fn reads_of_other_tenants_take_turns_with_those_of_a_tenant() {
        let estimator = LoadEstimator::with_speed(1_000.0);
        let [a, b] = ["a", "b"].map(|name| Tenant::new(name).expect("a name"));
        let _flood: Vec<OngoingRead> =
            (0..9).map(|_| estimator.begin(&b, 100_000, None).expect("no deadline")).collect();
        let first = estimator.begin(&a, 9_000, SECOND).expect("the only read of its tenant");
        first.add_bytes_read(8_900);
        // 301 bytes of its own and twice the 100 that are left, and as many of the other tenant.
        assert_eq!(expected(estimator.begin(&a, 301, SECOND)), Some(Duration::from_millis(1_002)));
        drop(estimator.begin(&a, 300, SECOND).expect("in time"));
        assert_eq!(estimator.time_left(&a), Duration::from_millis(200));
        drop(first);
        assert_eq!(estimator.time_left(&a), Duration::ZERO);
        assert_eq!(estimator.time_left(&b), Duration::from_secs(900));
    }

    #[test]
    fn a_refusal_says_when_to_retry() {
        let (estimator, tenant) = (LoadEstimator::with_speed(1_000.0), Tenant::default());
        let retry_after =
            |bytes: usize| estimator.begin(&tenant, bytes, SECOND).expect_err("an overload").retry_after;
        let _first = estimator.begin(&tenant, 20_000, SECOND).expect("the only read");
        let short = retry_after(1_000);
        let _second = estimator.begin(&tenant, 20_000, None).expect("no deadline");
        let _third = estimator.begin(&tenant, 500, SECOND).expect("in time; it takes turns with the next");
        let long = retry_after(1_000);
        assert_eq!((short, long), (Duration::from_millis(1_600), Duration::from_millis(3_200)));
    }

    #[test]
    fn the_speed_is_that_of_all_reads_together() {
        let (estimator, tenant) = (LoadEstimator::default(), Tenant::default());
        let begin = |bytes: usize| estimator.begin(&tenant, bytes, SECOND).expect("the speed is unknown");
        let (one, two) = (begin(100), begin(300));
        std::thread::sleep(MEASURED_TIME_MIN);
        one.add_bytes_read(100);
        two.add_bytes_read(300);
        let took = one.started.elapsed().as_secs_f64();
        drop(one);
        let per_s = estimator.state().bytes_per_s.expect("measured");
        assert!(per_s <= 400.0 / took && per_s > 100.0, "{per_s}");
        drop(two);
    }
}
