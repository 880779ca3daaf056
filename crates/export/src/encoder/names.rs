//! The names of the tensors of each family of encoders, as checkpoints have them. Does not know what the
//! tensors are for.

use super::{Encoder, Family};

/// The names of a family's tensors, without `.weight` and `.bias`. Those of a layer follow `layer`, the
/// layer's number and a dot.
#[derive(Debug)]
pub(super) struct Names {
    /// What may stand before every name: checkpoints with further layers have a prefix, plain encoders none.
    pub prefixes: &'static [&'static str],
    pub words: &'static str,
    pub positions: &'static str,
    pub token_types: &'static str,
    pub embedding_norm: &'static str,
    pub relative_bias: &'static str,
    pub final_norm: &'static str,
    pub layer: &'static str,
    pub qkv: Joined,
    pub attention_out: &'static str,
    /// The normalisation of the attention's input or output.
    pub attention_norm: &'static str,
    pub up: Joined,
    pub down: &'static str,
    /// The normalisation of the feed-forward part's input or output.
    pub mlp_norm: &'static str,
}

/// Projections of the same vectors, which the export stores side by side.
#[derive(Debug)]
pub(super) struct Joined {
    /// The name of all together in the exported file.
    pub stored: &'static str,
    /// Their names in the checkpoint, in order. A single name is that of all together.
    pub parts: &'static [&'static str],
}

/// BERT and the families derived from it, except where they differ.
const BERT: Names = Names {
    prefixes: &["bert.", ""],
    words: "embeddings.word_embeddings",
    positions: "embeddings.position_embeddings",
    token_types: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    relative_bias: "",
    final_norm: "",
    layer: "encoder.layer.",
    qkv: Joined {
        stored: "attention.self.qkv",
        parts: &["attention.self.query", "attention.self.key", "attention.self.value"],
    },
    attention_out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: Joined { stored: "intermediate.dense", parts: &["intermediate.dense"] },
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
};

const ROBERTA: Names = Names { prefixes: &["roberta.", ""], ..BERT };

const MPNET: Names = Names {
    prefixes: &["mpnet.", ""],
    relative_bias: "encoder.relative_attention_bias",
    qkv: Joined {
        stored: "attention.attn.qkv",
        parts: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    },
    attention_out: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    ..BERT
};

const DISTILBERT: Names = Names {
    prefixes: &["distilbert.", ""],
    layer: "transformer.layer.",
    qkv: Joined {
        stored: "attention.qkv_lin",
        parts: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    },
    attention_out: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: Joined { stored: "ffn.lin1", parts: &["ffn.lin1"] },
    down: "ffn.lin2",
    mlp_norm: "output_layer_norm",
    ..BERT
};

const MODERNBERT: Names = Names {
    prefixes: &["model.", ""],
    words: "embeddings.tok_embeddings",
    positions: "",
    token_types: "",
    embedding_norm: "embeddings.norm",
    relative_bias: "",
    final_norm: "final_norm",
    layer: "layers.",
    qkv: Joined { stored: "attn.Wqkv", parts: &["attn.Wqkv"] },
    attention_out: "attn.Wo",
    attention_norm: "attn_norm",
    up: Joined { stored: "mlp.Wi", parts: &["mlp.Wi"] },
    down: "mlp.Wo",
    mlp_norm: "mlp_norm",
};

/// Nomic BERT, with the names of the publisher's code.
const NOMIC_BERT: Names = Names {
    prefixes: &["bert.", "nomic_bert.", ""],
    embedding_norm: "emb_ln",
    layer: "encoder.layers.",
    qkv: Joined { stored: "attn.Wqkv", parts: &["attn.Wqkv"] },
    attention_out: "attn.out_proj",
    attention_norm: "norm1",
    // The second projection is that which goes through the activation.
    up: Joined { stored: "mlp.gate_up", parts: &["mlp.fc12", "mlp.fc11"] },
    down: "mlp.fc2",
    mlp_norm: "norm2",
    ..BERT
};

/// Nomic BERT, with the names that `transformers` gives to its modules.
const NOMIC_BERT_OF_TRANSFORMERS: Names = Names {
    embedding_norm: "embeddings.LayerNorm",
    layer: "layers.",
    qkv: Joined {
        stored: "self_attn.qkv_proj",
        parts: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    },
    attention_out: "self_attn.o_proj",
    attention_norm: "post_attention_layernorm",
    up: Joined { stored: "mlp.gate_up_proj", parts: &["mlp.gate_proj", "mlp.up_proj"] },
    mlp_norm: "post_mlp_layernorm",
    down: "mlp.down_proj",
    ..NOMIC_BERT
};

impl Encoder {
    /// The names of the tensors in a checkpoint of this encoder. `contains` says whether the checkpoint has a
    /// tensor.
    pub(super) fn names(&self, contains: impl Fn(&str) -> bool) -> &'static Names {
        match self.family {
            Family::Bert => &BERT,
            Family::Roberta => &ROBERTA,
            Family::MpNet => &MPNET,
            Family::DistilBert => &DISTILBERT,
            Family::ModernBert => &MODERNBERT,
            Family::NomicBert => {
                let is_of_transformers = NOMIC_BERT.prefixes.iter().any(|prefix| {
                    contains(&format!("{prefix}{}.weight", NOMIC_BERT_OF_TRANSFORMERS.embedding_norm))
                });
                if is_of_transformers { &NOMIC_BERT_OF_TRANSFORMERS } else { &NOMIC_BERT }
            }
        }
    }
}

impl Names {
    pub(super) fn prefix(&self, contains: impl Fn(&str) -> bool) -> &'static str {
        let has_words = |prefix: &&&str| contains(&format!("{prefix}{}.weight", self.words));
        self.prefixes.iter().find(has_words).copied().unwrap_or_default()
    }
}
