//! Blocks: what is kept of a chunk once it has been read, how it is encoded, how a question is scanned over it.
//! Knows nothing of models, requests or scores.

pub mod block;
pub mod codec;
pub mod key;
pub mod scan;
