//! Counts what a request saved, once its answer has been forwarded: the answer says how many tokens were billed.

use std::time::Instant;

use tokio::runtime::Handle;

use super::ModelRequest;
use super::upstream::Upstream;
use crate::http::{Scope, observe};
use crate::middleware::dialect::Dialect;
use crate::middleware::prompt::{AddedBytes, Omission, PromptBytes};
use crate::middleware::rewrite::Rewritten;
use crate::middleware::shadow::WouldKeep;
use crate::middleware::usage::Usage;
use crate::savings::counts::OTHER;
use crate::savings::counts::{Exchange, Treatment};
use crate::savings::report::Coverage;

/// What was left out of a request, or would have been.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Tokens of the texts that could be compressed, before and after.
    pub tokens: Option<(usize, usize)>,
    /// Where text was left out; empty: nothing was.
    pub omissions: Vec<Omission>,
}

/// A request that was to be compressed. It is counted at the end of its answer, or when the client or the upstream has gone. A request without an
/// answer, or with an error of the upstream, is not counted. In shadow mode, the sources of the answer are then looked up in the background.
pub struct Tally {
    pub scope: Scope,
    pub dialect: Dialect,
    pub model: String,
    /// The name of the model's upstream or price in the settings, for metrics.
    pub label: Option<String>,
    pub treatment: Treatment,
    pub left_out: LeftOut,
    /// The length of the prompt as the client sent it.
    pub prompt: PromptBytes,
    /// In shadow mode, what would have been kept.
    pub would_keep: Option<WouldKeep>,
}

impl Tally {
    /// Counts the request. `usage` and `text` are those of the answer, as far as it has arrived.
    pub fn count(self, usage: Option<Usage>, text: Option<String>) {
        let (before, after) = self.left_out.tokens.unwrap_or_default();
        let exchange = Exchange {
            dialect: self.dialect,
            model: &self.model,
            treatment: self.treatment,
            tokens: (before as u64, after as u64),
            omissions: &self.left_out.omissions,
            prompt: self.prompt,
            usage,
        };
        let savings = self.scope.savings();
        let counts = savings.add(&exchange);
        let price = savings.settings().price(&self.model);
        let label = price.map(|price| price.model.clone()).or(self.label);
        let labels = observe::SavingsLabels {
            tenant: self.scope.tenant().name().to_owned(),
            model: label.unwrap_or_else(|| OTHER.to_owned()),
            exchange: &exchange,
        };
        observe::savings(&labels, &counts, price.map(|price| counts.money(price)));
        // Of an answer that ends early, the part that arrived is looked up.
        if let Some((would_keep, runtime)) = self.would_keep.zip(Handle::try_current().ok()) {
            runtime.spawn(cover(self.scope.clone(), would_keep, text));
        }
    }
}

impl ModelRequest {
    /// What is done to the request, if it is to be compressed or not, and if its upstream is in shadow mode or not.
    pub(super) fn treated(&self, compresses: bool, shadows: bool) -> Option<Treatment> {
        if self.shadow.unwrap_or(compresses && shadows) {
            Some(Treatment::Shadow)
        } else {
            compresses.then_some(Treatment::Compress)
        }
    }

    /// What `rewritten` leaves out, of the request as it is sent, or in shadow mode (`is_whole`) would have left out.
    pub(super) fn left_out(&self, rewritten: &Rewritten, is_whole: bool) -> LeftOut {
        if !rewritten.is_shorter() {
            return LeftOut { tokens: rewritten.tokens, omissions: Vec::new() };
        }
        let of_added = rewritten.sources.iter().filter(|source| source.kind.is_none());
        let added = AddedBytes {
            whole: self.added.iter().map(|chunk| chunk.text.len()).sum(),
            kept: of_added.flat_map(|source| &source.seen).map(|range| range.len()).sum(),
        };
        LeftOut { tokens: rewritten.tokens, omissions: self.prompt.omissions(rewritten, added, is_whole) }
    }

    /// What is counted of the request once it has its answer; none if it was not to be compressed.
    pub(super) fn tally(&self, service: &Scope, upstream: &Upstream, left_out: LeftOut) -> Option<Tally> {
        let treatment = self.treatment?;
        Some(Tally {
            scope: service.clone(),
            dialect: self.dialect,
            model: self.model.clone(),
            label: upstream.settings.name_of(&self.model).map(str::to_owned),
            treatment,
            left_out: if treatment == Treatment::Compress { left_out } else { LeftOut::default() },
            prompt: self.prompt.bytes(),
            would_keep: None,
        })
    }
}

/// Counts how much of the sources of an answer would have been kept.
async fn cover(scope: Scope, would_keep: WouldKeep, text: Option<String>) {
    let text = text.filter(|text| !text.trim().is_empty());
    let deadline = Instant::now() + scope.settings.time_limits.default;
    let service = scope.clone();
    let found = match text {
        Some(text) => {
            let work = move |cancel: &_| Ok(would_keep.sources_of(&text, service.ready()?, cancel)?);
            scope.executor().run(deadline, work).await.ok()
        }
        None => None,
    };
    let coverage = match found {
        Some(found) => Coverage {
            answers: 1,
            sentences: found.sentences,
            sentences_kept: found.sentences_kept,
            sources: found.sources,
            sources_kept: found.sources_kept,
            ..Coverage::default()
        },
        None => Coverage { answers_skipped: 1, ..Coverage::default() },
    };
    observe::coverage(scope.tenant().name(), &coverage);
    scope.savings().cover(coverage);
}
