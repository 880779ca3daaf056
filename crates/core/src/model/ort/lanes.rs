//! Whose turn it is to use the model, where several callers share it: start-time fair queueing (Goyal, Vin and Cheng, 1996).
//!
//! Each caller has a lane. A lane that waits is served before others that have used more since it began to wait; while several lanes
//! always wait, each gets the same share, however much each of them has queued. A lane that has been idle is served as one that is
//! new: it has saved nothing up, and owes nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// One caller's share of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane(u64);

impl Lane {
    /// The lane of whoever asks for no other.
    pub const SHARED: Self = Self(0);

    /// A lane that nobody else has.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What each lane has used. Cost may be in any unit that all lanes share.
#[derive(Debug, Default)]
pub struct Turns {
    /// What each lane has used, on the same axis as `now`. Lanes that are behind `now` are left out.
    used: HashMap<Lane, u64>,
    /// What the lane that was served last had used when its turn began.
    now: u64,
}

impl Turns {
    /// The lane that is next among those that wait; the first of equals. None if none waits.
    pub fn next(&self, waiting: impl IntoIterator<Item = Lane>) -> Option<Lane> {
        waiting.into_iter().min_by_key(|&lane| self.start(lane))
    }

    /// A turn of this lane begins, which costs so much.
    pub fn begin(&mut self, lane: Lane, cost: u64) {
        self.now = self.now.max(self.start(lane));
        self.charge(lane, cost);
        let now = self.now;
        self.used.retain(|_, used| *used > now);
    }

    /// This lane has used so much more.
    pub fn charge(&mut self, lane: Lane, cost: u64) {
        let used = self.start(lane) + cost;
        self.used.insert(lane, used);
    }

    fn start(&self, lane: Lane) -> u64 {
        self.used.get(&lane).map_or(self.now, |&used| used.max(self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_get_the_same_share_whatever_they_have_queued() {
        let (mut turns, [a, b]) = (Turns::default(), [Lane::new(), Lane::new()]);
        let mut serve = |waiting: &[Lane], cost: u64| {
            let lane = turns.next(waiting.iter().copied()).expect("somebody waits");
            turns.begin(lane, cost);
            lane
        };
        // b is alone for long.
        for _ in 0..100 {
            assert_eq!(serve(&[b], 10), b);
        }
        let order: Vec<Lane> = (0..6).map(|_| serve(&[b, b, a], 10)).collect();
        assert_eq!(
            order[..2],
            [a, b],
            "b owes nothing for the time that it was alone, but what it just used"
        );
        assert_eq!(order.iter().filter(|&&lane| lane == a).count(), 3, "{order:?}");
        // a is away, and has saved nothing up when it is back.
        for _ in 0..100 {
            serve(&[b], 10);
        }
        let of_a = (0..10).filter(|_| serve(&[b, a], 10) == a).count();
        assert!((5..=6).contains(&of_a), "{of_a}");
    }

    #[test]
    fn a_lane_that_uses_more_in_a_turn_has_fewer_turns() {
        let (mut turns, [a, b]) = (Turns::default(), [Lane::new(), Lane::new()]);
        let mut used = HashMap::from([(a, 0), (b, 0)]);
        for _ in 0..80 {
            let lane = turns.next([a, b]).expect("both wait");
            let cost = if lane == a { 30 } else { 10 };
            turns.begin(lane, cost);
            *used.get_mut(&lane).expect("one of them") += cost;
        }
        assert_eq!(used[&a], used[&b]);
        assert_eq!(Turns::default().next([]), None);
    }

    #[test]
    fn lanes_that_are_gone_leave_nothing_behind() {
        let mut turns = Turns::default();
        for _ in 0..1_000 {
            let lane = Lane::new();
            turns.begin(lane, 5);
            turns.begin(Lane::SHARED, 5);
        }
        assert!(turns.used.len() < 10, "{}", turns.used.len());
    }
}
