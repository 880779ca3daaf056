//! Verdicts: decides from the evidence on a part how probable it is that the sources support it, and what they do with
//! it. `docs/verdicts.md` describes the evidence, and `models/train/verdict.py` fits the weights.

use schemars::JsonSchema;

use super::evidence::{Evidence, SecondOpinion};

/// The support from which on a part counts as supported, if the sources have its numbers.
const SUPPORT_MIN: f32 = 0.5;

/// The share of a part's words, by weight, that the sources must have if they support a part of it, or contradict it.
/// With less, they do not speak of it.
const SHARED_MIN: f32 = 0.5;

/// The values of [`Evidence::copied`] and [`Evidence::gathered`] from which on a part is taken to repeat its sources, so
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

/// How much less probable it is that sources in another language support a part than its similar words say within one language, as log-odds;
/// and the factor for the probability of a part with another number, date or denial. Fitted on 120 answers in six languages over English texts
/// (`docs/verdicts.md`).
const FOREIGN_LOG_ODDS: f32 = 1.5;
const FOREIGN_FACTOR: f32 = 0.3;

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
    /// Returns whether the sources of a part with this verdict are cited.
    pub(super) fn is_cited(self) -> bool {
        matches!(self, Self::Supported | Self::Partly)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Judgement {
    pub verdict: Verdict,
    /// See [`PartOutcome::support`](super::PartOutcome::support).
    pub support: f32,
}

/// Returns whether the sources have another number than the part, or none. Across languages, months and weekdays count as numbers: their
/// names are read, and other words are not compared.
fn lacks_number(evidence: &Evidence) -> bool {
    evidence.number_missing
        && (evidence.is_foreign || evidence.numbers_missing + evidence.numbers_excluded > 0.0)
}

pub(super) fn judge(evidence: &Evidence) -> Judgement {
    let support = match evidence.second_opinion {
        Some(SecondOpinion { own, model, weights }) => {
            sigmoid(weights.bias + weights.own * own + weights.model * model)
        }
        None => measure_support(evidence),
    };
    let is_probable = support >= SUPPORT_MIN;
    // However probable: nobody would call a sentence supported beside a number that no source has, or one that denies what the
    // sources say.
    let lacks_number = lacks_number(evidence);
    let is_excluded = lacks_number || evidence.has_other_number || evidence.negation_differs;
    let verdict = if is_probable && !is_excluded {
        Verdict::Supported
    } else if evidence.has_conflict && evidence.conflict_beside >= SHARED_MIN {
        Verdict::Contradicted
    } else if evidence.is_citable
        && (is_probable
            || evidence.evidence_mean >= SHARED_MIN
            || evidence.has_addition
            || evidence.has_half_of_few)
    {
        Verdict::Partly
    } else {
        Verdict::NotFound
    };
    Judgement { verdict, support }
}

/// Returns the probability that the sources support a part, without a second opinion. If the evidence has no `similarity_mean`, it is
/// not a probability and only ranks parts. Without a source to cite, nothing is supported.
pub(super) fn measure_support(evidence: &Evidence) -> f32 {
    let Some(similarity_mean) = evidence.similarity_mean else {
        return if evidence.is_citable { evidence.evidence } else { 0.0 };
    };
    let is_copied = evidence.copied >= COPIED_MIN;
    let is_gathered = evidence.gathered >= GATHERED_MIN;
    let (copied, paraphrased) =
        (log_odds_if_copied(evidence), log_odds_if_paraphrased(evidence, similarity_mean));
    if evidence.is_foreign {
        let is_lacking = lacks_number(evidence) || evidence.has_other_number || evidence.negation_differs;
        let factor = if is_lacking { FOREIGN_FACTOR } else { 1.0 };
        return if evidence.is_citable { factor * sigmoid(paraphrased - FOREIGN_LOG_ODDS) } else { 0.0 };
    }
    let log_odds = if is_copied {
        copied
    } else if is_gathered && is_complete(evidence) {
        // The same words in another order, such as in the passive.
        copied.max(paraphrased)
    } else if is_gathered {
        copied
    } else {
        paraphrased
    };
    let factor = if !evidence.is_citable {
        0.0
    } else if evidence.roles_differ {
        ROLES_FACTOR
    } else if evidence.is_denied_form {
        DENIED_FORM_FACTOR
    } else if evidence.negation_differs || evidence.has_other_number {
        DENIAL_FACTOR
    } else if evidence.has_addition {
        ADDITION_FACTOR
    } else {
        1.0
    };
    factor * sigmoid(log_odds)
}

fn sigmoid(log_odds: f32) -> f32 {
    1.0 / (1.0 + (-log_odds).exp())
}

/// Returns whether the sources have every word of a part, and nothing that excludes one.
fn is_complete(evidence: &Evidence) -> bool {
    let lacking = [
        evidence.gap,
        evidence.conflict_beside,
        evidence.contrast_excluded,
        evidence.numbers_excluded,
        evidence.numbers_missing,
        evidence.denials_missing,
    ];
    evidence.evidence_least >= COMPLETE_EVIDENCE_MIN && lacking == [0.0; 6]
}

/// Returns the log-odds that the sources support a part that tells in other words what they say. The weights are fitted by
/// `models/train/verdict.py`.
fn log_odds_if_paraphrased(evidence: &Evidence, similarity_mean: f32) -> f32 {
    let sum = 3.736 * similarity_mean + 0.567 * evidence.numbers_found
        - 0.395 * evidence.numbers_excluded
        - 0.168 * evidence.numbers_missing
        + 1.048 * evidence.denials_found
        - 0.409 * evidence.denials_missing
        - 0.703 * evidence.contrastive
        - 1.114 * evidence.contrast_excluded
        + 0.546 * evidence.contrast_found
        + 0.272 * evidence.paraphrased
        - 0.643 * evidence.gap
        - 0.668 * evidence.conflict_beside
        - 0.654 * evidence.replaced;
    sum - 1.697
}

/// Returns the log-odds that the sources support a part that repeats them, with weights of the same origin.
fn log_odds_if_copied(evidence: &Evidence) -> f32 {
    let sum = 1.496 * evidence.evidence + 3.209 * evidence.evidence_least - 2.347 * evidence.conflict_beside
        + 6.506 * evidence.copied
        - 1.387 * evidence.gap;
    sum - 8.512
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
            similarity_mean: Some(1.0),
            copied: 1.0,
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
            similarity_mean: Some(0.75),
            paraphrased: 2.0,
            copied: 0.1,
            gathered: 0.3,
            ..copied()
        }
    }

    /// The evidence on a part of which a sentence has nothing.
    fn absent() -> Evidence {
        Evidence {
            evidence_mean: 0.1,
            evidence_least: 0.0,
            evidence: 0.05,
            similarity_mean: Some(0.2),
            gap: 1.0,
            copied: 0.0,
            gathered: 0.0,
            ..copied()
        }
    }

    #[test]
    fn verdicts_follow_from_the_evidence() {
        use Verdict::{Contradicted, NotFound, Partly, Supported};
        let check = |name: &str, evidence: Evidence, expect: Verdict| {
            let found = judge(&evidence);
            assert_eq!(found.verdict, expect, "{name}: {found:?}");
        };
        let conflict = |of: Evidence| Evidence { has_conflict: true, conflict_beside: 1.0, ..of };
        let (copied, other, absent) = (copied(), paraphrased(), absent());
        check("repeated word by word", copied, Supported);
        check("said in other words", other, Supported);
        check("about something else", absent, NotFound);
        check("nothing to cite", Evidence { is_citable: false, ..copied }, NotFound);
        let number = Evidence { number_missing: true, ..copied };
        check("a number in words", Evidence { numbers_found: 1.0, ..number }, Supported);
        check("a number that no source has", Evidence { numbers_missing: 1.0, ..number }, Partly);
        check("a number of another unit", Evidence { numbers_excluded: 1.0, ..copied }, Supported);
        check("a number differs", conflict(Evidence { numbers_excluded: 1.0, ..number }), Contradicted);
        check(
            "another thing's number",
            conflict(Evidence { has_other_number: true, ..copied }),
            Contradicted,
        );
        check("a weekday differs", conflict(Evidence { contrast_excluded: 1.0, ..other }), Contradicted);
        check("a conflict beside nothing", Evidence { has_conflict: true, ..absent }, NotFound);
        let negated = Evidence { negation_differs: true, ..copied };
        check("a negation differs", conflict(negated), Contradicted);
        check("a negation differs, without a place", negated, Partly);
        check("unpaid for paid", conflict(Evidence { is_denied_form: true, ..copied }), Contradicted);
        check("exchanged roles", conflict(Evidence { roles_differ: true, ..copied }), Contradicted);
        check("an addition", Evidence { gap: 0.4, copied: 0.9, has_addition: true, ..copied }, Partly);
        check("one word of two", Evidence { has_half_of_few: true, ..absent }, Partly);
        let decoder = Evidence { similarity_mean: None, ..copied };
        check("a decoder", decoder, Supported);
        check("a decoder, without a rare word", Evidence { evidence: 0.3, ..decoder }, Partly);
        let weights = VerdictWeights { bias: 0.0, own: 0.5, model: 0.5 };
        let opinion = |own: f32, model: f32| Some(SecondOpinion { own, model, weights });
        check("a cross-encoder denies", Evidence { second_opinion: opinion(1.0, -3.0), ..copied }, Partly);
        check(
            "a cross-encoder confirms",
            Evidence { second_opinion: opinion(-1.0, 3.0), ..absent },
            Supported,
        );
    }

    #[test]
    fn the_same_words_in_another_order_take_the_better_regression() {
        let reordered = Evidence { copied: 0.2, ..copied() };
        let (copied, paraphrased) =
            (log_odds_if_copied(&reordered), log_odds_if_paraphrased(&reordered, 1.0));
        assert!(copied < 0.0 && paraphrased > 0.0, "{copied}, {paraphrased}");
        assert_eq!(measure_support(&reordered), sigmoid(paraphrased));
        // With a word that no source has, it is a changed copy.
        let changed = Evidence { evidence_least: 0.5, ..reordered };
        assert_eq!(measure_support(&changed), sigmoid(log_odds_if_copied(&changed)));
    }
}
