//! Measures the speed, memory use and robustness of a daemon on generated workloads. Speeds are compared with
//! the model graph alone in the same run, and reported with their spread. Every speed claim of the project
//! comes from here. This module knows no settings: the command line passes in the wired parts.
//!
//! There are seven benches:
//!
//! - [`warm`] sends questions about chunks that the daemon has read before, and compares the times with the
//!   targets.
//! - [`throughput`] sends new chunks, and compares the rate with the model graph alone and with a peer.
//! - [`soak`] sends requests of all kinds for minutes and watches resident memory.
//! - [`overload`] sends more new chunks than the daemon can read.
//! - [`attribution`] attributes answers to chunks that the daemon has read before.
//! - [`middleware`] sends conversations through the middleware, and measures the time that it adds.
//! - [`hostile`] attacks a daemon in a process of its own.

pub mod model_graph;
pub mod attribution;
pub mod client;
pub mod daemon;
pub mod flops;
pub mod hostile;
pub mod middleware;
pub mod overload;
pub mod peer;
pub mod report;
pub mod soak;
pub mod targets;
pub mod throughput;
pub mod warm;
pub mod workload;
mod rss;

use std::sync::Arc;

use thresher_core::model::ort::LateRuntime;
use thresher_core::model::tokenizer::ModelTokenizer;

use self::daemon::Daemon;
use self::report::ModelOnDevice;

/// The model and the daemon under test.
pub struct Subject {
    /// The model; its graph is also run alone.
    pub runtime: Arc<LateRuntime>,
    /// The model's tokenizer; it counts the workload's tokens.
    pub tokenizer: Arc<ModelTokenizer>,
    /// The model's precision, and what runs it.
    pub on: ModelOnDevice,
    /// The daemon, in this process, with a pipeline on the same model.
    pub daemon: Daemon,
}

/// Progress callback: the name of the current step, the number of units done, and the number of all units.
pub type Progress<'a> = &'a dyn Fn(&str, usize, usize);
