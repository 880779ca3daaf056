//! Reading and rewriting requests and answers takes processor time, also where nothing is compressed and no permit is asked for. It runs here: at
//! most so many pieces of work at once, the others wait in order.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use thresher_core::pipeline::cancel::Cancel;
use tokio::sync::Semaphore;

use crate::error::ApiError;
use crate::http::work;

/// Runs work off the threads that carry connections, a bounded number of pieces at once. Who waits is bounded by the number of requests that
/// are on their way (`middleware.request_count_max`).
pub struct Lane {
    slots: Arc<Semaphore>,
}

impl Lane {
    /// For so many at once.
    pub fn new(slot_count: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(slot_count)) }
    }

    /// For one on each core.
    pub fn per_core() -> Self {
        Self::new(available_parallelism().map_or(1, usize::from))
    }

    /// Waits for a slot, then works. The work is told to stop when it has taken `time`, or when its caller has gone.
    ///
    /// # Errors
    /// What the work says; an internal error when it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl FnOnce(&Cancel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.expect("the semaphore is never closed");
        let cancel = Cancel::at(Some(Instant::now() + time));
        let _gone = CancelOnDrop(cancel.clone());
        work::run_blocking(move || {
            // Held until the work has ended, not only until nobody waits for it.
            let _slot = slot;
            work(&cancel)
        })
        .await
    }
}

struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test(flavor = "multi_thread")]
    async fn work_that_nobody_waits_for_keeps_its_slot_until_it_ends() {
        let lane = Arc::new(Lane::new(1));
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let (ended, has_ended) = mpsc::channel();
        let first = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move {
                lane.run(LONG, move |cancel| {
                    begun.send(()).expect("the test waits");
                    may_go_on.recv().expect("the test says so");
                    ended.send(cancel.go_on()).expect("the test waits");
                    Ok(())
                })
                .await
            }
        });
        tokio::task::spawn_blocking(move || has_begun.recv()).await.expect("no panic").expect("it begins");
        first.abort();
        assert!(first.await.expect_err("its caller has gone").is_cancelled());
        assert_eq!(lane.slots.available_permits(), 0, "it still works");
        let second = lane.run(LONG, |cancel| Ok(cancel.go_on()));
        go_on.send(()).expect("it waits");
        assert!(second.await.expect("a slot is free again"));
        assert!(!has_ended.recv().expect("it ended"), "it was told that its caller has gone");
    }

    #[tokio::test]
    async fn work_is_told_when_its_time_is_over() {
        let late = Lane::new(1).run(Duration::ZERO, |cancel| Ok(cancel.go_on())).await;
        assert_eq!(late.ok(), Some(false));
    }
}
