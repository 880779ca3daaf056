//! Blocks: what is kept of a chunk once it has been read, how it is encoded and where, and a question's way over it.
//! Knows nothing of models, requests or scores.

pub mod block;
pub mod codec;
pub mod flights;
pub mod key;
pub mod local;
pub mod scan;
pub mod store;
pub mod tiers;
