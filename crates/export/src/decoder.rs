//! Decoders: the description that Llama, Mistral, Qwen2, Qwen3, Gemma 3, GPT-NeoX and GPT-2 share, with the
//! settings in which they differ. Does not know about tokenizers or how the exported folder is put in place.
//!
//! `config` reads a family's `config.json` into a [`Decoder`], with `windows` for what may differ between
//! layers. `weights` copies its tensors, and `layers` builds the graph, which is the same for all
//! families.

mod config;
mod layers;
mod weights;
mod windows;

pub use self::config::{architecture, text_model_of};
use thresher_core::model::contract::Rotary;

use super::graph::Activation;

/// The class names of supported checkpoints, with their families.
pub const ARCHITECTURES: [(&str, Family); 7] = [
    ("LlamaForCausalLM", Family::Llama),
    ("MistralForCausalLM", Family::Mistral),
    ("Qwen2ForCausalLM", Family::Qwen2),
    ("Qwen3ForCausalLM", Family::Qwen3),
    ("Gemma3ForCausalLM", Family::Gemma3),
    ("GPTNeoXForCausalLM", Family::GptNeox),
    ("GPT2LMHeadModel", Family::Gpt2),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama, SmolLM, TinyLlama.
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    /// The text model of Gemma 3.
    Gemma3,
    GptNeox,
    Gpt2,
}

#[derive(Debug, Clone)]
pub struct Decoder {
    /// The class name of the checkpoint.
    pub architecture: &'static str,
    pub layers: usize,
    /// The number of query heads of a layer.
    pub heads: usize,
    pub kv_heads: usize,
    /// The number of components of a query, key or value in one head.
    pub head_dim: usize,
    pub vocab_size: usize,
    pub context_tokens_max: usize,
    /// The rotary position embedding; `None` if position embeddings are learned.
    pub rotary: Option<Rotary>,
    /// The rotary position embedding of layers with a sliding window, if it is another one than `rotary`.
    pub rotary_local: Option<Rotary>,
    /// `[layer]`: the size of the sliding window in tokens, the query's own included; `None` for full
    /// attention.
    pub sliding_windows: Vec<Option<usize>>,
    /// The factor by which ⟨q, k⟩ is multiplied.
    pub scale: f64,
    family: Family,
    hidden: usize,
    intermediate: usize,
    norm: NormKind,
    epsilon: f32,
    activation: Activation,
    /// Whether the activation's result is multiplied by a second projection.
    gated: bool,
    pub qk_norm: bool,
    /// Whether attention and the feed-forward part of a layer read the same hidden state.
    parallel: bool,
    biases: Biases,
    /// The factor by which token embeddings are multiplied, if there is one.
    embedding_scale: Option<f32>,
    /// Whether the embedding table is also the output projection.
    tied_embedding: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NormKind {
    /// RMS normalisation: division by the root mean square.
    Rms,
    /// RMS normalisation whose scale is 1 plus the tensor in the checkpoint.
    RmsPlusOne,
    /// Layer normalisation: subtraction of the mean and division by the standard deviation, with a bias.
    Layer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Biases {
    qkv: bool,
    attention_out: bool,
    mlp: bool,
}

impl Decoder {
    /// The number of components of all query heads, and of all key heads.
    fn qk_widths(&self) -> (usize, usize) {
        (self.heads * self.head_dim, self.kv_heads * self.head_dim)
    }
}
