//! What was aimed at, for which shape of a workload, and whether a run got there.
//! Knows nothing of how it was measured.

use std::fmt;

use serde_json::{Value, json};

use super::json::round_to;
use super::workload::Workload;

/// Clients that the tail is held against.
pub const CLIENTS: usize = 32;

/// A ratio and what it should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    /// What was divided by what.
    pub name: &'static str,
    /// The ratio.
    pub reached: f64,
    /// What it should be; none where nothing was aimed at for this shape of a workload.
    pub bound: Option<Bound>,
}

/// What a ratio should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less.
    AtLeast(f64),
}

/// Whether a workload is of the kind that targets were set for: questions of 16 tokens, chunks of 200.
fn is_standard(workload: &Workload) -> bool {
    workload.tokens == 200 && workload.query_tokens == 16 && !workload.mixed
}

impl Bound {
    /// Whether a number is within the bound; one that is not a number never is.
    pub fn is_met_by(self, reached: f64) -> bool {
        match self {
            Self::AtMost(most) => reached <= most,
            Self::AtLeast(least) => reached >= least,
        }
    }

    /// Of how much faster a warm request is than reading every pair.
    pub fn pairs_over_warm(workload: &Workload) -> Option<Self> {
        (is_standard(workload) && workload.chunks == 100).then_some(Self::AtLeast(200.0))
    }

    /// Of a warm request's time over the bare question's.
    pub fn warm_over_question(workload: &Workload) -> Option<Self> {
        let most = match workload.chunks {
            100 => 4.0,
            1_000 => 25.0,
            10_000 => 100.0,
            _ => return None,
        };
        is_standard(workload).then_some(Self::AtMost(most))
    }

    /// Of a cold request's time over the bare graph's, at `chunks` chunks.
    pub fn cold_over_graph(workload: &Workload, chunks: usize) -> Option<Self> {
        (is_standard(workload) && chunks == 20).then_some(Self::AtMost(1.1))
    }

    /// Of attributing an answer over encoding it, to chunks that have been read.
    pub fn attribution_over_answer(workload: &Workload, answer_tokens: usize) -> Option<Self> {
        let is_standard = is_standard(workload) && workload.chunks == 20 && answer_tokens == 300;
        is_standard.then_some(Self::AtMost(1.5))
    }

    /// Of the slowest hundredth over the median, with `clients` at the same time.
    pub fn tail(clients: usize) -> Option<Self> {
        (clients == CLIENTS).then_some(Self::AtMost(4.0))
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {least}"),
            Self::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

impl Target {
    /// Whether it was reached; none where nothing was aimed at.
    pub fn met(&self) -> Option<bool> {
        self.bound.map(|bound| bound.is_met_by(self.reached))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let (at_least, at_most) = match self.bound {
            Some(Bound::AtLeast(least)) => (Some(least), None),
            Some(Bound::AtMost(most)) => (None, Some(most)),
            None => (None, None),
        };
        json!({
            "name": self.name,
            "reached": round_to(self.reached, 4),
            "at_least": at_least,
            "at_most": at_most,
            "met": self.met(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let bound = self.bound.map_or("-".to_owned(), |bound| bound.to_string());
        let met = match self.met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "no target for this workload",
        };
        write!(f, "{:<34} {:>8.2} x   {bound:<8} {met}", self.name, self.reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let check = |reached, bound, expect| {
            assert_eq!(Target { name: "x", reached, bound }.met(), expect, "{reached} {bound:?}");
        };
        check(3.9, Some(Bound::AtMost(4.0)), Some(true));
        check(4.1, Some(Bound::AtMost(4.0)), Some(false));
        check(200.0, Some(Bound::AtLeast(200.0)), Some(true));
        check(199.0, Some(Bound::AtLeast(200.0)), Some(false));
        check(f64::NAN, Some(Bound::AtMost(4.0)), Some(false));
        check(1.0, None, None);
    }

    #[test]
    fn targets_are_for_the_shapes_they_were_set_for() {
        let shape = |chunks, tokens, mixed| Workload { chunks, tokens, query_tokens: 16, mixed };
        let check = |workload: Workload, pairs: Option<f64>, question: Option<f64>| {
            assert_eq!(Bound::pairs_over_warm(&workload), pairs.map(Bound::AtLeast), "{workload:?}");
            assert_eq!(Bound::warm_over_question(&workload), question.map(Bound::AtMost), "{workload:?}");
        };
        check(shape(100, 200, false), Some(200.0), Some(4.0));
        check(shape(1_000, 200, false), None, Some(25.0));
        check(shape(10_000, 200, false), None, Some(100.0));
        check(shape(100, 200, true), None, None);
        check(shape(100, 100, false), None, None);
        check(shape(20, 200, false), None, None);
    }
}
