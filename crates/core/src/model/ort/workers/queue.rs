//! The queue of windows: the order in which flows are served, and the grouping of windows into batches. Knows nothing
//! of what a batch computes, or of what a call does with the results.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::super::scheduling::{FairScheduler, Flow};
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
    /// The attention logits of a window grow with the square of its length. Above `LONG_TOKENS` tokens, they
    /// limit the batch: together, they take no more memory than those of a full batch of windows of that length.
    pub fn windows_max(self, tokens: usize) -> usize {
        let length = self.length_max(tokens).max(1);
        let counted = length.max(length.saturating_mul(length) / Self::LONG_TOKENS);
        (self.tokens_max / counted).max(1)
    }

    /// The length of a window above which attention takes most of the memory of a batch.
    const LONG_TOKENS: usize = 512;
}

/// Computes a batch: takes windows that may share a batch (see [`Batching`]), and returns one result per
/// window.
pub trait RunBatch<T>: FnMut(&[Box<[u32]>]) -> Result<Vec<T>, ModelError> + Send + 'static {}
impl<T, F: FnMut(&[Box<[u32]>]) -> Result<Vec<T>, ModelError> + Send + 'static> RunBatch<T> for F {}

/// The windows that wait for a worker. The order between flows is that of [`FairScheduler`], by the number of tokens that
/// each flow has had read. Within a flow, windows are read in the order in which they were queued.
pub struct Queue<T> {
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

pub struct Job<T> {
    pub window: Box<[u32]>,
    pub flow: Flow,
    /// Set when the call has failed; its other jobs are then removed from the queue.
    pub cancelled: Arc<AtomicBool>,
    /// Takes the result on the thread of a worker, so it should do little.
    pub reply: Box<dyn FnOnce(Result<T, ModelError>) + Send>,
}

impl<T> Queue<T> {
    pub fn new(batching: Batching) -> Self {
        let state = QueueState { jobs: Vec::new(), scheduler: FairScheduler::default(), closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), batching }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn batching(&self) -> Batching {
        self.batching
    }

    /// Queues jobs. All of them are in the queue before an idle worker takes its next batch; otherwise it
    /// would begin with a batch of one window.
    pub fn push(&self, jobs: Vec<Job<T>>) {
        let count = jobs.len();
        self.lock().jobs.extend(jobs);
        match count {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    /// Ends [`Self::serve`] on all threads, once the queue is empty.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Runs batches until the queue is closed. A panic of `run` fails the batch and does not end the thread.
    pub fn serve(&self, mut run: impl RunBatch<T>) {
        let mut run = |windows: &[Box<[u32]>]| {
            let results = catch_unwind(AssertUnwindSafe(|| run(windows)))
                .unwrap_or_else(|_panic| Err(missing_result()))?;
            if results.len() == windows.len() { Ok(results) } else { Err(missing_result()) }
        };
        while let Some(jobs) = self.next_batch() {
            let (windows, replies): (Vec<_>, Vec<_>) =
                jobs.into_iter().map(|job| (job.window, job.reply)).unzip();
            for (reply, result) in replies.into_iter().zip(run_in_parts(&mut run, &windows, &mut 0)) {
                reply(result);
            }
        }
    }

    /// Waits for the next batch. Returns `None` when the queue is closed and empty.
    fn next_batch(&self) -> Option<Vec<Job<T>>> {
        let mut state = self.lock();
        loop {
            if let Some(jobs) = state.next_batch(self.batching) {
                return Some(jobs);
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
                if fits && (job.flow == flow) == is_same_flow {
                    self.scheduler.charge(job.flow, job.window.len() as u64);
                    batch.push(self.jobs.remove(at));
                } else {
                    at += 1
                }
            }
        }
        Some(batch)
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
    use std::sync::mpsc;

    use super::*;

    /// Returns a job that sends `name` with its result.
    fn job<T: Send + 'static>(
        name: usize,
        window: Box<[u32]>,
        flow: Flow,
        replies: &mpsc::Sender<(usize, Option<T>)>,
    ) -> Job<T> {
        let replies = replies.clone();
        let reply =
            Box::new(move |result: Result<T, _>| replies.send((name, result.ok())).expect("a receiver"));
        Job { window, flow, cancelled: Arc::default(), reply }
    }

    fn ones(tokens: usize) -> Box<[u32]> {
        vec![1; tokens].into()
    }

    #[test]
    fn windows_share_a_batch_if_their_rounded_lengths_are_equal() {
        let check = |name: &str, batching: Batching, lengths: &[usize], expect: &[&[usize]]| {
            let (queue, (reply, _replies)) = (Queue::<()>::new(batching), mpsc::channel());
            queue.push(lengths.iter().map(|&tokens| job(0, ones(tokens), Flow::DEFAULT, &reply)).collect());
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
    fn a_failed_window_does_not_fail_the_others_of_its_batch() {
        let failing: Vec<Box<[u32]>> = vec![[1; 4].into(), [u32::MAX; 4].into(), [2; 4].into()];
        let (queue, (reply, replies)) = (Queue::new(Batching::CPU), mpsc::channel());
        for (name, window) in failing.into_iter().enumerate() {
            queue.push(vec![job(name, window, Flow::DEFAULT, &reply)]);
        }
        queue.close();
        queue.serve(|windows: &[Box<[u32]>]| {
            if windows.iter().any(|window| window[0] == u32::MAX) {
                Err(missing_result())
            } else {
                Ok(windows.iter().map(|window| window[0]).collect())
            }
        });
        assert_eq!(replies.try_iter().collect::<Vec<_>>(), [(0, Some(1)), (1, None), (2, Some(2))]);
    }

    #[test]
    fn a_device_that_fails_every_window_is_not_asked_for_all_of_them() {
        let windows: Vec<Box<[u32]>> = vec![ones(4); 64];
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
    fn a_flow_waits_for_one_batch_of_another_flow_not_for_all_its_batches() {
        let (queue, (reply, replies)) = (Queue::new(Batching::CPU), mpsc::channel());
        let [flood, other] = [Flow::new(), Flow::new()];
        queue.push((0..8).map(|name| job(name, ones(100), flood, &reply)).collect());
        queue.push((8..11).map(|name| job(name, ones(100), other, &reply)).collect());
        queue.close();
        queue.serve(|windows: &[Box<[u32]>]| Ok(windows.iter().map(|window| window.len()).collect()));
        let order: Vec<usize> = replies.try_iter().map(|(name, _)| name).collect();
        assert_eq!(order, [0, 8, 1, 9, 2, 10, 3, 4, 5, 6, 7]);
        // Short windows of another flow fill a batch after those of the flow that is served.
        let batching = Batching { tokens_max: 8, length_step: 1 };
        let (queue, (reply, replies)) = (Queue::<()>::new(batching), mpsc::channel());
        queue.push(
            [(0, flood), (1, other), (2, flood), (3, flood), (4, flood)]
                .map(|(name, flow)| job(name, ones(2), flow, &reply))
                .into(),
        );
        queue.lock().scheduler.begin(other, 1);
        let mut batches = std::iter::from_fn(|| queue.lock().next_batch(batching));
        batches.next().expect("a batch").into_iter().for_each(|job| (job.reply)(Ok(())));
        let first: Vec<usize> = replies.try_iter().map(|(name, _)| name).collect();
        assert_eq!(first, [0, 2, 3, 4]);
    }
}
