//! The contexts that a reader answers from.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use thresher_core::domain::{Budget, CompressRequest, Granularity};
use thresher_core::pipeline::cancel::Cancel;
use thresher_core::pipeline::clock::Clock;
use thresher_core::pipeline::validate::InvalidRequest;
use thresher_core::pipeline::{Pipeline, PipelineError, Prepared};

use super::ReaderRow;
use crate::data;
use crate::methods::{Bm25, Method as _};
use crate::selection::texts;

/// The promised probability of the arms with `coverage`.
const COVERAGE: f64 = 0.95;

/// What a reader gets to answer from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arm {
    All,
    Thresher(Size),
    /// The best chunks, unchanged, in at most as many tokens as Thresher keeps.
    Chunks(Size),
    /// The best sentences by BM25, in at most as many tokens as Thresher keeps.
    Bm25(Size),
    Nothing,
}

/// How much Thresher keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    Half,
    Quarter,
    Eighth,
    Auto,
    Coverage,
}

const SIZES: [Size; 5] = [Size::Half, Size::Quarter, Size::Eighth, Size::Auto, Size::Coverage];

impl Arm {
    pub fn every() -> Vec<Self> {
        let of_size = |size| [Self::Thresher(size), Self::Chunks(size), Self::Bm25(size)];
        [Self::All].into_iter().chain(SIZES.into_iter().flat_map(of_size)).chain([Self::Nothing]).collect()
    }
}

impl Size {
    fn budget(self) -> Budget {
        match self {
            Self::Half => Budget::ratio(0.5),
            Self::Quarter => Budget::ratio(0.25),
            Self::Eighth => Budget::ratio(0.125),
            Self::Auto => Budget::default(),
            Self::Coverage => Budget::coverage(COVERAGE),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Half => "1/2",
            Self::Quarter => "1/4",
            Self::Eighth => "1/8",
            Self::Auto => "auto",
            Self::Coverage => "coverage",
        })
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Thresher(size) => write!(f, "thresher:{size}"),
            Self::Chunks(size) => write!(f, "chunks:{size}"),
            Self::Bm25(size) => write!(f, "bm25:{size}"),
            Self::Nothing => f.write_str("none"),
        }
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let every = Self::every();
        let names = || every.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        every
            .iter()
            .copied()
            .find(|arm| arm.to_string() == name)
            .ok_or_else(|| format!("use one of {}", names()))
    }
}

/// A context, and its number of tokens (o200k_base).
#[derive(Debug, Clone, Default)]
struct ArmContext {
    text: String,
    tokens: usize,
}

/// Returns the context of each arm for a row.
///
/// # Errors
/// Fails if the question or its chunks are beyond a limit, or if the model fails.
pub fn contexts(row: &ReaderRow, arms: &[Arm], pipeline: &Pipeline) -> Result<Vec<String>> {
    let request = CompressRequest {
        history: row.history.iter().map(|turn| turn.content.clone()).collect(),
        ..CompressRequest::new(&row.query, data::request_chunks(&row.chunks))
    };
    let row = RowContexts {
        pipeline,
        row,
        sentences: pipeline.prepare(&request, &Cancel::default())?,
        chunks: pipeline.prepare(
            &CompressRequest { granularity: Granularity::Chunk, ..request.clone() },
            &Cancel::default(),
        )?,
        request,
    };
    arms.iter().map(|&arm| Ok(row.context(arm)?.text)).collect()
}

/// A row whose chunks are scored.
struct RowContexts<'a> {
    pipeline: &'a Pipeline,
    row: &'a ReaderRow,
    request: CompressRequest,
    /// The row, prepared for contexts of sentences.
    sentences: Prepared,
    /// The row, prepared for contexts of complete chunks.
    chunks: Prepared,
}

impl RowContexts<'_> {
    fn context(&self, arm: Arm) -> Result<ArmContext> {
        match arm {
            Arm::All => self.kept(&self.sentences, Budget::ratio(1.0)),
            Arm::Thresher(size) => self.kept(&self.sentences, size.budget()),
            Arm::Chunks(size) => {
                let tokens = self.kept(&self.sentences, size.budget())?.tokens;
                self.kept(&self.chunks, Budget::tokens(tokens))
            }
            Arm::Bm25(size) => self.best_by_bm25(self.kept(&self.sentences, size.budget())?.tokens),
            Arm::Nothing => Ok(ArmContext::default()),
        }
    }

    /// Returns what is kept with a budget; nothing if the budget is too small for any unit.
    fn kept(&self, prepared: &Prepared, budget: Budget) -> Result<ArmContext> {
        if budget == Budget::tokens(0) {
            return Ok(ArmContext::default());
        }
        match self.pipeline.compress_prepared(prepared, budget, &Cancel::default()) {
            Ok(kept) => {
                Ok(ArmContext { text: kept.context, tokens: kept.usage.map_or(0, |usage| usage.tokens_out) })
            }
            Err(PipelineError::Invalid(InvalidRequest::BudgetImpossible { .. })) => Ok(ArmContext::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn best_by_bm25(&self, tokens: usize) -> Result<ArmContext> {
        if tokens == 0 {
            return Ok(ArmContext::default());
        }
        let request = CompressRequest { budget: Budget::tokens(tokens), ..self.request.clone() };
        let reading = self.pipeline.read(&request, &Cancel::default(), &mut Clock::start())?;
        let texts = texts(&self.row.chunks, &request, &reading);
        let scores = Bm25.scores(&self.row.query, &reading, &texts)?;
        match self.pipeline.decide(&request, &reading, &scores, None, &Cancel::default()) {
            Ok(fitted) => Ok(ArmContext { text: fitted.context, tokens: fitted.usage.tokens_out }),
            Err(PipelineError::Invalid(InvalidRequest::BudgetImpossible { .. })) => Ok(ArmContext::default()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_have_the_names_that_they_are_read_from() {
        for arm in Arm::every() {
            assert_eq!(arm.to_string().parse(), Ok(arm));
        }
        assert!("thresher".parse::<Arm>().is_err_and(|error| error.contains("thresher:1/4")));
    }
}
