//! Measures Thresher: the speed and memory use of a daemon on generated workloads, and what was compared with the defaults on labelled
//! rows. Speeds are compared with the model graph alone in the same run, and reported with their spread.
//!
//! - [`warm`] sends questions about chunks that the daemon has read before, and compares the times with the targets.
//! - [`throughput`] sends new chunks, and compares the rate with the model graph alone and with a peer.
//! - [`soak`] sends requests of all kinds for minutes and watches resident memory.
//! - [`overload`] sends more new chunks than the daemon can read.
//! - [`attribution`] attributes answers to chunks that the daemon has read before.
//! - [`middleware`] sends conversations through the middleware, and measures the time that it adds.
//! - [`quality`] compares methods, models and ways of eviction on labelled rows.
//!
//! `tests/hostile` attacks a daemon in a process of its own.

pub mod upstream;
pub mod client;
pub mod rss;
pub mod report;
pub mod subject;
pub mod model_graph;
pub mod model_on_device;
pub mod flops;
pub mod workload;
pub mod peer;
pub mod targets;
pub mod attribution;
pub mod middleware;
pub mod overload;
pub mod soak;
pub mod throughput;
pub mod warm;
pub mod quality;

/// Progress callback: the name of the current step, the number of units done, and the number of all units.
pub type Progress<'a> = &'a dyn Fn(&str, usize, usize);
