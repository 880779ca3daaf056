//! Performance targets: the bound of each ratio, the workload shapes that it applies to, and whether a run
//! reached it.

use std::fmt;

use serde_json::{Value, json};

use crate::report::round_to;
use crate::workload::Workload;

/// Number of clients that the target for the tail latency applies to.
pub const CLIENTS: usize = 32;

/// A ratio with its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target {
    pub name: &'static str,
    pub reached: f64,
    /// The bound; `None` if there is no target for this workload shape.
    pub bound: Option<Bound>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The number must be no more than this.
    AtMost(f64),
    /// The number must be no less than this.
    AtLeast(f64),
}

/// Returns whether the workload has the shape that targets are set for: questions of 16 tokens, chunks of 200
/// tokens.
fn is_standard(workload: &Workload) -> bool {
    workload.tokens == 200 && workload.query_tokens == 16 && !workload.mixed
}

impl Bound {
    /// Returns whether a number is within the bound; NaN never is.
    pub fn is_met_by(self, reached: f64) -> bool {
        match self {
            Self::AtMost(most) => reached <= most,
            Self::AtLeast(least) => reached >= least,
        }
    }

    /// Bound of the time of all question-chunk pairs over the time of a warm request.
    pub fn pairs_over_warm(workload: &Workload) -> Option<Self> {
        (is_standard(workload) && workload.chunks == 100).then_some(Self::AtLeast(200.0))
    }

    /// Bound of a warm request's time over the time of encoding the question alone.
    pub fn warm_over_question(workload: &Workload) -> Option<Self> {
        let most = match workload.chunks {
            100 => 4.0,
            1_000 => 25.0,
            10_000 => 100.0,
            _ => return None,
        };
        is_standard(workload).then_some(Self::AtMost(most))
    }

    /// Bound of a cold request's time over the time of the model graph alone, with `chunks` chunks.
    pub fn cold_over_graph(workload: &Workload, chunks: usize) -> Option<Self> {
        (is_standard(workload) && chunks == 20).then_some(Self::AtMost(1.1))
    }

    /// Bound of the time to attribute an answer to cached chunks over the time of encoding the answer alone.
    pub fn attribution_over_answer(workload: &Workload, answer_tokens: usize) -> Option<Self> {
        let is_standard = is_standard(workload) && workload.chunks == 20 && answer_tokens == 300;
        is_standard.then_some(Self::AtMost(1.5))
    }

    /// Bound of the 99th percentile over the median of response times, with `clients` concurrent clients.
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
    /// Returns whether the target was reached; `None` if there is no target.
    pub fn met(&self) -> Option<bool> {
        self.bound.map(|bound| bound.is_met_by(self.reached))
    }

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
