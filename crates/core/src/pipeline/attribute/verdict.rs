//! Verdicts: decides from the evidence on a part what its sources do with it, and how probable it is that they support it.
//! `docs/verdicts.md` describes the evidence.
//!
//! What can be told without reading is judged by rules: text that repeats its source, and numbers. Everything else needs a model that reads
//! both texts; without one it is [`Verdict::Unjudged`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::evidence::{Evidence, SecondOpinion};

/// The probability from which on a model's word counts. Between it and its opposite, the model does not know.
const PROBABLE_MIN: f32 = 0.55;

/// The value of [`Evidence::shared`] from which on the sources speak of what the part says.
const SHARED_MIN: f32 = 0.5;

/// The same if a model reads both that has no label for sources that speak of something else: it knows other words for the same.
const READ_SHARE_MIN: f32 = 0.3;

/// The values of [`Evidence::copied`] and [`Evidence::gathered`] from which on a part is taken to repeat its sources, so
/// that a word that they do not have was changed. Below both, it tells in other words what they say.
const COPIED_MIN: f32 = 0.6;
const GATHERED_MIN: f32 = 0.75;

/// The value of [`Evidence::copied`] from which on a part with all words of its sources says the same. Below it, their order changed:
/// "A beat B" has the words of "B beat A".
const ORDERED_MIN: f32 = 0.8;

/// The value of [`Evidence::copied`] from which on a part needs no other judge.
const COMPLETE_MIN: f32 = 0.99;

/// The most support of a part with a number that its sources do not have, and of one that denies what they say or the reverse.
const SUPPORT_OF_OTHER_NUMBER: f32 = 0.15;
const SUPPORT_IF_DENIED: f32 = 0.1;

/// By how much a number that the sources do not have lowers the log-odds of a model, which overlooks numbers.
const NUMBER_PENALTY: f32 = 1.0;

/// What the sources say of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The evidence states what the part states.
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

/// Returns whether a model has to read the part: it is neither a copy of its sources nor a copy with another number.
pub(super) fn needs_reading(evidence: &Evidence) -> bool {
    evidence.is_citable && !is_complete_copy(evidence) && !(lacks_number(evidence) && is_repeated(evidence))
}

pub(super) fn judge(evidence: &Evidence) -> Judgement {
    let is_shared = evidence.shared >= SHARED_MIN;
    if !evidence.is_citable {
        return Judgement::without_support(Verdict::NotFound);
    }
    if let Some(opinion) = &evidence.second_opinion {
        return judge_opinion(opinion, evidence);
    }
    if lacks_number(evidence) && is_shared {
        let is_excluded = evidence.numbers_excluded > 0.0;
        let verdict = if is_excluded { Verdict::Contradicted } else { Verdict::Partly };
        return Judgement::by(Method::Numbers, verdict, SUPPORT_OF_OTHER_NUMBER);
    }
    if !is_shared {
        return Judgement::without_support(Verdict::NotFound);
    }
    // Whether what holds from one number to another holds for one between them cannot be told.
    if !is_repeated(evidence) || evidence.numbers_within > 0.0 || evidence.negation_is_unclear {
        return Judgement::without_support(Verdict::Unjudged);
    }
    let support = sigmoid(log_odds_if_copied(evidence));
    if evidence.words_missing > 0.0 {
        // A word was changed or added. Whether it says the same cannot be told.
        Judgement::by(Method::Copied, Verdict::Partly, support.min(0.5))
    } else if evidence.negation_differs {
        Judgement::by(Method::Copied, Verdict::Contradicted, support.min(SUPPORT_IF_DENIED))
    } else if evidence.copied >= ORDERED_MIN {
        Judgement::by(Method::Copied, Verdict::Supported, support)
    } else {
        Judgement::without_support(Verdict::Unjudged)
    }
}

/// Judges by what a model says. A model without a label for sources that speak of something else says that these support a part, so their
/// words have to speak of it.
fn judge_opinion(opinion: &SecondOpinion, evidence: &Evidence) -> Judgement {
    let SecondOpinion { own, support, conflict, weights, has_neutral } = *opinion;
    let log_odds = weights.bias + weights.own * own + weights.model * support;
    let penalty = if lacks_number(evidence) { NUMBER_PENALTY } else { 0.0 };
    let support = sigmoid(log_odds - penalty);
    let conflict = match conflict {
        Some(conflict) if has_neutral => sigmoid(conflict),
        // Of two labels, one is the opposite of the other. A number that is merely missing contradicts nothing.
        Some(_) => sigmoid(-log_odds),
        None => 0.0,
    };
    let verdict = if evidence.shared < READ_SHARE_MIN && !has_neutral {
        Verdict::NotFound
    } else if support >= PROBABLE_MIN {
        if lacks_number(evidence) { Verdict::Partly } else { Verdict::Supported }
    } else if conflict >= PROBABLE_MIN {
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
    let negates_same = !evidence.negation_differs && !evidence.negation_is_unclear;
    evidence.copied >= COMPLETE_MIN && evidence.words_missing == 0.0 && negates_same
}

/// Returns the log-odds that the sources support a part that repeats them. The weights are set by hand, so that a complete copy has a
/// probability of 0.92; `models/train/verdict.py` fits them to reports of `thresher eval`.
fn log_odds_if_copied(evidence: &Evidence) -> f32 {
    4.0 * evidence.evidence + 5.0 * evidence.copied - 6.5
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
            shared: 1.0,
            evidence: 1.0,
            copied: 1.0,
            gathered: 1.0,
            ..Evidence::default()
        }
    }

    /// The evidence on a part that says in other words what a sentence says.
    fn paraphrased() -> Evidence {
        Evidence { shared: 0.6, evidence: 0.4, words_missing: 2.0, copied: 0.1, gathered: 0.3, ..copied() }
    }

    /// The evidence on a part of which a sentence has nothing.
    fn absent() -> Evidence {
        Evidence { shared: 0.1, evidence: 0.05, ..paraphrased() }
    }

    #[test]
    fn verdicts_follow_from_the_evidence() {
        use Verdict::{Contradicted, NotFound, Partly, Supported, Unjudged};
        let check = |name: &str, evidence: Evidence, verdict: Verdict, method: Option<Method>| {
            let found = judge(&evidence);
            assert_eq!((found.verdict, found.method), (verdict, method), "{name}: {found:?}");
            assert_eq!(found.support.is_some(), method.is_some(), "{name}");
        };
        let (copied, other, absent) = (copied(), paraphrased(), absent());
        let (copy, numbers, model) = (Some(Method::Copied), Some(Method::Numbers), Some(Method::Model));
        check("repeated word by word", copied, Supported, copy);
        check("said in other words", other, Unjudged, None);
        check("the same words in another order", Evidence { copied: 0.3, ..copied }, Unjudged, None);
        check("a changed word", Evidence { copied: 0.8, words_missing: 1.0, ..copied }, Partly, copy);
        check("about something else", absent, NotFound, None);
        check("nothing to cite", Evidence { is_citable: false, ..copied }, NotFound, None);
        check("a number in a range", Evidence { numbers_within: 1.0, ..copied }, Unjudged, None);
        check("a number that no source has", Evidence { numbers_missing: 1.0, ..copied }, Partly, numbers);
        check("a number about something else", Evidence { numbers_missing: 1.0, ..absent }, NotFound, None);
        check("the same in other words", Evidence { numbers_missing: 1.0, ..other }, Partly, numbers);
        let differs = Evidence { numbers_excluded: 1.0, ..copied };
        check("a number differs", differs, Contradicted, numbers);
        let negated = Evidence { negation_differs: true, ..copied };
        check("a negation differs", negated, Contradicted, copy);
        check("another negation", Evidence { negation_is_unclear: true, ..copied }, Unjudged, None);
        check("a negation and a word differ", Evidence { words_missing: 1.0, ..negated }, Partly, copy);
        check("in other words", Evidence { negation_differs: true, ..other }, Unjudged, None);

        let opinion = |support: f32, conflict: Option<f32>, has_neutral: bool| {
            let weights = VerdictWeights::default();
            Some(SecondOpinion { own: 0.0, support, conflict, has_neutral, weights })
        };
        let says = |of: Evidence, second_opinion| Evidence { second_opinion, ..of };
        let (confirms, excludes) = (opinion(3.0, Some(-3.0), false), opinion(-3.0, Some(3.0), false));
        check("confirmed", says(other, confirms), Supported, model);
        check("excluded", says(other, excludes), Contradicted, model);
        check("unsure", says(other, opinion(0.1, Some(-0.1), false)), Unjudged, model);
        check("neither", says(other, opinion(-3.0, Some(-3.0), true)), Unjudged, model);
        check("confirmed without a neutral label", says(absent, confirms), NotFound, model);
        check("confirmed in other words", says(absent, opinion(3.0, Some(-3.0), true)), Supported, model);
        let number = Evidence { numbers_missing: 1.0, ..other };
        check("confirmed with another number", says(number, confirms), Partly, model);
        check(
            "hardly confirmed with another number",
            says(number, opinion(0.5, Some(-0.5), false)),
            Unjudged,
            model,
        );
    }

    #[test]
    fn a_model_reads_what_is_no_copy() {
        assert!(needs_reading(&paraphrased()));
        assert!(!needs_reading(&copied()));
        assert!(!needs_reading(&Evidence { numbers_missing: 1.0, ..copied() }));
        assert!(needs_reading(&Evidence { numbers_missing: 1.0, ..paraphrased() }));
        assert!(needs_reading(&Evidence { negation_differs: true, ..copied() }));
    }
}
