//! The pipeline of Thresher: chunks and a question in, the part of the chunks that the question needs out, word for word.
//!
//! Modules in reading order. Each knows those above it and none below.

pub mod domain;
pub mod plain;
pub mod shape;
pub mod text;
pub mod rc;
pub mod model;
pub mod private_files;
pub mod kv;
pub mod pipeline;
pub mod engine;

pub use engine::{Engine, EngineBuilder, EngineError};
