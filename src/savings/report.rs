//! The JSON of `GET /v1/savings` and of `thresher report --json`.

use schemars::JsonSchema;
use serde::Serialize;

use super::counts::{Counts, Money};
use super::losses::Loss;
use super::settings::Price;

/// Answer of `GET /v1/savings`: what the middleware saved for the tenant since the daemon started.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Savings")]
pub struct SavingsReport {
    /// When counting began, in seconds since 1970.
    pub since_unix_s: u64,
    /// All models together.
    pub totals: Totals,
    /// Requests that were to be compressed, by model and API.
    pub models: Vec<ModelSavings>,
    /// What compression lost of results of tools, as far as the model copied it later; also in shadow mode. Use without copying is not seen.
    pub losses: Vec<Loss>,
    /// What compression would have saved; `null` if no request was in shadow mode.
    pub shadow: Option<ShadowReport>,
}

/// What compression would have saved, had it not been in shadow mode.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsShadow")]
pub struct ShadowReport {
    /// All models together.
    pub totals: Totals,
    /// Requests in shadow mode, by model and API.
    pub models: Vec<ModelSavings>,
    /// How much of the sources of answers would have been kept.
    pub coverage: Coverage,
}

/// The counts of a model in one API.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ModelSavings {
    /// The model that requests named. Beyond 64 models, the `model` of its price, or `other`.
    pub model: String,
    /// The path of the API.
    pub route: String,
    /// Counts of requests and tokens.
    #[serde(flatten)]
    pub counts: Counts,
    /// The price of the model.
    pub price: Option<Price>,
    /// What the saved and the billed tokens cost; `null` without a price.
    pub money: Option<Money>,
    /// Why `money` is `null`.
    pub money_missing: Option<String>,
    /// Saved tokens that are not in `money`: there is no price, or the answer did not say what was billed.
    pub tokens_unpriced: u64,
}

/// The sums of several models.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsTotals")]
pub struct Totals {
    /// Counts of requests and tokens.
    #[serde(flatten)]
    pub counts: Counts,
    /// What the saved and the billed tokens cost, for each currency.
    pub money: Vec<Money>,
    /// Saved tokens that are not in `money`.
    pub tokens_unpriced: u64,
}

/// How much of the sources of answers compression would have kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "SavingsCoverage")]
pub struct Coverage {
    /// Answers that were attributed to the whole texts.
    pub answers: u64,
    /// Answers that could not be attributed: too long, not text, or the daemon was busy.
    pub answers_skipped: u64,
    /// Sentences of answers that have a source among the texts that could be compressed.
    pub sentences: u64,
    /// Of these, those of which at least one source would have been kept.
    pub sentences_kept: u64,
    /// Sources of these sentences.
    pub sources: u64,
    /// Of these, those that would have been kept.
    pub sources_kept: u64,
    /// `sentences_kept` as a share of `sentences`; `null` if there is none.
    pub sentences_kept_share: Option<f64>,
}

impl ModelSavings {
    pub fn new(model: String, route: &str, counts: Counts, price: Option<Price>) -> Self {
        let money = price.as_ref().map(|price| counts.money(price));
        let money_missing =
            money.is_none().then(|| "no entry of savings.prices has the model: tokens only".to_owned());
        let saved = counts.saved_as;
        let tokens_unpriced = if money.is_some() { saved.unknown } else { saved.total() };
        Self { model, route: route.to_owned(), counts, price, money, money_missing, tokens_unpriced }
    }
}

impl Totals {
    pub fn sum(models: &[ModelSavings]) -> Self {
        Self {
            counts: models.iter().map(|row| row.counts).fold(Counts::default(), Counts::plus),
            money: Money::sums(models.iter().filter_map(|row| row.money.as_ref())),
            tokens_unpriced: models.iter().map(|row| row.tokens_unpriced).fold(0, u64::saturating_add),
        }
    }
}

impl Coverage {
    pub fn plus(self, more: Self) -> Self {
        Self {
            answers: self.answers + more.answers,
            answers_skipped: self.answers_skipped + more.answers_skipped,
            sentences: self.sentences + more.sentences,
            sentences_kept: self.sentences_kept + more.sentences_kept,
            sources: self.sources + more.sources,
            sources_kept: self.sources_kept + more.sources_kept,
            sentences_kept_share: None,
        }
        .with_shares()
    }

    pub fn with_shares(mut self) -> Self {
        self.sentences_kept_share =
            (self.sentences > 0).then(|| self.sentences_kept as f64 / self.sentences as f64);
        self
    }
}
