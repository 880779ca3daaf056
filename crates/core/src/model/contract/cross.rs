//! The part of a contract that only cross-encoders have: models that read two texts in one window and judge how they
//! are related. Thresher asks them whether the evidence supports a part of an answer.

use serde::{Deserialize, Serialize};

/// A cross-encoder: its graph, how it joins two texts, and its labels.
///
/// The graph is `input_ids, token_type_ids [1, t]` → `logits [1, labels]`; it has no `token_type_ids` if `token_types`
/// is false. The two texts are joined as `prefix evidence between claim suffix`, with `prefix` and `suffix` of
/// [`Tokenizer`](super::Tokenizer). The type of a token is 1 after `between`, and 0 before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cross {
    /// The file name of the graph.
    pub graph: String,
    /// The ids of the special tokens between the two texts, such as `[SEP]`.
    pub between: Vec<u32>,
    /// Whether the graph reads the types of tokens.
    pub token_types: bool,
    /// The names of the labels, in the order of their logits. With a single label, its probability is the logistic
    /// function of its logit; with several, the softmax.
    pub labels: Vec<String>,
    /// The index in `labels` of the label that says that the first text supports the second.
    pub support: usize,
    /// How the model's verdicts are weighed; `None` if that was not fitted, which means [`VerdictWeights::default`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<VerdictWeights>,
}

/// How support is computed with a cross-encoder: its log-odds are `bias + own * a + model * b`, where `a` are the
/// log-odds without it, and `b` those of the cross-encoder.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictWeights {
    /// The log-odds if both others are 0.
    pub bias: f32,
    /// The weight of the log-odds that Thresher computes without the cross-encoder.
    pub own: f32,
    /// The weight of the cross-encoder's log-odds.
    pub model: f32,
}

impl Default for VerdictWeights {
    /// Both count the same: the result is the mean of their log-odds.
    fn default() -> Self {
        Self { bias: 0.0, own: 0.5, model: 0.5 }
    }
}

impl Cross {
    /// Checks the values. `prefix` and `suffix` are the numbers of special tokens before and after a pair.
    pub(super) fn check(
        &self,
        special_tokens: usize,
        tokens_max: usize,
    ) -> Result<(), (&'static str, String)> {
        if self.support >= self.labels.len() {
            let reason = format!("is {}, but there are {} labels", self.support, self.labels.len());
            return Err(("cross.support", reason));
        }
        if special_tokens + self.between.len() >= tokens_max {
            let reason = format!("leaves no room for two texts in {tokens_max} tokens");
            return Err(("cross.between", reason));
        }
        match self.verdicts {
            Some(VerdictWeights { bias, own, model }) if !(bias + own + model).is_finite() => {
                Err(("cross.verdicts", "must be finite numbers".to_owned()))
            }
            _ => Ok(()),
        }
    }
}
