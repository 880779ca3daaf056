//! The probe of a decoder: the weights of a logistic regression over the attention mass of its heads. Knows
//! nothing of how attention mass is computed.

use serde::{Deserialize, Serialize};

/// A logistic regression that gives the probability that a question needs a segment of text (a chunk or a
/// sentence), and how it was trained (`thresher calibrate --probe`).
///
/// Each head has two features: the segment's share of the head's attention, mean over the question's tokens,
/// and the same for the last token of the template only. Each feature is standardised over the segments of one request (mean
/// 0, variance 1), so the weights need neither means nor scales.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    pub features: ProbeFeatures,
    /// The text that the model reads, in which [`QUESTION_MARK`] stands for the question.
    pub template: String,
    /// The number of layers, from the first, whose heads have weights. Later layers need not be run.
    pub layers: usize,
    /// The logit of a segment whose features are all 0.
    pub bias: f32,
    /// `[layer * heads + head]`: the weight of the mean over the question's tokens.
    pub mean: Vec<f32>,
    /// `[layer * heads + head]`: the weight of the last token.
    pub last: Vec<f32>,
    /// R@gold, from 0 to 1, on held-out questions of a probe that was trained on the others.
    pub held_out: f64,
    /// The number of questions with labels, held-out questions included.
    pub questions: usize,
    /// The SHA-256 of the file with the questions, in hexadecimal.
    pub data: String,
    /// The SHA-256 of the weights that the probe was trained with, in hexadecimal. The contract must list the
    /// same hash for its file of weights.
    pub weights: String,
}

/// Stands for the question in the template of a probe.
pub const QUESTION_MARK: &str = "{question}";

/// The template of a probe whose training names no other one: the question alone, which is also the text that
/// RC is computed for.
pub const TEMPLATE_DEFAULT: &str = QUESTION_MARK;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeFeatures {
    /// Attention mass: the share of a head's attention that goes to the segment.
    AttentionMass,
}

/// The text before and after a question in a template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Around<'a> {
    pub before: &'a str,
    pub after: &'a str,
}

/// Returns the text before and after the question in a template, or `None` unless the template names the
/// question exactly once.
pub fn around_question(template: &str) -> Option<Around<'_>> {
    let (before, after) = template.split_once(QUESTION_MARK)?;
    (!after.contains(QUESTION_MARK)).then_some(Around { before, after })
}

impl Probe {
    /// Checks the probe against a model with `layers` layers of `heads` heads.
    pub(super) fn check(&self, layers: usize, heads: usize) -> Result<(), (&'static str, String)> {
        if self.layers == 0 || self.layers > layers {
            let reason = format!(
                "is {}; the model has {layers} layers, so it must be from 1 to {layers}",
                self.layers
            );
            return Err(("decoder.probe.layers", reason));
        }
        for (key, weights) in [("decoder.probe.mean", &self.mean), ("decoder.probe.last", &self.last)] {
            let (found, expect) = (weights.len(), self.layers * heads);
            if found != expect {
                let reason = format!(
                    "has {found} weights; {expect} are needed, one for each of the {heads} heads of {} layers",
                    self.layers
                );
                return Err((key, reason));
            }
        }
        if around_question(&self.template).is_none() {
            let reason = format!("is {:?}; it must contain {QUESTION_MARK} once", self.template);
            return Err(("decoder.probe.template", reason));
        }
        let mut numbers = self.mean.iter().chain(&self.last).chain([&self.bias]);
        match numbers.find(|number| !number.is_finite()) {
            Some(number) => Err(("decoder.probe", format!("{number} is not finite"))),
            None => Ok(()),
        }
    }

    /// Checks that the probe was trained with the weights that have the SHA-256 `found`.
    pub(super) fn check_weights(&self, found: Option<&String>) -> Result<(), (&'static str, String)> {
        match found {
            Some(found) if *found != self.weights => {
                let reason = format!(
                    "the probe was trained with the weights {}, but this model has the weights {found}; train a probe for this \
                     model with `thresher calibrate --probe`, after removing the table [decoder.probe]",
                    self.weights
                );
                Err(("decoder.probe.weights", reason))
            }
            _ => Ok(()),
        }
    }
}
