//! Waits for stated conditions. A test that waits for another thread or process uses these, never a sleep of
//! a guessed length.

use std::panic::Location;
use std::time::{Duration, Instant};

/// How long a test waits for a condition: far longer than a busy machine needs, so that only a condition that
/// never holds fails.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// The time between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds. Panics with `name`, which says what should have happened, after
/// [`WAIT_MAX`].
#[track_caller]
pub fn eventually(name: &str, mut condition: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move {
        let started = Instant::now();
        while !condition().await {
            assert!(started.elapsed() < WAIT_MAX, "{name}: not so after {WAIT_MAX:?} ({caller})");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// The same without a runtime: blocks the thread until `condition` returns a value, and returns that.
#[track_caller]
pub fn eventually_blocking<T>(name: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(started.elapsed() < WAIT_MAX, "{name}: not so after {WAIT_MAX:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
