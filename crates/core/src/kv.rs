//! The cache of chunk keys: blocks (the cached form of a chunk), their encoding, the tiers that store them,
//! and the scan of a question over them. Knows nothing of models, requests or scores.

pub mod block;
pub mod codec;
pub mod key;
pub mod local;
pub mod scan;
pub mod single_flight;
pub mod store;
pub mod tiers;
