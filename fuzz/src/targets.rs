//! The targets, and their names.

mod blocks;
mod changes;
mod conversations;
mod events;
mod keys;
mod models;
mod receipts;
mod requests;

use libfuzzer_sys::Corpus;

/// Each target's name, and the function that takes its input.
pub const ALL: &[(&str, fn(&[u8]) -> Corpus)] = &[
    ("blocks", blocks::run),
    ("changes", changes::run),
    ("conversations", conversations::run),
    ("events", events::run),
    ("keys", keys::run),
    ("models", models::run),
    ("receipts", receipts::run),
    ("requests", requests::run),
];
