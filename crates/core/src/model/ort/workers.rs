//! Threads that read windows: the queue of windows, the order in which flows are served, and the grouping of
//! windows into batches. Knows nothing of what a batch computes.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::scheduling::{FairScheduler, Flow};
use crate::model::ModelError;

/// Which windows may share a batch, and how large a batch may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// The largest number of tokens of a batch, padding included, unless a single window has more. Special
    /// tokens do not count.
    pub tokens_max: usize,
    /// Windows may share a batch if their lengths, rounded up to a multiple of this number, are equal. With 1,
    /// all windows of a batch have the same length, and there is no padding.
    pub length_step: usize,
}

impl Batching {
    /// The batching on the CPU. Without padding, each window gets the same bits as alone.
    ///
    /// Only short windows gain: eight windows of 18 tokens together take two thirds of their time alone, and
    /// from 64 tokens on it makes no difference (`docs/performance.md`).
    pub const CPU: Self = Self { tokens_max: 144, length_step: 1 };

    /// Returns the largest length of the windows that may share a batch with a window of `tokens` tokens.
    /// Windows may share a batch if and only if this length is the same for all of them.
    fn length_max(self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.length_step.max(1))
    }

    /// Returns the largest number of windows in a batch with a window of `tokens` tokens.
    ///
    /// The attention logits of a window grow with the square of its length. Above [`Self::LONG_TOKENS`] tokens, they
    /// limit the batch: together, they take no more memory than those of a full batch of windows of that length.
    fn windows_max(self, tokens: usize) -> usize {
        let length = self.length_max(tokens).max(1);
        let counted = length.max(length.saturating_mul(length) / Self::LONG_TOKENS);
        (self.tokens_max / counted).max(1)
    }

    /// The length of a window above which attention takes most of the memory of a batch.
    const LONG_TOKENS: usize = 512;
}

/// How many batches per worker a call has in the queue at a time. With this many, no worker waits for the
/// caller to queue more, and a small request never waits for all windows of a large one.
const QUEUED_BATCHES_PER_WORKER: usize = 2;

/// The most threads that process results. Encoding a chunk takes a small part of the time of reading it.
const HELPERS_MAX: usize = 8;

/// How long a call leaves a result to the helpers before it processes the result itself. While the call processes a
/// result, it passes no others on.
const HELP_PATIENCE: Duration = Duration::from_millis(1);

/// Computes a batch: takes windows that may share a batch (see [`Batching`]), and returns one result per
/// window.
pub trait RunBatch<T>: FnMut(&[Box<[u32]>]) -> Result<Vec<T>, ModelError> + Send + 'static {}
impl<T, F: FnMut(&[Box<[u32]>]) -> Result<Vec<T>, ModelError> + Send + 'static> RunBatch<T> for F {}

/// Threads that read windows. The order between flows is that of [`FairScheduler`], by the number of tokens
/// that each flow has had read. Within a flow, windows are read in the order in which they were queued.
pub struct Workers<T> {
    queue: Arc<Queue<T>>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that process results. Those of the global pool may be busy with other requests, and a call ends only
    /// after all threads that it has asked for help have answered.
    helpers: rayon::ThreadPool,
}

struct Queue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
    batching: Batching,
}

struct QueueState<T> {
    /// In the order in which they were queued. The list is short, because each call queues only a few batches
    /// at a time.
    jobs: Vec<Job<T>>,
    scheduler: FairScheduler,
    closed: bool,
}

struct Job<T> {
    window: Box<[u32]>,
    /// The index of the window in its call.
    index: usize,
    flow: Flow,
    /// Set when the call has failed; its other jobs are then removed from the queue.
    cancelled: Arc<AtomicBool>,
    reply: mpsc::Sender<Event<T>>,
}

/// What happens to a window of a call, in this order. Each event has the index of the window.
enum Event<T> {
    /// A worker has read the window, or has failed to.
    Read(usize, Result<T, ModelError>),
    /// The result has been passed to the caller's function, which may have panicked.
    Processed(usize, thread::Result<()>),
}

/// The results of a call that have not been passed to the caller's function yet.
struct Unprocessed<'a, T, F> {
    results: Mutex<VecDeque<(usize, T)>>,
    on_read: &'a F,
    events: mpsc::Sender<Event<T>>,
}

impl<T, F: Fn(usize, T)> Unprocessed<'_, T, F> {
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

    /// Returns the number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Returns how many windows of `tokens` tokens are read at the same time.
    pub fn windows_at_once(&self, tokens: usize) -> usize {
        self.count() * self.queue.batching.windows_max(tokens)
    }

    /// Reads `windows` in their order, and calls `on_read` with the index and the result of each, on the
    /// calling thread and on other threads. A window for which `is_needed` returns false right before
    /// the window would be queued is skipped. A window counts as queued until `on_read` has returned, so the
    /// number of results in memory is limited, too.
    ///
    /// # Errors
    /// Returns the first failure; the remaining windows are not read.
    ///
    /// # Panics
    /// When `on_read` panics.
    pub fn read(
        &self,
        flow: Flow,
        windows: &[&[u32]],
        is_needed: impl Fn(usize) -> bool,
        on_read: impl Fn(usize, T) + Sync,
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
                        let (window, cancelled) = (windows[index].into(), Arc::clone(&cancelled));
                        jobs.push(Job { window, index, flow, cancelled, reply: reply.clone() });
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
                    Event::Processed(index, Ok(())) => queued.remove(windows[index]),
                    Event::Read(_, Err(error)) => {
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
        queued.jobs < batches || queued.tokens < batches * self.queue.batching.tokens_max
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

impl<T> Queue<T> {
    fn new(batching: Batching) -> Self {
        let state = QueueState { jobs: Vec::new(), scheduler: FairScheduler::default(), closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), batching }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues jobs. All of them are in the queue before an idle worker takes its next batch; otherwise it
    /// would begin with a batch of one window.
    fn push(&self, jobs: Vec<Job<T>>) {
        let count = jobs.len();
        self.lock().jobs.extend(jobs);
        match count {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    /// Runs batches until the queue is closed. A panic of `run` fails the batch and does not end the thread.
    fn serve(&self, mut run: impl RunBatch<T>) {
        let mut run = |windows: &[Box<[u32]>]| {
            let results = catch_unwind(AssertUnwindSafe(|| run(windows)))
                .unwrap_or_else(|_panic| Err(missing_result()))?;
            if results.len() == windows.len() { Ok(results) } else { Err(missing_result()) }
        };
        while let Some((windows, jobs)) = self.next_batch() {
            for ((index, reply), result) in jobs.into_iter().zip(run_in_parts(&mut run, &windows, &mut 0)) {
                // The receiver is gone if the call has failed.
                let _ = reply.send(Event::Read(index, result));
            }
        }
    }

    /// Waits for the next batch. Returns its windows, and for each the index and the channel of its call.
    /// Returns `None` when the queue is closed and empty.
    #[allow(clippy::type_complexity, reason = "the windows are separate because the runner takes a slice")]
    fn next_batch(&self) -> Option<(Vec<Box<[u32]>>, Vec<(usize, mpsc::Sender<Event<T>>)>)> {
        let mut state = self.lock();
        loop {
            if let Some(jobs) = state.next_batch(self.batching) {
                return Some(jobs.into_iter().map(|job| (job.window, (job.index, job.reply))).unzip());
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> QueueState<T> {
    /// Removes the jobs of the next batch from the queue: the oldest job of the flow that is served next, and
    /// jobs whose windows may share its batch, up to the limit; first those of the same flow, then those of
    /// other flows, to which this is no disadvantage. Each flow is charged for its own windows.
    fn next_batch(&mut self, batching: Batching) -> Option<Vec<Job<T>>> {
        self.jobs.retain(|job| !job.cancelled.load(Ordering::Relaxed));
        let flow = self.scheduler.next(self.jobs.iter().map(|job| job.flow))?;
        let first = self.jobs.iter().position(|job| job.flow == flow).expect("the flow has a job");
        let first = self.jobs.remove(first);
        let tokens = first.window.len();
        self.scheduler.begin(flow, tokens as u64);
        let (length_max, count_max) = (batching.length_max(tokens), batching.windows_max(tokens));
        let mut batch = vec![first];
        for is_same_flow in [true, false] {
            let mut at = 0;
            while batch.len() < count_max && at < self.jobs.len() {
                let job = &self.jobs[at];
                let fits = batching.length_max(job.window.len()) == length_max;
                match fits && (job.flow == flow) == is_same_flow {
                    true => {
                        self.scheduler.charge(job.flow, job.window.len() as u64);
                        batch.push(self.jobs.remove(at));
                    }
                    false => at += 1,
                }
            }
        }
        Some(batch)
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// How many windows of a batch fail alone, one after the other, before the rest is not run any more: the device then
/// fails whatever it is given.
const FAILED_ALONE_MAX: usize = 2;

/// Runs a batch and returns the result of each window. If the batch fails, both halves are run on their own,
/// down to single windows. The windows of a batch may belong to several calls, so only the call of the window
/// that causes the failure may fail; and a batch may need more memory than the device has left, which its parts
/// do not. `failed_alone` counts single windows that have failed since a run succeeded.
fn run_in_parts<T>(
    run: &mut impl FnMut(&[Box<[u32]>]) -> Result<Vec<T>, ModelError>,
    windows: &[Box<[u32]>],
    failed_alone: &mut usize,
) -> Vec<Result<T, ModelError>> {
    if *failed_alone == FAILED_ALONE_MAX {
        return windows.iter().map(|_| Err(not_run())).collect();
    }
    match run(windows) {
        Ok(results) => {
            *failed_alone = 0;
            results.into_iter().map(Ok).collect()
        }
        Err(error) if windows.len() == 1 => {
            *failed_alone += 1;
            vec![Err(error)]
        }
        Err(error) => {
            tracing::warn!(%error, windows = windows.len(), "a batch failed, and its halves are run");
            let (first, second) = windows.split_at(windows.len() / 2);
            let mut results = run_in_parts(run, first, failed_alone);
            results.extend(run_in_parts(run, second, failed_alone));
            results
        }
    }
}

fn not_run() -> ModelError {
    let reason = "other windows of the batch failed, one by one, so this one was not run".to_owned();
    ModelError::Graph { graph: "the model".to_owned(), reason }
}

fn missing_result() -> ModelError {
    let reason = "an inference run panicked or returned the wrong number of results".to_owned();
    ModelError::Graph { graph: "the model".to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Returns workers whose result for a window is the sum of its ids, and the list of the sizes of the
    /// batches that they have run.
    fn workers(count: usize) -> (Workers<u32>, Arc<Mutex<Vec<usize>>>) {
        let batches = Arc::new(Mutex::new(Vec::new()));
        let run = |_| {
            let batches = Arc::clone(&batches);
            move |windows: &[Box<[u32]>]| {
                batches.lock().expect("no panic").push(windows.len());
                std::thread::sleep(Duration::from_millis(1));
                match windows.iter().any(|window| window.contains(&u32::MAX)) {
                    true => Err(missing_result()),
                    false => Ok(windows.iter().map(|window| window.iter().sum()).collect()),
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
        let keep = |i: usize, sum| found.lock().expect("no panic")[i] = Some(sum);
        workers.read(Flow::DEFAULT, &windows, is_needed, keep).expect("nothing fails");
        found.into_inner().expect("no panic")
    }

    /// Returns the index and the result of each window that was read.
    fn read_events<T>(events: &mpsc::Receiver<Event<T>>) -> Vec<(usize, Option<T>)> {
        let read = |event| match event {
            Event::Read(index, result) => (index, result.ok()),
            Event::Processed(..) => unreachable!("only calls process results"),
        };
        events.try_iter().map(read).collect()
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
    fn windows_share_a_batch_if_their_rounded_lengths_are_equal() {
        let check = |name: &str, batching: Batching, lengths: &[usize], expect: &[&[usize]]| {
            let (queue, (reply, _replies)) = (Queue::<()>::new(batching), mpsc::channel());
            let job = |(index, &tokens): (usize, &usize)| Job {
                window: vec![1; tokens].into(),
                index,
                flow: Flow::DEFAULT,
                cancelled: Arc::default(),
                reply: reply.clone(),
            };
            queue.push(lengths.iter().enumerate().map(job).collect());
            let batches = std::iter::from_fn(|| queue.lock().next_batch(batching));
            let lengths = |jobs: Vec<Job<()>>| jobs.iter().map(|job| job.window.len()).collect::<Vec<_>>();
            let found: Vec<Vec<usize>> = batches.map(lengths).collect();
            assert_eq!(found, expect, "{name}");
            for batch in &found {
                let padded = batch.len() * batch.iter().max().expect("a window");
                assert!(batch.len() == 1 || padded <= batching.tokens_max, "{name}: {padded} tokens");
            }
        };
        let step = |tokens_max, length_step| Batching { tokens_max, length_step };
        check("equal lengths only", step(100, 1), &[9, 10, 9, 10], &[&[9, 9], &[10, 10]]);
        let mixed = [32, 33, 1, 64, 31, 65];
        check("one step", step(1000, 32), &mixed, &[&[32, 1, 31], &[33, 64], &[65]]);
        check("padding counts", step(96, 32), &[1, 2, 3, 4, 32], &[&[1, 2, 3], &[4, 32]]);
        check("a window beyond the limit", step(96, 32), &[100, 101, 5], &[&[100], &[101], &[5]]);
        check("empty windows", step(64, 32), &[0, 0, 1], &[&[0, 0], &[1]]);
        check(
            "attention of long windows",
            step(4096, 32),
            &[1024, 1000, 512, 500],
            &[&[1024, 1000], &[512, 500]],
        );
        check("of longer ones", step(4096, 32), &[1500, 1490], &[&[1500], &[1490]]);
        // A hundred chunks of usual size take two runs, not a hundred.
        let usual: Vec<usize> = (0..100).map(|i| 180 + i * 7 % 41).collect();
        let (shorter, longer) = usual.iter().copied().partition::<Vec<usize>, _>(|&tokens| tokens <= 192);
        check("usual chunks", step(16_384, 32), &usual, &[&shorter, &longer]);
        assert_eq!((shorter.len(), longer.len()), (32, 68));
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
                workers.read(Flow::DEFAULT, &[window; 100], |_| true, |_, _| ())
            });
            assert_eq!(sums(&workers, &vec![vec![1; 90]; 20], |_| true), vec![Some(90); 20]);
            assert!(failing.join().expect("no panic").is_err());
        });
        assert!(batches.lock().expect("no panic").len() < 60);
    }

    #[test]
    fn a_failed_window_does_not_fail_the_others_of_its_batch() {
        let failing: Vec<Box<[u32]>> = vec![[1; 4].into(), [u32::MAX; 4].into(), [2; 4].into()];
        let (queue, (reply, replies)) = (Queue::new(Batching::CPU), mpsc::channel());
        for (index, window) in failing.into_iter().enumerate() {
            let (flow, cancelled) = (Flow::DEFAULT, Arc::default());
            queue.push(vec![Job { window, index, flow, cancelled, reply: reply.clone() }]);
        }
        queue.lock().closed = true;
        queue.serve(|windows: &[Box<[u32]>]| match windows.iter().any(|window| window[0] == u32::MAX) {
            true => Err(missing_result()),
            false => Ok(windows.iter().map(|window| window[0]).collect()),
        });
        assert_eq!(read_events(&replies), [(0, Some(1)), (1, None), (2, Some(2))]);
    }

    #[test]
    fn a_device_that_fails_every_window_is_not_asked_for_all_of_them() {
        let windows: Vec<Box<[u32]>> = vec![[1; 4].into(); 64];
        let mut runs = 0;
        let mut run = |_: &[Box<[u32]>]| -> Result<Vec<u32>, ModelError> {
            runs += 1;
            Err(missing_result())
        };
        let results = run_in_parts(&mut run, &windows, &mut 0);
        assert!(results.len() == 64 && results.iter().all(Result::is_err));
        // Batches of 64, 32, 16, 8, 4 and 2, and two single windows.
        assert_eq!(runs, 8);
    }

    #[test]
    fn a_panic_of_a_result_is_not_lost_beside_a_failure() {
        let run = |windows: &[Box<[u32]>]| match windows[0][0] {
            0 => Err(missing_result()),
            n => Ok(vec![n; windows.len()]),
        };
        let workers = Workers::start([run], Batching::CPU).expect("threads");
        let windows: [&[u32]; 2] = [&[1; 200], &[0; 200]];
        let on_read = |_, _: u32| {
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
        assert!(workers.read(Flow::DEFAULT, &[&[0]], |_| true, |_, _: u32| ()).is_err());
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
        };
        workers.read(Flow::DEFAULT, &[window; 60], is_needed, on_read).expect("nothing fails");
        assert_eq!(unprocessed_max.into_inner(), QUEUED_BATCHES_PER_WORKER * workers.count());
    }

    #[test]
    fn a_panic_while_a_result_is_processed_reaches_the_caller_and_ends_the_call() {
        let (workers, batches) = workers(1);
        let window: &[u32] = &[1; 200];
        let read =
            || workers.read(Flow::DEFAULT, &[window; 100], |_| true, |i, _| assert!(i < 3, "on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
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

    #[test]
    fn a_flow_waits_for_one_batch_of_another_flow_not_for_all_its_batches() {
        let (queue, (reply, replies)) = (Queue::new(Batching::CPU), mpsc::channel());
        let [flood, other] = [Flow::new(), Flow::new()];
        let job = |index: usize, flow: Flow, tokens: usize| Job {
            window: vec![1; tokens].into(),
            index,
            flow,
            cancelled: Arc::default(),
            reply: reply.clone(),
        };
        queue.push((0..8).map(|index| job(index, flood, 100)).collect());
        queue.push((8..11).map(|index| job(index, other, 100)).collect());
        queue.lock().closed = true;
        queue.serve(|windows: &[Box<[u32]>]| Ok(windows.iter().map(|window| window.len()).collect()));
        let order: Vec<usize> = read_events(&replies).into_iter().map(|(index, _)| index).collect();
        assert_eq!(order, [0, 8, 1, 9, 2, 10, 3, 4, 5, 6, 7]);
        // Short windows of another flow fill a batch after those of the flow that is served.
        let batching = Batching { tokens_max: 8, length_step: 1 };
        let queue = Queue::new(batching);
        queue.push(
            [(0, flood), (1, other), (2, flood), (3, flood), (4, flood)]
                .map(|(index, flow)| job(index, flow, 2))
                .into(),
        );
        queue.lock().scheduler.begin(other, 1);
        let mut batches = std::iter::from_fn(|| queue.lock().next_batch(batching));
        let first: Vec<usize> = batches.next().expect("a batch").iter().map(|job| job.index).collect();
        assert_eq!(first, [0, 2, 3, 4]);
    }
}
