//! The evidence on a part of an answer: all that its verdict depends on, and the places that show it. [`super::gather`]
//! fills it in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::ByteRange;
use crate::model::contract::VerdictWeights;

/// A rare word or a name with less evidence than this is reported as unsupported; a row of such words is a gap.
pub(super) const EVIDENCE_MIN: f32 = 0.5;

/// Everything that the verdict on a part depends on. *Sources* are the sentences that it was compared with, all of cited chunks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Evidence {
    pub is_citable: bool,
    /// The mean evidence of the part's content words that are no numbers (`docs/attribution.md`): how far the sources speak of the same.
    pub shared: f32,
    /// The weighted mean evidence of all words of the part, reduced for missing numbers, names and rare words and for a differing negation.
    pub evidence: f32,
    /// The number of the part's numbers of which the sources have another one instead.
    pub numbers_excluded: f32,
    /// The number of the part's numbers that no cited chunk has, and of which no source has another one.
    pub numbers_missing: f32,
    /// The number of the part's numbers that lie in a range of its sources: `10:00`, of what is open from `8:00 to 18:00`.
    pub numbers_within: f32,
    /// Whether either the part or its sources deny a word that the others do not deny.
    pub negation_differs: bool,
    /// Whether both deny something, and cannot be told to deny the same: `not ordered by IT`, of what is `ordered, but not by IT`.
    pub negation_is_unclear: bool,
    /// The number of the part's content words that no cited chunk has.
    pub words_missing: f32,
    /// The share of the pairs of neighbouring words of the part that are neighbours in the sources.
    pub copied: f32,
    /// The share of the pairs of content words of the part, without one between, that are near each other in a source.
    pub gathered: f32,
    /// What a cross-encoder says; `None` if the settings name none, or if there is nothing to ask it about.
    pub second_opinion: Option<SecondOpinion>,
}

/// A word of a part, or the whole part, that its source does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedSpan {
    pub bytes: ByteRange,
    pub kind: UnsupportedKind,
}

/// Why a source does not support a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnsupportedKind {
    /// The word is a number that the source does not contain.
    Number,
    /// The word is a name that the source does not contain.
    Name,
    /// The word is a negation that the source does not have.
    Negation,
    /// The source has a negation that the part does not have. The span is the whole part.
    NegationDropped,
    /// Any other word for which the source has no evidence.
    Word,
}

/// Something in a sentence that excludes what the part says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    pub bytes: ByteRange,
    pub kind: ConflictKind,
    pub chunk: usize,
    /// Byte range in the chunk's text of what excludes it.
    pub source: ByteRange,
}

/// Why a sentence excludes what a part says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConflictKind {
    /// The sentence has another number of what the part counts.
    Number,
    /// The sentence denies what the part says, or the reverse.
    Negation,
    /// The model of `verdict.model` finds that the sentences exclude the part. Both ranges are whole: the part and a sentence.
    Meaning,
}

/// What a cross-encoder says of a part and its sources, as log-odds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SecondOpinion {
    /// The log-odds of [`Evidence::evidence`], without the cross-encoder.
    pub own: f32,
    /// The log-odds that the sources support the part.
    pub support: f32,
    /// The log-odds that they exclude it; `None` if the model has no label for it.
    pub conflict: Option<f32>,
    /// Whether the model has a label for sources that neither support nor exclude it.
    pub has_neutral: bool,
    pub weights: VerdictWeights,
}

/// Returns the mean of some values; 0 if there are none.
pub(super) fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len().max(1) as f32
}
