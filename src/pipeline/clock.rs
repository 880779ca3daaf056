//! Where the time of a request goes.

use std::time::{Duration, Instant};

/// Time per stage, in the order of the stages, and in all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timings {
    /// Stage and how long it took.
    pub stages: Vec<(&'static str, Duration)>,
    /// From the first stage's start to the last one's end.
    pub total: Duration,
}

/// Measures stages one after the other.
pub struct Clock {
    started: Instant,
    last: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Clock {
    /// Starts the first stage.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { started: now, last: now, stages: Vec::with_capacity(8) }
    }

    /// Ends a stage and starts the next.
    pub fn lap(&mut self, stage: &'static str) {
        let now = Instant::now();
        self.stages.push((stage, now - self.last));
        self.last = now;
    }

    /// All stages so far.
    pub fn finish(self) -> Timings {
        Timings { stages: self.stages, total: self.started.elapsed() }
    }
}
