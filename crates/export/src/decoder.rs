//! Decoders: what Llama, Mistral, Qwen2, Qwen3, GPT-NeoX and GPT-2 have in common, and in what they differ.
//! Knows nothing of tokenizers or of how the files are put in place.
//!
//! `config` reads a family's `config.json` into one [`Decoder`], `names` knows its tensors' names, `weights` moves them, and
//! `layers` writes the one graph that all families share.

mod config;
mod layers;
mod names;
mod rotary;
mod weights;

pub use self::config::architecture;
pub use self::names::Family;
use thresher_core::model::contract::Rotary;

use super::graph::Activation;

/// Class names of checkpoints that are exported.
pub const ARCHITECTURES: [(&str, Family); 6] = [
    ("LlamaForCausalLM", Family::Llama),
    ("MistralForCausalLM", Family::Mistral),
    ("Qwen2ForCausalLM", Family::Qwen2),
    ("Qwen3ForCausalLM", Family::Qwen3),
    ("GPTNeoXForCausalLM", Family::GptNeox),
    ("GPT2LMHeadModel", Family::Gpt2),
];

/// Sizes and settings of a decoder.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// Class name of the checkpoint.
    pub architecture: &'static str,
    /// Layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key heads of a layer.
    pub kv_heads: usize,
    /// Components of a query, key or value in one head.
    pub head_dim: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Most tokens that the model was made for.
    pub context_tokens_max: usize,
    /// How keys turn with their place; places are learned where there is none.
    pub rotary: Option<Rotary>,
    family: Family,
    /// Components of a hidden state.
    hidden: usize,
    intermediate: usize,
    norm: NormKind,
    epsilon: f32,
    activation: Activation,
    /// Whether what goes through the activation is multiplied with a second projection.
    gated: bool,
    /// Whether queries and keys are normalised, head by head.
    qk_norm: bool,
    /// Whether attention and the rest of a layer read the same hidden state.
    parallel: bool,
    biases: Biases,
    /// `[layer]`: how many places back a query sees, itself included.
    windows: Vec<Option<usize>>,
    /// Whether the embedding table is also the output's.
    tied: bool,
}

/// What hidden states are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NormKind {
    /// Their root mean square.
    Rms,
    /// Their standard deviation, after their mean is taken away; with a bias.
    Layer,
}

/// Which linear layers have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Biases {
    qkv: bool,
    attention_out: bool,
    mlp: bool,
}

impl Decoder {
    /// What ⟨q, k⟩ is multiplied with.
    pub fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// Components of all query heads, and of all key heads.
    fn widths(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }
}
