//! Divides a model's time fairly between its callers: start-time fair queueing (Goyal, Vin and Cheng, 1996),
//! and a pool of sessions that callers use in this order. Knows nothing of what a session computes.
//!
//! Each caller is a flow. Among the flows that wait, the next one served is the one that has used least since
//! it began to wait. While several flows always have work waiting, each gets the same share of the time,
//! however much work it has queued. A flow that was idle is treated like a new one: it has neither a credit
//! nor a debt.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting caller checks whether its work is still needed.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The identity of a caller for fair queueing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow(u64);

impl Flow {
    /// The flow of all callers that have no flow of their own.
    pub const DEFAULT: Self = Self(0);

    /// Returns a flow that no other caller has.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Decides which flow is served next. Costs may have any unit, as long as all flows use the same.
#[derive(Debug, Default)]
pub struct FairScheduler {
    /// The virtual time at which each flow's last work finishes. Flows whose time is not after `virtual_time`
    /// are left out.
    finish: HashMap<Flow, u64>,
    /// The virtual start time of the work that was begun last.
    virtual_time: u64,
}

impl FairScheduler {
    /// Returns the flow to serve next among those that wait; the first of several with equal claims. Returns
    /// `None` if no flow waits.
    pub fn next(&self, waiting: impl IntoIterator<Item = Flow>) -> Option<Flow> {
        waiting.into_iter().min_by_key(|&flow| self.start(flow))
    }

    /// Records that work of `flow` with this cost begins.
    pub fn begin(&mut self, flow: Flow, cost: u64) {
        self.virtual_time = self.virtual_time.max(self.start(flow));
        self.charge(flow, cost);
        let virtual_time = self.virtual_time;
        self.finish.retain(|_, finish| *finish > virtual_time);
    }

    /// Adds a cost to `flow`, for work that has already begun.
    pub fn charge(&mut self, flow: Flow, cost: u64) {
        let finish = self.start(flow) + cost;
        self.finish.insert(flow, finish);
    }

    /// The virtual start time of the flow's next work.
    fn start(&self, flow: Flow) -> u64 {
        self.finish.get(&flow).map_or(self.virtual_time, |&finish| finish.max(self.virtual_time))
    }
}

/// Items, such as sessions, of which each is used by one thread at a time. If no item is idle, callers wait:
/// flows are served in the order of [`FairScheduler`] by the time that they have used, and callers of one
/// flow in the order in which they came.
pub struct Pool<T> {
    state: Mutex<PoolState<T>>,
    changed: Condvar,
}

struct PoolState<T> {
    idle: Vec<T>,
    /// The tickets and flows of the waiting callers, in the order in which they came.
    waiting: VecDeque<(u64, Flow)>,
    ticket_next: u64,
    scheduler: FairScheduler,
}

/// An item in use. Dropping it returns the item to the pool, also if its user panics.
struct PoolGuard<'a, T> {
    pool: &'a Pool<T>,
    flow: Flow,
    since: Instant,
    item: Option<T>,
}

/// The place of a waiting caller in the queue. Dropping it removes the caller from the queue.
struct Ticket<'a, T> {
    pool: &'a Pool<T>,
    number: u64,
}

impl<T> Pool<T> {
    pub fn new(items: Vec<T>) -> Self {
        let scheduler = FairScheduler::default();
        let state = PoolState { idle: items, waiting: VecDeque::new(), ticket_next: 0, scheduler };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for an idle item and calls `work` with it.
    pub fn with<R>(&self, flow: Flow, work: impl FnOnce(&mut T) -> R) -> R {
        self.with_while(flow, || true, work)
            .expect("without a condition the caller waits until an item is idle")
    }

    /// Does the same as [`Self::with`] while `go_on` returns true. Returns `None` if it returned false before
    /// an item was idle.
    pub fn with_while<R>(
        &self,
        flow: Flow,
        go_on: impl Fn() -> bool,
        work: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let item = self.wait(flow, go_on)?;
        let mut guard = PoolGuard { pool: self, flow, since: Instant::now(), item: Some(item) };
        Some(work(guard.item.as_mut().expect("only drop takes the item")))
    }

    fn wait(&self, flow: Flow, go_on: impl Fn() -> bool) -> Option<T> {
        let ticket = {
            let mut state = self.lock();
            let number = state.ticket_next;
            state.ticket_next += 1;
            state.waiting.push_back((number, flow));
            Ticket { pool: self, number }
        };
        // Declared after the ticket, so that the lock is released before the ticket is dropped, which takes
        // the lock.
        let mut state = self.lock();
        loop {
            if !state.idle.is_empty() && state.next() == Some(ticket.number) {
                // The cost is charged when the item is returned, because it is not known before.
                state.scheduler.begin(flow, 0);
                return state.idle.pop();
            }
            if !go_on() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, CHECK_INTERVAL);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> PoolState<T> {
    /// The ticket of the caller to serve next.
    fn next(&self) -> Option<u64> {
        let next = self.scheduler.next(self.waiting.iter().map(|&(_, flow)| flow))?;
        self.waiting.iter().find(|&&(_, flow)| flow == next).map(|&(number, _)| number)
    }
}

impl<T> Drop for PoolGuard<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.scheduler.charge(self.flow, self.since.elapsed().as_micros() as u64);
        state.idle.extend(self.item.take());
        drop(state);
        self.pool.changed.notify_all();
    }
}

impl<T> Drop for Ticket<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.waiting.retain(|&(number, _)| number != self.number);
        drop(state);
        // The others may have waited for this caller, if it was the next one.
        self.pool.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn flows_get_the_same_share_whatever_they_have_queued() {
        let (mut scheduler, [a, b]) = (FairScheduler::default(), [Flow::new(), Flow::new()]);
        let mut serve = |waiting: &[Flow], cost: u64| {
            let flow = scheduler.next(waiting.iter().copied()).expect("a flow waits");
            scheduler.begin(flow, cost);
            flow
        };
        // b is alone for a long time.
        for _ in 0..100 {
            assert_eq!(serve(&[b], 10), b);
        }
        let order: Vec<Flow> = (0..6).map(|_| serve(&[b, b, a], 10)).collect();
        assert_eq!(order[..2], [a, b], "of the time that b was alone, only its last work counts");
        assert_eq!(order.iter().filter(|&&flow| flow == a).count(), 3, "{order:?}");
        // a is idle for a long time and has no credit when it is back.
        for _ in 0..100 {
            serve(&[b], 10);
        }
        let of_a = (0..10).filter(|_| serve(&[b, a], 10) == a).count();
        assert!((5..=6).contains(&of_a), "{of_a}");
    }

    #[test]
    fn a_flow_with_more_expensive_work_is_served_less_often() {
        let (mut scheduler, [a, b]) = (FairScheduler::default(), [Flow::new(), Flow::new()]);
        let mut used = HashMap::from([(a, 0), (b, 0)]);
        for _ in 0..80 {
            let flow = scheduler.next([a, b]).expect("both wait");
            let cost = if flow == a { 30 } else { 10 };
            scheduler.begin(flow, cost);
            *used.get_mut(&flow).expect("one of both") += cost;
        }
        assert_eq!(used[&a], used[&b]);
        assert_eq!(FairScheduler::default().next([]), None);
    }

    #[test]
    fn flows_that_are_gone_take_no_memory() {
        let mut scheduler = FairScheduler::default();
        for _ in 0..1_000 {
            let flow = Flow::new();
            scheduler.begin(flow, 5);
            scheduler.begin(Flow::DEFAULT, 5);
        }
        assert!(scheduler.finish.len() < 10, "{}", scheduler.finish.len());
    }

    /// Waits until this many callers wait for an item.
    fn until_waiting<T>(pool: &Pool<T>, count: usize) {
        while pool.lock().waiting.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_flow_does_not_wait_for_all_callers_of_another_flow() {
        let (pool, served) = (Arc::new(Pool::new(vec![()])), Arc::new(Mutex::new(Vec::new())));
        let [flood, other] = [Flow::new(), Flow::new()];
        let start = |name: &'static str, flow: Flow| {
            let (pool, served) = (Arc::clone(&pool), Arc::clone(&served));
            std::thread::spawn(move || {
                pool.with(flow, |()| {
                    served.lock().expect("no panic").push(name);
                    std::thread::sleep(Duration::from_millis(2));
                });
            })
        };
        let mut threads = Vec::new();
        pool.with(flood, |()| {
            std::thread::sleep(Duration::from_millis(2));
            for n in 0..8 {
                threads.push(start("flood", flood));
                until_waiting(&pool, n + 1);
            }
            threads.push(start("other", other));
            until_waiting(&pool, 9);
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(served.lock().expect("no panic")[0], "other");
        assert_eq!(pool.lock().idle.len(), 1);
    }

    #[test]
    fn a_caller_that_stops_waiting_does_not_delay_others() {
        let pool = Arc::new(Pool::new(vec![7]));
        let cancelled = Arc::new(AtomicBool::new(false));
        let flow = Flow::DEFAULT;
        let (first, second) = pool.with(flow, |_| {
            let first = std::thread::spawn({
                let (pool, cancelled) = (Arc::clone(&pool), Arc::clone(&cancelled));
                move || pool.with_while(flow, || !cancelled.load(Ordering::Relaxed), |_| ())
            });
            until_waiting(&pool, 1);
            let second = std::thread::spawn({
                let pool = Arc::clone(&pool);
                move || pool.with(flow, |seven| *seven)
            });
            until_waiting(&pool, 2);
            cancelled.store(true, Ordering::Relaxed);
            while pool.lock().waiting.len() > 1 {
                std::thread::yield_now();
            }
            (first, second)
        });
        assert_eq!(first.join().expect("no panic"), None);
        assert_eq!(second.join().expect("no panic"), 7);
        // A panic returns the item to the pool.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.with(flow, |_| panic!("on purpose"));
        }));
        assert!(panicked.is_err());
        assert_eq!(pool.with(flow, |seven| *seven), 7);
        assert!(pool.lock().waiting.is_empty());
    }
}
