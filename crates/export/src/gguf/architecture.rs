//! The architectures of GGUF files, and how each is described as a Hugging Face model: its metadata keys as
//! `config.json`, and its tensors under the names of a Hugging Face checkpoint. Does not know about
//! tokenizers.

use serde_json::{Map, Value as Json, json};

use super::container::{GgufFile, Value, unsupported};
use super::tokenizer::MergeOrder;
use crate::ExportError;

/// The metadata key of the architecture's name, which is also the prefix of its other keys.
pub const ARCHITECTURE: &str = "general.architecture";

/// The tensor with the factors by which rotary frequencies are divided.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The largest number of factors in that tensor: half of the components of the largest head.
const ROPE_FACTORS_MAX: usize = 1 << 12;

/// The embedding table. Its number of rows is the size of the vocabulary.
const EMBEDDING: &str = "token_embd.weight";

/// The output projection. A file without it uses the embedding table.
const OUTPUT: &str = "output.weight";

#[derive(Debug)]
pub struct Architecture {
    /// The value of [`ARCHITECTURE`].
    pub name: &'static str,
    /// The class name of the Hugging Face checkpoint.
    class: &'static str,
    model_type: &'static str,
    /// Metadata keys beside [`COMMON`].
    keys: &'static [Key],
    /// The tensors of a layer, without `.weight` and `.bias`: the name in the file, after `blk.N.`, and the
    /// name in the checkpoint, after `model.layers.N.`.
    layer: &'static [(&'static str, &'static str)],
    /// Whether the two components that a rotary embedding turns together are neighbours in the file. In a
    /// checkpoint they are half a head apart.
    pub neighbours_rotate: bool,
    pub norms_have_one_added: bool,
    /// The order in which a SentencePiece vocabulary is merged.
    pub merge_order: MergeOrder,
}

/// A metadata key without the prefix, and the key of `config.json` that it becomes.
#[derive(Debug)]
struct Key {
    metadata: &'static str,
    config: &'static str,
    is_required: bool,
}

pub static ARCHITECTURES: [Architecture; 4] = [
    Architecture {
        name: "llama",
        class: "LlamaForCausalLM",
        model_type: "llama",
        keys: &[],
        layer: &LLAMA_LAYER,
        neighbours_rotate: true,
        norms_have_one_added: false,
        merge_order: MergeOrder::Scores,
    },
    Architecture {
        name: "qwen2",
        class: "Qwen2ForCausalLM",
        model_type: "qwen2",
        keys: &[],
        layer: &LLAMA_LAYER,
        neighbours_rotate: false,
        norms_have_one_added: false,
        merge_order: MergeOrder::Scores,
    },
    Architecture {
        name: "qwen3",
        class: "Qwen3ForCausalLM",
        model_type: "qwen3",
        keys: &[],
        layer: &LLAMA_LAYER,
        neighbours_rotate: false,
        norms_have_one_added: false,
        merge_order: MergeOrder::Scores,
    },
    Architecture {
        name: GEMMA3,
        class: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        keys: &[
            required("attention.sliding_window", "sliding_window"),
            optional("rope.freq_base_swa", "rope_local_base_freq"),
        ],
        layer: &GEMMA3_LAYER,
        neighbours_rotate: false,
        norms_have_one_added: true,
        // Its scores do not follow the order in which its tokenizer merges; its ids do.
        merge_order: MergeOrder::Ids,
    },
];

const GEMMA3: &str = "gemma3";

const COMMON: [Key; 8] = [
    required("context_length", "max_position_embeddings"),
    required("embedding_length", "hidden_size"),
    required("block_count", "num_hidden_layers"),
    required("feed_forward_length", "intermediate_size"),
    required("attention.head_count", "num_attention_heads"),
    optional("attention.head_count_kv", "num_key_value_heads"),
    required("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    optional("rope.freq_base", "rope_theta"),
];

/// Keys that are read in another way than [`COMMON`], or that say nothing new.
const OTHER_KEYS: [&str; 11] = [
    HEAD_DIM,
    "attention.value_length",
    "rope.dimension_count",
    SLIDING_PATTERN,
    SCALING_TYPE,
    SCALING_FACTOR,
    SCALE_LINEAR,
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "vocab_size",
    "attention.causal",
];

const HEAD_DIM: &str = "attention.key_length";
const SLIDING_PATTERN: &str = "attention.sliding_window_pattern";
const SCALING_TYPE: &str = "rope.scaling.type";
const SCALING_FACTOR: &str = "rope.scaling.factor";
/// The key of a linear scaling in older files.
const SCALE_LINEAR: &str = "rope.scale_linear";

/// In Gemma 3, every sixth layer attends to all positions.
const GEMMA3_PATTERN: u64 = 6;

/// The number of layers of the one Gemma 3 (27B) whose logits are scaled by hidden size and heads.
const GEMMA3_27B_LAYERS: u64 = 62;

/// The tensors outside layers.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

const LLAMA_LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const GEMMA3_LAYER: [(&str, &str); 13] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const fn required(metadata: &'static str, config: &'static str) -> Key {
    Key { metadata, config, is_required: true }
}

const fn optional(metadata: &'static str, config: &'static str) -> Key {
    Key { metadata, config, is_required: false }
}

impl Architecture {
    /// Returns the architecture that the file names.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if the file names none, or one that is not supported.
    pub fn detect(file: &GgufFile) -> Result<&'static Self, ExportError> {
        let found = match file.value(ARCHITECTURE) {
            Some(Value::Text(name)) => name.clone(),
            Some(other) => other.describe(),
            None => "missing".to_owned(),
        };
        let known = ARCHITECTURES.iter().find(|architecture| architecture.name == found);
        known.ok_or_else(|| {
            let supported = ARCHITECTURES.each_ref().map(|architecture| architecture.name).join(", ");
            unsupported(file, ARCHITECTURE, found, &supported)
        })
    }

    /// The name that a tensor of a Hugging Face checkpoint has in the file; `None` if this architecture has
    /// no such tensor.
    pub fn tensor_name(&self, checkpoint: &str) -> Option<String> {
        let (stem, suffix) = checkpoint.rsplit_once('.')?;
        let named = |table: &[(&'static str, &str)], name: &str| {
            table.iter().find(|(_, checkpoint)| *checkpoint == name).map(|(file, _)| *file)
        };
        if let Some(name) = named(&OUTER, stem) {
            return Some(format!("{name}.{suffix}"));
        }
        let (layer, part) = stem.strip_prefix("model.layers.")?.split_once('.')?;
        named(self.layer, part).map(|name| format!("blk.{layer}.{name}.{suffix}"))
    }

    /// Returns the model's `config.json`.
    ///
    /// # Errors
    /// Returns an [`ExportError`] if a key is missing, has a value of another type, or asks for something
    /// that is not supported.
    pub fn config(&self, file: &GgufFile) -> Result<Map<String, Json>, ExportError> {
        let keys = Keys { file, architecture: self };
        keys.refuse_unknown()?;
        keys.refuse_values()?;
        let mut config = Map::new();
        config.insert("architectures".to_owned(), json!([self.class]));
        config.insert("model_type".to_owned(), json!(self.model_type));
        for key in COMMON.iter().chain(self.keys) {
            match keys.number(key.metadata)? {
                Some(number) => drop(config.insert(key.config.to_owned(), number)),
                None if key.is_required => {
                    let at = keys.name(key.metadata);
                    return Err(unsupported(file, &at, "missing".to_owned(), "a number"));
                }
                None => {}
            }
        }
        if let Some(heads) = config.get("num_attention_heads").cloned() {
            config.entry("num_key_value_heads").or_insert(heads);
        }
        if let Some(head_dim) = keys.head_dim(&config)? {
            config.insert("head_dim".to_owned(), json!(head_dim));
        }
        if let Some(&[rows, _]) = file.dims(EMBEDDING) {
            config.insert("vocab_size".to_owned(), json!(rows));
        }
        config.insert("tie_word_embeddings".to_owned(), json!(file.dims(OUTPUT).is_none()));
        config.insert("rope_scaling".to_owned(), keys.rope_scaling()?);
        match self.name {
            "llama" => {
                let has = |tensor| json!(file.dims(tensor).is_some());
                config.insert("attention_bias".to_owned(), has("blk.0.attn_q.bias"));
                config.insert("mlp_bias".to_owned(), has("blk.0.ffn_gate.bias"));
            }
            GEMMA3 => keys.gemma3(&mut config)?,
            _ => {}
        }
        Ok(config)
    }
}

struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a Architecture,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture.name)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.file.value(&self.name(key))
    }

    /// Reads a number; `None` if the key is missing.
    fn number(&self, key: &str) -> Result<Option<Json>, ExportError> {
        Ok(Some(match self.value(key) {
            None => return Ok(None),
            Some(Value::Unsigned(number)) => json!(number),
            Some(Value::Float(number)) if number.is_finite() => json!(number),
            Some(other) => {
                return Err(unsupported(self.file, &self.name(key), other.describe(), "one number"));
            }
        }))
    }

    fn size(&self, key: &str) -> Result<Option<u64>, ExportError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Unsigned(size)) => Ok(Some(*size)),
            Some(other) => Err(unsupported(self.file, &self.name(key), other.describe(), "a whole number")),
        }
    }

    /// Fails if the file has a key of the architecture that is not known here: it may change what the model
    /// computes. A key whose value is 0 or false switches nothing on.
    fn refuse_unknown(&self) -> Result<(), ExportError> {
        let prefix = self.name("");
        let is_known = |key: &str| {
            OTHER_KEYS.contains(&key)
                || COMMON.iter().chain(self.architecture.keys).any(|known| known.metadata == key)
        };
        let unknown = |(key, _): &(&str, &Value)| key.strip_prefix(&prefix).is_some_and(|key| !is_known(key));
        for (key, value) in self.file.metadata().filter(unknown) {
            let is_off =
                matches!(value, Value::Unsigned(0) | Value::Bool(false)) || *value == Value::Float(0.0);
            if !is_off {
                return Err(unsupported(self.file, key, value.describe(), "files without this key"));
            }
        }
        Ok(())
    }

    /// Fails if a key that is known has a value that the export does not support.
    fn refuse_values(&self) -> Result<(), ExportError> {
        const SPLITS: &str = "split.count";
        let file = self.file;
        match file.value(SPLITS) {
            None | Some(Value::Unsigned(0 | 1)) => {}
            Some(other) => {
                let supported = "1: join the files first, with `llama-gguf-split --merge`";
                return Err(unsupported(file, SPLITS, other.describe(), supported));
            }
        }
        match self.value("attention.causal") {
            None | Some(Value::Bool(true)) => Ok(()),
            Some(other) => Err(unsupported(file, &self.name("attention.causal"), other.describe(), "true")),
        }
    }

    /// The size of a head; `None` if hidden size and heads do not give one.
    fn head_dim(&self, config: &Map<String, Json>) -> Result<Option<u64>, ExportError> {
        let of = |key| config.get(key).and_then(Json::as_u64);
        let derived = match (of("hidden_size"), of("num_attention_heads")) {
            (Some(hidden), Some(heads)) if heads > 0 && hidden.is_multiple_of(heads) => Some(hidden / heads),
            _ => None,
        };
        let Some(head_dim) = self.size(HEAD_DIM)?.or(derived) else { return Ok(None) };
        for key in ["attention.value_length", "rope.dimension_count"] {
            let found = self.size(key)?.unwrap_or(head_dim);
            if found != head_dim {
                let supported = format!("{head_dim}, the size of a head");
                return Err(unsupported(self.file, &self.name(key), found.to_string(), &supported));
            }
        }
        Ok(Some(head_dim))
    }

    /// The scaling of rotary frequencies, as `rope_scaling` of `config.json`.
    fn rope_scaling(&self) -> Result<Json, ExportError> {
        let kind = match self.value(SCALING_TYPE) {
            None => None,
            Some(Value::Text(kind)) => Some(kind.as_str()),
            Some(other) => return Err(self.refuse_scaling(other.describe())),
        };
        let factor = self.number(SCALING_FACTOR)?.or(self.number(SCALE_LINEAR)?);
        let linear = match (kind, factor) {
            (Some("linear"), None) => {
                return Err(unsupported(
                    self.file,
                    &self.name(SCALING_FACTOR),
                    "missing".to_owned(),
                    "a number",
                ));
            }
            (None | Some("linear"), Some(factor)) if factor.as_f64() != Some(1.0) => {
                json!({"rope_type": "linear", "factor": factor})
            }
            (None | Some("none" | "linear"), _) => Json::Null,
            (Some(other), _) => return Err(self.refuse_scaling(other.to_owned())),
        };
        let Some(dims) = self.file.dims(ROPE_FACTORS) else { return Ok(linear) };
        // Checked before the tensor is read, which may be as large as the file.
        if !matches!(dims, &[1..=ROPE_FACTORS_MAX]) {
            let supported = format!("one factor for each rotary frequency, at most {ROPE_FACTORS_MAX}");
            return Err(unsupported(self.file, ROPE_FACTORS, format!("shape {dims:?}"), &supported));
        }
        if !linear.is_null() {
            let supported = format!("none, since the file has the tensor `{ROPE_FACTORS}`");
            return Err(unsupported(self.file, &self.name(SCALING_TYPE), "linear".to_owned(), &supported));
        }
        Ok(json!({"rope_type": "divided", "divisors": self.file.read(ROPE_FACTORS)?}))
    }

    fn refuse_scaling(&self, found: String) -> ExportError {
        unsupported(self.file, &self.name(SCALING_TYPE), found, "none, linear")
    }

    /// Adds what a Gemma 3 file leaves to the program that reads it.
    fn gemma3(&self, config: &mut Map<String, Json>) -> Result<(), ExportError> {
        let of = |key| config.get(key).and_then(Json::as_u64).unwrap_or_default();
        let (layers, heads, hidden) = (of("num_hidden_layers"), of("num_attention_heads"), of("hidden_size"));
        let scalar = match layers {
            GEMMA3_27B_LAYERS => hidden / heads.max(1),
            _ => of("head_dim"),
        };
        let types = self.layer_types(layers)?;
        config.insert("layer_types".to_owned(), types);
        config.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
        config.insert("hidden_activation".to_owned(), json!("gelu_pytorch_tanh"));
        config.entry("rope_theta").or_insert(json!(1e6));
        config.entry("rope_local_base_freq").or_insert(json!(1e4));
        Ok(())
    }

    /// The kind of attention of each layer. The pattern in the file is the distance of layers that attend to
    /// all positions, or says for each layer whether it has a sliding window.
    fn layer_types(&self, layers: u64) -> Result<Json, ExportError> {
        let has_window: Vec<bool> = match self.value(SLIDING_PATTERN) {
            None => (1..=layers.min(1 << 16)).map(|layer| !layer.is_multiple_of(GEMMA3_PATTERN)).collect(),
            Some(Value::Unsigned(pattern @ 1..)) => {
                (1..=layers.min(1 << 16)).map(|layer| !layer.is_multiple_of(*pattern)).collect()
            }
            Some(Value::Numbers(numbers)) => {
                let has_window = |number| match number {
                    Value::Bool(has_window) => Ok(has_window),
                    Value::Unsigned(flag @ 0..=1) => Ok(flag == 1),
                    other => {
                        let at = self.name(SLIDING_PATTERN);
                        Err(unsupported(
                            self.file,
                            &at,
                            other.describe(),
                            "true, false, 1 or 0 for each layer",
                        ))
                    }
                };
                numbers.iter().map(has_window).collect::<Result<_, _>>()?
            }
            Some(other) => {
                let at = self.name(SLIDING_PATTERN);
                return Err(unsupported(
                    self.file,
                    &at,
                    other.describe(),
                    "a number above 0, or one for each layer",
                ));
            }
        };
        let name = |has_window| if has_window { "sliding_attention" } else { "full_attention" };
        Ok(json!(has_window.into_iter().map(name).collect::<Vec<_>>()))
    }
}
