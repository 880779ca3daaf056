//! Verdicts: computes from features how probable it is that the sources support a part, and says what they do with
//! it. `docs/verdicts.md` describes the features, the data and the method by which the weights were fitted.

use schemars::JsonSchema;

use super::judge::{ConflictKind, Judgement};
use super::support::Support;

/// The support from which on a part counts as supported, if the sources have its numbers.
pub const SUPPORT_MIN: f32 = 0.5;

/// The share of a part's words, by weight, that the sources must have if they support a part of it, or contradict it.
/// With less, they do not speak of it.
const SHARED_MIN: f32 = 0.5;

/// The values of [`Feature::Copied`] and [`Feature::Gathered`] from which on a part is taken to repeat its sources, so
/// that a word that they do not have was changed. Below both, it tells in other words what they say.
const COPIED_MIN: f32 = 0.6;
const GATHERED_MIN: f32 = 0.75;

/// The least evidence of a rare word of a part that the sources have completely.
const COMPLETE_EVIDENCE_MIN: f32 = 0.99;

/// The factor for the probability of a part that exchanges who does something and to whom. It is a rule: no data
/// that the weights were fitted on has enough such parts.
const ROLES_FACTOR: f32 = 0.3;

/// The factor for the probability of a part that has a word of its sources without the prefix that denies it there, or the reverse; a
/// rule, too.
const DENIED_FORM_FACTOR: f32 = 0.3;

/// The factor for the probability of a part that denies what its sources say, or the reverse, or that has the number of something else;
/// a rule, too. It errs more often.
const DENIAL_FACTOR: f32 = 0.5;

/// The factor for the probability of a part that says something more than its sources; a rule, too, and not fitted.
const ADDITION_FACTOR: f32 = 0.6;

/// What the sources say of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// They say the same.
    Supported,
    /// They say some of it. `unsupported` has the rest.
    Partly,
    /// They speak of it and say something else. `conflicts` has the places.
    Contradicted,
    /// They do not speak of it.
    NotFound,
    /// It makes no claim: it has no word, or is a greeting, a question, a heading, or that the sources have no answer.
    NoClaim,
}

impl Verdict {
    /// Returns the verdict on a part with this probability of support.
    pub(super) fn of(probability: f32, support: &Support, judgement: Option<&Judgement>) -> Self {
        let (shared, is_probable) = (support.mean, probability >= SUPPORT_MIN);
        // However probable: nobody would call a sentence supported beside a number that no source has, or one that denies what the
        // sources say.
        let lacks_number = judgement.is_some_and(|judgement| {
            let of = |feature| judgement.features.get(feature);
            let lacks =
                support.number_missing && of(Feature::NumbersMissing) + of(Feature::NumbersExcluded) > 0.0;
            lacks || judgement.has_other_number
        });
        let is_contradicted = |judgement: &Judgement| {
            !judgement.conflicts.is_empty() && judgement.features.get(Feature::ConflictBeside) >= SHARED_MIN
        };
        if is_probable && !lacks_number && !support.negation_differs {
            Self::Supported
        } else if judgement.is_some_and(is_contradicted) {
            Self::Contradicted
        } else if is_probable
            || shared >= SHARED_MIN
            || judgement.is_some_and(|judgement| judgement.has_addition || judgement.has_half_of_few)
        {
            Self::Partly
        } else {
            Self::NotFound
        }
    }

    /// Returns whether the sources of a part with this verdict are cited.
    pub(super) fn is_cited(self) -> bool {
        matches!(self, Self::Supported | Self::Partly)
    }
}

macro_rules! features {
    ($($(#[doc = $doc:literal])+ $feature:ident = $name:literal,)+) => {
        /// What the support of a part is computed from.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Feature {
            $($(#[doc = $doc])+ $feature,)+
        }

        impl Feature {
            /// All features.
            pub const ALL: &[Self] = &[$(Self::$feature,)+];

            /// Returns the name of the feature in reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$feature => $name,)+ }
            }
        }
    };
}

features! {
    /// The mean over the part's words of their similarity to the most similar word of the sources. Function words
    /// count less.
    SimilarityMean = "similarity_mean",
    /// The number of the part's numbers that the sources have.
    NumbersFound = "numbers_found",
    /// The number of the part's numbers of which the sources have another one instead.
    NumbersExcluded = "numbers_excluded",
    /// The number of the part's other numbers.
    NumbersMissing = "numbers_missing",
    /// The number of the part's denials that the sources have.
    DenialsFound = "denials_found",
    /// The number of the part's other denials.
    DenialsMissing = "denials_missing",
    /// 1 if the sources have a word such as `although` and the part has none.
    Contrastive = "contrastive",
    /// 1 if the sources have a word that excludes a word of the part.
    ContrastExcluded = "contrast_excluded",
    /// 1 if the sources have the same thing of one kind, such as the same month.
    ContrastFound = "contrast_found",
    /// The number of the part's words that the sources have in other words.
    Paraphrased = "paraphrased",
    /// The mean evidence of the part's words (`docs/attribution.md`).
    EvidenceMean = "evidence_mean",
    /// The least evidence of a rare word of the part.
    EvidenceLeast = "evidence_least",
    /// The mean and the least evidence together, reduced for missing numbers and names and for a differing negation.
    Evidence = "evidence",
    /// The share of the pairs of neighbouring words of the part that are neighbours in the sources.
    Copied = "copied",
    /// 1 if something that excludes a word of the part stands in the place of that word: beside a word that stands
    /// beside it in the part, too.
    Replaced = "replaced",
    /// The share of the pairs of content words of the part, without one between, that are near each other in a source.
    Gathered = "gathered",
    /// The share of the part's content words in the longest row of them without evidence.
    Gap = "gap",
    /// The mean evidence of the content words that nothing excludes, if something excludes others; else 0.
    ConflictBeside = "conflict_beside",
}

/// `[feature]`: the features of one part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Features([f32; Feature::ALL.len()]);

impl Features {
    /// Returns the value of a feature.
    pub fn get(&self, feature: Feature) -> f32 {
        self.0[feature as usize]
    }

    pub(super) fn set(&mut self, feature: Feature, value: f32) {
        self.0[feature as usize] = value;
    }
}

/// Returns the probability that the sources support a part.
pub(super) fn probability(judgement: &Judgement, support: &Support) -> f32 {
    let features = &judgement.features;
    let is_copied = features.get(Feature::Copied) >= COPIED_MIN;
    let is_gathered = features.get(Feature::Gathered) >= GATHERED_MIN;
    let probability = if is_copied {
        COPIED.probability(features)
    } else if is_gathered && is_complete(features) {
        // The same words in another order, such as in the passive.
        COPIED.probability(features).max(PARAPHRASED.probability(features))
    } else if is_gathered {
        COPIED.probability(features)
    } else {
        PARAPHRASED.probability(features)
    };
    let roles_differ = judgement.conflicts.iter().any(|conflict| conflict.kind == ConflictKind::Roles);
    let factor = if roles_differ {
        ROLES_FACTOR
    } else if judgement.is_denied_form {
        DENIED_FORM_FACTOR
    } else if support.negation_differs || judgement.has_other_number {
        DENIAL_FACTOR
    } else if judgement.has_addition {
        ADDITION_FACTOR
    } else {
        1.0
    };
    factor * probability
}

/// Returns whether the sources have every word of a part, and nothing that excludes one.
fn is_complete(features: &Features) -> bool {
    const NONE_OF: [Feature; 6] = [
        Feature::Gap,
        Feature::ConflictBeside,
        Feature::ContrastExcluded,
        Feature::NumbersExcluded,
        Feature::NumbersMissing,
        Feature::DenialsMissing,
    ];
    features.get(Feature::EvidenceLeast) >= COMPLETE_EVIDENCE_MIN
        && NONE_OF.iter().all(|&feature| features.get(feature) == 0.0)
}

impl Weights {
    fn probability(&self, features: &Features) -> f32 {
        let sum: f32 = self.of.iter().map(|&(feature, weight)| weight * features.get(feature)).sum();
        1.0 / (1.0 + (-(self.bias + sum)).exp())
    }
}

/// A logistic regression: the logit of the probability is the bias plus the weighted features.
struct Weights {
    bias: f32,
    of: &'static [(Feature, f32)],
}

/// The weights for parts that tell in other words what their sources say.
const PARAPHRASED: Weights = Weights {
    bias: -1.697,
    of: &[
        (Feature::SimilarityMean, 3.736),
        (Feature::NumbersFound, 0.567),
        (Feature::NumbersExcluded, -0.395),
        (Feature::NumbersMissing, -0.168),
        (Feature::DenialsFound, 1.048),
        (Feature::DenialsMissing, -0.409),
        (Feature::Contrastive, -0.703),
        (Feature::ContrastExcluded, -1.114),
        (Feature::ContrastFound, 0.546),
        (Feature::Paraphrased, 0.272),
        (Feature::Gap, -0.643),
        (Feature::ConflictBeside, -0.668),
        (Feature::Replaced, -0.654),
    ],
};

/// The weights for parts that repeat their sources.
const COPIED: Weights = Weights {
    bias: -8.512,
    of: &[
        (Feature::Evidence, 1.496),
        (Feature::EvidenceLeast, 3.209),
        (Feature::ConflictBeside, -2.347),
        (Feature::Copied, 6.506),
        (Feature::Gap, -1.387),
    ],
};
