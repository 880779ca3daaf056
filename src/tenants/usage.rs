//! Counts of what was compressed for a tenant or in a session, and of what providers said that they read and wrote.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Counts of requests and tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageCounts {
    pub requests: u64,
    /// Tokens of their texts before compression.
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// Tokens of prompts that providers read, cached or not.
    pub input_tokens: u64,
    /// Tokens that providers wrote.
    pub output_tokens: u64,
    /// Tokens of prompts that providers read from their caches.
    pub cache_read_input_tokens: u64,
    /// Tokens of prompts that providers wrote into their caches.
    pub cache_creation_input_tokens: u64,
}

impl UsageCounts {
    /// Returns the counts of one request with a conversation of `tokens_before` tokens, of which `tokens_after` are left.
    pub fn of_request(tokens_before: usize, tokens_after: usize) -> Self {
        Self {
            requests: 1,
            tokens_before: tokens_before as u64,
            tokens_after: tokens_after as u64,
            ..Self::default()
        }
    }

    /// Returns the sums of two counts.
    pub fn plus(self, more: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(more.requests),
            tokens_before: self.tokens_before.saturating_add(more.tokens_before),
            tokens_after: self.tokens_after.saturating_add(more.tokens_after),
            input_tokens: self.input_tokens.saturating_add(more.input_tokens),
            output_tokens: self.output_tokens.saturating_add(more.output_tokens),
            cache_read_input_tokens: self
                .cache_read_input_tokens
                .saturating_add(more.cache_read_input_tokens),
            cache_creation_input_tokens: self
                .cache_creation_input_tokens
                .saturating_add(more.cache_creation_input_tokens),
        }
    }
}

/// The counts of a tenant since the daemon started.
#[derive(Debug, Default)]
pub struct UsageTotals(Mutex<UsageCounts>);

impl UsageTotals {
    /// Adds counts.
    pub fn add(&self, more: UsageCounts) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts = counts.plus(more);
    }

    /// Begins to count anew.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = UsageCounts::default();
    }

    pub fn counts(&self) -> UsageCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
