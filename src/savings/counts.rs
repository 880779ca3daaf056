//! Counts of answered requests: tokens before and after, what the saved ones would have been billed as, and what was billed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::settings::Price;
use crate::middleware::dialect::Dialect;
use crate::middleware::prompt::{Omission, PromptBytes};
use crate::middleware::usage::Usage;

/// The name under which models, or tools, are counted together if there are too many.
pub const OTHER: &str = "other";

const MILLION: f64 = 1e6;

/// What was done to a request that was to be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It was compressed, as far as something could become shorter.
    Compress,
    /// It was sent uncompressed, and what compression would have kept was computed.
    Shadow,
}

/// What is counted of one answered request.
#[derive(Debug, Clone)]
pub struct Exchange<'a> {
    pub dialect: Dialect,
    pub model: &'a str,
    pub treatment: Treatment,
    /// Tokens (`o200k_base`) of the texts that could be compressed, before and after.
    pub tokens: (u64, u64),
    /// Where text was left out, or would have been. Empty: nothing was saved.
    pub omissions: &'a [Omission],
    /// The length of the prompt as the client sent it.
    pub prompt: PromptBytes,
    /// What the upstream counted; `None`: its answer does not say.
    pub usage: Option<Usage>,
}

/// Saved tokens by the kind of token that they would have been billed as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SavedAs {
    /// As tokens of prompts that are neither read from a cache nor written into one.
    pub input: u64,
    /// As tokens that are read from a cache.
    pub cached_read: u64,
    /// As tokens that are written into a cache.
    pub cached_write: u64,
    /// The answer did not say what was billed.
    pub unknown: u64,
}

/// Counts of answered requests that were to be compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsCounts")]
pub struct Counts {
    /// Answered requests.
    pub requests: u64,
    /// Of these, those of which something became shorter; in shadow mode, would have become shorter.
    pub requests_shortened: u64,
    /// Of these, those whose answers do not say how many tokens were billed.
    pub requests_without_usage: u64,
    /// Tokens (`o200k_base`) of the texts that could be compressed, before compression.
    pub tokens_before: u64,
    /// The same, after.
    pub tokens_after: u64,
    /// `tokens_before` less `tokens_after`, by what the tokens would have been billed as.
    pub saved_as: SavedAs,
    /// Bytes of all texts of the prompts as clients sent them, with the definitions of tools.
    pub prompt_bytes: u64,
    /// Of these, bytes of the definitions of tools, which are never compressed.
    pub tool_bytes: u64,
    /// What upstreams counted, with tokenizers of their own.
    pub billed: Usage,
}

/// An amount of money saved and spent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Money {
    /// The currency, such as `USD`.
    pub currency: String,
    /// What the saved tokens would have cost.
    pub saved: f64,
    /// What the billed tokens cost.
    pub billed: f64,
    /// `saved` as a share of `saved` and `billed` together; `null` if both are 0.
    pub share: Option<f64>,
}

impl SavedAs {
    /// Divides `tokens` that were left out at `omissions` by what they would have been billed as: like the tokens around them. A provider reads
    /// the beginning of a prompt from its cache and writes what follows into it, so the place of a token in the prompt says what it is billed as.
    pub fn divided(tokens: u64, omissions: &[Omission], usage: Option<Usage>) -> Self {
        let Some(usage) = usage.filter(|usage| usage.prompt() > 0) else {
            return Self { unknown: tokens, ..Self::default() };
        };
        let all_bytes: usize = omissions.iter().map(|omission| omission.bytes).sum();
        let (mut saved, mut bytes, mut counted) = (Self::default(), 0, 0);
        for omission in omissions {
            bytes += omission.bytes;
            // Sums are rounded, not parts, so that the parts together are the whole.
            let until = (tokens as f64 * bytes as f64 / all_bytes.max(1) as f64).round() as u64;
            let more = until.saturating_sub(counted);
            counted += more;
            let at = omission.at * usage.prompt() as f64;
            let written_until = usage.cached_read.saturating_add(usage.cached_write);
            *if at < usage.cached_read as f64 {
                &mut saved.cached_read
            } else if at < written_until as f64 {
                &mut saved.cached_write
            } else {
                &mut saved.input
            } += more;
        }
        saved
    }

    pub fn total(self) -> u64 {
        [self.input, self.cached_read, self.cached_write, self.unknown]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

impl Counts {
    pub fn count(exchange: &Exchange) -> Self {
        let (before, after) = exchange.tokens;
        // Where nothing was left out, nothing was saved.
        let is_shorter = !exchange.omissions.is_empty() && after < before;
        let after = if is_shorter { after } else { before };
        Self {
            requests: 1,
            requests_shortened: u64::from(is_shorter),
            requests_without_usage: u64::from(exchange.usage.is_none()),
            tokens_before: before,
            tokens_after: after,
            saved_as: SavedAs::divided(before - after, exchange.omissions, exchange.usage),
            prompt_bytes: exchange.prompt.all as u64,
            tool_bytes: exchange.prompt.tools as u64,
            billed: exchange.usage.unwrap_or_default(),
        }
    }

    pub fn plus(self, more: Self) -> Self {
        let add = u64::saturating_add;
        Self {
            requests: add(self.requests, more.requests),
            requests_shortened: add(self.requests_shortened, more.requests_shortened),
            requests_without_usage: add(self.requests_without_usage, more.requests_without_usage),
            tokens_before: add(self.tokens_before, more.tokens_before),
            tokens_after: add(self.tokens_after, more.tokens_after),
            saved_as: SavedAs {
                input: add(self.saved_as.input, more.saved_as.input),
                cached_read: add(self.saved_as.cached_read, more.saved_as.cached_read),
                cached_write: add(self.saved_as.cached_write, more.saved_as.cached_write),
                unknown: add(self.saved_as.unknown, more.saved_as.unknown),
            },
            prompt_bytes: add(self.prompt_bytes, more.prompt_bytes),
            tool_bytes: add(self.tool_bytes, more.tool_bytes),
            billed: self.billed.plus(more.billed),
        }
    }

    /// Returns what the saved tokens would have cost, and what the billed ones cost.
    pub fn money(&self, price: &Price) -> Money {
        let SavedAs { input, cached_read, cached_write, unknown: _ } = self.saved_as;
        let saved = Usage { input, cached_read, cached_write, output: 0 };
        Money {
            currency: price.currency.clone(),
            saved: price.cost(saved),
            billed: price.cost(self.billed),
            share: None,
        }
        .with_share()
    }
}

impl Money {
    fn with_share(mut self) -> Self {
        let all = self.saved + self.billed;
        self.share = (all > 0.0).then(|| self.saved / all);
        self
    }

    /// Returns the sums for each currency.
    pub fn sums<'a>(all: impl Iterator<Item = &'a Self>) -> Vec<Self> {
        let mut sums: BTreeMap<&str, Self> = BTreeMap::new();
        for money in all {
            let sum = sums.entry(&money.currency).or_default();
            sum.currency.clone_from(&money.currency);
            sum.saved += money.saved;
            sum.billed += money.billed;
        }
        sums.into_values().map(Self::with_share).collect()
    }
}

impl Price {
    pub fn cost(&self, usage: Usage) -> f64 {
        let parts = [
            (usage.input, self.input),
            (usage.cached_read, self.cached_read),
            (usage.cached_write, self.cached_write),
            (usage.output, self.output),
        ];
        parts.into_iter().map(|(tokens, price)| tokens as f64 * price / MILLION).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange<'a>(tokens: (u64, u64), omissions: &'a [Omission], usage: Option<Usage>) -> Exchange<'a> {
        Exchange {
            dialect: Dialect::Chat,
            model: "m",
            treatment: Treatment::Compress,
            tokens,
            omissions,
            prompt: PromptBytes::default(),
            usage,
        }
    }

    #[test]
    fn saved_tokens_are_billed_like_the_tokens_around_them() {
        let check = |name: &str, usage: [u64; 3], places: &[(f64, usize)], expect: [u64; 3]| {
            let [input, cached_read, cached_write] = usage;
            let usage = Usage { input, cached_read, cached_write, output: 9 };
            let omissions: Vec<Omission> = places.iter().map(|&(at, bytes)| Omission { at, bytes }).collect();
            let saved = SavedAs::divided(100, &omissions, Some(usage));
            assert_eq!([saved.input, saved.cached_read, saved.cached_write], expect, "{name}");
            assert_eq!((saved.unknown, saved.total()), (0, 100), "{name}");
        };
        check("no cache", [1_000, 0, 0], &[(0.5, 7)], [100, 0, 0]);
        check("an earlier turn, read from the cache", [100, 900, 0], &[(0.5, 7)], [0, 100, 0]);
        check("the newest turn behind the cache", [100, 900, 0], &[(0.95, 7)], [100, 0, 0]);
        check("the newest turn, written into the cache", [10, 800, 190], &[(0.95, 7)], [0, 0, 100]);
        check("all three", [100, 800, 100], &[(0.1, 2), (0.85, 1), (0.95, 1)], [25, 50, 25]);
        check("parts that do not divide evenly", [500, 500, 0], &[(0.1, 1), (0.2, 1), (0.9, 1)], [33, 67, 0]);
        let unknown = SavedAs { unknown: 100, ..SavedAs::default() };
        let place = [Omission { at: 0.5, bytes: 7 }];
        assert_eq!(SavedAs::divided(100, &place, None), unknown);
        assert_eq!(SavedAs::divided(100, &place, Some(Usage::default())), unknown, "no prompt was counted");
    }

    #[test]
    fn cached_tokens_are_not_counted_as_saved() {
        let price = Price {
            model: "m".to_owned(),
            currency: "USD".to_owned(),
            input: 3.0,
            cached_read: 0.3,
            cached_write: 3.75,
            output: 15.0,
        };
        // The provider read 900,000 tokens from its cache. Of 100,000 tokens that were left out, all would have been cached, too.
        let usage = Usage { input: 100_000, cached_read: 900_000, cached_write: 0, output: 10_000 };
        let place = [Omission { at: 0.2, bytes: 1 }];
        let money = Counts::count(&exchange((300_000, 200_000), &place, Some(usage))).money(&price);
        assert!((money.saved - 0.03).abs() < 1e-9, "a tenth of the price of input: {money:?}");
        assert!((money.billed - (0.3 + 0.27 + 0.15)).abs() < 1e-9, "{money:?}");
        assert!((money.share.expect("money") - 0.03 / 0.75).abs() < 1e-9, "{money:?}");
        // Where nothing was left out, nothing is saved, whatever the provider cached.
        let nothing = Counts::count(&exchange((300_000, 200_000), &[], Some(usage)));
        assert_eq!((nothing.saved_as.total(), nothing.requests_shortened), (0, 0));
        assert_eq!(nothing.money(&price).saved, 0.0);
    }

    #[test]
    fn currencies_are_not_mixed() {
        let money =
            |currency: &str, saved| Money { currency: currency.to_owned(), saved, billed: 1.0, share: None };
        let sums = Money::sums([money("USD", 1.0), money("EUR", 3.0), money("USD", 2.0)].iter());
        let found: Vec<(&str, f64, Option<f64>)> =
            sums.iter().map(|sum| (&*sum.currency, sum.saved, sum.share)).collect();
        assert_eq!(found, [("EUR", 3.0, Some(0.75)), ("USD", 3.0, Some(0.6))]);
    }
}
