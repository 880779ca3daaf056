//! Reads a family's `config.json` into the description that all families share, with the frequencies of
//! rotary position embeddings. Does not know about tensors or graphs. A key that is known to change the
//! computation is refused unless it has its neutral value. Tensors that the description does not cover are
//! refused when the weights are copied.

use std::f64::consts::TAU;
use std::path::Path;

use serde_json::{Map, Value};
use thresher_core::model::contract::Rotary;

use super::{ARCHITECTURES, Biases, Decoder, Family, NormKind};
use crate::{
    ExportError,
    graph::Activation,
    source::{Header, optional},
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

/// The limit on any size in a configuration. It is larger than any size of a real model, and the product of
/// two such sizes fits a `usize`.
const SIZE_MAX: usize = 1 << 24;

/// The default of `transformers` for the size of a sliding window, in tokens.
const WINDOW_DEFAULT: usize = 4096;

/// The default of `transformers` for the number of layers before the first with a sliding window.
const FULL_LAYERS_DEFAULT: usize = 28;

/// The base of the rotary frequencies if the configuration has none.
const THETA_DEFAULT: f64 = 10_000.0;

/// `config.json`, read one key at a time.
struct Config<'a> {
    file: &'a Path,
    map: &'a Map<String, Value>,
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
        config.check_neutral_keys()?;
        let decoder = match family {
            Family::Gpt2 => config.gpt2(architecture),
            Family::GptNeox => config.gpt_neox(architecture),
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
            hidden,
            intermediate: self.number("intermediate_size")?,
            norm: NormKind::Rms,
            epsilon: self.get("rms_norm_eps")?.unwrap_or(1e-6),
            activation: self.activation("hidden_act", "silu")?,
            gated: true,
            qk_norm: family == Family::Qwen3,
            parallel: false,
            biases,
            sliding_windows: self.sliding_windows(family, layers)?,
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
            hidden,
            intermediate: self.number("intermediate_size")?,
            norm: NormKind::Layer,
            epsilon: self.get("layer_norm_eps")?.unwrap_or(1e-5),
            activation: self.activation("hidden_act", "gelu")?,
            gated: false,
            qk_norm: false,
            parallel: self.get("use_parallel_residual")?.unwrap_or(true),
            biases: Biases { qkv: attention, attention_out: attention, mlp: true },
            sliding_windows: vec![None; layers],
            tied_embedding: self.get("tie_word_embeddings")?.unwrap_or(false),
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
            head_dim: self.head_dim(hidden, heads, "n_head")?,
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
            sliding_windows: vec![None; layers],
            tied_embedding: self.get("tie_word_embeddings")?.unwrap_or(true),
        })
    }

    /// The size of each layer's sliding window in tokens; `None` for full attention.
    fn sliding_windows(&self, family: Family, layers: usize) -> Result<Vec<Option<usize>>, ExportError> {
        // A configuration without the key was written when the window was always on; null switches it off.
        let window = match self.map.contains_key("sliding_window") {
            true => self.get("sliding_window")?,
            false => Some(WINDOW_DEFAULT),
        };
        if window == Some(0) {
            return self.refuse("sliding_window", "0".to_owned(), "1 or more".to_owned());
        }
        let is_enabled = match family {
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => self.get("use_sliding_window")?.unwrap_or(false),
            _ => false,
        };
        let window = window.filter(|_| is_enabled);
        let first_layer = match family {
            Family::Mistral => 0,
            _ => self.get("max_window_layers")?.unwrap_or(FULL_LAYERS_DEFAULT),
        };
        let Some(types) = self.get::<Vec<String>>("layer_types")? else {
            return Ok((0..layers).map(|layer| window.filter(|_| layer >= first_layer)).collect());
        };
        if types.len() != layers {
            return self.refuse(
                "layer_types",
                format!("{} types", types.len()),
                format!("{layers}, one for each layer"),
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

    /// Fails if a key of [`NEUTRAL`] has another value than its neutral one.
    fn check_neutral_keys(&self) -> Result<(), ExportError> {
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
            return self.refuse("max_position_embeddings", found, "2 or more".to_owned());
        }
        Ok(())
    }

    fn get<T: serde::de::DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, ExportError> {
        optional(self.map, key, self.file)
    }

    fn number(&self, key: &'static str) -> Result<usize, ExportError> {
        match self.size(key)? {
            Some(number) => Ok(number),
            None => self.refuse(key, "missing".to_owned(), "a number".to_owned()),
        }
    }

    /// Reads a size from 1 to [`SIZE_MAX`]; `None` if the key is missing or null.
    fn size(&self, key: &'static str) -> Result<Option<usize>, ExportError> {
        match self.get::<usize>(key)? {
            Some(size) if size == 0 || size > SIZE_MAX => {
                self.refuse(key, size.to_string(), format!("1 to {SIZE_MAX}"))
            }
            size => Ok(size),
        }
    }

    fn head_dim(&self, hidden: usize, heads: usize, key: &'static str) -> Result<usize, ExportError> {
        if !hidden.is_multiple_of(heads) {
            return self.refuse(key, heads.to_string(), format!("divisors of the hidden size {hidden}"));
        }
        Ok(hidden / heads)
    }

    fn refuse<T>(&self, key: &'static str, found: String, supported: String) -> Result<T, ExportError> {
        Err(ExportError::Unsupported { file: self.file.to_owned(), key, found, supported })
    }
}

/// The keys of the rotary position embedding in a family's configuration.
#[derive(Debug, Clone, Copy)]
struct RotaryKeys {
    /// The base of the frequencies.
    theta: &'static str,
    /// The share of a head's components that the rotary embedding covers.
    partial: &'static str,
    /// Whether the family supports a share below 1.
    supports_partial: bool,
}

/// Computes the rotary frequencies for heads of `head_dim` components, with their scaling, as `transformers`
/// does.
fn read_rotary(
    config: &Map<String, Value>,
    keys: RotaryKeys,
    head_dim: usize,
    file: &Path,
) -> Result<Rotary, ExportError> {
    // Newer versions of `transformers` write everything to `rope_parameters`, older ones the scaling to
    // `rope_scaling`.
    let newer: Option<Map<_, _>> = optional(config, "rope_parameters", file)?;
    let scaling: Option<Map<_, _>> = optional(config, "rope_scaling", file)?;
    let (theta, partial) = match &newer {
        Some(newer) => {
            (optional(newer, "rope_theta", file)?, optional(newer, "partial_rotary_factor", file)?)
        }
        None => (None, None),
    };
    let theta = theta.or(optional(config, keys.theta, file)?).unwrap_or(THETA_DEFAULT);
    let partial: f64 = partial.or(optional(config, keys.partial, file)?).unwrap_or(1.0);
    let dim = (head_dim as f64 * partial) as usize;
    if dim == 0 || dim > head_dim || !dim.is_multiple_of(2) || dim < head_dim && !keys.supports_partial {
        let supported = match keys.supports_partial {
            true => format!("an even part of {head_dim} components"),
            false => "1".to_owned(),
        };
        return Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: keys.partial,
            found: partial.to_string(),
            supported,
        });
    }
    let unscaled = (0..dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / dim as f64));
    let scaled = match newer.or(scaling) {
        None => unscaled.collect(),
        Some(scaling) => scale_frequencies(unscaled, &scaling, file)?,
    };
    let frequencies: Vec<f32> = scaled.into_iter().map(|frequency| frequency as f32).collect();
    match frequencies.iter().find(|frequency| !(frequency.is_finite() && **frequency > 0.0)) {
        Some(invalid) => Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: keys.theta,
            found: format!("{theta}, with rope_scaling a frequency of {invalid}"),
            supported: "a base and factors above 0".to_owned(),
        }),
        None => Ok(Rotary { dim, frequencies }),
    }
}

fn scale_frequencies(
    unscaled: impl Iterator<Item = f64>,
    scaling: &Map<String, Value>,
    file: &Path,
) -> Result<Vec<f64>, ExportError> {
    let number = |key: &'static str| -> Result<f64, ExportError> {
        let found: Option<f64> = optional(scaling, key, file)?;
        found.ok_or_else(|| ExportError::Unsupported {
            file: file.to_owned(),
            key,
            found: "missing".to_owned(),
            supported: "a number, for this type of rope_scaling".to_owned(),
        })
    };
    let newer: Option<String> = optional(scaling, "rope_type", file)?;
    let kind = newer.or(optional(scaling, "type", file)?);
    match kind.as_deref().unwrap_or("default") {
        "default" => Ok(unscaled.collect()),
        "linear" => {
            let factor = number("factor")?;
            Ok(unscaled.map(|frequency| frequency / factor).collect())
        }
        "llama3" => {
            let (factor, low, high) =
                (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
            let context = number("original_max_position_embeddings")?;
            let scale = |frequency: f64| {
                let rotations = context * frequency / TAU;
                // Low frequencies are divided by the factor, high ones are kept, and those in between are
                // interpolated.
                let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            };
            Ok(unscaled.map(scale).collect())
        }
        // A type of this export: GGUF files have one factor for each frequency.
        "divided" => {
            let divisors: Vec<f64> = optional(scaling, "divisors", file)?.unwrap_or_default();
            let unscaled: Vec<f64> = unscaled.collect();
            if divisors.len() != unscaled.len() {
                return Err(ExportError::Unsupported {
                    file: file.to_owned(),
                    key: "divisors",
                    found: format!("{} factors", divisors.len()),
                    supported: format!("{}, one for each frequency of rope_scaling", unscaled.len()),
                });
            }
            Ok(unscaled.iter().zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect())
        }
        other => Err(ExportError::Unsupported {
            file: file.to_owned(),
            key: "rope_scaling",
            found: other.to_owned(),
            supported: "default, linear, llama3".to_owned(),
        }),
    }
}
