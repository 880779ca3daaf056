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

impl Timings {
    /// Adds a stage that came behind the others.
    pub fn push(&mut self, stage: &'static str, took: Duration) {
        self.stages.push((stage, took));
        self.total += took;
    }
}

/// Measures stages one after the other, and makes a span of each for traces.
pub struct Clock {
    started: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Clock {
    /// Starts a request's time.
    pub fn start() -> Self {
        Self { started: Instant::now(), stages: Vec::with_capacity(8) }
    }

    /// Runs a stage.
    pub fn stage<T>(&mut self, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let done = tracing::info_span!("stage", otel.name = stage).in_scope(work);
        self.stages.push((stage, started.elapsed()));
        done
    }

    /// All stages so far.
    pub fn finish(self) -> Timings {
        Timings { stages: self.stages, total: self.started.elapsed() }
    }
}
