#![doc = include_str!("../README.md")]

// The modules are in reading order: a module uses only modules above it. `tests/architecture.rs` checks this.
pub mod domain;
pub mod memory;
pub mod plain;
pub mod regular_files;
pub mod shape;
pub mod text;
pub mod text_cache;
pub mod rc;
pub mod model;
pub mod private_files;
pub mod kv;
pub mod pipeline;
pub mod engine;

pub use engine::{Engine, EngineBuilder, EngineError};
