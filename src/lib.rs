//! Thresher keeps the part of retrieved context that a question needs, word for word, with a citation for every piece.
//!
//! Modules in reading order; arrows between them point one way and `tests/architecture.rs` holds them.

pub mod kv_export;
pub mod process;
pub mod receipt;
pub mod admission;
pub mod access;
pub mod error;
pub mod api;
pub mod originals;
pub mod middleware;
pub mod savings;
pub mod shared_tier;
pub mod executor;
pub mod tenants;
pub mod local;
pub mod mcp;
pub mod config;
pub mod http;
pub mod telemetry;
pub mod app;
pub mod cli;
