//! Single flight: chunks that are being read right now, and who waits for them.
//! Knows neither tiers nor how a chunk is read.
//!
//! The first to ask for a block leads: it reads the chunk and lands the block. All others follow: they wait. A leader
//! whose own caller has gone reads on for its followers; one that gives up, or panics, lets one of them lead.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::block::Block;
use super::key::BlockKey;

/// Whether a request still waits for its blocks.
pub type Wanted = Arc<dyn Fn() -> bool + Send + Sync>;

/// How often a waiting follower looks whether its own caller is still there.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// All flights in the air.
#[derive(Default)]
pub struct Flights {
    open: Mutex<HashMap<BlockKey, Arc<Flight>>>,
}

/// One chunk on its way.
pub struct Flight {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    waiting: Vec<Wanted>,
    outcome: Option<Outcome>,
}

/// How a flight ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The block is there.
    Landed(Block),
    /// Its leader gave up: one of its followers may lead another.
    Abandoned,
}

/// The part of one who asks for a block.
pub enum Role {
    /// It reads the chunk.
    Leader(Leader),
    /// It waits.
    Follower(Arc<Flight>),
}

/// Who reads a chunk. Dropped without a landing, the flight is abandoned.
pub struct Leader {
    key: BlockKey,
    flight: Arc<Flight>,
    flights: Arc<Flights>,
}

impl Flights {
    /// Joins the flight of `key`, or begins it.
    pub fn join(self: &Arc<Self>, key: BlockKey, wanted: &Wanted) -> Role {
        let mut open = self.lock();
        if let Some(flight) = open.get(&key) {
            flight.lock().waiting.push(Arc::clone(wanted));
            return Role::Follower(Arc::clone(flight));
        }
        let state = State { waiting: vec![Arc::clone(wanted)], outcome: None };
        let flight = Arc::new(Flight { state: Mutex::new(state), ended: Condvar::new() });
        open.insert(key, Arc::clone(&flight));
        Role::Leader(Leader { key, flight, flights: Arc::clone(self) })
    }

    /// Whether `key` is being read.
    pub fn has(&self, key: &BlockKey) -> bool {
        self.lock().contains_key(key)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BlockKey, Arc<Flight>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flight {
    /// Waits for the end; none when `wanted` says that the caller has gone first.
    pub fn wait(&self, wanted: &Wanted) -> Option<Outcome> {
        let mut state = self.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return Some(outcome.clone());
            }
            if !wanted() {
                return None;
            }
            let waited = self.ended.wait_timeout(state, LOOK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leader {
    /// The block's key.
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Whether anybody still waits for the block, the leader's own caller or another.
    pub fn is_wanted(&self) -> bool {
        self.flight.lock().waiting.iter().any(|wanted| wanted())
    }

    /// The block, once it has landed.
    pub fn landed(&self) -> Option<Block> {
        match &self.flight.lock().outcome {
            Some(Outcome::Landed(block)) => Some(block.clone()),
            _ => None,
        }
    }

    /// Hands the block to all who wait. Tiers must hold it by now: whoever asks next finds no flight any more.
    pub fn land(&self, block: Block) {
        self.end(Outcome::Landed(block));
    }

    fn end(&self, outcome: Outcome) {
        // Nobody can join while the map is locked: who has joined sees the outcome, who comes later leads.
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

    fn always() -> Wanted {
        Arc::new(|| true)
    }

    fn block() -> Block {
        let keys = Array3::zeros((1, 0, 4));
        Block::encode(Parts { keys: keys.view(), title_tokens: 0, offsets: &[], sentences: &[] }, Codec::F32)
    }

    fn leader(flights: &Arc<Flights>, wanted: &Wanted) -> Leader {
        match flights.join(KEY(), wanted) {
            Role::Leader(leader) => leader,
            Role::Follower(_) => panic!("somebody leads already"),
        }
    }

    fn follower(flights: &Arc<Flights>, wanted: &Wanted) -> Arc<Flight> {
        match flights.join(KEY(), wanted) {
            Role::Leader(_) => panic!("nobody leads"),
            Role::Follower(flight) => flight,
        }
    }

    #[test]
    fn all_who_wait_get_the_block() {
        let flights = Arc::default();
        let leader = leader(&flights, &always());
        let followers: Vec<_> = (0..4).map(|_| follower(&flights, &always())).collect();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = followers.iter().map(|f| scope.spawn(|| f.wait(&always()))).collect();
            leader.land(block());
            for waiting in waiting {
                assert!(matches!(waiting.join().expect("no panic"), Some(Outcome::Landed(_))));
            }
        });
        assert!(leader.landed().is_some());
        drop(self::leader(&flights, &always()));
    }

    #[test]
    fn a_leader_that_gives_up_makes_room() {
        let flights = Arc::default();
        let first = leader(&flights, &always());
        let waiting = follower(&flights, &always());
        drop(first);
        assert!(matches!(waiting.wait(&always()), Some(Outcome::Abandoned)));
        let second = leader(&flights, &always());
        second.land(block());
        drop(second);
        assert!(matches!(waiting.wait(&always()), Some(Outcome::Abandoned)), "an end is final");
    }

    #[test]
    fn a_flight_is_wanted_as_long_as_anybody_waits() {
        let flights = Arc::default();
        let gone = Arc::new(AtomicBool::new(false));
        let here: Wanted = {
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
