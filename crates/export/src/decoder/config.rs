//! Reads a family's `config.json` into the description that all families share. Does not know about tensors or
//! graphs. A key that is known to change the computation is refused unless it has its neutral value. Tensors
//! that the description does not cover are refused when the weights are copied.

use std::path::Path;

use serde_json::{Map, Value};

use super::{ARCHITECTURES, Biases, Decoder, Family, NormKind};
use crate::{
    ExportError,
    graph::Activation,
    keys::Config,
    rotary::{RotaryKeys, read_layer_rotary, read_rotary},
    source::Header,
};

/// Keys that change what a model computes, each with its neutral value; `None`: only null is neutral. Models
/// of other families have these keys. A model that has one of them under a class name that is supported here
/// is not the model that is supported.
const NEUTRAL: [(&str, Option<f64>); 14] = [
    ("quantization_config", None),
    ("attn_logit_softcapping", None),
    ("final_logit_softcapping", None),
    ("query_pre_attn_scalar", None),
    ("attention_chunk_size", None),
    ("no_rope_layers", None),
    ("clip_qkv", None),
    ("num_experts", None),
    ("num_local_experts", None),
    ("embedding_multiplier", Some(1.0)),
    ("residual_multiplier", Some(1.0)),
    ("attention_multiplier", None),
    ("logits_scaling", Some(1.0)),
    ("logit_scale", Some(1.0)),
];

/// The default of `transformers` for `query_pre_attn_scalar` of Gemma 3.
const QUERY_SCALAR_DEFAULT: f64 = 256.0;

/// The class name of checkpoints with images, and that of their text model, which is supported.
const MULTIMODAL: (&str, &str) = ("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM");

/// Returns the class name of the supported text model that is part of a checkpoint of the class
/// `architecture`.
pub fn text_model_of(architecture: &str) -> Option<&'static str> {
    (architecture == MULTIMODAL.0).then_some(MULTIMODAL.1)
}

/// Returns the class name of the checkpoint and its family if it is one of [`ARCHITECTURES`].
pub fn architecture(header: &Header) -> Option<(&'static str, Family)> {
    let named = header.architectures.first()?;
    ARCHITECTURES.into_iter().find(|(name, _)| name == named)
}

impl Decoder {
    /// Reads the content of a `config.json`, of a checkpoint of the class `architecture`, which belongs to
    /// `family`. Errors name `file`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the configuration has a value that the export does not support.
    pub fn read(
        file: &Path,
        map: &Map<String, Value>,
        architecture: &'static str,
        family: Family,
    ) -> Result<Self, ExportError> {
        let config = Config { map, file };
        config.check_neutral_keys(family)?;
        let decoder = match family {
            Family::Gpt2 => config.gpt2(architecture),
            Family::GptNeox => config.gpt_neox(architecture),
            Family::Gemma3 => config.gemma3(architecture),
            _ => config.llama_like(architecture, family),
        }?;
        config.check_sizes(&decoder)?;
        Ok(decoder)
    }
}

impl Config<'_> {
    /// Reads the configuration of Llama and of the families derived from it.
    fn llama_like(&self, architecture: &'static str, family: Family) -> Result<Decoder, ExportError> {
        let (hidden, heads) = (self.number("hidden_size")?, self.number("num_attention_heads")?);
        let head_dim = match self.size("head_dim")? {
            Some(head_dim) => head_dim,
            None if family == Family::Qwen3 => self.number("head_dim")?,
            None => self.head_dim(hidden, heads, "num_attention_heads")?,
        };
        let layers = self.number("num_hidden_layers")?;
        let attention = self.get("attention_bias")?.unwrap_or(false);
        let biases = match family {
            Family::Llama => Biases {
                qkv: attention,
                attention_out: attention,
                mlp: self.get("mlp_bias")?.unwrap_or(false),
            },
            Family::Qwen2 => Biases { qkv: true, attention_out: false, mlp: false },
            Family::Qwen3 => Biases { qkv: attention, attention_out: attention, mlp: false },
            _ => Biases { qkv: false, attention_out: false, mlp: false },
        };
        let rotary_keys =
            RotaryKeys { theta: "rope_theta", partial: "partial_rotary_factor", supports_partial: false };
        Ok(Decoder {
            architecture,
            family,
            layers,
            heads,
            kv_heads: match family {
                Family::Llama => self.size("num_key_value_heads")?.unwrap_or(heads),
                // The other families have another default each, so the key is required.
                _ => self.number("num_key_value_heads")?,
            },
            head_dim,
            vocab_size: self.number("vocab_size")?,
            context_tokens_max: self.number("max_position_embeddings")?,
            rotary: Some(read_rotary(self.map, rotary_keys, head_dim, self.file)?),
            rotary_local: None,
            sliding_windows: self.sliding_windows(family, layers)?,
            scale: scale(head_dim as f64),
            hidden,
            intermediate: self.number("intermediate_size")?,
            norm: NormKind::Rms,
            epsilon: self.get("rms_norm_eps")?.unwrap_or(1e-6),
            activation: self.activation("hidden_act", "silu")?,
            gated: true,
            qk_norm: family == Family::Qwen3,
            parallel: false,
            biases,
            embedding_scale: None,
            tied_embedding: self.get("tie_word_embeddings")?.unwrap_or(false),
        })
    }

    fn gpt_neox(&self, architecture: &'static str) -> Result<Decoder, ExportError> {
        let (hidden, heads) = (self.number("hidden_size")?, self.number("num_attention_heads")?);
        let head_dim = self.head_dim(hidden, heads, "num_attention_heads")?;
        let layers = self.number("num_hidden_layers")?;
        let attention = self.get("attention_bias")?.unwrap_or(true);
        // If both keys exist, `transformers` reads the older one.
        let theta = if self.map.contains_key("rotary_emb_base") { "rotary_emb_base" } else { "rope_theta" };
        // If neither key exists, the rotary embedding covers a quarter of each head.
        let has_partial = self.map.contains_key("rotary_pct") || self.map.contains_key("rope_parameters");
        let mut map = self.map.clone();
        if !has_partial {
            map.insert("rotary_pct".to_owned(), Value::from(0.25));
        }
        let rotary_keys = RotaryKeys { theta, partial: "rotary_pct", supports_partial: true };
        Ok(Decoder {
            architecture,
            family: Family::GptNeox,
            layers,
            heads,
            kv_heads: heads,
            head_dim,
            vocab_size: self.number("vocab_size")?,
            context_tokens_max: self.number("max_position_embeddings")?,
            rotary: Some(read_rotary(&map, rotary_keys, head_dim, self.file)?),
            rotary_local: None,
            sliding_windows: vec![None; layers],
            scale: scale(head_dim as f64),
            hidden,
            intermediate: self.number("intermediate_size")?,
            norm: NormKind::Layer,
            epsilon: self.get("layer_norm_eps")?.unwrap_or(1e-5),
            activation: self.activation("hidden_act", "gelu")?,
            gated: false,
            qk_norm: false,
            parallel: self.get("use_parallel_residual")?.unwrap_or(true),
            biases: Biases { qkv: attention, attention_out: attention, mlp: true },
            embedding_scale: None,
            tied_embedding: self.get("tie_word_embeddings")?.unwrap_or(false),
        })
    }

    /// Reads the configuration of the text model of Gemma 3.
    fn gemma3(&self, architecture: &'static str) -> Result<Decoder, ExportError> {
        self.check_flags(&[("use_bidirectional_attention", false)])?;
        let (hidden, heads) = (self.number("hidden_size")?, self.number("num_attention_heads")?);
        let (layers, head_dim) = (self.number("num_hidden_layers")?, self.number("head_dim")?);
        let attention = self.get("attention_bias")?.unwrap_or(false);
        let sliding_windows = self.sliding_windows(Family::Gemma3, layers)?;
        let rotary = read_layer_rotary(self.map, &sliding_windows, head_dim, self.file)?;
        Ok(Decoder {
            architecture,
            family: Family::Gemma3,
            layers,
            heads,
            kv_heads: self.number("num_key_value_heads")?,
            head_dim,
            vocab_size: self.number("vocab_size")?,
            context_tokens_max: self.number("max_position_embeddings")?,
            rotary: Some(rotary.global),
            rotary_local: rotary.local,
            sliding_windows,
            scale: self.query_scale()?,
            hidden,
            intermediate: self.number("intermediate_size")?,
            norm: NormKind::RmsPlusOne,
            epsilon: self.get("rms_norm_eps")?.unwrap_or(1e-6),
            activation: self.activation("hidden_activation", "gelu_pytorch_tanh")?,
            gated: true,
            qk_norm: true,
            parallel: false,
            biases: Biases { qkv: attention, attention_out: attention, mlp: false },
            embedding_scale: Some((hidden as f64).sqrt() as f32),
            tied_embedding: self.get("tie_word_embeddings")?.unwrap_or(true),
        })
    }

    fn gpt2(&self, architecture: &'static str) -> Result<Decoder, ExportError> {
        self.check_flags(&[
            ("scale_attn_weights", true),
            ("scale_attn_by_inverse_layer_idx", false),
            ("add_cross_attention", false),
        ])?;
        let (hidden, heads) = (self.number("n_embd")?, self.number("n_head")?);
        let head_dim = self.head_dim(hidden, heads, "n_head")?;
        let layers = self.number("n_layer")?;
        Ok(Decoder {
            architecture,
            family: Family::Gpt2,
            layers,
            heads,
            kv_heads: heads,
            head_dim,
            vocab_size: self.number("vocab_size")?,
            context_tokens_max: self.number("n_positions")?,
            rotary: None,
            rotary_local: None,
            sliding_windows: vec![None; layers],
            scale: scale(head_dim as f64),
            hidden,
            intermediate: self.size("n_inner")?.unwrap_or(4 * hidden),
            norm: NormKind::Layer,
            epsilon: self.get("layer_norm_epsilon")?.unwrap_or(1e-5),
            activation: self.activation("activation_function", "gelu_new")?,
            gated: false,
            qk_norm: false,
            parallel: false,
            biases: Biases { qkv: true, attention_out: true, mlp: true },
            embedding_scale: None,
            tied_embedding: self.get("tie_word_embeddings")?.unwrap_or(true),
        })
    }

    fn activation(&self, key: &'static str, default: &str) -> Result<Activation, ExportError> {
        let found: Option<String> = self.get(key)?;
        match found.as_deref().unwrap_or(default) {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            other => {
                let supported = "silu, gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu";
                self.refuse(key, other.to_owned(), supported.to_owned())
            }
        }
    }

    /// The factor by which ⟨q, k⟩ is multiplied in Gemma 3.
    fn query_scale(&self) -> Result<f64, ExportError> {
        let key = "query_pre_attn_scalar";
        let scalar: f64 = self.get(key)?.unwrap_or(QUERY_SCALAR_DEFAULT);
        if !(scalar.is_finite() && scalar > 0.0) {
            return self.refuse(key, scalar.to_string(), "a number above 0".to_owned());
        }
        Ok(scale(scalar))
    }

    /// Fails if a key of [`NEUTRAL`] that `family` does not read has another value than its neutral one.
    fn check_neutral_keys(&self, family: Family) -> Result<(), ExportError> {
        let is_read = |key: &str| family == Family::Gemma3 && key == "query_pre_attn_scalar";
        for (key, neutral) in NEUTRAL.into_iter().filter(|(key, _)| !is_read(key)) {
            let found = self.map.get(key).filter(|value| !value.is_null());
            if let Some(found) = found.filter(|value| neutral.is_none() || value.as_f64() != neutral) {
                let supported = neutral.map_or("null".to_owned(), |neutral| format!("null, {neutral}"));
                return self.refuse(key, found.to_string(), supported);
            }
        }
        Ok(())
    }

    fn check_sizes(&self, decoder: &Decoder) -> Result<(), ExportError> {
        let Decoder { heads, kv_heads, .. } = *decoder;
        if !heads.is_multiple_of(kv_heads) {
            return self.refuse("num_key_value_heads", kv_heads.to_string(), format!("divisors of {heads}"));
        }
        if decoder.context_tokens_max < 2 {
            let found = decoder.context_tokens_max.to_string();
            return self.refuse("max_position_embeddings", found, "2 or more".to_owned());
        }
        Ok(())
    }
}

/// The factor by which dot products of queries and keys are multiplied: one over the root of `size`, which is
/// the number of their components unless a configuration sets it.
fn scale(size: f64) -> f64 {
    1.0 / size.sqrt()
}
