#![doc = include_str!("../README.md")]

// The modules are in reading order: a module uses only modules above it. `tests/architecture.rs` checks this.
mod kind;
mod range;
pub mod lexicon;
mod abbreviations;
mod bound;
mod line;
mod lines;
mod stop_context;
mod stops;
mod sentences;
pub mod intent;
mod questions;
mod grams;
pub mod definitions;
mod mentions;
pub mod outline;

#[cfg(test)]
mod tests;

pub use grams::{Gram, GramWord, gram_words, is_compared_by_characters, script_of};
pub use kind::Kind;
pub use line::is_item as is_list_item;
pub use mentions::Mentions;
pub use questions::questions;
pub use range::ByteRange;
pub use sentences::{RULES_VERSION, SENTENCE_BYTES_MAX, sentences, sentences_within, words};
