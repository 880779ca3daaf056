//! Encoders: the description that BERT, RoBERTa, DistilBERT, MPNet, ModernBERT and Nomic BERT share, with the
//! settings in which they differ. Does not know about tokenizers or how the exported folder is put in place.
//!
//! `config` reads a family's `config.json` into an [`Encoder`]. `names` has the tensor names of each family,
//! `weights` copies the tensors, and `layers` builds the graphs. `colbert` finds the projection that ColBERT
//! adds to an encoder, and what it puts around questions and passages. `cross` has what a cross-encoder adds.

pub mod colbert;
mod config;
pub mod cross;
mod layers;
mod names;
mod relative;
mod weights;

pub use self::layers::GraphParts;
use super::{graph::Activation, source::Header};

/// The class names of checkpoints that contain an encoder, with their families. Layers that a class adds to
/// the encoder are not exported, except the projection of ColBERT; [`cross::ARCHITECTURES`] are exported with theirs.
pub const ARCHITECTURES: [(&str, Family); 21] = [
    ("BertModel", Family::Bert),
    ("BertForMaskedLM", Family::Bert),
    ("BertForPreTraining", Family::Bert),
    ("BertForNextSentencePrediction", Family::Bert),
    ("BertForTokenClassification", Family::Bert),
    ("BertForQuestionAnswering", Family::Bert),
    ("RobertaModel", Family::Roberta),
    ("RobertaForMaskedLM", Family::Roberta),
    ("XLMRobertaModel", Family::Roberta),
    ("XLMRobertaForMaskedLM", Family::Roberta),
    ("CamembertModel", Family::Roberta),
    ("CamembertForMaskedLM", Family::Roberta),
    ("DistilBertModel", Family::DistilBert),
    ("DistilBertForMaskedLM", Family::DistilBert),
    ("MPNetModel", Family::MpNet),
    ("MPNetForMaskedLM", Family::MpNet),
    ("ModernBertModel", Family::ModernBert),
    ("ModernBertForMaskedLM", Family::ModernBert),
    ("NomicBertModel", Family::NomicBert),
    ("NomicBertForMaskedLM", Family::NomicBert),
    ("NomicBertForPreTraining", Family::NomicBert),
];

/// The values of `model_type` in configurations, with their families and the class names of the plain encoders.
const MODEL_TYPES: [(&str, Family, &str); 8] = [
    ("bert", Family::Bert, "BertModel"),
    ("roberta", Family::Roberta, "RobertaModel"),
    ("xlm-roberta", Family::Roberta, "XLMRobertaModel"),
    ("camembert", Family::Roberta, "CamembertModel"),
    ("distilbert", Family::DistilBert, "DistilBertModel"),
    ("mpnet", Family::MpNet, "MPNetModel"),
    ("modernbert", Family::ModernBert, "ModernBertModel"),
    ("nomic_bert", Family::NomicBert, "NomicBertModel"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Bert,
    /// RoBERTa, XLM-RoBERTa and CamemBERT, which differ in their tokenizers only.
    Roberta,
    DistilBert,
    MpNet,
    ModernBert,
    NomicBert,
}

#[derive(Debug, Clone)]
pub struct Encoder {
    /// The class name of the checkpoint.
    pub architecture: String,
    /// The number of components of a hidden state: `d`.
    pub hidden: usize,
    pub vocab_size: usize,
    /// The largest number of tokens that the encoder has positions for.
    pub tokens_max: usize,
    family: Family,
    intermediate: usize,
    layers: usize,
    heads: usize,
    /// The number of embeddings of token types; 0 if the encoder has none.
    token_types: usize,
    positions: Positions,
    activation: Activation,
    epsilon: f32,
    /// Whether a layer normalises the inputs of its two parts instead of their outputs. The last hidden state
    /// is then normalised once more.
    pre_norm: bool,
    /// Whether the activation's result is multiplied by a second projection.
    gated: bool,
    biases: Biases,
}

/// How an encoder knows where its tokens are.
#[derive(Debug, Clone)]
enum Positions {
    /// Each position has a learned embedding, which is added to the embedding of the token.
    Learned {
        /// The number of rows at the beginning of the table that no token of a text uses.
        unused: usize,
        /// Whether each head also has learned biases by the distance of two tokens.
        has_relative_bias: bool,
    },
    Rotary {
        /// `[layer]`: how each layer rotates.
        layers: Vec<RotaryLayer>,
    },
}

#[derive(Debug, Clone)]
struct RotaryLayer {
    /// `[head_dim / 2]`: the angle in radians by which a pair of components is rotated at each position.
    frequencies: Vec<f32>,
    /// The largest distance of two tokens of which one attends to the other; `None` if all do.
    reach: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Biases {
    attention: bool,
    mlp: bool,
    norm: bool,
}

impl Biases {
    const ALL: Self = Self { attention: true, mlp: true, norm: true };
}

/// Returns the class name of the checkpoint and its family if the checkpoint contains an encoder: one of
/// [`ARCHITECTURES`], a ColBERT, or a folder without a class name.
pub fn architecture(header: &Header) -> Option<(&str, Family)> {
    let by_type = || {
        let model_type = header.model_type.as_deref()?;
        MODEL_TYPES.into_iter().find(|(name, ..)| *name == model_type)
    };
    match header.architectures.first().map(String::as_str) {
        Some(name @ colbert::ARCHITECTURE) => by_type().map(|(_, family, _)| (name, family)),
        Some(name) => ARCHITECTURES.into_iter().find(|(known, _)| *known == name),
        None => by_type().map(|(_, family, class)| (class, family)),
    }
}

/// Returns the class name of the checkpoint and its family if it is a cross-encoder.
pub fn cross_architecture(header: &Header) -> Option<(&str, Family)> {
    let name = header.architectures.first()?;
    cross::ARCHITECTURES.into_iter().find(|(known, _)| known == name)
}

impl Encoder {
    /// The number of components of a query, key or value in one head.
    fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// The largest distance of two tokens of which one attends to the other in `layer`; `None` if all do.
    fn reach(&self, layer: usize) -> Option<usize> {
        match &self.positions {
            Positions::Learned { .. } => None,
            Positions::Rotary { layers } => layers[layer].reach,
        }
    }
}
