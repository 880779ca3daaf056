#![doc = include_str!("../README.md")]

#[cfg(feature = "redis")]
mod client;
mod settings;

#[cfg(feature = "redis")]
pub use client::*;
pub use settings::{ServerUrls, SharedSettings, SharedSettingsError};
