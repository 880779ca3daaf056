//! Who may work now, who waits, who is turned away: a bounded number of permits, a bounded queue, a deadline for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The door. Clones are the same door.
#[derive(Debug, Clone)]
pub struct Admission {
    permits: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    draining: Arc<AtomicBool>,
    queue_max: usize,
}

/// Leave to work; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    _permit: OwnedSemaphorePermit,
}

/// Why a request may not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Overloaded,
    /// The deadline passed while waiting.
    Late,
    /// The daemon is shutting down.
    Draining,
}

impl Admission {
    /// A door for `concurrency_max` at a time, with `queue_max` waiting.
    pub fn new(concurrency_max: usize, queue_max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(concurrency_max)),
            waiting: Arc::default(),
            draining: Arc::default(),
            queue_max,
        }
    }

    /// Waits for a permit until `deadline`; first come, first served.
    ///
    /// # Errors
    /// [`Refusal`]. A caller that stops waiting leaves the queue.
    pub async fn enter(&self, deadline: Instant) -> Result<Permit, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Draining);
        }
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(Permit { _permit: permit });
        }
        let _place = Place::take(&self.waiting, self.queue_max).ok_or(Refusal::Overloaded)?;
        let permit =
            tokio::time::timeout_at(deadline.into(), Arc::clone(&self.permits).acquire_owned()).await;
        match permit {
            Err(_elapsed) => Err(Refusal::Late),
            Ok(permit) => Ok(Permit { _permit: permit.expect("the semaphore is never closed") }),
        }
    }

    /// From now on nobody new comes in; those inside and those waiting go on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Requests waiting for a permit.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A place in the queue; given back when dropped, also by a caller that has gone.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(waiting: &Arc<AtomicUsize>, queue_max: usize) -> Option<Self> {
        let more = |n| (n < queue_max).then_some(n + 1);
        waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()
            .map(|_| Self(Arc::clone(waiting)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn one_works_one_waits_the_third_is_turned_away() {
        let door = Admission::new(1, 1);
        let first = door.enter(soon()).await.expect("the door is open");
        let waiting = tokio::spawn({
            let door = door.clone();
            async move { door.enter(Instant::now() + Duration::from_secs(5)).await.map(drop) }
        });
        while door.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(door.enter(soon()).await.err(), Some(Refusal::Overloaded));
        drop(first);
        assert_eq!(waiting.await.expect("no panic"), Ok(()));
        assert_eq!(door.waiting(), 0);
    }

    #[tokio::test]
    async fn waiting_past_the_deadline_is_late_and_leaves_the_queue() {
        let door = Admission::new(1, 1);
        let _first = door.enter(soon()).await.expect("the door is open");
        assert_eq!(door.enter(soon()).await.err(), Some(Refusal::Late));
        assert_eq!(door.waiting(), 0);
    }

    #[tokio::test]
    async fn draining_lets_nobody_in() {
        let door = Admission::new(1, 1);
        door.drain();
        assert_eq!(door.enter(soon()).await.err(), Some(Refusal::Draining));
    }
}
