//! The workspace's libraries without the daemon: the pipeline, the decoders, the model export, the block
//! store's tiers on disk and in Redis, and the registry. Some tests start this binary again as a child
//! process, see [`support::child`].

/// The program's allocator, so that memory is measured as the program has it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[path = "../../src/allocator.rs"]
mod allocator;
/// Linux tells the processor time of a thread.
#[cfg(target_os = "linux")]
mod cancellation;
mod cross_parity;
mod decoder_blocks;
mod decoder_layers;
mod decoder_memory;
mod decoder_parity;
mod device;
mod encoder_parity;
mod export_bits;
mod export_parity;
mod export_refusals;
mod invariants;
mod kv;
mod real_model;
mod registry_crash;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod verdicts;
