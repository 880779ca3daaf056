//! How soon refusals are sent. A client that repeats refused requests at once makes the daemon read and parse request bodies for
//! nothing, which takes processor time from other tenants. A tenant's first refusals are sent at once; beyond that they are spaced.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use thresher_core::domain::Tenant;

/// Between two refusals of one tenant, once it has used up its burst.
const INTERVAL: Duration = Duration::from_millis(50);

/// Refusals that are sent at once.
const BURST: u32 = 20;

/// The longest that a refusal is kept back: less than the least `Retry-After`, so that a client that obeys it loses nothing.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// When each tenant's next refusal would be due if all were spaced evenly (the generic cell rate algorithm).
#[derive(Debug, Default)]
pub struct Refusals(HashMap<Tenant, Instant>);

impl Refusals {
    /// How long to keep back a refusal of this tenant.
    pub fn delay(&mut self, tenant: &Tenant, now: Instant) -> Duration {
        let due = self.0.entry(tenant.clone()).or_insert(now);
        let spaced = (*due).max(now);
        let delay = spaced.saturating_duration_since(now).saturating_sub(INTERVAL * BURST).min(DELAY_MAX);
        // What is kept back for the longest time adds nothing: after a flood, the tenant waits no longer than during it.
        *due = (spaced + INTERVAL).min(now + INTERVAL * BURST + DELAY_MAX);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_told_at_once_and_a_flood_is_spaced() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let [a, b] = ["a", "b"].map(|name| Tenant::new(name).expect("a name"));
        let burst: Vec<Duration> = (0..=BURST).map(|_| refusals.delay(&a, start)).collect();
        assert!(burst.iter().all(Duration::is_zero), "{burst:?}");
        assert_eq!(refusals.delay(&a, start), INTERVAL);
        assert_eq!(refusals.delay(&a, start), 2 * INTERVAL);
        assert_eq!(refusals.delay(&b, start), Duration::ZERO, "another tenant's are its own");
        let most = (0..1_000).map(|_| refusals.delay(&a, start)).max();
        assert_eq!(most, Some(DELAY_MAX));
        let later = start + DELAY_MAX;
        assert!(refusals.delay(&a, later) <= INTERVAL, "the flood is over");
        let much_later = later + INTERVAL * (BURST + 1);
        assert_eq!(refusals.delay(&a, much_later), Duration::ZERO);
    }
}
