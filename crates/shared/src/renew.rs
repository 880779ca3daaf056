//! Which values were looked after lately, in a fixed number of bits.
//! Knows nothing of servers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// 128 KiB: of 100,000 values in use, one in ten is taken for another and left to the next round.
const BITS: usize = 1 << 20;

/// The longest round.
const ROUND_MAX: Duration = Duration::from_secs(600);

/// The shares of its life after which a value is looked after again.
const ROUNDS_PER_LIFE: u32 = 4;

/// What was looked after in this round. Each round tells values apart by other bytes of their keys, so that two which
/// share a bit in one do not in the next.
pub struct Renewals {
    bits: Box<[AtomicU64]>,
    round: AtomicU64,
    round_time: Duration,
}

impl Renewals {
    /// For values that live for `life`.
    pub fn new(life: Duration) -> Self {
        Self {
            bits: (0..BITS / 64).map(|_| AtomicU64::default()).collect(),
            round: AtomicU64::default(),
            round_time: (life / ROUNDS_PER_LIFE).min(ROUND_MAX),
        }
    }

    /// Whether the value under `key` is to be looked after at `age`, the time since all began. Two who ask at the same time
    /// may both be told so.
    pub fn is_due(&self, key: &[u8; 32], age: Duration) -> bool {
        let (word, bit) = self.place(key, age);
        word.load(Ordering::Relaxed) & bit == 0
    }

    /// It has been, for the round of `age`.
    pub fn done(&self, key: &[u8; 32], age: Duration) {
        let (word, bit) = self.place(key, age);
        word.fetch_or(bit, Ordering::Relaxed);
    }

    fn place(&self, key: &[u8; 32], age: Duration) -> (&AtomicU64, u64) {
        let round = (age.as_nanos() / self.round_time.as_nanos().max(1)) as u64;
        if self.round.fetch_max(round, Ordering::Relaxed) < round {
            self.bits.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        let offset = (round % (32 - 3)) as usize;
        let bytes = [key[offset], key[offset + 1], key[offset + 2], key[offset + 3]];
        let index = u32::from_le_bytes(bytes) as usize % BITS;
        (&self.bits[index / 64], 1 << (index % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_due_once_a_round() {
        let keys: Vec<[u8; 32]> =
            (0..50_000u32).map(|n| *blake3::hash(&n.to_le_bytes()).as_bytes()).collect();
        let renewals = Renewals::new(Duration::from_secs(40));
        let mut never = vec![true; keys.len()];
        for round in 0..4 {
            let age = Duration::from_secs(10 * round);
            let mut due = 0;
            for (key, never) in keys.iter().zip(&mut never) {
                if renewals.is_due(key, age) {
                    (due, *never) = (due + 1, false);
                    renewals.done(key, age);
                }
            }
            assert!(due > 45_000, "round {round}: {due} of {}", keys.len());
            assert!(!keys.iter().any(|key| renewals.is_due(key, age)), "round {round}");
        }
        assert!(!never.contains(&true), "within its life every value is looked after");
    }
}
