//! Things that one thread uses at a time, lent in turn.
//! Knows nothing of what they are.

use std::sync::{Condvar, Mutex, PoisonError};

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
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut idle =
            self.returned.wait_while(idle, |idle| idle.is_empty()).unwrap_or_else(PoisonError::into_inner);
        let one = idle.pop();
        drop(idle);
        let mut lent = Lent { pool: self, one };
        work(lent.one.as_mut().expect("waited until there is one"))
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.one.take());
        self.pool.returned.notify_one();
    }
}
