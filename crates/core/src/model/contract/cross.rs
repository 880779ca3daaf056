//! The part of a contract that only cross-encoders have: models that read two texts in one window and judge how they
//! are related. Thresher asks them whether the evidence supports a part of an answer.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ContractError;

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
/// log-odds of the evidence of the part's words, and `b` those of the cross-encoder.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictWeights {
    /// The log-odds if both others are 0.
    pub bias: f32,
    /// The weight of the log-odds of the evidence, which Thresher computes without the cross-encoder.
    pub own: f32,
    /// The weight of the cross-encoder's log-odds.
    pub model: f32,
}

/// The file with the weights of a model that has no contract.
const WEIGHTS_FILE: &str = "verdict.toml";

impl VerdictWeights {
    /// Reads the weights of a model without a contract in `dir`; `None` if there is no file with them.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has other values than three finite numbers.
    pub fn load(dir: &Path) -> Result<Option<Self>, ContractError> {
        let file = dir.join(WEIGHTS_FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(ContractError::Read { file, cause }),
        };
        let found: Self =
            toml::from_str(&text).map_err(|cause| ContractError::Malformed { file: file.clone(), cause })?;
        if found.is_finite() {
            return Ok(Some(found));
        }
        let reason = "must be finite numbers".to_owned();
        Err(ContractError::ValueInvalid { file, key: "bias, own, model".to_owned(), reason })
    }

    /// Writes the weights of a model without a contract to `dir`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), ContractError> {
        let file = dir.join(WEIGHTS_FILE);
        let text = toml::to_string(self).expect("three numbers");
        fs::write(&file, text).map_err(|cause| ContractError::Write { file, cause })
    }

    fn is_finite(&self) -> bool {
        (self.bias + self.own + self.model).is_finite()
    }
}

impl Default for VerdictWeights {
    /// The cross-encoder judges alone.
    fn default() -> Self {
        Self { bias: 0.0, own: 0.0, model: 1.0 }
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
            Some(weights) if !weights.is_finite() => {
                Err(("cross.verdicts", "must be finite numbers".to_owned()))
            }
            _ => Ok(()),
        }
    }
}
