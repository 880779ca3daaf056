//! The evidence on a part of an answer: all that its verdict depends on, and the places that show it. [`super::gather`]
//! fills it in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::domain::ByteRange;
use crate::model::contract::VerdictWeights;

/// A rare word or a name with less evidence than this is reported as unsupported; a row of such words is a gap.
pub(super) const EVIDENCE_MIN: f32 = 0.5;

/// Everything that the verdict on a part depends on. *Sources* are the units that it was compared with. Everything after
/// `similarity_mean` is 0 or false if that is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Evidence {
    pub is_citable: bool,
    /// The mean evidence of the part's words (`docs/attribution.md`).
    pub evidence_mean: f32,
    /// The least evidence of a rare word of the part; 1 if it has none.
    pub evidence_least: f32,
    /// The mean and the least evidence together, reduced for missing numbers and names and for a differing negation.
    pub evidence: f32,
    /// Whether the part is in another language than its sources.
    pub is_foreign: bool,
    /// Whether no chunk contains a number of the part in these digits.
    pub number_missing: bool,
    /// Whether either the part or its sources deny what the others say.
    pub negation_differs: bool,
    /// The mean over the part's words of their similarity to the most similar word of the sources. Function words
    /// count less. `None` if the model has no calibration, if there are no sources, or if they are in another language and the model does not
    /// compare languages.
    pub similarity_mean: Option<f32>,
    /// The number of the part's numbers that the sources have.
    pub numbers_found: f32,
    /// The number of the part's numbers of which the sources have another one instead.
    pub numbers_excluded: f32,
    /// The number of the part's other numbers.
    pub numbers_missing: f32,
    /// Whether a number of the part stands only in units about something else, and the one with all other words of the
    /// part has another number.
    pub has_other_number: bool,
    /// The number of the part's denials that the sources have.
    pub denials_found: f32,
    /// The number of the part's other denials.
    pub denials_missing: f32,
    /// Whether the sources have a word of the part with a prefix that denies it, such as `unpaid` for `paid`, or the
    /// reverse.
    pub is_denied_form: bool,
    /// 1 if the sources have a word such as `although` and the part has none.
    pub contrastive: f32,
    /// 1 if the sources have a word that excludes a word of the part.
    pub contrast_excluded: f32,
    /// 1 if the sources have the same thing of one kind, such as the same month.
    pub contrast_found: f32,
    /// Whether the part exchanges who does something and to whom.
    pub roles_differ: bool,
    /// Whether the sources have anything that excludes the part.
    pub has_conflict: bool,
    /// The mean evidence of the content words that nothing excludes, if something excludes others; else 0.
    pub conflict_beside: f32,
    /// 1 if something that excludes a word of the part stands in the place of that word: beside a word that stands
    /// beside it in the part, too.
    pub replaced: f32,
    /// The number of the part's words that the sources have in other words.
    pub paraphrased: f32,
    /// The share of the pairs of neighbouring words of the part that are neighbours in the sources.
    pub copied: f32,
    /// The share of the pairs of content words of the part, without one between, that are near each other in a source.
    pub gathered: f32,
    /// The share of the part's content words in the longest row of them without evidence.
    pub gap: f32,
    /// Whether the part says something more than its sources, which have the rest of it.
    pub has_addition: bool,
    /// Whether the part has so few words with meaning that one of them in the sources is half of what it says: "Knows SQL".
    pub has_half_of_few: bool,
    /// What a cross-encoder adds; `None` if the settings name none, or if there is nothing to ask it about.
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
    /// Byte range in the chunk's text of the word that excludes it.
    pub source: ByteRange,
}

/// Why a sentence excludes what a part says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConflictKind {
    /// The sentence has another number of what the part counts.
    Number,
    /// The sentence has another name beside a name that both have.
    Name,
    /// The sentence has a word that excludes a word of the part, such as `Tuesday` for `Monday`.
    Contrast,
    /// The sentence denies what the part says.
    Negation,
    /// The sentence has two names of the part in the opposite order.
    Roles,
}

/// How probable it is that the sources support a part, with the model and without it, as log-odds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SecondOpinion {
    /// The log-odds without the cross-encoder.
    pub own: f32,
    /// The log-odds of the cross-encoder alone.
    pub model: f32,
    pub weights: VerdictWeights,
}

/// Returns the mean of some values; 0 if there are none.
pub(super) fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len().max(1) as f32
}
