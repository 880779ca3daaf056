//! Counts what a request saved, once its answer has been forwarded: the answer says how many tokens were billed.

use std::time::Instant;

use tokio::runtime::Handle;

use super::upstream::Upstream;
use super::{CompressionReport, ModelRequest};
use crate::error::ApiError;
use crate::http::{Scope, observe};
use crate::middleware::dialect::Dialect;
use crate::middleware::omissions::{self, AddedBytes, Omission};
use crate::middleware::rewrite::Rewritten;
use crate::middleware::shadow::WouldKeep;
use crate::middleware::usage::AnswerReader;
use crate::savings::counts::{Exchange, Treatment};
use crate::savings::ledger::OTHER;
use crate::savings::report::Coverage;

/// What was left out of a request, or would have been.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// Tokens of the texts that could be compressed, before and after.
    pub tokens: Option<(usize, usize)>,
    /// Where text was left out; empty: nothing was.
    pub omissions: Vec<Omission>,
}

/// A request that was to be compressed, and whose answer is being forwarded. It is counted when it is dropped: at the end of the answer, or when
/// the client or the upstream has gone. A request without an answer, or with an error of the upstream, is not counted. In shadow mode, the sources
/// of the answer are then looked up in the background.
pub struct Tally {
    pub scope: Scope,
    pub dialect: Dialect,
    /// The model that the request names.
    pub model: String,
    /// The name of the model's upstream or price in the settings, for metrics.
    pub label: Option<String>,
    pub treatment: Treatment,
    /// The conversation, if it belongs to an arm of the comparison.
    pub conversation: Option<u64>,
    pub left_out: LeftOut,
    /// In shadow mode, what would have been kept.
    pub would_keep: Option<WouldKeep>,
    reader: Option<AnswerReader>,
    /// Whether the answer has begun, and the request is not yet counted.
    is_open: bool,
}

impl Tally {
    /// A request that was treated like this. `left_out` and the other parts can be set until the answer begins.
    pub fn new(scope: Scope, dialect: Dialect, model: String, treatment: Treatment) -> Self {
        Self {
            scope,
            dialect,
            model,
            label: None,
            treatment,
            conversation: None,
            left_out: LeftOut::default(),
            would_keep: None,
            reader: None,
            is_open: false,
        }
    }

    /// The answer begins. `is_readable`: it is a stream of events or JSON, and not compressed. At most `bytes_max` bytes of it are buffered.
    pub fn begin(&mut self, is_stream: bool, is_readable: bool, bytes_max: usize) {
        let reader = || AnswerReader::new(self.dialect, is_stream, self.would_keep.is_some(), bytes_max);
        self.reader = is_readable.then(reader);
        self.is_open = true;
    }

    /// Reads bytes of the answer.
    pub fn read(&mut self, bytes: &[u8]) {
        if let Some(reader) = &mut self.reader {
            reader.push(bytes);
        }
    }

    /// Counts the request, and returns the text of its answer, as far as that is wanted.
    fn count(&mut self) -> Option<String> {
        self.is_open = false;
        let (usage, text) = self.reader.take().map_or((None, None), AnswerReader::finish);
        let (before, after) = self.left_out.tokens.unwrap_or_default();
        let exchange = Exchange {
            dialect: self.dialect,
            model: &self.model,
            treatment: self.treatment,
            tokens: (before as u64, after as u64),
            omissions: &self.left_out.omissions,
            usage,
            conversation: self.conversation,
        };
        let savings = self.scope.savings();
        let counts = savings.add(&exchange);
        let price = savings.settings().price(&self.model);
        let label = price.map(|price| price.model.clone()).or(self.label.take());
        let labels = observe::SavingsLabels {
            tenant: self.scope.tenant().name().to_owned(),
            model: label.unwrap_or_else(|| OTHER.to_owned()),
            exchange: &exchange,
        };
        observe::savings(&labels, &counts, price.map(|price| counts.money(price)));
        text
    }
}

impl ModelRequest {
    /// What is done to the request, if it is to be compressed or not, and if its upstream is in shadow mode or not.
    pub(super) fn treated(&self, compresses: bool, shadows: bool, holdout: f64) -> Option<Treatment> {
        if self.shadow.unwrap_or(compresses && shadows) {
            Some(Treatment::Shadow)
        } else if !compresses {
            None
        } else if self.is_comparable && omissions::is_held_out(self.conversation, holdout) {
            Some(Treatment::HoldOut)
        } else {
            Some(Treatment::Compress)
        }
    }

    pub(super) fn is_held_out(&self) -> bool {
        self.treatment == Some(Treatment::HoldOut)
    }

    /// What `rewritten` leaves out, of the request as it is sent, or in shadow mode (`is_whole`) would have left out.
    pub(super) fn left_out(&self, rewritten: &Rewritten, is_whole: bool) -> Result<LeftOut, ApiError> {
        if !rewritten.is_shorter() {
            return Ok(LeftOut { tokens: rewritten.tokens, omissions: Vec::new() });
        }
        let body = self.located()?;
        let of_added = rewritten.sources.iter().filter(|source| source.kind.is_none());
        let added = AddedBytes {
            whole: self.added_chunks().iter().map(|chunk| chunk.text.len()).sum(),
            kept: of_added.flat_map(|source| &source.seen).map(|range| range.len()).sum(),
        };
        let conversation = self.dialect.conversation(body);
        let omissions = omissions::omissions(&conversation, body, rewritten, added, is_whole);
        Ok(LeftOut { tokens: rewritten.tokens, omissions })
    }

    /// What is counted of the request once it has its answer; none if it was not to be compressed.
    pub(super) fn tally(
        &self,
        service: &Scope,
        upstream: &Upstream,
        report: &CompressionReport,
        left_out: LeftOut,
    ) -> Option<Tally> {
        let treatment = self.treatment?;
        let mut tally = Tally::new(service.clone(), self.dialect, self.model.clone(), treatment);
        tally.label = upstream.settings.name_of(&self.model).map(str::to_owned);
        // A conversation whose earlier turns were compressed belongs to no arm once it goes whole.
        let is_clean = treatment == Treatment::Compress || report.outcome == "whole";
        let is_compared = service.savings().settings().holdout > 0.0 && self.is_comparable && is_clean;
        tally.conversation = Some(self.conversation).filter(|_| is_compared && self.too_many.is_none());
        if treatment == Treatment::Compress {
            tally.left_out = left_out;
        }
        Some(tally)
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let text = self.count();
        // Of an answer that ends early, the part that arrived is looked up.
        if let Some((would_keep, runtime)) = self.would_keep.take().zip(Handle::try_current().ok()) {
            runtime.spawn(cover(self.scope.clone(), would_keep, text));
        }
    }
}

/// Counts how much of the sources of an answer would have been kept.
async fn cover(scope: Scope, would_keep: WouldKeep, text: Option<String>) {
    let text = text.filter(|text| !text.trim().is_empty());
    let deadline = Instant::now() + scope.limits.deadline_default;
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
