//! Blocks: what is kept of a chunk once it has been read, and where.
//! Knows nothing of models, requests or scores.

pub mod key;
pub mod local;
