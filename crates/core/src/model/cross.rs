//! Cross-encoders: models that read evidence and a claim together and judge whether the evidence supports the claim. Knows
//! nothing of answers, chunks or verdicts.

use std::sync::Arc;

use super::ModelError;
use super::contract::VerdictWeights;

/// The most labels of a cross-encoder. With more, a model classifies something else.
pub const LABELS_MAX: usize = 3;

/// A loaded cross-encoder. Implementations return the same bytes for the same texts, whatever runs at the same time.
pub trait CrossEncoder: Send + Sync {
    /// Returns the model's name: that of its contract, or of its folder.
    fn name(&self) -> &str;

    /// Returns a hash over everything that the opinions and their weights depend on: graph, weights, tokenizer and
    /// contract.
    fn fingerprint(&self) -> &str;

    /// Returns how the model's opinion is weighed.
    fn weights(&self) -> VerdictWeights;

    /// Reads `evidence` and `claim` in one window and returns what the model says of them. Evidence that is too long for the window is cut at
    /// its end. Returns `None` if the claim takes more than half of the window, or if either text has a letter of a script that the model does not know.
    ///
    /// # Errors
    /// Returns an error of the tokenizer or the runtime, or [`ModelError::Cancelled`] if `go_on` returned false before
    /// the model was free.
    fn judge(
        &self,
        evidence: &str,
        claim: &str,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Option<PairOpinion>, ModelError>;

    /// Returns a handle to the same model whose work is scheduled as a flow of its own; see
    /// [`ModelRuntime::with_own_flow`](super::ModelRuntime::with_own_flow).
    fn with_own_flow(&self) -> Arc<dyn CrossEncoder>;
}

/// What a cross-encoder says of evidence and a claim, as log-odds: `ln(p / (1 - p))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairOpinion {
    /// The log-odds that the evidence supports the claim. If the model has only a label for a conflict, those that there is none.
    pub support: f32,
    /// The log-odds that the evidence excludes the claim; `None` if the model has no label for it.
    pub conflict: Option<f32>,
    /// Whether the model has a label for evidence that neither supports nor excludes the claim.
    pub has_neutral: bool,
    /// The number of tokens that the model read.
    pub tokens: usize,
}

/// What the labels of a cross-encoder mean, as indices of its logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels {
    pub count: usize,
    /// The label that says that the evidence supports the claim, or does not exclude it.
    pub support: usize,
    /// The label that says that the evidence excludes the claim.
    pub conflict: Option<usize>,
}

/// How a label tells true claims from false ones of the same evidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Separation {
    /// The log-odds in the middle between those of the true and of the false claims.
    pub middle: f32,
    /// By how much the log-odds of the true claims exceed those of the false ones, on average.
    pub distance: f32,
    /// Whether nearly all pairs are told apart, and clearly: the log-odds of a random model differ, too, but by little.
    pub is_clear: bool,
}

/// How many of ten pairs a label has to tell apart, and by how much on average.
const PAIRS_RIGHT_OF_TEN: usize = 9;
const DISTANCE_MIN: f32 = 1.0;

impl Separation {
    /// Measures a label on logits, as [`Labels::of_logits`] has them.
    pub fn measure(same: &[Vec<f32>], other: &[Vec<f32>], label: usize) -> Self {
        let odds = |logits: &[Vec<f32>]| -> Vec<f32> {
            logits.iter().map(|logits| log_odds(logits, label)).collect()
        };
        let mean = |odds: &[f32]| odds.iter().sum::<f32>() / odds.len().max(1) as f32;
        let (same, other) = (odds(same), odds(other));
        let right = same.iter().zip(&other).filter(|(same, other)| same > other).count();
        let distance = mean(&same) - mean(&other);
        let is_clear = 10 * right >= PAIRS_RIGHT_OF_TEN * same.len() && distance >= DISTANCE_MIN;
        Self { middle: (mean(&same) + mean(&other)) / 2.0, distance, is_clear }
    }

    /// Returns the weights of a model that tells the claims of easy pairs apart like this: in their middle it knows nothing. Real claims are harder,
    /// so it counts less than the pairs suggest.
    pub fn weights(&self) -> VerdictWeights {
        let model = 2.0 * KNOWN_PAIR_LOG_ODDS / self.distance;
        VerdictWeights { bias: -model * self.middle, own: 0.0, model }
    }
}

/// The log-odds that a model's word on an easy pair counts for, without labelled claims: with this value, probabilities are calibrated best on
/// the even rows of fm2 and healthver, with one model (`docs/decisions/attribution-and-verdicts.md`).
const KNOWN_PAIR_LOG_ODDS: f32 = 0.9;

/// Parts of the names of labels that say that evidence excludes a claim.
const CONFLICT_NAMES: [&str; 3] = ["contradict", "conflict", "refute"];

/// Parts of the names of labels that say that it supports it.
const SUPPORT_NAMES: [&str; 2] = ["entail", "support"];

impl Labels {
    /// Reads the names of labels. Returns `None` if they do not tell which is which, as `LABEL_0` does not.
    pub fn of_names(names: &[String]) -> Option<Self> {
        let is = |name: &String, parts: &[&str]| {
            let name = name.to_lowercase();
            let is_denied = ["no", "not", "non"].iter().any(|no| name.starts_with(no));
            !is_denied && parts.iter().any(|part| name.contains(part))
        };
        let only = |parts: &[&str]| {
            let mut found = names.iter().enumerate().filter(|(_, name)| is(name, parts));
            found.next().map(|(at, _)| at).filter(|_| found.next().is_none())
        };
        let (support, conflict, count) = (only(&SUPPORT_NAMES), only(&CONFLICT_NAMES), names.len());
        match (support, conflict, count) {
            (Some(support), conflict, _) => Some(Self { count, support, conflict }),
            // "No conflict" and "conflict".
            (None, Some(conflict), 2) => {
                Some(Self { count, support: 1 - conflict, conflict: Some(conflict) })
            }
            _ => None,
        }
    }

    /// Finds out what the labels mean from logits, `[pair][label]`: of pairs whose evidence says what the claim says (`same`), and of the same
    /// pairs with another claim that the evidence excludes (`other`). Returns `None` if no label tells the two apart.
    pub fn of_logits(same: &[Vec<f32>], other: &[Vec<f32>]) -> Option<Self> {
        let count = same.first()?.len();
        let preference = |label: usize| Separation::measure(same, other, label).distance;
        let by_preference = |a: &usize, b: &usize| preference(*a).total_cmp(&preference(*b));
        let support = (0..count).max_by(by_preference)?;
        let conflict = (0..count).min_by(by_preference).filter(|&conflict| conflict != support);
        Separation::measure(same, other, support).is_clear.then_some(Self { count, support, conflict })
    }

    /// Returns what logits `[label]` say.
    pub fn read(&self, logits: &[f32], tokens: usize) -> PairOpinion {
        let conflict = self.conflict.map(|label| log_odds(logits, label));
        PairOpinion {
            support: log_odds(logits, self.support),
            conflict,
            has_neutral: self.count > 2 || conflict.is_none(),
            tokens,
        }
    }
}

/// Evidence, a claim that it supports, and one that it excludes. They tell what the labels of a model mean whose files do not say it.
pub const KNOWN_PAIRS: [[&str; 3]; 10] = [
    ["The bridge was opened in May.", "The bridge was opened in May.", "The bridge was never opened."],
    ["All of the seats are taken.", "No seat is free.", "Many seats are free."],
    ["The shop is closed on Sundays.", "On Sundays the shop is not open.", "The shop is open on Sundays."],
    ["Anna is older than Ben.", "Ben is younger than Anna.", "Ben is older than Anna."],
    ["A man is playing the guitar.", "A person plays an instrument.", "Nobody is playing an instrument."],
    ["Dogs must be kept on a lead.", "A lead is required for dogs.", "Dogs may run free."],
    ["The train left an hour late.", "The train was delayed.", "The train left on time."],
    [
        "The drug lowered blood pressure.",
        "Blood pressure fell with the drug.",
        "The drug raised blood pressure.",
    ],
    ["The court rejected the appeal.", "The appeal was not successful.", "The court accepted the appeal."],
    ["Sales rose last year.", "Last year sales increased.", "Last year sales fell."],
];

/// Returns the log-odds of a label from the logits of all labels. With one label, its logit is the
/// log-odds; with several, their softmax gives the probabilities.
///
/// # Panics
/// Panics if there is no such label.
pub fn log_odds(logits: &[f32], label: usize) -> f32 {
    let of_label = logits[label];
    let others = logits.iter().enumerate().filter(|(other, _)| *other != label).map(|(_, logit)| *logit);
    let largest = others.clone().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return of_label;
    }
    // The logarithm of the sum of the exponentials, which would overflow without the shift.
    of_label - largest - others.map(|logit| (logit - largest).exp()).sum::<f32>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_odds_are_those_of_the_softmax() {
        let check = |logits: &[f32], support: usize, expect: f32| {
            let found = log_odds(logits, support);
            assert!((found - expect).abs() < 1e-5, "{logits:?}: {found}, not {expect}");
        };
        check(&[1.5], 0, 1.5);
        check(&[1.0, 3.0], 1, 2.0);
        // p = 1/3 each, so the odds are 1 : 2.
        check(&[2.0, 2.0, 2.0], 0, -(2.0_f32.ln()));
        check(&[1e4, -1e4, 0.0], 0, 1e4);
    }

    #[test]
    fn names_tell_what_labels_mean() {
        let labels = |support, conflict, count| Some(Labels { count, support, conflict });
        for (names, expect) in [
            (&["contradiction", "entailment", "neutral"][..], labels(1, Some(0), 3)),
            (&["SUPPORTS", "REFUTES"], labels(0, Some(1), 2)),
            (&["no_conflict", "conflict"], labels(0, Some(1), 2)),
            (&["entailment", "not_entailment"], labels(0, None, 2)),
            (&["LABEL_0", "LABEL_1"], None),
            (&["joy", "anger", "contradiction"], None),
        ] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(Labels::of_names(&names), expect, "{names:?}");
        }
    }

    #[test]
    fn known_pairs_tell_what_labels_mean() {
        let rows = |row: &[f32]| vec![row.to_vec(); 10];
        let found = Labels::of_logits(&rows(&[0.0, 2.0, 1.0]), &rows(&[3.0, 0.0, 1.0]));
        assert_eq!(found, Some(Labels { count: 3, support: 1, conflict: Some(0) }));
        let found = Labels::of_logits(&rows(&[2.0]), &rows(&[-2.0]));
        assert_eq!(found, Some(Labels { count: 1, support: 0, conflict: None }));
        assert_eq!(Labels::of_logits(&rows(&[1.0, 2.0]), &rows(&[1.0, 2.0])), None, "it tells nothing apart");
        let noise = Labels::of_logits(&rows(&[0.1, 0.2]), &rows(&[0.2, 0.1]));
        assert_eq!(noise, None, "a random model differs by little");
        let mut other = rows(&[-2.0]);
        other[..2].fill(vec![3.0]);
        assert_eq!(Labels::of_logits(&rows(&[2.0]), &other), None, "two of ten pairs are wrong");
    }
}
