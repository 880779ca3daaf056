//! Settings of savings: prices.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[savings]`: how savings are counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SavingsSettings {
    /// What providers charge for tokens. A model without a price is counted in tokens only.
    pub prices: Vec<Price>,
}

/// What a provider charges for a million tokens of some models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The name of the model; a `*` at the end matches any ending. The longest name that matches is used.
    pub model: String,
    /// The currency, such as `USD`.
    pub currency: String,
    /// A million tokens of prompts that are neither read from a cache nor written into one.
    pub input: f64,
    /// A million tokens of prompts that are read from a cache.
    pub cached_read: f64,
    /// A million tokens of prompts that are written into a cache.
    pub cached_write: f64,
    /// A million tokens of answers.
    pub output: f64,
}

impl SavingsSettings {
    /// Checks that every setting is in its range, and that no two prices are for the same models.
    ///
    /// # Errors
    /// Returns a message for the first rule that is broken. It names the setting, its value, and what to change.
    pub fn validate(&self) -> Result<(), String> {
        let mut models = HashSet::new();
        for (at, price) in self.prices.iter().enumerate() {
            let name = format!("savings.prices[{at}] ({})", price.model);
            price.validate().map_err(|problem| format!("{name}: {problem}"))?;
            if !models.insert(&*price.model) {
                return Err(format!(
                    "{name}: there is another price with model = {:?}; keep one of them",
                    price.model
                ));
            }
        }
        Ok(())
    }

    /// Returns the price of a model: that whose name matches it, and is the longest of these.
    pub fn price(&self, model: &str) -> Option<&Price> {
        let matching = self.prices.iter().filter(|price| price.matches(model));
        // A name without `*` is as long as the model's and more exact than one with it.
        matching.max_by_key(|price| (price.model.trim_end_matches('*').len(), !price.model.ends_with('*')))
    }
}

impl Price {
    fn matches(&self, model: &str) -> bool {
        match self.model.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == self.model,
        }
    }

    fn validate(&self) -> Result<(), String> {
        if self.model.is_empty()
            || self.model.trim_end_matches('*').contains('*')
            || self.model.ends_with("**")
        {
            return Err("model must be a name, with at most one * and that at its end".to_owned());
        }
        if self.currency.len() != 3 || !self.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Err(format!(
                "currency is {:?}; write three capital letters, such as \"USD\"",
                self.currency
            ));
        }
        let prices = [
            ("input", self.input),
            ("cached_read", self.cached_read),
            ("cached_write", self.cached_write),
            ("output", self.output),
        ];
        for (name, price) in prices {
            if !(0.0..=MILLION_TOKENS_MAX).contains(&price) {
                return Err(format!(
                    "{name} is {price}; it must be the price of a million tokens, from 0 to {MILLION_TOKENS_MAX}"
                ));
            }
        }
        if self.cached_read > self.input {
            return Err(format!(
                "cached_read is {} and input is {}; no provider charges more for cached tokens, so these may be confused",
                self.cached_read, self.input
            ));
        }
        Ok(())
    }
}

/// The highest price of a million tokens. A higher one is most likely a mistake in the unit.
const MILLION_TOKENS_MAX: f64 = 1_000_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn price(model: &str) -> Price {
        Price {
            model: model.to_owned(),
            currency: "USD".to_owned(),
            input: 3.0,
            cached_read: 0.3,
            cached_write: 3.75,
            output: 15.0,
        }
    }

    #[test]
    fn the_longest_name_that_matches_gives_the_price() {
        let models = ["*", "gpt-*", "gpt-5", "gpt-5*", "claude-sonnet-5"];
        for models in [models.to_vec(), models.iter().rev().copied().collect()] {
            let settings = SavingsSettings { prices: models.into_iter().map(price).collect() };
            let check = |model: &str, expect: &str| {
                assert_eq!(settings.price(model).map(|price| &*price.model), Some(expect), "{model}");
            };
            check("gpt-5", "gpt-5");
            check("gpt-5-mini", "gpt-5*");
            check("gpt-4", "gpt-*");
            check("claude-sonnet-5", "claude-sonnet-5");
            check("claude-sonnet-5-1", "*");
        }
        assert_eq!(SavingsSettings::default().price("gpt-5"), None);
    }

    #[test]
    fn invalid_settings_are_named() {
        let check = |name: &str, change: fn(&mut SavingsSettings), expect: &[&str]| {
            let mut settings = SavingsSettings { prices: vec![price("gpt-*"), price("gpt-5")] };
            assert_eq!(settings.validate(), Ok(()));
            change(&mut settings);
            let message = settings.validate().expect_err(name);
            expect
                .iter()
                .for_each(|part| assert!(message.contains(part), "{name}: {message:?} lacks {part:?}"));
        };
        check(
            "a negative price",
            |settings| settings.prices[1].output = -1.0,
            &["savings.prices[1] (gpt-5)", "output is -1"],
        );
        check(
            "an infinite price",
            |settings| settings.prices[0].input = f64::INFINITY,
            &["savings.prices[0] (gpt-*)", "input is inf"],
        );
        check(
            "confused prices",
            |settings| settings.prices[0].cached_read = 4.0,
            &["savings.prices[0]", "cached_read is 4", "input is 3"],
        );
        check(
            "a duplicate",
            |settings| settings.prices[1].model = "gpt-*".to_owned(),
            &["savings.prices[1] (gpt-*)", "another price"],
        );
        check("no model", |settings| settings.prices[0].model.clear(), &["savings.prices[0] ()", "model"]);
        check(
            "a star inside",
            |settings| settings.prices[0].model = "g*-5".to_owned(),
            &["savings.prices[0] (g*-5)"],
        );
        check("two stars", |settings| settings.prices[0].model = "g**".to_owned(), &["(g**)"]);
        check(
            "no currency",
            |settings| settings.prices[0].currency = "$".to_owned(),
            &["savings.prices[0]", "currency is \"$\""],
        );
    }
}
