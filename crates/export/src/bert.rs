//! BERT: its configuration; the graphs and the weights are in the modules below.
//! Knows nothing of tokenizers or of how the files are put in place.

mod encoder;
mod weights;

use std::path::Path;

use serde::Deserialize;

use super::{
    ExportError,
    graph::Activation,
    source::{CONFIG, Header, read_json},
};

/// Class names of checkpoints that hold a BERT encoder; what they add to it is left out.
pub const ARCHITECTURES: [&str; 7] = [
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
];

/// Sizes and settings of a BERT encoder.
#[derive(Debug, Clone)]
pub struct Bert {
    /// Class name of the checkpoint.
    pub architecture: String,
    /// Components of a hidden state: `d`.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Rows of the table of positions.
    pub positions: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    token_types: usize,
    activation: Activation,
    epsilon: f32,
}

/// `config.json`, as far as the encoder depends on it.
#[derive(Deserialize)]
struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f32,
    hidden_act: String,
    // Newer versions of `transformers` leave it out: they know no other than absolute.
    #[serde(default = "absolute")]
    position_embedding_type: String,
    #[serde(default)]
    is_decoder: bool,
}

fn absolute() -> String {
    "absolute".to_owned()
}

/// The class name of the checkpoint, if it is one of [`ARCHITECTURES`].
pub fn architecture(header: &Header) -> Option<&str> {
    let bare = (header.model_type.as_deref() == Some("bert")).then_some("BertModel");
    let named = header.architectures.first().map(String::as_str).or(bare);
    named.filter(|name| ARCHITECTURES.contains(name))
}

impl Bert {
    /// Reads `dir/config.json` of a checkpoint that is an `architecture`.
    ///
    /// # Errors
    /// A file that is malformed, or a value that this export does not support.
    pub fn read(dir: &Path, architecture: &str) -> Result<Self, ExportError> {
        let file = dir.join(CONFIG);
        let refuse = |key: &'static str, found: String, supported: String| {
            Err(ExportError::Unsupported { file: file.clone(), key, found, supported })
        };
        let config: Config = read_json(&file)?;
        let activation = match config.hidden_act.as_str() {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            other => {
                return refuse(
                    "hidden_act",
                    other.to_owned(),
                    "gelu, gelu_new, gelu_pytorch_tanh, relu".into(),
                );
            }
        };
        if config.position_embedding_type != "absolute" {
            return refuse("position_embedding_type", config.position_embedding_type, absolute());
        }
        if config.type_vocab_size == 0 {
            return refuse("type_vocab_size", "0".into(), "1 and more".into());
        }
        if config.is_decoder {
            return refuse("is_decoder", "true".into(), "false".into());
        }
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        if heads == 0 || hidden == 0 || !hidden.is_multiple_of(heads) {
            return refuse(
                "num_attention_heads",
                heads.to_string(),
                format!("divisors of hidden_size {hidden}"),
            );
        }
        Ok(Self {
            architecture: architecture.to_owned(),
            hidden,
            vocab_size: config.vocab_size,
            positions: config.max_position_embeddings,
            intermediate: config.intermediate_size,
            layers: config.num_hidden_layers,
            heads,
            token_types: config.type_vocab_size,
            activation,
            epsilon: config.layer_norm_eps,
        })
    }
}
