//! Things that one thread uses at a time, such as sessions. Callers that find none free wait for their turn: lanes take turns by the
//! time that they have used, and within a lane the first to come is the first to be served.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::lanes::{Lane, Turns};

/// How often a waiting caller checks whether its work is still wanted.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Lends things to callers in turn.
pub struct Pool<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    idle: Vec<T>,
    /// Who waits, in the order of arrival.
    waiting: VecDeque<(u64, Lane)>,
    ticket_next: u64,
    turns: Turns,
}

/// A thing that is given back when this is dropped, also when its user panics.
struct Lent<'a, T> {
    pool: &'a Pool<T>,
    lane: Lane,
    since: Instant,
    one: Option<T>,
}

/// A caller that waits; it leaves when this is dropped.
struct Ticket<'a, T> {
    pool: &'a Pool<T>,
    number: u64,
}

impl<T> Pool<T> {
    /// Lends these.
    pub fn new(all: Vec<T>) -> Self {
        let state = State { idle: all, waiting: VecDeque::new(), ticket_next: 0, turns: Turns::default() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Runs `work` on the next that is free.
    pub fn with<R>(&self, lane: Lane, work: impl FnOnce(&mut T) -> R) -> R {
        self.with_while(lane, || true, work).expect("the caller waits until one is free")
    }

    /// As [`Self::with`], while `go_on` says so: none if it says no before one is free.
    pub fn with_while<R>(
        &self,
        lane: Lane,
        go_on: impl Fn() -> bool,
        work: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let one = self.wait(lane, go_on)?;
        let mut lent = Lent { pool: self, lane, since: Instant::now(), one: Some(one) };
        Some(work(lent.one.as_mut().expect("it is given back on drop only")))
    }

    fn wait(&self, lane: Lane, go_on: impl Fn() -> bool) -> Option<T> {
        let ticket = {
            let mut state = self.lock();
            let number = state.ticket_next;
            state.ticket_next += 1;
            state.waiting.push_back((number, lane));
            Ticket { pool: self, number }
        };
        // Declared after the ticket, so that it is unlocked before the ticket is dropped, which locks.
        let mut state = self.lock();
        loop {
            if !state.idle.is_empty() && state.next() == Some(ticket.number) {
                // What it will use is charged when it is known.
                state.turns.begin(lane, 0);
                return state.idle.pop();
            }
            if !go_on() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, CHECK_EVERY);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    /// The ticket that is next.
    fn next(&self) -> Option<u64> {
        let lane = self.turns.next(self.waiting.iter().map(|&(_, lane)| lane))?;
        self.waiting.iter().find(|&&(_, of)| of == lane).map(|&(number, _)| number)
    }
}

impl<T> Drop for Lent<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.turns.charge(self.lane, self.since.elapsed().as_micros() as u64);
        state.idle.extend(self.one.take());
        drop(state);
        self.pool.changed.notify_all();
    }
}

impl<T> Drop for Ticket<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.waiting.retain(|&(number, _)| number != self.number);
        drop(state);
        // It may have been the next one, for whom the others waited.
        self.pool.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Waits until so many callers wait.
    fn until_waiting<T>(pool: &Pool<T>, count: usize) {
        while pool.lock().waiting.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_lane_is_served_before_all_that_another_has_waiting() {
        let (pool, served) = (Arc::new(Pool::new(vec![()])), Arc::new(Mutex::new(Vec::new())));
        let [flood, other] = [Lane::new(), Lane::new()];
        let ask = |name: &'static str, lane: Lane| {
            let (pool, served) = (Arc::clone(&pool), Arc::clone(&served));
            std::thread::spawn(move || {
                pool.with(lane, |()| {
                    served.lock().expect("no panic").push(name);
                    std::thread::sleep(Duration::from_millis(2));
                });
            })
        };
        let mut threads = Vec::new();
        pool.with(flood, |()| {
            std::thread::sleep(Duration::from_millis(2));
            for n in 0..8 {
                threads.push(ask("flood", flood));
                until_waiting(&pool, n + 1);
            }
            threads.push(ask("other", other));
            until_waiting(&pool, 9);
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(served.lock().expect("no panic")[0], "other");
        assert_eq!(pool.lock().idle.len(), 1);
    }

    #[test]
    fn who_stops_waiting_keeps_nobody_back() {
        let pool = Arc::new(Pool::new(vec![7]));
        let gone = Arc::new(AtomicBool::new(false));
        let lane = Lane::SHARED;
        let (first, second) = pool.with(lane, |_| {
            let first = std::thread::spawn({
                let (pool, gone) = (Arc::clone(&pool), Arc::clone(&gone));
                move || pool.with_while(lane, || !gone.load(Ordering::Relaxed), |_| ())
            });
            until_waiting(&pool, 1);
            let second = std::thread::spawn({
                let pool = Arc::clone(&pool);
                move || pool.with(lane, |seven| *seven)
            });
            until_waiting(&pool, 2);
            gone.store(true, Ordering::Relaxed);
            while pool.lock().waiting.len() > 1 {
                std::thread::yield_now();
            }
            (first, second)
        });
        assert_eq!(first.join().expect("no panic"), None);
        assert_eq!(second.join().expect("no panic"), 7);
        // A panic gives back what it used.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.with(lane, |_| panic!("on purpose"));
        }));
        assert!(panicked.is_err());
        assert_eq!(pool.with(lane, |seven| *seven), 7);
        assert!(pool.lock().waiting.is_empty());
    }
}
