//! Things that one thread uses at a time, lent in turn.
//! Knows nothing of what they are.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often who waits is asked whether it still does.
const ASKED_EVERY: Duration = Duration::from_millis(50);

/// Who asks takes one that is free, or waits for its turn.
pub struct Pool<T> {
    idle: Mutex<Vec<T>>,
    returned: Condvar,
}

/// One that goes back, also when its user panics.
struct Lent<'a, T> {
    pool: &'a Pool<T>,
    one: Option<T>,
}

impl<T> Pool<T> {
    /// Lends these.
    pub fn new(all: Vec<T>) -> Self {
        Self { idle: Mutex::new(all), returned: Condvar::new() }
    }

    /// Runs `work` on the next that is free.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.with_while(|| true, work).expect("somebody waits until there is one")
    }

    /// The same, as long as somebody waits: none when `go_on` says no before one is free.
    pub fn with_while<R>(&self, go_on: impl Fn() -> bool, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let one = loop {
            if let Some(one) = idle.pop() {
                break one;
            }
            if !go_on() {
                return None;
            }
            let waited = self.returned.wait_timeout(idle, ASKED_EVERY);
            (idle, _) = waited.unwrap_or_else(PoisonError::into_inner);
        };
        drop(idle);
        let mut lent = Lent { pool: self, one: Some(one) };
        Some(work(lent.one.as_mut().expect("it is lent")))
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.one.take());
        self.pool.returned.notify_one();
    }
}
