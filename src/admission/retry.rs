//! Estimates after how many seconds a refused request should be repeated: the value of `Retry-After`.

use std::time::Duration;

/// The least and the most that a client is asked to wait, in seconds. A longer estimate would mean little: loads change.
const AFTER_S_MIN: u64 = 1;
const AFTER_S_MAX: u64 = 60;

/// What a refused request stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Decaying mean of the time for which places were held; zero before the first came back.
    pub hold: Duration,
    /// Mean time for which the places that are held now have been held.
    pub age: Duration,
    /// Places that are held now.
    pub held: usize,
    /// Requests that wait for one of them.
    pub waiting: usize,
}

/// Seconds until all who wait now, and one more, have been given a place: each takes the mean time, `held` of them side by side.
pub fn after_s(load: Load) -> u64 {
    // Places that are held for longer than the mean say that the mean is out of date.
    let hold = load.hold.max(load.age);
    let rounds = (load.waiting + 1) as f64 / load.held.max(1) as f64;
    whole(Duration::try_from_secs_f64(hold.as_secs_f64() * rounds).unwrap_or(Duration::MAX))
}

/// A time in whole seconds, rounded up, within the bounds.
pub fn whole(time: Duration) -> u64 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    seconds.clamp(AFTER_S_MIN, AFTER_S_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_grows_with_what_is_in_front() {
        let check =
            |what: &str, (hold_ms, age_ms): (u64, u64), (held, waiting): (usize, usize), expect: u64| {
                let (hold, age) = (Duration::from_millis(hold_ms), Duration::from_millis(age_ms));
                assert_eq!(after_s(Load { hold, age, held, waiting }), expect, "{what}");
            };
        check("nothing is known", (0, 0), (0, 0), 1);
        check("short work", (10, 5), (16, 64), 1);
        check("one place, nobody waits", (2_000, 0), (1, 0), 2);
        check("rounded up", (2_001, 0), (1, 0), 3);
        check("one place, four wait", (2_000, 0), (1, 4), 10);
        check("two places, four wait", (2_000, 0), (2, 4), 5);
        check("eight places, 32 wait", (4_000, 1_000), (8, 32), 17);
        check("held for longer than ever before", (100, 9_000), (1, 0), 9);
        check("never longer than a minute", (100_000, 0), (1, 1_000), 60);
        check("no overflow", (u64::MAX, 0), (1, usize::MAX - 1), 60);
    }
}
