//! What Thresher is measured with: quality against labelled data, and speed, memory and resistance of a daemon.

pub mod eval;
pub mod bench;
