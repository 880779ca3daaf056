//! Measurements of Thresher: `eval` measures quality on labelled data, `bench` measures the speed, memory use
//! and resistance to attacks of a daemon.

pub mod eval;
pub mod bench;
