//! Measures speed and memory on a workload of its own, against the model's bare graph in the same run. Every claim of
//! speed is printed here, with its spread. Knows no settings: what it measures is handed to it, wired.
//!
//! Six ways: [`warm`] asks about chunks that have been read before and holds the answers against the targets;
//! [`throughput`] reads chunks that nobody has read, beside the graph alone and a peer; [`soak`] sends everything at once
//! for minutes and watches resident memory; [`overload`] sends more new chunks than can be read; [`attribution`] ties answers to chunks that have been read;
//! [`hostile`] attacks a daemon in a process of its own.

pub mod attribution;
pub mod client;
pub mod daemon;
pub mod flops;
pub mod hostile;
pub mod overload;
pub mod peer;
pub mod soak;
pub mod source;
pub mod targets;
pub mod throughput;
pub mod warm;
pub mod workload;
mod json;
mod memory;
mod statistics;

use std::sync::Arc;

use thresher_core::model::ort::LateRuntime;
use thresher_core::model::tokenizer::ModelTokenizer;

use self::daemon::Daemon;

/// What is measured.
pub struct Subject {
    /// The model, whose graph is run alone.
    pub runtime: Arc<LateRuntime>,
    /// Counts the workload's tokens.
    pub tokenizer: Arc<ModelTokenizer>,
    /// The daemon, with a pipeline on the same model.
    pub daemon: Daemon,
}

/// Told what is being measured, how much of it is done, and how much there is.
pub type Progress<'a> = &'a dyn Fn(&str, usize, usize);
