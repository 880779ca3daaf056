//! Who may work now, who waits, who is turned away: a bounded number of permits, a bounded queue, a deadline for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many may come in.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Who work at the same time.
    pub concurrency_max: usize,
    /// Who wait.
    pub queue_max: usize,
    /// Answers that arrive at the same time, each of which comes in again and again.
    pub stream_count_max: usize,
}

/// The door. Clones are the same door.
#[derive(Debug, Clone)]
pub struct Admission {
    permits: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    draining: Arc<AtomicBool>,
    queue_max: usize,
}

/// One who comes in again and again, as long as its answer arrives; its place is given back when dropped.
#[derive(Debug)]
pub struct Stream {
    door: Admission,
    _place: OwnedSemaphorePermit,
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
    /// As many answers are arriving as may.
    StreamsTooMany,
    /// The daemon is shutting down.
    Draining,
}

impl Admission {
    /// A door for so many.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(bounds.concurrency_max)),
            streams: Arc::new(Semaphore::new(bounds.stream_count_max)),
            waiting: Arc::default(),
            draining: Arc::default(),
            queue_max: bounds.queue_max,
        }
    }

    /// Waits for a permit until `deadline`; first come, first served.
    ///
    /// # Errors
    /// [`Refusal`]. A caller that stops waiting leaves the queue.
    pub async fn enter(&self, deadline: Instant) -> Result<Permit, Refusal> {
        match self.is_draining() {
            true => Err(Refusal::Draining),
            false => self.wait(deadline).await,
        }
    }

    /// A place for one who will come in again and again.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn stream(&self) -> Result<Stream, Refusal> {
        if self.is_draining() {
            return Err(Refusal::Draining);
        }
        let place = Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Refusal::StreamsTooMany)?;
        Ok(Stream { door: self.clone(), _place: place })
    }

    async fn wait(&self, deadline: Instant) -> Result<Permit, Refusal> {
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

impl Stream {
    /// As [`Admission::enter`], also while the daemon shuts down: who is inside goes on.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn enter(&self, deadline: Instant) -> Result<Permit, Refusal> {
        self.door.wait(deadline).await
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

    const ONE: Bounds = Bounds { concurrency_max: 1, queue_max: 1, stream_count_max: 1 };

    #[tokio::test]
    async fn a_stream_goes_on_while_nobody_new_comes_in() {
        let door = Admission::new(ONE);
        let stream = door.stream().expect("the door is open");
        assert_eq!(door.stream().err(), Some(Refusal::StreamsTooMany));
        door.drain();
        assert_eq!(door.enter(soon()).await.err(), Some(Refusal::Draining));
        drop(stream.enter(soon()).await.expect("it was inside"));
        drop(stream);
        assert_eq!(door.stream().err(), Some(Refusal::Draining));
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn one_works_one_waits_the_third_is_turned_away() {
        let door = Admission::new(ONE);
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
        let door = Admission::new(ONE);
        let _first = door.enter(soon()).await.expect("the door is open");
        assert_eq!(door.enter(soon()).await.err(), Some(Refusal::Late));
        assert_eq!(door.waiting(), 0);
    }

    #[tokio::test]
    async fn draining_lets_nobody_in() {
        let door = Admission::new(ONE);
        door.drain();
        assert_eq!(door.enter(soon()).await.err(), Some(Refusal::Draining));
    }
}
