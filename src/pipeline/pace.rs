//! How fast chunks are being read, and whether a request's would be read before it is late. Counted in bytes of text: they are
//! known before anything is done.
//! Knows nothing of chunks, or of who reads them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much the latest reading says about the next one.
const WEIGHT: f64 = 0.3;

/// How many times longer than expected a reading may take before it is late: others come after it, and take turns too.
const MARGIN: f64 = 1.6;

/// A reading that took less says nothing of the pace.
const TIME_MIN: Duration = Duration::from_millis(20);

/// What all requests together have the model read.
#[derive(Debug, Default)]
pub struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of all readings together, while there was one; none before the first.
    bytes_per_s: Option<f64>,
    /// Read since the start.
    bytes_read: usize,
    /// To be read by those who are at it.
    bytes_left: usize,
    /// Those of them that somebody waits for.
    waited_for: usize,
}

impl Pace {
    /// A reading of so many `bytes` of text begins, for somebody who waits no longer than `patience`; none: nobody waits.
    ///
    /// # Errors
    /// How long it would take, if that is longer and others are at it: it would take their time and end without an answer. One that is
    /// alone begins in any case: what it reads is kept, and the next try goes on from there.
    pub fn begin(&self, bytes: usize, patience: Option<Duration>) -> Result<Reading<'_>, Duration> {
        let mut state = self.state();
        if let (Some(patience), Some(per_s)) = (patience, state.bytes_per_s)
            && state.waited_for > 0
        {
            // All who are at it take turns: of what others have left, so much goes before the last of these bytes. Twice what is
            // left, since those who come after it take turns, too, as long as they are let in by this rule.
            let before = (2 * state.bytes_left).min(state.waited_for * bytes);
            let expected = Duration::from_secs_f64((before + bytes) as f64 / per_s);
            if expected.mul_f64(MARGIN) > patience {
                return Err(expected);
            }
        }
        state.bytes_left += bytes;
        state.waited_for += usize::from(patience.is_some());
        let (started, read_before) = (Instant::now(), state.bytes_read);
        Ok(Reading {
            pace: self,
            left: Mutex::new(bytes),
            is_waited_for: patience.is_some(),
            started,
            read_before,
        })
    }

    /// One that is known.
    #[cfg(test)]
    pub fn of(bytes_per_s: f64) -> Self {
        Self(Mutex::new(State { bytes_per_s: Some(bytes_per_s), ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reading that is under way; dropped when it has ended, however.
#[derive(Debug)]
pub struct Reading<'a> {
    pace: &'a Pace,
    left: Mutex<usize>,
    is_waited_for: bool,
    started: Instant,
    read_before: usize,
}

impl Reading<'_> {
    /// So many bytes are left of it, as is now known better than when it began.
    pub fn expect(&self, bytes: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.pace.state();
        state.bytes_left = state.bytes_left - *left + bytes;
        *left = bytes;
    }

    /// So many of its bytes have been read.
    pub fn read(&self, bytes: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.min(*left);
        *left -= bytes;
        let mut state = self.pace.state();
        state.bytes_left -= bytes;
        state.bytes_read += bytes;
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let left = *self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.pace.state();
        state.bytes_left -= left;
        state.waited_for -= usize::from(self.is_waited_for);
        let (took, read) = (self.started.elapsed(), state.bytes_read - self.read_before);
        if took >= TIME_MIN && read > 0 {
            let now = read as f64 / took.as_secs_f64();
            state.bytes_per_s =
                Some(state.bytes_per_s.map_or(now, |before| before + WEIGHT * (now - before)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second, and the margin.
    const SECOND: Option<Duration> = Some(Duration::from_millis(1_600));

    #[test]
    fn who_would_be_late_beside_others_is_told_so() {
        let pace = Pace::of(1_000.0);
        let first = pace.begin(5_000, SECOND).expect("alone");
        let second = pace.begin(500, SECOND).expect("half a second of each");
        assert_eq!(pace.begin(501, SECOND).err(), Some(Duration::from_millis(1_503)), "three take turns");
        assert_eq!(pace.begin(334, SECOND).err(), Some(Duration::from_millis(1_002)));
        drop(pace.begin(333, SECOND).expect("in time"));
        drop(pace.begin(9_000, None).expect("nobody waits"));
        drop(second);
        first.read(4_900);
        drop(pace.begin(800, SECOND).expect("behind what is left, and others like it"));
        assert!(pace.begin(801, SECOND).is_err());
        first.expect(200);
        drop(pace.begin(600, SECOND).expect("twice what is left, and these"));
        assert!(pace.begin(601, SECOND).is_err());
        drop(first);
        drop(pace.begin(5_000, SECOND).expect("alone again"));
        let state = pace.state();
        assert_eq!((state.bytes_left, state.waited_for), (0, 0));
    }

    #[test]
    fn the_pace_is_that_of_all_together() {
        let pace = Pace::default();
        let (one, two) =
            (pace.begin(100, SECOND).expect("first"), pace.begin(300, SECOND).expect("no pace yet"));
        std::thread::sleep(TIME_MIN);
        one.read(100);
        two.read(300);
        let took = one.started.elapsed().as_secs_f64();
        drop(one);
        let per_s = pace.state().bytes_per_s.expect("known");
        assert!(per_s <= 400.0 / took && per_s > 100.0, "{per_s}");
        drop(two);
    }
}
