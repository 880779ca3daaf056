//! Cross-encoders: models that read evidence and a claim together and judge whether the evidence supports the claim. Knows
//! nothing of answers, chunks or verdicts.

use std::sync::Arc;

use super::ModelError;
use super::contract::VerdictWeights;

/// A loaded cross-encoder. Implementations return the same bytes for the same texts, whatever runs at the same time.
pub trait CrossEncoder: Send + Sync {
    /// Returns the model's name from its contract.
    fn name(&self) -> &str;

    /// Returns a hash over everything that the opinions and their weights depend on: graph, weights, tokenizer and
    /// contract.
    fn fingerprint(&self) -> &str;

    /// Returns how the model's opinion is weighed.
    fn weights(&self) -> VerdictWeights;

    /// Reads `evidence` and `claim` in one window and returns what the model says of them. Texts that are too long for
    /// the window are cut at their ends: the claim at half of the window, the evidence where the window is full.
    ///
    /// # Errors
    /// Returns an error of the tokenizer or the runtime, or [`ModelError::Cancelled`] if `go_on` returned false before
    /// the model was free.
    fn support(
        &self,
        evidence: &str,
        claim: &str,
        go_on: &dyn Fn() -> bool,
    ) -> Result<PairOpinion, ModelError>;

    /// Returns a handle to the same model whose work is scheduled as a flow of its own; see
    /// [`ModelRuntime::with_own_flow`](super::ModelRuntime::with_own_flow).
    fn with_own_flow(&self) -> Arc<dyn CrossEncoder>;
}

/// What a cross-encoder says of evidence and a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairOpinion {
    /// The log-odds that the evidence supports the claim: `ln(p / (1 - p))`.
    pub log_odds: f32,
    /// The number of tokens that the model read.
    pub tokens: usize,
}

/// Returns the log-odds of the label `support` from the logits of all labels. With one label, its logit is the
/// log-odds; with several, their softmax gives the probabilities.
///
/// # Panics
/// Panics if there is no such label.
pub fn log_odds(logits: &[f32], support: usize) -> f32 {
    let of_label = logits[support];
    let others = logits.iter().enumerate().filter(|(label, _)| *label != support).map(|(_, logit)| *logit);
    let largest = others.clone().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return of_label;
    }
    // The logarithm of the sum of the exponentials, which would overflow without the shift.
    of_label - largest - others.map(|logit| (logit - largest).exp()).sum::<f32>().ln()
}

#[cfg(test)]
mod tests {
    use super::log_odds;

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
}
