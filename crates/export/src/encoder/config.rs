//! Reads a family's `config.json` into the description that all encoders share. Does not know about tensors or
//! graphs. A key that changes the computation is refused unless its value is supported.

use super::{Biases, Encoder, Family, Positions, RotaryLayer};
use crate::{
    ExportError,
    graph::Activation,
    keys::Config,
    rotary::{FULL, LayerKind, RotaryKeys, SLIDING, read_rotary, read_rotary_of_kind},
};

/// The id of the padding token, if the configuration of a RoBERTa has none. The positions of a text begin
/// after it.
const PADDING_DEFAULT: usize = 1;

/// The padding token's id in every MPNet.
const PADDING_OF_MPNET: usize = 1;

/// The number of buckets of relative positions in every MPNet: `transformers` ignores other numbers.
const BUCKETS_OF_MPNET: usize = 32;

/// The smallest value that DistilBERT's normalisations add to the variance.
const EPSILON_OF_DISTILBERT: f32 = 1e-12;

/// The layers of ModernBERT in which all tokens attend to each other.
const GLOBAL: LayerKind =
    LayerKind { name: FULL, theta: "global_rope_theta", theta_default: 160_000.0, has_scaling: true };

/// The layers of ModernBERT in which tokens attend to their neighbours.
const LOCAL: LayerKind =
    LayerKind { name: SLIDING, theta: "local_rope_theta", theta_default: 10_000.0, has_scaling: true };

/// The defaults of `transformers` for ModernBERT: the width of the neighbourhood in tokens, and the number of
/// layers from one with full attention to the next.
const LOCAL_ATTENTION_DEFAULT: usize = 128;
const GLOBAL_EVERY_DEFAULT: usize = 3;

/// The base of Nomic BERT's rotary frequencies, if the configuration has none.
const THETA_OF_NOMIC: f64 = 1000.0;

/// The number of tokens of the longest text that Nomic BERT was trained with, if the configuration has none.
/// Longer ones need frequencies that depend on the text's length.
const TRAINED_TOKENS_OF_NOMIC: usize = 2048;

impl Encoder {
    /// Reads the content of a `config.json`, of a checkpoint of the class `architecture`, which belongs to
    /// `family`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the configuration has a value that the export does not support.
    pub fn read(config: Config, architecture: &str, family: Family) -> Result<Self, ExportError> {
        if let Some(found) = config.map.get("quantization_config").filter(|value| !value.is_null()) {
            return config.refuse("quantization_config", found.to_string(), "null".to_owned());
        }
        config.check_flags(&[("is_decoder", false)])?;
        let architecture = architecture.to_owned();
        match family {
            Family::Bert => config.bert(architecture),
            Family::Roberta => config.roberta(architecture),
            Family::DistilBert => config.distilbert(architecture),
            Family::MpNet => config.mpnet(architecture),
            Family::ModernBert => config.modernbert(architecture),
            Family::NomicBert => config.nomic_bert(architecture),
        }
    }
}

impl Config<'_> {
    fn bert(&self, architecture: String) -> Result<Encoder, ExportError> {
        // Newer versions of `transformers` omit this key, because they support only absolute positions.
        self.check_text("position_embedding_type", "absolute")?;
        let (hidden, heads) = self.hidden_and_heads()?;
        Ok(Encoder {
            architecture,
            hidden,
            vocab_size: self.number("vocab_size")?,
            tokens_max: self.number("max_position_embeddings")?,
            family: Family::Bert,
            intermediate: self.number("intermediate_size")?,
            layers: self.number("num_hidden_layers")?,
            heads,
            token_types: self.number("type_vocab_size")?,
            positions: Positions::Learned { unused: 0, has_relative_bias: false },
            activation: self.encoder_activation("hidden_act", "gelu")?,
            epsilon: self.epsilon("layer_norm_eps", 1e-12)?,
            pre_norm: false,
            gated: false,
            biases: Biases::ALL,
        })
    }

    /// Reads the configuration of a RoBERTa, whose positions begin after the id of the padding token.
    fn roberta(&self, architecture: String) -> Result<Encoder, ExportError> {
        let unused = self.get("pad_token_id")?.unwrap_or(PADDING_DEFAULT).saturating_add(1);
        let bert = self.bert(architecture)?;
        Ok(Encoder {
            family: Family::Roberta,
            tokens_max: self.without_unused(bert.tokens_max, unused)?,
            positions: Positions::Learned { unused, has_relative_bias: false },
            ..bert
        })
    }

    fn mpnet(&self, architecture: String) -> Result<Encoder, ExportError> {
        let (hidden, heads) = self.hidden_and_heads()?;
        let key = "relative_attention_num_buckets";
        let buckets = self.size(key)?.unwrap_or(BUCKETS_OF_MPNET);
        if buckets != BUCKETS_OF_MPNET {
            return self.refuse(key, buckets.to_string(), BUCKETS_OF_MPNET.to_string());
        }
        let unused = PADDING_OF_MPNET + 1;
        Ok(Encoder {
            architecture,
            hidden,
            vocab_size: self.number("vocab_size")?,
            tokens_max: self.without_unused(self.number("max_position_embeddings")?, unused)?,
            family: Family::MpNet,
            intermediate: self.number("intermediate_size")?,
            layers: self.number("num_hidden_layers")?,
            heads,
            token_types: 0,
            positions: Positions::Learned { unused, has_relative_bias: true },
            activation: self.encoder_activation("hidden_act", "gelu")?,
            epsilon: self.epsilon("layer_norm_eps", 1e-12)?,
            pre_norm: false,
            gated: false,
            biases: Biases::ALL,
        })
    }

    fn distilbert(&self, architecture: String) -> Result<Encoder, ExportError> {
        let (hidden, heads) = (self.number("dim")?, self.number("n_heads")?);
        self.head_dim(hidden, heads, "n_heads")?;
        Ok(Encoder {
            architecture,
            hidden,
            vocab_size: self.number("vocab_size")?,
            tokens_max: self.number("max_position_embeddings")?,
            family: Family::DistilBert,
            intermediate: self.number("hidden_dim")?,
            layers: self.number("n_layers")?,
            heads,
            token_types: 0,
            positions: Positions::Learned { unused: 0, has_relative_bias: false },
            activation: self.encoder_activation("activation", "gelu")?,
            epsilon: EPSILON_OF_DISTILBERT,
            pre_norm: false,
            gated: false,
            biases: Biases::ALL,
        })
    }

    fn modernbert(&self, architecture: String) -> Result<Encoder, ExportError> {
        let (hidden, heads) = self.hidden_and_heads()?;
        let head_dim = self.head_dim(hidden, heads, "num_attention_heads")?;
        let layers = self.number("num_hidden_layers")?;
        let flag = |key: &'static str| Ok::<_, ExportError>(self.get(key)?.unwrap_or(false));
        Ok(Encoder {
            architecture,
            hidden,
            vocab_size: self.number("vocab_size")?,
            tokens_max: self.number("max_position_embeddings")?,
            family: Family::ModernBert,
            intermediate: self.number("intermediate_size")?,
            layers,
            heads,
            token_types: 0,
            positions: Positions::Rotary { layers: self.modernbert_layers(layers, head_dim)? },
            activation: self.encoder_activation("hidden_activation", "gelu")?,
            epsilon: self.epsilon("norm_eps", 1e-5)?,
            pre_norm: true,
            gated: true,
            biases: Biases {
                attention: flag("attention_bias")?,
                mlp: flag("mlp_bias")?,
                norm: flag("norm_bias")?,
            },
        })
    }

    /// The rotary embedding and the reach of each layer of a ModernBERT.
    fn modernbert_layers(&self, layers: usize, head_dim: usize) -> Result<Vec<RotaryLayer>, ExportError> {
        let every = self.size("global_attn_every_n_layers")?.unwrap_or(GLOBAL_EVERY_DEFAULT);
        let by_rule = |layer: usize| if layer.is_multiple_of(every) { FULL } else { SLIDING }.to_owned();
        let types: Vec<String> =
            self.get("layer_types")?.unwrap_or_else(|| (0..layers).map(by_rule).collect());
        if types.len() != layers {
            let supported = format!("{layers}, one for each layer");
            return self.refuse("layer_types", format!("{} types", types.len()), supported);
        }
        let reach = self.size("local_attention")?.unwrap_or(LOCAL_ATTENTION_DEFAULT) / 2;
        let read = |kind, reach| {
            let rotary = read_rotary_of_kind(self.map, kind, head_dim, self.file)?;
            Ok::<_, ExportError>(RotaryLayer { frequencies: rotary.frequencies, reach })
        };
        let (global, local) = (read(&GLOBAL, None)?, read(&LOCAL, Some(reach))?);
        let of_type = |kind: &String| match kind.as_str() {
            FULL => Ok(global.clone()),
            SLIDING => Ok(local.clone()),
            _ => self.refuse("layer_types", kind.clone(), format!("{FULL}, {SLIDING}")),
        };
        types.iter().map(of_type).collect()
    }

    /// Reads the configuration of a Nomic BERT, with the keys of the publisher's code, which are those of
    /// GPT-2, or with those of `transformers`.
    fn nomic_bert(&self, architecture: String) -> Result<Encoder, ExportError> {
        self.check_flags(&[
            ("prenorm", false),
            ("causal", false),
            ("parallel_block", false),
            ("rotary_emb_interleaved", false),
            ("qkv_proj_bias", false),
            ("mlp_fc1_bias", false),
            ("mlp_fc2_bias", false),
            ("use_rms_norm", false),
        ])?;
        for key in ["num_experts", "rotary_emb_scale_base"] {
            if let Some(found) =
                self.map.get(key).filter(|value| !value.is_null() && value.as_f64() != Some(0.0))
            {
                return self.refuse(key, found.to_string(), "null".to_owned());
            }
        }
        let is_published = self.contains("n_embd");
        let key = |published, other| if is_published { published } else { other };
        let heads_key = key("n_head", "num_attention_heads");
        let (hidden, heads) = (self.number(key("n_embd", "hidden_size"))?, self.number(heads_key)?);
        let head_dim = self.head_dim(hidden, heads, heads_key)?;
        if let Some(other) = self.size("head_dim")?.filter(|other| *other != head_dim) {
            return self.refuse("head_dim", other.to_string(), head_dim.to_string());
        }
        let layers = self.number(key("n_layer", "num_hidden_layers"))?;
        let activation_key = key("activation_function", "hidden_act");
        let activation = match self.get::<String>(activation_key)?.as_deref() {
            None | Some("swiglu" | "silu") => Activation::Silu,
            Some("geglu" | "gelu") => Activation::Gelu,
            Some(other) => {
                let supported = "swiglu, silu, geglu, gelu".to_owned();
                return self.refuse(activation_key, other.to_owned(), supported);
            }
        };
        let positions = self.number(key("n_positions", "max_position_embeddings"))?;
        let trained = self.size("max_trained_positions")?.unwrap_or(TRAINED_TOKENS_OF_NOMIC);
        let multiple = self.size("pad_vocab_size_multiple")?.unwrap_or(1);
        let rotary = RotaryLayer { frequencies: self.nomic_frequencies(head_dim)?, reach: None };
        Ok(Encoder {
            architecture,
            hidden,
            vocab_size: self.number("vocab_size")?.next_multiple_of(multiple),
            tokens_max: positions.min(trained),
            family: Family::NomicBert,
            intermediate: self.size(key("n_inner", "intermediate_size"))?.unwrap_or(4 * hidden),
            layers,
            heads,
            token_types: self.get("type_vocab_size")?.unwrap_or(2),
            positions: Positions::Rotary { layers: vec![rotary; layers] },
            activation,
            epsilon: self.epsilon(key("layer_norm_epsilon", "layer_norm_eps"), 1e-12)?,
            pre_norm: false,
            gated: true,
            biases: Biases { attention: false, mlp: false, norm: true },
        })
    }

    fn nomic_frequencies(&self, head_dim: usize) -> Result<Vec<f32>, ExportError> {
        let keys =
            RotaryKeys { theta: "rotary_emb_base", partial: "rotary_emb_fraction", supports_partial: false };
        let mut map = self.map.clone();
        if !map.contains_key(keys.theta) {
            map.insert(keys.theta.to_owned(), THETA_OF_NOMIC.into());
        }
        Ok(read_rotary(&map, keys, head_dim, self.file)?.frequencies)
    }

    fn hidden_and_heads(&self) -> Result<(usize, usize), ExportError> {
        let (hidden, heads) = (self.number("hidden_size")?, self.number("num_attention_heads")?);
        self.head_dim(hidden, heads, "num_attention_heads")?;
        Ok((hidden, heads))
    }

    /// The number of positions of a table whose first `unused` rows belong to no token of a text.
    fn without_unused(&self, positions: usize, unused: usize) -> Result<usize, ExportError> {
        match positions.checked_sub(unused).filter(|tokens| *tokens > 0) {
            Some(tokens) => Ok(tokens),
            None => {
                let supported = format!("more than {unused}: the rows up to the padding token's are unused");
                self.refuse("max_position_embeddings", positions.to_string(), supported)
            }
        }
    }

    fn epsilon(&self, key: &'static str, default: f64) -> Result<f32, ExportError> {
        Ok(self.get::<f64>(key)?.unwrap_or(default) as f32)
    }

    fn encoder_activation(&self, key: &'static str, default: &str) -> Result<Activation, ExportError> {
        let found: Option<String> = self.get(key)?;
        match found.as_deref().unwrap_or(default) {
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            other => {
                let supported = "gelu, gelu_new, gelu_pytorch_tanh, relu".to_owned();
                self.refuse(key, other.to_owned(), supported)
            }
        }
    }
}
