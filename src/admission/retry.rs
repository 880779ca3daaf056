//! What the daemon sends to refused clients: the value of `Retry-After`, and a delay of the refusal if a client repeats requests too fast.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use thresher_core::domain::Tenant;

/// The least and the most seconds in `Retry-After`. A longer estimate would mean little, because loads change.
const AFTER_S_MIN: u64 = 1;
const AFTER_S_MAX: u64 = 60;

/// The time between two refusals of one tenant that has used up its burst.
const REFUSAL_INTERVAL: Duration = Duration::from_millis(50);

/// The number of refusals of one tenant that are sent without a delay.
const REFUSAL_BURST: u32 = 20;

/// The longest delay of a refusal. It is at most the least `Retry-After`, so that a client that obeys `Retry-After` is not delayed.
const REFUSAL_DELAY_MAX: Duration = Duration::from_secs(1);

/// The load that a refused request met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Decaying mean of the time for which slots were held; zero until the first slot was released.
    pub hold: Duration,
    /// Mean time for which the slots that are held now have been held.
    pub age: Duration,
    pub held: usize,
    pub waiting: usize,
}

/// Estimates the seconds until every request that waits now, and one more, has been granted a slot: each holds its slot for the mean
/// time, and `held` of them do so at the same time.
pub fn after_s(load: Load) -> u64 {
    // If slots are now held for longer than the mean, the mean is out of date.
    let hold = load.hold.max(load.age);
    let rounds = (load.waiting + 1) as f64 / load.held.max(1) as f64;
    whole(Duration::try_from_secs_f64(hold.as_secs_f64() * rounds).unwrap_or(Duration::MAX))
}

/// Returns `time` in whole seconds for `Retry-After`: rounded up, at least 1 and at most 60.
pub fn whole(time: Duration) -> u64 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    seconds.clamp(AFTER_S_MIN, AFTER_S_MAX)
}

/// Delays of refusals, per tenant. A client that repeats refused requests at once makes the daemon read and parse request bodies for
/// nothing, which takes processor time from other tenants. The first refusals of a tenant are sent at once; later ones are spaced evenly.
///
/// For each tenant it holds the time at which the next refusal would be due if all refusals were spaced evenly (the generic cell rate
/// algorithm).
#[derive(Debug, Default)]
pub struct RefusalDelays(HashMap<Tenant, Instant>);

impl RefusalDelays {
    /// Counts a refusal of `tenant` and returns how long to delay it.
    pub fn next(&mut self, tenant: &Tenant, now: Instant) -> Duration {
        let due = self.0.entry(tenant.clone()).or_insert(now);
        let spaced = (*due).max(now);
        let burst = REFUSAL_INTERVAL * REFUSAL_BURST;
        let delay = spaced.saturating_duration_since(now).saturating_sub(burst).min(REFUSAL_DELAY_MAX);
        // Bounded, so that after a flood the tenant is not delayed for longer than during it.
        *due = (spaced + REFUSAL_INTERVAL).min(now + burst + REFUSAL_DELAY_MAX);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_grows_with_the_queue() {
        let check =
            |name: &str, (hold_ms, age_ms): (u64, u64), (held, waiting): (usize, usize), expect: u64| {
                let (hold, age) = (Duration::from_millis(hold_ms), Duration::from_millis(age_ms));
                assert_eq!(after_s(Load { hold, age, held, waiting }), expect, "{name}");
            };
        check("nothing is known", (0, 0), (0, 0), 1);
        check("short work", (10, 5), (16, 64), 1);
        check("one slot, nobody waits", (2_000, 0), (1, 0), 2);
        check("rounded up", (2_001, 0), (1, 0), 3);
        check("one slot, four wait", (2_000, 0), (1, 4), 10);
        check("two slots, four wait", (2_000, 0), (2, 4), 5);
        check("eight slots, 32 wait", (4_000, 1_000), (8, 32), 17);
        check("held for longer than ever before", (100, 9_000), (1, 0), 9);
        check("never longer than a minute", (100_000, 0), (1, 1_000), 60);
        check("no overflow", (u64::MAX, 0), (1, usize::MAX - 1), 60);
    }

    #[test]
    fn a_burst_of_refusals_is_sent_at_once_and_a_flood_is_spaced() {
        let (mut refusals, start) = (RefusalDelays::default(), Instant::now());
        let [a, b] = ["a", "b"].map(|name| Tenant::new(name).expect("a name"));
        let burst: Vec<Duration> = (0..=REFUSAL_BURST).map(|_| refusals.next(&a, start)).collect();
        assert!(burst.iter().all(Duration::is_zero), "{burst:?}");
        assert_eq!(refusals.next(&a, start), REFUSAL_INTERVAL);
        assert_eq!(refusals.next(&a, start), 2 * REFUSAL_INTERVAL);
        assert_eq!(refusals.next(&b, start), Duration::ZERO, "another tenant is not delayed");
        let most = (0..1_000).map(|_| refusals.next(&a, start)).max();
        assert_eq!(most, Some(REFUSAL_DELAY_MAX));
        let later = start + REFUSAL_DELAY_MAX;
        assert!(refusals.next(&a, later) <= REFUSAL_INTERVAL, "the flood is over");
        let much_later = later + REFUSAL_INTERVAL * (REFUSAL_BURST + 1);
        assert_eq!(refusals.next(&a, much_later), Duration::ZERO);
    }
}
