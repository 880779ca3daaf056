//! Models: what a model's files promise and, later in this module, the runtime that keeps the promise.
//! Knows nothing of requests, scores or the KV store.

pub mod contract;
