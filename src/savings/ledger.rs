//! The savings of one tenant since the daemon started.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::counts::{Counts, Exchange, OTHER, Treatment};
use super::losses::{Counted, Losses};
use super::report::{Coverage, ModelSavings, SavingsReport, ShadowReport, Totals};
use super::settings::SavingsSettings;
use crate::middleware::copied::Use;
use crate::middleware::dialect::Dialect;
use crate::middleware::untouched::ToolKinds;

/// The most bytes of the name of a model that is counted apart.
const MODEL_BYTES_MAX: usize = 128;

/// The models that are counted apart for each tenant; further ones are counted together, so that invented names take no memory.
const MODEL_COUNT_MAX: usize = 64;

/// The savings of one tenant. Its memory is bounded by the settings.
#[derive(Debug)]
pub struct Ledger {
    settings: Arc<SavingsSettings>,
    since_unix_s: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<RowKey, Counts>,
    /// The models that are counted apart.
    models: BTreeSet<String>,
    coverage: Coverage,
    losses: Losses,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    is_shadow: bool,
    model: String,
    route: &'static str,
    /// The index of the price in the settings.
    price: Option<usize>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Ledger {
    pub fn new(settings: Arc<SavingsSettings>) -> Self {
        let since_unix_s =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        let state = Mutex::new(State::default());
        Self { settings, since_unix_s, state }
    }

    pub fn settings(&self) -> &SavingsSettings {
        &self.settings
    }

    /// Adds an answered request, and returns its counts.
    pub fn add(&self, exchange: &Exchange) -> Counts {
        let counts = Counts::count(exchange);
        let price = self.settings.price(exchange.model);
        let index = price.and_then(|price| self.settings.prices.iter().position(|one| one == price));
        let mut state = self.state();
        let name = state.name_of(exchange.model, price.map(|price| &*price.model));
        let key = RowKey {
            is_shadow: exchange.treatment == Treatment::Shadow,
            model: name,
            route: route(exchange.dialect),
            price: index,
        };
        let row = state.rows.entry(key).or_default();
        *row = row.plus(counts);
        counts
    }

    /// Adds how much of the sources of an answer would have been kept.
    pub fn cover(&self, coverage: Coverage) {
        let mut state = self.state();
        state.coverage = state.coverage.plus(coverage);
    }

    /// Adds what a step of the model copied from results of tools that earlier turns sent. See [`Losses::add`].
    pub fn used(&self, uses: &[Use], loss_max: f64) -> Counted {
        self.state().losses.add(uses, loss_max)
    }

    /// Returns the tools and kinds whose results are sent whole because too much of them was lost.
    pub fn off(&self) -> Arc<ToolKinds> {
        self.state().losses.off()
    }

    pub fn clear(&self) {
        *self.state() = State::default();
    }

    /// Returns all counts, with money where there are prices.
    pub fn report(&self) -> SavingsReport {
        let state = self.state();
        let rows = |is_shadow: bool| -> Vec<ModelSavings> {
            let rows = state.rows.iter().filter(|(key, _)| key.is_shadow == is_shadow);
            let row = |(key, counts): (&RowKey, &Counts)| {
                let price = key.price.map(|index| self.settings.prices[index].clone());
                ModelSavings::new(key.model.clone(), key.route, *counts, price)
            };
            rows.map(row).collect()
        };
        let (models, shadow) = (rows(false), rows(true));
        SavingsReport {
            since_unix_s: self.since_unix_s,
            totals: Totals::sum(&models),
            models,
            losses: state.losses.report(),
            shadow: (!shadow.is_empty()).then(|| ShadowReport {
                totals: Totals::sum(&shadow),
                models: shadow,
                coverage: state.coverage.with_shares(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The name under which a model is counted: its own, or that of its price, or [`OTHER`].
    fn name_of(&mut self, model: &str, price: Option<&str>) -> String {
        let is_known = self.models.contains(model);
        if is_known || model.len() <= MODEL_BYTES_MAX && self.models.len() < MODEL_COUNT_MAX {
            if !is_known {
                self.models.insert(model.to_owned());
            }
            return model.to_owned();
        }
        price.unwrap_or(OTHER).to_owned()
    }
}

pub fn route(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat => "/v1/chat/completions",
        Dialect::Responses => "/v1/responses",
        Dialect::Messages => "/v1/messages",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::middleware::prompt::{Omission, PromptBytes};
    use crate::middleware::usage::Usage;
    use crate::savings::settings::Price;

    fn settings() -> SavingsSettings {
        let price = |model: &str, currency: &str, input| Price {
            model: model.to_owned(),
            currency: currency.to_owned(),
            input,
            cached_read: input / 10.0,
            cached_write: input * 1.25,
            output: 5.0 * input,
        };
        SavingsSettings { prices: vec![price("gpt-*", "USD", 2.0), price("mistral-*", "EUR", 1.0)] }
    }

    fn exchange(model: &str, treatment: Treatment) -> Exchange<'_> {
        Exchange {
            dialect: Dialect::Chat,
            model,
            treatment,
            tokens: (3_000_000, 1_000_000),
            omissions: &[Omission { at: 0.9, bytes: 10 }],
            prompt: PromptBytes { all: 100, tools: 40 },
            usage: Some(Usage { input: 1_000_000, cached_read: 1_000_000, cached_write: 0, output: 100_000 }),
        }
    }

    #[test]
    fn money_is_summed_by_currency_and_models_without_a_price_have_tokens_only() {
        let ledger = Ledger::new(Arc::new(settings()));
        let models = ["gpt-5", "mistral-large", "llama"];
        for model in models {
            ledger.add(&exchange(model, Treatment::Compress));
        }
        ledger.add(&Exchange { usage: None, ..exchange("gpt-5", Treatment::Compress) });
        let report = ledger.report();
        let found: Vec<(&str, u64, Option<f64>)> = report
            .models
            .iter()
            .map(|row| (&*row.model, row.counts.requests, row.money.as_ref().map(|money| money.saved)))
            .collect();
        assert_eq!(found, [("gpt-5", 2, Some(4.0)), ("llama", 1, None), ("mistral-large", 1, Some(2.0))]);
        assert!(report.models[1].money_missing.as_ref().is_some_and(|why| why.contains("savings.prices")));
        assert_eq!(report.models[0].tokens_unpriced, 2_000_000, "one answer did not say what was billed");
        let totals: Vec<(&str, f64)> =
            report.totals.money.iter().map(|money| (&*money.currency, money.saved)).collect();
        assert_eq!(totals, [("EUR", 2.0), ("USD", 4.0)]);
        assert_eq!((report.totals.counts.requests, report.totals.tokens_unpriced), (4, 4_000_000));
        let counts = &report.totals.counts;
        assert_eq!((counts.saved_as.total(), counts.prompt_bytes, counts.tool_bytes), (8_000_000, 400, 160));
        assert!(report.shadow.is_none());
    }

    #[test]
    fn models_are_bounded_and_keep_their_price() {
        let ledger = Ledger::new(Arc::new(settings()));
        for at in 0..1_000 {
            ledger.add(&exchange(&format!("gpt-{at:04}"), Treatment::Compress));
            ledger.add(&exchange(&format!("llama-{at:04}"), Treatment::Compress));
        }
        ledger.add(&exchange(&"x".repeat(1_000), Treatment::Compress));
        let report = ledger.report();
        let found: Vec<(&str, u64)> =
            report.models.iter().map(|row| (&*row.model, row.counts.requests)).collect();
        assert_eq!((found.len(), found[0], found[1]), (66, ("gpt-*", 968), ("gpt-0000", 1)));
        assert_eq!(found[65], ("other", 969));
        assert_eq!(report.totals.counts.requests, 2_001);
        assert_eq!(report.totals.money[0].saved, 4_000.0);
    }

    #[test]
    fn shadow_mode_is_counted_apart() {
        let ledger = Ledger::new(Arc::new(settings()));
        ledger.add(&exchange("gpt-5", Treatment::Shadow));
        ledger.cover(Coverage { answers: 1, sentences: 4, sentences_kept: 3, ..Coverage::default() });
        ledger.add(&Exchange { omissions: &[], ..exchange("gpt-5", Treatment::Compress) });
        let report = ledger.report();
        assert_eq!(report.totals.counts.saved_as.total(), 0);
        assert_eq!(report.totals.counts.requests, 1);
        let shadow = report.shadow.expect("a request");
        assert_eq!((shadow.totals.counts.saved_as.total(), shadow.totals.money[0].saved), (2_000_000, 4.0));
        assert_eq!(shadow.coverage.sentences_kept_share, Some(0.75));
    }
}
