#![doc = include_str!("../README.md")]

mod client;
mod settings;

pub use client::*;
pub use settings::{ServerUrls, SharedSettings, SharedSettingsError};
