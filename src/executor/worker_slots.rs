//! Bounds how many pieces of processor work run at once that need no permit, such as reading and rewriting conversations.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use thresher_core::pipeline::cancel::Cancel;
use tokio::sync::Semaphore;

use super::run_cancellable;
use crate::error::ApiError;

/// Runs work on threads that may block, a bounded number of pieces at once; others wait in the order in which they came. The number of
/// those that wait is for the caller to bound.
pub struct WorkerSlots(Arc<Semaphore>);

impl WorkerSlots {
    /// At most `slot_count` pieces of work at once.
    pub fn new(slot_count: usize) -> Self {
        Self(Arc::new(Semaphore::new(slot_count)))
    }

    /// One piece of work per core at once.
    pub fn per_core() -> Self {
        Self::new(available_parallelism().map_or(1, usize::from))
    }

    /// Waits for a slot, then runs `work`. The work is told to stop when it has run for `time`, or when the returned future is dropped. It
    /// keeps its slot until it has ended.
    ///
    /// # Errors
    /// What `work` fails with; `internal` when it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl FnOnce(&Cancel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let slot = Arc::clone(&self.0).acquire_owned().await.expect("the semaphore is never closed");
        run_cancellable(Cancel::at(Some(Instant::now() + time)), slot, work).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test(flavor = "multi_thread")]
    async fn work_that_nobody_waits_for_keeps_its_slot_until_it_ends() {
        let slots = Arc::new(WorkerSlots::new(1));
        let (started, has_started) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let (ended, has_ended) = mpsc::channel();
        let first = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move {
                let work = move |cancel: &Cancel| {
                    started.send(()).expect("the test waits");
                    may_go_on.recv().expect("the test says so");
                    ended.send(cancel.go_on()).expect("the test waits");
                    Ok(())
                };
                slots.run(LONG, work).await
            }
        });
        let starts = tokio::task::spawn_blocking(move || has_started.recv());
        starts.await.expect("no panic").expect("it starts");
        first.abort();
        assert!(first.await.expect_err("its caller has gone").is_cancelled());
        assert_eq!(slots.0.available_permits(), 0, "it still works");
        let second = slots.run(LONG, |cancel| Ok(cancel.go_on()));
        go_on.send(()).expect("it waits");
        assert!(second.await.expect("a slot is free again"));
        assert!(!has_ended.recv().expect("it ended"), "it was told that its caller has gone");
    }

    #[tokio::test]
    async fn work_is_told_when_its_time_is_over() {
        let late = WorkerSlots::new(1).run(Duration::ZERO, |cancel| Ok(cancel.go_on())).await;
        assert_eq!(late.ok(), Some(false));
    }
}
