//! The tokens that an upstream counted, as its API writes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::dialect::Dialect;
use super::json::Located;

/// Tokens that an upstream counted. No token counts in two of the fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BilledTokens")]
pub struct Usage {
    /// Tokens of prompts that were neither read from a cache nor written into one.
    pub input: u64,
    /// Tokens of prompts that were read from a cache.
    pub cached_read: u64,
    /// Tokens of prompts that were written into a cache.
    pub cached_write: u64,
    /// Tokens of answers.
    pub output: u64,
}

impl Usage {
    /// Returns all tokens of prompts, cached or not.
    pub fn prompt(self) -> u64 {
        self.input.saturating_add(self.cached_read).saturating_add(self.cached_write)
    }

    pub fn plus(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            cached_read: self.cached_read.saturating_add(more.cached_read),
            cached_write: self.cached_write.saturating_add(more.cached_write),
            output: self.output.saturating_add(more.output),
        }
    }

    /// Reads an object `usage`. Returns `None` if it has no count of a prompt and none of an answer. A count that is no whole number of at least
    /// 0 is taken for missing.
    pub fn read(dialect: Dialect, usage: Located) -> Option<Self> {
        Counted::read(usage).usage(dialect)
    }
}

/// The counts of an object `usage`, as the upstream wrote them. `None`: the object does not have the count.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    /// Tokens of the prompt. Anthropic counts cached tokens apart, OpenAI among the others.
    prompt: Option<u64>,
    /// Tokens of the prompt that were read from a cache.
    pub read: Option<u64>,
    /// Tokens of the prompt that were written into a cache.
    pub written: Option<u64>,
    pub output: Option<u64>,
}

impl Counted {
    pub fn read(usage: Located) -> Self {
        let count = |object: Located, names: &[&str]| -> Option<u64> {
            names.iter().find_map(|name| object.get(name)?.read())
        };
        let details = ["prompt_tokens_details", "input_tokens_details"];
        let details = details.iter().find_map(|name| usage.get(name));
        let detail = |names: &[&str]| details.and_then(|details| count(details, names));
        Self {
            prompt: count(usage, &["prompt_tokens", "input_tokens"]),
            // DeepSeek has a name of its own.
            read: detail(&["cached_tokens"])
                .or_else(|| count(usage, &["cache_read_input_tokens", "prompt_cache_hit_tokens"])),
            written: detail(&["cache_write_tokens", "cache_creation_tokens"])
                .or_else(|| count(usage, &["cache_creation_input_tokens"])),
            output: count(usage, &["completion_tokens", "output_tokens"]),
        }
    }

    /// The counts of `later`, and those of `self` that it does not have: counts of a stream grow, and later ones replace earlier ones.
    #[must_use]
    pub fn replaced_by(self, later: Self) -> Self {
        Self {
            prompt: later.prompt.or(self.prompt),
            read: later.read.or(self.read),
            written: later.written.or(self.written),
            output: later.output.or(self.output),
        }
    }

    /// Returns the tokens of the prompt, cached ones included; `None` if the upstream did not count them.
    pub fn whole_prompt(self, dialect: Dialect) -> Option<u64> {
        let apart = match dialect {
            Dialect::Messages => [self.read, self.written],
            Dialect::Chat | Dialect::Responses => [None, None],
        };
        let prompt = self.prompt?;
        Some(apart.into_iter().flatten().fold(prompt, u64::saturating_add))
    }

    /// Returns what is billed; `None` if the upstream counted neither the prompt nor the answer.
    pub fn usage(self, dialect: Dialect) -> Option<Usage> {
        if self.prompt.is_none() && self.output.is_none() {
            return None;
        }
        let (cached_read, cached_write) = (self.read.unwrap_or(0), self.written.unwrap_or(0));
        let prompt = self.prompt.unwrap_or(0);
        let input = match dialect {
            Dialect::Messages => prompt,
            Dialect::Chat | Dialect::Responses => {
                prompt.saturating_sub(cached_read).saturating_sub(cached_write)
            }
        };
        Some(Usage { input, cached_read, cached_write, output: self.output.unwrap_or(0) })
    }
}
