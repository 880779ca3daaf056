//! Single flight: makes sure that concurrent requests for the same block have the model read its chunk only
//! once. Knows neither the tiers nor how a chunk is read.
//!
//! The first request for a block is the leader of a flight: it reads the chunk and completes the flight with
//! the block. All other requests are followers and wait for the block. A leader whose own caller has gone
//! continues for its followers. If a leader gives up or panics, one of the followers leads the next flight.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::block::Block;
use super::key::BlockKey;

/// A function that returns whether the caller of a request still waits for its blocks.
pub type CallerWaits = Arc<dyn Fn() -> bool + Send + Sync>;

/// How often a follower checks whether its own caller still waits.
const CALLER_CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct Flights {
    open: Mutex<HashMap<BlockKey, Arc<Flight>>>,
}

/// A block that one request is producing and others may wait for.
pub struct Flight {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    callers: Vec<CallerWaits>,
    outcome: Option<Outcome>,
}

#[derive(Debug, Clone)]
pub enum Outcome {
    Completed(Block),
    /// The leader gave up. One of the followers may lead another flight for the same key.
    Abandoned,
}

/// The role of a request that joins a flight.
pub enum Role {
    /// The request must have the model read the chunk.
    Leader(Leader),
    /// The request waits for another one that reads the chunk.
    Follower(Arc<Flight>),
}

/// The leader of a flight. If it is dropped before it completes the flight, the flight is abandoned.
pub struct Leader {
    key: BlockKey,
    flight: Arc<Flight>,
    flights: Arc<Flights>,
}

impl Flights {
    /// Joins the flight of `key` as a follower, or starts one as its leader.
    pub fn join(self: &Arc<Self>, key: BlockKey, caller_waits: &CallerWaits) -> Role {
        let mut open = self.lock();
        if let Some(flight) = open.get(&key) {
            flight.lock().callers.push(Arc::clone(caller_waits));
            return Role::Follower(Arc::clone(flight));
        }
        let state = State { callers: vec![Arc::clone(caller_waits)], outcome: None };
        let flight = Arc::new(Flight { state: Mutex::new(state), ended: Condvar::new() });
        open.insert(key, Arc::clone(&flight));
        Role::Leader(Leader { key, flight, flights: Arc::clone(self) })
    }

    /// Returns whether a flight for `key` is in progress.
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.lock().contains_key(key)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BlockKey, Arc<Flight>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// Waits until the flight ends. Returns `None` if the caller stops waiting first.
    pub fn wait(&self, caller_waits: &CallerWaits) -> Option<Outcome> {
        let mut state = self.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return Some(outcome.clone());
            }
            if !caller_waits() {
                return None;
            }
            let waited = self.ended.wait_timeout(state, CALLER_CHECK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leader {
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Returns whether any caller still waits for the block: the leader's own or that of a follower.
    pub fn is_wanted(&self) -> bool {
        self.flight.lock().callers.iter().any(|caller_waits| caller_waits())
    }

    pub fn completed_block(&self) -> Option<Block> {
        match &self.flight.lock().outcome {
            Some(Outcome::Completed(block)) => Some(block.clone()),
            _ => None,
        }
    }

    /// Completes the flight: all followers get the block. The caller must have stored the block in the tiers
    /// before, because later requests find no flight.
    pub fn complete(&self, block: Block) {
        self.end(Outcome::Completed(block));
    }

    fn end(&self, outcome: Outcome) {
        // No request can join while the map is locked. A request that has joined sees the outcome; a later
        // one becomes a leader.
        let mut open = self.flights.lock();
        let mut state = self.flight.lock();
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
            open.remove(&self.key);
            self.flight.ended.notify_all();
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end(Outcome::Abandoned);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use ndarray::Array3;

    use super::*;
    use crate::kv::block::Parts;
    use crate::kv::codec::Codec;

    const KEY: fn() -> BlockKey = || BlockKey::from_bytes([7; 32]);

    fn always() -> CallerWaits {
        Arc::new(|| true)
    }

    fn block() -> Block {
        let keys = Array3::zeros((1, 0, 4));
        Block::encode(
            Parts { keys: keys.view(), title_tokens: 0, offsets: &[], sentences: &[], lang: None },
            Codec::F32,
        )
    }

    fn leader(flights: &Arc<Flights>, caller_waits: &CallerWaits) -> Leader {
        match flights.join(KEY(), caller_waits) {
            Role::Leader(leader) => leader,
            Role::Follower(_) => panic!("another leader exists"),
        }
    }

    fn follower(flights: &Arc<Flights>, caller_waits: &CallerWaits) -> Arc<Flight> {
        match flights.join(KEY(), caller_waits) {
            Role::Leader(_) => panic!("there is no leader"),
            Role::Follower(flight) => flight,
        }
    }

    #[test]
    fn all_followers_get_the_block() {
        let flights = Arc::default();
        let leader = leader(&flights, &always());
        let followers: Vec<_> = (0..4).map(|_| follower(&flights, &always())).collect();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = followers.iter().map(|f| scope.spawn(|| f.wait(&always()))).collect();
            leader.complete(block());
            for waiting in waiting {
                assert!(matches!(waiting.join().expect("no panic"), Some(Outcome::Completed(_))));
            }
        });
        assert!(leader.completed_block().is_some());
        drop(self::leader(&flights, &always()));
    }

    #[test]
    fn after_a_leader_gives_up_another_request_can_lead() {
        let flights = Arc::default();
        let first = leader(&flights, &always());
        let waiting = follower(&flights, &always());
        drop(first);
        assert!(matches!(waiting.wait(&always()), Some(Outcome::Abandoned)));
        let second = leader(&flights, &always());
        second.complete(block());
        drop(second);
        assert!(
            matches!(waiting.wait(&always()), Some(Outcome::Abandoned)),
            "the outcome of a flight is final"
        );
    }

    #[test]
    fn a_flight_is_wanted_while_any_caller_waits() {
        let flights = Arc::default();
        let gone = Arc::new(AtomicBool::new(false));
        let here: CallerWaits = {
            let gone = Arc::clone(&gone);
            Arc::new(move || !gone.load(Ordering::Relaxed))
        };
        let leader = leader(&flights, &here);
        assert!(leader.is_wanted());
        gone.store(true, Ordering::Relaxed);
        assert!(!leader.is_wanted());
        let waiting = follower(&flights, &always());
        assert!(leader.is_wanted(), "a follower waits");
        assert!(waiting.wait(&here).is_none(), "a follower whose caller has gone does not wait");
    }
}
