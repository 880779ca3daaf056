//! Threads that read windows, and the calls that have their windows read: a call queues them and passes the results on.
//! Knows nothing of what a batch computes.

mod queue;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use self::queue::Batching;
use self::queue::{Job, Queue, RunBatch};
use super::scheduling::Flow;
use crate::model::ModelError;

/// How many batches per worker a call has in the queue at a time. With this many, no worker waits for the
/// caller to queue more, and a small request never waits for all windows of a large one.
const QUEUED_BATCHES_PER_WORKER: usize = 2;

/// The most threads that process results. Encoding a chunk takes a small part of the time of reading it.
const HELPERS_MAX: usize = 8;

/// How long a call leaves a result to the helpers before it processes the result itself. While the call processes a
/// result, it passes no others on.
const HELP_PATIENCE: Duration = Duration::from_millis(1);

/// Threads that read windows.
pub struct Workers<T> {
    queue: Arc<Queue<T>>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that process results. Those of the global pool may be busy with other requests, and a call ends only
    /// after all threads that it has asked for help have answered.
    helpers: rayon::ThreadPool,
}

/// What happens to a window of a call, in this order. Each event has the index of the window.
enum Event<T> {
    /// A worker has read the window, or has failed to.
    Read(usize, Result<T, ModelError>),
    /// The result has been passed to the caller's function, which may have failed or panicked.
    Processed(usize, thread::Result<Result<(), ModelError>>),
}

/// The results of a call that have not been passed to the caller's function yet.
struct Unprocessed<'a, T, F> {
    results: Mutex<VecDeque<(usize, T)>>,
    on_read: &'a F,
    events: mpsc::Sender<Event<T>>,
}

impl<T, F: Fn(usize, T) -> Result<(), ModelError>> Unprocessed<'_, T, F> {
    fn push(&self, index: usize, result: T) {
        self.lock().push_back((index, result));
    }

    /// Processes the oldest result on this thread. Returns false if there is none.
    fn process_one(&self) -> bool {
        let Some((index, result)) = self.lock().pop_front() else { return false };
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.on_read)(index, result)));
        // The receiver is gone only if the call has failed.
        let _ = self.events.send(Event::Processed(index, outcome));
        true
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(usize, T)>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Workers<T> {
    /// Starts one thread for each of `runners`.
    ///
    /// # Errors
    /// Fails if the operating system cannot start a thread.
    pub fn start(
        runners: impl IntoIterator<Item = impl RunBatch<T>>,
        batching: Batching,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(batching));
        let start = |(i, run)| {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name(format!("model-{i}")).spawn(move || queue.serve(run))
        };
        let threads = runners.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let helpers = rayon::ThreadPoolBuilder::new()
            .num_threads(cores.min(HELPERS_MAX))
            .thread_name(|i| format!("results-{i}"))
            .build()
            .map_err(std::io::Error::other)?;
        Ok(Self { queue, threads, helpers })
    }

    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Returns how many windows of `tokens` tokens are read at the same time.
    pub fn windows_at_once(&self, tokens: usize) -> usize {
        self.count() * self.queue.batching().windows_max(tokens)
    }

    /// Reads `windows` in their order, and calls `on_read` with the index and the result of each, on the
    /// calling thread and on other threads. A window for which `is_needed` returns false right before
    /// the window would be queued is skipped. A window counts as queued until `on_read` has returned, so the
    /// number of results in memory is limited, too.
    ///
    /// # Errors
    /// Returns the first failure of a worker or of `on_read`; the remaining windows are not read.
    ///
    /// # Panics
    /// When `on_read` panics.
    pub fn read(
        &self,
        flow: Flow,
        windows: &[&[u32]],
        is_needed: impl Fn(usize) -> bool,
        on_read: impl Fn(usize, T) -> Result<(), ModelError> + Sync,
    ) -> Result<(), ModelError> {
        let (reply, events) = mpsc::channel();
        let unprocessed = Unprocessed { results: Mutex::default(), on_read: &on_read, events: reply.clone() };
        let mut queued = Queued { jobs: 0, tokens: 0 };
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut order = (0..windows.len()).peekable();
        let mut read = |patience: Duration, help: &dyn Fn()| {
            loop {
                let mut jobs = Vec::new();
                while let Some(&index) = order.peek()
                    && self.may_queue(&queued)
                {
                    order.next();
                    if is_needed(index) {
                        queued.add(windows[index]);
                        let (window, cancelled, reply) =
                            (windows[index].into(), Arc::clone(&cancelled), reply.clone());
                        // The receiver is gone if the call has failed.
                        let reply = Box::new(move |result| drop(reply.send(Event::Read(index, result))));
                        jobs.push(Job { window, flow, cancelled, reply });
                    }
                }
                self.queue.push(jobs);
                if queued.jobs == 0 {
                    return Ok(());
                }
                let event = if unprocessed.is_empty() {
                    events.recv().expect("this function holds a sender")
                } else if let Ok(event) = events.recv_timeout(patience) {
                    event
                } else {
                    unprocessed.process_one();
                    continue;
                };
                match event {
                    Event::Read(index, Ok(result)) => {
                        unprocessed.push(index, result);
                        help();
                    }
                    Event::Processed(index, Ok(Ok(()))) => queued.remove(windows[index]),
                    Event::Read(_, Err(error)) | Event::Processed(_, Ok(Err(error))) => {
                        cancelled.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                    Event::Processed(_, Err(panic)) => {
                        cancelled.store(true, Ordering::Relaxed);
                        resume_unwind(panic);
                    }
                }
            }
        };
        // At the end of the scope, a thread of rayon would take up other work while it waits. That work could
        // need a result that only this thread can give.
        let result = match rayon::current_thread_index() {
            Some(_) => read(Duration::ZERO, &|| ()),
            None => self.helpers.in_place_scope(|scope| {
                let unprocessed = &unprocessed;
                let help = || {
                    scope.spawn(move |_| {
                        unprocessed.process_one();
                    });
                };
                read(HELP_PATIENCE, &help)
            }),
        };
        // After a failure, results were still processed.
        for event in events.try_iter() {
            if let Event::Processed(_, Err(panic)) = event {
                resume_unwind(panic);
            }
        }
        result
    }

    /// Whether a call with these windows in the queue may queue more: up to two batches per worker, whether a
    /// batch is one long window or many short ones.
    fn may_queue(&self, queued: &Queued) -> bool {
        let batches = QUEUED_BATCHES_PER_WORKER * self.count();
        queued.jobs < batches || queued.tokens < batches * self.queue.batching().tokens_max
    }
}

/// The windows of a call that are queued, and their tokens.
struct Queued {
    jobs: usize,
    tokens: usize,
}

impl Queued {
    fn add(&mut self, window: &[u32]) {
        (self.jobs, self.tokens) = (self.jobs + 1, self.tokens + window.len());
    }

    fn remove(&mut self, window: &[u32]) {
        (self.jobs, self.tokens) = (self.jobs - 1, self.tokens - window.len());
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.queue.close();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn failure() -> ModelError {
        ModelError::Graph { graph: "the model".to_owned(), reason: "on purpose".to_owned() }
    }

    /// Returns workers whose result for a window is the sum of its ids, and the list of the sizes of the
    /// batches that they have run.
    fn workers(count: usize) -> (Workers<u32>, Arc<Mutex<Vec<usize>>>) {
        let batches = Arc::new(Mutex::new(Vec::new()));
        let run = |_| {
            let batches = Arc::clone(&batches);
            move |windows: &[Box<[u32]>]| {
                batches.lock().expect("no panic").push(windows.len());
                std::thread::sleep(Duration::from_millis(1));
                if windows.iter().any(|window| window.contains(&u32::MAX)) {
                    Err(failure())
                } else {
                    Ok(windows.iter().map(|window| window.iter().sum()).collect())
                }
            }
        };
        (Workers::start((0..count).map(run).collect::<Vec<_>>(), Batching::CPU).expect("threads"), batches)
    }

    /// Returns the sum of each window, or `None` for a window that was skipped.
    fn sums(
        workers: &Workers<u32>,
        windows: &[Vec<u32>],
        is_needed: impl Fn(usize) -> bool,
    ) -> Vec<Option<u32>> {
        let found = Mutex::new(vec![None; windows.len()]);
        let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        let keep = |i: usize, sum| {
            found.lock().expect("no panic")[i] = Some(sum);
            Ok(())
        };
        workers.read(Flow::DEFAULT, &windows, is_needed, keep).expect("nothing fails");
        found.into_inner().expect("no panic")
    }

    #[test]
    fn each_result_has_the_index_of_its_window() {
        let (workers, _) = workers(3);
        let windows: Vec<Vec<u32>> = (0..50).map(|i| vec![i; 1 + (i as usize * 7) % 60]).collect();
        let expected = windows.iter().map(|window| Some(window.iter().sum())).collect::<Vec<_>>();
        assert_eq!(sums(&workers, &windows, |_| true), expected);
        assert_eq!(sums(&workers, &[], |_| true), []);
        let odd = |i: usize| i % 2 == 1;
        let of_odd: Vec<_> = expected.iter().enumerate().map(|(i, sum)| sum.filter(|_| odd(i))).collect();
        assert_eq!(sums(&workers, &windows, odd), of_odd);
    }

    #[test]
    fn windows_of_equal_length_share_batches_up_to_the_limit() {
        let (workers, batches) = workers(1);
        sums(&workers, &vec![vec![1; 16]; 90], |_| true);
        let batches = batches.lock().expect("no panic");
        assert!(batches.iter().all(|&size| size <= Batching::CPU.tokens_max / 16), "{batches:?}");
        assert!(batches.len() < 20, "{batches:?}");
    }

    #[test]
    fn a_call_queues_as_many_windows_as_a_batch_may_have() {
        let (batches, batching) = (Arc::default(), Batching { tokens_max: 16_384, length_step: 32 });
        let runner = |_| {
            let batches: Arc<Mutex<Vec<usize>>> = Arc::clone(&batches);
            move |windows: &[Box<[u32]>]| {
                batches.lock().expect("no panic").push(windows.len());
                Ok(windows.iter().map(|window| window.iter().sum()).collect())
            }
        };
        let workers = Workers::start((0..2).map(runner).collect::<Vec<_>>(), batching).expect("threads");
        let windows: Vec<Vec<u32>> = (0..100).map(|i| vec![1; 180 + i * 7 % 41]).collect();
        let expected: Vec<_> = windows.iter().map(|window| Some(window.len() as u32)).collect();
        assert_eq!(sums(&workers, &windows, |_| true), expected);
        let mut found = batches.lock().expect("no panic").clone();
        found.sort_unstable();
        assert_eq!(found, [32, 68]);
    }

    #[test]
    fn a_failure_ends_its_call_and_no_other() {
        let (workers, batches) = workers(1);
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                let window: &[u32] = &[u32::MAX; 100];
                workers.read(Flow::DEFAULT, &[window; 100], |_| true, |_, _| Ok(()))
            });
            assert_eq!(sums(&workers, &vec![vec![1; 90]; 20], |_| true), vec![Some(90); 20]);
            assert!(failing.join().expect("no panic").is_err());
        });
        assert!(batches.lock().expect("no panic").len() < 60);
    }

    #[test]
    fn a_panic_of_a_result_is_not_lost_beside_a_failure() {
        let run = |windows: &[Box<[u32]>]| match windows[0][0] {
            0 => Err(failure()),
            n => Ok(vec![n; windows.len()]),
        };
        let workers = Workers::start([run], Batching::CPU).expect("threads");
        let windows: [&[u32]; 2] = [&[1; 200], &[0; 200]];
        let on_read = |_, _: u32| -> Result<(), ModelError> {
            std::thread::sleep(Duration::from_millis(20));
            panic!("on purpose");
        };
        let read = || workers.read(Flow::DEFAULT, &windows, |_| true, on_read);
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
    }

    #[test]
    fn a_call_ends_while_the_global_threads_are_busy() {
        let (workers, _) = workers(2);
        let (release, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        std::thread::scope(|scope| {
            // Every thread of the global pool waits until the call has ended.
            scope.spawn(|| {
                rayon::broadcast(|_| {
                    let _ = wait.lock().expect("no panic").recv();
                })
            });
            assert_eq!(sums(&workers, &vec![vec![1; 100]; 8], |_| true), vec![Some(100); 8]);
            drop(release);
        });
    }

    #[test]
    fn a_panic_fails_its_window_and_does_not_end_the_thread() {
        let run = |windows: &[Box<[u32]>]| match windows[0][0] {
            0 => panic!("on purpose"),
            n => Ok(vec![n; windows.len()]),
        };
        let workers = Workers::start([run], Batching::CPU).expect("threads");
        assert!(workers.read(Flow::DEFAULT, &[&[0]], |_| true, |_, _: u32| Ok(())).is_err());
        assert_eq!(sums(&workers, &[vec![7]], |_| true), [Some(7)]);
    }

    #[test]
    fn results_are_processed_at_the_same_time() {
        // Each result waits for another one, so one thread alone would never end. Pools on machines with one
        // core have one thread; the calling thread is the second one.
        let (workers, _) = workers(2);
        let meeting = std::sync::Barrier::new(2);
        let windows: [&[u32]; 2] = [&[1], &[2, 2]];
        let on_read = |_, _| {
            meeting.wait();
            Ok(())
        };
        workers.read(Flow::DEFAULT, &windows, |_| true, on_read).expect("nothing fails");
    }

    #[test]
    fn results_that_are_not_processed_count_as_queued() {
        let (workers, _) = workers(2);
        let (queued, unprocessed_max) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let window: &[u32] = &[1; 200];
        let is_needed = |_| {
            let unprocessed = queued.fetch_add(1, Ordering::SeqCst) + 1;
            unprocessed_max.fetch_max(unprocessed, Ordering::SeqCst);
            true
        };
        let on_read = |_, _| {
            std::thread::sleep(Duration::from_millis(3));
            queued.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        };
        workers.read(Flow::DEFAULT, &[window; 60], is_needed, on_read).expect("nothing fails");
        assert_eq!(unprocessed_max.into_inner(), QUEUED_BATCHES_PER_WORKER * workers.count());
    }

    #[test]
    fn a_panic_while_a_result_is_processed_reaches_the_caller_and_ends_the_call() {
        let (workers, batches) = workers(1);
        let window: &[u32] = &[1; 200];
        let on_read = |i, _| {
            assert!(i < 3, "on purpose");
            Ok(())
        };
        let read = || workers.read(Flow::DEFAULT, &[window; 100], |_| true, on_read);
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
        assert_eq!(sums(&workers, &[vec![7]], |_| true), [Some(7)]);
        assert!(batches.lock().expect("no panic").len() < 20);
    }

    #[test]
    fn a_failure_while_a_result_is_processed_ends_the_call() {
        let (workers, batches) = workers(1);
        let window: &[u32] = &[1; 200];
        let on_read = |i, _| if i == 3 { Err(failure()) } else { Ok(()) };
        let error = workers.read(Flow::DEFAULT, &[window; 100], |_| true, on_read).unwrap_err();
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert_eq!(sums(&workers, &[vec![7]], |_| true), [Some(7)]);
        assert!(batches.lock().expect("no panic").len() < 20);
    }

    #[test]
    fn calls_on_all_threads_of_rayon_at_the_same_time_end() {
        let (workers, _) = workers(2);
        let windows: Vec<Vec<u32>> = (0..20).map(|i| vec![i; 100]).collect();
        let expected: Vec<_> = windows.iter().map(|window| Some(window.iter().sum())).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
        let found = pool.broadcast(|_| sums(&workers, &windows, |_| true));
        assert_eq!(found, vec![expected; 3]);
    }

    #[test]
    fn a_small_call_does_not_wait_for_all_of_a_large_one() {
        let (workers, _) = workers(1);
        let read = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let large = scope.spawn(|| {
                let window: &[u32] = &[1; 200];
                workers.read(
                    Flow::DEFAULT,
                    &[window; 200],
                    |_| true,
                    |_, _| {
                        read.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    },
                )
            });
            while read.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            sums(&workers, &[vec![1]], |_| true);
            assert!(read.load(Ordering::Relaxed) < 200, "the small call was served last");
            large.join().expect("no panic").expect("nothing fails");
        });
    }
}
