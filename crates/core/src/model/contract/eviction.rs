//! The part of a decoder's contract that says how its keys are scored and how many each head keeps when keys
//! are evicted. Knows nothing of how the scores are computed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rc::{OverQuestion, Reference};

/// The limit of [`EvictionForm::neighbours`]: far more than the tokens of a name or a number.
const NEIGHBOURS_MAX: usize = 63;

/// How keys are scored and how the budget is distributed when keys are evicted by RC.
///
/// No form is best for every model. Models differ in whether the logits of different heads and layers have a
/// common scale, so `thresher calibrate --kv` measures the forms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictionForm {
    /// With which logits the logit of a key is compared; `rivals` are those of all keys that could be kept.
    pub reference: Reference,
    /// How the RC of a key for each token of the question is reduced to one number.
    pub over_question: OverQuestion,
    /// The number of neighbouring keys, the key itself included, over which the scores are averaged. 1 means
    /// no averaging.
    pub neighbours: usize,
    /// How the scores of different heads are made comparable.
    pub scale: KeyScale,
    pub budget: BudgetScope,
    /// The share of an even budget, from 0 to 1, that each head keeps for its own best keys. With an even
    /// budget, all heads keep equally many keys.
    pub floor: f64,
}

/// How the scores of the keys of different heads are made comparable. It matters if heads share a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyScale {
    /// Scores are compared as they are, in units of a raw logit.
    Logit,
    /// Scores are divided by the square root of the mean of their head: half-way between the other two.
    RootOfMean,
    /// Scores are divided by the mean of their head, so that every head has the same mean.
    Mean,
}

impl KeyScale {
    /// Returns the power of the head's mean by which scores are divided.
    pub fn exponent(self) -> f64 {
        match self {
            Self::Logit => 0.0,
            Self::RootOfMean => 0.5,
            Self::Mean => 1.0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    /// Every head has a budget of its own, so all heads keep equally many keys.
    Head,
    /// The heads of a layer share a budget, so all layers keep equally many keys.
    Layer,
    /// All heads of all layers share one budget.
    Model,
}

/// An eviction form that `thresher calibrate --kv` chose, and how it did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedEviction {
    /// The number of questions, held-out questions included.
    pub questions: usize,
    /// The SHA-256 of the file with the questions, in hexadecimal.
    pub data: String,
    /// The ratios at which the chosen form was tested: one key in `N` is kept.
    pub ratios: Vec<u32>,
    /// For each ratio, the mean KL divergence in nats from the output with all keys to the output with the
    /// kept keys, on the held-out questions.
    pub held_out_kl: Vec<f64>,
    pub form: EvictionForm,
}

impl EvictionForm {
    /// Returns whether keys have the same scores in both forms; budgets may differ.
    pub fn has_scores_of(&self, other: &Self) -> bool {
        let Self { reference, over_question, neighbours, scale, budget: _, floor: _ } = *self;
        (reference, over_question, neighbours, scale)
            == (other.reference, other.over_question, other.neighbours, other.scale)
    }

    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.neighbours == 0 || self.neighbours > NEIGHBOURS_MAX || self.neighbours.is_multiple_of(2) {
            let reason = format!("must be odd and at most {NEIGHBOURS_MAX}, but is {}", self.neighbours);
            return Err(("decoder.eviction.form.neighbours", reason));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return Err(("decoder.eviction.form.floor", format!("must be 0 to 1, but is {}", self.floor)));
        }
        Ok(())
    }
}

impl fmt::Display for EvictionForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let against = match self.reference {
            Reference::SelfLogits => "the question's own keys",
            Reference::Rivals => "all other keys",
        };
        write!(f, "RC against {against}, {} over the question", self.over_question)?;
        if self.neighbours > 1 {
            write!(f, ", mean of {} neighbours", self.neighbours)?;
        }
        match self.scale {
            KeyScale::Logit => {}
            KeyScale::RootOfMean => f.write_str(", divided by the root of the head's mean")?,
            KeyScale::Mean => f.write_str(", divided by the head's mean")?,
        }
        match self.budget {
            BudgetScope::Head => f.write_str(", a budget per head"),
            BudgetScope::Layer => write!(f, ", a budget per layer, floor {}", self.floor),
            BudgetScope::Model => write!(f, ", one budget for all layers, floor {}", self.floor),
        }
    }
}
