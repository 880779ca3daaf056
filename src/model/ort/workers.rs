//! The threads that run graphs, and whose turn it is.
//! Knows nothing of what they run.

use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use rayon::ThreadPool;

use crate::model::ModelError;

/// How many pieces of one call lie in the queue for each worker: enough that no worker waits for the caller to hand out
/// the next, and so few that a small request never stands behind the whole of a large one.
const QUEUED_PER_WORKER: usize = 2;

/// A fixed number of threads that take pieces of work in the order in which they were handed in.
pub struct Workers {
    pool: ThreadPool,
}

impl Workers {
    /// `count` threads, at least one.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let name = |i| format!("model-{i}");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count.max(1)).thread_name(name).build()?;
        Ok(Self { pool })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// One piece of work, on the next free worker.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.pool.install(work)
    }

    /// `work(i)` for every `i` of `order`, side by side; results at place `i`. The first failure ends it.
    ///
    /// Must not be called from a worker: the caller hands out pieces as others are done, so that calls take turns.
    ///
    /// # Errors
    /// The failure that came first in `order`.
    pub fn each<T: Send + Sync>(
        &self,
        order: &[usize],
        work: impl Fn(usize) -> Result<T, ModelError> + Sync,
    ) -> Result<Vec<T>, ModelError> {
        let slots: Vec<OnceLock<T>> = order.iter().map(|_| OnceLock::new()).collect();
        let failed: Mutex<Option<(usize, ModelError)>> = Mutex::new(None);
        let has_failed = || failed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.pool.in_place_scope(|scope| {
            let (done, next) = mpsc::channel();
            for (turn, &i) in order.iter().enumerate() {
                if turn >= QUEUED_PER_WORKER * self.count() {
                    let _ = next.recv();
                }
                if has_failed() {
                    break;
                }
                let (done, work, slots, failed) = (Done(done.clone()), &work, &slots, &failed);
                scope.spawn(move |_| {
                    let _done = done;
                    match work(i) {
                        Ok(result) => drop(slots[i].set(result)),
                        Err(error) => keep_first(failed, turn, error),
                    }
                });
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => {
                Ok(slots.into_iter().map(|slot| slot.into_inner().expect("every piece was done")).collect())
            }
        }
    }
}

fn keep_first(failed: &Mutex<Option<(usize, ModelError)>>, turn: usize, error: ModelError) {
    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
    if failed.as_ref().is_none_or(|&(first, _)| turn < first) {
        *failed = Some((turn, error));
    }
}

/// Tells the caller that a piece has ended, also when it panicked.
struct Done(mpsc::Sender<()>);

impl Drop for Done {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn results_stand_where_they_belong() {
        let workers = Workers::new(3).expect("threads");
        let order: Vec<usize> = (0..50).rev().collect();
        let squares = workers.each(&order, |i| Ok(i * i)).expect("nothing fails");
        assert_eq!(squares, (0..50).map(|i| i * i).collect::<Vec<_>>());
        assert!(workers.each(&[], Ok).expect("nothing to do").is_empty());
    }

    #[test]
    fn a_failure_ends_the_work() {
        let workers = Workers::new(1).expect("threads");
        let ran = AtomicUsize::new(0);
        let order: Vec<usize> = (0..100).collect();
        let outcome = workers.each(&order, |_| -> Result<(), _> {
            ran.fetch_add(1, Ordering::Relaxed);
            Err(ModelError::Stopped)
        });
        assert!(matches!(outcome, Err(ModelError::Stopped)));
        assert!(ran.load(Ordering::Relaxed) <= 1 + QUEUED_PER_WORKER);
    }

    #[test]
    fn a_small_call_does_not_wait_for_all_of_a_large_one() {
        let workers = Workers::new(1).expect("threads");
        let (done, large_started) = (AtomicUsize::new(0), OnceLock::new());
        std::thread::scope(|scope| {
            let large: Vec<usize> = (0..200).collect();
            let (workers, done, large_started) = (&workers, &done, &large_started);
            let large = scope.spawn(move || {
                workers.each(&large, |_| {
                    large_started.get_or_init(|| ());
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    done.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
            });
            large_started.wait();
            workers.each(&[0], |_| Ok(())).expect("nothing fails");
            assert!(done.load(Ordering::Relaxed) < 200, "the small call came last");
            large.join().expect("no panic").expect("nothing fails");
        });
    }
}
