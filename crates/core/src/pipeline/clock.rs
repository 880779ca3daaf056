//! Measures the time that each stage of a request takes, and reports each stage as a span to traces.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timings {
    /// The name of each stage and the time that it took, in the order in which the stages ran.
    pub stages: Vec<(&'static str, Duration)>,
    /// The time from the start of the first stage to the end of the last one.
    pub total: Duration,
}

impl Timings {
    /// Appends a stage that ran after the others, and adds its time to the total.
    pub fn push(&mut self, stage: &'static str, took: Duration) {
        self.stages.push((stage, took));
        self.total += took;
    }
}

/// Measures stages that run one after the other. Each stage is also a `tracing` span with the name of the
/// stage.
#[derive(Clone)]
pub struct Clock {
    started: Instant,
    stages: Vec<(&'static str, Duration)>,
}

impl Clock {
    pub fn start() -> Self {
        Self { started: Instant::now(), stages: Vec::with_capacity(8) }
    }

    /// Runs `work` as the stage with this name, and returns its result.
    pub fn stage<T>(&mut self, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = tracing::info_span!("stage", otel.name = stage).in_scope(work);
        self.stages.push((stage, started.elapsed()));
        result
    }

    /// Returns the times of all stages. The total lasts until this call.
    pub fn finish(self) -> Timings {
        Timings { stages: self.stages, total: self.started.elapsed() }
    }
}
