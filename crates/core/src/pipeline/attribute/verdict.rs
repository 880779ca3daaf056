//! Verdicts: decides from the evidence on a part what its sources do with it, and how probable it is that they support it.
//! `docs/verdicts.md` describes the evidence, and `models/train/verdict.py` fits the weights.
//!
//! What can be told without reading is judged by rules: text that repeats its source, and numbers. Everything else needs a model that reads
//! both texts; without one it is [`Verdict::Unjudged`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::evidence::{Evidence, SecondOpinion};

/// The support from which on a part counts as supported, and the probability of a conflict from which on it counts as contradicted.
const PROBABLE_MIN: f32 = 0.5;

/// The share of a part's words, by weight, that the sources must have if they speak of it.
const SHARED_MIN: f32 = 0.5;

/// The values of [`Evidence::copied`] and [`Evidence::gathered`] from which on a part is taken to repeat its sources, so
/// that a word that they do not have was changed. Below both, it tells in other words what they say.
const COPIED_MIN: f32 = 0.6;
const GATHERED_MIN: f32 = 0.75;

/// The value of [`Evidence::copied`] from which on a part with all words of its sources says the same. Below it, their order changed:
/// "A beat B" has the words of "B beat A".
const ORDERED_MIN: f32 = 0.8;

/// The value of [`Evidence::copied`] from which on a part needs no other judge.
const COMPLETE_MIN: f32 = 0.99;

/// The share of a part's words, by weight, that the sources must have if a model without a label for sources that speak of something else is
/// asked. It is lower than [`SHARED_MIN`], because the model reads other words, too.
const READ_SHARE_MIN: f32 = 0.3;

/// How probable it is that the sources support a part with a number that they do not have, and one that denies what they say or the reverse:
/// the shares of true claims with such a part on the development halves of five sets (`docs/verdicts.md`).
const SUPPORT_OF_OTHER_NUMBER: f32 = 0.15;
const SUPPORT_IF_DENIED: f32 = 0.1;

/// What the sources say of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// They say the same.
    Supported,
    /// They say some of it. `unsupported` has the rest.
    Partly,
    /// They speak of it and say something else. `conflicts` has the places.
    Contradicted,
    /// They speak of it in other words, and whether they say the same cannot be told without a model that reads both.
    Unjudged,
    /// They do not speak of it.
    NotFound,
    /// It makes no claim: it has no word, or is a greeting, a question, a heading, or that the sources have no answer.
    NoClaim,
}

/// What judged a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The part repeats its sources, word for word or nearly.
    Copied,
    /// The numbers of the part, compared by value with those of its sources.
    Numbers,
    /// The model that `verdict.model` names.
    Model,
}

impl Verdict {
    /// Returns whether the sources of a part with this verdict may be cited.
    pub(super) fn is_cited(self) -> bool {
        matches!(self, Self::Supported | Self::Partly | Self::Unjudged)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Judgement {
    pub verdict: Verdict,
    /// See [`PartOutcome::support`](super::PartOutcome::support).
    pub support: Option<f32>,
    pub method: Option<Method>,
}

impl Judgement {
    fn by(method: Method, verdict: Verdict, support: f32) -> Self {
        Self { verdict, support: Some(support), method: Some(method) }
    }

    fn without_support(verdict: Verdict) -> Self {
        Self { verdict, support: None, method: None }
    }
}

/// Returns whether a model has to read the part: it is neither a copy of its sources nor decided by its numbers.
pub(super) fn needs_reading(evidence: &Evidence) -> bool {
    evidence.is_citable && !is_complete_copy(evidence) && !lacks_number(evidence)
}

pub(super) fn judge(evidence: &Evidence) -> Judgement {
    let is_shared = evidence.evidence_mean >= SHARED_MIN;
    if !evidence.is_citable {
        return Judgement::without_support(Verdict::NotFound);
    }
    let is_conflict = evidence.has_conflict && evidence.conflict_beside >= SHARED_MIN;
    if lacks_number(evidence) {
        return if is_conflict && evidence.numbers_excluded > 0.0 {
            Judgement::by(Method::Numbers, Verdict::Contradicted, SUPPORT_OF_OTHER_NUMBER)
        } else if is_shared {
            Judgement::by(Method::Numbers, Verdict::Partly, SUPPORT_OF_OTHER_NUMBER)
        } else {
            Judgement::without_support(Verdict::NotFound)
        };
    }
    if let Some(opinion) = &evidence.second_opinion {
        return judge_opinion(opinion, evidence.evidence_mean >= READ_SHARE_MIN);
    }
    if is_repeated(evidence) {
        let support = sigmoid(log_odds_if_copied(evidence));
        return if evidence.negation_differs {
            let verdict = if is_conflict { Verdict::Contradicted } else { Verdict::Partly };
            Judgement::by(Method::Copied, verdict, support.min(SUPPORT_IF_DENIED))
        } else if evidence.words_missing > 0.0 {
            // A word was changed or added. Whether it says the same cannot be told.
            Judgement::by(Method::Copied, Verdict::Partly, support.min(1.0 - PROBABLE_MIN))
        } else if evidence.copied >= ORDERED_MIN && support >= PROBABLE_MIN {
            Judgement::by(Method::Copied, Verdict::Supported, support)
        } else {
            Judgement::without_support(Verdict::Unjudged)
        };
    }
    if is_shared && evidence.gap > 0.0 && evidence.copied_beside >= COPIED_MIN {
        // A copy with something added to it.
        return Judgement::by(Method::Copied, Verdict::Partly, sigmoid(log_odds_if_copied(evidence)));
    }
    Judgement::without_support(if is_shared { Verdict::Unjudged } else { Verdict::NotFound })
}

/// Judges by what a model says. A model without a label for sources that speak of something else says that these support a part, so their
/// words have to speak of it.
fn judge_opinion(opinion: &SecondOpinion, is_shared: bool) -> Judgement {
    let SecondOpinion { own, support, conflict, weights, .. } = *opinion;
    let support = sigmoid(weights.bias + weights.own * own + weights.model * support);
    let verdict = if support >= PROBABLE_MIN && (is_shared || opinion.has_neutral) {
        Verdict::Supported
    } else if !is_shared {
        Verdict::NotFound
    } else if conflict.is_some_and(|conflict| sigmoid(conflict) >= PROBABLE_MIN) {
        Verdict::Contradicted
    } else {
        Verdict::Unjudged
    };
    Judgement::by(Method::Model, verdict, support)
}

/// Returns whether the sources have another number than the part, or none. However much else they share: nobody would call a sentence
/// supported with a number that its sources do not have.
fn lacks_number(evidence: &Evidence) -> bool {
    evidence.numbers_missing + evidence.numbers_excluded > 0.0
}

fn is_repeated(evidence: &Evidence) -> bool {
    evidence.copied >= COPIED_MIN || evidence.gathered >= GATHERED_MIN
}

/// Returns whether the sources have every word of a part, most of them in its order, and nothing that excludes one.
fn is_complete_copy(evidence: &Evidence) -> bool {
    evidence.copied >= COMPLETE_MIN && evidence.words_missing == 0.0 && !evidence.negation_differs
}

/// Returns the log-odds that the sources support a part that repeats them. The weights are fitted by `models/train/verdict.py`.
fn log_odds_if_copied(evidence: &Evidence) -> f32 {
    let sum = 1.496 * evidence.evidence + 3.209 * evidence.evidence_least - 2.347 * evidence.conflict_beside
        + 6.506 * evidence.copied
        - 1.387 * evidence.gap;
    sum - 8.512
}

fn sigmoid(log_odds: f32) -> f32 {
    1.0 / (1.0 + (-log_odds).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::contract::VerdictWeights;

    /// The evidence on a part that repeats a sentence word by word.
    fn copied() -> Evidence {
        Evidence {
            is_citable: true,
            evidence_mean: 1.0,
            evidence_least: 1.0,
            evidence: 1.0,
            copied: 1.0,
            copied_beside: 1.0,
            gathered: 1.0,
            ..Evidence::default()
        }
    }

    /// The evidence on a part that says in other words what a sentence says.
    fn paraphrased() -> Evidence {
        Evidence {
            evidence_mean: 0.6,
            evidence_least: 0.3,
            evidence: 0.4,
            words_missing: 2.0,
            copied: 0.1,
            copied_beside: 0.1,
            gathered: 0.3,
            ..copied()
        }
    }

    /// The evidence on a part of which a sentence has nothing.
    fn absent() -> Evidence {
        Evidence { evidence_mean: 0.1, evidence_least: 0.0, evidence: 0.05, gap: 1.0, ..paraphrased() }
    }

    #[test]
    fn verdicts_follow_from_the_evidence() {
        use Verdict::{Contradicted, NotFound, Partly, Supported, Unjudged};
        let check = |name: &str, evidence: Evidence, verdict: Verdict, method: Option<Method>| {
            let found = judge(&evidence);
            assert_eq!((found.verdict, found.method), (verdict, method), "{name}: {found:?}");
            assert_eq!(found.support.is_some(), method.is_some(), "{name}");
        };
        let conflict = |of: Evidence| Evidence { has_conflict: true, conflict_beside: 1.0, ..of };
        let (copied, other, absent) = (copied(), paraphrased(), absent());
        let (copy, numbers, model) = (Some(Method::Copied), Some(Method::Numbers), Some(Method::Model));
        check("repeated word by word", copied, Supported, copy);
        check("said in other words", other, Unjudged, None);
        check("the same words in another order", Evidence { copied: 0.3, ..copied }, Unjudged, None);
        check("a changed word", Evidence { copied: 0.8, words_missing: 1.0, ..copied }, Partly, copy);
        check("about something else", absent, NotFound, None);
        check("nothing to cite", Evidence { is_citable: false, ..copied }, NotFound, None);
        check("a number that no source has", Evidence { numbers_missing: 1.0, ..copied }, Partly, numbers);
        check("a number about something else", Evidence { numbers_missing: 1.0, ..absent }, NotFound, None);
        check("the same in other words", Evidence { numbers_missing: 1.0, ..other }, Partly, numbers);
        let differs = Evidence { numbers_excluded: 1.0, ..copied };
        check("a number differs", conflict(differs), Contradicted, numbers);
        check("a number differs beside nothing", Evidence { has_conflict: true, ..differs }, Partly, numbers);
        let negated = Evidence { negation_differs: true, ..copied };
        check("a negation differs", conflict(negated), Contradicted, copy);
        check("a negation differs, without a place", negated, Partly, copy);
        check("in other words", conflict(Evidence { negation_differs: true, ..other }), Unjudged, None);
        let addition = Evidence { gap: 0.5, copied: 0.4, copied_beside: 0.9, ..other };
        check("an addition", addition, Partly, copy);

        let opinion = |support: f32, conflict: Option<f32>, has_neutral: bool| {
            let weights = VerdictWeights::default();
            Some(SecondOpinion { own: 0.0, support, conflict, has_neutral, weights })
        };
        let says = |of: Evidence, second_opinion| Evidence { second_opinion, ..of };
        check("confirmed", says(other, opinion(3.0, Some(-3.0), false)), Supported, model);
        check("excluded", says(other, opinion(-3.0, Some(3.0), false)), Contradicted, model);
        check("neither", says(other, opinion(-3.0, Some(-3.0), true)), Unjudged, model);
        check(
            "confirmed without a neutral label",
            says(absent, opinion(3.0, Some(-3.0), false)),
            NotFound,
            model,
        );
        check("confirmed in other words", says(absent, opinion(3.0, Some(-3.0), true)), Supported, model);
        check("numbers first", says(differs, opinion(3.0, Some(-3.0), true)), Partly, numbers);
    }

    #[test]
    fn a_model_reads_what_is_no_copy() {
        assert!(needs_reading(&paraphrased()));
        assert!(!needs_reading(&copied()));
        assert!(!needs_reading(&Evidence { numbers_missing: 1.0, ..paraphrased() }));
        assert!(needs_reading(&Evidence { negation_differs: true, ..copied() }));
    }
}
