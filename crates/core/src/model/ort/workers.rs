//! The threads that run windows, whose turn it is, and which windows share a run.
//! Knows nothing of what a run does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use super::lanes::{Lane, Turns};
use crate::model::ModelError;

/// Tokens that one run on the processor takes, unless a single window has more.
///
/// Windows of one length share a run: nothing is padded, and each keeps the bits that it has alone. On the CPU only short
/// windows gain (18 tokens: eight together take two thirds of their time alone); from 64 tokens on it makes no difference
/// (`docs/performance.md`).
pub const RUN_TOKENS: usize = 144;

/// Runs of one call that lie in the queue for each worker: enough that no worker waits for the caller to hand out the
/// next, and so few that a small request never stands behind the whole of a large one.
const QUEUED_PER_WORKER: usize = 2;

/// Runs windows of equal length: one result per window.
pub trait Run<T>: FnMut(&[Box<[u32]>]) -> Result<Vec<T>, ModelError> + Send + 'static {}
impl<T, F: FnMut(&[Box<[u32]>]) -> Result<Vec<T>, ModelError> + Send + 'static> Run<T> for F {}

/// Threads that run windows. Lanes take turns by the tokens that they have had run; within a lane, windows are run in the order in
/// which they were handed in.
pub struct Workers<T> {
    queue: Arc<Queue<T>>,
    threads: Vec<JoinHandle<()>>,
}

struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    run_tokens: usize,
}

struct State<T> {
    /// In the order in which they were handed in. A call has few in the queue, so that the whole stays short.
    jobs: Vec<Job<T>>,
    turns: Turns,
    closed: bool,
}

struct Job<T> {
    window: Box<[u32]>,
    at: usize,
    lane: Lane,
    /// Set when the call has failed: what it still has in the queue is dropped.
    given_up: Arc<AtomicBool>,
    reply: mpsc::Sender<(usize, Result<T, ModelError>)>,
}

impl<T: Send + 'static> Workers<T> {
    /// One thread for each of `runs`, which take about so many tokens at once.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start(runs: impl IntoIterator<Item = impl Run<T>>, run_tokens: usize) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(run_tokens));
        let start = |(i, run)| {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new().name(format!("model-{i}")).spawn(move || queue.work(run))
        };
        let threads = runs.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        Ok(Self { queue, threads })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Runs windows in their order, but for those that `wanted` no longer names when they would go into the queue, and gives
    /// `done` what came of each, on the calling thread.
    ///
    /// # Errors
    /// The first failure; it ends the call.
    pub fn each(
        &self,
        lane: Lane,
        windows: &[&[u32]],
        wanted: impl Fn(usize) -> bool,
        mut done: impl FnMut(usize, T),
    ) -> Result<(), ModelError> {
        let mut order = (0..windows.len()).peekable();
        let given_up = Arc::new(AtomicBool::new(false));
        let (reply, replies) = mpsc::channel();
        let (mut jobs_out, mut tokens_out) = (0, 0);
        loop {
            while let Some(&at) = order.peek()
                && self.has_room(jobs_out, tokens_out)
            {
                order.next();
                if wanted(at) {
                    (jobs_out, tokens_out) = (jobs_out + 1, tokens_out + windows[at].len());
                    let (window, given_up) = (windows[at].into(), Arc::clone(&given_up));
                    self.queue.push(Job { window, at, lane, given_up, reply: reply.clone() });
                }
            }
            if jobs_out == 0 {
                return Ok(());
            }
            let (at, result) = replies.recv().expect("this call holds a sender itself");
            (jobs_out, tokens_out) = (jobs_out - 1, tokens_out - windows[at].len());
            match result {
                Ok(result) => done(at, result),
                Err(error) => {
                    given_up.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }

    /// Whether a call with so much in the queue may hand out more: two runs a worker, long windows or full of short ones.
    fn has_room(&self, jobs_out: usize, tokens_out: usize) -> bool {
        let runs = QUEUED_PER_WORKER * self.count();
        jobs_out < runs || tokens_out < runs * self.queue.run_tokens
    }
}

impl<T> Queue<T> {
    fn new(run_tokens: usize) -> Self {
        let state = State { jobs: Vec::new(), turns: Turns::default(), closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), run_tokens }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job<T>) {
        self.lock().jobs.push(job);
        self.changed.notify_one();
    }

    /// Until the queue is closed. A panic is that run's failure, not the thread's end.
    fn work(&self, mut run: impl Run<T>) {
        let mut run = |windows: &[Box<[u32]>]| {
            let found =
                catch_unwind(AssertUnwindSafe(|| run(windows))).unwrap_or_else(|_panic| Err(panicked()))?;
            if found.len() == windows.len() { Ok(found) } else { Err(panicked()) }
        };
        while let Some((windows, jobs)) = self.next_run() {
            let results: Vec<_> = match run(&windows) {
                Ok(found) => found.into_iter().map(Ok).collect(),
                Err(error) if windows.len() == 1 => vec![Err(error)],
                // Windows of several callers share a run: each fails for its own alone.
                Err(_) => windows
                    .iter()
                    .map(|window| run(std::slice::from_ref(window))?.pop().ok_or_else(panicked))
                    .collect(),
            };
            for ((at, reply), result) in jobs.into_iter().zip(results) {
                let _ = reply.send((at, result));
            }
        }
    }

    /// Waits for the windows of the next run, and where their results go; none when the queue is closed.
    #[allow(clippy::type_complexity, reason = "windows apart, as the run takes them")]
    fn next_run(
        &self,
    ) -> Option<(Vec<Box<[u32]>>, Vec<(usize, mpsc::Sender<(usize, Result<T, ModelError>)>)>)> {
        let mut state = self.lock();
        loop {
            if let Some(jobs) = state.next_run(self.run_tokens) {
                return Some(jobs.into_iter().map(|job| (job.window, (job.at, job.reply))).unzip());
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> State<T> {
    /// The oldest job of the lane whose turn it is, with those of its length that fit beside it: of its own lane first, then of
    /// others, which takes nothing from anyone. Each lane is charged for its own windows.
    fn next_run(&mut self, run_tokens: usize) -> Option<Vec<Job<T>>> {
        self.jobs.retain(|job| !job.given_up.load(Ordering::Relaxed));
        let lane = self.turns.next(self.jobs.iter().map(|job| job.lane))?;
        let first = self.jobs.iter().position(|job| job.lane == lane).expect("it has a job");
        let first = self.jobs.remove(first);
        let tokens = first.window.len();
        self.turns.begin(lane, tokens as u64);
        let beside = (run_tokens / tokens.max(1)).saturating_sub(1);
        let mut run = vec![first];
        for own in [true, false] {
            let mut at = 0;
            while run.len() <= beside && at < self.jobs.len() {
                let job = &self.jobs[at];
                match job.window.len() == tokens && (job.lane == lane) == own {
                    true => {
                        self.turns.charge(job.lane, tokens as u64);
                        run.push(self.jobs.remove(at));
                    }
                    false => at += 1,
                }
            }
        }
        Some(run)
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.changed.notify_all();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn panicked() -> ModelError {
    ModelError::Graph { graph: "the model".to_owned(), reason: "a run ended without a result".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    /// Workers whose results are the windows' sums; every run's size is recorded.
    fn workers(count: usize) -> (Workers<u32>, Arc<Mutex<Vec<usize>>>) {
        let runs = Arc::new(Mutex::new(Vec::new()));
        let run = |_| {
            let runs = Arc::clone(&runs);
            move |windows: &[Box<[u32]>]| {
                runs.lock().expect("no panic").push(windows.len());
                std::thread::sleep(Duration::from_millis(1));
                match windows.iter().any(|window| window.contains(&u32::MAX)) {
                    true => Err(panicked()),
                    false => Ok(windows.iter().map(|window| window.iter().sum()).collect()),
                }
            }
        };
        (Workers::start((0..count).map(run).collect::<Vec<_>>(), RUN_TOKENS).expect("threads"), runs)
    }

    /// Sums by index, and which windows were left out.
    fn each(
        workers: &Workers<u32>,
        windows: &[Vec<u32>],
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<Option<u32>> {
        let mut found = vec![None; windows.len()];
        let windows: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
        workers.each(Lane::SHARED, &windows, wanted, |i, sum| found[i] = Some(sum)).expect("nothing fails");
        found
    }

    #[test]
    fn results_stand_where_they_belong() {
        let (workers, _) = workers(3);
        let windows: Vec<Vec<u32>> = (0..50).map(|i| vec![i; 1 + (i as usize * 7) % 60]).collect();
        let sums = windows.iter().map(|window| Some(window.iter().sum())).collect::<Vec<_>>();
        assert_eq!(each(&workers, &windows, |_| true), sums);
        assert_eq!(each(&workers, &[], |_| true), []);
        let odd = |i: usize| i % 2 == 1;
        let of_odd: Vec<_> = sums.iter().enumerate().map(|(i, sum)| sum.filter(|_| odd(i))).collect();
        assert_eq!(each(&workers, &windows, odd), of_odd);
    }

    #[test]
    fn windows_of_one_length_share_runs_up_to_the_budget() {
        let (workers, runs) = workers(1);
        each(&workers, &vec![vec![1; 16]; 90], |_| true);
        let runs = runs.lock().expect("no panic");
        assert!(runs.iter().all(|&size| size <= RUN_TOKENS / 16), "{runs:?}");
        assert!(runs.len() < 20, "{runs:?}");
    }

    #[test]
    fn a_failure_ends_its_call_and_no_other() {
        let (workers, runs) = workers(1);
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                let window: &[u32] = &[u32::MAX; 100];
                workers.each(Lane::SHARED, &[window; 100], |_| true, |_, _| ())
            });
            assert_eq!(each(&workers, &vec![vec![1; 90]; 20], |_| true), vec![Some(90); 20]);
            assert!(failing.join().expect("no panic").is_err());
        });
        assert!(runs.lock().expect("no panic").len() < 60);
    }

    #[test]
    fn a_window_that_fails_takes_none_of_its_run_with_it() {
        let failing: Vec<Box<[u32]>> = vec![[1; 4].into(), [u32::MAX; 4].into(), [2; 4].into()];
        let (queue, (reply, replies)) = (Queue::new(RUN_TOKENS), mpsc::channel());
        for (at, window) in failing.into_iter().enumerate() {
            let (lane, given_up) = (Lane::SHARED, Arc::default());
            queue.push(Job { window, at, lane, given_up, reply: reply.clone() });
        }
        queue.lock().closed = true;
        queue.work(|windows: &[Box<[u32]>]| match windows.iter().any(|window| window[0] == u32::MAX) {
            true => Err(panicked()),
            false => Ok(windows.iter().map(|window| window[0]).collect()),
        });
        let found: Vec<_> = replies.try_iter().map(|(at, result)| (at, result.ok())).collect();
        assert_eq!(found, [(0, Some(1)), (1, None), (2, Some(2))]);
    }

    #[test]
    fn a_panic_is_a_failure_and_the_worker_lives() {
        let run = |windows: &[Box<[u32]>]| match windows[0][0] {
            0 => panic!("on purpose"),
            n => Ok(vec![n; windows.len()]),
        };
        let workers = Workers::start([run], RUN_TOKENS).expect("threads");
        assert!(workers.each(Lane::SHARED, &[&[0]], |_| true, |_, _: u32| ()).is_err());
        assert_eq!(each(&workers, &[vec![7]], |_| true), [Some(7)]);
    }

    #[test]
    fn a_small_call_does_not_wait_for_all_of_a_large_one() {
        let (workers, _) = workers(1);
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let large = scope.spawn(|| {
                let window: &[u32] = &[1; 200];
                workers.each(
                    Lane::SHARED,
                    &[window; 200],
                    |_| true,
                    |_, _| {
                        done.fetch_add(1, Ordering::Relaxed);
                    },
                )
            });
            while done.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            each(&workers, &[vec![1]], |_| true);
            assert!(done.load(Ordering::Relaxed) < 200, "the small call came last");
            large.join().expect("no panic").expect("nothing fails");
        });
    }

    #[test]
    fn a_lane_waits_for_one_run_of_another_not_for_all_that_it_has_queued() {
        let (queue, (reply, replies)) = (Queue::new(RUN_TOKENS), mpsc::channel());
        let [flood, other] = [Lane::new(), Lane::new()];
        let job = |at: usize, lane: Lane, tokens: usize| Job {
            window: vec![1; tokens].into(),
            at,
            lane,
            given_up: Arc::default(),
            reply: reply.clone(),
        };
        (0..8).for_each(|at| queue.push(job(at, flood, 100)));
        (8..11).for_each(|at| queue.push(job(at, other, 100)));
        queue.lock().closed = true;
        queue.work(|windows: &[Box<[u32]>]| Ok(windows.iter().map(|window| window.len()).collect()));
        let order: Vec<usize> = replies.try_iter().map(|(at, _)| at).collect();
        assert_eq!(order, [0, 8, 1, 9, 2, 10, 3, 4, 5, 6, 7]);
        // Short windows of another lane fill a run of the one whose turn it is, behind its own.
        let queue = Queue::new(8);
        [job(0, flood, 2), job(1, other, 2), job(2, flood, 2), job(3, flood, 2), job(4, flood, 2)]
            .into_iter()
            .for_each(|job| queue.push(job));
        queue.lock().turns.begin(other, 1);
        let mut runs = std::iter::from_fn(|| queue.lock().next_run(8));
        let first: Vec<usize> = runs.next().expect("a run").iter().map(|job| job.at).collect();
        assert_eq!(first, [0, 2, 3, 4]);
    }
}
