//! What the families call their tensors.
//! Knows nothing of what is done with them.

use super::Decoder;
use crate::weights::Checkpoint;

/// A family of decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama, SmolLM, TinyLlama.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Pythia and others.
    GptNeox,
    /// GPT-2.
    Gpt2,
}

/// Names of tensors, without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// What checkpoints with an output put before the names of all but that.
    pub prefix: &'static str,
    pub embedding: &'static str,
    /// The table of learned places.
    pub places: Option<&'static str>,
    /// Before a layer's number.
    pub layers: &'static str,
    pub attention_norm: &'static str,
    pub qkv: Qkv,
    pub attention_out: &'static str,
    pub mlp_norm: &'static str,
    /// What goes through the activation.
    pub up: &'static str,
    /// What a gated activation is multiplied with.
    pub gate: &'static str,
    pub down: &'static str,
    pub final_norm: &'static str,
    pub output: &'static str,
}

/// How queries, keys and values are made.
#[derive(Debug, Clone, Copy)]
pub enum Qkv {
    /// Three layers, and the norms of queries and keys.
    Apart { parts: [&'static str; 3], norms: [&'static str; 2] },
    /// One layer: all queries, all keys, all values.
    Joined(&'static str),
    /// One layer: each head's query, key and value.
    ByHead(&'static str),
}

const LLAMA: Names = Names {
    prefix: "model.",
    embedding: "embed_tokens",
    places: None,
    layers: "layers",
    attention_norm: "input_layernorm",
    qkv: Qkv::Apart {
        parts: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        norms: ["self_attn.q_norm", "self_attn.k_norm"],
    },
    attention_out: "self_attn.o_proj",
    mlp_norm: "post_attention_layernorm",
    up: "mlp.gate_proj",
    gate: "mlp.up_proj",
    down: "mlp.down_proj",
    final_norm: "norm",
    output: "lm_head",
};

const GPT_NEOX: Names = Names {
    prefix: "gpt_neox.",
    embedding: "embed_in",
    places: None,
    layers: "layers",
    attention_norm: "input_layernorm",
    qkv: Qkv::ByHead("attention.query_key_value"),
    attention_out: "attention.dense",
    mlp_norm: "post_attention_layernorm",
    up: "mlp.dense_h_to_4h",
    gate: "",
    down: "mlp.dense_4h_to_h",
    final_norm: "final_layer_norm",
    output: "embed_out",
};

const GPT2: Names = Names {
    prefix: "transformer.",
    embedding: "wte",
    places: Some("wpe"),
    layers: "h",
    attention_norm: "ln_1",
    qkv: Qkv::Joined("attn.c_attn"),
    attention_out: "attn.c_proj",
    mlp_norm: "ln_2",
    up: "mlp.c_fc",
    gate: "",
    down: "mlp.c_proj",
    final_norm: "ln_f",
    output: "lm_head",
};

impl Family {
    pub fn names(self) -> &'static Names {
        match self {
            Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3 => &LLAMA,
            Self::GptNeox => &GPT_NEOX,
            Self::Gpt2 => &GPT2,
        }
    }

    /// Whether linear layers are stored `[in, out]`, as GPT-2 has them.
    pub fn stores_columns(self) -> bool {
        self == Self::Gpt2
    }
}

/// Whether a tensor may be passed over: buffers that older versions of `transformers` stored, and an output that is the embedding.
pub fn is_ignored(key: &str, decoder: &Decoder) -> bool {
    let names = decoder.family.names();
    let is_output = key == format!("{}.weight", names.output);
    let is_buffer = [
        ".rotary_emb.inv_freq",
        ".attn.bias",
        ".attn.masked_bias",
        ".attention.bias",
        ".attention.masked_bias",
    ]
    .iter()
    .any(|buffer| key.ends_with(buffer));
    is_buffer || is_output && decoder.tied
}

/// The prefix that this checkpoint uses: GPT-2 was published without.
pub fn prefix(checkpoint: &Checkpoint, names: &Names) -> &'static str {
    let prefixed = format!("{}{}.weight", names.prefix, names.embedding);
    let bare = format!("{}.weight", names.embedding);
    if !checkpoint.contains(&prefixed) && checkpoint.contains(&bare) { "" } else { names.prefix }
}
