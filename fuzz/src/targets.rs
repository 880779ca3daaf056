//! The targets, and their names.

mod blocks;
mod changes;
mod conversations;
mod events;
mod gguf;
mod keys;
mod models;
mod receipts;
mod requests;

use libfuzzer_sys::Corpus;

pub type Target = fn(&[u8]) -> Corpus;

pub const ALL: &[(&str, Target)] = &[
    ("blocks", blocks::run),
    ("changes", changes::run),
    ("conversations", conversations::run),
    ("events", events::run),
    ("gguf", gguf::run),
    ("keys", keys::run),
    ("models", models::run),
    ("receipts", receipts::run),
    ("requests", requests::run),
];
