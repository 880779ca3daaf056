//! Reads a family's `config.json` into the one description that all families share.
//! Knows nothing of tensors or graphs. Keys that are known to change what is computed are refused unless they change nothing; what a
//! checkpoint holds beyond what is read is refused when its tensors are moved.

use std::path::Path;

use serde_json::{Map, Value};

use super::{ARCHITECTURES, Biases, Decoder, Family, NormKind, rotary};
use crate::{
    ExportError,
    graph::Activation,
    source::{CONFIG, Header, optional, read_json},
};

/// Keys that change what a model computes, each with the value that changes nothing. Models of other families have them; one that
/// calls itself by a name that is known here and has them is no model that is known.
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

/// Larger than any size of a model; products of two fit a number.
const SIZE_MAX: usize = 1 << 24;

/// What `transformers` takes for a window, and for the layers before the first that has one, where a configuration does not say.
const WINDOW: usize = 4096;
const WINDOW_LAYERS: usize = 28;

/// `config.json`, asked key by key.
struct Keys<'a> {
    file: &'a Path,
    map: Map<String, Value>,
}

/// The class name of the checkpoint and its family, if it is a decoder that is known here.
pub fn architecture(header: &Header) -> Option<(&'static str, Family)> {
    let named = header.architectures.first()?;
    ARCHITECTURES.into_iter().find(|(name, _)| name == named)
}

impl Decoder {
    /// Reads `dir/config.json` of a checkpoint that is an `architecture` of this `family`.
    ///
    /// # Errors
    /// A file that is malformed, or a value that this export does not support.
    pub fn read(dir: &Path, architecture: &'static str, family: Family) -> Result<Self, ExportError> {
        let file = dir.join(CONFIG);
        let keys = Keys { map: read_json(&file)?, file: &file };
        keys.refuse_unknown()?;
        let decoder = match family {
            Family::Gpt2 => keys.gpt2(architecture),
            Family::GptNeox => keys.gpt_neox(architecture),
            _ => keys.llama_like(architecture, family),
        }?;
        keys.check_sizes(&decoder)?;
        Ok(decoder)
    }
}

impl Keys<'_> {
    /// Llama and what was made after it.
    fn llama_like(&self, architecture: &'static str, family: Family) -> Result<Decoder, ExportError> {
        let (hidden, heads) = (self.number("hidden_size")?, self.number("num_attention_heads")?);
        let head_dim = match self.size("head_dim")? {
            Some(head_dim) => head_dim,
            None if family == Family::Qwen3 => self.number("head_dim")?,
            None => self.part_of(hidden, heads, "num_attention_heads")?,
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
        let named = rotary::Keys { theta: "rope_theta", part: "partial_rotary_factor", turns_parts: false };
        Ok(Decoder {
            architecture,
            family,
            layers,
            heads,
            kv_heads: match family {
                Family::Llama => self.size("num_key_value_heads")?.unwrap_or(heads),
                // Others have a number of their own where it is not said.
                _ => self.number("num_key_value_heads")?,
            },
            head_dim,
            vocab_size: self.number("vocab_size")?,
            context_tokens_max: self.number("max_position_embeddings")?,
            rotary: Some(rotary::read(&self.map, named, head_dim, self.file)?),
            hidden,
            intermediate: self.number("intermediate_size")?,
            norm: NormKind::Rms,
            epsilon: self.get("rms_norm_eps")?.unwrap_or(1e-6),
            activation: self.activation("hidden_act", "silu")?,
            gated: true,
            qk_norm: family == Family::Qwen3,
            parallel: false,
            biases,
            windows: self.windows(family, layers)?,
            tied: self.get("tie_word_embeddings")?.unwrap_or(false),
        })
    }

    fn gpt_neox(&self, architecture: &'static str) -> Result<Decoder, ExportError> {
        let (hidden, heads) = (self.number("hidden_size")?, self.number("num_attention_heads")?);
        let head_dim = self.part_of(hidden, heads, "num_attention_heads")?;
        let layers = self.number("num_hidden_layers")?;
        let attention = self.get("attention_bias")?.unwrap_or(true);
        // Where both are there, `transformers` reads the older one.
        let theta = if self.map.contains_key("rotary_emb_base") { "rotary_emb_base" } else { "rope_theta" };
        // Where neither key says it, a quarter of a head turns.
        let said = self.map.contains_key("rotary_pct") || self.map.contains_key("rope_parameters");
        let mut map = self.map.clone();
        if !said {
            map.insert("rotary_pct".to_owned(), Value::from(0.25));
        }
        let named = rotary::Keys { theta, part: "rotary_pct", turns_parts: true };
        Ok(Decoder {
            architecture,
            family: Family::GptNeox,
            layers,
            heads,
            kv_heads: heads,
            head_dim,
            vocab_size: self.number("vocab_size")?,
            context_tokens_max: self.number("max_position_embeddings")?,
            rotary: Some(rotary::read(&map, named, head_dim, self.file)?),
            hidden,
            intermediate: self.number("intermediate_size")?,
            norm: NormKind::Layer,
            epsilon: self.get("layer_norm_eps")?.unwrap_or(1e-5),
            activation: self.activation("hidden_act", "gelu")?,
            gated: false,
            qk_norm: false,
            parallel: self.get("use_parallel_residual")?.unwrap_or(true),
            biases: Biases { qkv: attention, attention_out: attention, mlp: true },
            windows: vec![None; layers],
            tied: self.get("tie_word_embeddings")?.unwrap_or(false),
        })
    }

    fn gpt2(&self, architecture: &'static str) -> Result<Decoder, ExportError> {
        for (key, neutral) in [
            ("scale_attn_weights", true),
            ("scale_attn_by_inverse_layer_idx", false),
            ("add_cross_attention", false),
        ] {
            let found = self.get(key)?.unwrap_or(neutral);
            if found != neutral {
                return self.refuse(key, found.to_string(), neutral.to_string());
            }
        }
        let (hidden, heads) = (self.number("n_embd")?, self.number("n_head")?);
        let layers = self.number("n_layer")?;
        Ok(Decoder {
            architecture,
            family: Family::Gpt2,
            layers,
            heads,
            kv_heads: heads,
            head_dim: self.part_of(hidden, heads, "n_head")?,
            vocab_size: self.number("vocab_size")?,
            context_tokens_max: self.number("n_positions")?,
            rotary: None,
            hidden,
            intermediate: self.size("n_inner")?.unwrap_or(4 * hidden),
            norm: NormKind::Layer,
            epsilon: self.get("layer_norm_epsilon")?.unwrap_or(1e-5),
            activation: self.activation("activation_function", "gelu_new")?,
            gated: false,
            qk_norm: false,
            parallel: false,
            biases: Biases { qkv: true, attention_out: true, mlp: true },
            windows: vec![None; layers],
            tied: self.get("tie_word_embeddings")?.unwrap_or(true),
        })
    }

    /// How many places back each layer sees.
    fn windows(&self, family: Family, layers: usize) -> Result<Vec<Option<usize>>, ExportError> {
        // Configurations without the key had a window when they were made; null switches it off.
        let window = match self.map.contains_key("sliding_window") {
            true => self.get("sliding_window")?,
            false => Some(WINDOW),
        };
        if window == Some(0) {
            return self.refuse("sliding_window", "0".to_owned(), "1 and more".to_owned());
        }
        let may_slide = match family {
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => self.get("use_sliding_window")?.unwrap_or(false),
            _ => false,
        };
        let window = window.filter(|_| may_slide);
        let first = match family {
            Family::Mistral => 0,
            _ => self.get("max_window_layers")?.unwrap_or(WINDOW_LAYERS),
        };
        let Some(types) = self.get::<Vec<String>>("layer_types")? else {
            return Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect());
        };
        if types.len() != layers {
            return self.refuse(
                "layer_types",
                format!("{} types", types.len()),
                format!("{layers}, one a layer"),
            );
        }
        let of_type = |kind: &String| match (kind.as_str(), window) {
            ("full_attention", _) => Ok(None),
            ("sliding_attention", Some(window)) => Ok(Some(window)),
            ("sliding_attention", None) => self.refuse(
                "sliding_window",
                "off".to_owned(),
                "a number, since layer_types has sliding_attention".to_owned(),
            ),
            _ => self.refuse("layer_types", kind.clone(), "full_attention, sliding_attention".to_owned()),
        };
        types.iter().map(of_type).collect()
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

    fn refuse_unknown(&self) -> Result<(), ExportError> {
        for (key, neutral) in NEUTRAL {
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
            return self.refuse("max_position_embeddings", found, "2 and more".to_owned());
        }
        Ok(())
    }

    fn get<T: serde::de::DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, ExportError> {
        optional(&self.map, key, self.file)
    }

    fn number(&self, key: &'static str) -> Result<usize, ExportError> {
        match self.size(key)? {
            Some(number) => Ok(number),
            None => self.refuse(key, "missing".to_owned(), "a number".to_owned()),
        }
    }

    /// A size that may be missing.
    fn size(&self, key: &'static str) -> Result<Option<usize>, ExportError> {
        match self.get::<usize>(key)? {
            Some(size) if size == 0 || size > SIZE_MAX => {
                self.refuse(key, size.to_string(), format!("1 to {SIZE_MAX}"))
            }
            size => Ok(size),
        }
    }

    fn part_of(&self, hidden: usize, heads: usize, key: &'static str) -> Result<usize, ExportError> {
        if !hidden.is_multiple_of(heads) {
            return self.refuse(key, heads.to_string(), format!("divisors of the hidden size {hidden}"));
        }
        Ok(hidden / heads)
    }

    fn refuse<T>(&self, key: &'static str, found: String, supported: String) -> Result<T, ExportError> {
        Err(ExportError::Unsupported { file: self.file.to_owned(), key, found, supported })
    }
}
